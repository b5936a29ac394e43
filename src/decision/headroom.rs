//! How much work has grown within one cold start: the headroom that standing capacity needs.
//!
//! Must not know replicas or prices beyond one number a tick, the work demanded.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Moment;
use super::number::compact;

/// Work is noted this often.
pub(super) const STEP_MS: u64 = 30_000;
/// Steps that are kept: a horizon of a quarter of an hour, and before it the longest hold that is
/// rehearsed, half an hour.
const MAX_STEPS: usize = 92;
/// Growth is forgotten over two hours (costmodel.md 3): 240 steps.
const MEMORY_STEPS: f32 = 240.0;
/// A new start stands as if this many steps (half an hour) had grown by up to the edge of this
/// bucket, a seventh of one busy replica: a single step within the first hour is no rule.
const ASSUMED_STEPS: f32 = 60.0;
const ASSUMED_BUCKET: usize = 4;
/// The same for a load that has been seen to rise by this factor, more than noise explains: what
/// rises once rises again, and late requests cost more than a part of a replica for half an hour.
const ASSUMED_BUCKET_RISEN: usize = 6;
const RISEN: f64 = 1.25;
/// Work below which growth is not scaled down any further.
const WORK_FLOOR: f64 = 0.1;
/// Upper edges of the growth histogram, in √work. On that scale growth is alike at all levels: a
/// ratio explodes at low work, a difference at high.
const EDGES: [f32; 14] = [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0];

/// The growth seen so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Headroom {
    work: VecDeque<f32>,
    noted_at: Option<Moment>,
    counts: [f32; EDGES.len()],
    /// Least tokens a second of a minute, and whether there have been more by [`RISEN`].
    least: Option<f32>,
    risen: bool,
}

impl Default for Headroom {
    fn default() -> Self {
        let mut counts = [0.0; EDGES.len()];
        counts[ASSUMED_BUCKET] = ASSUMED_STEPS;
        Headroom { work: VecDeque::new(), noted_at: None, counts, least: None, risen: false }
    }
}

impl Headroom {
    /// Notes the work demanded now, at most once a step; whether it did.
    pub(super) fn note(&mut self, work: f64, cold_start_ms: u64, now: Moment) -> bool {
        let since_ms = self.noted_at.map_or(STEP_MS, |at| now.millis_since(at));
        if since_ms < STEP_MS {
            return false;
        }
        if self.is_interrupted(now) {
            self.work.clear();
        }
        self.noted_at = Some(now);
        // The order itself is seen a window late, so the horizon is a cold start and a minute.
        let lag = lag(cold_start_ms + 60_000);
        if let Some(before) = self.work.len().checked_sub(lag).and_then(|i| self.work.get(i)) {
            let growth = compact((work - f64::from(*before)) / scale(f64::from(*before)));
            let bucket = EDGES.iter().position(|edge| growth <= *edge).unwrap_or(EDGES.len() - 1);
            for count in &mut self.counts {
                *count *= 1.0 - 1.0 / MEMORY_STEPS;
            }
            if let Some(count) = self.counts.get_mut(bucket) {
                *count += 1.0;
            }
        }
        self.work.push_back(compact(work));
        if self.work.len() > MAX_STEPS {
            self.work.pop_front();
        }
        true
    }

    /// Looks whether the load has risen, in tokens a second: also before work has a price.
    pub(super) fn look(&mut self, tokens: f64) {
        if self.risen || tokens <= 0.0 {
            return;
        }
        let least = self.least.map_or(tokens, |least| tokens.min(f64::from(least)));
        self.least = Some(compact(least));
        if tokens > RISEN * least {
            self.risen = true;
            let assumed = std::mem::take(&mut self.counts[ASSUMED_BUCKET]);
            self.counts[ASSUMED_BUCKET_RISEN] += assumed;
        }
    }

    /// Whether more than a step or two have not been seen.
    pub(super) fn is_interrupted(&self, now: Moment) -> bool {
        self.noted_at.is_some_and(|at| now.millis_since(at) > 3 * STEP_MS)
    }

