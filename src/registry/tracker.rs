//! One trigger: its policy, what is answered for it now, and when KEDA last asked.
//!
//! The tick publishes, calls read; neither waits for the other.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::Notify;

use super::key::TrackerKey;
use super::{Caller, Rpc};
use crate::clock::Clock;
use crate::decision::{Answer, Decision, Health, Moment, Observation, Spec, Unavailable};
use crate::inventory::Workload;
use crate::trigger::{Policy, Remark};

/// What is answered for one trigger: immutable, replaced whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// 0 before the first decision, then rising.
    pub version: u64,
    /// When it was published.
    pub at: Moment,
    /// The answer to GetMetrics and IsActive alike.
    pub answer: Answer,
    /// The decision behind it; `None` at version 0.
    pub decision: Option<Arc<Decision>>,
    /// The policy that it was decided under; `None` at version 0.
    pub spec: Option<Arc<Spec>>,
}

impl Published {
    /// Whether the inputs were whole.
    #[must_use]
    pub fn health(&self) -> Health {
        self.decision.as_ref().map_or(Health::NotYetObserved, |decision| decision.health)
    }

    /// What is known before any decision: the present count, and activity if that is above 0. A
    /// running target is never told to stop for lack of data, and one at 0 is not woken.
    fn undecided(workload: &Workload, at: Moment) -> Published {
        let answer = match workload.replicas.spec {
            Some(spec) => {
                let want = spec.clamp(workload.min, workload.max.max(workload.min));
                Answer::Value { want, active: want > 0 }
            }
            None => Answer::Unavailable { why: Unavailable::NothingKnown },
        };
        Published { version: 0, at, answer, decision: None, spec: None }
    }
}

/// One tracked trigger.
#[derive(Debug)]
pub struct Tracker {
    /// Its name.
    pub key: TrackerKey,
    /// Its policy.
    pub policy: Arc<Policy>,
    /// The metadata of the call that brought it; `None` where the inventory lists it.
    pub brought_by: Option<Arc<Vec<(String, String)>>>,
    /// The trigger that this one replaced, whose state it shall take over.
    pub predecessor: Option<Box<TrackerKey>>,
    /// What is answered now. Written by [`Tracker::publish`] only.
    pub published: ArcSwap<Published>,
    /// What the last tick saw, for the API and the metrics; `None` before the first tick.
    pub observed: ArcSwapOption<Observation>,
    /// What of the policy has no effect, for the API; `None` if there is nothing to say.
    pub remarks: ArcSwapOption<Vec<Remark>>,
    clock: Clock,
    created_at: Moment,
    listed: AtomicBool,
    // When the inventory ceased to list it; `NEVER` if it never did.
    unlisted_at: AtomicI64,
    retired: AtomicBool,
    // What the inventory lists in its place, while it is edited away.
    successor: Mutex<Weak<Tracker>>,
    n_streams: AtomicU32,
    // Rising edges of activity so far, times 2, plus 1 while active: one word, so that a stream
    // that opens can tell what it has seen from what is still to come.
    activity: AtomicU64,
    changed: Notify,
    // Milliseconds since the epoch by method and caller; `NEVER` before the first call.
    asked_at: [[AtomicI64; Caller::ALL.len()]; Rpc::ALL.len()],
}

const NEVER: i64 = i64::MIN;

/// How long a trigger that was edited away is kept without a call: a minute covers any lag between
/// the watches of KEDA and of the inventory.
const EDITED_MS: u64 = 60_000;

impl Tracker {
    pub(super) fn new(
        key: TrackerKey,
        policy: Arc<Policy>,
        brought_by: Option<Arc<Vec<(String, String)>>>,
        predecessor: Option<Box<TrackerKey>>,
        clock: Clock,
    ) -> Tracker {
        let created_at = clock.now();
        let unknown = Published {
            version: 0,
            at: created_at,
            answer: Answer::Unavailable { why: Unavailable::NothingKnown },
            decision: None,
            spec: None,
        };
        Tracker {
            key,
            policy,
            brought_by,
            predecessor,
            published: ArcSwap::from_pointee(unknown),
            observed: ArcSwapOption::empty(),
            remarks: ArcSwapOption::empty(),
            clock,
            created_at,
            listed: AtomicBool::new(false),
            unlisted_at: AtomicI64::new(NEVER),
            retired: AtomicBool::new(false),
            successor: Mutex::default(),
            n_streams: AtomicU32::new(0),
            activity: AtomicU64::new(0),
            changed: Notify::new(),
            asked_at: std::array::from_fn(|_| std::array::from_fn(|_| AtomicI64::new(NEVER))),
        }
    }

    /// Publishes an answer; its version must be above 0. If it turns active, every open stream is
    /// told at once.
    pub fn publish(&self, published: Published) {
        let answer = published.answer;
        self.published.store(Arc::new(published));
        self.note_activity(answer);
    }

    /// Milliseconds since this method was last called in this role; `None` before the first call.
    #[must_use]
    pub fn asked(&self, rpc: Rpc, caller: Caller) -> Option<u64> {
        let at = self.asked_cell(rpc, caller).load(Ordering::Relaxed);
        (at != NEVER).then(|| self.clock.now().millis_since(Moment(at)))
    }

    /// Open StreamIsActive streams.
    #[must_use]
    pub fn n_streams(&self) -> u32 {
        self.n_streams.load(Ordering::Relaxed)
    }

    /// Starts to follow the activity, for one StreamIsActive.
    #[must_use]
    pub fn open_stream(self: Arc<Self>) -> OpenStream {
        self.n_streams.fetch_add(1, Ordering::Relaxed);
        OpenStream { tracker: self, edges_told: None }
    }

