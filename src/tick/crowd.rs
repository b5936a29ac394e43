//! The log lines about single workloads: each at its own level while they are few; of a crowd the
//! first few, one line with the count of the others, and those at debug.
//!
//! Must not drop a line without counting it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing::{debug, info, warn};

use crate::decision::{Decision, Health};
use crate::inventory::Workload;
use crate::registry::Tracker;
use crate::trigger::Context;

/// How long a crowd is counted before it is told: the 10,000 that start together do so in 5 s.
pub(super) const WINDOW: Duration = Duration::from_secs(5);
/// Lines about single workloads in this time: what still fits on a screen.
const MOST_SINGLE: u32 = 20;

/// What is told of single workloads, counted for one window.
#[derive(Debug, Default)]
pub(super) struct Crowd(Mutex<Counts>);

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Lines told one by one.
    single: u32,
    /// Lines beyond, by what they say.
    wanted_count: u64,
    degraded: u64,
    whole_again: u64,
    keys_without_effect: u64,
}

/// Writes a line at its level, or at debug where it has been counted as one of a crowd.
macro_rules! single {
    ($level:ident, $crowd:expr, $count:ident, $($line:tt)*) => {
        if $crowd.is_single(|counts| &mut counts.$count) {
            $level!($($line)*);
        } else {
            debug!($($line)*);
        }
    };
}

impl Crowd {
    /// Keeps what has no effect for those who ask, and logs it when it changes: the keys alone,
    /// since values of metadata are logged nowhere.
    pub(super) fn note_remarks(
        &self,
        tracker: &Tracker,
        workload: &Workload,
        context: Context<'_>,
    ) {
        let remarks = tracker.policy.remarks(workload, context);
        let noted = tracker.remarks.load();
        if noted.as_ref().map_or(&[][..], |noted| noted) == remarks {
            return;
        }
        if !remarks.is_empty() {
            let keys: Vec<_> = remarks.iter().map(|remark| remark.key).collect();
            let workload = &workload.key;
            single!(
                warn, self, keys_without_effect,
                %workload, ?keys, "trigger keys without effect: see `explain`"
            );
        }
        tracker.remarks.store((!remarks.is_empty()).then(|| Arc::new(remarks)));
    }

    /// Logs each change that an operator would want to find.
    pub(super) fn tell(&self, tracker: &Tracker, previous: Option<&Decision>, decision: &Decision) {
        let workload = &tracker.key.workload;
        let was = previous.and_then(Decision::wanted);
        if was != decision.wanted() {
            let (want, rule) = (decision.wanted(), decision.binding.label());
            single!(info, self, wanted_count, %workload, was, want, rule, "wanted count");
        }
        let state = |decision: &Decision| matches!(decision.health, Health::Degraded { .. });
        match (previous.is_some_and(state), decision.health) {
            (false, Health::Degraded { why, answered, expected, .. }) => {
                let why = why.label();
                single!(
                    info, self, degraded,
                    %workload, why, answered, expected, "degraded: the count is held"
                );
            }
            (true, Health::Ok) => {
                single!(info, self, whole_again, %workload, "inputs are whole again");
            }
            (true | false, _) => {}
        }
    }

    /// Ends a window: tells what was only counted.
    pub(super) fn turn(&self) {
        let counts = self.take();
        let Counts { single, wanted_count, degraded, whole_again, keys_without_effect } = counts;
        if wanted_count + degraded + whole_again + keys_without_effect > 0 {
            info!(
                single,
                wanted_count,
                degraded,
                whole_again,
                keys_without_effect,
                "more about workloads than is told one by one: the log has each at debug"
            );
        }
    }

    /// Whether a line is told by itself; else it counts.
    fn is_single(&self, count: fn(&mut Counts) -> &mut u64) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_single = counts.single < MOST_SINGLE;
        if is_single {
            counts.single += 1;
        } else {
            *count(&mut counts) += 1;
        }
        is_single
    }

    fn take(&self) -> Counts {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g6_of_a_crowd_the_first_are_told_and_the_others_counted_until_the_window_ends() {
        let crowd = Crowd::default();
        let told = (0..10_000).filter(|_| crowd.is_single(|counts| &mut counts.wanted_count));
        assert_eq!(told.count(), 20);
        assert!(!crowd.is_single(|counts| &mut counts.degraded));
        let expected = Counts { single: 20, wanted_count: 9_980, degraded: 1, ..Counts::default() };
        assert_eq!(crowd.take(), expected);
        assert!(crowd.is_single(|counts| &mut counts.degraded));
        assert_eq!(crowd.take(), Counts { single: 1, ..Counts::default() });
    }
}
