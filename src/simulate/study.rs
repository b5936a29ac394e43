//! Workloads, one engine, many policies: runs them all and sets each beside the references.
//!
//! Must not print; [`super::report`] does.

use std::sync::atomic::{AtomicUsize, Ordering};

use loadgen::engine::{Profile, Time, secs_from_ps};
use serde::Serialize;

use super::baselines::token_aware::prefill_tokens_per_s;
use super::bounds::{self, Bounds};
use super::candidate::{Candidate, Context};
use super::cold::ColdStart;
use super::outcome::Outcome;
use super::parallel;
use super::policy::{Learning, Policy, Slo};
use super::run::{Setup, run, run_together};
use super::scenario::Scenario;
use super::supply::Nodes;
use super::truth::Truth;
use super::work::Work;
use super::workload::{Request, Workload};

/// What a study is about.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The engine and its GPUs.
    pub profile: &'a Profile,
    /// How long replicas take to start.
    pub cold: ColdStart,
    /// Where GPUs come from.
    pub nodes: Nodes,
    /// What changes on the way.
    pub scenario: &'a Scenario,
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
    /// What it learned in the first seed's run.
    pub learning: Option<Learning>,
}

/// The results of a study.
#[derive(Debug)]
pub struct Study {
    /// What was simulated.
    pub scene: Scene,
    /// What the engine's costs are.
    pub truth: Truth,
    /// The references, on the first seed.
    pub bounds: Option<Bounds>,
    /// Every candidate, in order.
    pub entries: Vec<Entry>,
}

/// The figures of a study's trace and fleet.
#[derive(Debug, Clone, Serialize)]
pub struct Scene {
    /// The trace.
    pub trace: String,
    /// The engine profile.
    pub profile: String,
    /// GPUs of one replica.
    pub gpus: usize,
    /// Requests that count, on the first seed.
    pub requests: usize,
    /// Hours that count.
    pub hours: f64,
    /// Rows of the trace that ask for 0 tokens, as failed requests do, which counts as 1.
    pub empty_rows: u64,
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
    /// Mean seconds from a pod's node to its first request.
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

/// A workload's name, and its requests for a seed.
pub struct Load<'a, E> {
    /// What to call it.
    pub name: String,
    /// Makes the requests.
    pub read: &'a (dyn Fn(u64) -> Result<Workload, E> + Sync),
}

impl<E> std::fmt::Debug for Load<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Load").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What one seed's runs came to, by candidate.
type Results = Vec<(Outcome, Option<Learning>)>;

/// Runs a study on the requests of each seed: the references and the first seed with all cores, the
/// other seeds at once where there are fewer candidates than cores.
///
/// # Errors
///
/// What the load fails with.
pub fn run_study<E: Send>(
    plan: &Plan<'_>,
    seeds: &[u64],
    load: &Load<'_, E>,
    progress: Progress<'_>,
) -> Result<Study, E> {
    let (&first, others) = seeds.split_first().unwrap_or((&1, &[]));
    progress("reading the trace", 0, 0);
    let workload = (load.read)(first)?;
    let work = bounds::work_of(&workload, plan.profile, plan.scenario);
    let scene = describe(plan, &load.name, &workload, &work, seeds);
    let context = context(&scene, plan.profile);
    let n_runs = seeds.len() * plan.candidates.len();
    let n_done = AtomicUsize::new(0);
    let run_all = |seed: u64, workload: &Workload, at_once: usize| {
        let setup = setup(plan, &scene, workload, seed);
        let done = |_| {
            let n = n_done.fetch_add(1, Ordering::Relaxed) + 1;
            progress("policies", n, n_runs);
        };
        parallel::map(plan.candidates, at_once, &done, |candidate| {
            let mut policy = (candidate.make)(&context);
            let outcome = run(&setup, policy.as_mut());
            (outcome, policy.learning().cloned())
        })
    };
    let found = plan.references.then(|| {
        let done = |n| progress("references", n, 0);
        bounds::find(&setup(plan, &scene, &workload, first), &work, plan.bar, &done)
    });
    let truth = Truth::of(&workload, plan.profile, plan.scenario);
    let cores = parallel::cores();
    let mut results = vec![run_all(first, &workload, cores)];
    drop(workload);
    let by_seed = plan.candidates.len() < cores;
    let (seeds_at_once, runs_at_once) = if by_seed { (cores, 1) } else { (1, cores) };
    let rest = parallel::map(others, seeds_at_once, &|_| {}, |&seed| {
        Ok(run_all(seed, &(load.read)(seed)?, runs_at_once))
    });
    for result in rest {
        results.push(result?);
    }
    Ok(Study { scene, truth, bounds: found, entries: entries(plan, results) })
}

