//! Reads the engine series of all namespaces that somebody follows, with one query for many.
//!
//! Must not interpret a series; each workload folds its own with its own filter.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::batches::Batches;
use super::followed::Followed;
use super::kept::kept_running;
use super::skew::Skew;
use crate::clock::Clock;
use crate::decision::{EngineSample, Why};
use crate::metrics::Metrics;
use crate::signals::engine::{Filter, SeriesFold, joined_pod, prometheus_names};
use crate::source::Error;
use crate::source::engines::{Batch, NewestSample, engine_series};
use crate::source::prometheus::PrometheusClient;

/// Time between two reads. A third of the tick that follows them, so that a sample waits for a
/// decision at most half as long again as it must.
const INTERVAL: Duration = Duration::from_secs(5);
/// How far back samples are looked for: two intervals of a Prometheus that scrapes once a minute.
const WINDOW_MS: u64 = 120_000;
/// How long a tick waits for a namespace's first read.
const FIRST_READ: Duration = Duration::from_secs(3);

/// The last read of each followed namespace.
type Latest = HashMap<Arc<str>, Result<Arc<Series>, Why>>;

/// Engine series by the pod, or else the instance, that they name.
type ByTarget = HashMap<Box<str>, Target>;

/// How many series each target of a namespace had when Prometheus last did not warn.
type Sizes = HashMap<Box<str>, usize>;

/// What the rounds have taught.
#[derive(Debug, Default)]
struct Learned {
    batches: Batches,
    skew: Skew,
    // Apart from the last answers, so that a failed one forgets nothing.
    sizes: HashMap<Arc<str>, Sizes>,
    copies_told: Arc<CopiesTold>,
}

/// Whether copies of series were seen and told: once is enough for a Prometheus.
#[derive(Debug, Default)]
struct CopiesTold(AtomicBool);

impl CopiesTold {
    fn tell(&self, of: &str) {
        if !self.0.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                of,
                "Prometheus has engine series in copies, as by a replica label or by two scrape jobs: \
                 the newest of each counts once; query one replica, or let one job scrape the engines"
            );
        }
    }
}

/// The engine series of one namespace.
#[derive(Debug, Default)]
struct Series {
    by_target: ByTarget,
    /// How far the clock of the samples' times is ahead of this process's, milliseconds.
    ahead_ms: i64,
    /// Prometheus warned: what is not here may exist.
    partial: bool,
    copies_told: Arc<CopiesTold>,
}

/// The engine series of one target.
#[derive(Debug, Default)]
struct Target {
    samples: Vec<NewestSample>,
    /// How many there were when Prometheus last did not warn; 0 if that is not known.
    n_whole: usize,
    /// Somebody's pod or endpoint has been found in its name, at this read or one before.
    is_matched: AtomicBool,
}

impl Series {
    /// What an answer says, after what was read before. Of a partial answer a target with fewer series
    /// than before is not taken for the whole. One that no whole answer has told yet is taken as it is:
    /// a Prometheus that always warns would never be read.
    fn new(
        mut by_target: ByTarget,
        partial: bool,
        ahead_ms: i64,
        sizes: &mut Sizes,
        copies_told: Arc<CopiesTold>,
        before: Option<&Series>,
    ) -> Series {
        if !partial {
            sizes.clear();
            sizes.extend(by_target.iter().map(|(name, it)| (name.clone(), it.samples.len())));
        }
        for (name, target) in &mut by_target {
            target.n_whole = sizes.get(name).copied().unwrap_or(0);
            let old = before.and_then(|before| before.by_target.get(name));
            let was_matched = old.is_some_and(|old| old.is_matched.load(Ordering::Relaxed));
            target.is_matched = AtomicBool::new(was_matched);
        }
        Series { by_target, ahead_ms, partial, copies_told }
    }

    /// Series in whose names nobody has found a pod or an endpoint.
    fn n_unmatched(&self) -> usize {
        let targets = self.by_target.values();
        let unmatched = targets.filter(|target| !target.is_matched.load(Ordering::Relaxed));
        unmatched.map(|target| target.samples.len()).sum()
    }
}

/// The reader of one Prometheus. Its task ends with it.
#[derive(Debug)]
pub(super) struct Reader {
    followed: Arc<Followed>,
    latest: watch::Receiver<Arc<Latest>>,
    clock: Clock,
    _task: AbortOnDropHandle<()>,
}

impl Reader {
    pub(super) fn start(client: PrometheusClient, metrics: Metrics, clock: Clock) -> Reader {
        let followed = Arc::new(Followed::default());
        let (publish, latest) = watch::channel(Arc::default());
        let rounds = {
            let followed = Arc::clone(&followed);
            Rounds { client, metrics, clock, followed, publish }
        };
        let task = kept_running("prometheus", move || rounds.clone().run());
        Reader { followed, latest, clock, _task: task }
    }

    pub(super) async fn engines_of(&self, namespace: &Arc<str>) -> EnginesRead {
        self.followed.follow(namespace, self.clock.now());
        let mut latest = self.latest.clone();
        let known = latest.wait_for(|latest| latest.contains_key(namespace));
        match timeout(FIRST_READ, known).await {
            Ok(Ok(latest)) => EnginesRead(latest.get(namespace).cloned()),
            Ok(Err(_)) | Err(_) => EnginesRead(None),
        }
    }
}

/// What one namespace's engines said last.
#[derive(Debug)]
pub(in crate::tick) struct EnginesRead(Option<Result<Arc<Series>, Why>>);

