//! Reads GPU devices from DCGM exporters, directly or through Prometheus, for all workloads.
//!
//! Must not attribute a device: `signals::dcgm` knows whose it certainly is.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::followed::Followed;
use crate::clock::Clock;
use crate::decision::{Gpu, Moment, Phase, WARM_UP_MS, Why};
use crate::inventory::Workload;
use crate::metrics::Metrics;
use crate::signals::dcgm::{DcgmFold, DcgmReader, Devices, OwnerMemory, prometheus_names};
use crate::source::engines::dcgm_series;
use crate::source::prometheus::PrometheusClient;
use crate::source::scrape::{Scraper, Target};
use crate::source::selector::Namespaces;

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

/// The newest sample of each device, and for how long one is fresh.
#[derive(Debug, Clone, Default)]
struct Latest {
    devices: Arc<Devices>,
    fresh_ms: u64,
}

/// The reader of all devices. Its task ends with it.
#[derive(Debug)]
pub(super) struct Reader {
    followed: Arc<Followed>,
    latest: watch::Receiver<Latest>,
    by: By,
}

/// Who starts the rounds.
#[derive(Debug)]
enum By {
    /// A task, by the process's own time.
    Task(#[expect(dead_code, reason = "it ends with its value")] AbortOnDropHandle<()>),
    /// Who steps the clock.
    Caller(Box<Mutex<Rounds>>),
}

impl Reader {
    pub(super) fn start(from: From, metrics: Metrics, clock: Clock) -> Reader {
        let followed = Arc::new(Followed::default());
        let (publish, latest) = watch::channel(Latest::default());
        let rounds = Rounds {
            from,
            metrics,
            clock,
            followed: Arc::clone(&followed),
            publish,
            intervals: Intervals::default(),
            owners: OwnerMemory::default(),
            due: clock.now(),
        };
        let by = if clock.is_stepped() {
            By::Caller(Box::new(Mutex::new(rounds)))
        } else {
            By::Task(AbortOnDropHandle::new(tokio::spawn(rounds.run())))
        };
        Reader { followed, latest, by }
    }

