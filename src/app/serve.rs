//! `serve`: from flags and a file to a running scaler, and to its end.
//!
//! The order of the end: not ready; after the drain delay streams end with OK, listeners close and
//! ticks stop; then state and log are written, whatever connections are still open; these get the
//! rest of the grace.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::peers::{self, Peers, Seat};
use super::reload;
use crate::args;
use crate::clock::Clock;
use crate::cluster;
use crate::config::Config;
use crate::declog::{self, DecisionLog};
use crate::grpc;
use crate::grpc::observe::RpcMetrics;
use crate::health::Health;
use crate::inventory::Inventory;
use crate::lead::Lead;
use crate::metrics::{Metrics, Page};
use crate::registry::{Limits, Registry};
use crate::shutdown::{self, Reloads};
use crate::source::scrape::{self, Scraper};
use crate::statedir::{self, StateDir};
use crate::telemetry::{self, ErrorChain};
use crate::tick::{self, Parts, States, Upstreams};
use crate::web::{self, Access, Api, WakeRequests};

const DEFAULT_GRPC: ([u8; 4], u16) = ([0, 0, 0, 0], 9090);
const DEFAULT_HTTP: ([u8; 4], u16) = ([0, 0, 0, 0], 8080);
/// What the parts may need beyond the gRPC service's own grace to write their last words.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Kubernetes mounts the token of a pod's service account here.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// How often it is looked whether the workloads are listed.
const READY_CHECK: Duration = Duration::from_millis(50);

pub(super) async fn serve(args: args::Serve) -> anyhow::Result<()> {
    telemetry::init(args.log_format, &args.log)?;
    let stop = shutdown::on_terminate().context("signal handlers cannot be installed")?;
    let (config, text) = reload::load(args.config.as_deref())?;
    // Bound before anything runs, so that a port in use is told at once.
    let grpc_listener = bind("gRPC", args.grpc_address.or(config.grpc_address), DEFAULT_GRPC)?;
    let http_listener = bind("HTTP", args.http_address.or(config.http_address), DEFAULT_HTTP)?;

    let clock = Clock::start();
    let state_dir = args.state_dir.as_deref().map(StateDir::open).transpose()?;
    let metrics = Metrics::default();
    let access = Access::new(args.api_token_file.clone());
    access.check_file()?;
    let (log, log_writer) = open_log(&args, &metrics)?;
    let (seat, peers) =
        if is_in_cluster(&args) { peers::seat(&args)? } else { (Seat::alone(), None) };
    let parts = parts(&args, &config, state_dir.as_ref(), log, metrics, seat.lead.clone(), clock)?;
    let mut tasks = JoinSet::new();
    tasks.spawn(clock.keep_to_wall(stop.clone()));
    let client = inventory(&args, &config, &parts, peers.is_none(), &stop, &mut tasks).await?;
    let in_cluster = client.is_some();
    let ticks_ended = CancellationToken::new();
    let listeners = (grpc_listener, http_listener);
    let seat = (seat, peers.zip(client));
    answer(&args, access, listeners, &parts, seat, (&stop, &ticks_ended), &mut tasks)?;
    if let Some(path) = args.config.clone() {
        let reloads = Reloads::listen().context("SIGHUP cannot be heard")?;
        let parts = Arc::clone(&parts);
        tasks.spawn(reload::follow(path, reloads, (config, text), in_cluster, parts, stop.clone()));
    }
    if let Some(dir) = state_dir.clone() {
        tasks.spawn(save_states(dir, Arc::clone(&parts), stop.clone()));
    }

    // A part that ends before it is told to leaves a half-dead process: then the whole one ends.
    let early = tokio::select! {
        () = stop.cancelled() => None,
        ended = tasks.join_next() => ended,
    };
    let told_to_end = stop.is_cancelled();
    stop.cancel();
    let end = async {
        ticks_ended.cancelled().await;
        if let Some(dir) = state_dir.clone() {
            let parts = Arc::clone(&parts);
            // A panic while saving is told like any other, and ends nothing else.
            drop(tokio::task::spawn_blocking(move || save(&dir, &parts)).await);
        }
        if let Some(writer) = log_writer {
            writer.finish().await;
        }
        while tasks.join_next().await.is_some() {}
    };
    let grace = Duration::from_millis(args.drain_delay.saturating_add(args.shutdown_grace));
    match timeout(grace + LAST_WORDS, end).await {
        Ok(()) => {}
        Err(_elapsed) => warn!("the end took longer than its grace; the rest is cut off"),
    }
    match early {
        Some(Err(error)) => Err(error).context("a part of the process failed"),
        Some(Ok(())) if !told_to_end => bail!("a part of the process ended by itself"),
        Some(Ok(())) | None => Ok(()),
    }
}

