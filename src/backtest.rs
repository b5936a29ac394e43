//! `ghostscaler backtest`: what each policy would have done on a workload's own history.
//!
//! Must not write anything but its report and its cache, and must not decide: policies and engines
//! are `simulate`'s.
//!
//! # Reading order
//!
//! `args.rs` and [`span`] (what is asked for) → `find.rs` (which series are the workload's) →
//! [`fetch`] and [`cache`] (two queries at once, none twice) → `timeline.rs` (scrapes of each
//! replica) with `around.rs` (replicas, GPUs) and `lengths.rs` (histograms) → `demand.rs` (what came,
//! and how far that is known) → `model.rs` (what the replica's steps cost) → `requests.rs` and
//! [`replay`] (the policies on it) → `report.rs`.

mod args;
mod around;
pub mod cache;
mod demand;
pub mod fetch;
mod find;
mod history;
mod lengths;
mod model;
pub mod replay;
mod report;
mod requests;
pub mod span;
mod timeline;

use std::io::{self, Write};
use std::path::PathBuf;

use loadgen::engine::{Lean, ProfileError};

use crate::clock::Clock;
use crate::decision::Moment;
use crate::files;
use crate::simulate;
use crate::simulate::progress::Progress;
use crate::source::prometheus::PrometheusClient;
use crate::source::{self, FileRole};
pub use args::{Args, Output};
use cache::Cache;
use demand::{Demand, Known};
use fetch::Fetcher;
use history::History;
use lengths::Shape;
use model::Model;
use replay::{Origin, Setting, replay};
use report::Report;
use requests::{Shapes, Stretch};
use span::{Span, shown};

/// A start where nothing tells how long one takes: the middle of what large models on warm nodes
/// take (1 to 3 minutes).
const COLD_START_S: f64 = 120.0;
/// The warm-up, unless it is a larger part of the history than a quarter.
const WARMUP_MS: u64 = 3_600_000;

