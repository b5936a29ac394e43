//! Wakes asked for through the API, and what the asker is told.
//!
//! Must not decide: a request is an input of the next tick, and fifty of them are one wake.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::{Error, Workload};
use crate::clock::Clock;
use crate::decision::{Decision, Moment};
use crate::inventory::WorkloadKey;
use crate::registry::Registry;

/// How long a request is remembered. A decision keeps what it needs of it in its own state; this is
/// longer than ten cold starts of ten minutes, after which a request says nothing any more.
const MEMORY_MS: u64 = 7_200_000;

/// The requests, by workload; cheap to clone. Callers pass only keys of known workloads, which
/// bounds it.
#[derive(Debug, Clone, Default)]
pub struct WakeRequests(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    requests: Mutex<Requests>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Requests {
    by_workload: HashMap<WorkloadKey, Request>,
    /// How many have come so far.
    count: u64,
}

#[derive(Debug, Clone, Copy)]
struct Request {
    first_at: Moment,
    last_at: Moment,
    /// The count at the last one.
    number: u64,
    /// A replica has served since: what is asked for from now on is another wake.
    served: bool,
}

/// The wake that a request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requested {
    /// When it began.
    pub since: Moment,
    /// This request began it. A moment cannot tell: several may come within its millisecond.
    pub begins: bool,
}

impl WakeRequests {
    /// Records a request and says which wake it belongs to: one begins with the first request since
    /// a replica last [served](WakeRequests::served).
    pub fn request(&self, key: &WorkloadKey, now: Moment) -> Requested {
        let mut requests = self.requests();
        requests.count += 1;
        let number = requests.count;
        let by_workload = &mut requests.by_workload;
        by_workload.retain(|_, request| now.millis_since(request.last_at) < MEMORY_MS);
        let request = by_workload.entry(key.clone()).or_insert(Request {
            first_at: now,
            last_at: now,
            number,
            served: true,
        });
        request.last_at = request.last_at.max(now);
        request.number = number;
        let begins = std::mem::take(&mut request.served);
        if begins {
            request.first_at = now;
        }
        let since = request.first_at;
        drop(requests);
        self.0.arrived.notify_one();
        Requested { since, begins }
    }

    /// Notes that a replica of this workload serves.
    pub fn served(&self, key: &WorkloadKey) {
        if let Some(request) = self.requests().by_workload.get_mut(key) {
            request.served = true;
        }
    }

    /// When a wake of this workload was last asked for.
    #[must_use]
    pub fn last(&self, key: &WorkloadKey) -> Option<Moment> {
        self.requests().by_workload.get(key).map(|request| request.last_at)
    }

    /// The workloads asked for after the first `count` requests, each with the moment of its last
    /// one; and how many requests there are now.
    #[must_use]
    pub fn after(&self, count: u64) -> (Vec<(WorkloadKey, Moment)>, u64) {
        let requests = self.requests();
        let later = requests.by_workload.iter().filter(|(_, request)| request.number > count);
        let later = later.map(|(key, request)| (key.clone(), request.last_at)).collect();
        (later, requests.count)
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.0.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a request has come since the last call; for one waiter, the tick loop.
    pub async fn arrived(&self) {
        self.0.arrived.notified().await;
    }
}

/// Where a woken workload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WakeState {
    /// Asked for; no replica ordered yet.
    Waking,
    /// Replicas are ordered and none serves yet.
    Starting,
    /// A replica serves.
    Ready,
}

impl WakeState {
    /// The JSON word.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            WakeState::Waking => "waking",
            WakeState::Starting => "starting",
            WakeState::Ready => "ready",
        }
    }
}

/// The answer to a wake request; a gateway can hold its requests by it, or say Retry-After.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wake {
    /// The workload's namespace.
    pub namespace: String,
    /// The workload's name.
    pub name: String,
    /// Where it is.
    pub state: WakeState,
    /// Milliseconds since this wake was first asked for, 0 when it serves.
    pub elapsed_ms: u64,
    /// Milliseconds until a replica is expected to serve, 0 when one does; `None` if not known.
    pub expected_ms: Option<u64>,
}

/// Records a wake and says where the workload is; for whoever decides.
///
/// # Errors
///
/// When the workload is not known.
pub fn take_wake(
    registry: &Registry,
    wakes: &WakeRequests,
    clock: Clock,
    key: &WorkloadKey,
) -> Result<Wake, Error> {
    let trackers = super::find(registry, key)?;
    let tracker = trackers.first().ok_or(Error::Internal)?;
    let published = tracker.published.load_full();
    let (now, inventory) = (clock.now(), registry.inventory());
    let known = Workload::new(tracker, &published, &inventory, now);
    let state = match (known.spec, known.ready) {
        (_, Some(ready)) if ready > 0 => WakeState::Ready,
        (Some(spec), _) if spec > 0 => WakeState::Starting,
        (_, _) => WakeState::Waking,
    };
    if state == WakeState::Ready {
        wakes.served(key);
    }
    let Requested { since, begins } = wakes.request(key, now);
    // Fifty requests are one wake, and one line; what serves is not woken.
    if begins && state != WakeState::Ready {
        tracing::info!(workload = %key, state = state.label(), "wake requested");
    }
    Ok(Wake::new(key, state, published.decision.as_deref(), since, now))
}