fn bind(
    what: &str,
    configured: Option<SocketAddr>,
    default: ([u8; 4], u16),
) -> anyhow::Result<TcpListener> {
    let address = configured.unwrap_or_else(|| default.into());
    TcpListener::bind(address).with_context(|| {
        let flag = what.to_ascii_lowercase();
        format!("{what} cannot listen on {address}: choose another with --{flag}-address")
    })
}

fn open_log(
    args: &args::Serve,
    metrics: &Metrics,
) -> anyhow::Result<(Option<DecisionLog>, Option<declog::Writer>)> {
    let Some(path) = &args.decision_log else { return Ok((None, None)) };
    let target = if path == Path::new("-") {
        declog::Target::Stdout
    } else {
        declog::Target::File { path: path.clone(), max_bytes: args.decision_log_bytes }
    };
    let (log, writer) = DecisionLog::open(target, metrics.clone())?;
    Ok((Some(log), Some(writer)))
}

fn parts(
    args: &args::Serve,
    config: &Config,
    state_dir: Option<&StateDir>,
    log: Option<DecisionLog>,
    metrics: Metrics,
    lead: Lead,
    clock: Clock,
) -> anyhow::Result<Arc<Parts>> {
    let options = scrape::Options { timeout_ms: args.scrape_timeout, ..scrape::Options::default() };
    let scraper = Scraper::new(options)?;
    let upstreams = Upstreams::start(config, &scraper, &metrics, clock)?;
    Ok(Arc::new(Parts {
        registry: Registry::new(Limits::default(), clock),
        scraper,
        upstreams: ArcSwap::from_pointee(upstreams),
        wakes: WakeRequests::default(),
        states: state_dir.map_or_else(States::default, restore),
        log,
        metrics,
        lead,
        clock,
    }))
}

fn restore(dir: &StateDir) -> States {
    let restored = dir.restore();
    if !restored.states.is_empty() {
        info!(workloads = restored.states.len(), "what was learned before is restored");
    }
    States::restored(restored.states)
}

/// Whether the workloads are a cluster's.
fn is_in_cluster(args: &args::Serve) -> bool {
    let in_pod = args.kubernetes_service_host.is_some() && Path::new(SERVICE_ACCOUNT).exists();
    args.kubeconfig.is_some() || in_pod
}

