//! Reads GPU devices from DCGM exporters, directly or through Prometheus, for all workloads.
//!
//! Must not attribute a device: `signals::dcgm` knows whose it certainly is.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::batches::Batches;
use super::followed::Followed;
use super::kept::kept_running;
use super::skew::Skew;
use crate::clock::Clock;
use crate::decision::{Gpu, Moment, Phase, WARM_UP_MS, Why};
use crate::inventory::{Member, Workload};
use crate::metrics::Metrics;
use crate::signals::dcgm::{DcgmFold, DcgmReader, Devices, Owned, OwnerMemory, prometheus_names};
use crate::source::engines::{Batch, dcgm_series};
use crate::source::prometheus::PrometheusClient;
use crate::source::scrape::{Scraper, Target};

/// Time between two reads: dcgm-exporter collects every 30 s and is commonly scraped every 15 s.
const INTERVAL_MS: u64 = 15_000;
/// How far back Prometheus is asked for samples: two intervals of one that scrapes once a minute.
/// No sample is ever fresh for longer.
const WINDOW_MS: u64 = 120_000;

/// Where the devices are read.
#[derive(Debug)]
pub(super) enum From {
    /// A Prometheus, for the followed namespaces only.
    Prometheus(PrometheusClient),
    /// The exporters' own pages.
    Exporters(Vec<Target>, Scraper),
}

/// What the last round found.
#[derive(Debug)]
struct Latest {
    owned: Owned,
    /// For how long a sample is fresh.
    fresh_ms: u64,
    unread: Unread,
}

/// Whose devices may exist and could not be read.
#[derive(Debug)]
enum Unread {
    /// Those of any workload.
    Any(Why),
    /// Those of the workloads of these namespaces.
    Of(BTreeMap<Box<str>, Why>),
}

impl Unread {
    fn none() -> Unread {
        Unread::Of(BTreeMap::new())
    }

    fn why(&self, namespace: &str) -> Option<Why> {
        match self {
            Unread::Any(why) => Some(*why),
            Unread::Of(namespaces) => namespaces.get(namespace).copied(),
        }
    }
}

/// The reader of all devices. Its task ends with it.
#[derive(Debug)]
pub(super) struct Reader {
    followed: Arc<Followed>,
    latest: watch::Receiver<Latest>,
    rounds: Arc<Mutex<Rounds>>,
    /// None on a stepped clock: then whoever steps it asks for the rounds.
    task: Option<AbortOnDropHandle<()>>,
}

impl Reader {
    pub(super) fn start(from: From, metrics: Metrics, clock: Clock) -> Reader {
        let followed = Arc::new(Followed::default());
        let not_yet = Latest {
            owned: Owned::default(),
            fresh_ms: Intervals::default().fresh_ms(),
            unread: Unread::Any(Why::NotYetRead),
        };
        let (publish, latest) = watch::channel(not_yet);
        let rounds = Rounds {
            from,
            metrics,
            clock,
            followed: Arc::clone(&followed),
            publish,
            last: Devices::default(),
            batches: Batches::default(),
            skew: Skew::default(),
            intervals: Intervals::default(),
            owners: OwnerMemory::default(),
            due: clock.now(),
        };
        let rounds = Arc::new(Mutex::new(rounds));
        let task = (!clock.is_stepped()).then(|| {
            let (rounds, followed) = (Arc::clone(&rounds), Arc::clone(&followed));
            kept_running("dcgm", move || run(Arc::clone(&rounds), Arc::clone(&followed)))
        });
        Reader { followed, latest, rounds, task }
    }

    /// Reads the devices if that is due: on a stepped clock nobody else does.
    pub(super) async fn read(&self) {
        if self.task.is_none() {
            self.rounds.lock().await.read_if_due().await;
        }
    }

    /// The utilisation of a workload's own devices, but for those of members that sleep: their rest says
    /// nothing of the others. `seen_at` is when it was last known, and is kept up to date.
    pub(super) fn utilisation(
        &self,
        workload: &Workload,
        sleeps: impl Fn(&Member) -> bool,
        seen_at: &mut Option<Moment>,
        now: Moment,
    ) -> Gpu {
        let namespace = &workload.key.namespace;
        self.followed.follow(namespace, now);
        let is_warm = |member: &&Member| {
            let warm = member.ready_at.is_none_or(|at| now.millis_since(at) >= WARM_UP_MS);
            member.phase == Phase::Ready && warm && !sleeps(member)
        };
        let warm = workload.members.iter().filter(is_warm).map(|member| &*member.id);
        let latest = self.latest.borrow();
        let since = now.minus_millis(latest.fresh_ms);
        let sample = latest.owned.share_of(namespace, warm, since);
        let why = latest.unread.why(namespace);
        match (sample, *seen_at, why) {
            (Some(sample), _, _) => {
                *seen_at = Some(now);
                Gpu::Fresh(sample)
            }
            (None, Some(at), why) => Gpu::Lost { for_ms: now.millis_since(at), why },
            (None, None, Some(why)) => Gpu::Unread { why },
            (None, None, None) => Gpu::Absent,
        }
    }
}

async fn run(rounds: Arc<Mutex<Rounds>>, followed: Arc<Followed>) {
    loop {
        rounds.lock().await.read().await;
        tokio::select! {
            () = sleep(Duration::from_millis(INTERVAL_MS)) => {}
            () = followed.joined() => {}
        }
    }
}

