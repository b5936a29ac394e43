//! What a run says in the end, as data; its forms for people and programs are below.
//!
//! Must not measure anything. What was not measured is `null`, never 0.

mod csv;
mod doubts;
mod html;
mod phases;
mod plot;
mod settings;
mod table;

use std::collections::BTreeMap;

use serde::Serialize;

pub(super) use self::doubts::empty_rows;
use self::doubts::{unknown, warnings};
use self::phases::{Phase, phases};
use self::settings::Settings;
pub(crate) use self::table::{seconds, significant};
use super::carried::{carried_rate, is_growing};
use super::elasticity::{Elasticity, elasticity};
use super::engines::Look;
use super::failure::Failure;
use super::knee::Knee;
use super::measure::Outcome;
use super::plan::{Load, Plan};
use super::record::{self, Times};
use super::seeds::Seeds;
use super::settle::processors;
use super::slo::{Requirement, Slo, Verdict, attainment, n_judged};
use super::timeline::Point;

/// Points of the report's timeline, at most; fewer where they would show nothing but chance: a
/// point stands for this many requests in the mean, as long as there are enough of them.
const MOST_POINTS: f64 = 300.0;
const POINT_REQUESTS: f64 = 10.0;
const ENOUGH_POINTS: f64 = 60.0;

/// A distribution of times, in seconds; `null` where nothing was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// How many.
    pub count: u64,
    /// The mean.
    pub mean: Option<f64>,
    /// The median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p999: Option<f64>,
    /// The largest.
    pub max: Option<f64>,
}

impl Summary {
    fn of(times: &Times) -> Summary {
        Summary {
            count: times.len(),
            mean: times.mean(),
            p50: times.quantile(0.5),
            p90: times.quantile(0.9),
            p95: times.quantile(0.95),
            p99: times.quantile(0.99),
            p999: times.quantile(0.999),
            max: times.max(),
        }
    }
}

/// A kind of requests, or all of them.
#[derive(Debug, Clone, Serialize)]
pub struct ClassReport {
    /// Its name; `all` for all.
    pub class: String,
    /// Requests that were due.
    pub scheduled: u64,
    /// Requests for which a connection was sought.
    pub sent: u64,
    /// Times that one of them was sent again after a refusal.
    pub retries: u64,
    /// Whole answers.
    pub completed: u64,
    /// Failures. `sent` = `completed` + `errors` + `unfinished`.
    pub errors: u64,
    /// Requests open when the run ended.
    pub unfinished: u64,
    /// Failures by their class.
    pub errors_by_class: BTreeMap<String, u64>,
    /// Requests due a second.
    pub offered_rate: Option<f64>,
    /// Whole answers to what was due in a second, whenever they came: what was offered, less what
    /// failed or was open at the end. How fast they came is the report's `carried_rate`.
    pub achieved_rate: Option<f64>,
    /// Those of them within the SLO, likewise.
    pub goodput: Option<f64>,
    /// Answers within the SLO.
    pub good: u64,
    /// Requests that could be judged: all but those that were open at the end and could still have
    /// met their SLO.
    pub judged: u64,
    /// The share of the good ones among these.
    pub attainment: Option<f64>,
    /// From the intended start to the first text.
    pub ttft: Summary,
    /// From the actual start to the first text.
    pub ttft_from_send: Summary,
    /// Mean time of a token after the first.
    pub tpot: Summary,
    /// Between two pieces of text.
    pub itl: Summary,
    /// Between two tokens, where it is known how many each piece held.
    pub token_itl: Summary,
    /// From the intended start to the end of a whole answer.
    pub e2e: Summary,
    /// From the intended start to the actual one.
    pub schedule_lag: Summary,
    /// Requests that got no first token, and are in none of the times above.
    pub without_first_token: u64,
    /// Tokens of whole answers to what was due in a second.
    pub output_tokens_rate: Option<f64>,
    /// Tokens of whole answers.
    pub output_tokens: u64,
    /// Prompt tokens that the server counted for each that was asked for.
    pub prompt_tokens_ratio: Option<f64>,
    /// Tokens that the server counted in an answer for each that was asked for.
    pub output_tokens_ratio: Option<f64>,
    /// Answers in one piece to requests for a stream; their time to first token is the whole time.
    pub in_one_piece: u64,
    /// Tokens for each piece of text.
    pub tokens_per_event: Option<f64>,
    /// Answers whose tokens the server did not count.
    pub uncounted: u64,
}

