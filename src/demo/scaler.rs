//! The scaler of the demo: the parts of `serve` on a stepped clock, with the simulated cluster in
//! Kubernetes' place.
//!
//! Must not decide or soften anything: what is asked and answered goes over the wire.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use super::cluster::{Cluster, Pod};
use super::pages::{GATEWAY_METRIC, Shared, lock};
use super::{Error, MAX, NAME, NAMESPACE, moment};
use crate::clock::Clock;
use crate::config;
use crate::decision::{Answer, Phase, Replicas};
use crate::declog::{self, DecisionLog};
use crate::grpc;
use crate::grpc::observe::RpcMetrics;
use crate::health::{Health, Pulse};
use crate::inventory::{Counted, Endpoint, Inventory, Kubernetes, Member, Workload, WorkloadKey};
use crate::lead::Lead;
use crate::metrics::{Metrics, Page};
use crate::registry::{Limits, Registry, Tracker};
use crate::source::scrape::{self, Scraper};
use crate::tick::{Parts, States, Stepped, Upstreams};
use crate::web::{self, Access, Api, WakeRequests};

/// Longer than any run: nothing in it ends by its age in real time.
const FOR_EVER: Duration = Duration::from_secs(7 * 24 * 3_600);
/// A page that takes this long means that the machine stands still. The real limit of 2 s would
/// make the result depend on the machine's load.
const SCRAPE_TIMEOUT_MS: u64 = 60_000;
const WAKE_SOURCE: &str = "gateway";

/// Where the scaler's decisions are kept, if anywhere. Opened before anything else is begun, so that
/// a file that cannot be written is told at once.
pub(super) struct Records {
    metrics: Metrics,
    log: Option<(DecisionLog, declog::Writer)>,
}

impl Records {
    pub(super) fn open(path: Option<&Path>) -> Result<Records, declog::Error> {
        let metrics = Metrics::default();
        let open = |path: &Path| {
            let target = declog::Target::File { path: path.to_owned(), max_bytes: u64::MAX };
            DecisionLog::open(target, metrics.clone())
        };
        let log = path.map(open).transpose()?;
        Ok(Records { metrics, log })
    }
}

/// A running scaler; ends with its value.
pub(super) struct Scaler {
    pub(super) grpc: SocketAddr,
    pub(super) http: SocketAddr,
    pages: SocketAddr,
    registry: Registry,
    upstreams: Arc<Upstreams>,
    tracker: Arc<Tracker>,
    tick: Stepped,
    pulse: Pulse,
    log_writer: Option<declog::Writer>,
    cancel: CancellationToken,
}

