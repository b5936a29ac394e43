//! The highest rate that a service carries, and at which what is required holds: doubled until it no
//! longer does, then narrowed down. A rate at which a queue grows is not carried, however long its
//! users are told to wait: it would grow for as long as the rate is kept.
//!
//! Each step is a measurement of its own, with new arrivals. Must not judge the service by a step
//! in which the client was the bottleneck.

use std::sync::Arc;

use anyhow::Context as _;
use serde::Serialize;
use tokio::sync::watch;

use super::Args;
use super::failure::Failure;
use super::measure::Outcome;
use super::plan::{Load, Plan};
use super::progress::Display;
use super::report::Report;
use super::slo::Requirement;
use crate::spread;
use crate::traces::Curve;

/// Halvings of the interval, on a logarithmic scale: a factor of 2 becomes 4.4 %.
const HALVINGS: u32 = 4;
/// Doublings before it is given up.
const MOST_DOUBLINGS: u32 = 20;

/// What is asked of a step, unless `--require` says otherwise.
const LEAST_ATTAINMENT: f64 = 0.99;
/// What fails a step that is not carried.
const QUEUE: &str = "a queue that grows";

impl Args {
    /// Measures at one rate after the other; the report is that of the highest that held, or of the
    /// last.
    pub(super) async fn find_knee(
        &self,
        mut plan: Plan,
        interrupted: watch::Receiver<bool>,
        display: &mut Display,
    ) -> anyhow::Result<(Report, Outcome)> {
        let mut required = self.require.clone();
        if required.iter().all(Requirement::is_valid) {
            required.push(Requirement::share(LEAST_ATTAINMENT));
        }
        let mut search = Search::new(self.rate.as_ref().map_or(1.0, Curve::peak_per_s));
        let mut steps = Vec::new();
        let mut best: Option<(Report, Outcome, bool)> = None;
        let mut limit = None;
        while let Some(rate) = search.next_rate() {
            plan.load = Load::Rate { curve: Curve::constant(rate), process: self.arrival };
            plan.reseed(plan.seed.wrapping_add(1));
            match self.check_schedule(&plan, display) {
                Err(nothing_due) if steps.is_empty() => return Err(nothing_due),
                Err(_) => {
                    limit = Some(Limit::TooShort);
                    break;
                }
                Ok(_) => {}
            }
            let shared = Arc::new(plan);
            display.begin(format!("{rate}/s: "));
            let (report, outcome) = self.measure(&shared, interrupted.clone(), display).await?;
            if steps.is_empty() && report.is_unanswered() {
                // A lower rate is no more likely to be answered.
                return Ok((report, outcome));
            }
            plan = Arc::into_inner(shared).context("a thread outlived its run")?;
            let step = Step::of(rate, &report, &outcome, &required);
            let holds = step.holds && !step.interrupted;
            steps.push(step);
            if outcome.is_interrupted {
                limit = Some(Limit::Interrupted);
            } else {
                search.learn(rate, holds);
                limit = limit_of(&plan, &report, &outcome, &required, holds);
            }
            let is_better = |held: bool| holds || (!held && !outcome.is_interrupted);
            if best.as_ref().is_none_or(|(_, _, held)| is_better(*held)) {
                best = Some((report, outcome, holds));
            }
            if limit.is_some() {
                break;
            }
        }
        let (mut report, outcome, _) = best.context("no step was made")?;
        let (rate, fails_at) = search.found();
        let limit = match (limit, fails_at) {
            (Some(limit), _) => limit,
            (None, Some(_)) => Limit::Service,
            (None, None) => Limit::None,
        };
        report.interrupted |= limit == Limit::Interrupted;
        let knee = Knee {
            rate,
            fails_at,
            limit,
            required: required.iter().map(ToString::to_string).collect(),
            attainment: required.iter().find_map(Requirement::attainment),
            steps,
        };
        report.warnings.extend(knee.doubt());
        report.knee = Some(knee);
        Ok((report, outcome))
    }
}

