//! What each policy would have done on the reconstructed demand: `simulate`'s engines and policies.
//!
//! Must not be kinder to one policy than to another: all meet the same requests, in the demand that
//! was counted and in both of its bounds.

use std::convert::Infallible;
use std::sync::Arc;

use serde::Serialize;

use super::Error;
use super::model::Model;
use super::requests::{Bound, Shapes, Stretch};
use crate::simulate::Catalog;
use crate::simulate::bounds;
use crate::simulate::candidate::{Candidate, Why};
use crate::simulate::cold::ColdStart;
use crate::simulate::number::floor_index;
use crate::simulate::policy::{Action, Actuation, Policy, Slo, Source, View};
use crate::simulate::progress::Progress;
use crate::simulate::row::Row;
use crate::simulate::scenario::Scenario;
use crate::simulate::study::{Load, Plan, Study, run_study};
use crate::simulate::supply::Nodes;

/// The name of what really happened among the policies.
pub(super) const HISTORY: &str = "history";

/// A value and where it is from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin<T> {
    pub(super) value: T,
    pub(super) from: &'static str,
}

/// What is replayed, and under which bounds.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    /// What to call it.
    pub(super) name: &'a str,
    pub(super) stretch: &'a Stretch,
    pub(super) shapes: &'a Shapes,
    pub(super) model: &'a Model,
    /// Seconds from an order to the first request, in the mean.
    pub(super) cold_start: Origin<f64>,
    /// GPUs of a replica; the model's profile has as many.
    pub(super) gpus: Origin<u32>,
    /// Whether the recorded counts are of replicas ordered, or of such that served.
    pub(super) ordered: bool,
    pub(super) slo: Slo,
    pub(super) bar: f64,
    pub(super) min: u32,
    pub(super) max: Option<u32>,
    pub(super) seed: u64,
    pub(super) policies: &'a [String],
}

/// The results in the counted demand, and what the bounds make of them.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) study: Study,
    /// One for each result and reference of the study, in their order.
    pub(super) ranges: Vec<Range>,
}

/// The least and the most over the demands that the history allows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Range {
    /// Of the attainment.
    pub attainment_low: f64,
    /// See `attainment_low`.
    pub attainment_high: f64,
    /// Of the GPU-hours.
    pub gpu_hours_low: f64,
    /// See `gpu_hours_low`.
    pub gpu_hours_high: f64,
}

/// Runs everything.
///
/// # Errors
///
/// When a policy is not known.
pub(super) fn replay(setting: &Setting<'_>, progress: &Progress) -> Result<Replay, Error> {
    let candidates = candidates(setting)?;
    let max = setting.max.unwrap_or_else(|| default_max(setting));
    let run = |candidates: &[Candidate], bound: Bound, what: &'static str| {
        let error = setting.model.error();
        let profile = setting.model.slower(match bound {
            Bound::Low => 1.0 - error,
            Bound::Counted => 1.0,
            Bound::High => 1.0 + error,
        });
        let plan = Plan {
            profile: &profile,
            cold: ColdStart::of_mean(setting.cold_start.value),
            nodes: Nodes::default(),
            scenario: Scenario::NONE,
            slo: setting.slo,
            min: setting.min,
            max: Some(max),
            bar: setting.bar,
            candidates,
            references: bound == Bound::Counted,
        };
        let read = |seed| Ok(setting.stretch.workload(setting.shapes, &profile, bound, seed));
        let load: Load<'_, Infallible> = Load { name: setting.name.to_owned(), read: &read };
        let told = |step: &str, done: usize, of: usize| {
            progress.tell(&format!("{what}: {step}"), done, of);
        };
        match run_study(&plan, &[setting.seed], &load, &told) {
            Ok(study) => study,
            Err(never) => match never {},
        }
    };
    let study = run(&candidates, Bound::Counted, "replay");
    // Of a sweep only the best is shown.
    let shown = study.rows().results;
    let is_shown = |candidate: &Candidate| {
        shown.iter().any(|row| row.policy == candidate.policy && row.setting == candidate.setting)
    };
    let candidates: Vec<Candidate> = candidates.into_iter().filter(is_shown).collect();
    let others = [
        run(&candidates, Bound::Low, "least demand"),
        run(&candidates, Bound::High, "most demand"),
    ];
    let ranges = ranges(&study, &others);
    Ok(Replay { study, ranges })
}

