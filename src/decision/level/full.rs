//! What a full replica really does, as a share of the capacity that the fit promises.
//!
//! A step takes a limited number of prompt tokens (vLLM's `max_num_batched_tokens`, which no metric tells),
//! so that its own time is never spread over more than these. With 12.5 ms a step and 2,048 tokens of 34 µs
//! each, a replica under a queue is at work for 0.85 of its time, however much waits; the fit, which knows
//! no limit, says 1. So it is measured while a queue stands. Must not know what waits, nor plan.

use serde::{Deserialize, Serialize};

use crate::decision::number::compact;

/// It follows what is higher in a minute and what is lower in ten: a replica whose queue has gone, or that
/// has begun just now, pulls the mean of all down, and nothing pushes it up.
const RISES_S: f64 = 60.0;
const FALLS_S: f64 = 600.0;
/// Two samples of a queue are believed.
const BELIEVED_S: f32 = 10.0;

/// How busy a replica was while requests waited for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Full {
    share: f32,
    seen_s: f32,
}

impl Full {
    /// Learns from some time under a queue: work served by a replica, in seconds a second.
    pub(super) fn note(&mut self, served: f64, step_s: f64) {
        let served = served.clamp(0.0, 1.0);
        let share = f64::from(self.share);
        let span_s = if served > share { RISES_S } else { FALLS_S };
        let weight = if self.seen_s > 0.0 { step_s / (step_s + span_s) } else { 1.0 };
        self.share = compact(share + weight * (served - share));
        self.seen_s += compact(step_s);
    }

    /// Utilisation of a full replica, 0..1, once seen.
    pub(super) fn share(&self) -> Option<f64> {
        (self.seen_s >= BELIEVED_S).then(|| self.share.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(ticks: &[f64]) -> Option<f64> {
        let mut full = Full::default();
        for served in ticks {
            full.note(*served, 5.0);
        }
        full.share()
    }

    #[test]
    fn one_sample_is_not_believed() {
        assert_eq!(after(&[]), None);
        assert_eq!(after(&[0.85]), None);
        assert!((after(&[0.85, 0.85]).unwrap() - 0.85).abs() < 1e-6);
    }

    #[test]
    fn what_is_higher_counts_ten_times_as_much() {
        // 0.8 + 5/65 · 0.1, and 0.8 - 5/605 · 0.1.
        assert!((after(&[0.8, 0.9]).unwrap() - 0.807_692).abs() < 1e-5);
        assert!((after(&[0.8, 0.7]).unwrap() - 0.799_174).abs() < 1e-5);
        // A quarter of the samples have a replica without a queue: near what the others show.
        let mixed: Vec<f64> = (0..400).map(|tick| if tick % 4 == 0 { 0.6 } else { 0.85 }).collect();
        assert!((after(&mixed).unwrap() - 0.85).abs() < 0.02, "{:?}", after(&mixed));
    }

    #[test]
    fn nobody_works_for_longer_than_it_takes() {
        assert_eq!(after(&[1.3, 1.3]), Some(1.0));
    }
}
