//! What became of each stretch of a rate that changes: its steps, or the quarters of a single ramp.
//!
//! Pure: works on the timeline, and so is as fine as its bins are.

use std::ops::Range;

use serde::Serialize;

use crate::run::measure::Outcome;
use crate::run::plan::{Load, Plan};
use crate::traces::Curve;

/// Rows of a single ramp.
const PARTS: u32 = 4;

/// One stretch, all runs together. Requests count where they were due.
#[derive(Debug, Clone, Serialize)]
pub struct Phase {
    /// The rate, as it was written.
    pub rate: String,
    /// When it begins and ends, in seconds since the start.
    pub from_s: f64,
    /// See `from_s`.
    pub until_s: f64,
    /// Requests due.
    pub scheduled: u64,
    /// Of them, those that met their SLO.
    pub good: u64,
    /// Of them, those that failed.
    pub failed: u64,
    /// Of them, those whose first token came too late.
    pub late: u64,
    /// The share of the good ones; `null` where none was due.
    pub good_share: Option<f64>,
    /// Whole answers a second that came in it, whenever they were due.
    pub carried_rate: f64,
    /// Median time to first token, in seconds, within 7 %.
    pub ttft_p50: Option<f64>,
    /// The same, 99th percentile.
    pub ttft_p99: Option<f64>,
}

/// The stretches in which requests were due that count; none where the rate is always the same.
pub(super) fn phases(plan: &Plan, outcome: &Outcome) -> Vec<Phase> {
    let Load::Rate { curve, .. } = &plan.load else { return Vec::new() };
    stretches(curve)
        .into_iter()
        .filter_map(|(rate, stretch_s)| {
            // Where it was in each of the runs, as far as that went.
            let seen = outcome.loads_s.iter().map(|load_s| {
                let start_s = load_s.start - plan.warmup_s;
                let from_s = (start_s + stretch_s.start).max(load_s.start);
                from_s..(start_s + stretch_s.end).min(load_s.end)
            });
            let seen: Vec<Range<f64>> = seen.filter(|seen| seen.start < seen.end).collect();
            let first = seen.first()?;
            let took_s: f64 = seen.iter().map(|seen| seen.end - seen.start).sum();
            let bin = outcome.record.timeline.sum(&seen);
            Some(Phase {
                rate,
                from_s: first.start,
                until_s: first.end,
                scheduled: bin.scheduled,
                good: bin.good,
                failed: bin.failed,
                late: bin.late,
                good_share: (bin.scheduled > 0).then(|| bin.good as f64 / bin.scheduled as f64),
                carried_rate: bin.completed as f64 / took_s,
                ttft_p50: bin.ttft_s(0.5),
                ttft_p99: bin.ttft_s(0.99),
            })
        })
        .collect()
}

fn stretches(curve: &Curve) -> Vec<(String, Range<f64>)> {
    match curve.parts().as_slice() {
        [(text, part_s)] if part_s.end.is_finite() && text.contains(['-', '~']) => {
            let each_s = (part_s.end - part_s.start) / f64::from(PARTS);
            let part = |n: u32| {
                let from_s = part_s.start + f64::from(n) * each_s;
                (format!("{}/{PARTS} of {text}", n + 1), from_s..from_s + each_s)
            };
            (0..PARTS).map(part).collect()
        }
        [_one] => Vec::new(),
        several => several.iter().map(|(text, s)| ((*text).to_owned(), s.clone())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_changes_has_stretches() {
        let of = |text: &str| -> Vec<(String, f64, f64)> {
            let curve: Curve = text.parse().unwrap();
            stretches(&curve).into_iter().map(|(text, s)| (text, s.start, s.end)).collect()
        };
        let named = |text: &str, from_s, until_s| (text.to_owned(), from_s, until_s);
        assert!(of("5").is_empty() && of("5@1m").is_empty());
        assert_eq!(
            of("2@30s, 1-4@1m,3"),
            [
                named("2@30s", 0.0, 30.0),
                named("1-4@1m", 30.0, 90.0),
                named("3", 90.0, f64::INFINITY)
            ]
        );
        assert_eq!(of("1-9@40s")[1], named("2/4 of 1-9@40s", 10.0, 20.0));
        assert_eq!(of("1~9@1d").len(), 4);
    }
}
