//! `loadgen run`: load for an OpenAI-compatible server, in an open loop, and what came of it.
//!
//! # How it measures
//!
//! - **Open loop.** Each request is handed out at its moment, whatever has become of the others.
//!   Its threads share nothing, and each keeps time, sends and reads for its own share of the
//!   schedule (`lane`, `exchange`). A closed loop is there for those who ask for it by name.
//! - **From the intended start.** Time to first token and whole time begin when a request was
//!   *due*: a server that stalls, or a client that is late, shows in the percentiles. How late the
//!   client was is a distribution of its own, the schedule lag; where it is large against what was
//!   measured, the report says that the client was the bottleneck.
//! - **Whole or not.** An answer counts when it is complete: `[DONE]` at a stream's end, text or
//!   counted tokens in it, stopped for a reason that ends an answer, from the model that was asked
//!   for. Everything else is a failure with a class ([`failure::Failure`]). What is open at the end
//!   is neither.
//! - **Nothing is sent twice**, but for a request whose kept connection was closed before it took
//!   any of it, and what users send again where they are told to (`users`).
//!
//! # Reading order
//!
//! `settle` and `plan` (what is settled before) → `lane` with `pause` and `later` → `exchange` with
//! `stamp`, `sse` and `answer` → `record`, `timeline` and `requests` → `measure` (one run) →
//! `report`, `carried`, `elasticity`, `knee`, `seeds`, `slo`.
//!
//! # Invariants
//!
//! - scheduled ≥ sent = completed + errors + unfinished.
//! - The same plan and seed make the same requests; how many threads send them changes nothing.
//! - Memory is bounded: by connections, by jobs that wait, by events and answers, by lines that
//!   wait for the disk; not by the length of the run.
//! - A key is in no message, no report and no debug output.

mod answer;
mod carried;
mod check;
pub mod elasticity;
pub mod engines;
mod exchange;
pub mod failure;
pub mod knee;
mod lane;
mod later;
pub mod measure;
pub mod more;
mod named;
pub mod own;
pub mod pause;
pub mod plan;
pub mod progress;
pub mod prompt;
pub mod record;
pub mod replicas;
pub mod report;
pub mod requests;
pub mod seeds;
mod settle;
pub mod slo;
mod sse;
mod stamp;
pub mod target;
pub mod timeline;
pub mod users;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::builder::NonEmptyStringValueParser;
use tokio::sync::watch;

use self::measure::{Outcome, measure};
use self::more::Fields;
use self::plan::{ClassSpec, Plan};
use self::progress::Display;
use self::report::{Format, Report};
use self::requests::Requests;
use self::slo::Requirement;
use self::target::Target;
use crate::traces::{self, Curve, Process, Size};
use crate::{args, duration, files, listen};

/// A step of a search for the knee, unless `--duration` says otherwise.
const KNEE_STEP_S: f64 = 20.0;
const AFTER_HELP: &str = "\
Examples:
  loadgen run --url http://localhost:8000 --model m --rate 5 --duration 2m
  loadgen run --url http://gw --model m --rate 1-20@10m --require 99%
  loadgen run --url http://gw --model m --rate 2@330s,4@6m,1 --arrival gamma:2
  loadgen run --url http://gw --model m --trace azure.csv --trace-format azure
  loadgen run --url http://gw --model m --rate 1 --find-knee
  loadgen run --url http://gw --model m --rate 0.5 --turns 4 --think 20s
  loadgen run --url http://gw --model m --rate 5 --seeds 5 --format json

Exit codes: 0 measured, 1 a --require failed, 2 could not run, or nothing
whole was answered, stopped or not: there is a report then, and no figure in
it says much. A run that is stopped (Ctrl-C, SIGTERM, a lost terminal) is
measured as far as it went.";

