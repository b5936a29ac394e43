//! What is promised to a user, and what a run must reach for its exit code.
//!
//! Pure.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::record::{Class, Times};
use crate::duration;

/// The promise to one request, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Slo {
    /// Until the first token, from the intended start.
    pub ttft_s: f64,
    /// For each token after the first, in the mean.
    pub tpot_s: f64,
    /// Until the last, if that is promised too.
    pub e2e_s: Option<f64>,
}

impl Slo {
    /// Whether a whole answer kept it. An answer that came in one piece shows no first token and
    /// no time per token: these count as kept, and only the whole time is judged.
    #[must_use]
    pub fn is_met(&self, ttft_s: Option<f64>, tpot_s: Option<f64>, e2e_s: f64) -> bool {
        ttft_s.is_none_or(|ttft_s| ttft_s <= self.ttft_s)
            && tpot_s.is_none_or(|tpot_s| tpot_s <= self.tpot_s)
            && self.e2e_s.is_none_or(|most_s| e2e_s <= most_s)
    }
}

/// The share of good requests among those that could be judged; `None` if there was none.
#[must_use]
pub fn attainment(class: &Class) -> Option<f64> {
    let judged = n_judged(class);
    (judged > 0).then(|| class.good as f64 / judged as f64)
}

/// Requests of which it is known whether they were answered as promised: all that were due, but
/// those that were open at the end and could still have been.
pub(super) fn n_judged(class: &Class) -> u64 {
    class.scheduled.saturating_sub(class.censored)
}

/// What must hold for an exit code of 0: `99%` of the requests within their SLO, or a bound such
/// as `ttft.p99<2s`, `tpot.p50<50ms`, `errors<1%`; or `valid`: nobody stopped the run, and the
/// client was not its bottleneck.
#[derive(Debug, Clone, PartialEq)]
pub struct Requirement {
    text: String,
    bound: Bound,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bound {
    Attainment(f64),
    Errors(f64),
    Valid,
    Time { metric: Metric, quantile: f64, most_s: f64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Metric {
    Ttft,
    Tpot,
    Itl,
    E2e,
    ScheduleLag,
}

/// What a measured value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A share, 0 to 1.
    Share,
    /// Seconds.
    Seconds,
}

/// How a requirement came out.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// As it was written.
    pub requirement: String,
    /// Whether it holds; without a measurement it does not.
    pub holds: bool,
    /// What was measured; `null` also where the rank that the bound is about fell on a request that
    /// has no such time.
    pub measured: Option<f64>,
    /// What `measured` is.
    pub unit: Unit,
    /// Requests that failed, never left or were open for longer than the bound: each counts as a
    /// time longer than any that was measured. 0 where no time is bounded.
    pub without_time: u64,
}

impl Requirement {
    /// A share of good requests, 0 to 1.
    #[must_use]
    pub fn share(share: f64) -> Requirement {
        Requirement { text: format!("{}%", share * 100.0), bound: Bound::Attainment(share) }
    }

    /// Whether it is about the run rather than about the service.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.bound == Bound::Valid
    }

    /// How many pieces of a stream show the time that it bounds: with fewer it cannot hold.
    #[must_use]
    pub fn least_pieces(&self) -> u32 {
        match self.bound {
            Bound::Time { metric: Metric::Ttft, .. } => 1,
            Bound::Time { metric: Metric::Tpot | Metric::Itl, .. } => 2,
            Bound::Time { metric: Metric::E2e | Metric::ScheduleLag, .. }
            | Bound::Attainment(_)
            | Bound::Errors(_)
            | Bound::Valid => 0,
        }
    }

    /// The share of good requests, if that is what is asked.
    #[must_use]
    pub fn attainment(&self) -> Option<f64> {
        match self.bound {
            Bound::Attainment(share) => Some(share),
            Bound::Errors(_) | Bound::Valid | Bound::Time { .. } => None,
        }
    }

