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
    /// The count that has as many that stay as there were.
    floor: u32,
    /// When their number last rose.
    since: Option<Moment>,
}

impl LeavingState {
    /// Nothing leaves.
    pub(super) fn is_idle(&self) -> bool {
        *self == LeavingState::default()
    }

    /// Replicas that must be ordered while `leaving` of them are about to go; 0 without such.
    pub(super) fn floor(&mut self, leaving: u32, supply: &Supply, now: Moment) -> u32 {
        if leaving > self.count {
            self.floor = self.floor.max(supply.ordered).saturating_add(leaving - self.count);
            self.since = Some(now);
        } else {
            self.floor = self.floor.saturating_sub(self.count - leaving);
        }
        self.count = leaving;
        let waits = self.since.is_some_and(|since| now.millis_since(since) < PATIENCE_MS);
        if leaving == 0 || !waits {
            self.floor = 0;
        }
        supply.orderable(self.floor)
    }
}