impl Wake {
    /// What is known at `now` of a wake that began at `first_at`.
    #[must_use]
    pub fn new(
        key: &WorkloadKey,
        state: WakeState,
        decision: Option<&Decision>,
        first_at: Moment,
        now: Moment,
    ) -> Wake {
        let (elapsed_ms, expected_ms) = match state {
            WakeState::Ready => (0, Some(0)),
            WakeState::Waking | WakeState::Starting => {
                let elapsed_ms = now.millis_since(first_at);
                let expected_ms = decision.map(|decision| {
                    let learned = decision.inputs.cold_start_ms.saturating_sub(elapsed_ms);
                    decision.next.wake_eta_ms.unwrap_or(learned)
                });
                (elapsed_ms, expected_ms)
            }
        };
        let (namespace, name) = (key.namespace.to_string(), key.name.to_string());
        Wake { namespace, name, state, elapsed_ms, expected_ms }
    }

    /// Whole seconds for a Retry-After header, 1..3,600; `None` when nothing has to be waited for.
    #[must_use]
    pub fn retry_after_s(&self) -> Option<u64> {
        match self.state {
            WakeState::Ready => None,
            // Past its time or unknown: ask again soon, not at once.
            WakeState::Waking | WakeState::Starting => {
                Some(self.expected_ms.unwrap_or(0).div_ceil(1_000).clamp(1, 3_600))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifty_requests_are_one_wake_and_the_first_one_dates_it() {
        let wakes = WakeRequests::default();
        let key = WorkloadKey::new("prod", "llm");
        assert_eq!(wakes.last(&key), None);
        let wake = |since, begins| Requested { since: Moment(since), begins };
        assert_eq!(wakes.request(&key, Moment(1_000)), wake(1_000, true));
        // The second one comes within the first one's millisecond.
        for millis in 0..49 {
            assert_eq!(wakes.request(&key, Moment(1_000 + millis)), wake(1_000, false));
        }
        assert_eq!(wakes.last(&key), Some(Moment(1_048)));
        // It serves, sleeps again, and is woken again.
        wakes.served(&key);
        assert_eq!(wakes.request(&key, Moment(5_000)), wake(5_000, true));
        assert_eq!(wakes.request(&key, Moment(5_000)), wake(5_000, false));
        assert_eq!(wakes.request(&key, Moment(5_100)), wake(5_000, false));
        assert_eq!(wakes.last(&WorkloadKey::new("prod", "other")), None);
    }

    #[test]
    fn requests_are_forgotten_after_two_hours() {
        let wakes = WakeRequests::default();
        let (old, new) = (WorkloadKey::new("a", "old"), WorkloadKey::new("a", "new"));
        wakes.request(&old, Moment(0));
        wakes.request(&new, Moment(7_199_999));
        assert_eq!(wakes.last(&old), Some(Moment(0)));
        wakes.request(&new, Moment(7_200_000));
        assert_eq!(wakes.last(&old), None);
        // A wake that goes unanswered for so long begins anew.
        let anew = Requested { since: Moment(7_200_001), begins: true };
        assert_eq!(wakes.request(&old, Moment(7_200_001)), anew);
    }

    #[tokio::test]
    async fn a_request_wakes_the_waiter_even_if_it_came_first() {
        let wakes = WakeRequests::default();
        wakes.request(&WorkloadKey::new("prod", "llm"), Moment(0));
        let waited = tokio::time::timeout(std::time::Duration::from_secs(10), wakes.arrived());
        waited.await.unwrap();
    }

    #[test]
    fn retry_after_is_whole_seconds_within_an_hour() {
        let key = WorkloadKey::new("prod", "llm");
        let mut wake = Wake::new(&key, WakeState::Waking, None, Moment(0), Moment(2_500));
        assert_eq!(
            (wake.elapsed_ms, wake.expected_ms, wake.retry_after_s()),
            (2_500, None, Some(1))
        );
        for (expected_ms, retry_after_s) in [(0, 1), (1_001, 2), (90_000, 90), (u64::MAX, 3_600)] {
            wake.expected_ms = Some(expected_ms);
            assert_eq!(wake.retry_after_s(), Some(retry_after_s), "{expected_ms} ms");
        }
        let ready = Wake::new(&key, WakeState::Ready, None, Moment(0), Moment(2_500));
        assert_eq!((ready.elapsed_ms, ready.retry_after_s()), (0, None));
    }
}