/// Starts whatever fills the inventory; gives the cluster's client where it is a cluster.
async fn inventory(
    args: &args::Serve,
    config: &Config,
    parts: &Arc<Parts>,
    is_alone: bool,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Option<cluster::Client>> {
    if !is_in_cluster(args) {
        if !args.namespaces.is_empty() {
            bail!("--namespace goes with a cluster: give --kubeconfig, or run it in one");
        }
        let dated = config.inventory.dated(&Inventory::default(), parts.clock.now());
        parts.registry.set_inventory(Arc::new(dated));
        return Ok(None);
    }
    if !config.inventory.workloads.is_empty() {
        warn!("the file's workloads are not used: in a cluster they come from ScaledObjects");
    }
    let client = cluster::connect(args.kubeconfig.as_deref()).await?;
    let options = cluster::Options { namespaces: args.namespaces.clone() };
    let (publish, mut published) = watch::channel(Arc::<Inventory>::default());
    let clock = parts.clock;
    if is_alone {
        let (client, registry) = (client.clone(), parts.registry.clone());
        tasks.spawn(cluster::events::run(client.clone(), registry.clone(), clock, stop.clone()));
        if args.idle_pods_first {
            tasks.spawn(cluster::deletion::run(client, registry, clock, stop.clone()));
        }
    }
    let (cancel, watching) = (stop.clone(), client.clone());
    tasks.spawn(async move {
        if let Err(error) = cluster::run(watching, options, publish, clock, cancel).await {
            tracing::error!(error = %ErrorChain(&error), "the cluster is no longer read");
        }
    });
    let registry = parts.registry.clone();
    tasks.spawn(async move {
        while published.changed().await.is_ok() {
            let inventory = Arc::clone(&published.borrow_and_update());
            registry.set_inventory(inventory);
        }
    });
    Ok(Some(client))
}

/// Starts everything that answers or ticks.
fn answer(
    args: &args::Serve,
    access: Access,
    (grpc_listener, http_listener): (TcpListener, TcpListener),
    parts: &Arc<Parts>,
    (seat, peers): (Seat, Option<(Peers, cluster::Client)>),
    (stop, ticks_ended): (&CancellationToken, &CancellationToken),
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let rpc_metrics = RpcMetrics::default();
    let health = Health::new(parts.clock);
    let options = grpc::Options {
        drain_delay: Duration::from_millis(args.drain_delay),
        grace: Duration::from_millis(args.shutdown_grace),
        tls: tls(args),
        pulse: Some(health.pulse("grpc")),
        ..grpc::Options::default()
    };
    let registry = parts.registry.clone();
    let grpc = grpc::spawn(grpc_listener, registry, rpc_metrics.clone(), options, stop.clone())?;

    let mut page = Page::new(&parts.metrics, parts.registry.clone(), parts.clock);
    rpc_metrics.register(page.families_mut());
    let router = web::router(Api {
        registry: parts.registry.clone(),
        clock: parts.clock,
        wakes: parts.wakes.clone(),
        writes: seat.writes,
        health: health.clone(),
        metrics: page,
        access,
    });
    http_listener.set_nonblocking(true)?;
    let http_address = http_listener.local_addr()?;
    let http_listener = tokio::net::TcpListener::from_std(http_listener)?;
    info!(grpc = %grpc.address, http = %http_address, "serving");
    tasks.spawn(web::serve(http_listener, router, stop.clone()));
    let (ticks_end, ticks_ended) = (CancellationToken::new(), ticks_ended.clone().drop_guard());
    let pulse = health.pulse("tick");
    match peers {
        None => {
            let ticks = tick::run(Arc::clone(parts), pulse, ticks_end.clone());
            tasks.spawn(async move {
                ticks.await;
                drop(ticks_ended);
            });
        }
        Some((peers, client)) => {
            let pair = peers.pair(client, Arc::clone(parts), pulse)?;
            let (leaving, answered) = (stop.clone(), ticks_end.clone());
            tasks.spawn(async move {
                if let Err(error) = pair.run(leaving, answered).await {
                    tracing::error!(error = %ErrorChain(&error), "the peers' part has failed");
                }
                drop(ticks_ended);
            });
        }
    }
    let registry = parts.registry.clone();
    let readiness = grpc.readiness.clone();
    tasks.spawn(stay_ready(registry, seat.can_answer, health, readiness, stop.clone()));
    let (stopping, drain_delay) = (stop.clone(), Duration::from_millis(args.drain_delay));
    tasks.spawn(async move {
        let finished = async {
            if let Err(error) = grpc.finished().await {
                tracing::error!(error = %ErrorChain(&error), "the gRPC service has failed");
            }
            ticks_end.cancel();
        };
        // Answers go on through the drain delay, and the decisions behind them. After it nobody is
        // told a new one.
        let drained = async {
            stopping.cancelled().await;
            sleep(drain_delay).await;
            ticks_end.cancel();
        };
        tokio::join!(finished, ticks_end.run_until_cancelled(drained));
    });
    Ok(())
}

fn tls(args: &args::Serve) -> Option<grpc::tls::Tls> {
    Some(grpc::tls::Tls {
        certificate: args.tls_cert.clone()?,
        key: args.tls_key.clone()?,
        client_ca: args.tls_client_ca.clone(),
        reload_interval: grpc::tls::RELOAD_INTERVAL,
    })
}

/// Turns ready once every workload is listed: from then on each has an answer, at least its present
/// count, whatever the sources do. Among several replicas, only while those answers are the leader's.
async fn stay_ready(
    registry: Registry,
    mut can_answer: watch::Receiver<bool>,
    health: Health,
    grpc: grpc::Readiness,
    stop: CancellationToken,
) {
    let listed = async {
        while !registry.inventory().synced {
            sleep(READY_CHECK).await;
        }
    };
    let ready = async {
        listed.await;
        loop {
            let now = *can_answer.borrow_and_update();
            health.set_ready(now);
            grpc.set(now);
            if can_answer.changed().await.is_err() {
                break;
            }
        }
        // Alone, nothing changes.
        std::future::pending::<()>().await;
    };
    stop.run_until_cancelled(ready).await;
    health.set_ready(false);
}

async fn save_states(dir: StateDir, parts: Arc<Parts>, stop: CancellationToken) {
    for wait_ms in statedir::save_intervals_ms() {
        tokio::select! {
            // The last save is made when the ticks have ended.
            () = stop.cancelled() => return,
            () = sleep(Duration::from_millis(wait_ms)) => {}
        }
        let (dir, parts) = (dir.clone(), Arc::clone(&parts));
        // A panic while saving must not end the scaler; the next save tries again.
        drop(tokio::task::spawn_blocking(move || save(&dir, &parts)).await);
    }
}

fn save(dir: &StateDir, parts: &Parts) {
    let now = parts.clock.now();
    let states = parts.states.snapshot(&parts.registry.inventory(), now);
    let saved = dir.save(now, states.iter().map(|(key, state)| (key, state)));
    parts.metrics.state_saved(saved.is_ok());
    if let Err(error) = saved {
        warn!(error = %ErrorChain(&error), "what was learned could not be saved");
    }
}