/// Put load on an OpenAI-compatible server and report what its users would see.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Where the server is, without /v1; repeat it for several, each of which gets a request in turn.
    #[arg(long, required = true, value_name = "URL", help_heading = "Where")]
    pub url: Vec<String>,
    /// The model's name, as the server knows it.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), help_heading = "Where")]
    pub model: String,
    /// A file with the API key. Without it, the environment's OPENAI_API_KEY is used if it is set.
    #[arg(long, value_name = "FILE", help_heading = "Where")]
    pub api_key_file: Option<PathBuf>,
    /// The API key itself; hidden, since a command line is seen by everybody on the machine.
    #[arg(long, hide = true, env = "OPENAI_API_KEY", hide_env_values = true)]
    pub api_key: Option<Key>,
    /// A header of each request; repeat it for several. Its value is in no report.
    #[arg(long, value_name = "NAME:VALUE", help_heading = "Where")]
    pub header: Vec<Key>,
    /// A PEM file with the certificate authorities to trust, instead of this machine's, or with the
    /// servers' own certificates.
    #[arg(long, value_name = "FILE", help_heading = "Where")]
    pub tls_ca: Option<PathBuf>,

    /// Requests a second: `5`, steps `2@330s,4@6m,1`, a ramp `1-50@10m`, a day `1~9@24h` from its
    /// lowest rate to its highest and back, or a row of these.
    #[arg(long, value_name = "RATE", required_unless_present_any = ["trace", "users"], help_heading = "When")]
    pub rate: Option<Curve>,
    /// How the gaps between requests vary, at the same mean rate: poisson, constant, gamma:CV
    /// (above 1 burstier), onoff:ON:OFF (bursts and silences of 10s and 50s, say, in the mean),
    /// mmpp:PEAK:ON:OFF (bursts of PEAK times the rate), or hawkes:SHARE:LAG (a SHARE of the
    /// requests is brought by others, LAG after them in the mean, as agents' calls are).
    #[arg(
        long,
        value_name = "PROCESS",
        default_value = "poisson",
        conflicts_with = "trace",
        help_heading = "When"
    )]
    pub arrival: Process,
    /// A closed loop instead of a rate: so many users, each of whom waits for the answer before
    /// the next request. A server that stalls is asked less, and its stall hardly shows.
    #[arg(
        long,
        value_name = "N",
        value_parser = args::whole::<u32>(1..=1_000_000),
        conflicts_with_all = ["rate", "trace", "arrival", "find_knee", "print_schedule"],
        help_heading = "When"
    )]
    pub users: Option<u32>,
    /// A trace to replay instead of a rate.
    #[arg(
        long,
        value_name = "FILE",
        requires = "trace_format",
        conflicts_with_all = ["rate", "find_knee"],
        help_heading = "When"
    )]
    pub trace: Option<PathBuf>,
    /// The trace's format.
    #[arg(long, value_enum, value_name = "FORMAT", requires = "trace", help_heading = "When")]
    pub trace_format: Option<traces::Format>,
    /// Multiplies a trace's rate, by thinning or by laying it over itself.
    #[arg(
        long,
        value_name = "FACTOR",
        default_value_t = 1.0,
        value_parser = args::number(1e-6..=1e4),
        requires = "trace",
        help_heading = "When"
    )]
    pub scale: f64,
    /// The width of a bin of a trace of counts: 10s, unless told otherwise.
    #[arg(long, value_name = "DURATION", value_parser = seconds, requires = "trace", help_heading = "When")]
    pub bin: Option<f64>,
    /// How long requests come, 30d at most: 1m, or the trace's length, or until --count; 20s for each
    /// step of --find-knee.
    #[arg(long, value_name = "DURATION", value_parser = seconds, help_heading = "When")]
    pub duration: Option<f64>,
    /// End after so many requests were due, those of the warm-up among them, or after --duration
    /// if that is sooner. AIPerf's --request-count, vLLM's --num-prompts.
    #[arg(
        long,
        visible_aliases = ["request-count", "num-prompts"],
        value_name = "N",
        value_parser = args::whole::<u64>(1..=1_000_000_000_000),
        conflicts_with_all = ["cooldown", "find_knee", "turns"],
        help_heading = "When"
    )]
    pub count: Option<u64>,
    /// Requests due in this time are sent and not counted.
    #[arg(long, value_name = "DURATION", value_parser = seconds, default_value = "0", help_heading = "When")]
    pub warmup: f64,
    /// Requests due in this time before the end are sent and not counted: those before them are
    /// answered by a server that is still under load.
    #[arg(long, value_name = "DURATION", value_parser = seconds, default_value = "0", help_heading = "When")]
    pub cooldown: f64,
    /// Look for the highest rate that is carried, without a queue that grows, and at which what is
    /// required holds (99 % within the SLO, if nothing is): from --rate on doubled, then narrowed down
    /// to 5 %.
    #[arg(long, help_heading = "When")]
    pub find_knee: bool,
    /// Settles everything that is drawn.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = args::whole::<u64>(0..=u64::MAX),
        help_heading = "When"
    )]
    pub seed: u64,
    /// Run this often, each time with another seed, so that it is seen how much of a figure is
    /// chance; `loadgen compare` tells two such results apart.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = args::whole::<u16>(1..=1_000),
        conflicts_with_all = ["find_knee", "print_schedule"],
        help_heading = "When"
    )]
    pub seeds: u16,
    /// Send nothing, and print when what would be sent: a trace for --trace-format csv, which has no
    /// place for the hashes of Mooncake's.
    #[arg(long, conflicts_with_all = ["find_knee", "output"], help_heading = "When")]
    pub print_schedule: bool,

    /// Requests of a conversation: a mean, or mean and spread, such as 4:0.5. Each begins as the
    /// rate says; the next one comes after the answer, with all that was said in its prompt.
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with_all = ["trace", "find_knee", "print_schedule"],
        help_heading = "Users"
    )]
    pub turns: Option<Size>,
    /// How long users think after an answer before they go on, in the mean, some shorter, some
    /// longer; for --turns and --users.
    #[arg(long, value_name = "DURATION", value_parser = seconds, default_value = "0", help_heading = "Users")]
    pub think: f64,
    /// Users leave who have no first token after this long in the mean, some sooner, some later.
    #[arg(long, value_name = "DURATION", value_parser = seconds, help_heading = "Users")]
    pub patience: Option<f64>,
    /// How often users send again what was refused (no connection, 429, 5xx): after the server's
    /// Retry-After, else after 0.5 s, doubled each time, as OpenAI's client does.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Users",
        value_parser = args::whole::<u8>(0..=20))]
    pub retries: u8,
    /// At most so many retries for each request of the run, such as 0.1: clients with a budget, as
    /// service meshes have it, do not drown a server that refuses everything.
    #[arg(
        long,
        value_name = "SHARE",
        value_parser = args::number(0.0..=1.0),
        requires = "retries",
        help_heading = "Users"
    )]
    pub retry_budget: Option<f64>,

    /// Which of the APIs is asked.
    #[arg(long, value_enum, default_value = "chat", help_heading = "What")]
    pub endpoint: Endpoint,
    /// Ask for whole answers rather than streams: no time to first token then.
    #[arg(long, help_heading = "What")]
    pub plain: bool,
    /// Tokens of a prompt: a mean, or mean and spread, such as 500:0.8. 500, unless told otherwise.
    #[arg(long, value_name = "SIZE", help_heading = "What")]
    pub input_tokens: Option<Size>,
    /// Tokens of an answer, likewise; 150, unless told otherwise.
    #[arg(long, value_name = "SIZE", help_heading = "What")]
    pub output_tokens: Option<Size>,
    /// A CSV file with input_tokens,output_tokens to draw pairs from.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["input_tokens", "output_tokens"],
        help_heading = "What"
    )]
    pub lengths: Option<PathBuf>,
    /// A file of your own prompts, one a line as JSON: "text", {"prompt": "text"} or
    /// {"messages": […]}. They are sent one after the other, from the first again after the last.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["input_tokens", "lengths", "token_ids", "turns", "trace", "print_schedule"],
        help_heading = "What"
    )]
    pub prompts: Option<PathBuf>,
    /// More fields of each request, a JSON object such as {"temperature": 0.7}.
    #[arg(long, value_name = "JSON", help_heading = "What")]
    pub body: Option<Fields>,
    /// A kind of requests; repeat it for a mix. NAME,weight=W,input=SIZE,output=SIZE,model=NAME,
    /// slo-ttft=D,slo-tpot=D,slo-e2e=D; what is left out is as for all.
    #[arg(long, value_name = "CLASS", help_heading = "What")]
    pub class: Vec<ClassSpec>,
    /// Send prompts as token numbers: exact lengths, completions only (vLLM, SGLang).
    #[arg(long, help_heading = "What")]
    pub token_ids: bool,
    /// Let answers end by themselves: leaves out ignore_eos and min_tokens, which OpenAI refuses.
    #[arg(long, help_heading = "What")]
    pub natural_length: bool,
    /// Have each piece of a stream say how many tokens there were up to it, so that the time between
    /// tokens is known and not only that between pieces (vLLM, SGLang; costs them some time).
    #[arg(long, conflicts_with = "plain", help_heading = "What")]
    pub count_tokens: bool,
    /// Accept answers that name another model than was asked for.
    #[arg(long, help_heading = "What")]
    pub any_model: bool,

    /// The promise on the first token, from the intended start.
    #[arg(long, value_name = "DURATION", value_parser = seconds, default_value = "2s", help_heading = "Judging")]
    pub slo_ttft: f64,
    /// The promise on each further token, in the mean of an answer.
    #[arg(long, value_name = "DURATION", value_parser = seconds, default_value = "200ms", help_heading = "Judging")]
    pub slo_tpot: f64,
    /// A promise on the whole answer.
    #[arg(long, value_name = "DURATION", value_parser = seconds, help_heading = "Judging")]
    pub slo_e2e: Option<f64>,
    /// Exit with 1 unless it holds: a share within the SLO such as 99% (that, if none is named), or
    /// a bound such as ttft.p99<2s or errors<1%, or `valid`: nobody stopped it, and the client was
    /// not the bottleneck. What failed or never came is longer than any time, and an error if it
    /// was open for longer than the SLO allows. Repeat it for several.
    #[arg(
        long,
        value_name = "BOUND",
        num_args = 0..=1,
        default_missing_value = "99%",
        help_heading = "Judging"
    )]
    pub require: Vec<Requirement>,
    /// A page that tells the number of replicas: a number, a Kubernetes Scale, or a Prometheus
    /// query's answer. Asked once a second.
    #[arg(long, value_name = "URL", help_heading = "Judging")]
    pub replicas_url: Option<String>,
    /// Count the URLs whose /health answers as replicas. Asks each once a second; a gateway may
    /// take that for demand.
    #[arg(long, conflicts_with = "replicas_url", help_heading = "Judging")]
    pub watch_health: bool,
    /// Ask each URL once a second what its engine runs, what waits in it and how full its KV cache
    /// is, for the report's timeline.
    #[arg(long, help_heading = "Judging")]
    pub watch_engines: bool,
    /// GPUs of a replica.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1.0,
        value_parser = args::number(1e-3..=1e4),
        help_heading = "Judging"
    )]
    pub gpus_per_replica: f64,

    /// How the report is written.
    #[arg(long, value_enum, default_value = "table", help_heading = "Report")]
    pub format: Format,
    /// Write the report to a file instead of standard output.
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    pub output: Option<PathBuf>,
    /// Write each request to a file, a line of JSON when it has ended: when it was due, sent, had its
    /// first token and ended, its tokens, and what became of it. BENCHMARKING.md has the fields.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["find_knee", "seeds"], help_heading = "Report")]
    pub requests: Option<PathBuf>,
    /// Show no progress.
    #[arg(long, short, help_heading = "Report")]
    pub quiet: bool,

    /// The longest that a request may take.
    #[arg(long, value_name = "DURATION", value_parser = seconds, default_value = "10m", help_heading = "Limits")]
    pub timeout: f64,
    /// The longest silence within an answer that has begun; what is silent longer has failed.
    #[arg(long, value_name = "DURATION", value_parser = seconds, conflicts_with = "plain", help_heading = "Limits")]
    pub stall: Option<f64>,
    /// How long open requests may go on after the last was due.
    #[arg(long, value_name = "DURATION", value_parser = seconds, default_value = "30s", help_heading = "Limits")]
    pub grace: f64,
    /// Threads that send: as many as processors, unless told otherwise, but at most 8.
    #[arg(long, value_name = "N", value_parser = args::whole::<u16>(1..=256), help_heading = "Limits")]
    pub threads: Option<u16>,
    /// The most connections in use at once; what is due beyond waits, and its waiting counts. Fewer
    /// than --threads: as many threads.
    #[arg(long, value_name = "N", value_parser = args::whole::<u32>(1..=1_000_000), help_heading = "Limits")]
    pub connections: Option<u32>,
}

