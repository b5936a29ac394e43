//! One line of the results for each policy and setting: means over the seeds.
//!
//! Must not print; [`super::report`] does.

use serde::Serialize;

use super::candidate::Why;
use super::outcome::Outcome;
use super::study::{Entry, Study};
use crate::decision::LearnedCost;

/// One line of the results: means over the seeds.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The trace.
    pub trace: String,
    /// The policy.
    pub policy: String,
    /// Its setting.
    pub setting: String,
    /// Why it was run: `default`, `documented`, `best_of_sweep`, `swept`, `ablation`, `reference`.
    pub why: &'static str,
    /// Share of requests within max(TTFT target, 2 × alone) and the TPOT target, 0 to 1.
    pub attainment: f64,
    /// The same with the bare TTFT target.
    pub attainment_raw: f64,
    /// The lowest attainment of a seed.
    pub attainment_worst: f64,
    /// GPU-hours from the moment that a pod has its GPUs to its end: loading and draining count.
    pub gpu_hours: f64,
    /// GPU-hours of the cheapest clairvoyant plan at the bar.
    pub clairvoyant_gpu_hours: Option<f64>,
    /// GPU-hours of all work at full utilisation.
    pub fluid_gpu_hours: Option<f64>,
    /// GPU-hours over the clairvoyant's.
    pub ratio: Option<f64>,
    /// Pods created.
    pub cold_starts: f64,
    /// Changes against the direction of the one before, within ten minutes.
    pub flaps: f64,
    /// Seconds at the most replicas.
    pub time_at_max: f64,
    /// Mean replicas ordered, serving or draining.
    pub mean_replicas: f64,
    /// Most replicas ordered.
    pub max_replicas: u32,
    /// GPU-hours of pods that were loading.
    pub loading_gpu_hours: f64,
    /// GPU-hours of pods that were draining.
    pub draining_gpu_hours: f64,
    /// Regret at 95, 98 and 99 %: GPU-hours over the clairvoyant's there, less 1; `null` where the
    /// policy does not attain it.
    pub regret_95: Option<f64>,
    /// See `regret_95`.
    pub regret_98: Option<f64>,
    /// See `regret_95`.
    pub regret_99: Option<f64>,
    /// Quantiles of the time to the first token, seconds.
    pub ttft_p50_s: Option<f64>,
    /// See `ttft_p50_s`.
    pub ttft_p95_s: Option<f64>,
    /// See `ttft_p50_s`.
    pub ttft_p99_s: Option<f64>,
    /// The same of the whole answer.
    pub e2e_p99_s: Option<f64>,
    /// Attainment of prompts up to 1,000, 4,000 and 16,000 tokens and of longer ones; `null` where
    /// there are none.
    pub attainment_by_prompt: Vec<Option<f64>>,
    /// Replica-hours that waited for a node or for the GPUs of others; they cost nothing.
    pub unplaced_hours: f64,
    /// Ours: the learned engine model and its error, as it was last in force in the first seed's run.
    pub learned: Option<LearnedCost>,
    /// Ours: seconds from the first tick until the level came from the learned model.
    pub learned_after_s: Option<f64>,
    /// Ours: seconds from the first tick until the mean request's cost by the model in force was
    /// within 10 % of the true one.
    pub learned_within_10_percent_after_s: Option<f64>,
    /// Ours: the same from the last change of the engine on; `null` if it never changes.
    pub relearned_within_10_percent_after_s: Option<f64>,
}

impl Row {
    /// The policy, with its setting where it has one.
    #[must_use]
    pub fn name(&self) -> String {
        if self.setting.is_empty() {
            self.policy.clone()
        } else {
            format!("{} ({})", self.policy, self.setting)
        }
    }
}

/// A study's lines.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    /// The product, documented settings and the best of each sweep.
    pub results: Vec<Row>,
    /// The other points of the sweeps.
    pub sweep: Vec<Row>,
    /// The product with one rule off at a time.
    pub ablations: Vec<Row>,
    /// The clairvoyant at the bar, and the smallest static fleet.
    pub references: Vec<Row>,
}

impl Study {
    /// All lines.
    #[must_use]
    pub fn rows(&self) -> Rows {
        let mut rows = Rows { references: self.reference_rows(), ..Rows::default() };
        let all: Vec<Row> = self.entries.iter().map(|entry| self.row_of(entry)).collect();
        for (entry, row) in self.entries.iter().zip(&all) {
            let mut row = row.clone();
            match entry.candidate.why {
                Why::Default | Why::Documented => rows.results.push(row),
                Why::Ablation => rows.ablations.push(row),
                Why::Swept => {
                    let same = self.entries.iter().zip(&all).filter(|(other, _)| {
                        other.candidate.policy == entry.candidate.policy
                            && other.candidate.why == Why::Swept
                    });
                    let best = best(same.map(|(_, row)| row), self.scene.bar);
                    if best.is_some_and(|best| best.setting == row.setting) {
                        row.why = "best_of_sweep";
                        rows.results.push(row);
                    } else {
                        rows.sweep.push(row);
                    }
                }
            }
        }
        rows
    }

