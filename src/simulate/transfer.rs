//! What a setting that is best on one trace does on another.
//!
//! Must not run anything: sweeps of all traces are there already.

use serde::Serialize;

use super::row::{Row, Rows};

/// A policy whose knob was tuned on one trace, run on another.
#[derive(Debug, Clone, Serialize)]
pub struct Transfer {
    /// The policy.
    pub policy: String,
    /// The trace on which its setting is the best of the sweep.
    pub tuned_on: String,
    /// That setting.
    pub setting: String,
    /// The trace that it is run on.
    pub run_on: String,
    /// What it attains there, 0 to 1.
    pub attainment: f64,
    /// What it costs there.
    pub gpu_hours: f64,
    /// The same over the clairvoyant's.
    pub ratio: Option<f64>,
}

/// Every tuned policy on every trace. The product, which is not tuned, is there once for each trace.
#[must_use]
pub fn matrix(studies: &[Rows]) -> Vec<Transfer> {
    let mut all = Vec::new();
    for tuned in studies {
        for best in tuned.results.iter().filter(|row| row.why == "best_of_sweep") {
            for run in studies {
                let rows = run.results.iter().chain(&run.sweep);
                let mut same = rows.filter(|row| {
                    row.policy == best.policy
                        && row.setting == best.setting
                        && row.why != "documented"
                });
                all.extend(same.next().map(|row| transfer(best, row)));
            }
        }
    }
    for run in studies {
        let ours = run.results.iter().filter(|row| row.why == "default");
        all.extend(ours.map(|row| transfer(row, row)));
    }
    all
}

fn transfer(tuned: &Row, row: &Row) -> Transfer {
    Transfer {
        policy: row.policy.clone(),
        tuned_on: if tuned.why == "default" { String::new() } else { tuned.trace.clone() },
        setting: row.setting.clone(),
        run_on: row.trace.clone(),
        attainment: row.attainment,
        gpu_hours: row.gpu_hours,
        ratio: row.ratio,
    }
}
