//! Reads one wake source for all the workloads that name it, four times a second.
//!
//! Must not decide whether a workload wakes: it remembers what was seen and asks for a tick when
//! demand has come.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

use crate::clock::Clock;
use crate::decision::{Moment, WakeReading, Why};
use crate::metrics::Metrics;
use crate::registry::{Tracker, TrackerKey};
use crate::source::wake::{Subject, WakeMemory, WakeSource};

/// Time between two reads. A wake has to be pushed within 500 ms of its request: this, the read,
/// the decision and the push.
const INTERVAL: Duration = Duration::from_millis(250);
/// A workload is read for this long after its last tick: four of the slowest.
const FOLLOWED_MS: u64 = 60_000;
/// A reading older than this says nothing: three of the slowest ticks.
const STALE_MS: u64 = 45_000;

/// The reader of one wake source. Its task ends with it.
#[derive(Debug)]
pub(super) struct Reader {
    followers: Arc<Followers>,
    _task: AbortOnDropHandle<()>,
}

type Followers = Mutex<HashMap<TrackerKey, Follower>>;

/// One workload that names the source.
#[derive(Debug)]
struct Follower {
    model: Option<String>,
    memory: WakeMemory,
    reading: WakeReading,
    read_at: Moment,
    followed_at: Moment,
    nudge: Arc<Notify>,
}

impl Reader {
    pub(super) fn start(source: WakeSource, metrics: Metrics, clock: Clock) -> Reader {
        let followers = Arc::<Followers>::default();
        let task = tokio::spawn(read_all(source, metrics, clock, Arc::clone(&followers)));
        Reader { followers, _task: AbortOnDropHandle::new(task) }
    }

    /// What the source last said of a workload. From now on `nudge` is told when demand comes.
    pub(super) fn reading(
        &self,
        tracker: &Tracker,
        nudge: &Arc<Notify>,
        now: Moment,
    ) -> WakeReading {
        let mut followers = lock(&self.followers);
        let follower = followers.entry(tracker.key.clone()).or_insert_with(|| Follower {
            model: tracker.policy.model_name.clone(),
            memory: WakeMemory::default(),
            reading: WakeReading::Unknown { why: Why::NotYetRead },
            read_at: now,
            followed_at: now,
            nudge: Arc::clone(nudge),
        });
        follower.followed_at = now;
        // The task of a trigger may have been started again.
        follower.nudge = Arc::clone(nudge);
        if now.millis_since(follower.read_at) >= STALE_MS {
            return WakeReading::Unknown { why: Why::Timeout };
        }
        follower.reading
    }
}

async fn read_all(source: WakeSource, metrics: Metrics, clock: Clock, followers: Arc<Followers>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let followed: Vec<(TrackerKey, Option<String>)> = {
            let now = clock.now();
            let mut followers = lock(&followers);
            followers.retain(|_, follower| now.millis_since(follower.followed_at) < FOLLOWED_MS);
            let followed = followers.iter();
            followed.map(|(key, follower)| (key.clone(), follower.model.clone())).collect()
        };
        if followed.is_empty() {
            continue;
        }
        let subjects: Vec<Subject<'_>> = followed
            .iter()
            .map(|(key, model)| Subject {
                namespace: &key.workload.namespace,
                name: &key.workload.name,
                model: model.as_deref(),
            })
            .collect();
        let started = Instant::now();
        let read = source.read(&subjects).await;
        let failed = read.iter().find_map(|read| read.as_ref().err()).map(|error| error.why());
        metrics.scraped(started.elapsed(), failed);
        let now = clock.now();
        let mut followers = lock(&followers);
        for ((key, _), demand) in followed.iter().zip(&read) {
            let Some(follower) = followers.get_mut(key) else { continue };
            let demand = demand.as_ref().map_err(|error| error.why());
            let reading = follower.memory.take(source.kind(), demand, now);
            if has_come(follower.reading, reading) {
                follower.nudge.notify_one();
            }
            follower.reading = reading;
            follower.read_at = now;
        }
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
