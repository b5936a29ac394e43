//! What each trigger's decisions have learned: one state a trigger, shared with whoever saves it.
//!
//! Does no IO; `statedir` reads and writes files.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::decision::{Decision, Moment, Observation, Spec, State, decide};
use crate::inventory::Inventory;
use crate::registry::{Tracker, TrackerKey};

/// How long the state of a trigger that is gone is kept. A file that was cut short, or an object that
/// was deleted and made again, is mended within minutes; its count must not begin anew.
const KEPT_MS: u64 = 600_000;

/// Most states that are kept so: as many as the process is built for.
const MAX_KEPT: usize = 10_000;

/// All states, by trigger.
#[derive(Debug, Default)]
pub struct States {
    cells: Mutex<HashMap<TrackerKey, Arc<Cell>>>,
    /// Those of triggers that are gone, and since when.
    gone: Mutex<HashMap<TrackerKey, (Moment, Arc<Cell>)>>,
}

impl States {
    /// The states of an earlier run, which hold every count until a whole hold of evidence stands.
    #[must_use]
    pub fn restored(saved: impl IntoIterator<Item = (TrackerKey, State)>) -> States {
        let cells = saved
            .into_iter()
            .map(|(key, state)| (key, Arc::new(Cell(Mutex::new(state.restored())))))
            .collect();
        States { cells: Mutex::new(cells), gone: Mutex::default() }
    }

    /// A copy of a trigger's state, where it has one.
    #[must_use]
    pub fn get(&self, key: &TrackerKey) -> Option<State> {
        lock(&self.cells).get(key).map(|cell| lock(&cell.0).clone())
    }

    /// Takes a state from elsewhere; a tick that runs goes on from it.
    pub fn put(&self, key: TrackerKey, state: State) {
        *lock(&lock(&self.cells).entry(key).or_default().0) = state;
    }

    /// Takes a state of an earlier run where nothing has been decided in this one. What has been is
    /// newer, and a count that was raised since must not fall back.
    pub fn fill(&self, key: TrackerKey, saved: State) -> bool {
        let mut cells = lock(&self.cells);
        let mut state = lock(&cells.entry(key).or_default().0);
        let is_free = state.want().is_none();
        if is_free {
            *state = saved.restored();
        }
        is_free
    }

    /// Forgets the states of all other triggers.
    pub fn keep_only(&self, is_kept: impl Fn(&TrackerKey) -> bool) {
        lock(&self.cells).retain(|key, _| is_kept(key));
    }

    /// Marks a gap as long as a restart's: every count is held until a whole hold of evidence stands.
    pub fn restart(&self) {
        for cell in lock(&self.cells).values() {
            let mut state = lock(&cell.0);
            *state = std::mem::take(&mut *state).restored();
        }
    }

    /// The state of a trigger: its own, or what the trigger that it replaces has learned, or what it
    /// had learned before it was gone for a while, which was a gap as long as a restart's.
    pub(super) fn of(&self, tracker: &Tracker, now: Moment) -> Arc<Cell> {
        let mut cells = lock(&self.cells);
        let before = lock(&self.gone).remove(&tracker.key);
        if let Some(own) = cells.get(&tracker.key) {
            return Arc::clone(own);
        }
        let inherited = tracker.predecessor.as_deref().and_then(|key| cells.get(key));
        let inherited = inherited.map(|cell| lock(&cell.0).clone());
        let state = inherited.unwrap_or_else(|| match before {
            Some((since, cell)) if is_kept(since, now) => lock(&cell.0).clone().restored(),
            Some(_) | None => State::default(),
        });
        let cell = Arc::new(Cell(Mutex::new(state)));
        cells.insert(tracker.key.clone(), Arc::clone(&cell));
        cell
    }

    /// Puts away the state of a trigger that is no longer tracked.
    pub(super) fn put_away(&self, key: &TrackerKey, now: Moment) {
        if let Some(cell) = lock(&self.cells).remove(key) {
            self.keep(key.clone(), cell, now);
        }
    }

    fn keep(&self, key: TrackerKey, cell: Arc<Cell>, now: Moment) {
        let mut gone = lock(&self.gone);
        if gone.len() < MAX_KEPT {
            gone.insert(key, (now, cell));
        }
    }

    /// Forgets what nobody has come back for. To be called about once a minute.
    pub(super) fn forget_gone(&self, now: Moment) {
        lock(&self.gone).retain(|_, (since, _)| is_kept(*since, now));
    }

    /// A copy of every state, to be saved. Puts away those of workloads that are no more.
    #[must_use]
    pub fn snapshot(&self, inventory: &Inventory, now: Moment) -> Vec<(TrackerKey, State)> {
        let mut cells = lock(&self.cells);
        let is_gone = |key: &TrackerKey| {
            let key = &key.workload;
            !inventory.workloads.contains_key(key) && inventory.knows(&key.namespace)
        };
        for (key, cell) in cells.extract_if(|key, _| is_gone(key)) {
            self.keep(key, cell, now);
        }
        cells.iter().map(|(key, cell)| (key.clone(), lock(&cell.0).clone())).collect()
    }
}

/// One trigger's state. Its lock is held for the microseconds of a decision or a copy.
#[derive(Debug, Default)]
pub(super) struct Cell(Mutex<State>);

/// A decision, and the state that it was made from if that was asked for.
pub(super) struct Decided {
    pub(super) decision: Decision,
    pub(super) before: Option<State>,
}

impl Cell {
    /// Decides and keeps the new state.
    pub(super) fn decide(
        &self,
        keep_before: bool,
        spec: &Spec,
        observation: &Observation,
        now: Moment,
    ) -> Decided {
        let mut state = lock(&self.0);
        let before = keep_before.then(|| state.clone());
        // A panic in the decision leaves the default: a new start, which moves nothing down.
        let (decision, after) = decide(spec, std::mem::take(&mut state), observation, now);
        *state = after;
        Decided { decision, before }
    }
}

fn is_kept(since: Moment, now: Moment) -> bool {
    now.millis_since(since) < KEPT_MS
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