    /// Judges what was measured; `is_valid` says whether it is about the server and whole.
    #[must_use]
    pub fn judge(&self, class: &Class, is_valid: bool) -> Verdict {
        let share = |measured: Option<f64>, is_met: &dyn Fn(f64) -> bool| Verdict {
            requirement: self.text.clone(),
            holds: measured.is_some_and(is_met),
            measured,
            unit: Unit::Share,
            without_time: 0,
        };
        match self.bound {
            Bound::Attainment(least) => share(attainment(class), &|share| share >= least),
            Bound::Errors(most) => {
                let judged = n_judged(class);
                let n_bad = judged.saturating_sub(class.completed);
                let measured = (judged > 0).then(|| n_bad as f64 / judged as f64);
                share(measured, &|share| share <= most)
            }
            Bound::Valid => share(Some(f64::from(u8::from(is_valid))), &|_| is_valid),
            Bound::Time { metric, quantile, most_s } => {
                let (times, without_time) = metric.times(class, most_s);
                let measured = times.quantile_beside(without_time, quantile);
                Verdict {
                    requirement: self.text.clone(),
                    holds: measured.is_some_and(|seconds| seconds <= most_s),
                    measured,
                    unit: Unit::Seconds,
                    without_time,
                }
            }
        }
    }
}

impl Metric {
    /// The times of those that have one, and how many have none and yet are known to be longer than
    /// `most_s`. What was open at the end and has not waited so long is in neither.
    fn times(self, class: &Class, most_s: f64) -> (&Times, u64) {
        let n_bad = n_judged(class).saturating_sub(class.completed);
        let n_beyond = |times: &Times, still_open: &Times| {
            class.scheduled.saturating_sub(times.len() + still_open.n_within(most_s))
        };
        match self {
            Metric::Ttft => (&class.ttft, n_beyond(&class.ttft, &class.waiting)),
            Metric::E2e => (&class.e2e, n_beyond(&class.e2e, &class.open)),
            Metric::Tpot => (&class.tpot, n_bad),
            Metric::Itl => (&class.itl, n_bad),
            Metric::ScheduleLag => {
                (&class.schedule_lag, class.scheduled.saturating_sub(class.sent))
            }
        }
    }
}

impl FromStr for Requirement {
    type Err = RequirementError;

    fn from_str(text: &str) -> Result<Requirement, RequirementError> {
        let error = || RequirementError { text: text.to_owned() };
        let trimmed = text.trim();
        let bound = match trimmed.split_once(['<', '>']) {
            None if trimmed == "valid" => Bound::Valid,
            None => Bound::Attainment(share(trimmed).ok_or_else(error)?),
            Some((name, limit)) => {
                let limit = limit.strip_prefix('=').unwrap_or(limit).trim();
                let is_least = trimmed.contains('>');
                match (name.trim(), is_least) {
                    ("goodput" | "attainment", true) => {
                        Bound::Attainment(share(limit).ok_or_else(error)?)
                    }
                    ("errors", false) => Bound::Errors(share(limit).ok_or_else(error)?),
                    (name, false) => time_bound(name, limit).ok_or_else(error)?,
                    (_, true) => return Err(error()),
                }
            }
        };
        Ok(Requirement { text: trimmed.to_owned(), bound })
    }
}

fn time_bound(name: &str, limit: &str) -> Option<Bound> {
    let (metric, quantile) = name.split_once(['.', ':', '_'])?;
    let metric = match metric {
        "ttft" => Metric::Ttft,
        "tpot" => Metric::Tpot,
        "itl" => Metric::Itl,
        "e2e" => Metric::E2e,
        "lag" => Metric::ScheduleLag,
        _ => return None,
    };
    let quantile = match quantile {
        "max" => 1.0,
        _ => quantile.strip_prefix('p')?.parse::<f64>().ok()? / 100.0,
    };
    let most_s = duration::parse_millis(limit).ok()? as f64 / 1e3;
    (0.0..=1.0).contains(&quantile).then_some(Bound::Time { metric, quantile, most_s })
}