/// What the search found.
#[derive(Debug, Clone, Serialize)]
pub struct Knee {
    /// The highest rate that held, in requests a second; `null` if none did.
    pub rate: Option<f64>,
    /// The lowest rate above it that did not; `null` if none was found.
    pub fails_at: Option<f64>,
    /// What ended the search.
    pub limit: Limit,
    /// What had to hold at a step, beside that it was carried.
    pub required: Vec<String>,
    /// The share of requests within their SLO that is among it, if it is.
    pub attainment: Option<f64>,
    /// The steps in the order they were made.
    pub steps: Vec<Step>,
}

/// What ended a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The service no longer kept what is required: the knee is between the two rates.
    Service,
    /// The client could send no faster: the service may carry more.
    Client,
    /// It held at every rate that was tried.
    None,
    /// A step is too short for a request to be due at a lower rate.
    TooShort,
    /// Somebody stopped it.
    Interrupted,
}

/// A rate that was tried.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// Requests a second.
    pub rate: f64,
    /// Requests due.
    pub scheduled: u64,
    /// Whole answers.
    pub completed: u64,
    /// Failures.
    pub errors: u64,
    /// The share within the SLO.
    pub attainment: Option<f64>,
    /// Where that share lies at 95 %, if requests are answered well by chance alone.
    pub attainment_interval: Option<(f64, f64)>,
    /// Whole answers to what was due in a second.
    pub achieved_rate: Option<f64>,
    /// Whole answers a second as they came in the second half of the step.
    pub carried_rate: Option<f64>,
    /// Whether a queue grew; `null` where the step is too short to tell.
    pub queue_grows: Option<bool>,
    /// Time to first token, 99th percentile, in seconds.
    pub ttft_p99: Option<f64>,
    /// Time per token, 99th percentile, in seconds.
    pub tpot_p99: Option<f64>,
    /// Whether it was carried, and all that is required holds.
    pub holds: bool,
    /// What of it does not; `a queue that grows` where it was not carried.
    pub fails: Vec<String>,
    /// Whether it was stopped, and so decided nothing.
    pub interrupted: bool,
}

impl Step {
    /// A step as its report has it.
    #[must_use]
    pub fn of(rate: f64, report: &Report, outcome: &Outcome, required: &[Requirement]) -> Step {
        let total = &report.total;
        let (measured, is_valid) = (outcome.record.total(), !outcome.is_bottleneck);
        let verdicts = required.iter().map(|required| required.judge(&measured, is_valid));
        let mut fails: Vec<String> =
            verdicts.filter(|verdict| !verdict.holds).map(|verdict| verdict.requirement).collect();
        if report.queue_grows == Some(true) {
            fails.push(QUEUE.to_owned());
        }
        Step {
            rate,
            scheduled: total.scheduled,
            completed: total.completed,
            errors: total.errors,
            attainment: total.attainment,
            attainment_interval: spread::share_interval(total.good, total.judged),
            achieved_rate: total.achieved_rate,
            carried_rate: report.carried_rate,
            queue_grows: report.queue_grows,
            ttft_p99: total.ttft.p99,
            tpot_p99: total.tpot.p99,
            holds: fails.is_empty(),
            fails,
            interrupted: report.interrupted,
        }
    }

    /// Whether chance alone may have put the share on the side of `least` on which it is.
    fn is_chance(&self, least: f64) -> bool {
        self.attainment_interval.is_some_and(|(low, high)| (low..high).contains(&least))
    }
}

/// Why a step that was not stopped ends the search, if it does. A step that held although the client
/// was late says nothing against going on: its lateness is in its times. One that failed is the
/// client's fault if its lag took a tenth of what is promised, or half of the time in a queue that
/// grows, if requests never left, or if it fails for being the client's fault.
#[must_use]
pub fn limit_of(
    plan: &Plan,
    report: &Report,
    outcome: &Outcome,
    required: &[Requirement],
    holds: bool,
) -> Option<Limit> {
    let total = outcome.record.total();
    let promised_s =
        plan.classes.iter().map(|class| class.slo.ttft_s).fold(f64::INFINITY, f64::min);
    let lag_s = total.usual_lag().map_or(0.0, |(_, lag_s)| lag_s);
    let is_own_queue = report.queue_grows == Some(true)
        && total.ttft.quantile(0.5).is_some_and(|ttft_s| lag_s > ttft_s / 2.0);
    let is_refused = outcome.is_bottleneck && required.iter().any(Requirement::is_valid);
    let is_client = lag_s > promised_s / 10.0
        || is_own_queue
        || is_refused
        || outcome.record.unsent > 0
        || total.errors.contains_key(&Failure::ClientLimit);
    (is_client && !holds).then_some(Limit::Client)
}

