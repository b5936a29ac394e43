//! How long one engine step takes: a sum of piecewise linear curves over what the step holds.
//!
//! Must not round in a way that depends on how steps are grouped: all terms are whole picoseconds.

use crate::engine::time::ps_from_secs;

/// A piecewise linear, non-decreasing function of a count, in picoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Curve {
    // Invariant: not empty, the first starts at 0, starts ascend strictly.
    pieces: Vec<Piece>,
}

/// A straight piece of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    start: usize,
    start_ps: u64,
    /// Picoseconds for each one more.
    pub(crate) slope_ps: u64,
    /// Where the next piece starts.
    pub(crate) end: usize,
}

impl Piece {
    /// The value at `count`, which must lie on this piece.
    pub(crate) fn at(&self, count: usize) -> u64 {
        let rise_ps = self.slope_ps.saturating_mul((count - self.start) as u64);
        self.start_ps.saturating_add(rise_ps)
    }
}

impl Curve {
    /// The curve through `points` of (count, milliseconds): flat before the first, straight
    /// between them, extended along the last two. The profile has checked that both ascend.
    pub(crate) fn through(points: &[(usize, f64)]) -> Curve {
        let to_ps = |ms: f64| ps_from_secs(ms / 1e3);
        let (mut start, mut start_ps) = (0, points.first().map_or(0, |&(_, ms)| to_ps(ms)));
        let mut pieces = Vec::with_capacity(points.len() + 1);
        for pair in points.windows(2) {
            let [(from, from_ms), (to, to_ms)] = [pair[0], pair[1]];
            if from > start {
                pieces.push(Piece { start, start_ps, slope_ps: 0, end: from });
            }
            let slope_ps = to_ps((to_ms - from_ms) / (to - from) as f64);
            let piece = Piece { start: from, start_ps, slope_ps, end: to };
            // From the rounded slope, so that neighbours meet exactly.
            (start, start_ps) = (to, piece.at(to));
            pieces.push(piece);
        }
        match pieces.last_mut() {
            Some(last) => last.end = usize::MAX,
            None => pieces.push(Piece { start, start_ps, slope_ps: 0, end: usize::MAX }),
        }
        Curve { pieces }
    }

    /// The value at `count`.
    pub(crate) fn at(&self, count: usize) -> u64 {
        self.piece(count).at(count)
    }

    /// The piece on which `count` lies.
    pub(crate) fn piece(&self, count: usize) -> &Piece {
        let after = self.pieces.partition_point(|piece| piece.start <= count);
        &self.pieces[after - 1]
    }
}

/// What takes time in a step, in picoseconds by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Reading the weights and launching kernels.
    pub base_ps: u64,
    /// Computing prompt tokens.
    pub prefill_ps: u64,
    /// Computing and sampling one token for each decoding request.
    pub decode_ps: u64,
    /// Reading the KV cache.
    pub resident_ps: u64,
}

impl Work {
    /// All of it.
    #[must_use]
    pub fn total_ps(&self) -> u64 {
        let terms = [self.base_ps, self.prefill_ps, self.decode_ps, self.resident_ps];
        terms.into_iter().fold(0, u64::saturating_add)
    }

    /// Adds other work.
    pub(crate) fn add(&mut self, other: &Work) {
        for (sum, term) in [
            (&mut self.base_ps, other.base_ps),
            (&mut self.prefill_ps, other.prefill_ps),
            (&mut self.decode_ps, other.decode_ps),
            (&mut self.resident_ps, other.resident_ps),
        ] {
            *sum = sum.saturating_add(term);
        }
    }
}

/// The step times of one engine on one kind of GPU.
#[derive(Debug, Clone)]
pub(crate) struct StepTime {
    pub(crate) base_ps: u64,
    pub(crate) prefill: Curve,
    pub(crate) decode: Curve,
    pub(crate) resident: Curve,
    /// For each pair of a computed prompt token and one before it.
    pub(crate) attention_ps: u64,
}