impl EnginesRead {
    pub(super) fn unconfigured() -> EnginesRead {
        EnginesRead(Some(Err(Why::NoEndpoint)))
    }

    /// How far the clock of the samples' times is ahead of this process's, milliseconds.
    pub(in crate::tick) fn ahead_ms(&self) -> i64 {
        match &self.0 {
            Some(Ok(series)) => series.ahead_ms,
            Some(Err(_)) | None => 0,
        }
    }

    /// The sample of one pod, or of one endpoint by its URL, with its source's own time.
    pub(in crate::tick) fn sample(&self, id: &str, filter: &Filter) -> Result<EngineSample, Why> {
        let series = match &self.0 {
            None => return Err(Why::NotYetRead),
            Some(Err(why)) => return Err(*why),
            Some(Ok(series)) => series,
        };
        let mut fold = SeriesFold::new(filter);
        let mut found = false;
        for (name, target) in &series.by_target {
            if joined_pod(name, |pod| pod == id).is_none() && instance_of(id) != Some(name) {
                continue;
            }
            target.is_matched.store(true, Ordering::Relaxed);
            if target.samples.len() < target.n_whole {
                // Of an engine's ranks or numbers some may be missing: their sum would be too small.
                return Err(Why::Partial);
            }
            found = true;
            for sample in &target.samples {
                fold.add(&sample.name, sample.labels.iter(), sample.value, sample.at);
            }
        }
        if !found {
            return Err(if series.partial { Why::Partial } else { Why::NoKnownSeries });
        }
        let page = fold.finish().map_err(|error| error.why())?;
        if page.copied {
            series.copies_told.tell(id);
        }
        Ok(page.sample)
    }
}

/// What Prometheus calls `instance`, of an endpoint that is known by its URL.
fn instance_of(url: &str) -> Option<&str> {
    url.split_once("://").and_then(|(_, rest)| rest.split('/').next())
}

/// One read of all namespaces after the other.
#[derive(Debug, Clone)]
struct Rounds {
    client: PrometheusClient,
    metrics: Metrics,
    clock: Clock,
    followed: Arc<Followed>,
    publish: watch::Sender<Arc<Latest>>,
}

impl Rounds {
    async fn run(self) {
        let names = prometheus_names();
        let mut learned = Learned::default();
        loop {
            let latest = self.read(&names, &mut learned).await;
            self.publish.send_replace(Arc::new(latest));
            tokio::select! {
                () = sleep(INTERVAL) => {}
                () = self.followed.joined() => {}
            }
        }
    }

    async fn read(&self, names: &[String], learned: &mut Learned) -> Latest {
        let Learned { batches, skew, sizes, copies_told } = learned;
        // Everybody has had a look at those by now.
        let before = Arc::clone(&self.publish.borrow());
        let unmatched = before.values().flatten().map(|series| series.n_unmatched()).sum();
        self.metrics.unmatched_series(unmatched);
        let now = self.clock.now();
        let namespaces = self.followed.current(now);
        // As many at once as the client lets: timeouts do not add up.
        let ask = |batch| async move {
            let started = Instant::now();
            let read = engine_series(&self.client, &batch, names, WINDOW_MS).await;
            self.metrics.scraped(started.elapsed(), read.as_ref().err().map(Error::why));
            read.map(|found| (found, self.clock.now()))
        };
        let mut latest = Latest::new();
        for (batch, read) in batches.ask(&namespaces, now, ask).await {
            let mut read = read.map(|(found, came_at)| {
                skew.learn(&found, came_at);
                if found.copied {
                    copies_told.tell("a replica label of Prometheus");
                }
                by_namespace(found)
            });
            for namespace in namespaces.iter().filter(|name| batch.contains(name)) {
                let series = match &mut read {
                    Ok((by_namespace, partial)) => {
                        let by_target = by_namespace.remove(&**namespace).unwrap_or_default();
                        let sizes = sizes.entry(Arc::clone(namespace)).or_default();
                        let old = before.get(namespace).and_then(|old| old.as_deref().ok());
                        let (ahead_ms, told) = (skew.ahead_ms(), Arc::clone(copies_told));
                        Ok(Arc::new(Series::new(by_target, *partial, ahead_ms, sizes, told, old)))
                    }
                    Err(error) => Err(error.why()),
                };
                latest.insert(Arc::clone(namespace), series);
            }
        }
        sizes.retain(|namespace, _| latest.contains_key(namespace));
        latest
    }
}

/// Sorts the series by namespace, then by target.
fn by_namespace(batch: Batch) -> (HashMap<Box<str>, ByTarget>, bool) {
    let mut sorted: HashMap<Box<str>, ByTarget> = HashMap::new();
    for sample in batch.series {
        let namespace = sample.labels.get("namespace");
        let target = TARGET_LABELS.iter().find_map(|label| sample.labels.get(label));
        if let (Some(namespace), Some(target)) = (namespace, target) {
            let targets = sorted.entry(namespace.into()).or_default();
            targets.entry(target.into()).or_default().samples.push(sample);
        }
    }
    (sorted, batch.partial)
}

/// The labels by which a series may name its engine, best first: `pod` is what Kubernetes service
/// discovery writes, `exported_pod` what is left of an engine's own, `instance` what always exists.
const TARGET_LABELS: [&str; 3] = ["pod", "exported_pod", "instance"];

#[cfg(test)]
mod tests;
