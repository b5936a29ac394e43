//! Evidence time: for how long fewer replicas would have carried what was seen.
//!
//! Only fresh ticks add to it; gaps and clock jumps add nothing. Must not release anything.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Moment;

/// Fresh share of the ticks from which evidence counts as whole (DESIGN: coverage / 0.9).
pub(super) const COVERED: f64 = 0.9;
/// Evidence older than this is never asked for: twice the longest hold that is learned. One that is
/// given may be longer.
const MEMORY_MS: u64 = 7_200_000;
/// Turning points kept of one history; more are merged to the safe side.
const MAX_POINTS: usize = 32;
/// Needs are kept in steps of 1/64 replica, rounded up.
const NEED_STEP: f32 = 1.0 / 64.0;

/// The evidence clock, the fresh share of time, and two histories of need.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Evidence {
    /// Milliseconds of evidence so far.
    clock_ms: u64,
    /// Fresh time since the last sample that moved.
    pending_ms: u64,
    /// Sample time of the slowest replica at the last step.
    sample_at: Option<Moment>,
    /// The sources' own sample interval.
    interval_ms: u64,
    /// Fresh share of the expected ticks of the last hold, 0..1.
    coverage: f64,
    /// Replicas that were needed.
    pub(super) strict: Needs,
    /// Replicas that would have been needed at the capacity of a trial.
    pub(super) trial: Needs,
    /// Replicas that were wanted to work off a queue, beyond what the level needs.
    backlog: Needs,
    /// Evidence after which these are no longer needed.
    backlog_hold_ms: u64,
    /// Evidence clock when work was last seen, or could not be told.
    worked_ms: u64,
}

/// One tick for the evidence clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tick {
    /// Milliseconds since the last tick.
    pub(super) step_ms: u64,
    /// The interval between ticks.
    pub(super) tick_ms: u64,
    /// The hold, over which coverage is taken.
    pub(super) hold_ms: u64,
    /// Every expected input is fresh.
    pub(super) fresh: bool,
    /// Sample time of the slowest replica; `None` with no replica to sample.
    pub(super) oldest_at: Option<Moment>,
}

impl Evidence {
    /// Moves the clock on by one tick.
    pub(super) fn advance(&mut self, tick: &Tick) {
        if tick.step_ms == 0 {
            return;
        }
        if !tick.fresh {
            self.cover(0, self.pending_ms + tick.step_ms, tick.hold_ms);
            self.pending_ms = 0;
            return;
        }
        let elapsed_ms = self.pending_ms.saturating_add(tick.step_ms);
        let moved = match (self.sample_at, tick.oldest_at) {
            (Some(before), Some(at)) => at > before,
            (None, _) | (_, None) => true,
        };
        if !moved {
            // The same samples again: not new evidence, but none lost either.
            self.pending_ms = elapsed_ms;
            return;
        }
        if let (Some(before), Some(at)) = (self.sample_at, tick.oldest_at) {
            let usual_ms = self.interval_ms.max(tick.tick_ms);
            let interval_ms = at.millis_since(before).min(3 * usual_ms);
            self.interval_ms = (self.interval_ms * 7 + interval_ms) / 8;
        }
        self.sample_at = tick.oldest_at;
        self.pending_ms = 0;
        let gained_ms = elapsed_ms.min(2 * self.interval_ms.max(tick.tick_ms));
        self.clock_ms = self.clock_ms.saturating_add(gained_ms);
        self.cover(gained_ms, elapsed_ms, tick.hold_ms);
    }

    /// A fading share with a third of the hold as its memory: from nothing to 0.95 in a hold.
    fn cover(&mut self, gained_ms: u64, elapsed_ms: u64, hold_ms: u64) {
        let elapsed = elapsed_ms as f64;
        let share = gained_ms as f64 / elapsed;
        let memory = hold_ms as f64 / 3.0;
        self.coverage += elapsed / (elapsed + memory) * (share.min(1.0) - self.coverage);
    }