impl StepTime {
    /// The work of a step that computes `prefill_tokens` of prompts and one token for each of
    /// `decoding` requests, while `resident_tokens` lie in the KV cache.
    pub(crate) fn of(
        &self,
        prefill_tokens: usize,
        decoding: usize,
        resident_tokens: usize,
    ) -> Work {
        Work {
            base_ps: self.base_ps,
            prefill_ps: if prefill_tokens == 0 { 0 } else { self.prefill.at(prefill_tokens) },
            decode_ps: if decoding == 0 { 0 } else { self.decode.at(decoding) },
            resident_ps: self.resident.at(resident_tokens),
        }
    }

    /// The same with the attention of the prompts over `pairs` of tokens, as part of their prefill.
    pub(crate) fn with_attention(&self, work: Work, pairs: u64) -> Work {
        let attention_ps = self.attention_ps.saturating_mul(pairs);
        Work { prefill_ps: work.prefill_ps.saturating_add(attention_ps), ..work }
    }
}

/// Pairs of a prompt token and one before it when `tokens` are computed after `before` others.
pub(crate) fn pairs(before: usize, tokens: usize) -> u64 {
    let (before, tokens) = (before as u64, tokens as u64);
    tokens.saturating_mul(before).saturating_add(tokens.saturating_mul(tokens) / 2)
}

/// Steps whose times grow by the same amount from each to the next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progression {
    /// Picoseconds of the first step; above 0.
    pub(crate) first_ps: u64,
    /// What each next step takes longer.
    pub(crate) growth_ps: u64,
}

impl Progression {
    /// Picoseconds of the first `steps` together.
    pub(crate) fn sum_ps(&self, steps: usize) -> u128 {
        let n = u128::from(steps as u64);
        let pairs = n * n.saturating_sub(1) / 2;
        n * u128::from(self.first_ps) + pairs * u128::from(self.growth_ps)
    }

    /// The largest number of steps, at most `limit`, that fit into `span_ps`.
    pub(crate) fn fitting(&self, span_ps: u64, limit: usize) -> usize {
        let span = u128::from(span_ps);
        if self.sum_ps(limit) <= span {
            return limit;
        }
        // Bisection: at most 64 rounds, and exact where a square root would need correcting.
        let without_growth = usize::try_from(span_ps / self.first_ps).unwrap_or(usize::MAX);
        let (mut fits, mut exceeds) = (0, limit.min(without_growth.saturating_add(1)));
        while exceeds - fits > 1 {
            let middle = fits + (exceeds - fits) / 2;
            if self.sum_ps(middle) <= span {
                fits = middle;
            } else {
                exceeds = middle;
            }
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::time::PS_PER_MS;

    #[test]
    fn a_curve_is_straight_between_its_points_and_beyond_the_last() {
        let curve = Curve::through(&[(0, 1.0), (10, 2.0), (20, 5.0)]);
        for (count, ms) in [(0, 1.0), (5, 1.5), (10, 2.0), (15, 3.5), (20, 5.0), (40, 11.0)] {
            assert_eq!(curve.at(count), ps_from_secs(ms / 1e3), "{count}");
        }
        let late = Curve::through(&[(10, 2.0), (20, 5.0)]);
        assert_eq!([late.at(0), late.at(10)], [2 * PS_PER_MS; 2], "flat before the first");
    }

    #[test]
    fn the_steps_that_fit_are_found_exactly() {
        for (first_ps, growth_ps) in [(7, 0), (7, 3), (1, 1), (1_000, 17)] {
            let steps = Progression { first_ps, growth_ps };
            for span_ps in [0, 1, 6, 7, 8, 500, 12_345, 1_000_000] {
                let mut fits = 0;
                while fits < 900 && steps.sum_ps(fits + 1) <= u128::from(span_ps) {
                    fits += 1;
                }
                assert_eq!(steps.fitting(span_ps, 900), fits, "{steps:?} in {span_ps}");
            }
        }
    }
}