    /// The line of one candidate.
    fn row_of(&self, entry: &Entry) -> Row {
        let why = match entry.candidate.why {
            Why::Default => "default",
            Why::Documented => "documented",
            Why::Swept => "swept",
            Why::Ablation => "ablation",
        };
        let outcomes: Vec<&Outcome> = entry.outcomes.iter().collect();
        let mut row = self.row(entry.candidate.policy, &entry.candidate.setting, why, &outcomes);
        if let Some(learning) = &entry.learning {
            row.learned = learning.course.last().map(|&(_, model)| model);
            row.learned_after_s = learning.in_force_after_s;
            row.learned_within_10_percent_after_s = self.truth.near_after_s(learning);
            row.relearned_within_10_percent_after_s = self.truth.near_again_after_s(learning);
        }
        row
    }

    fn reference_rows(&self) -> Vec<Row> {
        let Some(bounds) = &self.bounds else { return Vec::new() };
        let named = [
            ("clairvoyant", bounds.clairvoyant(self.scene.bar)),
            ("static", bounds.fixed.as_ref()),
        ];
        named
            .into_iter()
            .filter_map(|(name, point)| {
                let point = point?;
                Some(self.row(name, &point.setting, "reference", &[&point.outcome]))
            })
            .collect()
    }

    fn row(&self, policy: &str, setting: &str, why: &'static str, outcomes: &[&Outcome]) -> Row {
        let gpus = self.scene.gpus as f64;
        let n = outcomes.len().max(1) as f64;
        let mean = |of: &dyn Fn(&Outcome) -> f64| outcomes.iter().map(|o| of(o)).sum::<f64>() / n;
        let gpu_hours = mean(&Outcome::replica_hours) * gpus;
        let attainment = mean(&Outcome::attainment);
        let clairvoyant = |bar: f64| {
            let point = self.bounds.as_ref()?.clairvoyant(bar)?;
            Some(point.outcome.replica_hours() * gpus)
        };
        let regret = |bar: f64| {
            let attains = attainment >= bar;
            clairvoyant(bar).filter(|_| attains).map(|hours| gpu_hours / hours - 1.0)
        };
        let first = outcomes.first();
        let quantile = |share: f64| first.and_then(|outcome| outcome.ttft.quantile(share));
        let clairvoyant_gpu_hours = clairvoyant(self.scene.bar);
        Row {
            trace: self.scene.trace.clone(),
            policy: policy.to_owned(),
            setting: setting.to_owned(),
            why,
            attainment,
            attainment_raw: mean(&Outcome::attainment_raw),
            attainment_worst: outcomes.iter().map(|o| o.attainment()).fold(1.0, f64::min),
            gpu_hours,
            clairvoyant_gpu_hours,
            fluid_gpu_hours: self.bounds.as_ref().map(|bounds| bounds.fluid_hours * gpus),
            ratio: clairvoyant_gpu_hours.map(|hours| gpu_hours / hours),
            cold_starts: mean(&|o| f64::from(o.cold_starts)),
            flaps: mean(&|o| f64::from(o.flaps)),
            time_at_max: mean(&|o| o.at_max_s),
            mean_replicas: mean(&Outcome::replica_hours) / self.scene.hours.max(1e-9),
            max_replicas: outcomes.iter().map(|o| o.max_replicas).max().unwrap_or(0),
            loading_gpu_hours: mean(&|o| o.loading_s / 3_600.0) * gpus,
            draining_gpu_hours: mean(&|o| o.draining_s / 3_600.0) * gpus,
            regret_95: regret(0.95),
            regret_98: regret(0.98),
            regret_99: regret(0.99),
            ttft_p50_s: quantile(0.5),
            ttft_p95_s: quantile(0.95),
            ttft_p99_s: quantile(0.99),
            e2e_p99_s: first.and_then(|outcome| outcome.e2e.quantile(0.99)),
            attainment_by_prompt: by_prompt(outcomes),
            unplaced_hours: mean(&|o| o.unplaced_s / 3_600.0),
            learned: None,
            learned_after_s: None,
            learned_within_10_percent_after_s: None,
            relearned_within_10_percent_after_s: None,
        }
    }
}

fn by_prompt(outcomes: &[&Outcome]) -> Vec<Option<f64>> {
    let n_groups = outcomes.first().map_or(0, |outcome| outcome.by_length.len());
    (0..n_groups)
        .map(|group| {
            let sum = |of: fn(&(u64, u64)) -> u64| -> u64 {
                outcomes.iter().filter_map(|outcome| outcome.by_length.get(group)).map(of).sum()
            };
            let (all, good) = (sum(|group| group.0), sum(|group| group.1));
            (all > 0).then(|| good as f64 / all as f64)
        })
        .collect()
}

/// The cheapest that attains the bar, else the one that attains most.
#[must_use]
pub fn best<'a>(rows: impl Iterator<Item = &'a Row> + Clone, bar: f64) -> Option<&'a Row> {
    let attains = rows.clone().filter(|row| row.attainment >= bar);
    attains
        .min_by(|a, b| a.gpu_hours.total_cmp(&b.gpu_hours))
        .or_else(|| rows.max_by(|a, b| a.attainment.total_cmp(&b.attainment)))
}