/// Runs a study of workloads that share the plan's GPUs: each candidate scales all of them at the
/// same time. References are those of each workload alone.
///
/// # Errors
///
/// What a load fails with.
pub fn run_shared<E: Send>(
    plan: &Plan<'_>,
    seeds: &[u64],
    loads: &[Load<'_, E>],
    progress: Progress<'_>,
) -> Result<Vec<Study>, E> {
    let mut studies: Vec<Study> = Vec::new();
    let mut results: Vec<Vec<Results>> = loads.iter().map(|_| Vec::new()).collect();
    let n_runs = seeds.len() * plan.candidates.len();
    let n_done = AtomicUsize::new(0);
    for &seed in seeds {
        progress("reading the traces", 0, 0);
        let workloads = loads.iter().map(|load| (load.read)(seed));
        let workloads: Vec<Workload> = workloads.collect::<Result<_, E>>()?;
        if studies.is_empty() {
            for (load, workload) in loads.iter().zip(&workloads) {
                let work = bounds::work_of(workload, plan.profile, plan.scenario);
                let scene = describe(plan, &load.name, workload, &work, seeds);
                let found = plan.references.then(|| {
                    let setup = setup(plan, &scene, workload, seed);
                    let done = |n| progress("references", n, 0);
                    let alone = Setup { nodes: Nodes::default(), ..setup };
                    bounds::find(&alone, &work, plan.bar, &done)
                });
                let truth = Truth::of(workload, plan.profile, plan.scenario);
                studies.push(Study { scene, truth, bounds: found, entries: Vec::new() });
            }
        }
        let setups: Vec<Setup<'_>> = studies
            .iter()
            .zip(&workloads)
            .map(|(study, workload)| setup(plan, &study.scene, workload, seed))
            .collect();
        let done = |_| {
            let n = n_done.fetch_add(1, Ordering::Relaxed) + 1;
            progress("policies", n, n_runs);
        };
        let by_candidate = parallel::map(plan.candidates, parallel::cores(), &done, |candidate| {
            let contexts = studies.iter().map(|study| context(&study.scene, plan.profile));
            let mut policies: Vec<Box<dyn Policy>> =
                contexts.map(|context| (candidate.make)(&context)).collect();
            let outcomes = run_together(&setups, &mut policies);
            let learned = policies.iter().map(|policy| policy.learning().cloned());
            outcomes.into_iter().zip(learned).collect::<Results>()
        });
        for (index, results) in results.iter_mut().enumerate() {
            let of_one = by_candidate.iter().filter_map(|results| results.get(index).cloned());
            results.push(of_one.collect());
        }
    }
    for (study, results) in studies.iter_mut().zip(results) {
        study.entries = entries(plan, results);
    }
    Ok(studies)
}

/// What each candidate came to, from the results of each seed.
fn entries(plan: &Plan<'_>, results: Vec<Results>) -> Vec<Entry> {
    let new = |candidate: &Candidate| Entry {
        candidate: candidate.clone(),
        outcomes: Vec::new(),
        learning: None,
    };
    let mut entries: Vec<Entry> = plan.candidates.iter().map(new).collect();
    for of_seed in results {
        for (entry, (outcome, learning)) in entries.iter_mut().zip(of_seed) {
            entry.outcomes.push(outcome);
            if entry.learning.is_none() {
                entry.learning = learning;
            }
        }
    }
    entries
}

fn setup<'a>(plan: &Plan<'a>, scene: &Scene, workload: &'a Workload, seed: u64) -> Setup<'a> {
    Setup {
        profile: plan.profile,
        workload,
        cold: plan.cold,
        nodes: plan.nodes,
        scenario: plan.scenario,
        slo: plan.slo,
        min: scene.min,
        max: scene.max,
        seed,
    }
}

fn describe(plan: &Plan<'_>, name: &str, workload: &Workload, work: &Work, seeds: &[u64]) -> Scene {
    let requests = workload.counted();
    let n = requests.len().max(1) as f64;
    let mean = |of: fn(&Request) -> u32| {
        requests.iter().map(|request| f64::from(of(request))).sum::<f64>() / n
    };
    Scene {
        trace: name.to_owned(),
        profile: plan.profile.name.clone(),
        gpus: plan.profile.gpus,
        requests: requests.len(),
        hours: workload.hours(),
        empty_rows: workload.empty_rows,
        warmup_hours: secs_from_ps(workload.counted_from.since(Time::ZERO)) / 3_600.0,
        mean_prompt_tokens: mean(|request| request.prompt_tokens),
        mean_output_tokens: mean(|request| request.output_tokens),
        min: plan.min,
        max: plan.max.unwrap_or_else(|| bounds::default_max(work)).max(plan.min).max(1),
        peak_need: work.peak_need(),
        cold_start_s: plan.cold.whole_s(),
        slo_ttft_s: plan.slo.ttft_s,
        slo_tpot_s: plan.slo.tpot_s,
        bar: plan.bar,
        seeds: seeds.to_vec(),
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