/// `99%`, `99` and `0.99` are the same share; a bare `1` may be meant as 1 % or as all, and is none.
fn share(text: &str) -> Option<f64> {
    let (number, is_percent) = match text.strip_suffix('%') {
        Some(number) => (number, true),
        None => (text, false),
    };
    let number: f64 = number.trim().parse().ok()?;
    let is_ambiguous = !is_percent && (number - 1.0).abs() < f64::EPSILON;
    let share = if is_percent || number > 1.0 { number / 100.0 } else { number };
    ((0.0..=1.0).contains(&share) && !is_ambiguous).then_some(share)
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The text is no requirement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is no requirement: expected a share such as 99%, a bound such as ttft.p99<2s, \
     tpot.p50<50ms, e2e.max<1m, lag.p99<1ms or errors<1% (1 alone may mean 1% or 100%), or valid"
)]
pub struct RequirementError {
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 requests with a first token after 1 to 100 ms, 98 of them good; one more that was open,
    /// and had waited for 40 ms.
    fn class() -> Class {
        let mut class = Class { scheduled: 101, sent: 101, censored: 1, ..Class::default() };
        (class.completed, class.good, class.unfinished) = (98, 98, 1);
        class.errors.insert(super::super::failure::Failure::CutShort, 2);
        for ms in 1..=100 {
            class.ttft.note(f64::from(ms) / 1e3);
        }
        class.waiting.note(0.04);
        class.open.note(0.04);
        class
    }

    fn holds(text: &str, class: &Class) -> bool {
        text.parse::<Requirement>().unwrap().judge(class, true).holds
    }

    #[test]
    fn requirements_are_judged_by_what_was_measured() {
        for (text, expected) in [
            ("98%", true),
            ("98", true),
            ("0.98", true),
            ("99%", false),
            ("goodput>=98%", true),
            ("ttft.p50<51ms", true),
            ("ttft.p50<49ms", false),
            ("ttft_p99<=0.1", true),
            ("ttft.max<101ms", true),
            ("ttft.max<99ms", false),
            ("errors<2%", true),
            ("errors<1%", false),
            ("tpot.p50<1h", false),
            ("valid", true),
        ] {
            assert_eq!(holds(text, &class()), expected, "{text}");
        }
        assert!(!"valid".parse::<Requirement>().unwrap().judge(&class(), false).holds);
    }

    #[test]
    fn what_never_came_is_longer_than_what_did() {
        // As many again are refused: the median is the slowest of those that came.
        let mut refused = class();
        refused.scheduled += 100;
        refused.errors.insert(super::super::failure::Failure::Status(503), 100);
        let verdict = "ttft.p50<99ms".parse::<Requirement>().unwrap().judge(&refused, true);
        assert_eq!(verdict.without_time, 100);
        assert!((verdict.measured.unwrap() - 0.1).abs() < 1e-4, "{verdict:?}");
        for (text, expected) in
            [("ttft.p50<101ms", true), ("ttft.p51<1h", false), ("errors<50%", false)]
        {
            assert_eq!(holds(text, &refused), expected, "{text}");
        }
        // Those open for a second, or never sent in it, miss every bound below.
        let mut silent = class();
        silent.scheduled += 100;
        for _ in 0..100 {
            silent.waiting.note(1.0);
            silent.open.note(1.0);
        }
        for (text, expected) in [
            ("ttft.p50<101ms", true),
            ("ttft.p99<101ms", false),
            ("ttft.p99<2s", true),
            ("e2e.p50<900ms", false),
            ("errors<2%", false),
            ("lag.p50<1h", false),
        ] {
            assert_eq!(holds(text, &silent), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_requirement_is_refused() {
        for text in [
            "",
            "x",
            "-1",
            "101%",
            "ttft<2s",
            "ttft.p99<x",
            "ttft.p99>2s",
            "speed.p50<1s",
            "1",
            "errors<1",
        ] {
            assert!(text.parse::<Requirement>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_answer_in_one_piece_is_judged_by_its_whole_time() {
        let slo = Slo { ttft_s: 1.0, tpot_s: 0.1, e2e_s: None };
        assert!(slo.is_met(None, None, 99.0));
        assert!(!Slo { e2e_s: Some(5.0), ..slo }.is_met(None, None, 99.0));
        assert!(!slo.is_met(Some(1.1), Some(0.05), 2.0));
        assert!(!slo.is_met(Some(0.9), Some(0.11), 2.0));
        assert!(slo.is_met(Some(1.0), Some(0.1), 2.0));
    }
}
