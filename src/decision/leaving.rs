//! What is about to leave is ordered anew before it is gone: replicas on nodes that are told to go.
//!
//! Must not look at demand: whether they are needed afterwards is the evidence's business. An absolute
//! floor, so that the same replica is never replaced twice.

use serde::{Deserialize, Serialize};

use super::Moment;
use super::supply::Supply;

/// A replica that stays for longer does not leave: spot notices are of minutes (30 s on Google Cloud
/// and Azure, 2 min on AWS), a drain evicts within the grace of its pods, and a cordon may stand for days.
const PATIENCE_MS: u64 = 900_000;

/// What has been ordered for those that leave.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LeavingState {
    /// How many left at the last look.
    count: u32,
    /// Replicas ordered but for those that replace others; `None` while none of these stand.
    base: Option<u32>,
    /// The most that were ordered for those that leave, on top of `base`.
    top: u32,
    /// How many were ready at the last look, of those ordered then.
    ready: u32,
    ordered: u32,
    /// When who leaves last changed.
    since: Option<Moment>,
}

impl LeavingState {
    /// Nothing leaves.
    pub(super) fn is_idle(&self) -> bool {
        *self == LeavingState::default()
    }

    /// Replicas that must be ordered while `leaving` of them are about to go; 0 without such.
    ///
    /// What was ordered for one that has gone stands until evidence gives it back, and is the
    /// replacement of the next: nodes that are drained one by one want one more replica, not one each.
    /// What evidence has not given back by the time after which nothing leaves any more is needed.
    pub(super) fn floor(&mut self, leaving: u32, supply: &Supply, now: Moment) -> u32 {
        let ordered = supply.ordered;
        let base = match self.base {
            Some(base) if ordered <= self.top => base.min(ordered),
            // Others have ordered beyond that: all that stays is needed.
            Some(_) => ordered.saturating_sub(self.count),
            None => ordered,
        };
        // As many as before may be others: one has gone, and the next is told to go.
        let one_gone = leaving > 0 && ordered == self.ordered && supply.ready < self.ready;
        if leaving != self.count || one_gone {
            self.since = Some(now);
        }
        let waits = self.since.is_some_and(|since| now.millis_since(since) < PATIENCE_MS);
        if leaving == 0 && (ordered <= base || !waits) {
            *self = LeavingState::default();
            return supply.orderable(0);
        }
        let floor = base.saturating_add(leaving);
        (self.count, self.base, self.top) = (leaving, Some(base), self.top.max(floor).max(ordered));
        (self.ready, self.ordered) = (supply.ready, ordered);
        supply.orderable(if leaving > 0 && waits { floor } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_MS: i64 = 60_000;

    /// The floor in this minute, with so many ready of so many ordered.
    fn floor(state: &mut LeavingState, leaving: u32, ready: u32, ordered: u32, minute: i64) -> u32 {
        let starting = ordered - ready;
        let supply = Supply {
            ordered,
            base: ordered,
            ready,
            starting,
            trusted: starting,
            starting_for_ms: 0,
            hopeless: 0,
            cold_start_ms: 180_000,
        };
        state.floor(leaving, &supply, Moment(minute * MINUTE_MS))
    }

    #[test]
    fn a_replacement_that_has_come_to_be_needed_is_not_that_of_the_next_drain() {
        let mut state = LeavingState::default();
        assert_eq!(floor(&mut state, 1, 4, 4, 0), 5);
        assert_eq!(floor(&mut state, 0, 5, 5, 2), 0);
        let mut soon = state.clone();
        assert_eq!(floor(&mut soon, 1, 5, 5, 10), 5, "the next of a chain");
        assert_eq!(floor(&mut state, 0, 5, 5, 17), 0);
        assert!(state.is_idle());
        assert_eq!(floor(&mut state, 1, 5, 5, 3_000), 6);
    }

    #[test]
    fn each_drain_of_a_chain_has_its_time() {
        let mut state = LeavingState::default();
        assert_eq!(floor(&mut state, 3, 4, 4, 0), 7);
        assert_eq!(floor(&mut state, 2, 7, 7, 10), 6);
        assert_eq!(floor(&mut state, 1, 7, 7, 20), 5);
        assert_eq!(floor(&mut state, 1, 7, 7, 34), 5);
        // It has gone, and another is told to go.
        assert_eq!(floor(&mut state, 1, 6, 7, 34), 5);
        assert_eq!(floor(&mut state, 1, 7, 7, 48), 5);
        assert_eq!(floor(&mut state, 1, 7, 7, 49), 0, "a cordon that stands");
    }
}
