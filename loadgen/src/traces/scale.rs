//! More or fewer requests than a trace has, with its bursts kept.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;

use rand_distr::{Distribution as _, StandardUniform};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng as _;

use super::{Arrival, Error, Options};
use crate::engine::Prefix;

/// How far apart the copies of a trace are at most: well within a cold start, so that a burst stays
/// one, and more than any gap within a burst.
const MOST_SHIFT_S: f64 = 20.0;

/// The trace at its own rate times the scale.
pub(super) fn scaled(
    trace: impl Iterator<Item = Result<Arrival, Error>> + Send + 'static,
    options: &Options,
) -> Box<dyn Iterator<Item = Result<Arrival, Error>> + Send> {
    let mut rng = Pcg64Mcg::seed_from_u64(options.seed);
    let mut copies = Vec::new();
    let mut left = options.scale;
    while left > 1e-9 {
        let uniform: f64 = StandardUniform.sample(&mut rng);
        let shift_s = if copies.is_empty() { 0.0 } else { uniform * MOST_SHIFT_S };
        copies.push(Copy { shift_s, share: left.min(1.0) });
        left -= 1.0;
    }
    if matches!(copies.as_slice(), [only] if only.share >= 1.0) {
        return Box::new(trace);
    }
    Box::new(Scaled { trace, rng, copies, waiting: BinaryHeap::new(), seen_s: 0.0, n_pushed: 0 })
}

struct Copy {
    shift_s: f64,
    share: f64,
}

struct Scaled<I> {
    trace: I,
    rng: Pcg64Mcg,
    copies: Vec<Copy>,
    /// Requests of the last [`MOST_SHIFT_S`] whose time has not come.
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// Nothing earlier will come from the trace; infinite after its end.
    seen_s: f64,
    n_pushed: u64,
}

impl<I: Iterator<Item = Result<Arrival, Error>>> Scaled<I> {
    fn push(&mut self, arrival: &Arrival) {
        for (number, copy) in self.copies.iter().enumerate() {
            let uniform: f64 = StandardUniform.sample(&mut self.rng);
            if uniform < copy.share {
                let mut arrival = arrival.clone();
                arrival.t_s += copy.shift_s;
                arrival.prefix = apart(arrival.prefix, number as u64);
                self.waiting.push(Reverse(Waiting { arrival, number: self.n_pushed }));
                self.n_pushed += 1;
            }
        }
    }
}

impl<I: Iterator<Item = Result<Arrival, Error>>> Iterator for Scaled<I> {
    type Item = Result<Arrival, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.waiting.peek().is_some_and(|next| next.0.arrival.t_s <= self.seen_s) {
                return self.waiting.pop().map(|next| Ok(next.0.arrival));
            }
            match self.trace.next() {
                Some(Ok(arrival)) => {
                    self.seen_s = arrival.t_s;
                    self.push(&arrival);
                }
                Some(Err(error)) => return Some(Err(error)),
                None if self.waiting.is_empty() => return None,
                None => self.seen_s = f64::INFINITY,
            }
        }
    }
}

/// Other users' prompts: those of a copy share nothing with those of another.
fn apart(prefix: Prefix, copy: u64) -> Prefix {
    match prefix {
        Prefix::Segments { tokens, hashes } if copy > 0 => {
            // An odd multiplier keeps different hashes different; this one is 2^64 over the golden
            // ratio.
            let salt = copy.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let hashes: Arc<[u64]> = hashes.iter().map(|hash| hash ^ salt).collect();
            Prefix::Segments { tokens, hashes }
        }
        Prefix::Segments { .. } | Prefix::Cached(_) | Prefix::Unknown => prefix,
    }
}

/// In the order of time, then of coming in.
struct Waiting {
    arrival: Arrival,
    number: u64,
}

impl Ord for Waiting {
    fn cmp(&self, other: &Waiting) -> Ordering {
        self.arrival.t_s.total_cmp(&other.arrival.t_s).then(self.number.cmp(&other.number))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Waiting) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Waiting) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Waiting {}
