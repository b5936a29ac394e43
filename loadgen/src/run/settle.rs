//! From flags to a plan: what is left out is filled in, and what cannot run is refused with its
//! remedy.
//!
//! Must not send anything.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use http::{HeaderName, HeaderValue};

use super::own::Own;
use super::plan::{Class, ClassSpec, Load, Plan};
use super::progress::Display;
use super::prompt::{Alphabet, Form, Prompts};
use super::slo::Slo;
use super::target::{Page, Target, Tls};
use super::users::Users;
use super::{Args, Endpoint, KNEE_STEP_S, Key, more, replicas};
use crate::duration;
use crate::files::{self, MAX_KEY_BYTES};
use crate::traces::{self, Lengths, Size};

/// A run at a rate without an end, unless `--duration` says otherwise.
const RUN_S: f64 = 60.0;
/// How long requests are, and bins of a trace of counts, unless told otherwise.
const INPUT_TOKENS: u32 = 500;
const OUTPUT_TOKENS: u32 = 150;
const BIN_S: f64 = 10.0;
/// The longest run, in seconds: as much as `--duration` takes.
pub(super) const MOST_RUN_S: f64 = 30.0 * 86_400.0;
/// Files that are not connections: the program's own, and those of its runtimes.
const OTHER_FILES: u64 = 64;
/// The most connections unless told otherwise; the machine's limit of files may be lower.
const MOST_CONNECTIONS: u64 = 50_000;
/// Requests of a schedule that are read between two looks at how far it is.
const SHOWN_EACH: u64 = 1 << 16;

impl Args {
    pub(super) fn plan(&self, files: u64) -> anyhow::Result<Plan> {
        let tls = Tls::new(self.tls_ca.clone());
        let targets =
            self.url.iter().map(|url| Target::parse(url, &tls)).collect::<Result<Vec<_>, _>>()?;
        let replicas = match &self.replicas_url {
            Some(url) => Some(replicas::Source::Page(Page::parse(url, &tls)?)),
            None => self.watch_health.then(|| replicas::Source::Health(targets.clone())),
        };
        if self.token_ids && self.endpoint == Endpoint::Chat {
            bail!("--token-ids goes with --endpoint completions: a chat has no token numbers");
        }
        let lengths = match &self.lengths {
            Some(path) => Lengths::load(path)?,
            None => {
                let (input, output) = self.sizes();
                Lengths::Drawn { input, output }
            }
        };
        let load = match (&self.rate, &self.trace, self.trace_format) {
            (Some(curve), None, _) => Load::Rate { curve: curve.clone(), process: self.arrival },
            (None, None, _) if self.users.is_some() => Load::Users { n: self.users.unwrap_or(1) },
            (_, Some(path), Some(format)) => {
                let options = traces::Options {
                    scale: self.scale,
                    seed: self.seed,
                    bin_s: self.bin.unwrap_or(BIN_S),
                    lengths: lengths.clone(),
                };
                Load::Trace { path: path.clone(), format, options }
            }
            (_, _, _) => bail!("expected --rate, --users, or --trace with --trace-format"),
        };
        let duration_s = match (self.duration, &load) {
            (Some(duration_s), _) => Some(duration_s),
            (None, Load::Trace { .. }) => None,
            (None, _) if self.count.is_some() => None,
            (None, Load::Users { .. }) => Some(RUN_S),
            (None, Load::Rate { .. }) if self.find_knee => Some(KNEE_STEP_S),
            (None, Load::Rate { curve, .. }) => curve.span_s().is_none().then_some(RUN_S),
        };
        if duration_s.is_some_and(|duration_s| self.warmup + self.cooldown >= duration_s) {
            bail!("--warmup and --cooldown are as long as the run: nothing would be counted");
        }
        ensure!(
            self.cooldown <= 0.0 || duration_s.is_some() || self.rate.is_some(),
            "--cooldown is counted from the end of the run: expected --duration beside --trace"
        );
        let most = files.saturating_sub(OTHER_FILES).clamp(1, MOST_CONNECTIONS);
        let connections = usize::try_from(self.connections.map_or(most, u64::from))?;
        let own = self.prompts.as_ref();
        let own = own.map(|path| Own::load(path, self.endpoint == Endpoint::Chat)).transpose()?;
        Ok(Plan {
            targets,
            classes: self.classes(&lengths),
            load,
            duration_s,
            count: self.count,
            n_empty: 0,
            warmup_s: self.warmup,
            cooldown_s: self.cooldown,
            timeout: Duration::from_secs_f64(self.timeout),
            stall: self.stall.map(Duration::from_secs_f64),
            users: Users {
                patience_s: self.patience,
                retries: u32::from(self.retries),
                retry_budget: self.retry_budget,
                think_s: self.think,
                turns: self.turns,
                seed: self.seed,
            },
            grace: Duration::from_secs_f64(self.grace),
            seed: self.seed,
            n_lanes: self
                .threads
                .map_or_else(|| processors().min(8), usize::from)
                .min(self.users.map_or(usize::MAX, |n| n as usize))
                .min(connections),
            connections,
            authorization: self.authorization()?,
            headers: self.headers()?,
            prompts: Prompts::new(
                if self.token_ids { Alphabet::TokenIds } else { Alphabet::Words },
                self.seed,
            )
            .with_own(own),
            checks_model: !self.any_model,
            replicas,
            watches_engines: self.watch_engines,
            gpus_per_replica: self.gpus_per_replica,
            requests: None,
        })
    }

