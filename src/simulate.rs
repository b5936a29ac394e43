//! `ghostscaler simulate`: what a policy costs on a trace, and how well it serves.
//!
//! Must not know a policy's insides: the product and every baseline are a [`policy::Policy`], and
//! none of them sees more than a scaler in a cluster would.
//!
//! # Reading order
//!
//! `flags.rs` → [`input`], [`process`] and [`workload`] (the requests) → [`policy`] (what a policy sees
//! and answers) → [`mod@run`] (the event loop) with `fleet.rs` (pods and balancer), [`supply`] (GPUs and
//! nodes), [`scenario`] (what changes on the way), `sight.rs` (samples and their age), `actuator.rs`
//! (KEDA and the HPA), `judge.rs` and [`outcome`] (what it came to) → [`product`] (the scaler as a
//! policy) → [`work`], [`mod@reference`] and [`bounds`] (clairvoyant, static, fluid) → [`study`] (all of
//! them on one trace) → [`row`] and [`transfer`] → [`report`].
//!
//! # Model
//!
//! - Replicas are [`loadgen::engine::Lean`] engines, which are loadgen's to the picosecond. The
//!   balancer sends each request to the serving replica with the fewest requests; a gateway holds
//!   requests while none serves.
//! - A pod takes its cold start (log-normal), then the rest of a probe period and two seconds until
//!   its endpoint is known. What is not ready ends first, then the youngest; it finishes what it has
//!   and is paid for until then.
//! - A pod without a node waits for one to be provisioned or for others to leave; it is
//!   unschedulable until then. GPU-hours run from the moment that it has its GPUs to its end.
//! - An update replaces pods by a surge of a quarter, as a Deployment does.
//! - A request is served well if its first token comes within max(target, 2 × what an empty replica
//!   takes) and the mean time per further token keeps its target. Requests that never end are not.

mod actuator;
pub mod baselines;
pub mod bounds;
pub mod candidate;
mod catalog;
pub mod cold;
mod flags;
mod fleet;
pub mod input;
mod judge;
pub(crate) mod number;
pub mod outcome;
mod parallel;
pub mod policy;
pub mod process;
pub mod product;
pub(crate) mod progress;
pub(crate) mod random;
pub mod reference;
pub mod report;
pub mod row;
pub mod run;
pub mod scenario;
mod sight;
pub mod study;
pub mod supply;
#[cfg(test)]
mod tests;
pub mod transfer;
pub mod truth;
pub mod work;
pub mod workload;

use std::io::{self, Write};
use std::path::PathBuf;

use loadgen::engine::{Profile, ProfileError, Time, secs_from_ps};

pub use catalog::{Catalog, Unknown as UnknownPolicy};
pub use flags::Args;
use input::Source;
use progress::Progress;
use scenario::Scenario;
use study::{Load, Plan, Study};

use crate::files;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// A table of 80 columns.
    Table,
    /// One JSON object.
    Json,
}