/// Which rate to try next.
#[derive(Debug, Clone)]
pub struct Search {
    first: f64,
    holds: Option<f64>,
    fails: Option<f64>,
    doublings: u32,
    halvings: u32,
}

impl Search {
    /// Begins at a rate.
    #[must_use]
    pub fn new(first: f64) -> Search {
        Search { first, holds: None, fails: None, doublings: 0, halvings: 0 }
    }

    /// The next rate; `None` when the knee is known well enough or not to be found.
    #[must_use]
    pub fn next_rate(&self) -> Option<f64> {
        match (self.holds, self.fails) {
            (None, None) => Some(self.first),
            (Some(holds), None) => {
                (self.doublings < MOST_DOUBLINGS).then(|| four_digits(holds * 2.0))
            }
            (None, Some(fails)) => {
                (self.doublings < MOST_DOUBLINGS).then(|| four_digits(fails / 2.0))
            }
            (Some(holds), Some(fails)) => {
                (self.halvings < HALVINGS).then(|| four_digits((holds * fails).sqrt()))
            }
        }
    }

    /// Learns how a rate came out.
    pub fn learn(&mut self, rate: f64, holds: bool) {
        if self.holds.is_some() && self.fails.is_some() {
            self.halvings += 1;
        } else {
            self.doublings += 1;
        }
        if holds {
            self.holds = Some(rate);
        } else {
            self.fails = Some(rate);
        }
    }

    /// What is known in the end.
    #[must_use]
    pub fn found(&self) -> (Option<f64>, Option<f64>) {
        (self.holds, self.fails)
    }
}

/// A rate that can be read and given again: four digits of it, exact to 0.05 %.
fn four_digits(rate: f64) -> f64 {
    format!("{rate:.3e}").parse().unwrap_or(rate)
}

impl Knee {
    /// What makes it doubtful, in a sentence: too few requests at the rates that decide it, or steps
    /// too short to see a queue.
    #[must_use]
    pub fn doubt(&self) -> Option<String> {
        let decides = |step: &&Step| {
            !step.interrupted && [self.rate, self.fails_at].contains(&Some(step.rate))
        };
        let mut deciding = self.steps.iter().filter(decides);
        let by_chance = self.attainment.and_then(|least| {
            let unsure = deciding.clone().filter(|step| step.is_chance(least));
            let step = unsure.min_by_key(|step| step.scheduled)?;
            let (low, high) = step.attainment_interval?;
            Some(format!(
                "the knee may be chance: of {} requests at {}/s the share within SLO is {:.1} to \
                 {:.1} % at 95 %; a longer --duration tells it apart from {} %",
                step.scheduled,
                step.rate,
                low * 100.0,
                high * 100.0,
                least * 100.0
            ))
        });
        by_chance.or_else(|| {
            let blind = deciding.find(|step| step.holds && step.queue_grows.is_none())?;
            Some(format!(
                "the step at {}/s is too short to see whether a queue grows: raise --duration to \
                 several times what an answer takes, 5 s at least",
                blind.rate
            ))
        })
    }

