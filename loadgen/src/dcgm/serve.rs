//! Exporters behind sockets: a page for each node, moved by the wall clock.
//!
//! Must not hold a model of its own.

use std::convert::Infallible;
use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Exporter;
use super::config::{EngineLoad, Fleet, Load};
use super::load::{Doing, Worker, engines, workers};
use super::scrape::{self, Reader};
use crate::engine::{Profile, Time, ps_from_secs};
use crate::listen;

/// How often devices are sampled and engines read: DCGM's own rate.
const SAMPLED_EVERY: Duration = Duration::from_secs(1);

/// The flags of `dcgm`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = concat!(
    "A fleet's file; `cargo doc -p loadgen` explains every key:\n\n",
    include_str!("example.yaml")
))]
pub struct Args {
    /// The file that describes the fleet: nodes, GPUs, pods, loads and faults. `--help` shows one.
    #[arg(long, value_name = "FILE")]
    pub config: String,
    /// Where the first node's exporter listens; the next node has the next port. With port 0 each
    /// gets a free one.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9400",
        value_parser = listen::address)]
    pub listen: SocketAddr,
}

impl Args {
    /// Serves until SIGTERM or SIGINT. Writes to `out` where each node's page is.
    ///
    /// # Errors
    ///
    /// When the file is no fleet, a port cannot be had, or `out` cannot be written.
    pub fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let fleet = Fleet::load(&self.config)?;
        // A page is short work: one thread serves a thousand nodes.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut signals = listen::Signals::watch()?;
            let mut listeners = Vec::new();
            for (index, node) in fleet.nodes.iter().enumerate() {
                let listener = listen::bind(self.listen, index).await.with_context(|| {
                    format!("no address for the exporter of node {}", node.name)
                })?;
                writeln!(out, "{} http://{}/metrics", node.name, listener.local_addr()?)?;
                listeners.push(listener);
            }
            out.flush()?;
            serve(&fleet, listeners, async move { signals.next().await }).await
        })
    }
}

/// Serves a fleet, a listener for each node in their order, until `ended`.
///
/// # Errors
///
/// When there is not one listener a node, or a profile that a load names cannot be read.
pub async fn serve(
    fleet: &Fleet,
    listeners: Vec<TcpListener>,
    ended: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    anyhow::ensure!(
        listeners.len() == fleet.nodes.len(),
        "{} listeners for {} nodes: expected one for each",
        listeners.len(),
        fleet.nodes.len()
    );
    let mut running = Running::new(fleet)?;
    running.tick(Time::ZERO);
    let mut tasks = JoinSet::new();
    for (engine, load) in running.engines.iter().zip(engines(fleet)) {
        tasks.spawn(follow(Arc::clone(engine), load));
    }
    for (listener, exporter) in listeners.into_iter().zip(&running.exporters) {
        let router = router(Arc::clone(exporter));
        tasks.spawn(async move {
            // It ends only with the process: axum takes a failed accept as something that passes.
            drop(axum::serve(listener, router).await);
        });
    }
    tokio::select! {
        never = running.run() => match never {},
        () = ended => Ok(()),
    }
}

fn router(exporter: Arc<Mutex<Exporter>>) -> Router {
    let page = move || {
        let text = lock(&exporter).page().to_owned();
        async move { ([(CONTENT_TYPE, "text/plain; charset=utf-8")], text) }
    };
    Router::new().route("/metrics", get(page)).route("/health", get(|| async { "OK" }))
}

/// Every exporter with what moves it.
struct Running {
    exporters: Vec<Arc<Mutex<Exporter>>>,
    workers: Vec<(Worker, Source)>,
    engines: Vec<Arc<Mutex<Reader>>>,
}

/// Where a worker's work is counted.
enum Source {
    Here(Doing),
    Engine(Arc<Mutex<Reader>>),
}

impl Running {
    fn new(fleet: &Fleet) -> anyhow::Result<Running> {
        let loads = engines(fleet);
        let mut readers = Vec::new();
        for engine in &loads {
            let reader = Reader::new(Profile::load(&engine.profile)?);
            readers.push(Arc::new(Mutex::new(reader)));
        }
        let source = |worker: &Worker| match &worker.load {
            Load::Engine(engine) => {
                let reader = loads.iter().zip(&readers).find(|(load, _)| *load == engine);
                reader.map(|(_, reader)| Source::Engine(Arc::clone(reader)))
            }
            Load::Busy(_) | Load::Sine(_) | Load::Steps(_) => Some(Source::Here(Doing::default())),
        };
        let workers = workers(fleet).into_iter();
        let workers = workers.filter_map(|worker| source(&worker).map(|source| (worker, source)));
        let workers = workers.collect();
        let exporters = Exporter::of_fleet(fleet).into_iter();
        let exporters = exporters.map(|exporter| Arc::new(Mutex::new(exporter))).collect();
        Ok(Running { exporters, workers, engines: readers })
    }

    async fn run(&mut self) -> Infallible {
        let start = Instant::now();
        let mut ticks = interval(SAMPLED_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            self.tick(Time(ps_from_secs(start.elapsed().as_secs_f64())));
        }
    }

    fn tick(&mut self, now: Time) {
        for (worker, source) in &mut self.workers {
            let work = match source {
                Source::Here(doing) => doing.until(now, &worker.load),
                Source::Engine(reader) => *lock(reader).work(),
            };
            if let Some(exporter) = self.exporters.get(worker.node) {
                lock(exporter).observe(worker.device, worker.holder, &work);
            }
        }
        for exporter in &self.exporters {
            lock(exporter).tick(now);
        }
    }
}

/// Reads an engine's page each second. While it cannot be read its GPUs do nothing, as those of an
/// engine that loads; stderr says so once.
async fn follow(reader: Arc<Mutex<Reader>>, load: EngineLoad) {
    let Ok(page) = scrape::page(&load.url) else {
        // The file was checked.
        return;
    };
    let mut ticks = interval(SAMPLED_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_read = true;
    loop {
        ticks.tick().await;
        let read = match scrape::fetch(&page).await {
            Ok(text) => lock(&reader).read(&text),
            Err(error) => Err(error),
        };
        if let Err(error) = &read
            && is_read
        {
            let url = &load.url;
            let line = format!("engine {url} is not read: {error}; its GPUs are shown idle");
            drop(writeln!(std::io::stderr(), "{line}"));
        }
        is_read = read.is_ok();
    }
}

/// Nothing that holds a lock here can panic half way through a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
