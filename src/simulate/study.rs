//! One trace, one engine, many policies: runs them all and sets each beside the references.
//!
//! Must not print; [`super::report`] does.

use std::sync::atomic::{AtomicUsize, Ordering};

use loadgen::engine::Profile;
use serde::Serialize;

use super::baselines::token_aware::prefill_tokens_per_s;
use super::bounds::{self, Bounds};
use super::candidate::{Candidate, Context, Why};
use super::cold::ColdStart;
use super::outcome::Outcome;
use super::parallel;
use super::policy::Slo;
use super::reference::Work;
use super::run::{Setup, run};
use super::workload::Workload;
use crate::decision::LearnedCost;

/// What a study is about.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The engine and its GPUs.
    pub profile: &'a Profile,
    /// How long replicas take to start.
    pub cold: ColdStart,
    /// Latency targets.
    pub slo: Slo,
    /// Fewest replicas.
    pub min: u32,
    /// Most replicas; 1.25 × the busiest minute's need unless given.
    pub max: Option<u32>,
    /// The share of requests within their targets that is asked for, 0 to 1.
    pub bar: f64,
    /// The policies.
    pub candidates: &'a [Candidate],
    /// Whether references are searched; without them ratios are unknown.
    pub references: bool,
}

/// One candidate's results over all seeds.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The candidate.
    pub candidate: Candidate,
    /// One for each seed.
    pub outcomes: Vec<Outcome>,
    /// What it had learned at the end of the first seed's run.
    pub learned: Option<LearnedCost>,
}

/// The results of a study.
#[derive(Debug)]
pub struct Study {
    /// What was simulated.
    pub scene: Scene,
    /// The references, on the first seed.
    pub bounds: Option<Bounds>,
    /// Every candidate, in order.
    pub entries: Vec<Entry>,
}

/// The figures of a study's trace and fleet.
#[derive(Debug, Clone, Serialize)]
pub struct Scene {
    /// The engine profile.
    pub profile: String,
    /// GPUs of one replica.
    pub gpus: usize,
    /// Requests that count, on the first seed.
    pub requests: usize,
    /// Hours that count.
    pub hours: f64,
    /// Hours of warm-up before them.
    pub warmup_hours: f64,
    /// Mean prompt tokens.
    pub mean_prompt_tokens: f64,
    /// Mean output tokens.
    pub mean_output_tokens: f64,
    /// Fewest replicas.
    pub min: u32,
    /// Most replicas.
    pub max: u32,
    /// Replicas that the busiest minute needs at a utilisation of 0.7.
    pub peak_need: f64,
    /// Mean seconds from a pod's order to its first request.
    pub cold_start_s: f64,
    /// Time-to-first-token target in seconds.
    pub slo_ttft_s: f64,
    /// Time-per-output-token target in seconds.
    pub slo_tpot_s: f64,
    /// The share of requests within their targets that is asked for.
    pub bar: f64,
    /// Seeds.
    pub seeds: Vec<u64>,
}

/// Told how far a study is: what is done, how much of it, of how much.
pub type Progress<'a> = &'a (dyn Fn(&str, usize, usize) + Sync);

/// Runs a study on one workload for each seed.
///
/// # Errors
///
/// What `workload` fails with.
pub fn run_study<E>(
    plan: &Plan<'_>,
    seeds: &[u64],
    workload: impl Fn(u64) -> Result<Workload, E>,
    progress: Progress<'_>,
) -> Result<Study, E> {
    let mut scene = None;
    let mut found = None;
    let mut entries: Vec<Entry> = plan
        .candidates
        .iter()
        .map(|candidate| Entry {
            candidate: candidate.clone(),
            outcomes: Vec::new(),
            learned: None,
        })
        .collect();
    let n_runs = seeds.len() * entries.len();
    let n_done = AtomicUsize::new(0);
    for &seed in seeds {
        progress("reading the trace", 0, 0);
        let workload = workload(seed)?;
        let scene = scene.get_or_insert_with(|| {
            let work = bounds::work_of(&workload, plan.profile);
            (describe(plan, &workload, &work, seeds), work)
        });
        let (scene, work) = (&scene.0, &scene.1);
        let setup = Setup {
            profile: plan.profile,
            workload: &workload,
            cold: plan.cold,
            slo: plan.slo,
            min: scene.min,
            max: scene.max,
            seed,
        };
        if plan.references && found.is_none() {
            let done = |n| progress("references", n, 0);
            found = Some(bounds::find(&setup, work, plan.bar, &done));
        }
        let context = context(scene, plan.profile);
        let done = |_| {
            let n = n_done.fetch_add(1, Ordering::Relaxed) + 1;
            progress("policies", n, n_runs);
        };
        let results = parallel::map(plan.candidates, &done, |candidate| {
            let mut policy = (candidate.make)(&context);
            let outcome = run(&setup, policy.as_mut());
            (outcome, policy.learned())
        });
        for (entry, (outcome, learned)) in entries.iter_mut().zip(results) {
            entry.outcomes.push(outcome);
            entry.learned = entry.learned.or(learned);
        }
    }
    let scene = scene.map(|(scene, _)| scene).unwrap_or_else(|| Scene::of_nothing(plan));
    Ok(Study { scene, bounds: found, entries })
}

