//! How far the clock of a Prometheus is from this process's, so that the ages of samples are true.
//!
//! Must not touch times that make sense as they are: a proxy in between may tell a time of its own.

use tracing::warn;

use crate::decision::Moment;
use crate::source::engines::Batch;

/// The newest sample of an answer is younger than this: two reads of a Prometheus that scrapes every
/// 15 s. Where it seems to be, nothing is corrected.
const PLAUSIBLE_MS: u64 = 30_000;
/// Differences below this are not told from how long an answer was on its way.
const MEANT_MS: u64 = 10_000;

/// Milliseconds by which the other clock is ahead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Skew {
    ahead_ms: i64,
}

impl Skew {
    /// Puts the times of an answer that came at `now` on this process's clock.
    pub(super) fn correct(&mut self, batch: &mut Batch, now: Moment) {
        let newest = batch.series.iter().map(|series| series.at).max();
        if let (Some(newest), Some(told_at)) = (newest, batch.told_at)
            && self.note(newest, told_at, now)
        {
            let ahead_s = self.ahead_ms / 1_000;
            warn!(
                ahead_s,
                "a Prometheus has another time than this machine: its samples are corrected"
            );
        }
        for series in &mut batch.series {
            series.at = self.ours(series.at);
        }
    }

    /// Whether the difference is another one than was known.
    fn note(&mut self, newest: Moment, told_at: Moment, now: Moment) -> bool {
        if self.ours(newest).0.abs_diff(now.0) < PLAUSIBLE_MS {
            return false;
        }
        let ahead_ms = told_at.0.saturating_sub(now.0);
        let is_news = ahead_ms.abs_diff(self.ahead_ms) >= MEANT_MS;
        if is_news {
            self.ahead_ms = if ahead_ms.unsigned_abs() < MEANT_MS { 0 } else { ahead_ms };
        }
        is_news
    }

    fn ours(self, at: Moment) -> Moment {
        Moment(at.0.saturating_sub(self.ahead_ms))
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
        let mut batch = Batch { series, told_at: told_s.map(at), ..Batch::default() };
        skew.correct(&mut batch, at(1_000));
        1_000 - batch.series[0].at.0 / 1_000
    }

    #[test]
    fn ages_are_those_of_the_clock_that_took_the_samples() {
        for (what, sampled_s, told_s, age) in [
            ("no difference", 990, Some(1_000), 10),
            ("a target that is gone", 900, Some(1_000), 100),
            ("a minute behind", 930, Some(940), 10),
            ("a minute behind, and its target gone", 840, Some(940), 100),
            ("ten minutes ahead", 1_590, Some(1_600), 10),
            ("a proxy with another time", 990, Some(1_060), 10),
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
        assert_eq!(age_s(&mut skew, 995, Some(1_000)), 5);
        assert_eq!(skew, Skew::default());
    }
}