impl ClassReport {
    fn of(name: &str, class: &record::Class, span_s: f64) -> ClassReport {
        let rate = |n: u64| (span_s > 0.0).then(|| n as f64 / span_s);
        let ratio = |a: u64, b: u64| (b > 0).then(|| a as f64 / b as f64);
        ClassReport {
            class: name.to_owned(),
            scheduled: class.scheduled,
            sent: class.sent,
            retries: class.retries,
            completed: class.completed,
            errors: class.n_errors(),
            unfinished: class.unfinished,
            errors_by_class: by_name(&class.errors),
            offered_rate: rate(class.scheduled),
            achieved_rate: rate(class.completed),
            goodput: rate(class.good),
            good: class.good,
            judged: n_judged(class),
            attainment: attainment(class),
            ttft: Summary::of(&class.ttft),
            ttft_from_send: Summary::of(&class.ttft_from_send),
            tpot: Summary::of(&class.tpot),
            itl: Summary::of(&class.itl),
            token_itl: Summary::of(&between_tokens(class)),
            e2e: Summary::of(&class.e2e),
            schedule_lag: Summary::of(&class.schedule_lag),
            without_first_token: class.tokenless,
            output_tokens_rate: rate(class.output_tokens),
            output_tokens: class.output_tokens,
            prompt_tokens_ratio: ratio(class.prompt_tokens, class.asked_prompt_tokens),
            output_tokens_ratio: ratio(class.counted_output_tokens, class.asked_output_tokens),
            in_one_piece: class.in_one_piece,
            tokens_per_event: ratio(class.output_tokens, class.events),
            uncounted: class.uncounted,
        }
    }
}

/// What became of the requests to one of several servers.
#[derive(Debug, Clone, Serialize)]
pub struct TargetReport {
    /// Its address.
    pub url: String,
    /// Requests for which a connection to it was sought.
    pub sent: u64,
    /// Whole answers.
    pub completed: u64,
    /// Failures.
    pub errors: u64,
    /// Requests open when the run ended.
    pub unfinished: u64,
    /// Failures by their class.
    pub errors_by_class: BTreeMap<String, u64>,
}

/// What the load generator knows of itself.
#[derive(Debug, Clone, Serialize)]
pub struct Client {
    /// Threads that sent.
    pub threads: usize,
    /// The most connections that it would have used at once.
    pub connections: usize,
    /// Processor time for each second of the run.
    pub cpu_cores: f64,
    /// Requests that were due and never sent: they waited for a connection until the end, or there
    /// were too many of these.
    pub unsent: u64,
    /// Whether the times are the client's own rather than the server's: then the run is invalid.
    pub is_bottleneck: bool,
    /// Processor time for each request that ended, those of the warm-up and the cool-down too, in
    /// seconds.
    pub cpu_s_per_request: Option<f64>,
    /// Requests like these that the threads could send in a second by that time, on as many
    /// processors as there are for them: an estimate, and too low where a run is idle for the most
    /// part.
    pub ceiling_rate: Option<f64>,
}

/// A point of a cumulative distribution.
#[derive(Debug, Clone, Serialize)]
pub struct Quantile {
    /// The share of requests, 0 to 1.
    pub q: f64,
    /// Their time at most, in seconds.
    pub s: f64,
}