/// Why there are no results. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag's value makes no sense.
    #[error("`--{flag}` is {value}: expected {expected}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// As given.
        value: String,
        /// What it should have been.
        expected: &'static str,
    },
    /// The span ends before it begins.
    #[error("`--from` is {} and `--to` is {}: expected --from before --to", shown(*from), shown(*to))]
    Order {
        /// As given.
        from: Moment,
        /// As given.
        to: Moment,
    },
    /// The server cannot be asked.
    #[error("cannot ask the Prometheus at `{url}`: {hint}")]
    Prometheus {
        /// Its URL, which holds no credentials.
        url: String,
        /// What to do.
        hint: &'static str,
        /// What happened.
        source: source::Error,
    },
    /// A query failed.
    #[error(transparent)]
    Query(#[from] source::Error),
    /// The workload has no series.
    #[error(
        "no engine series of `{workload}` in namespace `{namespace}`: looked for {names}; {near}"
    )]
    NoSeries {
        /// The namespace.
        namespace: String,
        /// The workload.
        workload: String,
        /// What was looked for.
        names: &'static str,
        /// What there is instead.
        near: String,
    },
    /// The server has nothing of that time.
    #[error(
        "this Prometheus has no sample from {from} to {to}: expected a span within its retention"
    )]
    NoSamples {
        /// The beginning.
        from: String,
        /// The end.
        to: String,
    },
    /// Series, but hardly a scrape.
    #[error(
        "only {known_min:.0} minutes of {workload} from {from} to {to} are known: expected 30 at least"
    )]
    TooLittle {
        /// The workload.
        workload: String,
        /// Minutes that are known.
        known_min: f64,
        /// The beginning.
        from: String,
        /// The end.
        to: String,
    },
    /// Nothing ever came.
    #[error("no request came to {workload} from {from} to {to}: there is nothing to replay")]
    NoRequests {
        /// The workload.
        workload: String,
        /// The beginning.
        from: String,
        /// The end.
        to: String,
    },
    /// The engine's costs cannot be learned.
    #[error(
        "the history does not teach what this engine's steps cost ({rows:.0} observations, error \
         {:.0} %; {why}): give --profile NAME|FILE", 100.0 * error
    )]
    Unlearned {
        /// Observations, in samples of five seconds.
        rows: f64,
        /// Mean relative error of the fit.
        error: f64,
        /// What was missing.
        why: &'static str,
    },
    /// The profile is not known or not whole.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Engines of this profile cannot be simulated.
    #[error(
        "profile `{profile}`: expected `max_num_seqs` of at most `max_num_batched_tokens` and no \
         `long_prefill_token_threshold`"
    )]
    Unsupported {
        /// Its name.
        profile: String,
    },
    /// A policy is not known.
    #[error(transparent)]
    Policy(#[from] simulate::UnknownPolicy),
    /// The cache cannot be used.
    #[error("cannot keep answers in `{}`: expected a directory that can be written", path.display())]
    Cache {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
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

/// Reads the history, replays it and prints the results.
///
/// # Errors
///
/// When a flag cannot be used, the server does not answer, the workload has no history, or a result
/// cannot be written.
pub async fn run(args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    args.check()?;
    let now = Clock::start().now();
    let span = args.span(now)?;
    // A wrong name is told before anything is read.
    simulate::Catalog::new().select(&args.policy)?;
    let given = args.profile.as_deref().map(Model::given).transpose()?;
    if let Some(path) = &args.report {
        // Told before the work rather than after it.
        files::check_writable(path)
            .map_err(|source| Error::Report { path: path.clone(), source })?;
    }
    let progress = Progress::start();
    let history = fetch(args, &span, now, &progress).await;
    progress.end();
    let history = history?;
    let report = work_out(args, &span, &history, given, &progress);
    progress.end();
    let report = report?;
    if let Some(path) = &args.report {
        let page = report.html();
        std::fs::write(path, page)
            .map_err(|source| Error::Report { path: path.clone(), source })?;
    }
    match args.format {
        Output::Table => report.table(out)?,
        Output::Json => report.json(out)?,
    }
    Ok(())
}

async fn fetch(
    args: &Args,
    span: &Span,
    now: Moment,
    progress: &Progress,
) -> Result<History, Error> {
    let told = |source| Error::Prometheus {
        url: source::config::shown_url(&args.prometheus).to_owned(),
        hint: hint(&source),
        source,
    };
    let config = args.server();
    config.validate().map_err(|fault| told(fault.into()))?;
    let client = PrometheusClient::new(&config).map_err(told)?;
    let cache = args
        .cache_dir()
        .map(|dir| Cache::open(&dir).map_err(|source| Error::Cache { path: dir.clone(), source }));
    let fetcher = Fetcher::new(&client, &args.prometheus, cache.transpose()?, now);
    let history = history::read(&fetcher, &args.namespace, &args.workload, span, progress).await;
    history.map_err(|error| if let Error::Query(source) = error { told(source) } else { error })
}

/// What a person can do about it.
fn hint(error: &source::Error) -> &'static str {
    match error {
        source::Error::Refused | source::Error::Transport(_) => {
            "expected its address, reachable from here (`kubectl port-forward` makes it so)"
        }
        source::Error::Unauthorized { .. } => "expected credentials: --bearer-token-file FILE",
        source::Error::Tls(_) => "expected a trusted certificate: --ca-file FILE",
        source::Error::HttpStatus { .. }
        | source::Error::BadBody { .. }
        | source::Error::Query { .. } => {
            "expected the base URL of a Prometheus, below which /api/v1/query_range answers"
        }
        source::Error::Timeout { .. }
        | source::Error::NoTurn { .. }
        | source::Error::Incomplete { .. }
        | source::Error::TooLarge { .. } => "a longer --timeout, step or a shorter span may help",
        source::Error::File { what: FileRole::Token, .. } => "check --bearer-token-file",
        source::Error::File { what: FileRole::Ca, .. } => "check --ca-file",
        source::Error::Config(_) | source::Error::BadAddress => "check --prometheus and --timeout",
        source::Error::NoNamespace
        | source::Error::AmbiguousTenant
        | source::Error::NoModel
        | source::Error::Page(_)
        | source::Error::Setup(_) => "it cannot be asked like this",
    }
}

/// From what was read to the results.
fn work_out(
    args: &Args,
    span: &Span,
    history: &History,
    given: Option<Model>,
    progress: &Progress,
) -> Result<Report, Error> {
    let demand = Demand::of(span, &history.timelines, &history.counts);
    let known = demand.bins.iter().filter(|bin| bin.known != Known::Missing).count();
    let known_min = known as f64 * span.step_s() / 60.0;
    let (workload, from, to) = (args.workload.clone(), shown(span.from), shown(span.to));
    if known_min < 30.0 {
        return Err(Error::TooLittle { workload, known_min, from, to });
    }
    if demand.total().arrivals < 1.0 {
        return Err(Error::NoRequests { workload, from, to });
    }
    let is_given = given.is_some();
    let mut model = match given {
        Some(model) => model,
        None => Model::learn(&history.timelines)?,
    };
    if !Lean::can(&model.profile) {
        return Err(Error::Unsupported { profile: model.profile.name });
    }
    let gpus = gpus(args, history, &mut model, is_given);
    let quarter_ms = span.to.millis_since(span.from) / 4;
    let warmup_ms = args.warmup.unwrap_or_else(|| WARMUP_MS.min(quarter_ms));
    let stretch = Stretch::of(span, &demand, &history.counts, warmup_ms);
    let shapes =
        Shapes { prompt: Shape::of(&history.prompts), output: Shape::of(&history.outputs) };
    let cold_start = cold_start(args, span, history, &model, is_given);
    let name = format!("{}/{}", args.namespace, args.workload);
    let setting = Setting {
        name: &name,
        stretch: &stretch,
        shapes: &shapes,
        model: &model,
        cold_start,
        gpus,
        ordered: history.counts_from.is_some(),
        slo: args.slo(),
        bar: args.bar,
        min: args.min,
        max: args.max,
        seed: args.seed,
        policies: &args.policy,
    };
    let replay = replay(&setting, progress)?;
    Ok(Report::new(args, span, history, &demand, &setting, replay))
}

/// GPUs of a replica, and where that is from. The replay's replicas have as many.
fn gpus(args: &Args, history: &History, model: &mut Model, is_given: bool) -> Origin<u32> {
    let of_profile = || is_given.then(|| u32::try_from(model.profile.gpus).unwrap_or(u32::MAX));
    let known = args
        .gpus
        .map(|value| Origin { value, from: "--gpus" })
        .or_else(|| history.gpus.per_replica.map(|value| Origin { value, from: "DCGM" }))
        .or_else(|| of_profile().map(|value| Origin { value, from: "the profile" }));
    let gpus = known.unwrap_or(Origin { value: 1, from: "assumed" });
    model.profile.gpus = gpus.value as usize;
    gpus
}

/// Seconds of a cold start, and where that is from.
fn cold_start(
    args: &Args,
    span: &Span,
    history: &History,
    model: &Model,
    is_given: bool,
) -> Origin<f64> {
    let of_flag = args.cold_start.map(|millis| millis as f64 / 1e3);
    let seen = || around::cold_start_s(&history.counts, span.step_s());
    let of_profile =
        || is_given.then(|| simulate::cold::ColdStart::of_profile(&model.profile).mean_s);
    of_flag
        .map(|value| Origin { value, from: "--cold-start" })
        .or_else(|| seen().map(|value| Origin { value, from: "the history" }))
        .or_else(|| of_profile().map(|value| Origin { value, from: "the profile" }))
        .unwrap_or(Origin { value: COLD_START_S, from: "assumed" })
}