impl Scaler {
    /// Starts one that reads engines, GPUs and gateway at `pages`.
    pub(super) async fn start(
        clock: Clock,
        pages: SocketAddr,
        site: &Shared,
        records: Records,
    ) -> Result<Scaler, Error> {
        let config = config::parse(&format!(
            "wakeSources: [{{name: {WAKE_SOURCE}, kind: gauge, \
             url: 'http://{pages}/gateway/metrics', metric: {GATEWAY_METRIC}}}]\n\
             dcgm: {{endpoints: ['http://{pages}/dcgm/metrics']}}"
        ))?;
        let Records { metrics, log } = records;
        let (log, log_writer) = log.unzip();
        let options =
            scrape::Options { timeout_ms: SCRAPE_TIMEOUT_MS, ..scrape::Options::default() };
        let scraper = Scraper::new(options)?;
        let upstreams = Upstreams::start(&config, &scraper, &metrics, clock)?;
        let parts = Arc::new(Parts {
            registry: Registry::new(Limits::default(), clock),
            scraper,
            upstreams: ArcSwap::from_pointee(upstreams),
            wakes: WakeRequests::default(),
            states: States::default(),
            log,
            metrics,
            lead: Lead::default(),
            clock,
        });
        let registry = parts.registry.clone();
        registry.set_inventory(Arc::new(inventory(&lock(site).cluster, pages)));
        let tracker = registry.trackers().first().map(Arc::clone).ok_or(Error::NoTrigger)?;

        let cancel = CancellationToken::new();
        let options =
            grpc::Options { max_age: FOR_EVER, drain_delay: Duration::ZERO, ..Default::default() };
        let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::Listen)?;
        let rpcs = RpcMetrics::default();
        let grpc = grpc::spawn(listener, registry.clone(), rpcs, options, cancel.clone())?;
        grpc.readiness.set(true);
        let health = Health::new(clock);
        health.set_ready(true);
        let router = web::router(Api {
            registry: registry.clone(),
            clock,
            wakes: parts.wakes.clone(),
            writes: None,
            health: health.clone(),
            metrics: Page::new(&parts.metrics, registry.clone(), clock),
            access: Access::default(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.map_err(Error::Listen)?;
        let http = listener.local_addr().map_err(Error::Listen)?;
        tokio::spawn(web::serve(listener, router, cancel.clone()));
        Ok(Scaler {
            grpc: grpc.address,
            http,
            pages,
            registry,
            upstreams: parts.upstreams.load_full(),
            tick: Stepped::new(Arc::clone(&parts), Arc::clone(&tracker)),
            tracker,
            pulse: health.pulse("tick"),
            log_writer,
            cancel,
        })
    }

    /// The one trigger.
    pub(super) fn tick(&mut self) -> &mut Stepped {
        self.pulse.beat();
        &mut self.tick
    }

    /// Reads the gateway, and the GPUs when that is due.
    pub(super) async fn read_upstreams(&self) {
        self.upstreams.read().await;
    }

    /// What Kubernetes' watches would say now.
    pub(super) fn tell(&self, cluster: &Cluster) {
        self.registry.set_inventory(Arc::new(inventory(cluster, self.pages)));
    }

    /// Writes out what is to be written at the end.
    pub(super) async fn end(&mut self) {
        if let Some(writer) = self.log_writer.take() {
            writer.finish().await;
        }
    }

    /// Whether it answers that the workload is active.
    pub(super) fn is_active(&self) -> bool {
        matches!(self.tracker.published.load().answer, Answer::Value { active: true, .. })
    }
}

impl Drop for Scaler {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn inventory(cluster: &Cluster, pages: SocketAddr) -> Inventory {
    let gauges = cluster.gauges();
    let key = WorkloadKey::new(NAMESPACE, NAME);
    let mut members: Vec<Member> = cluster.pods().iter().map(|pod| member(pod, pages)).collect();
    members.sort_unstable_by(|a, b| a.id.cmp(&b.id));
    let trigger = [("wakeSource".to_owned(), WAKE_SOURCE.to_owned())];
    let workload = Workload {
        key: key.clone(),
        min: 0,
        max: MAX,
        fallback_replicas: None,
        triggers: vec![BTreeMap::from(trigger)],
        replicas: Replicas {
            spec: Some(gauges.spec),
            ready: gauges.ready,
            starting: gauges.starting,
            terminating: gauges.leaving,
            ..Replicas::default()
        },
        members,
        counted: Counted::ByKubernetes,
        gpus_per_replica: Some(1),
        paused: false,
        kubernetes: Kubernetes::default(),
    };
    Inventory {
        synced: true,
        workloads: BTreeMap::from([(key, Arc::new(workload))]),
        ..Inventory::default()
    }
}

fn member(pod: &Pod, pages: SocketAddr) -> Member {
    let phase = match (pod.is_leaving, pod.ready_at) {
        (true, _) => Phase::Terminating,
        (false, None) => Phase::Starting,
        (false, Some(_)) => Phase::Ready,
    };
    Member {
        id: Arc::clone(&pod.name),
        phase,
        created_at: Some(moment(pod.created_at)),
        ready_at: pod.ready_at.map(moment),
        endpoint: Some(Endpoint::Url(format!("http://{pages}/pods/{}/metrics", pod.name).into())),
        node: None,
    }
}
