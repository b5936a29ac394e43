//! What a run says in the end, as data; its forms for people and programs are below.
//!
//! Must not measure anything. What was not measured is `null`, never 0.

mod csv;
mod doubts;
mod html;
mod plot;
mod table;

use std::collections::BTreeMap;

use serde::Serialize;

use self::doubts::{is_bottleneck, unknown, warnings};
pub(crate) use self::table::{seconds, significant};
use super::elasticity::{Elasticity, elasticity};
use super::engines::Look;
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
    /// Whole answers a second: from the first due to the end of the schedule, or to a later moment
    /// where that gives more. A straggler takes from it itself and no more.
    pub achieved_rate: Option<f64>,
    /// Answers within the SLO a second, in the same time.
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
    /// Tokens of whole answers a second, in the same time.
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
    fn of(name: &str, class: &record::Class, span_s: f64, busy_s: f64) -> ClassReport {
        let rate = |n: u64, over_s: f64| (over_s > 0.0).then(|| n as f64 / over_s);
        let ratio = |a: u64, b: u64| (b > 0).then(|| a as f64 / b as f64);
        let errors_by_class =
            class.errors.iter().map(|(failure, n)| (failure.class().into_owned(), *n)).collect();
        ClassReport {
            class: name.to_owned(),
            scheduled: class.scheduled,
            sent: class.sent,
            retries: class.retries,
            completed: class.completed,
            errors: class.n_errors(),
            unfinished: class.unfinished,
            errors_by_class,
            offered_rate: rate(class.scheduled, span_s),
            achieved_rate: rate(class.completed, busy_s),
            goodput: rate(class.good, busy_s),
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
            output_tokens_rate: rate(class.output_tokens, busy_s),
            output_tokens: class.output_tokens,
            prompt_tokens_ratio: ratio(class.prompt_tokens, class.asked_prompt_tokens),
            output_tokens_ratio: ratio(class.counted_output_tokens, class.asked_output_tokens),
            in_one_piece: class.in_one_piece,
            tokens_per_event: ratio(class.output_tokens, class.events),
            uncounted: class.uncounted,
        }
    }
}

/// What the load generator knows of itself.
#[derive(Debug, Clone, Serialize)]
pub struct Client {
    /// Threads that sent.
    pub threads: usize,
    /// The most connections that it would have opened.
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
    /// Settles the schedule.
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
    /// The promise to each class.
    pub slo: BTreeMap<String, Slo>,
    /// An example of each class of failures.
    pub error_examples: BTreeMap<String, String>,
    /// The classes, if there are several.
    pub classes: Vec<ClassReport>,
    /// How the service stood changes of its size.
    pub elasticity: Elasticity,
    /// The load generator itself.
    pub client: Client,
    /// What was required, and whether it holds.
    pub requirements: Vec<Verdict>,
    /// The highest rate within the SLO, if it was sought.
    pub knee: Option<Knee>,
    /// All runs, where there were several seeds; everything else is of the last one.
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
        let busy_s = busy_s(record, plan.warmup_s, outcome.span_s);
        let report = |name: &str, class| ClassReport::of(name, class, outcome.span_s, busy_s);
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
            is_bottleneck: is_bottleneck(outcome, &total),
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
            seed: plan.seed,
            duration_s: outcome.span_s,
            elapsed_s: outcome.elapsed_s,
            interrupted: outcome.is_interrupted,
            total: report("all", &total),
            slo: plan.classes.iter().map(|class| (class.name.clone(), class.slo)).collect(),
            error_examples: record
                .examples
                .iter()
                .map(|(failure, example)| (failure.class().into_owned(), example.clone()))
                .collect(),
            classes,
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

    /// Whether no request got a first token: nothing was measured then. Who stops a run in which
    /// nothing has failed has only waited too short.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        let ClassReport { scheduled, errors, completed, ttft, .. } = &self.total;
        let is_over = *errors > 0 || (*scheduled > 0 && !self.interrupted);
        is_over && *completed == 0 && ttft.count == 0
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

/// The time in which the whole answers came at their highest rate from the beginning on: that of
/// the schedule, or a longer one. Under overload answers go on after it, and count in the time they
/// took; a few stragglers would only stretch it.
fn busy_s(record: &record::Record, warmup_s: f64, span_s: f64) -> f64 {
    let bins = || record.timeline.bins();
    let width_s = record.timeline.width_s();
    let all: u64 = bins().map(|(_, bin)| bin.completed).sum();
    let mut came = 0;
    let times = bins().filter_map(|(t_s, bin)| {
        came += bin.completed;
        let took_s = ((t_s + width_s).min(record.last_whole_s) - warmup_s).max(span_s);
        (came > 0).then(|| took_s * all as f64 / came as f64)
    });
    times.reduce(f64::min).unwrap_or(span_s)
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

#[cfg(test)]
mod tests {
    use super::record::Record;
    use super::*;

    /// The rate of ten answers in each quarter of so many seconds, in a schedule of 10 s, and one
    /// more later.
    fn achieved(seconds: u32, straggler_s: Option<u32>) -> f64 {
        let mut record = Record::default();
        for quarter in 0..4 * seconds {
            let t_s = f64::from(quarter) / 4.0;
            record.timeline.at(t_s).completed += 10;
            record.last_whole_s = t_s + 0.2;
        }
        if let Some(straggler_s) = straggler_s.map(f64::from) {
            record.timeline.at(straggler_s).completed += 1;
            record.last_whole_s = straggler_s;
        }
        let n = 40 * seconds + u32::from(straggler_s.is_some());
        f64::from(n) / busy_s(&record, 0.0, 10.0)
    }

    #[test]
    fn a_straggler_takes_no_more_than_itself_from_the_rate() {
        assert!((achieved(10, None) - 40.0).abs() < 1e-9);
        for straggler_s in [12, 40, 600] {
            let rate = achieved(10, Some(straggler_s));
            assert!((39.9..=40.1).contains(&rate), "{straggler_s}: {rate}");
        }
        // Twice what is carried: answers go on as long again, and the rate is what is carried.
        let rate = achieved(20, None);
        assert!((39.9..=40.2).contains(&rate), "{rate}");
        assert!((busy_s(&Record::default(), 0.0, 10.0) - 10.0).abs() < 1e-9, "nothing came");
    }
}
