//! How much work has grown within one cold start: the headroom that standing capacity needs.
//!
//! Must not know replicas or prices beyond one number a tick, the work demanded.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Moment;
use super::number::compact;

/// Work is noted this often.
const STEP_MS: u64 = 30_000;
/// Longest horizon that is looked at: 16 minutes.
const MAX_STEPS: usize = 32;
/// Growth is forgotten over two hours (costmodel.md 3): 240 steps.
const MEMORY_STEPS: f32 = 240.0;
/// The share of the past whose growth fits into the headroom (costmodel.md 3: p = 0.8 and 0.9 lie
/// on one frontier of attainment against cost).
const QUANTILE: f32 = 0.8;
/// A new start stands as if this many steps (half an hour) had grown by up to the edge of this
/// bucket, a seventh of one busy replica: a single step within the first hour is no rule.
const ASSUMED_STEPS: f32 = 60.0;
const ASSUMED_BUCKET: usize = 4;
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
}

impl Default for Headroom {
    fn default() -> Self {
        let mut counts = [0.0; EDGES.len()];
        counts[ASSUMED_BUCKET] = ASSUMED_STEPS;
        Headroom { work: VecDeque::new(), noted_at: None, counts }
    }
}

impl Headroom {
    /// Notes the work demanded now, at most once a step.
    pub(super) fn note(&mut self, work: f64, cold_start_ms: u64, now: Moment) {
        let since_ms = self.noted_at.map_or(STEP_MS, |at| now.millis_since(at));
        if since_ms < STEP_MS {
            return;
        }
        if since_ms > 3 * STEP_MS {
            self.work.clear();
        }
        self.noted_at = Some(now);
        // The order itself is seen a window late, so the horizon is a cold start and a minute.
        let lag = usize::try_from((cold_start_ms + 60_000).div_ceil(STEP_MS)).unwrap_or(MAX_STEPS);
        let lag = lag.min(MAX_STEPS);
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
    }

    /// The growth to provide for, in √work.
    pub(super) fn growth(&self) -> f64 {
        let total: f32 = self.counts.iter().sum();
        let mut below = 0.0;
        let mut lower_edge = 0.0;
        for (count, edge) in self.counts.iter().zip(EDGES) {
            if below + count >= QUANTILE * total {
                let share = (QUANTILE * total - below) / count.max(f32::MIN_POSITIVE);
                return f64::from(lower_edge + (edge - lower_edge) * share.clamp(0.0, 1.0));
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

fn scale(work: f64) -> f64 {
    work.max(WORK_FLOOR).sqrt()
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
        assert!(learned(|_| 4.0).growth() <= 0.0);
    }

    #[test]
    fn before_enough_was_seen_the_growth_is_assumed() {
        let headroom = Headroom::default();
        // Four fifths into the bucket from 0.1 to 0.15: 0.14; at work 4, 0.14 · √4 = 0.28.
        assert!((headroom.growth() - 0.14).abs() < 1e-6);
        assert!((at(4.0, headroom.growth()) - 0.28).abs() < 1e-6);
    }

    #[test]
    fn a_steady_ramp_is_its_own_headroom() {
        // +0.05 a step, horizon 120 s + 60 s = 6 steps: +0.3 within it, at work 9..33. On the
        // √ scale that is 0.3/√(33-0.3) = 0.052 to 0.3/√8.7 = 0.10; the last two hours reach
        // from work 21 on, 0.3/√21 = 0.065.
        let growth = learned(|step| 9.0 + 0.05 * f64::from(step)).growth();
        assert!((0.05..=0.1).contains(&growth), "{growth}");
    }

    #[test]
    fn a_falling_level_needs_none() {
        assert!(learned(|step| 30.0 - 0.05 * f64::from(step)).growth() <= 0.0);
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