    /// Notes what this tick would have needed, as a mean over `span_ms`. Also a tick that adds no
    /// evidence may take it away.
    ///
    /// A mean takes its span to show that demand is back; evidence starts that much later, so
    /// that a dip shorter than the hold never passes for a whole one.
    pub(super) fn note(&mut self, strict: f64, trial: f64, span_ms: u64, hold_ms: u64) {
        let at_ms = self.clock_ms.saturating_add(span_ms);
        let memory_ms = hold_ms.saturating_mul(2).max(MEMORY_MS);
        self.strict.note(strict, at_ms, memory_ms);
        self.trial.note(trial, at_ms, memory_ms);
    }

    /// Notes what this tick wanted to work off a queue, and for how long that holds. Who came for a
    /// backlog is done when it is gone, and need not wait for a burst that comes back: the level holds
    /// what that takes.
    pub(super) fn note_backlog(&mut self, wanted: f64, hold_ms: u64) {
        self.backlog_hold_ms = hold_ms;
        self.backlog.note(wanted, self.clock_ms, hold_ms.max(MEMORY_MS));
    }

    /// Notes that there was work, or that it cannot be told.
    pub(super) fn worked(&mut self) {
        self.worked_ms = self.clock_ms;
    }

    /// Evidence in all, milliseconds.
    pub(super) fn clock_ms(&self) -> u64 {
        self.clock_ms
    }

    /// Evidence of no work at all, milliseconds.
    pub(super) fn idle_ms(&self) -> u64 {
        self.clock_ms - self.worked_ms
    }

    pub(super) fn coverage(&self) -> f64 {
        self.coverage
    }

    /// Whether enough ticks were fresh for evidence to count as whole.
    pub(super) fn is_covered(&self) -> bool {
        self.coverage >= COVERED
    }

    /// Evidence that `m` replicas suffice, milliseconds of a hold.
    pub(super) fn for_count(&self, m: u32, hold_ms: u64) -> u64 {
        let by_level_ms = self.clock_ms.saturating_sub(self.strict.last_above(m));
        let backlog_ms = self.clock_ms.saturating_sub(self.backlog.last_above(m));
        match self.backlog_hold_ms.saturating_sub(backlog_ms) {
            0 => by_level_ms,
            lacks_ms => by_level_ms.min(hold_ms.saturating_sub(lacks_ms)),
        }
    }

    /// Whether it was a backlog that kept more than `m` until now, and no longer the hold.
    pub(super) fn was_for_a_backlog(&self, m: u32, hold_ms: u64) -> bool {
        let backlog_ms = self.backlog.last_above(m);
        let kept_by_backlog_ms = backlog_ms.saturating_add(self.backlog_hold_ms);
        let kept_by_hold_ms = self.strict.last_above(m).saturating_add(hold_ms);
        backlog_ms > 0 && kept_by_backlog_ms > kept_by_hold_ms
    }

    /// Largest need of the last `span_ms` of evidence, if there is that much.
    pub(super) fn largest_need(&self, needs: &Needs, span_ms: u64) -> Option<f64> {
        let since_ms = self.clock_ms.checked_sub(span_ms)?;
        let backlog_since_ms = self.clock_ms.saturating_sub(self.backlog_hold_ms.min(span_ms));
        Some(needs.largest_since(since_ms).max(self.backlog.largest_since(backlog_since_ms)))
    }
}

/// The turning points of a history of needs: each larger than all after it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Needs {
    points: VecDeque<(f32, u64)>,
}

impl Needs {
    fn note(&mut self, need: f64, clock_ms: u64, memory_ms: u64) {
        let steps = super::number::compact(need.clamp(0.0, 1e6)) / NEED_STEP;
        let need = steps.ceil() * NEED_STEP;
        while self.points.back().is_some_and(|(smaller, _)| *smaller <= need) {
            self.points.pop_back();
        }
        self.points.push_back((need, clock_ms));
        while self.points.len() > 1
            && self.points.front().is_some_and(|(_, at)| at.saturating_add(memory_ms) < clock_ms)
        {
            self.points.pop_front();
        }
        if self.points.len() > MAX_POINTS {
            self.merge_the_closest();
        }
    }

