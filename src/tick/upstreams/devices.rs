//! Reads GPU devices from DCGM exporters, directly or through Prometheus, for all workloads.
//!
//! Must not attribute a device: `signals::dcgm` knows whose it certainly is.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::followed::Followed;
use crate::clock::Clock;
use crate::decision::{Gpu, Moment, Phase, Why};
use crate::inventory::Workload;
use crate::metrics::Metrics;
use crate::signals::dcgm::{DcgmFold, DcgmReader, Devices, OwnerMemory, prometheus_names};
use crate::source::engines::dcgm_series;
use crate::source::prometheus::PrometheusClient;
use crate::source::scrape::{Scraper, Target};
use crate::source::selector::Namespaces;

/// Time between two reads: dcgm-exporter collects every 30 s and is commonly scraped every 15 s.
const INTERVAL: Duration = Duration::from_secs(15);
/// How far back Prometheus is asked for samples, and how old one may be: four collections.
const WINDOW_MS: u64 = 120_000;
/// A replica's devices count this long after it turned ready: loading and warming up say nothing of
/// its load.
const WARM_UP_MS: u64 = 60_000;

/// Where the devices are read.
#[derive(Debug)]
pub(super) enum From {
    /// A Prometheus, for the followed namespaces only.
    Prometheus(PrometheusClient),
    /// The exporters' own pages.
    Exporters(Vec<Target>, Scraper),
}

/// The reader of all devices. Its task ends with it.
#[derive(Debug)]
pub(super) struct Reader {
    followed: Arc<Followed>,
    latest: watch::Receiver<Arc<Devices>>,
    _task: AbortOnDropHandle<()>,
}

impl Reader {
    pub(super) fn start(from: From, metrics: Metrics, clock: Clock) -> Reader {
        let followed = Arc::new(Followed::default());
        let (publish, latest) = watch::channel(Arc::default());
        let task = tokio::spawn(read_all(from, metrics, clock, Arc::clone(&followed), publish));
        Reader { followed, latest, _task: AbortOnDropHandle::new(task) }
    }

    /// The utilisation of a workload's own devices. `seen_at` is when it was last known, and is
    /// kept up to date.
    pub(super) fn utilisation(
        &self,
        workload: &Workload,
        seen_at: &mut Option<Moment>,
        now: Moment,
    ) -> Gpu {
        let namespace = &workload.key.namespace;
        self.followed.follow(namespace, now);
        let warm = |pod: &str| {
            workload.members.iter().any(|member| {
                let warm = member.ready_at.is_none_or(|at| now.millis_since(at) >= WARM_UP_MS);
                *member.id == *pod && member.phase == Phase::Ready && warm
            })
        };
        let devices = self.latest.borrow();
        let share = devices.share_of(namespace, warm, now.minus_millis(WINDOW_MS));
        match (share.sample, *seen_at) {
            (Some(sample), _) => {
                *seen_at = Some(now);
                Gpu::Fresh(sample)
            }
            (None, Some(at)) => Gpu::Lost { for_ms: now.millis_since(at) },
            (None, None) => Gpu::Absent,
        }
    }
}

async fn read_all(
    from: From,
    metrics: Metrics,
    clock: Clock,
    followed: Arc<Followed>,
    publish: watch::Sender<Arc<Devices>>,
) {
    let mut owners = OwnerMemory::default();
    loop {
        let started = Instant::now();
        let read = match &from {
            From::Prometheus(client) => query(client, &followed.current(clock.now())).await,
            From::Exporters(targets, scraper) => scrape(targets, scraper, clock).await,
        };
        metrics.scraped(started.elapsed(), read.failed);
        let mut devices = read.devices;
        if read.failed.is_some() {
            // What could not be read now is as old as it was; `share_of` judges its age.
            let since = clock.now().minus_millis(WINDOW_MS);
            let mut last = Devices::clone(&publish.borrow());
            last.by_key.retain(|_, device| device.at >= since);
            devices.merge(last);
        }
        owners.update(&mut devices, clock.now());
        publish.send_replace(Arc::new(devices));
        tokio::select! {
            () = sleep(INTERVAL) => {}
            () = followed.joined() => {}
        }
    }
}

/// What one round found. Devices that could not be read are missing from it.
#[derive(Default)]
struct Round {
    devices: Devices,
    failed: Option<Why>,
}

impl Round {
    fn add(&mut self, read: Result<Devices, Why>) {
        match read {
            Ok(devices) => self.devices.merge(devices),
            Err(why) => self.failed = Some(why),
        }
    }
}

async fn query(client: &PrometheusClient, namespaces: &[Arc<str>]) -> Round {
    let mut round = Round::default();
    let names = prometheus_names();
    let batches = Namespaces::batches(namespaces.iter().map(|name| &**name)).unwrap_or_default();
    for batch in batches {
        let read = dcgm_series(client, &batch, &names, WINDOW_MS).await;
        round.add(read.map_err(|error| error.why()).and_then(|batch| {
            let mut fold = DcgmFold::default();
            for sample in &batch.series {
                fold.add(&sample.name, sample.labels.iter(), sample.value, sample.at);
            }
            fold.finish().map_err(|error| error.why())
        }));
    }
    round
}

async fn scrape(targets: &[Target], scraper: &Scraper, clock: Clock) -> Round {
    let mut round = Round::default();
    for read in join_all(targets.iter().map(|target| page(target, scraper, clock))).await {
        round.add(read);
    }
    round
}

async fn page(target: &Target, scraper: &Scraper, clock: Clock) -> Result<Devices, Why> {
    let page = scraper.open(target).await.map_err(|error| error.why())?;
    let mut reader = DcgmReader::new(page.format(), clock.now());
    let read = page.read(|chunk| match reader.push(chunk) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error.why()),
    });
    match read.await.map_err(|error| error.why())? {
        ControlFlow::Break(why) => Err(why),
        ControlFlow::Continue(_bytes) => reader.finish().map_err(|error| error.why()),
    }
}