/// Everything that a run says.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The program's version.
    pub loadgen: &'static str,
    /// The servers.
    pub targets: Vec<String>,
    /// What was asked.
    pub load: String,
    /// Everything else that another run of the same must be told.
    pub settings: Settings,
    /// Settles the schedule; of several runs, that of the first.
    pub seed: u64,
    /// How long requests were due, warm-up and cool-down left out, in seconds.
    pub duration_s: f64,
    /// How long the run lasted, in seconds.
    pub elapsed_s: f64,
    /// Whether somebody stopped it.
    pub interrupted: bool,
    /// All requests.
    #[serde(flatten)]
    pub total: ClassReport,
    /// Whole answers a second as they came in the second half of the schedule, whenever they were due:
    /// what the service carries where it is asked for more.
    pub carried_rate: Option<f64>,
    /// Whether more and more requests were open, beyond chance, though no more were due: the load is
    /// more than is carried. `null` where the run is too short to tell.
    pub queue_grows: Option<bool>,
    /// The promise to each class.
    pub slo: BTreeMap<String, Slo>,
    /// An example of each class of failures, of several servers with the address of its own.
    pub error_examples: BTreeMap<String, String>,
    /// The classes, if there are several.
    pub classes: Vec<ClassReport>,
    /// The servers, if there are several.
    pub by_target: Vec<TargetReport>,
    /// The stretches of a rate that changes.
    pub phases: Vec<Phase>,
    /// How the service stood changes of its size.
    pub elasticity: Elasticity,
    /// The load generator itself.
    pub client: Client,
    /// What was required, and whether it holds.
    pub requirements: Vec<Verdict>,
    /// The highest rate within the SLO, if it was sought.
    pub knee: Option<Knee>,
    /// Each of the runs, where there were several seeds; everything else is of all of them, one after
    /// another, and what is required must hold in each.
    pub seeds: Option<Seeds>,
    /// What makes the figures doubtful.
    pub warnings: Vec<String>,
    /// What the figures cannot say.
    pub unknown: Vec<String>,
    /// All requests over time.
    pub timeline: Vec<Point>,
    /// Replicas over time, as they were seen: seconds and count.
    pub replicas: Vec<(f64, Option<u32>)>,
    /// What the engines said of themselves over time, where they were watched.
    pub engines: Vec<Look>,
    /// Cumulative distribution of the time to first token.
    pub ttft_distribution: Vec<Quantile>,
    /// Cumulative distribution of the time between pieces of text.
    pub itl_distribution: Vec<Quantile>,
    /// Cumulative distribution of the whole time.
    pub e2e_distribution: Vec<Quantile>,
}

/// How a report is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For a person, 80 columns.
    #[default]
    Table,
    /// Everything, as one JSON object.
    Json,
    /// A row for each class.
    Csv,
    /// One page with plots, needing nothing else.
    Html,
}

impl Report {
    /// Puts together what was measured.
    #[must_use]
    pub fn new(plan: &Plan, outcome: &Outcome, requirements: &[Requirement]) -> Report {
        let record = &outcome.record;
        let total = record.total();
        let report = |name: &str, class| ClassReport::of(name, class, outcome.span_s);
        let classes = match plan.classes.as_slice() {
            [_one] => Vec::new(),
            several => several
                .iter()
                .zip(&record.classes)
                .map(|(class, measured)| report(&class.name, measured))
                .collect(),
        };
        let point_s = (POINT_REQUESTS * outcome.span_s / (total.scheduled as f64).max(1.0))
            .min(outcome.elapsed_s / ENOUGH_POINTS)
            .max(outcome.elapsed_s / MOST_POINTS);
        let timeline = record.timeline.clone().coarser(point_s);
        let cpu_s_per_request =
            (outcome.n_ended > 0).then(|| outcome.cpu_s / outcome.n_ended as f64);
        let client = Client {
            threads: plan.n_lanes,
            connections: plan.connections,
            cpu_cores: outcome.cpu_s / outcome.elapsed_s.max(1e-3),
            unsent: record.unsent,
            is_bottleneck: outcome.is_bottleneck,
            cpu_s_per_request,
            ceiling_rate: cpu_s_per_request
                .filter(|cpu_s| *cpu_s > 0.0)
                .map(|cpu_s| plan.n_lanes.min(processors()) as f64 / cpu_s),
        };
        let is_valid = !client.is_bottleneck && !outcome.is_interrupted;
        let mut report = Report {
            loadgen: env!("CARGO_PKG_VERSION"),
            targets: plan.targets.iter().map(super::target::Target::url).collect(),
            load: described(plan),
            settings: Settings::of(plan),
            seed: plan.seed,
            duration_s: outcome.span_s,
            elapsed_s: outcome.elapsed_s,
            interrupted: outcome.is_interrupted,
            total: report("all", &total),
            carried_rate: carried_rate(&record.timeline, &outcome.loads_s),
            queue_grows: queue_grows(outcome, &total),
            slo: plan.classes.iter().map(|class| (class.name.clone(), class.slo)).collect(),
            error_examples: record
                .examples
                .iter()
                .map(|(failure, (target, example))| {
                    let example = match plan.targets.as_slice() {
                        [_one] => example.clone(),
                        several => format!("{}: {example}", several[*target].url()),
                    };
                    (failure.class().into_owned(), example)
                })
                .collect(),
            classes,
            by_target: by_target(plan, record),
            phases: phases(plan, outcome),
            elasticity: elasticity(outcome, &total, plan),
            client,
            requirements: requirements
                .iter()
                .map(|required| required.judge(&total, is_valid))
                .collect(),
            knee: None,
            seeds: None,
            warnings: Vec::new(),
            unknown: Vec::new(),
            timeline: timeline.points(),
            replicas: outcome.replicas.changes().to_vec(),
            engines: outcome.engines.clone(),
            ttft_distribution: distribution(&total.ttft),
            itl_distribution: distribution(&total.itl),
            e2e_distribution: distribution(&total.e2e),
        };
        report.warnings = warnings(plan, outcome, &report);
        report.unknown = unknown(plan, &report);
        report
    }

