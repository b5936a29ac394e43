//! A whole scaler: ticks, readers, gRPC and HTTP, with an inventory in Kubernetes' place.
//!
//! Must not look inside: what is seen here is published, answered or observed.

use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use arc_swap::ArcSwap;
use ghostscaler::clock::Clock;
use ghostscaler::config;
use ghostscaler::decision::{Decision, Moment, Observation, Phase, Replicas};
use ghostscaler::grpc::observe::RpcMetrics;
use ghostscaler::grpc::{self, Options, Server};
use ghostscaler::health::Health;
use ghostscaler::inventory::{
    Counted, Endpoint, Inventory, Kubernetes, Member, Workload, WorkloadKey,
};
use ghostscaler::lead::Lead;
use ghostscaler::metrics::{Metrics, Page};
use ghostscaler::proto::external_scaler_client::ExternalScalerClient;
use ghostscaler::proto::{GetMetricsRequest, ScaledObjectRef};
use ghostscaler::registry::{Limits, Registry, Tracker};
use ghostscaler::source::scrape::{self, Scraper};
use ghostscaler::tick::{self, Parts, States, Upstreams};
use ghostscaler::web::{self, Access, Api, WakeRequests};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use super::upstream::Upstream;
use super::{eventually, soon};

/// The namespace of every workload here.
pub(super) const NAMESPACE: &str = "field";

/// A running scaler; ends with its value.
pub(super) struct Scaler {
    pub(super) registry: Registry,
    grpc: Server,
    http: SocketAddr,
    cancel: CancellationToken,
}

impl Scaler {
    /// Starts one with this configuration file and these workloads.
    pub(super) async fn start(config: &str, workloads: Vec<Workload>) -> Scaler {
        let config = config::parse(config).unwrap();
        let (clock, metrics) = (Clock::start(), Metrics::default());
        let cancel = CancellationToken::new();
        let scraper = Scraper::new(scrape::Options::default()).unwrap();
        let upstreams = Upstreams::start(&config, &scraper, &metrics, clock).unwrap();
        let parts = Arc::new(Parts {
            registry: Registry::new(Limits::default(), clock),
            scraper,
            upstreams: ArcSwap::from_pointee(upstreams),
            wakes: WakeRequests::default(),
            states: States::default(),
            log: None,
            metrics,
            lead: Lead::default(),
            clock,
        });
        let registry = parts.registry.clone();
        let health = Health::new(clock);
        let router = web::router(Api {
            registry: registry.clone(),
            clock,
            wakes: parts.wakes.clone(),
            writes: None,
            health: health.clone(),
            metrics: Page::new(&parts.metrics, registry.clone(), clock),
            access: Access::default(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = listener.local_addr().unwrap();
        tokio::spawn(web::serve(listener, router, cancel.clone()));
        let scaler = Scaler { grpc: serve(&registry, &cancel), registry, http, cancel };
        scaler.set(workloads);
        tokio::spawn(tick::run(parts, health.pulse("tick"), scaler.cancel.clone()));
        scaler
    }

    /// Replaces what Kubernetes would say.
    pub(super) fn set(&self, workloads: Vec<Workload>) {
        let by_key = |workload: Workload| (workload.key.clone(), Arc::new(workload));
        let workloads = workloads.into_iter().map(by_key).collect();
        self.registry.set_inventory(Arc::new(Inventory {
            synced: true,
            workloads,
            ..Inventory::default()
        }));
    }

    /// The only trigger of a workload.
    pub(super) fn tracker(&self, name: &str) -> Arc<Tracker> {
        let trackers = self.registry.trackers();
        let found = trackers.iter().find(|tracker| &*tracker.key.workload.name == name);
        Arc::clone(found.expect("the inventory lists it with one trigger"))
    }

    /// Waits for a decision that `holds`.
    pub(super) async fn decided(
        &self,
        name: &str,
        holds: impl Fn(&Decision) -> bool,
    ) -> Arc<Decision> {
        let tracker = self.tracker(name);
        eventually("such a decision", async || {
            let decision = tracker.published.load().decision.clone();
            decision.filter(|decision| holds(decision))
        })
        .await
    }

    /// Waits for an observation that `holds`.
    pub(super) async fn observed(
        &self,
        name: &str,
        holds: impl Fn(&Observation) -> bool,
    ) -> Arc<Observation> {
        let tracker = self.tracker(name);
        let attempt = async || tracker.observed.load_full().filter(|seen| holds(seen));
        eventually("such an observation", attempt).await
    }

    pub(super) async fn keda(&self) -> Keda {
        keda(self.grpc.address).await
    }

    /// Asks the API; gives the status and the body as JSON.
    pub(super) async fn http(&self, method: &str, path: &str) -> (u16, serde_json::Value) {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.http
        );
        let answer = soon(async {
            let mut stream = TcpStream::connect(self.http).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        })
        .await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap())
    }

    /// Begins the end: streams are closed in order.
    pub(super) fn stop(&self) {
        self.cancel.cancel();
    }
}

impl Drop for Scaler {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// A gRPC service on a free port that answers from a registry.
pub(super) fn serve(registry: &Registry, cancel: &CancellationToken) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = Options { drain_delay: std::time::Duration::ZERO, ..Options::default() };
    grpc::spawn(listener, registry.clone(), RpcMetrics::default(), options, cancel.clone()).unwrap()
}

/// KEDA's side of the wire, for workloads whose triggers have none but KEDA's own keys: a call then
/// means the only trigger that is listed.
pub(super) struct Keda {
    pub(super) client: ExternalScalerClient<Channel>,
}

pub(super) async fn keda(address: SocketAddr) -> Keda {
    let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
    Keda { client: ExternalScalerClient::new(soon(endpoint.connect()).await.unwrap()) }
}

impl Keda {
    /// What GetMetrics gives.
    pub(super) async fn wanted(&mut self, name: &str) -> Result<i64, tonic::Status> {
        let request = GetMetricsRequest {
            scaled_object_ref: Some(scaled_object(name)),
            metric_name: grpc::METRIC_NAME.to_owned(),
        };
        let response = soon(self.client.get_metrics(request)).await?.into_inner();
        Ok(response.metric_values[0].metric_value)
    }

