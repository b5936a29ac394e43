//! Reads the engine series of all namespaces that somebody follows, with one query for many.
//!
//! Must not interpret a series; each workload folds its own with its own filter.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::followed::Followed;
use crate::clock::Clock;
use crate::decision::{EngineSample, Why};
use crate::metrics::Metrics;
use crate::signals::engine::{Filter, SeriesFold, joined_pod, prometheus_names};
use crate::source::Error;
use crate::source::engines::{Batch, NewestSample, engine_series};
use crate::source::prometheus::PrometheusClient;
use crate::source::selector::Namespaces;

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
type ByTarget = HashMap<Box<str>, Vec<NewestSample>>;

/// The engine series of one namespace.
#[derive(Debug, Default)]
struct Series {
    by_target: ByTarget,
    /// Prometheus warned: what is not here may exist.
    partial: bool,
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
        let task = tokio::spawn(read_all(client, metrics, clock, Arc::clone(&followed), publish));
        Reader { followed, latest, clock, _task: AbortOnDropHandle::new(task) }
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

    /// The sample of one pod, or of one endpoint by its URL.
    pub(in crate::tick) fn sample(&self, id: &str, filter: &Filter) -> Result<EngineSample, Why> {
        let series = match &self.0 {
            None => return Err(Why::NotYetRead),
            Some(Err(why)) => return Err(*why),
            Some(Ok(series)) => series,
        };
        let mut fold = SeriesFold::new(filter);
        let mut found = false;
        for (target, samples) in &series.by_target {
            if joined_pod(target, |pod| pod == id).is_none() && instance_of(id) != Some(target) {
                continue;
            }
            found = true;
            for sample in samples {
                fold.add(&sample.name, sample.labels.iter(), sample.value, sample.at);
            }
        }
        if !found {
            return Err(if series.partial { Why::Partial } else { Why::NoKnownSeries });
        }
        fold.finish().map(|page| page.sample).map_err(|error| error.why())
    }
}

/// What Prometheus calls `instance`, of an endpoint that is known by its URL.
fn instance_of(url: &str) -> Option<&str> {
    url.split_once("://").and_then(|(_, rest)| rest.split('/').next())
}

async fn read_all(
    client: PrometheusClient,
    metrics: Metrics,
    clock: Clock,
    followed: Arc<Followed>,
    publish: watch::Sender<Arc<Latest>>,
) {
    let names = prometheus_names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    loop {
        let namespaces = followed.current(clock.now());
        let mut latest = Latest::new();
        // As many at once as the client lets: timeouts do not add up.
        let reads = batches(&namespaces).into_iter().map(async |batch| {
            let started = Instant::now();
            let read = engine_series(&client, &batch, &names, WINDOW_MS).await;
            metrics.scraped(started.elapsed(), read.as_ref().err().map(Error::why));
            (batch, read)
        });
        for (batch, read) in join_all(reads).await {
            let mut by_namespace = read.map(by_namespace);
            for namespace in namespaces.iter().filter(|name| batch.contains(name)) {
                let series = match &mut by_namespace {
                    Ok((series, partial)) => Ok(Arc::new(Series {
                        by_target: series.remove(&**namespace).unwrap_or_default(),
                        partial: *partial,
                    })),
                    Err(error) => Err(error.why()),
                };
                latest.insert(Arc::clone(namespace), series);
            }
        }
        publish.send_replace(Arc::new(latest));
        tokio::select! {
            () = sleep(INTERVAL) => {}
            () = followed.joined() => {}
        }
    }
}

fn batches(namespaces: &[Arc<str>]) -> Vec<Namespaces> {
    // Names come from the inventory, where none is empty; an empty one would follow nothing.
    Namespaces::batches(namespaces.iter().map(|name| &**name)).unwrap_or_default()
}

/// Sorts the series by namespace, then by target.
fn by_namespace(batch: Batch) -> (HashMap<Box<str>, ByTarget>, bool) {
    let mut sorted: HashMap<Box<str>, ByTarget> = HashMap::new();
    for sample in batch.series {
        let namespace = sample.labels.get("namespace");
        let target = TARGET_LABELS.iter().find_map(|label| sample.labels.get(label));
        if let (Some(namespace), Some(target)) = (namespace, target) {
            let targets = sorted.entry(namespace.into()).or_default();
            targets.entry(target.into()).or_default().push(sample);
        }
    }
    (sorted, batch.partial)
}

/// The labels by which a series may name its engine, best first: `pod` is what Kubernetes service
/// discovery writes, `exported_pod` what is left of an engine's own, `instance` what always exists.
const TARGET_LABELS: [&str; 3] = ["pod", "exported_pod", "instance"];