    pub(super) fn note_call(&self, rpc: Rpc, caller: Caller) {
        self.asked_cell(rpc, caller).store(self.clock.now().0, Ordering::Relaxed);
    }

    /// Takes the present count of the workload as the answer until there is a decision.
    pub(super) fn follow(&self, workload: &Workload, now: Moment) {
        let undecided = Published::undecided(workload, now);
        let current = self.published.load();
        if current.version > 0 || current.answer == undecided.answer {
            return;
        }
        // A decision that is published meanwhile stays.
        let previous = self.published.compare_and_swap(&*current, Arc::new(undecided.clone()));
        if Arc::ptr_eq(&previous, &current) {
            self.note_activity(undecided.answer);
        }
    }

    pub(super) fn set_listed(&self, listed: bool, now: Moment) {
        if self.listed.swap(listed, Ordering::Relaxed) && !listed {
            self.unlisted_at.store(now.0, Ordering::Relaxed);
        }
    }

    /// Whether the inventory lists it: not one that only calls have brought, nor one that an edit has
    /// replaced and that goes once nobody asks for it.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.listed.load(Ordering::Relaxed)
    }

    /// Whether the inventory has listed it and lists it no longer.
    pub(super) fn is_edited_away(&self) -> bool {
        !self.is_listed() && self.unlisted_at.load(Ordering::Relaxed) != NEVER
    }

    /// Names what has replaced it, if anything has; its open streams move there.
    pub(super) fn set_successor(&self, successor: Option<&Arc<Tracker>>) {
        let weak = successor.map(Arc::downgrade).unwrap_or_default();
        *self.successor.lock().unwrap_or_else(PoisonError::into_inner) = weak;
        self.changed.notify_waiters();
    }

    fn successor(&self) -> Option<Arc<Tracker>> {
        if !self.is_edited_away() {
            return None;
        }
        self.successor.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// Rising edges so far, and whether it is active.
    fn activity(&self) -> (u64, bool) {
        let word = self.activity.load(Ordering::Acquire);
        (word >> 1, word & 1 == 1)
    }

    /// Whether nobody needs it any more. What only calls bring is kept for `idle_ms` after the
    /// last one, and while a stream is open. What the inventory listed and lists no longer has been
    /// edited away, which KEDA sees within seconds; its streams have moved to what replaced it.
    pub(super) fn is_idle(&self, now: Moment, idle_ms: u64) -> bool {
        if self.is_listed() {
            return false;
        }
        let unlisted_at = self.unlisted_at.load(Ordering::Relaxed);
        if unlisted_at == NEVER {
            self.n_streams() == 0 && now.millis_since(self.last_used()) >= idle_ms
        } else {
            now.millis_since(self.last_used().max(Moment(unlisted_at))) >= EDITED_MS
        }
    }

    /// When it was last asked for, or made.
    pub(super) fn last_used(&self) -> Moment {
        let asked = self.asked_at.iter().flatten().map(|at| at.load(Ordering::Relaxed)).max();
        self.created_at.max(Moment(asked.unwrap_or(NEVER)))
    }

    /// Marks it as no longer tracked: its streams end, so that KEDA opens new ones.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Whether it is no longer tracked; another of the same name may be.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    fn asked_cell(&self, rpc: Rpc, caller: Caller) -> &AtomicI64 {
        // In the order of `Rpc::ALL` and `Caller::ALL`, whose lengths are the array's.
        &self.asked_at[rpc as usize][caller as usize]
    }

    /// Counts a rising edge. An answer without a value leaves the activity as it was: an outage is
    /// no edge, in either direction.
    fn note_activity(&self, answer: Answer) {
        let Answer::Value { active, .. } = answer else { return };
        let update = |word: u64| match (word & 1 == 1, active) {
            (false, true) => Some(word + 3),
            (true, false) => Some(word - 1),
            (false, false) | (true, true) => None,
        };
        let changed = self.activity.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
        if changed.is_ok() && active {
            self.changed.notify_waiters();
        }
    }
}

/// One stream's view of the activity.
#[derive(Debug)]
pub struct OpenStream {
    tracker: Arc<Tracker>,
    // Rising edges that this stream has told or found; `None` before it has looked at all.
    edges_told: Option<u64>,
}

impl OpenStream {
    /// Whether `true` is to be sent now: on opening if active, later once for each rising edge
    /// that still holds.
    pub fn take_edge(&mut self) -> bool {
        self.move_on();
        let (edges, active) = self.tracker.activity();
        active && self.edges_told.replace(edges) != Some(edges)
    }

    /// Waits until there may be an edge to take; says whether the trigger is no longer tracked, so
    /// that the stream shall end.
    pub async fn changed(&self) -> bool {
        // Made before looking: it is woken by any change after this line.
        let changed = self.tracker.changed.notified();
        if !self.has_edge() && !self.is_over() && self.tracker.successor().is_none() {
            changed.await;
        }
        self.is_over()
    }

    /// Follows the trigger that has replaced the present one. Activity that goes on was told.
    fn move_on(&mut self) {
        let Some(successor) = self.tracker.successor() else { return };
        let (edges, active) = self.tracker.activity();
        let was_told = active && self.edges_told == Some(edges);
        let (edges, is_active) = successor.activity();
        self.edges_told = (was_told && is_active).then_some(edges);
        successor.n_streams.fetch_add(1, Ordering::Relaxed);
        self.tracker.n_streams.fetch_sub(1, Ordering::Relaxed);
        self.tracker = successor;
    }

    fn is_over(&self) -> bool {
        self.tracker.is_retired() && self.tracker.successor().is_none()
    }

    fn has_edge(&self) -> bool {
        let (edges, active) = self.tracker.activity();
        active && self.edges_told != Some(edges)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.tracker.n_streams.fetch_sub(1, Ordering::Relaxed);
    }
}