    /// The level by which a fleet with that hold orders now, and the lowest of the last cold start,
    /// by which those that serve were ordered.
    pub(super) fn levels(&self, hold_ms: u64, cold_start_ms: u64) -> (f64, f64) {
        let (hold, lag) = (lag(hold_ms + STEP_MS), lag(cold_start_ms));
        let held = |back: usize| {
            let until = self.work.len().saturating_sub(back);
            let span = self.work.range(until.saturating_sub(hold)..until);
            span.copied().fold(0.0, f32::max)
        };
        let ordered = held(0);
        let last = lag.min(self.work.len().saturating_sub(1));
        let serving = (1..=last).map(held).fold(ordered, f32::min);
        (f64::from(ordered), f64::from(serving))
    }

    /// The growth, in √work, into which this share of the past fits.
    pub(super) fn growth(&self, share: f32) -> f64 {
        let total: f32 = self.counts.iter().sum();
        let mut below = 0.0;
        let mut lower_edge = 0.0;
        for (count, edge) in self.counts.iter().zip(EDGES) {
            if below + count >= share * total {
                let part = (share * total - below) / count.max(f32::MIN_POSITIVE);
                return f64::from(lower_edge + (edge - lower_edge) * part.clamp(0.0, 1.0));
            }
            below += count;
            lower_edge = edge;
        }
        f64::from(lower_edge)
    }
}

/// The headroom at a level of work, given the growth.
pub(super) fn at(work: f64, growth: f64) -> f64 {
    growth * scale(work)
}

/// The scale on which growth is alike at all levels.
pub(super) fn scale(work: f64) -> f64 {
    work.max(WORK_FLOOR).sqrt()
}

fn lag(span_ms: u64) -> usize {
    usize::try_from(span_ms.div_ceil(STEP_MS)).unwrap_or(MAX_STEPS).min(MAX_STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(work: impl Fn(u32) -> f64) -> Headroom {
        let mut headroom = Headroom::default();
        for step in 0..480_u32 {
            let now = Moment(i64::from(step) * 30_000);
            headroom.note(work(step), 120_000, now);
        }
        headroom
    }

    #[test]
    fn constant_work_needs_no_headroom() {
        assert!(learned(|_| 4.0).growth(0.8) <= 0.0);
    }

    #[test]
    fn before_enough_was_seen_the_growth_is_assumed() {
        let headroom = Headroom::default();
        // Four fifths into the bucket from 0.1 to 0.15: 0.14; at work 4, 0.14 · √4 = 0.28.
        assert!((headroom.growth(0.8) - 0.14).abs() < 1e-6);
        assert!((at(4.0, headroom.growth(0.8)) - 0.28).abs() < 1e-6);
    }

    #[test]
    fn a_load_that_has_risen_is_assumed_to_rise_again_and_noise_is_no_rise() {
        let mut headroom = Headroom::default();
        for tokens in [1_000.0, 950.0, 1_050.0, 1_180.0] {
            headroom.look(tokens);
        }
        // 1,180 is 1.242 times 950.
        assert!((headroom.growth(0.8) - 0.14).abs() < 1e-6);
        headroom.look(1_200.0);
        // Four fifths into the bucket from 0.2 to 0.3.
        assert!((headroom.growth(0.8) - 0.28).abs() < 1e-6);
    }

    #[test]
    fn a_steady_ramp_is_its_own_headroom() {
        // +0.05 a step, horizon 120 s + 60 s = 6 steps: +0.3 within it, at work 9..33. On the
        // √ scale that is 0.3/√(33-0.3) = 0.052 to 0.3/√8.7 = 0.10; the last two hours reach
        // from work 21 on, 0.3/√21 = 0.065.
        let growth = learned(|step| 9.0 + 0.05 * f64::from(step)).growth(0.8);
        assert!((0.05..=0.1).contains(&growth), "{growth}");
    }

    #[test]
    fn a_falling_level_needs_none() {
        assert!(learned(|step| 30.0 - 0.05 * f64::from(step)).growth(0.8) <= 0.0);
    }

    #[test]
    fn work_noted_twice_at_one_moment_counts_once() {
        let mut once = Headroom::default();
        once.note(1.0, 60_000, Moment(0));
        let mut twice = once.clone();
        twice.note(1.0, 60_000, Moment(0));
        assert_eq!(once, twice);
    }
}
