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
    /// When their number last rose.
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
    pub(super) fn floor(&mut self, leaving: u32, supply: &Supply, now: Moment) -> u32 {
        let ordered = supply.ordered;
        let base = match self.base {
            Some(base) if ordered <= self.top => base.min(ordered),
            // Others have ordered beyond that: all that stays is needed.
            Some(_) => ordered.saturating_sub(self.count),
            None => ordered,
        };
        if leaving == 0 && ordered <= base {
            *self = LeavingState::default();
            return supply.orderable(0);
        }
        if leaving > self.count {
            self.since = Some(now);
        }
        let floor = base.saturating_add(leaving);
        (self.count, self.base, self.top) = (leaving, Some(base), self.top.max(floor).max(ordered));
        let waits = self.since.is_some_and(|since| now.millis_since(since) < PATIENCE_MS);
        supply.orderable(if leaving > 0 && waits { floor } else { 0 })
    }
}