/// The APIs that can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

/// A secret that shows in no output.
#[derive(Clone)]
pub struct Key(String);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Key {
        Key(text.trim().to_owned())
    }
}

fn seconds(text: &str) -> Result<f64, duration::Error> {
    duration::parse_millis(text).map(|millis| millis as f64 / 1e3)
}

impl Args {
    /// Runs it, and writes the report to `out` or to the file that was named. The exit code: 0 if
    /// all that was required holds, 1 if not, 2 if the schedule could not be kept to its end or no
    /// answer was whole.
    ///
    /// # Errors
    ///
    /// When it could not run at all.
    pub fn run(self, out: &mut impl Write) -> anyhow::Result<u8> {
        let n_files = listen::raise_file_limit();
        self.check()?;
        let mut plan = self.plan(n_files)?;
        let mut display = Display::new(self.quiet);
        let checked = self.check_schedule(&plan, &mut display);
        display.end();
        plan.n_empty = checked?;
        if self.print_schedule {
            if let Some(words) = report::empty_rows(&plan) {
                // Who has closed standard error wants no word.
                drop(writeln!(std::io::stderr(), "{words}"));
            }
            return plan.write_schedule(out).map(|()| 0);
        }
        if let Some(path) = &self.output {
            // A report that has no place to go is told before the run rather than after it.
            files::check_writable(path)
                .with_context(|| format!("cannot write to {}", path.display()))?;
        }
        plan.requests = self.requests_of(&plan)?.map(Arc::new);
        let requests = plan.requests.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let report = runtime.block_on(async {
            let (interrupt, interrupted) = watch::channel(false);
            let mut signals = listen::Signals::watch()?;
            tokio::spawn(async move {
                signals.next().await;
                interrupt.send_replace(true);
            });
            let report = if self.find_knee {
                self.find_knee(plan, interrupted, &mut display).await
            } else {
                self.measure_seeds(plan, interrupted, &mut display).await
            };
            display.end();
            report
        });
        let (report, outcome) = report?;
        let text = report.render(self.format)?;
        match &self.output {
            Some(path) => std::fs::write(path, text)
                .with_context(|| format!("cannot write to {}", path.display()))?,
            None => out.write_all(text.as_bytes())?,
        }
        if let Some(requests) = requests {
            Arc::into_inner(requests).context("a thread outlived its run")?.finish()?;
        }
        if let Some(error) = outcome.trace_error {
            return Err(error.into());
        }
        Ok(if report.has_answer() { u8::from(!report.holds()) } else { 2 })
    }

