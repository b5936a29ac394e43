//! The rivals: KEDA's Prometheus trigger on queue depth and on concurrency, each at its best target.
//!
//! Pure: KEDA and the HPA are the model of `hpa`, Prometheus is a sample every 15 s.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use loadgen::engine::{Profile, Time};
use serde::Serialize;

use super::cluster::{Cluster, Gauges, Score};
use super::story::Story;
use super::timeline::Timeline;
use super::{MAX, moment, time};
use crate::hpa::{Keda, ScaledObject, Turn};

/// Prometheus' own default for Kubernetes set-ups, and the HPA's sync, each at its own phase.
const SCRAPE_MS: u64 = 15_000;
const FIRST_SCRAPE_MS: u64 = 4_000;
const FIRST_SYNC_MS: u64 = 11_000;

/// What a rival looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Signal {
    /// `sum(vllm:num_requests_waiting)`.
    QueueDepth,
    /// `sum(vllm:num_requests_running) + sum(vllm:num_requests_waiting)`.
    Concurrency,
}

impl Signal {
    pub(super) const ALL: [Signal; 2] = [Signal::QueueDepth, Signal::Concurrency];

    pub(super) fn name(self) -> &'static str {
        match self {
            Signal::QueueDepth => "queue-depth",
            Signal::Concurrency => "concurrency",
        }
    }

    /// The targets of the sweep: requests for each replica.
    fn targets(self) -> &'static [u32] {
        match self {
            Signal::QueueDepth => &[1, 2, 3, 5, 8, 12, 20, 40],
            Signal::Concurrency => &[4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128],
        }
    }

    fn of(self, gauges: &Gauges) -> usize {
        match self {
            Signal::QueueDepth => gauges.waiting,
            Signal::Concurrency => gauges.waiting + gauges.running,
        }
    }
}

/// One run of a rival.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) signal: Signal,
    pub(super) target: u32,
    pub(super) score: Score,
    pub(super) timeline: Timeline,
}

/// Every target of every signal on this story, on all cores; `done` is told after each.
pub(super) fn sweep(story: &Arc<Story>, profile: &Arc<Profile>, done: &AtomicUsize) -> Vec<Run> {
    let settings: Vec<(Signal, u32)> = Signal::ALL
        .into_iter()
        .flat_map(|signal| signal.targets().iter().map(move |&target| (signal, target)))
        .collect();
    let next = AtomicUsize::new(0);
    let runs = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers.min(settings.len()) {
            scope.spawn(|| {
                while let Some(&(signal, target)) =
                    settings.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let run = run(story, profile, signal, target);
                    runs.lock().unwrap_or_else(PoisonError::into_inner).push(run);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let mut runs = runs.into_inner().unwrap_or_else(PoisonError::into_inner);
    runs.sort_by_key(|run| (run.signal == Signal::Concurrency, run.target));
    runs
}

/// How many runs a sweep has.
pub(super) fn n_runs() -> usize {
    Signal::ALL.iter().map(|signal| signal.targets().len()).sum()
}

/// The best run of a signal: the cheapest that attains at least so much, else the one that attains
/// most.
pub(super) fn best(runs: &[Run], signal: Signal, attainment: f64) -> Option<&Run> {
    let own = || runs.iter().filter(|run| run.signal == signal);
    let cheapest = own()
        .filter(|run| run.score.attainment >= attainment)
        .min_by(|a, b| a.score.gpu_hours.total_cmp(&b.score.gpu_hours));
    cheapest.or_else(|| own().max_by(|a, b| a.score.attainment.total_cmp(&b.score.attainment)))
}

fn run(story: &Arc<Story>, profile: &Arc<Profile>, signal: Signal, target: u32) -> Run {
    let mut cluster = Cluster::new(Arc::clone(story), Arc::clone(profile), 1);
    let object =
        ScaledObject { min: 1, max: MAX, target: f64::from(target), ..ScaledObject::default() };
    let at = |ms| moment(Time::from_millis(ms));
    let mut keda = Keda::new(object, at(0), at(FIRST_SYNC_MS));
    let mut timeline = Timeline::new(story);
    let mut next_scrape = at(FIRST_SCRAPE_MS);
    let mut value = None;
    loop {
        let (due, turn) = keda.next();
        let now = due.min(next_scrape).min(moment(timeline.next()));
        if time(now) > story.end() {
            break;
        }
        cluster.advance(time(now));
        if now == moment(timeline.next()) {
            timeline.note(&cluster.gauges());
        }
        if now == next_scrape {
            value = Some(signal.of(&cluster.gauges()) as f64);
            next_scrape = now.plus_millis(SCRAPE_MS);
        }
        if now == due {
            let (spec, gauges) = (cluster.spec(), cluster.gauges());
            let status = gauges.ready + gauges.starting;
            cluster.scale_to(match turn {
                Turn::Poll => keda.poll(now, spec, value.map(|value| value > 0.0)),
                Turn::Sync => keda.sync(now, spec, status, value),
            });
        }
    }
    cluster.advance(story.end());
    Run { signal, target, score: cluster.score(), timeline }
}
