//! What is promised to a user, and what a run must reach for its exit code.
//!
//! Pure.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::record::Class;
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
    let judged = class.scheduled.saturating_sub(class.censored);
    (judged > 0).then(|| class.good as f64 / judged as f64)
}

/// What must hold for an exit code of 0: `99%` of the requests within their SLO, or a bound such
/// as `ttft.p99<2s`, `tpot.p50<50ms`, `errors<1%`.
#[derive(Debug, Clone, PartialEq)]
pub struct Requirement {
    text: String,
    bound: Bound,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bound {
    Attainment(f64),
    Errors(f64),
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

/// How a requirement came out.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// As it was written.
    pub requirement: String,
    /// Whether it holds; without a measurement it does not.
    pub holds: bool,
    /// What was measured: a share, or seconds.
    pub measured: Option<f64>,
}

impl Requirement {
    /// The share of good requests, if that is what is asked.
    #[must_use]
    pub fn attainment(&self) -> Option<f64> {
        match self.bound {
            Bound::Attainment(share) => Some(share),
            Bound::Errors(_) | Bound::Time { .. } => None,
        }
    }

    /// Judges what was measured.
    #[must_use]
    pub fn judge(&self, class: &Class) -> Verdict {
        let (measured, holds) = match self.bound {
            Bound::Attainment(least) => {
                let share = attainment(class);
                (share, share.is_some_and(|share| share >= least))
            }
            Bound::Errors(most) => {
                let share =
                    (class.scheduled > 0).then(|| class.n_errors() as f64 / class.scheduled as f64);
                (share, share.is_some_and(|share| share <= most))
            }
            Bound::Time { metric, quantile, most_s } => {
                let times = match metric {
                    Metric::Ttft => &class.ttft,
                    Metric::Tpot => &class.tpot,
                    Metric::Itl => &class.itl,
                    Metric::E2e => &class.e2e,
                    Metric::ScheduleLag => &class.schedule_lag,
                };
                let seconds = times.quantile(quantile);
                (seconds, seconds.is_some_and(|seconds| seconds <= most_s))
            }
        };
        Verdict { requirement: self.text.clone(), holds, measured }
    }
}

impl FromStr for Requirement {
    type Err = RequirementError;

    fn from_str(text: &str) -> Result<Requirement, RequirementError> {
        let error = || RequirementError { text: text.to_owned() };
        let trimmed = text.trim();
        let bound = match trimmed.split_once(['<', '>']) {
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

/// `99%`, `99` and `0.99` are the same share.
fn share(text: &str) -> Option<f64> {
    let (number, is_percent) = match text.strip_suffix('%') {
        Some(number) => (number, true),
        None => (text, false),
    };
    let number: f64 = number.trim().parse().ok()?;
    let share = if is_percent || number > 1.0 { number / 100.0 } else { number };
    (0.0..=1.0).contains(&share).then_some(share)
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The text is no requirement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is no requirement: expected a share such as 99%, or a bound such as ttft.p99<2s, \
     tpot.p50<50ms, e2e.max<1m, lag.p99<1ms or errors<1%"
)]
pub struct RequirementError {
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class() -> Class {
        let mut class = Class { scheduled: 101, censored: 1, good: 98, ..Class::default() };
        class.errors.insert(super::super::failure::Failure::Connect, 2);
        for ms in 1..=100 {
            class.ttft.note(f64::from(ms) / 1e3);
        }
        class
    }

    #[test]
    fn requirements_are_judged_by_what_was_measured() {
        for (text, holds) in [
            ("98%", true),
            ("98", true),
            ("0.98", true),
            ("99%", false),
            ("goodput>=98%", true),
            ("ttft.p50<51ms", true),
            ("ttft.p50<49ms", false),
            ("ttft_p99<=0.1", true),
            ("ttft.max<99ms", false),
            ("errors<2%", true),
            ("errors<1%", false),
            ("tpot.p50<1h", false),
        ] {
            let verdict = text.parse::<Requirement>().unwrap().judge(&class());
            assert_eq!(verdict.holds, holds, "{text}: {verdict:?}");
        }
    }

    #[test]
    fn what_is_no_requirement_is_refused() {
        for text in ["", "x", "-1", "101%", "ttft<2s", "ttft.p99<x", "ttft.p99>2s", "speed.p50<1s"]
        {
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