/// One read after the other, and what they have taught.
#[derive(Debug)]
struct Rounds {
    from: From,
    metrics: Metrics,
    clock: Clock,
    followed: Arc<Followed>,
    publish: watch::Sender<Latest>,
    /// The devices as they were last read.
    last: Devices,
    batches: Batches,
    skew: Skew,
    intervals: Intervals,
    owners: OwnerMemory,
    due: Moment,
}

impl Rounds {
    async fn read_if_due(&mut self) {
        let now = self.clock.now();
        if now >= self.due {
            self.read().await;
            self.due = now.plus_millis(INTERVAL_MS);
        }
    }

    async fn read(&mut self) {
        let started = Instant::now();
        let Round { mut devices, failed, unread } = match &self.from {
            From::Prometheus(client) => {
                let now = self.clock.now();
                let namespaces = self.followed.current(now);
                let names = prometheus_names();
                let ask = |batch| {
                    let (client, names, clock) = (client, &names, self.clock);
                    async move {
                        let read = dcgm_series(client, &batch, names, WINDOW_MS).await;
                        read.map(|found| (found, clock.now()))
                    }
                };
                let answers = self.batches.ask(&namespaces, now, ask).await;
                let mut round = Round::default();
                for (batch, answer) in answers {
                    let answer = answer.map_err(|error| error.why()).map(|(found, came_at)| {
                        self.skew.learn(&found, came_at);
                        found
                    });
                    round.add_batch(batch.iter(), answer);
                }
                round
            }
            From::Exporters(targets, scraper) => scrape(targets, scraper, self.clock).await,
        };
        self.metrics.scraped(started.elapsed(), failed);
        let now = self.clock.now();
        devices.follow(&self.last, self.skew.ahead_ms(), now);
        self.intervals.learn(&self.last, &devices);
        let fresh_ms = self.intervals.fresh_ms();
        if failed.is_some() {
            devices.fill(&self.last, now.minus_millis(fresh_ms));
        }
        self.last = devices.clone();
        self.owners.update(&mut devices, now);
        let unread = match unread {
            // Everybody answers, and nobody has a device.
            Unread::Of(namespaces) if namespaces.is_empty() && devices.by_key.is_empty() => {
                Unread::Any(Why::NoKnownSeries)
            }
            unread @ (Unread::Any(_) | Unread::Of(_)) => unread,
        };
        self.publish.send_replace(Latest { owned: Owned::of(&devices), fresh_ms, unread });
    }
}

/// The time between two samples of one device, as the source has it: its last four, 0 where there
/// was none yet.
#[derive(Debug, Default)]
struct Intervals([u64; 4]);

impl Intervals {
    /// Takes the step that the devices' timestamps have made between two reads. Of all devices the
    /// shortest counts: the others have missed a sample.
    fn learn(&mut self, last: &Devices, now: &Devices) {
        let steps = now.by_key.iter().filter_map(|(key, device)| {
            let step_ms = device.at.millis_since(last.by_key.get(key)?.at);
            (step_ms > 0).then_some(step_ms)
        });
        if let Some(shortest_ms) = steps.min() {
            self.0.rotate_right(1);
            self.0[0] = shortest_ms;
        }
    }

    /// For how long a sample is fresh: three reads or two of the source's own intervals, whichever
    /// is longer. Of the last intervals the shortest counts, so that a gap teaches nothing.
    fn fresh_ms(&self) -> u64 {
        let learned_ms = self.0.iter().filter(|&&ms| ms > 0).min().copied().unwrap_or(0);
        (3 * INTERVAL_MS).max(2 * learned_ms).min(WINDOW_MS)
    }
}

/// What one round found. Devices that could not be read are missing from it.
struct Round {
    devices: Devices,
    failed: Option<Why>,
    unread: Unread,
}

impl Default for Round {
    fn default() -> Round {
        Round { devices: Devices::default(), failed: None, unread: Unread::none() }
    }
}

impl Round {
    fn add_batch<'a>(
        &mut self,
        namespaces: impl Iterator<Item = &'a str>,
        answer: Result<Batch, Why>,
    ) {
        let why = match answer {
            Err(why) => Some(why),
            Ok(batch) => {
                let mut fold = DcgmFold::default();
                for sample in &batch.series {
                    fold.add(&sample.name, sample.labels.iter(), sample.value, sample.at);
                }
                // Namespaces may well have no device: that is an answer.
                if let Ok(devices) = fold.finish() {
                    self.devices.merge(devices);
                }
                batch.partial.then_some(Why::Partial)
            }
        };
        if let (Some(why), Unread::Of(unread)) = (why, &mut self.unread) {
            self.failed = Some(why);
            unread.extend(namespaces.map(|name| (name.into(), why)));
        }
    }
}

/// Any exporter may have any workload's devices.
async fn scrape(targets: &[Target], scraper: &Scraper, clock: Clock) -> Round {
    let mut round = Round::default();
    for read in join_all(targets.iter().map(|target| page(target, scraper, clock))).await {
        match read {
            Ok(devices) => round.devices.merge(devices),
            Err(why) => {
                round.failed = Some(why);
                round.unread = Unread::Any(why);
            }
        }
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

#[cfg(test)]
mod tests;