/// Why there are no results.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The profile is not known or not whole.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Engines of this profile cannot be simulated.
    #[error(
        "profile `{profile}`: `simulate` needs `max_num_seqs` of at most `max_num_batched_tokens` \
         and no `long_prefill_token_threshold`"
    )]
    Unsupported {
        /// Its name.
        profile: String,
    },
    /// An update would change the GPUs of a replica.
    #[error("`--change` from `{from}` to `{to}`: expected as many GPUs a replica")]
    Change {
        /// What runs first.
        from: String,
        /// What would run then.
        to: String,
    },
    /// The trace cannot be used.
    #[error(transparent)]
    Input(#[from] input::Error),
    /// A trace without its form.
    #[error(
        "`--trace {}` needs a `--trace-format`: azure, mooncake, burstgpt, counts or csv",
        path.display()
    )]
    NoFormat {
        /// The trace.
        path: PathBuf,
    },
    /// A flag that is there neither once nor once for each trace.
    #[error("`--{flag}` is given {len} times: expected once, or once for each of the {n}")]
    Count {
        /// The flag.
        flag: &'static str,
        /// How often it is there.
        len: usize,
        /// How often it could be.
        n: usize,
    },
    /// A policy of that name is not there.
    #[error(transparent)]
    Policy(#[from] catalog::Unknown),
    /// A flag's value makes no sense.
    #[error("`--{flag}` is {value}: expected {expected}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// As given.
        value: f64,
        /// What it should have been.
        expected: &'static str,
    },
    /// The bounds contradict each other.
    #[error("`--min` is {min} and `--max` is {max}: expected at most as many")]
    Bounds {
        /// The fewest.
        min: u32,
        /// The most.
        max: u32,
    },
    /// The page cannot be written.
    #[error("cannot write `{}`", path.display())]
    Report {
        /// Where to.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The results cannot be printed.
    #[error("the results cannot be written")]
    Write(#[from] io::Error),
}

/// Runs the study that the flags ask for and prints its results.
///
/// # Errors
///
/// When a flag, the profile or the trace cannot be used, or a result cannot be written.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    args.check()?;
    let (profile, scenario) = args.engine()?;
    let mut candidates = Catalog::new().select(&args.policy)?;
    if args.ablations {
        candidates.extend(catalog::ablations());
    }
    let plan = Plan {
        profile: &profile,
        cold: args.cold(&profile),
        nodes: args.nodes(),
        scenario: &scenario,
        slo: args.slo(),
        min: args.min,
        max: args.max,
        bar: args.bar,
        candidates: &candidates,
        references: !args.no_references,
    };
    let sources = args.sources()?;
    if let Some(path) = &args.report {
        // Told before the work rather than after it.
        files::check_writable(path)
            .map_err(|source| Error::Report { path: path.clone(), source })?;
    }
    let studies = run_all(&plan, &args.seeds(), &sources)?;
    print(&studies, args, out)
}

/// Runs the sources one after another, or all at once if they share their GPUs.
fn run_all(plan: &Plan<'_>, seeds: &[u64], sources: &[Source]) -> Result<Vec<Study>, Error> {
    let most_tokens = most_tokens(plan.profile, plan.scenario);
    let last_change_s = plan.scenario.changes.iter().map(|change| change.at_s).reduce(f64::max);
    let readers = sources.iter().map(|source| {
        let read = move |seed| {
            let workload = source.read(most_tokens, seed)?;
            match last_change_s {
                Some(at_s) if Time::from_secs_f64(at_s) >= workload.end => {
                    let end_s = secs_from_ps(workload.end.0);
                    Err(input::Error::ChangeTooLate { at_s, end_s })
                }
                Some(_) | None => Ok(workload),
            }
        };
        (source.name(), read)
    });
    let readers: Vec<_> = readers.collect();
    let loads: Vec<Load<'_, input::Error>> =
        readers.iter().map(|(name, read)| Load { name: name.clone(), read }).collect();
    let progress = Progress::start();
    let told = |what: &str, done: usize, of: usize| progress.tell(what, done, of);
    let studies = if plan.nodes.budget.is_some() && loads.len() > 1 {
        study::run_shared(plan, seeds, &loads, &told)?
    } else {
        let studies = loads.iter().map(|load| study::run_study(plan, seeds, load, &told));
        studies.collect::<Result<_, _>>()?
    };
    progress.end();
    Ok(studies)
}

/// The longest request that each of the engines takes.
fn most_tokens(profile: &Profile, scenario: &Scenario) -> usize {
    let changed = scenario.changes.iter().map(|change| &change.profile);
    let most = |profile: &Profile| profile.limits.max_model_tokens.min(profile.kv_tokens());
    changed.map(most).fold(most(profile), usize::min)
}

fn print(studies: &[Study], args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    if let Some(path) = &args.report {
        let page = report::html(studies);
        std::fs::write(path, page)
            .map_err(|source| Error::Report { path: path.clone(), source })?;
    }
    match args.format {
        Output::Table => report::table(studies, out)?,
        Output::Json => report::json(studies, out)?,
    }
    Ok(())
}