    /// Makes one of the two neighbours that differ least, in need × time: the larger need, at the
    /// later time. What is lost is evidence for the needs between them, never a need.
    fn merge_the_closest(&mut self) {
        let apart = |index: &usize| {
            let ((larger, from), (smaller, to)) = (self.points[*index], self.points[index + 1]);
            f64::from(larger - smaller) * to.saturating_sub(from) as f64
        };
        let closest = (0..self.points.len().saturating_sub(1))
            .min_by(|one, other| apart(one).total_cmp(&apart(other)));
        if let Some(index) = closest
            && let Some((_, later)) = self.points.remove(index + 1)
        {
            self.points[index].1 = later;
        }
    }

    /// Clock of the last tick that needed more than `m`; 0 if none did.
    fn last_above(&self, m: u32) -> u64 {
        let above = |(need, _): &&(f32, u64)| f64::from(*need) > f64::from(m);
        self.points.iter().rev().find(above).map_or(0, |(_, at)| *at)
    }

    fn largest_since(&self, since_ms: u64) -> f64 {
        let recent = |(_, at): &&(f32, u64)| *at > since_ms;
        self.points.iter().find(recent).map_or(0.0, |(need, _)| f64::from(*need))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD_MS: u64 = 600_000;

    fn tick(step_ms: u64, fresh: bool, at: i64) -> Tick {
        Tick { step_ms, tick_ms: 5_000, hold_ms: HOLD_MS, fresh, oldest_at: Some(Moment(at)) }
    }

    #[test]
    fn only_fresh_ticks_add_evidence_and_each_at_most_two_ticks() {
        let mut evidence = Evidence::default();
        evidence.advance(&tick(5_000, true, 5_000));
        assert_eq!(evidence.clock_ms(), 5_000);
        evidence.advance(&tick(5_000, false, 10_000));
        assert_eq!(evidence.clock_ms(), 5_000);
        // An hour's jump adds two ticks.
        evidence.advance(&tick(3_600_000, true, 3_610_000));
        assert_eq!(evidence.clock_ms(), 15_000);
    }

    #[test]
    fn a_sample_that_has_not_moved_adds_nothing_until_it_moves() {
        let mut evidence = Evidence::default();
        evidence.advance(&tick(5_000, true, 5_000));
        evidence.advance(&tick(5_000, true, 5_000));
        evidence.advance(&tick(5_000, true, 5_000));
        assert_eq!(evidence.clock_ms(), 5_000);
        // Moved by 15 s, of which two ticks are believed until the interval is known.
        evidence.advance(&tick(5_000, true, 20_000));
        assert_eq!(evidence.clock_ms(), 15_000);
    }

    #[test]
    fn evidence_follows_a_sample_interval_longer_than_the_tick() {
        let mut evidence = Evidence::default();
        for step in 1..=720_i64 {
            // Samples every 30 s under ticks of 5 s.
            evidence.advance(&tick(5_000, true, step * 5_000 / 30_000 * 30_000));
        }
        // An hour; at the start a step of 30 s is cut to 10 s until the interval is learned.
        assert!((3_300_000..=3_600_000).contains(&evidence.clock_ms()), "{}", evidence.clock_ms());
        assert!(evidence.coverage() > 0.9, "{}", evidence.coverage());
    }

    #[test]
    fn evidence_for_a_count_starts_after_the_last_tick_that_needed_more() {
        let mut evidence = Evidence::default();
        for (step, need) in [(1, 3.0), (2, 1.5), (3, 2.5), (4, 0.5), (5, 0.5)] {
            evidence.advance(&tick(5_000, true, step * 5_000));
            evidence.note(need, need, 0, HOLD_MS);
        }
        // Need 2.5 was last seen at 15 s, 3.0 at 5 s; the clock stands at 25 s.
        assert_eq!(evidence.for_count(0, 600_000), 0);
        assert_eq!(evidence.for_count(1, 600_000), 10_000);
        assert_eq!(evidence.for_count(2, 600_000), 10_000);
        assert_eq!(evidence.for_count(3, 600_000), 25_000);
        assert_eq!(evidence.largest_need(&evidence.strict, 10_000), Some(0.5));
        assert_eq!(evidence.largest_need(&evidence.strict, 11_000), Some(2.5));
        assert_eq!(evidence.largest_need(&evidence.strict, 30_000), None);
    }

    #[test]
    fn a_backlog_counts_for_its_own_shorter_hold() {
        let mut evidence = Evidence::default();
        for step in 1..=200_i64 {
            evidence.advance(&tick(5_000, true, step * 5_000));
            evidence.note(2.5, 2.5, 0, HOLD_MS);
            // Nine wanted until 850 s, and a hold of 120 s for them.
            evidence.note_backlog(if step <= 170 { 9.0 } else { 0.0 }, 120_000);
        }
        // 150 s after it.
        assert_eq!(evidence.largest_need(&evidence.strict, 600_000), Some(2.5));
        assert_eq!(evidence.for_count(4, 600_000), 1_000_000);
        // 90 s after it, 30 s are missing.
        let mut evidence = Evidence::default();
        for step in 1..=200_i64 {
            evidence.advance(&tick(5_000, true, step * 5_000));
            evidence.note(2.5, 2.5, 0, HOLD_MS);
            evidence.note_backlog(if step <= 182 { 9.0 } else { 0.0 }, 120_000);
        }
        assert_eq!(evidence.largest_need(&evidence.strict, 600_000), Some(9.0));
        assert_eq!(evidence.for_count(4, 600_000), 570_000);
        // The level never took more than 4, and took more than 2 until now.
        assert!(evidence.was_for_a_backlog(4, 600_000));
        assert!(!evidence.was_for_a_backlog(2, 600_000));
    }

    #[test]
    fn more_turning_points_than_are_kept_err_to_the_safe_side() {
        let mut needs = Needs::default();
        for step in 0..100_u32 {
            needs.note(f64::from(200 - step), u64::from(step) * 1_000, MEMORY_MS);
        }
        assert_eq!(needs.points.len(), MAX_POINTS);
        for m in 100..200_u32 {
            let at = u64::from(199 - m) * 1_000;
            // No earlier than it was, and little later: 100 steps in 32 points are 4 s each.
            assert!((at..=at + 8_000).contains(&needs.last_above(m)), "{m}: {needs:?}");
        }
    }

    #[test]
    fn a_load_that_falls_for_an_hour_gathers_evidence_all_the_while() {
        let mut evidence = Evidence::default();
        for step in 0..720_i32 {
            evidence.advance(&tick(5_000, true, i64::from(step + 1) * 5_000));
            let need = 8.0 * (1.0 - f64::from(step) / 720.0);
            evidence.note(need, need, 0, HOLD_MS);
        }
        // Four were too few in the first half hour, two in the first three quarters.
        for (m, since_ms) in [(4, 1_800_000_u64), (2, 2_700_000)] {
            let lost_ms = 3_600_000 - since_ms - evidence.for_count(m, 600_000);
            assert!(lost_ms < 240_000, "{m}: {lost_ms} ms lost");
        }
    }

    #[test]
    fn a_fifth_of_the_ticks_lost_is_no_coverage() {
        let mut evidence = Evidence::default();
        for step in 1..=1_000_i64 {
            evidence.advance(&tick(5_000, step % 5 != 0, step * 5_000));
        }
        assert!((0.75..0.85).contains(&evidence.coverage()), "{}", evidence.coverage());
    }

    #[test]
    fn what_a_given_hold_asks_for_is_remembered_however_long_it_is() {
        let hold_ms = 4 * 3_600_000;
        let mut evidence = Evidence::default();
        // An hour of nine, then four hours of one.
        for step in 1..=5 * 720_u32 {
            evidence.advance(&Tick { hold_ms, ..tick(5_000, true, i64::from(step) * 5_000) });
            let need = if step <= 720 { 9.0 } else { 1.0 };
            evidence.note(need, need, 0, hold_ms);
        }
        assert_eq!(evidence.for_count(1, hold_ms), hold_ms);
        assert_eq!(evidence.for_count(9, hold_ms), hold_ms + 3_600_000);
    }
}
