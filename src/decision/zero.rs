//! Rule 7: the warm floor, and zero after long idleness.
//!
//! Must not wake anything, and never lets the last replica go on a doubt.

use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use super::supply::Supply;
use super::{Moment, Observation, Reason, Rule, Spec, Vote, WakeReading, ZeroAfter};

/// Gaps before a workload's own history has a say.
const MIN_GAPS: u32 = 5;
/// Gaps shorter than this are pauses, not idleness.
const SHORTEST_GAP_MS: u64 = 60_000;
/// Buckets of gap length, each twice the one before, from a minute on: the last is over a day.
const BUCKETS: usize = 12;
/// Sleeping pays from this many cold starts of further idleness on: a cold start is paid for and
/// serves nobody, and makes users wait.
const COLD_STARTS_TO_PAY: u64 = 10;

/// Idle gaps, the present and the past ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ZeroState {
    idle_since: Option<Moment>,
    gaps: [u16; BUCKETS],
    /// When zero was last decided.
    slept_at: Option<Moment>,
}

impl ZeroState {
    /// When zero was last decided, while it stands.
    pub(super) fn slept_at(&self) -> Option<Moment> {
        self.slept_at
    }

    /// Notes whether there was work; `None` when that cannot be told.
    pub(super) fn note(&mut self, worked: Option<bool>, now: Moment) {
        match worked {
            Some(false) => {
                self.idle_since.get_or_insert(now);
            }
            Some(true) => {
                if let Some(since) = self.idle_since.take() {
                    self.ended(now.millis_since(since));
                }
            }
            None => {}
        }
    }

    fn ended(&mut self, gap_ms: u64) {
        if gap_ms < SHORTEST_GAP_MS {
            return;
        }
        let doublings = (gap_ms / SHORTEST_GAP_MS).ilog2();
        let index = usize::try_from(doublings).unwrap_or(BUCKETS).min(BUCKETS - 1);
        if let Some(count) = self.gaps.get_mut(index) {
            *count = count.saturating_add(1);
        }
    }

    /// Remembers the decision of this tick.
    pub(super) fn decided(&mut self, want: u32, now: Moment) {
        if want > 0 {
            self.slept_at = None;
        } else {
            self.slept_at.get_or_insert(now);
        }
    }

    /// Idleness still to be expected after `idle_ms`, by the workload's own gaps; `None` with
    /// too few of them, or when this gap is longer than all.
    fn expected_ms(&self, idle_ms: u64) -> Option<u64> {
        let total: u32 = self.gaps.iter().map(|count| u32::from(*count)).sum();
        if total < MIN_GAPS {
            return None;
        }
        let (mut n, mut sum_ms) = (0_u64, 0_u64);
        let mut from_ms = SHORTEST_GAP_MS;
        for count in self.gaps {
            let middle_ms = from_ms + from_ms / 2;
            if middle_ms > idle_ms {
                n += u64::from(count);
                sum_ms += u64::from(count) * (middle_ms - idle_ms);
            }
            from_ms *= 2;
        }
        sum_ms.checked_div(n)
    }

    /// The floor under everything: 0 where the last one awake may go, and those asleep with it, else the
    /// warm minimum.
    pub(super) fn floor(
        &self,
        spec: &Spec,
        observation: &Observation,
        supply: &Supply,
        awake: &Supply,
        evidence: &Evidence,
    ) -> (u32, [Vote; 2]) {
        let warm = spec.min.max(observation.schedule_floor);
        let warm_reason = Reason::WarmFloor { min: spec.min, schedule: observation.schedule_floor };
        let warm_vote = Vote { rule: Rule::Warm, want: Some(warm), reason: warm_reason };
        let zero = |want, reason| Vote { rule: Rule::Zero, want, reason };
        if warm > 0 {
            return (warm, [warm_vote, zero(None, Reason::Silent)]);
        }
        let (floor, reason) = self.zero(spec, observation, supply, awake, evidence);
        (floor, [warm_vote, zero(Some(floor), reason)])
    }

    fn zero(
        &self,
        spec: &Spec,
        observation: &Observation,
        supply: &Supply,
        awake: &Supply,
        evidence: &Evidence,
    ) -> (u32, Reason) {
        let idle_ms = evidence.idle_ms();
        if !spec.has_wake_source {
            return (supply.ordered.min(1), Reason::NoWakeSource);
        }
        if supply.ordered == 0 {
            return (0, Reason::Asleep { idle_ms });
        }
        let after_ms = match spec.zero_after {
            ZeroAfter::Never => return (1, Reason::Silent),
            ZeroAfter::After { millis } => millis,
        };
        if let Some(WakeReading::Unknown { why }) = observation.wake.source {
            return (1, Reason::WakeUnknown { why });
        }
        if idle_ms < after_ms || !evidence.is_covered() || awake.base > 1 {
            return (1, Reason::Idle { idle_ms, after_ms });
        }
        let needed_ms = COLD_STARTS_TO_PAY * supply.cold_start_ms;
        match self.expected_ms(idle_ms) {
            Some(expected_ms) if expected_ms < needed_ms && self.slept_at.is_none() => {
                (1, Reason::GapsTooShort { expected_ms, needed_ms })
            }
            Some(_) | None => (0, Reason::Asleep { idle_ms }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_gaps(minutes: &[u64]) -> ZeroState {
        let mut zero = ZeroState::default();
        let mut now = Moment(0);
        for minutes in minutes {
            zero.note(Some(false), now);
            now = now.plus_millis(minutes * 60_000);
            zero.note(Some(true), now);
        }
        zero
    }

    #[test]
    fn fewer_than_five_gaps_say_nothing() {
        assert_eq!(after_gaps(&[120, 120, 120, 120]).expected_ms(0), None);
    }

    #[test]
    fn pauses_below_a_minute_are_no_gaps() {
        let mut zero = ZeroState::default();
        zero.note(Some(false), Moment(0));
        zero.note(Some(true), Moment(59_999));
        assert_eq!(zero.gaps, [0; BUCKETS]);
    }

    #[test]
    fn the_idleness_to_come_is_the_mean_rest_of_the_longer_gaps() {
        // 120 min lie in the bucket from 64 to 128 min, whose middle is 96 min; 20 min in the one
        // from 16 to 32 min with its middle at 24 min.
        let zero = after_gaps(&[120, 120, 120, 20, 20]);
        // After 60 min only the three long ones remain: 96 - 60 = 36 min.
        assert_eq!(zero.expected_ms(60 * 60_000), Some(36 * 60_000));
        // At 0: (3 · 96 + 2 · 24) / 5 = 67.2 min.
        assert_eq!(zero.expected_ms(0), Some(4_032_000));
        // Longer than all: nothing speaks against sleeping.
        assert_eq!(zero.expected_ms(100 * 60_000), None);
    }

    #[test]
    fn what_cannot_be_told_is_neither_work_nor_idleness() {
        let mut zero = ZeroState::default();
        zero.note(Some(false), Moment(0));
        zero.note(None, Moment(600_000));
        assert_eq!(zero.idle_since, Some(Moment(0)));
    }
}