/// The policies asked for at their defaults and documented settings, or over the whole sweep where
/// they have none; and what really happened.
fn candidates(setting: &Setting<'_>) -> Result<Vec<Candidate>, Error> {
    let mut all = Catalog::new().select(setting.policies)?;
    let told: Vec<&str> =
        all.iter().filter(|c| c.why != Why::Swept).map(|candidate| candidate.policy).collect();
    all.retain(|candidate| candidate.why != Why::Swept || !told.contains(&candidate.policy));
    let plan: Arc<[u32]> = ordered(setting).into();
    let bin_s = setting.stretch.bin_s;
    all.push(Candidate::new(HISTORY, "", Why::Default, move |_| Recorded {
        plan: Arc::clone(&plan),
        bin_s,
    }));
    Ok(all)
}

/// Replicas ordered in each bin. Those that were seen serving had been ordered a start before.
fn ordered(setting: &Setting<'_>) -> Vec<u32> {
    let replicas = &setting.stretch.replicas;
    if setting.ordered {
        return replicas.clone();
    }
    let lead = floor_index(setting.cold_start.value / setting.stretch.bin_s + 0.5);
    (0..replicas.len())
        .map(|bin| replicas.iter().skip(bin).take(lead + 1).copied().max().unwrap_or(0))
        .collect()
}

/// As `simulate` has it, and never fewer than there have been.
fn default_max(setting: &Setting<'_>) -> u32 {
    let profile = &setting.model.profile;
    let workload = setting.stretch.workload(setting.shapes, profile, Bound::Counted, setting.seed);
    let work = bounds::work_of(&workload, profile, Scenario::NONE);
    let most = setting.stretch.replicas.iter().copied().max().unwrap_or(1);
    bounds::default_max(&work).max(most).max(setting.min)
}

/// Of each result and reference, over the demand and both of its bounds.
fn ranges(study: &Study, others: &[Study]) -> Vec<Range> {
    let others: Vec<Row> = others.iter().flat_map(rows).collect();
    rows(study)
        .iter()
        .map(|row| {
            let same = others
                .iter()
                .filter(|other| other.policy == row.policy && other.setting == row.setting)
                .chain([row]);
            let fold = |of: fn(&Row) -> f64, pick: fn(f64, f64) -> f64, from: f64| {
                same.clone().map(of).fold(from, pick)
            };
            Range {
                attainment_low: fold(|row| row.attainment, f64::min, 1.0),
                attainment_high: fold(|row| row.attainment, f64::max, 0.0),
                gpu_hours_low: fold(|row| row.gpu_hours, f64::min, f64::INFINITY),
                gpu_hours_high: fold(|row| row.gpu_hours, f64::max, 0.0),
            }
        })
        .collect()
}

/// The lines of a study that are shown: results, then references.
pub(super) fn rows(study: &Study) -> Vec<Row> {
    let rows = study.rows();
    rows.results.into_iter().chain(rows.references).collect()
}

/// Orders what was ordered.
#[derive(Debug)]
struct Recorded {
    plan: Arc<[u32]>,
    bin_s: f64,
}

impl Policy for Recorded {
    fn tick_s(&self) -> f64 {
        self.bin_s
    }

    fn source(&self) -> Source {
        Source::Direct
    }

    fn actuation(&self) -> Actuation {
        Actuation::Direct
    }

    fn memory_s(&self) -> f64 {
        f64::MAX
    }

    fn initial(&self) -> Option<u32> {
        self.plan.first().copied()
    }

    fn tick(&mut self, view: &View<'_>) -> Action {
        let bin = floor_index(view.now_s / self.bin_s + 0.5);
        let wanted = self.plan.get(bin).or_else(|| self.plan.last());
        wanted.map_or(Action::Keep, |&wanted| Action::Replicas(wanted))
    }
}
