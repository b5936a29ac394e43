//! What counters show of a GPU's work: shares of the time, from what an engine's steps went into.
//!
//! Must not know a clock or a device. The time busy is exact; the rest is a model, and no GPU was
//! available to check it against.
//!
//! An engine's step is the sum of four terms ([`Work`]). While each of them lasts, a kernel runs,
//! so all four are time busy; they differ in which part of the chip they keep busy:
//!
//! | term | multiprocessors | tensor pipes | memory interface | power above idle |
//! |---|---|---|---|---|
//! | base: weights are read, kernels launched | 0.60 | 0.03 | 0.60 | 0.60 |
//! | prefill: prompt tokens are computed | 0.95 | 0.50 | 0.10 | 1.00 |
//! | decode: one token a request is computed | 0.95 | 0.50 | 0.10 | 0.80 |
//! | resident: the KV cache is read | 0.80 | 0.03 | 0.80 | 0.60 |
//!
//! - Memory: the weights' bytes over the peak bandwidth are 0.53 to 0.63 of the presets' base (an
//!   8B in bf16 on an A100: 16.1 GB / 2.04 TB/s = 7.9 of 12.5 ms); the presets read the KV cache at
//!   0.8 of the peak.
//! - Tensor pipes: prefill at half of the peak FLOPS, as the presets take it; one decoding request
//!   needs less than 1 % of the peak, and shows "a few percent".
//! - Power: Llama-2-70B on A100s drew its limit in the prompt phase, and 0.74, 0.60 and 0.44 of it
//!   over all of a request alone, on two, four and eight of them [Splitwise's published table].
//! - Multiprocessors: assumed; whoever reads or computes has warps on most of them.

use crate::engine::{Work, secs_from_ps};

/// What a counter shows of a second that is spent on base, prefill, decode and resident alone.
type PerTerm = [f64; 4];

const SM: PerTerm = [0.60, 0.95, 0.95, 0.80];
const TENSOR: PerTerm = [0.03, 0.50, 0.50, 0.03];
const DRAM: PerTerm = [0.60, 0.10, 0.10, 0.80];
const DRAW: PerTerm = [0.60, 1.00, 0.80, 0.60];

/// What was seen of a GPU over a span; each from 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Activity {
    /// Share of the time with a kernel running.
    pub busy: f64,
    /// Mean share of the multiprocessors with a warp.
    pub sm: f64,
    /// Share of the cycles in which the tensor pipes were active.
    pub tensor: f64,
    /// Share of the cycles in which the memory interface was active.
    pub dram: f64,
    /// Power above that of a GPU that only holds a model, as a share of what the limit leaves.
    pub draw: f64,
}

impl Activity {
    /// Two that take turns: their times add up.
    pub(super) fn after(self, other: Activity) -> Activity {
        self.with(other, |a, b| (a + b).min(1.0))
    }

    /// Two at the same time that know nothing of each other: idle when both are.
    pub(super) fn beside(self, other: Activity) -> Activity {
        self.with(other, |a, b| a + b - a * b)
    }

    fn with(self, other: Activity, both: impl Fn(f64, f64) -> f64) -> Activity {
        Activity {
            busy: both(self.busy, other.busy),
            sm: both(self.sm, other.sm),
            tensor: both(self.tensor, other.tensor),
            dram: both(self.dram, other.dram),
            draw: both(self.draw, other.draw),
        }
    }
}

/// Work that was done and not shown yet, in seconds by term.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Pending(PerTerm);

impl Pending {
    /// Adds what was done between two looks at an engine's counters. Counters that have fallen are
    /// those of a new engine, which has done all that they say.
    pub(super) fn add(&mut self, before: &Work, now: &Work) {
        let (before, now) = (terms(before), terms(now));
        let is_new = before.iter().zip(now).any(|(before, now)| now < *before);
        for ((pending, before), now) in self.0.iter_mut().zip(before).zip(now) {
            *pending += if is_new { now } else { now - before };
        }
    }

    /// Takes out what fits into a span, as steps are counted when they end: a long one, that began
    /// before the span, goes on beyond it.
    pub(super) fn take(&mut self, span_s: f64) -> Activity {
        let total_s: f64 = self.0.iter().sum();
        if span_s <= 0.0 || total_s <= 0.0 {
            return Activity::default();
        }
        let part = (span_s / total_s).min(1.0);
        let taken = self.0.map(|seconds| seconds * part);
        self.0 = self.0.map(|seconds| seconds * (1.0 - part));
        let shown = |per_term: PerTerm| {
            let sum: f64 = taken.iter().zip(per_term).map(|(seconds, shown)| seconds * shown).sum();
            (sum / span_s).min(1.0)
        };
        Activity {
            busy: shown([1.0; 4]),
            sm: shown(SM),
            tensor: shown(TENSOR),
            dram: shown(DRAM),
            draw: shown(DRAW),
        }
    }
}

fn terms(work: &Work) -> PerTerm {
    [work.base_ps, work.prefill_ps, work.decode_ps, work.resident_ps].map(secs_from_ps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::PS_PER_MS;

    fn work(base_ms: u64, prefill_ms: u64) -> Work {
        let (base_ps, prefill_ps) = (base_ms * PS_PER_MS, prefill_ms * PS_PER_MS);
        Work { base_ps, prefill_ps, ..Work::default() }
    }

    fn assert_close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found}, expected {expected}");
    }

    #[test]
    fn busy_is_the_share_of_time_and_the_rest_follows_from_what_it_went_into() {
        let mut pending = Pending::default();
        pending.add(&Work::default(), &work(200, 300));
        let shown = pending.take(1.0);
        assert_close(shown.busy, 0.5);
        assert_close(shown.sm, 0.2 * 0.6 + 0.3 * 0.95);
        assert_close(shown.tensor, 0.2 * 0.03 + 0.3 * 0.5);
        assert_close(shown.dram, 0.2 * 0.6 + 0.3 * 0.1);
        assert_close(shown.draw, 0.2 * 0.6 + 0.3);
        assert_eq!(pending.take(1.0), Activity::default());
    }

    #[test]
    fn a_step_longer_than_the_span_goes_on_into_the_next() {
        let mut pending = Pending::default();
        pending.add(&Work::default(), &work(0, 1_500));
        assert_close(pending.take(1.0).busy, 1.0);
        assert_close(pending.take(1.0).busy, 0.5);
        assert_close(pending.take(1.0).busy, 0.0);
    }

    #[test]
    fn counters_that_fell_are_a_new_engines() {
        let mut pending = Pending::default();
        pending.add(&work(700, 100), &work(40, 200));
        assert_close(pending.take(1.0).busy, 0.24);
    }

    #[test]
    fn nothing_is_shown_of_no_time() {
        let mut pending = Pending::default();
        pending.add(&Work::default(), &work(200, 0));
        assert_eq!(pending.take(0.0), Activity::default());
        assert_close(pending.take(1.0).busy, 0.2);
    }
}