    /// Whether an answer was whole.
    #[must_use]
    pub fn has_answer(&self) -> bool {
        self.total.completed > 0
    }

    /// Whether no answer was whole, and nothing was measured: no request got a first token, or some
    /// that did failed. Who stops a run in which nothing has failed has only waited too short.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        let ClassReport { scheduled, errors, completed, ttft, .. } = &self.total;
        let is_over = *errors > 0 || (*scheduled > 0 && !self.interrupted);
        is_over && *completed == 0 && (ttft.count == 0 || *errors > 0)
    }

    /// Whether all that was required holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.requirements.iter().all(|verdict| verdict.holds)
    }

    /// Writes it.
    ///
    /// # Errors
    ///
    /// When it cannot be written as JSON.
    pub fn render(&self, format: Format) -> Result<String, serde_json::Error> {
        Ok(match format {
            Format::Table => table::render(self),
            Format::Json => serde_json::to_string_pretty(self)? + "\n",
            Format::Csv => csv::render(self),
            Format::Html => html::render(self),
        })
    }
}

/// Whether a queue grew in any of the runs; `None` if that cannot be told of one.
fn queue_grows(outcome: &Outcome, total: &record::Class) -> Option<bool> {
    // Where more is asked than is carried, the first tenth has hardly waited.
    let settle_s = total.e2e.quantile(0.1).unwrap_or(0.0);
    let grows = |load_s| is_growing(&outcome.record.timeline, load_s, settle_s);
    let grows: Vec<Option<bool>> = outcome.loads_s.iter().map(grows).collect();
    match grows.contains(&Some(true)) {
        true => Some(true),
        false => grows.into_iter().collect::<Option<Vec<bool>>>().map(|_| false),
    }
}

fn by_target(plan: &Plan, record: &record::Record) -> Vec<TargetReport> {
    if let [_one] = plan.targets.as_slice() {
        return Vec::new();
    }
    let of = |(target, seen): (&super::target::Target, &record::Target)| TargetReport {
        url: target.url(),
        sent: seen.sent,
        completed: seen.completed,
        errors: seen.errors.values().sum(),
        unfinished: seen.unfinished,
        errors_by_class: by_name(&seen.errors),
    };
    plan.targets.iter().zip(&record.targets).map(of).collect()
}

fn by_name(errors: &BTreeMap<Failure, u64>) -> BTreeMap<String, u64> {
    errors.iter().map(|(failure, n)| (failure.class().into_owned(), *n)).collect()
}

/// The times between tokens; none unless the tokens of every piece are known.
fn between_tokens(class: &record::Class) -> Times {
    if class.uncounted_pieces == 0 {
        return class.token_itl.clone();
    }
    // A piece of text is a token at least: where there are as many, each of them is one.
    let is_one_each = class.uncounted == 0 && class.events == class.output_tokens;
    if is_one_each && class.events > 0 { class.itl.clone() } else { Times::default() }
}

/// The load in words.
fn described(plan: &Plan) -> String {
    let mut load = match &plan.load {
        Load::Rate { curve, process } => {
            let what = if plan.users.turns.is_some() { "conversations" } else { "requests" };
            format!("{} {what}/s, {process}", curve.as_str())
        }
        Load::Users { n } => format!("closed loop of {n} users"),
        Load::Trace { path, options, .. } => format!("{} × {}", path.display(), options.scale),
    };
    if let Some(count) = plan.count {
        load.push_str(&format!(", {count} requests"));
    }
    if let Some(turns) = plan.users.turns {
        load.push_str(&format!(", {turns} turns"));
    }
    if plan.users.think_s > 0.0 {
        load.push_str(&format!(", thinking {} s", plan.users.think_s));
    }
    load
}

fn distribution(times: &Times) -> Vec<Quantile> {
    const SHARES: [f64; 23] = [
        0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7,
        0.75, 0.8, 0.85, 0.9, 0.95, 0.99, 0.999,
    ];
    SHARES.iter().filter_map(|q| Some(Quantile { q: *q, s: times.quantile(*q)? })).collect()
}
