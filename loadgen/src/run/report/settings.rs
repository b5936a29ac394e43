//! What a run was told, beyond its load: what another run needs to be the same, and what `compare`
//! looks at before it compares.
//!
//! Must not hold a secret: of headers there are only the names.

use serde::Serialize;

use crate::run::plan::{Class, Load, Plan};
use crate::run::prompt::Alphabet;
use crate::traces::Lengths;

/// The settings of a run, in seconds where they are times.
#[derive(Debug, Clone, Serialize)]
pub struct Settings {
    /// The kinds of requests.
    pub classes: Vec<ClassSettings>,
    /// How a trace was read, if there was one.
    pub trace: Option<TraceSettings>,
    /// The end of the schedule; `null`: that of the trace, or after `count` requests.
    pub duration_s: Option<f64>,
    /// How many requests end the schedule, if it does not end before.
    pub count: Option<u64>,
    /// Requests due in this time at its beginning are not counted.
    pub warmup_s: f64,
    /// Likewise at its end.
    pub cooldown_s: f64,
    /// `chat` or `completions`.
    pub endpoint: &'static str,
    /// Whether streams were asked for.
    pub streaming: bool,
    /// Whether the length of answers was forced.
    pub forces_length: bool,
    /// Whether pieces were to say how many tokens they hold.
    pub counts_tokens: bool,
    /// Whether prompts were token numbers.
    pub token_ids: bool,
    /// Whether answers under another model's name counted.
    pub any_model: bool,
    /// The file of the prompts, where they were one's own.
    pub prompts: Option<String>,
    /// Further fields of each request, as JSON.
    pub body: Option<String>,
    /// The names of further headers.
    pub headers: Vec<String>,
    /// How often what was refused was sent again.
    pub retries: u32,
    /// At most so many for each request.
    pub retry_budget: Option<f64>,
    /// How long users waited for a first token, in the mean.
    pub patience_s: Option<f64>,
    /// How long they thought, in the mean.
    pub think_s: f64,
    /// Requests of a conversation.
    pub turns: Option<String>,
    /// The longest that a request might take.
    pub timeout_s: f64,
    /// The longest silence within an answer.
    pub stall_s: Option<f64>,
    /// How long open requests might go on after the last was due.
    pub grace_s: f64,
}

/// A kind of requests.
#[derive(Debug, Clone, Serialize)]
pub struct ClassSettings {
    /// Its name.
    pub class: String,
    /// Its share of all requests, 0 to 1.
    pub share: f64,
    /// The model that was asked for.
    pub model: String,
    /// Tokens of a prompt and of an answer, as they were written; `null` where a trace, a file or the
    /// prompts say it.
    pub input_tokens: Option<String>,
    /// See `input_tokens`.
    pub output_tokens: Option<String>,
    /// Pairs of lengths that were drawn from, where a file had them.
    pub length_pairs: Option<usize>,
}

/// How a trace was read.
#[derive(Debug, Clone, Serialize)]
pub struct TraceSettings {
    /// The file.
    pub path: String,
    /// Its form.
    pub format: String,
    /// What its rate was multiplied by.
    pub scale: f64,
    /// The width of a bin of counts.
    pub bin_s: Option<f64>,
    /// Rows with a length of 0, which counts as 1; `null` if there are none.
    pub empty_rows: Option<u64>,
}

impl Settings {
    pub(super) fn of(plan: &Plan) -> Settings {
        let weights: f64 = plan.classes.iter().map(|class| class.weight).sum();
        let trace = match &plan.load {
            Load::Trace { path, format, options } => Some(TraceSettings {
                path: path.display().to_string(),
                format: format.to_string(),
                scale: options.scale,
                bin_s: (!format.has_lengths()).then_some(options.bin_s),
                empty_rows: (plan.n_empty > 0).then_some(plan.n_empty),
            }),
            Load::Rate { .. } | Load::Users { .. } => None,
        };
        let has_lengths = matches!(&plan.load, Load::Trace { format, .. } if format.has_lengths());
        let own = plan.prompts.own();
        let class = |class: &Class| {
            let (input, output, pairs) = match &class.lengths {
                _ if has_lengths => (None, None, None),
                Lengths::Drawn { input, output } => (Some(input), Some(output), None),
                Lengths::Pool(pool) => (None, None, Some(pool.len())),
            };
            ClassSettings {
                class: class.name.clone(),
                share: class.weight / weights,
                model: class.form.model.clone(),
                input_tokens: input.filter(|_| own.is_none()).map(ToString::to_string),
                output_tokens: output.map(ToString::to_string),
                length_pairs: pairs,
            }
        };
        // The form is the same for all classes but for the model.
        let form = plan.classes.first().map(|class| &class.form);
        let is = |of: fn(&crate::run::prompt::Form) -> bool| form.is_some_and(of);
        Settings {
            classes: plan.classes.iter().map(class).collect(),
            trace,
            duration_s: plan.span_s(),
            count: plan.count,
            warmup_s: plan.warmup_s,
            cooldown_s: plan.cooldown_s,
            endpoint: if is(|form| form.is_chat) { "chat" } else { "completions" },
            streaming: is(|form| form.is_streaming),
            forces_length: is(|form| form.forces_length),
            counts_tokens: is(|form| form.counts_tokens),
            token_ids: plan.prompts.alphabet() == Alphabet::TokenIds,
            any_model: !plan.checks_model,
            prompts: own.map(|(path, _)| path.to_owned()),
            body: form.and_then(|form| form.more.as_ref()).map(ToString::to_string),
            headers: plan.headers.iter().map(|(name, _)| name.to_string()).collect(),
            retries: plan.users.retries,
            retry_budget: plan.users.retry_budget,
            patience_s: plan.users.patience_s,
            think_s: plan.users.think_s,
            turns: plan.users.turns.map(|turns| turns.to_string()),
            timeout_s: plan.timeout.as_secs_f64(),
            stall_s: plan.stall.map(|stall| stall.as_secs_f64()),
            grace_s: plan.grace.as_secs_f64(),
        }
    }
}
