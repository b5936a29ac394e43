//! How far the clock of a Prometheus is from this process's, so that the ages of samples are true.
//!
//! Must not touch times that make sense as they are: a proxy in between may tell a time of its own.

use tracing::warn;

use crate::decision::Moment;
use crate::source::engines::Batch;

/// The newest sample of an answer is younger than this: two reads of a Prometheus that scrapes every
/// 15 s. Where it seems to be, nothing is corrected.
const PLAUSIBLE_MS: i64 = 30_000;
/// A clock under which the newest sample is of a time further in the future is not the one that took
/// it: what an answer's way and the whole seconds of its header make of a difference.
const FUTURE_MS: i64 = 5_000;
/// Differences below this are not told from how long an answer was on its way.
const MEANT_MS: u64 = 10_000;
/// What is known of the other clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Skew {
    /// Milliseconds by which it is ahead.
    ahead_ms: i64,
    /// The same as it was logged last.
    logged_ms: i64,
}

impl Skew {
    /// Milliseconds by which the other clock is ahead; 0 where its times make sense as they are.
    pub(super) fn ahead_ms(self) -> i64 {
        self.ahead_ms
    }

    /// Learns from an answer that came at `now`.
    pub(super) fn learn(&mut self, batch: &Batch, now: Moment) {
        let Some(newest) = batch.series.iter().map(|series| series.at).max() else { return };
        self.note(newest, batch.told_at, now);
        // Of two copies behind one address it may change with every answer.
        if self.ahead_ms != 0 && self.ahead_ms.abs_diff(self.logged_ms) >= MEANT_MS {
            self.logged_ms = self.ahead_ms;
            let ahead_s = self.ahead_ms / 1_000;
            warn!(
                ahead_s,
                "a Prometheus has another time than this machine: its samples are corrected"
            );
        }
    }

    fn note(&mut self, newest: Moment, told_at: Option<Moment>, now: Moment) {
        let age_ms = |ahead_ms| now.0.saturating_sub(newest.0.saturating_sub(ahead_ms));
        let fits = |ahead_ms| (-FUTURE_MS..PLAUSIBLE_MS).contains(&age_ms(ahead_ms));
        let told_ms = told_at.map(|told_at| told_at.0.saturating_sub(now.0));
        let is_meant = |told_ms: i64| told_ms.unsigned_abs() >= MEANT_MS;
        let is_healed = told_ms.is_some_and(|told_ms| !is_meant(told_ms));
        // Else a small difference would come and go with the age of the newest sample.
        if self.ahead_ms != 0 && fits(self.ahead_ms) && !is_healed {
            return;
        }
        if is_healed || age_ms(0).abs() < PLAUSIBLE_MS {
            self.ahead_ms = 0;
        } else if let Some(told_ms) = told_ms.filter(|told_ms| fits(*told_ms)) {
            self.ahead_ms = told_ms;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::engines::NewestSample;
    use crate::source::prometheus::Labels;

    /// How old a sample is told to be, of an answer that came at second 1,000.
    fn age_s(skew: &mut Skew, sampled_s: i64, told_s: Option<i64>) -> i64 {
        let at = |second: i64| Moment(second * 1_000);
        let (name, labels) = ("x".into(), Labels::default());
        let series = vec![NewestSample { name, labels, value: 1.0, at: at(sampled_s) }];
        skew.learn(&Batch { series, told_at: told_s.map(at), ..Batch::default() }, at(1_000));
        1_000 - (at(sampled_s).0 - skew.ahead_ms()) / 1_000
    }

    #[test]
    fn ages_are_those_of_the_clock_that_took_the_samples() {
        for (what, sampled_s, told_s, age) in [
            ("no difference", 990, Some(1_000), 10),
            ("a target that is gone", 900, Some(1_000), 100),
            ("a minute behind", 930, Some(940), 10),
            ("a minute behind or a proxy, and its target gone", 840, Some(940), 160),
            ("ten minutes ahead", 1_590, Some(1_600), 10),
            ("a proxy with another time", 990, Some(1_060), 10),
            ("a proxy ahead, and scraped once a minute", 960, Some(1_060), 40),
            ("a proxy behind, and scraped once a minute", 960, Some(940), 40),
            ("no time told", 930, None, 70),
            ("within the header's seconds", 965, Some(995), 35),
        ] {
            assert_eq!(age_s(&mut Skew::default(), sampled_s, told_s), age, "{what}");
        }
    }

    #[test]
    fn a_difference_that_ends_is_forgotten_and_one_that_stays_is_kept() {
        let mut skew = Skew::default();
        assert_eq!(age_s(&mut skew, 930, Some(940)), 10);
        assert_eq!(age_s(&mut skew, 936, Some(946)), 4, "small steps move nothing");
        assert_eq!(age_s(&mut skew, 870, Some(940)), 70, "its target is gone");
        assert_eq!(age_s(&mut skew, 995, Some(1_000)), 5);
        assert_eq!(skew.ahead_ms(), 0);
    }

    #[test]
    fn a_small_difference_does_not_come_and_go_with_the_age_of_the_newest_sample() {
        let mut skew = Skew::default();
        for (sampled_s, age) in [(965, 15), (975, 5), (979, 1), (960, 20)] {
            assert_eq!(age_s(&mut skew, sampled_s, Some(980)), age);
        }
        assert_eq!(age_s(&mut skew, 975, Some(1_000)), 25, "it is told that it has ended");
        assert_eq!(age_s(&mut skew, 965, Some(980)), 15);
        assert_eq!(age_s(&mut skew, 990, None), 10, "it can be seen that it has ended");
    }

    #[test]
    fn what_a_proxy_told_is_forgotten_once_times_make_sense_without_it() {
        let mut skew = Skew::default();
        // A minute behind: nobody can tell that this is not the time of the samples.
        assert_eq!(age_s(&mut skew, 930, Some(935)), 5);
        assert_eq!(age_s(&mut skew, 990, Some(935)), 10);
        assert_eq!(age_s(&mut skew, 960, Some(1_060)), 40);
        assert_eq!(age_s(&mut skew, 990, Some(1_060)), 10);
    }
}