    pub(super) async fn is_active(&mut self, name: &str) -> Result<bool, tonic::Status> {
        Ok(soon(self.client.is_active(scaled_object(name))).await?.into_inner().result)
    }
}

pub(super) fn scaled_object(name: &str) -> ScaledObjectRef {
    ScaledObjectRef {
        name: name.to_owned(),
        namespace: NAMESPACE.to_owned(),
        scaler_metadata: HashMap::new(),
    }
}

/// A workload of 1 to 16 replicas whose pods are `members`.
pub(super) fn workload(name: &str, members: Vec<Member>, metadata: &[(&str, &str)]) -> Workload {
    let count = |phase| {
        let n = members.iter().filter(|member| member.phase == phase).count();
        u32::try_from(n).unwrap()
    };
    let (ready, starting) = (count(Phase::Ready), count(Phase::Starting));
    let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Workload {
        key: WorkloadKey::new(NAMESPACE, name),
        min: 1,
        max: 16,
        fallback_replicas: None,
        triggers: vec![metadata.collect::<BTreeMap<_, _>>()],
        replicas: Replicas {
            spec: Some(ready + starting),
            ready,
            starting,
            terminating: count(Phase::Terminating),
            ..Replicas::default()
        },
        members,
        counted: Counted::ByKubernetes,
        gpus_per_replica: None,
        paused: false,
        kubernetes: Kubernetes::default(),
    }
}

/// A pod that has been ready for long, with its metrics at `upstream` if anywhere.
pub(super) fn pod(name: &str, upstream: Option<&Upstream>) -> Member {
    let endpoint = upstream.map(|upstream| Endpoint::Url(upstream.url().into()));
    Member {
        id: name.into(),
        phase: Phase::Ready,
        created_at: None,
        ready_at: Some(Moment(0)),
        endpoint,
        node: None,
    }
}

/// A page of vLLM with this many requests waiting and running.
pub(super) fn vllm(waiting: u32, running: u32) -> String {
    format!(
        "vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} {waiting}\n\
         vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} {running}\n\
         vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} 0.1\n"
    )
}