    /// Reads the devices if that is due: on a stepped clock nobody else does.
    pub(super) async fn read(&self) {
        if let By::Caller(rounds) = &self.by {
            rounds.lock().await.read_if_due().await;
        }
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
        let latest = self.latest.borrow();
        let since = now.minus_millis(latest.fresh_ms);
        let sample = latest.devices.share_of(namespace, warm, since);
        match (sample, *seen_at) {
            (Some(sample), _) => {
                *seen_at = Some(now);
                Gpu::Fresh(sample)
            }
            (None, Some(at)) => Gpu::Lost { for_ms: now.millis_since(at) },
            (None, None) => Gpu::Absent,
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
    intervals: Intervals,
    owners: OwnerMemory,
    due: Moment,
}

impl Rounds {
    async fn run(mut self) {
        loop {
            self.read().await;
            tokio::select! {
                () = sleep(Duration::from_millis(INTERVAL_MS)) => {}
                () = self.followed.joined() => {}
            }
        }
    }

    async fn read_if_due(&mut self) {
        let now = self.clock.now();
        if now >= self.due {
            self.read().await;
            self.due = now.plus_millis(INTERVAL_MS);
        }
    }

    async fn read(&mut self) {
        let started = Instant::now();
        let now = self.clock.now();
        let read = match &self.from {
            From::Prometheus(client) => query(client, &self.followed.current(now)).await,
            From::Exporters(targets, scraper) => scrape(targets, scraper, self.clock).await,
        };
        self.metrics.scraped(started.elapsed(), read.failed);
        let mut devices = read.devices;
        let last = Arc::clone(&self.publish.borrow().devices);
        self.intervals.learn(&last, &devices);
        let fresh_ms = self.intervals.fresh_ms();
        if read.failed.is_some() {
            // What could not be read now is as old as it was; `share_of` judges its age.
            let since = self.clock.now().minus_millis(fresh_ms);
            let mut last = Devices::clone(&last);
            last.by_key.retain(|_, device| device.at >= since);
            devices.merge(last);
        }
        self.owners.update(&mut devices, self.clock.now());
        self.publish.send_replace(Latest { devices: Arc::new(devices), fresh_ms });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Replicas;
    use crate::inventory::{Counted, Member, WorkloadKey};
    use crate::signals::dcgm::{Device, DeviceKey, PodRef};

    /// Devices by UUID with the second of their newest sample, all of pod `a/p`.
    fn devices(sampled_s: &[(&str, i64)]) -> Devices {
        let device = |&(uuid, at_s): &(&str, i64)| {
            let key = DeviceKey { uuid: uuid.into(), instance: None };
            let owners = vec![PodRef { namespace: "a".into(), pod: "p".into() }];
            let at = Moment(at_s * 1_000);
            (key, Device { owners, at, gpu_util: Some(0.5), ..Device::default() })
        };
        Devices { by_key: sampled_s.iter().map(device).collect(), ..Devices::default() }
    }

    fn learned(rounds: &[&[(&str, i64)]]) -> u64 {
        let mut intervals = Intervals::default();
        for pair in rounds.windows(2) {
            intervals.learn(&devices(pair[0]), &devices(pair[1]));
        }
        intervals.fresh_ms()
    }

    #[test]
    fn a_sample_is_fresh_for_three_reads_or_two_intervals_of_the_source() {
        for (rounds, fresh_ms) in [
            // Nothing learned, and an exporter's own page, whose samples are as new as the read.
            (&[&[("a", 0)][..]][..], 45_000),
            (&[&[("a", 0)], &[("a", 15)], &[("a", 30)]], 45_000),
            // A Prometheus that scrapes each half minute; the reads between see nothing move.
            (&[&[("a", 0)], &[("a", 0)], &[("a", 30)], &[("a", 30)], &[("a", 60)]], 60_000),
            // Another device has missed a sample.
            (&[&[("a", 0), ("b", 0)], &[("a", 60), ("b", 30)]], 60_000),
            // A gap teaches nothing where there was a step before.
            (&[&[("a", 0)], &[("a", 30)], &[("a", 120)]], 60_000),
            // Beyond the window there is nothing.
            (&[&[("a", 0)], &[("a", 90)]], 120_000),
        ] {
            assert_eq!(learned(rounds), fresh_ms, "{rounds:?}");
        }
    }

    #[tokio::test]
    async fn a_device_whose_reads_fail_is_lost_when_its_sample_is_no_longer_fresh() {
        let latest = Latest { devices: Arc::new(devices(&[("a", 0)])), fresh_ms: 45_000 };
        let (_publish, latest) = watch::channel(latest);
        let task = AbortOnDropHandle::new(tokio::spawn(async {}));
        let reader = Reader { followed: Arc::default(), latest, by: By::Task(task) };
        let member = Member {
            id: "p".into(),
            phase: Phase::Ready,
            created_at: None,
            ready_at: None,
            endpoint: None,
            node: None,
        };
        let workload = Workload {
            key: WorkloadKey::new("a", "b"),
            min: 0,
            max: 8,
            fallback_replicas: None,
            triggers: Vec::new(),
            replicas: Replicas::default(),
            members: vec![member],
            counted: Counted::ByKubernetes,
            gpus_per_replica: None,
            paused: false,
            kubernetes: crate::inventory::Kubernetes::default(),
        };
        let mut seen_at = None;
        let mut at =
            |second: i64| reader.utilisation(&workload, &mut seen_at, Moment(second * 1_000));
        assert!(matches!(at(45), Gpu::Fresh(sample) if sample.busy == Some(0.5)));
        assert_eq!(at(46), Gpu::Lost { for_ms: 1_000 });
    }
}
