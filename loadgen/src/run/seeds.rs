//! The same load several times, each with arrivals and prompts of its own: how much of a figure is
//! chance.
//!
//! Must not measure anything.

use std::collections::BTreeMap;

use serde::Serialize;

use super::measure::Outcome;
use super::plan::Plan;
use super::report::Report;
use super::slo::Requirement;
use crate::compare::{METRICS, value_of};
use crate::spread::Spread;

/// What several runs have shown.
#[derive(Debug, Clone, Serialize)]
pub struct Seeds {
    /// The seed of each run.
    pub seeds: Vec<u64>,
    /// Each metric by its path in a report, over all runs that have it.
    pub metrics: BTreeMap<&'static str, Spread>,
}

/// Puts the runs together: the report of all of them, one after another, with each in `seeds`. What
/// was required must hold in each of them. `None` if there is no run.
///
/// # Errors
///
/// When a report cannot be written as JSON.
pub fn together(
    plan: &Plan,
    required: &[Requirement],
    runs: Vec<(Report, Outcome)>,
) -> Result<Option<(Report, Outcome)>, serde_json::Error> {
    if runs.len() < 2 {
        return Ok(runs.into_iter().next());
    }
    let (reports, outcomes): (Vec<Report>, Vec<Outcome>) = runs.into_iter().unzip();
    let jsons = reports
        .iter()
        .map(|report| serde_json::to_value(&report.total))
        .collect::<Result<Vec<_>, _>>()?;
    let metrics = METRICS
        .iter()
        .filter_map(|metric| {
            let values = jsons.iter().filter_map(|json| value_of(json, metric)).collect();
            Some((*metric, Spread::of(values)?))
        })
        .collect();
    let Some(outcome) = outcomes.into_iter().reduce(Outcome::followed_by) else { return Ok(None) };
    let mut report = Report::new(plan, &outcome, required);
    report.seed = reports.first().map_or(plan.seed, |first| first.seed);
    for (index, verdict) in report.requirements.iter_mut().enumerate() {
        let mut each = reports.iter().filter_map(|report| report.requirements.get(index));
        if let Some(failed) = each.find(|verdict| !verdict.holds) {
            *verdict = failed.clone();
        }
    }
    let seeds_of = |is: fn(&Report) -> bool| {
        let those = reports.iter().filter(|report| is(report));
        those.map(|report| report.seed.to_string()).collect::<Vec<_>>().join(", ")
    };
    let invalid = seeds_of(|report| report.client.is_bottleneck);
    let unanswered = seeds_of(|report| !report.has_answer());
    for (what, seeds) in [("INVALID", invalid), ("without a whole answer", unanswered)] {
        if !seeds.is_empty() {
            report.warnings.push(format!("{what}: the runs of seed {seeds}"));
        }
    }
    let seeds = reports.iter().map(|report| report.seed).collect();
    report.seeds = Some(Seeds { seeds, metrics });
    Ok(Some((report, outcome)))
}