    /// Of prompts and of answers.
    fn sizes(&self) -> (Size, Size) {
        let or = |size: Option<Size>, tokens| size.unwrap_or_else(|| Size::fixed(tokens));
        (or(self.input_tokens, INPUT_TOKENS), or(self.output_tokens, OUTPUT_TOKENS))
    }

    fn headers(&self) -> anyhow::Result<Vec<(HeaderName, HeaderValue)>> {
        let read = |(n, given): (usize, &Key)| {
            more::header(&given.0).with_context(|| format!("--header, the {n}. of them"))
        };
        (1..).zip(&self.header).map(read).collect()
    }

    fn classes(&self, lengths: &Lengths) -> Vec<Class> {
        let form = Form {
            model: self.model.clone(),
            is_chat: self.endpoint == Endpoint::Chat,
            is_streaming: !self.plain,
            forces_length: !self.natural_length,
            counts_tokens: self.count_tokens,
            more: self.body.clone(),
        };
        let slo = Slo { ttft_s: self.slo_ttft, tpot_s: self.slo_tpot, e2e_s: self.slo_e2e };
        if self.class.is_empty() {
            let lengths = lengths.clone();
            return vec![Class { name: "all".to_owned(), weight: 1.0, form, lengths, slo }];
        }
        let class = |spec: &ClassSpec| {
            let lengths = if spec.input.is_some() || spec.output.is_some() {
                let (input, output) = self.sizes();
                Lengths::Drawn {
                    input: spec.input.unwrap_or(input),
                    output: spec.output.unwrap_or(output),
                }
            } else {
                lengths.clone()
            };
            Class {
                name: spec.name.clone(),
                weight: spec.weight,
                form: Form {
                    model: spec.model.clone().unwrap_or_else(|| self.model.clone()),
                    ..form.clone()
                },
                lengths,
                slo: Slo {
                    ttft_s: spec.ttft_s.unwrap_or(slo.ttft_s),
                    tpot_s: spec.tpot_s.unwrap_or(slo.tpot_s),
                    e2e_s: spec.e2e_s.or(slo.e2e_s),
                },
            }
        };
        self.class.iter().map(class).collect()
    }

    fn authorization(&self) -> anyhow::Result<Option<HeaderValue>> {
        let key = match (&self.api_key_file, &self.api_key) {
            (Some(path), _) => {
                let key = files::read_text(path, MAX_KEY_BYTES)
                    .with_context(|| format!("cannot read the API key in {}", path.display()))?;
                ensure!(!key.trim().is_empty(), "the API key file {} is empty", path.display());
                key
            }
            // Set to nothing is how a shell unsets it.
            (None, Some(key)) if !key.0.is_empty() => key.0.clone(),
            (None, Some(_) | None) => return Ok(None),
        };
        let mut value =
            HeaderValue::from_str(&format!("Bearer {}", key.trim())).map_err(|_characters| {
                anyhow::anyhow!("the API key has characters that no header can carry")
            })?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// Reads the schedule before anything is sent: a broken row of a trace is told before the run
    /// rather than in the middle of it, and a run in which nothing is due measures nothing.
    ///
    /// Tells how many rows of a trace ask for 0 tokens.
    pub(super) fn check_schedule(&self, plan: &Plan, display: &mut Display) -> anyhow::Result<u64> {
        if let Load::Users { .. } = plan.load {
            return Ok(0);
        }
        let is_trace = self.trace.is_some();
        let check_end = |end_s: f64| {
            ensure!(
                self.print_schedule || end_s <= MOST_RUN_S,
                "the run would last for {} and more: expected --duration of at most 30d beside it",
                duration::format_millis(Duration::from_secs_f64(end_s).as_secs() * 1_000)
            );
            Ok(())
        };
        check_end(plan.span_s().unwrap_or(0.0))?;
        let mut is_empty = true;
        let (schedule, empty) = plan.schedule_and_empty()?;
        for (n, planned) in (1..).zip(schedule) {
            let due_s = planned?.due_s;
            check_end(due_s)?;
            is_empty &= !plan.counts(due_s);
            if n % SHOWN_EACH == 0 {
                display.reading(n, plan.span_s().map(|span_s| due_s / span_s));
            }
            if !is_empty && !is_trace {
                break;
            }
        }
        match (is_empty, is_trace) {
            (false, _) => Ok(empty.n()),
            (true, true) => {
                bail!("nothing of the trace is due within the run: raise --duration or --scale")
            }
            (true, false) => bail!("nothing is due within the run: raise --rate or --duration"),
        }
    }
}

/// Processors that this process may use.
pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
