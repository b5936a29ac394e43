//! `ghostscaler simulate`: what a policy costs on a trace, and how well it serves.
//!
//! Must not know a policy's insides: the product and every baseline are a [`policy::Policy`], and
//! none of them sees more than a scaler in a cluster would.
//!
//! # Reading order
//!
//! [`input`] and [`workload`] (the requests) → [`policy`] (what a policy sees and answers) →
//! `run.rs` (the event loop) with `fleet.rs` (pods and balancer), `sight.rs` (samples and their
//! age), `actuator.rs` (KEDA and the HPA), `judge.rs` and [`outcome`] (what it came to) →
//! [`product`] (the scaler as a policy) → [`mod@reference`] and [`bounds`] (clairvoyant, static, fluid)
//! → [`study`] (all of them on one trace) → [`report`].
//!
//! # Model
//!
//! - Replicas are [`loadgen::engine::Lean`] engines, which are loadgen's to the picosecond. The
//!   balancer sends each request to the serving replica with the fewest requests; a gateway holds
//!   requests while none serves.
//! - A pod takes its cold start (log-normal), then the rest of a probe period and two seconds until
//!   its endpoint is known. What is not ready ends first, then the youngest; it finishes what it has
//!   and is paid for until then.
//! - GPU-hours run from a pod's creation to its end, times the GPUs of a replica.
//! - A request is served well if its first token comes within max(target, 2 × what an empty replica
//!   takes) and the mean time per further token keeps its target. Requests that never end are not.

mod actuator;
pub mod baselines;
pub mod bounds;
pub mod candidate;
mod catalog;
pub mod cold;
mod fleet;
pub mod input;
mod judge;
mod number;
pub mod outcome;
mod parallel;
pub mod policy;
pub mod product;
mod progress;
mod random;
pub mod reference;
pub mod report;
pub mod run;
mod sight;
pub mod study;
#[cfg(test)]
mod tests;
pub mod workload;

use std::io::{self, Write};
use std::path::PathBuf;

use loadgen::engine::{Profile, ProfileError};
use loadgen::traces::{self, Lengths, Options};

use crate::duration;
use catalog::Catalog;
use cold::ColdStart;
use policy::Slo;
use progress::Progress;
use study::{Plan, Study};

/// Run policies on a trace and compare what they cost and how well they serve.
///
/// Every policy meets the same requests on simulated engines, with the delays of a real cluster.
/// Beside them stand the cheapest plan of somebody who knows the future, the smallest static fleet
/// and the fluid bound.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example, two days of counts of which the second counts:\n  \
    ghostscaler simulate --trace day.csv --trace-format counts \\\n    \
    --lengths lengths.csv --warmup 1d --profile 8b-a100 --policy all \\\n    \
    --report day.html")]
