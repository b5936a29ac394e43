//! Whether a service carries what it is asked: what came beside what was due, over time.
//!
//! Pure: works on what was measured.

use std::ops::Range;

use super::timeline::{Bin, Timeline};

/// Bins in each third of the load, and requests, below which chance alone may do it.
const LEAST_BINS: usize = 5;
const LEAST_MORE: f64 = 10.0;
/// A count of requests that come by chance is spread by its root (Poisson); three times that of the
/// difference of two is chance once in seven hundred.
const SPREADS: f64 = 3.0;

/// Whether a queue grew: from the first third of the load to the last more and more requests were
/// due and not ended, by more than chance, though no more came due. Those that wait in the client for
/// a connection are in it.
///
/// `load_s` is the time in which what counts was due, in seconds since the run's start; `settle_s` how
/// long an answer takes where nothing waits: until then every service is only filling up. `None` for a
/// load that is too short to tell.
#[must_use]
pub(super) fn is_growing(timeline: &Timeline, load_s: &Range<f64>, settle_s: f64) -> Option<bool> {
    let mut open = 0.0;
    let mut seen = Vec::new();
    for (_, bin) in within(timeline, load_s) {
        open += bin.scheduled as f64 - bin.ended as f64;
        seen.push((open, bin.scheduled as f64));
    }
    let settled = within(timeline, &(load_s.start..load_s.start + settle_s)).count();
    let seen = seen.get(settled..).unwrap_or_default();
    let third = seen.len() / 3;
    if third < LEAST_BINS {
        return None;
    }
    let (early, rest) = seen.split_at(third);
    let (middle, late) = rest.split_at(rest.len() - third);
    let open =
        |bins: &[(f64, f64)]| bins.iter().map(|(open, _)| open).sum::<f64>() / bins.len() as f64;
    let due = |bins: &[(f64, f64)]| bins.iter().map(|(_, due)| due).sum::<f64>();
    let is_more_due = due(late) > 1.1 * due(early) + 2.0 * due(early).sqrt();
    let more = open(late) - open(early);
    let chance = LEAST_MORE.max(SPREADS * (open(early) + open(late)).max(0.0).sqrt());
    let is_steady = open(early) < open(middle) && open(middle) < open(late);
    Some(!is_more_due && is_steady && more > chance)
}

/// Whole answers a second as they came in the second half of the load, whenever they were due; `None`
/// for a load too short to tell. Under overload it is what the service carries.
#[must_use]
pub(super) fn carried_rate(timeline: &Timeline, loads_s: &[Range<f64>]) -> Option<f64> {
    let (mut n_bins, mut completed) = (0_u32, 0);
    for load_s in loads_s {
        let half_s = (load_s.start + load_s.end) / 2.0..load_s.end;
        for (_, bin) in within(timeline, &half_s) {
            n_bins += 1;
            completed += bin.completed;
        }
    }
    (n_bins > 0).then(|| completed as f64 / (f64::from(n_bins) * timeline.width_s()))
}

/// The bins whose middle is in a stretch of time.
pub(super) fn within<'a>(
    timeline: &'a Timeline,
    stretch_s: &Range<f64>,
) -> impl Iterator<Item = (f64, &'a Bin)> {
    let (half_s, stretch_s) = (timeline.width_s() / 2.0, stretch_s.clone());
    timeline.bins().filter(move |(t_s, _)| stretch_s.contains(&(t_s + half_s)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten seconds in forty bins, of each of which it is said how many came due and were ended.
    fn timeline(due: impl Fn(u64) -> u64, ended: impl Fn(u64) -> u64) -> Timeline {
        let mut timeline = Timeline::default();
        for index in 0..40_u64 {
            let bin = timeline.at(index as f64 / 4.0);
            (bin.scheduled, bin.ended, bin.completed) = (due(index), ended(index), ended(index));
        }
        timeline
    }

    #[test]
    fn a_queue_that_grows_under_a_steady_load_is_told() {
        let grows = |due: fn(u64) -> u64, ended: fn(u64) -> u64| {
            is_growing(&timeline(due, ended), &(0.0..10.0), 0.0).unwrap()
        };
        assert!(grows(|_| 10, |_| 6));
        assert!(grows(|_| 10, |_| 8), "a fifth more than is carried");
        // A steady one, one that is short, one that comes with the load, and one that shrinks again.
        assert!(!grows(|_| 10, |_| 10));
        assert!(!grows(|_| 10, |index| 10 - index % 2 * 2 + (index + 1) % 2 * 2));
        assert!(!grows(|index| 10 + index, |_| 10));
        assert!(!grows(|_| 10, |index| if index < 20 { 6 } else { 14 }));
        assert!(!grows(|_| 1, |index| u64::from(index % 5 != 0)), "eight more are chance");
        assert_eq!(is_growing(&timeline(|_| 10, |_| 6), &(0.0..3.5), 0.0), None);
    }

    /// Answers that take five seconds: nothing ends before that, and then as many as come.
    #[test]
    fn a_service_that_is_filling_up_has_no_queue() {
        let filling = timeline(|_| 10, |index| if index < 20 { 0 } else { 10 });
        assert_eq!(is_growing(&filling, &(0.0..10.0), 5.0), Some(false));
        let growing = timeline(|_| 10, |index| if index < 20 { 0 } else { 3 });
        assert_eq!(is_growing(&growing, &(0.0..10.0), 5.0), Some(true));
    }

    #[test]
    fn what_is_carried_is_what_comes_in_the_second_half() {
        let timeline = timeline(|_| 10, |index| if index < 20 { 0 } else { 6 });
        let carried = |loads_s: &[Range<f64>]| carried_rate(&timeline, loads_s).unwrap();
        assert!((carried(&[0.0..10.0]) - 24.0).abs() < 1e-9);
        assert!((carried(&[0.0..5.0, 5.0..10.0]) - 12.0).abs() < 1e-9);
        assert_eq!(carried_rate(&timeline, &[0.0..0.0]), None);
    }
}
