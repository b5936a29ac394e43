//! The same load several times, each with arrivals and prompts of its own: how much of a figure is
//! chance.
//!
//! Must not measure anything.

use std::collections::BTreeMap;

use serde::Serialize;

use super::report::Report;
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

/// Puts the runs together: the last one's report, with all runs in `seeds`. What was required must
/// hold in each. `None` if there is no report.
///
/// # Errors
///
/// When a report cannot be written as JSON.
pub fn together(reports: Vec<Report>) -> Result<Option<Report>, serde_json::Error> {
    let seeds = reports.iter().map(|report| report.seed).collect();
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
    let several = reports.len() > 1;
    let together = reports.into_iter().reduce(|before, mut report| {
        for (verdict, earlier) in report.requirements.iter_mut().zip(before.requirements) {
            if !earlier.holds {
                *verdict = earlier;
            }
        }
        report
    });
    Ok(together.map(|mut report| {
        report.seeds = several.then_some(Seeds { seeds, metrics });
        report
    }))
}
