//! What each trigger's decisions have learned: one state a trigger, shared with whoever saves it.
//!
//! Does no IO; `statedir` reads and writes files.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::declog;
use crate::decision::{Decision, Moment, Observation, Spec, State, decide};
use crate::registry::{Tracker, TrackerKey};

/// All states, by trigger.
#[derive(Debug, Default)]
pub struct States {
    cells: Mutex<HashMap<TrackerKey, Arc<Cell>>>,
}

impl States {
    /// The states of an earlier run, which hold every count until a whole hold of evidence stands.
    #[must_use]
    pub fn restored(saved: impl IntoIterator<Item = (TrackerKey, State)>) -> States {
        let cells = saved
            .into_iter()
            .map(|(key, state)| (key, Arc::new(Cell(Mutex::new(state.restored())))))
            .collect();
        States { cells: Mutex::new(cells) }
    }

    /// The state of a trigger: its own, or what the trigger that it replaces has learned.
    pub(super) fn of(&self, tracker: &Tracker) -> Arc<Cell> {
        let mut cells = lock(&self.cells);
        if let Some(own) = cells.get(&tracker.key) {
            return Arc::clone(own);
        }
        let inherited = tracker.predecessor.as_ref().and_then(|key| cells.get(key));
        let state = inherited.map(|cell| lock(&cell.0).clone()).unwrap_or_default();
        let cell = Arc::new(Cell(Mutex::new(state)));
        cells.insert(tracker.key.clone(), Arc::clone(&cell));
        cell
    }

    /// Drops the state of a trigger that is no longer tracked.
    pub(super) fn forget(&self, key: &TrackerKey) {
        lock(&self.cells).remove(key);
    }

    /// A copy of every state, to be saved.
    #[must_use]
    pub fn snapshot(&self) -> Vec<(TrackerKey, State)> {
        let cells = lock(&self.cells);
        cells.iter().map(|(key, cell)| (key.clone(), lock(&cell.0).clone())).collect()
    }
}

/// One trigger's state. Its lock is held for the microseconds of a decision or a copy.
#[derive(Debug)]
pub(super) struct Cell(Mutex<State>);

impl Cell {
    /// Decides, keeps the new state, and records the decision with all that it came from.
    pub(super) fn decide(
        &self,
        log: &declog::Log,
        key: &TrackerKey,
        spec: &Spec,
        observation: &Observation,
        now: Moment,
    ) -> Decision {
        let mut state = lock(&self.0);
        // Only a log needs the state before the decision; without one nothing is copied.
        let before = log.is_on().then(|| state.clone());
        let (decision, after) = decide(spec, std::mem::take(&mut state), observation, now);
        *state = after;
        drop(state);
        if let Some(before) = before {
            log.record(key, spec, before, observation, now, &decision);
        }
        decision
    }

    /// How long a start takes, as far as it is known, in milliseconds.
    pub(super) fn cold_start_ms(&self) -> u64 {
        lock(&self.0).cold_start_ms()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic in a decision leaves the default state: a new start, which moves nothing down.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