    /// In a sentence.
    #[must_use]
    pub fn verdict(&self) -> String {
        let required: Vec<String> = self
            .required
            .iter()
            .map(|bound| match bound.ends_with('%') && !bound.contains(['<', '>']) {
                true => format!("{bound} within SLO"),
                false => bound.clone(),
            })
            .collect();
        let required = required.join(", ");
        let failed = self.steps.iter().filter(|step| Some(step.rate) == self.fails_at);
        let why = failed.map(|step| step.fails.join(", ")).next_back().unwrap_or_default();
        let at = |rate: Option<f64>| {
            rate.map_or_else(|| "no rate tried".to_owned(), |rate| format!("{rate:.2}/s"))
        };
        match self.limit {
            Limit::Service => format!(
                "knee: carried with {required} at {}, no longer at {} ({why})",
                at(self.rate),
                at(self.fails_at)
            ),
            Limit::Client => {
                format!(
                    "knee not reached: held at {}, then the client was the limit",
                    at(self.rate)
                )
            }
            Limit::None => format!("knee not reached: held at {}", at(self.rate)),
            Limit::TooShort => format!(
                "knee not found: fails at {}, and at less nothing is due in a step: raise --duration",
                at(self.fails_at)
            ),
            Limit::Interrupted => format!("stopped: held at {} so far", at(self.rate)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(first: f64, carries: f64) -> (Search, u32) {
        let mut search = Search::new(first);
        let mut steps = 0;
        while let Some(rate) = search.next_rate() {
            assert!(rate.to_string().trim_matches(['0', '.']).len() <= 5, "{rate}");
            search.learn(rate, rate <= carries);
            steps += 1;
        }
        (search, steps)
    }

    #[test]
    fn the_knee_is_found_within_five_percent_from_either_side() {
        for (first, carries) in [(1.0, 37.3), (64.0, 37.3), (37.0, 37.3), (1.0, 1.01)] {
            let (search, steps) = search(first, carries);
            let (holds, fails) = search.found();
            let (holds, fails) = (holds.unwrap(), fails.unwrap());
            assert!(holds <= carries && carries < fails, "{holds} {carries} {fails}");
            assert!(fails / holds < 1.05, "{holds} {fails}");
            assert!(steps <= 12, "{steps}");
        }
    }

    #[test]
    fn a_search_ends_where_there_is_no_knee() {
        assert_eq!(search(1.0, 1e12).0.found().1, None);
        assert_eq!(search(1.0, 0.0).0.found().0, None);
    }

    fn step(rate: f64, good: u64, scheduled: u64) -> Step {
        Step {
            rate,
            scheduled,
            completed: scheduled,
            errors: 0,
            attainment: Some(good as f64 / scheduled as f64),
            attainment_interval: spread::share_interval(good, scheduled),
            achieved_rate: None,
            carried_rate: None,
            queue_grows: Some(false),
            ttft_p99: None,
            tpot_p99: None,
            holds: good * 100 >= scheduled * 99,
            fails: Vec::new(),
            interrupted: false,
        }
    }

    fn knee(steps: Vec<Step>) -> Knee {
        Knee {
            rate: Some(1.0),
            fails_at: Some(2.0),
            limit: Limit::Service,
            required: vec!["99%".to_owned(), "ttft.p99<20ms".to_owned()],
            attainment: Some(0.99),
            steps,
        }
    }

    #[test]
    fn a_knee_of_few_requests_is_doubted() {
        let doubt = |holds: (u64, u64), fails: (u64, u64)| {
            knee(vec![step(1.0, holds.0, holds.1), step(2.0, fails.0, fails.1)]).doubt()
        };
        let few = doubt((20, 20), (700, 1_000)).unwrap();
        assert!(few.contains("of 20 requests at 1/s") && few.contains("83.9 to 100.0 %"), "{few}");
        assert!(doubt((1_000, 1_000), (19, 20)).unwrap().contains("of 20 requests at 2/s"));
        assert_eq!(doubt((1_000, 1_000), (700, 1_000)), None);
        let blind = Step { queue_grows: None, ..step(1.0, 1_000, 1_000) };
        let blind = knee(vec![blind, step(2.0, 700, 1_000)]).doubt().unwrap();
        assert!(blind.contains("at 1/s is too short to see"), "{blind}");
    }

    #[test]
    fn a_knee_says_what_it_failed_for() {
        let fails = vec![QUEUE.to_owned()];
        let failed = Step { fails, ..step(2.0, 1_000, 1_000) };
        assert_eq!(
            knee(vec![step(1.0, 1_000, 1_000), failed]).verdict(),
            "knee: carried with 99% within SLO, ttft.p99<20ms at 1.00/s, no longer at 2.00/s (a \
             queue that grows)"
        );
    }
}