fn describe(plan: &Plan<'_>, workload: &Workload, work: &Work, seeds: &[u64]) -> Scene {
    let requests = workload.counted();
    let n = requests.len().max(1) as f64;
    let mean = |of: fn(&super::workload::Request) -> u32| {
        requests.iter().map(|request| f64::from(of(request))).sum::<f64>() / n
    };
    Scene {
        requests: requests.len(),
        hours: workload.hours(),
        warmup_hours: loadgen::engine::secs_from_ps(workload.counted_from.0) / 3_600.0,
        mean_prompt_tokens: mean(|request| request.prompt_tokens),
        mean_output_tokens: mean(|request| request.output_tokens),
        max: plan.max.unwrap_or_else(|| bounds::default_max(work)).max(plan.min).max(1),
        peak_need: work.peak_need(),
        seeds: seeds.to_vec(),
        ..Scene::of_nothing(plan)
    }
}

impl Scene {
    fn of_nothing(plan: &Plan<'_>) -> Scene {
        Scene {
            profile: plan.profile.name.clone(),
            gpus: plan.profile.gpus,
            requests: 0,
            hours: 0.0,
            warmup_hours: 0.0,
            mean_prompt_tokens: 0.0,
            mean_output_tokens: 0.0,
            min: plan.min,
            max: plan.max.unwrap_or(1),
            peak_need: 0.0,
            cold_start_s: plan.cold.whole_s(),
            slo_ttft_s: plan.slo.ttft_s,
            slo_tpot_s: plan.slo.tpot_s,
            bar: plan.bar,
            seeds: Vec::new(),
        }
    }
}

fn context(scene: &Scene, profile: &Profile) -> Context {
    let limits = &profile.limits;
    Context {
        min: scene.min,
        max: scene.max,
        slo: Slo { ttft_s: scene.slo_ttft_s, tpot_s: scene.slo_tpot_s },
        kv_tokens: profile.kv_tokens() as f64,
        limits: (limits.max_num_seqs as f64, limits.max_num_batched_tokens as f64),
        gpus: u32::try_from(profile.gpus).unwrap_or(u32::MAX),
        mean_tokens: (scene.mean_prompt_tokens, scene.mean_output_tokens),
        prefill_tokens_per_s: prefill_tokens_per_s(profile),
    }
}

/// One line of the results: means over the seeds.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The policy.
    pub policy: String,
    /// Its setting.
    pub setting: String,
    /// Why it was run: `default`, `documented`, `best_of_sweep`, `swept`, `reference`.
    pub why: &'static str,
    /// Share of requests within max(TTFT target, 2 × alone) and the TPOT target, 0 to 1.
    pub attainment: f64,
    /// The same with the bare TTFT target.
    pub attainment_raw: f64,
    /// The lowest attainment of a seed.
    pub attainment_worst: f64,
    /// GPU-hours from a pod's creation to its end: loading and draining count.
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
    /// Ours: the learned engine model and its error.
    pub learned: Option<LearnedCost>,
}

impl Study {
    /// The lines of the results, and of the sweeps' other points.
    #[must_use]
    pub fn rows(&self) -> (Vec<Row>, Vec<Row>) {
        let (mut results, mut sweep) = (Vec::new(), Vec::new());
        let all: Vec<Row> = self.entries.iter().map(|entry| self.row_of(entry)).collect();
        for (entry, row) in self.entries.iter().zip(&all) {
            let swept = entry.candidate.why == Why::Swept;
            let peers = || {
                self.entries.iter().zip(&all).filter(|(other, _)| {
                    other.candidate.policy == entry.candidate.policy
                        && other.candidate.why == Why::Swept
                })
            };
            let is_best = swept
                && best(peers().map(|(_, row)| row), self.scene.bar)
                    .is_some_and(|best| best.setting == row.setting);
            let mut row = row.clone();
            if is_best {
                row.why = "best_of_sweep";
            }
            if swept && !is_best { sweep.push(row) } else { results.push(row) }
        }
        (results, sweep)
    }

    fn row_of(&self, entry: &Entry) -> Row {
        let why = match entry.candidate.why {
            Why::Default => "default",
            Why::Documented => "documented",
            Why::Swept => "swept",
        };
        let outcomes: Vec<&Outcome> = entry.outcomes.iter().collect();
        let mut row = self.row(entry.candidate.policy, &entry.candidate.setting, why, &outcomes);
        row.learned = entry.learned;
        row
    }

    /// The references as rows: the clairvoyant at the bar, the smallest static fleet.
    #[must_use]
    pub fn reference_rows(&self) -> Vec<Row> {
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
            learned: None,
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
pub(super) fn best<'a>(rows: impl Iterator<Item = &'a Row> + Clone, bar: f64) -> Option<&'a Row> {
    let attains = rows.clone().filter(|row| row.attainment >= bar);
    attains
        .min_by(|a, b| a.gpu_hours.total_cmp(&b.gpu_hours))
        .or_else(|| rows.max_by(|a, b| a.attainment.total_cmp(&b.attainment)))
}
