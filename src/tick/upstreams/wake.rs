//! Reads one wake source for the workloads that name it: four times a second for those that sleep,
//! and at the tick's own pace for the others.
//!
//! Must not decide whether a workload wakes: it remembers what was seen and asks for a tick when
//! demand has come.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::clock::Clock;
use crate::decision::{Answer, Moment, WakeReading, Why};
use crate::metrics::Metrics;
use crate::registry::{Tracker, TrackerKey};
use crate::source::wake::{Subject, WakeMemory, WakeSource};

/// Time between two reads. A wake has to be pushed within 500 ms of its request: this, the read,
/// the decision and the push.
const INTERVAL: Duration = Duration::from_millis(250);
/// Time between two reads for who is awake, and learns of more demand at its next tick: the fastest.
const AWAKE_INTERVAL_MS: u64 = 1_000;
/// A workload is read for this long after its last tick: four of the slowest.
const FOLLOWED_MS: u64 = 60_000;
/// A reading older than this says nothing: three of the slowest ticks.
const STALE_MS: u64 = 45_000;

/// The reader of one wake source. Its task ends with it.
#[derive(Debug)]
pub(super) struct Reader {
    shared: Arc<Shared>,
    /// None on a stepped clock.
    _task: Option<AbortOnDropHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    source: WakeSource,
    metrics: Metrics,
    clock: Clock,
    followers: Followers,
}

type Followers = Mutex<HashMap<TrackerKey, Follower>>;

/// One workload that names the source.
#[derive(Debug)]
struct Follower {
    tracker: Arc<Tracker>,
    memory: WakeMemory,
    reading: WakeReading,
    read_at: Moment,
    followed_at: Moment,
    nudge: Arc<Notify>,
}

impl Follower {
    fn is_due(&self, now: Moment) -> bool {
        let sleeps =
            !matches!(self.tracker.published.load().answer, Answer::Value { active: true, .. });
        let is_new = self.reading == WakeReading::Unknown { why: Why::NotYetRead };
        sleeps || is_new || now.millis_since(self.read_at) >= AWAKE_INTERVAL_MS
    }
}

impl Reader {
    pub(super) fn start(source: WakeSource, metrics: Metrics, clock: Clock) -> Reader {
        let shared = Shared { source, metrics, clock, followers: Followers::default() };
        let shared = Arc::new(shared);
        let task = || AbortOnDropHandle::new(tokio::spawn(read_all(Arc::clone(&shared))));
        Reader { _task: (!clock.is_stepped()).then(task), shared }
    }

    /// Reads it now: on a stepped clock nobody else does.
    pub(super) async fn read(&self) {
        read_due(&self.shared).await;
    }

    /// What the source last said of a workload. From now on `nudge` is told when demand comes.
    pub(super) fn reading(
        &self,
        tracker: &Arc<Tracker>,
        nudge: &Arc<Notify>,
        now: Moment,
    ) -> WakeReading {
        let mut followers = lock(&self.shared.followers);
        let follower = match followers.entry(tracker.key.clone()) {
            Entry::Vacant(vacant) => vacant.insert(Follower {
                tracker: Arc::clone(tracker),
                memory: WakeMemory::default(),
                reading: WakeReading::Unknown { why: Why::NotYetRead },
                read_at: now,
                followed_at: now,
                nudge: Arc::clone(nudge),
            }),
            Entry::Occupied(known) => {
                let known = known.into_mut();
                known.followed_at = now;
                // The trigger may have gone and come again, and so may its task.
                known.tracker = Arc::clone(tracker);
                known.nudge = Arc::clone(nudge);
                known
            }
        };
        if now.millis_since(follower.read_at) >= STALE_MS {
            return WakeReading::Unknown { why: Why::Timeout };
        }
        follower.reading
    }
}

async fn read_all(shared: Arc<Shared>) {
    loop {
        let started = Instant::now();
        read_due(&shared).await;
        sleep_until(next_read(started, Instant::now())).await;
    }
}

/// When to read next. A source that takes longer than the interval is left alone for as long as it
/// took: waking shall never be more than half of a server's work.
fn next_read(started: Instant, ended: Instant) -> Instant {
    let took = ended - started;
    if took < INTERVAL { started + INTERVAL } else { ended + took }
}