pub struct Args {
    /// The trace.
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// The form of the trace.
    #[arg(long, value_name = "FORMAT")]
    pub trace_format: traces::Format,
    /// Lengths for a trace of counts: any CSV with the columns input_tokens,output_tokens.
    #[arg(long, value_name = "FILE")]
    pub lengths: Option<PathBuf>,
    /// Length of a bin of a trace of counts.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = seconds)]
    pub bin: f64,
    /// Multiply the rate: below 1 requests are left out, above 1 the trace is laid over itself.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub scale: f64,
    /// How much of the beginning of the trace runs without counting.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = seconds)]
    pub warmup: f64,
    /// The engine: a name (`loadgen profiles` lists them) or a file.
    #[arg(long, value_name = "NAME|FILE", default_value = "8b-a100")]
    pub profile: String,
    /// Policies, by name, or `all`: ours at its defaults, and each baseline at its documented
    /// setting and at the best of its sweep.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "ghostscaler")]
    pub policy: Vec<String>,
    /// Fewest replicas; 0 allows zero, with a gateway that holds requests.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub min: u32,
    /// Most replicas [default: 1.25 × what the busiest minute needs].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=250))]
    pub max: Option<u32>,
    /// Time-to-first-token target.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = seconds)]
    pub slo_ttft: f64,
    /// Time-per-output-token target.
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = seconds)]
    pub slo_tpot: f64,
    /// Mean time that a replica takes to load [default: what the profile says].
    #[arg(long, value_name = "DURATION", value_parser = seconds)]
    pub cold_start: Option<f64>,
    /// The share of requests within their targets that is asked for: what the clairvoyant, the
    /// static fleet and the best of a sweep have to attain.
    #[arg(long, value_name = "SHARE", default_value_t = 0.99)]
    pub bar: f64,
    /// Settles everything random.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Run so many seeds from --seed on, and report their means; references use the first.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub seeds: u64,
    /// Leave out the clairvoyant and the static fleet.
    #[arg(long)]
    pub no_references: bool,
    /// Write a page with plots to this file.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// How to print the results.
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: Format,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
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
    /// The trace cannot be used.
    #[error(transparent)]
    Input(#[from] input::Error),
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
    check(args)?;
    let profile = Profile::load(&args.profile)?;
    if !loadgen::engine::Lean::can(&profile) {
        return Err(Error::Unsupported { profile: profile.name });
    }
    let candidates = Catalog::new().select(&args.policy)?;
    let lengths = match &args.lengths {
        Some(path) => Lengths::load(path).map_err(input::Error::from)?,
        None => Options::default().lengths,
    };
    let plan = Plan {
        profile: &profile,
        cold: args.cold_start.map_or_else(|| ColdStart::of_profile(&profile), ColdStart::of_mean),
        slo: Slo { ttft_s: args.slo_ttft, tpot_s: args.slo_tpot },
        min: args.min,
        max: args.max,
        bar: args.bar,
        candidates: &candidates,
        references: !args.no_references,
    };
    let workload = |seed| {
        let options =
            Options { scale: args.scale, seed, bin_s: args.bin, lengths: lengths.clone() };
        let source = input::Source {
            path: &args.trace,
            format: args.trace_format,
            options: &options,
            warmup_s: args.warmup,
        };
        source.read(&profile)
    };
    let seeds: Vec<u64> = (args.seed..args.seed.saturating_add(args.seeds)).collect();
    let progress = Progress::start();
    let told = |what: &str, done: usize, of: usize| progress.tell(what, done, of);
    let study = study::run_study(&plan, &seeds, workload, &told)?;
    progress.end();
    print(&study, args, out)
}

fn print(study: &Study, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let name = args.trace.file_name().map(|name| name.to_string_lossy().into_owned());
    let title = name.unwrap_or_default();
    if let Some(path) = &args.report {
        let page = report::html(study, &title);
        std::fs::write(path, page)
            .map_err(|source| Error::Report { path: path.clone(), source })?;
    }
    match args.format {
        Format::Table => report::table(study, &title, out)?,
        Format::Json => report::json(study, &title, out)?,
    }
    Ok(())
}

fn check(args: &Args) -> Result<(), Error> {
    let ranges = [
        ("bar", args.bar, (0.5..=1.0).contains(&args.bar), "0.5 to 1"),
        ("slo-ttft", args.slo_ttft, (0.001..=600.0).contains(&args.slo_ttft), "1 ms to 10 min"),
        ("slo-tpot", args.slo_tpot, (0.001..=60.0).contains(&args.slo_tpot), "1 ms to 1 min"),
        (
            "cold-start",
            args.cold_start.unwrap_or(1.0),
            (0.0..=7_200.0).contains(&args.cold_start.unwrap_or(1.0)),
            "at most two hours",
        ),
    ];
    for (flag, value, is_right, expected) in ranges {
        if !is_right {
            return Err(Error::Flag { flag, value, expected });
        }
    }
    match args.max {
        Some(max) if max < args.min => Err(Error::Bounds { min: args.min, max }),
        Some(_) | None => Ok(()),
    }
}

fn seconds(text: &str) -> Result<f64, duration::Error> {
    Ok(duration::parse_millis(text)? as f64 / 1e3)
}