    /// The file that each request is written to.
    fn requests_of(&self, plan: &Plan) -> Result<Option<Requests>, requests::Error> {
        let create = |path: &PathBuf| {
            let classes = plan.classes.iter().map(|class| class.name.clone()).collect();
            Requests::create(path, classes, plan.targets.iter().map(Target::url).collect())
        };
        self.requests.as_ref().map(create).transpose()
    }

    async fn measure(
        &self,
        plan: &Arc<Plan>,
        interrupted: watch::Receiver<bool>,
        display: &mut Display,
    ) -> anyhow::Result<(Report, Outcome)> {
        let span_s = plan.span_s();
        let outcome = measure(plan, interrupted, |progress| display.show(progress, span_s)).await?;
        Ok((Report::new(plan, &outcome, &self.require), outcome))
    }

    /// Measures once with each seed.
    async fn measure_seeds(
        &self,
        mut plan: Plan,
        interrupted: watch::Receiver<bool>,
        display: &mut Display,
    ) -> anyhow::Result<(Report, Outcome)> {
        let mut runs = Vec::new();
        loop {
            let seed = plan.seed;
            if self.seeds > 1 {
                display.begin(format!("seed {seed}: "));
            }
            let shared = Arc::new(plan);
            let (report, outcome) = self.measure(&shared, interrupted.clone(), display).await?;
            let together =
                |runs| seeds::together(&shared, &self.require, runs)?.context("no run was made");
            if outcome.is_interrupted && !runs.is_empty() {
                // A part of a run is no sample beside whole ones.
                let (mut report, outcome) = together(runs)?;
                report.interrupted = true;
                report
                    .warnings
                    .push(format!("stopped in the run of seed {seed}, which is left out"));
                return Ok((report, outcome));
            }
            let is_last = runs.len() + 1 >= usize::from(self.seeds)
                || !report.has_answer()
                || outcome.is_interrupted
                || outcome.trace_error.is_some();
            runs.push((report, outcome));
            if is_last {
                return together(runs);
            }
            plan = Arc::into_inner(shared).context("a thread outlived its run")?;
            plan.reseed(seed.wrapping_add(1));
        }
    }
}