async fn read_due(Shared { source, metrics, clock, followers }: &Shared) {
    let due: Vec<Arc<Tracker>> = {
        let now = clock.now();
        let mut followers = lock(followers);
        followers.retain(|_, follower| now.millis_since(follower.followed_at) < FOLLOWED_MS);
        let due = followers.values().filter(|follower| follower.is_due(now));
        due.map(|follower| Arc::clone(&follower.tracker)).collect()
    };
    if due.is_empty() {
        return;
    }
    let subjects: Vec<Subject<'_>> = due
        .iter()
        .map(|tracker| Subject {
            namespace: &tracker.key.workload.namespace,
            name: &tracker.key.workload.name,
            model: tracker.policy.model_name.as_deref(),
        })
        .collect();
    let started = Instant::now();
    let read = source.read(&subjects).await;
    let failed = read.iter().find_map(|read| read.as_ref().err()).map(|error| error.why());
    metrics.scraped(started.elapsed(), failed);
    let now = clock.now();
    let mut followers = lock(followers);
    for (tracker, demand) in due.iter().zip(&read) {
        let Some(follower) = followers.get_mut(&tracker.key) else { continue };
        let demand = demand.as_ref().map_err(|error| error.why());
        let reading = follower.memory.take(source.kind(), demand, now);
        if has_come(follower.reading, reading) {
            follower.nudge.notify_one();
        }
        follower.reading = reading;
        follower.read_at = now;
    }
}

/// Whether demand has come between two readings.
fn has_come(before: WakeReading, after: WakeReading) -> bool {
    let WakeReading::Fresh { queued, last_arrival_at } = after else { return false };
    match before {
        WakeReading::Fresh { queued: was, last_arrival_at: arrived } => {
            queued > was || last_arrival_at > arrived
        }
        WakeReading::Unknown { .. } => queued > 0.0 || last_arrival_at.is_some(),
    }
}

fn lock(followers: &Followers) -> MutexGuard<'_, HashMap<TrackerKey, Follower>> {
    followers.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Replicas;
    use crate::inventory::{Counted, Inventory, Kubernetes, Workload, WorkloadKey};
    use crate::registry::{Caller, Limits, Registry, Rpc};

    fn tracker(spec: u32, clock: Clock) -> Arc<Tracker> {
        let key = WorkloadKey::new("a", "b");
        let workload = Workload {
            key: key.clone(),
            min: 0,
            max: 8,
            fallback_replicas: None,
            triggers: vec![std::collections::BTreeMap::new()],
            replicas: Replicas { spec: Some(spec), ..Replicas::default() },
            members: Vec::new(),
            counted: Counted::ByKubernetes,
            gpus_per_replica: None,
            paused: false,
            kubernetes: Kubernetes::default(),
        };
        let registry = Registry::new(Limits::default(), clock);
        let workloads = [(key, Arc::new(workload))].into();
        registry.set_inventory(Arc::new(Inventory {
            synced: true,
            workloads,
            ..Inventory::default()
        }));
        registry.lookup("a", "b", &HashMap::new(), Caller::Poll, Rpc::IsActive).unwrap()
    }

    #[tokio::test]
    async fn who_sleeps_is_read_each_time_and_who_is_awake_once_a_second() {
        let clock = Clock::start();
        let at = clock.now();
        for (spec, after_250_ms) in [(0, true), (1, false)] {
            let mut follower = Follower {
                tracker: tracker(spec, clock),
                memory: WakeMemory::default(),
                reading: WakeReading::Unknown { why: Why::NotYetRead },
                read_at: at,
                followed_at: at,
                nudge: Arc::default(),
            };
            assert!(follower.is_due(at), "{spec}: not read at all yet");
            follower.reading = WakeReading::Unknown { why: Why::Timeout };
            assert_eq!(follower.is_due(at.plus_millis(250)), after_250_ms, "{spec}");
            assert!(follower.is_due(at.plus_millis(1_000)), "{spec}");
        }
    }

    #[test]
    fn a_source_that_is_slow_is_left_alone_for_as_long_as_it_took() {
        let started = Instant::now();
        let after = |ms| started + Duration::from_millis(ms);
        for (ended, next) in [(1, 250), (249, 250), (250, 500), (2_000, 4_000)] {
            assert_eq!(next_read(started, after(ended)), after(next), "{ended}");
        }
    }

    #[test]
    fn a_tick_is_asked_for_when_demand_comes_and_not_while_it_stands() {
        let unknown = WakeReading::Unknown { why: Why::Timeout };
        let fresh = |queued, at| WakeReading::Fresh { queued, last_arrival_at: at };
        let (t1, t2) = (Some(Moment(1)), Some(Moment(2)));
        for (before, after, come) in [
            (unknown, fresh(0.0, None), false),
            (unknown, fresh(1.0, None), true),
            (unknown, fresh(0.0, t1), true),
            (fresh(0.0, None), fresh(3.0, None), true),
            (fresh(3.0, None), fresh(3.0, None), false),
            (fresh(3.0, None), fresh(1.0, None), false),
            (fresh(0.0, t1), fresh(0.0, t2), true),
            (fresh(0.0, t1), unknown, false),
        ] {
            assert_eq!(has_come(before, after), come, "{before:?} {after:?}");
        }
    }
}
