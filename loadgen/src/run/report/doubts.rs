//! What a reader must know before a figure is believed: what went wrong, and what was never seen.
//!
//! Must not change a figure.

use super::{Report, significant};
use crate::run::answer::ANOTHER_MODEL;
use crate::run::elasticity::LEAST_SEEN;
use crate::run::measure::Outcome;
use crate::run::plan::{Load, Plan};

/// What makes the figures doubtful.
pub(super) fn warnings(plan: &Plan, outcome: &Outcome, report: &Report) -> Vec<String> {
    let mut warnings = Vec::new();
    let total = &report.total;
    let is_unanswered = report.is_unanswered();
    if is_unanswered {
        let advice = match total.errors {
            0 => SILENT,
            _ => advice(report),
        };
        let what = match total.ttft.count {
            0 => "nothing was answered",
            _ => "no answer was whole",
        };
        warnings.push(format!("{what}: {advice}"));
    } else if !report.has_answer() {
        warnings.push("no answer was whole when the run ended".to_owned());
    }
    if report.client.is_bottleneck && !is_unanswered {
        let all = outcome.record.total();
        let late = all.usual_lag().map_or_else(String::new, |(share, lag_s)| {
            let (of, ms) = (all.schedule_lag.len(), lag_s * 1e3);
            format!("requests left up to {ms:.1} ms late (p{:.0} of {of})", share * 100.0)
        });
        let unsent = match outcome.record.unsent {
            0 => String::new(),
            n => format!(", {n} not at all"),
        };
        warnings.push(format!(
            "INVALID, the client was the bottleneck: {late}{unsent}; use more \
             --threads or --connections, another machine or a lower rate"
        ));
    }
    if total.errors_by_class.contains_key("client_limit") {
        warnings.push(
            "this machine ran out of files or ports: raise `ulimit -n`, widen \
             net.ipv4.ip_local_port_range, or lower --connections"
                .to_owned(),
        );
    }
    if let Some(error) = &outcome.trace_error {
        warnings.push(format!("the schedule ended early: {error}"));
    }
    if outcome.is_interrupted {
        warnings.push("stopped before its end: the figures are those of the part that ran".into());
    }
    if report.queue_grows == Some(true) && !is_unanswered {
        let rate = |rate: Option<f64>| rate.map_or_else(String::new, significant);
        warnings.push(format!(
            "more and more requests were open though no more were due, and {}/s were answered in the \
             second half of the time, of {}/s due: the load is more than is carried, or the run too \
             short for answers that take so long",
            rate(report.carried_rate),
            rate(total.offered_rate)
        ));
    }
    if total.unfinished > 0 && !is_unanswered {
        warnings.push(format!(
            "{} requests were still open when the run ended, and are in no time above but the \
             lag; a longer --grace waits for them",
            total.unfinished
        ));
    }
    let lost = total.without_first_token;
    if lost * 100 > total.scheduled && !is_unanswered {
        warnings.push(format!(
            "{lost} requests never got a first token: the percentiles are those of the luckier ones"
        ));
    }
    if total.ttft.count > 0 && total.ttft.count < 100 && !is_unanswered {
        warnings
            .push(format!("p99 of {} requests is little more than their worst", total.ttft.count));
    }
    warnings.extend(about_lengths(plan, outcome, report));
    if plan.watches_engines && report.engines.iter().all(|look| look.running.is_none()) {
        warnings.push(
            "not every URL has an engine's page at /metrics, /prometheus/metrics or /v1/metrics: \
             nothing was seen of what runs and waits; known are vLLM (Ray's names too), SGLang, TGI, \
             trtllm-serve, Triton with TensorRT-LLM, llama.cpp, LMDeploy and NIM"
                .into(),
        );
    }
    if plan.replicas.is_some() && report.elasticity.seen_share.unwrap_or(0.0) < LEAST_SEEN {
        warnings.push(
            "the number of replicas was not seen for more than a tenth of the time: what a good \
             token cost is unknown"
                .into(),
        );
    }
    warnings
}

/// What of a trace was not asked for as it is written there.
pub(in crate::run) fn empty_rows(plan: &Plan) -> Option<String> {
    (plan.n_empty > 0).then(|| {
        format!(
            "{} of the trace's rows have 0 tokens, as failed requests do; each is sent with 1",
            plan.n_empty
        )
    })
}

/// Where prompts and answers are not what was asked for.
fn about_lengths(plan: &Plan, outcome: &Outcome, report: &Report) -> Vec<String> {
    let mut warnings: Vec<String> = empty_rows(plan).into_iter().collect();
    let total = &report.total;
    if let Some(ratio) = total.prompt_tokens_ratio.filter(|ratio| !(0.8..=1.25).contains(ratio)) {
        warnings.push(format!(
            "the server counted {ratio:.2} prompt tokens for each that was asked for: its \
             tokenizer or chat template is not ours; --token-ids is exact where it is understood"
        ));
    }
    let is_forced = plan.classes.iter().all(|class| class.form.forces_length);
    if let Some(ratio) = total
        .output_tokens_ratio
        .filter(|ratio| is_forced && total.completed > 0 && !(0.8..=1.25).contains(ratio))
    {
        warnings.push(format!(
            "answers have {ratio:.2} tokens for each that was asked for: the server does not keep to \
             ignore_eos and min_tokens or has a limit of its own, and its work is another than that of \
             one that does"
        ));
    }
    let all = outcome.record.total();
    if is_forced && (all.pieces_uncounted as f64) < 0.8 * all.asked_uncounted as f64 {
        warnings.push(format!(
            "{} answers came without a count of tokens, in {:.2} pieces for each token that was asked \
             for: they ended early, or pieces hold several tokens, and which of the two is unknown",
            all.uncounted,
            all.pieces_uncounted as f64 / all.asked_uncounted as f64
        ));
    }
    if total.in_one_piece > 0 {
        warnings.push(format!(
            "{} answers came in one piece though streams were asked for: their first token is \
             their end, and nothing is known of the time per token",
            total.in_one_piece
        ));
    }
    warnings
}

const SILENT: &str = "the server is silent, or a time limit too short";

/// What to look at when nothing was answered, by what happened most.
fn advice(report: &Report) -> &'static str {
    let errors = &report.total.errors_by_class;
    let most = errors.iter().max_by_key(|(_, n)| **n).map_or("", |(class, _)| class.as_str());
    let example = report.error_examples.get(most).map_or("", String::as_str);
    match most {
        "wrong_model" if example.contains(ANOTHER_MODEL) => {
            "check --model; where the server answers under another name for the same, an alias's or \
             a dated one, --any-model takes it"
        }
        "connect" => "check --url, and whether the server is up",
        "tls" => {
            "check the certificates (--tls-ca names your authority, or the server's own certificate; \
             the URL's host must be among its names), and whether it is https"
        }
        "malformed" => "what answers there is no OpenAI-compatible API over HTTP/1.1: check --url",
        moved if moved.starts_with("http_3") => {
            "the server sends requests elsewhere, which is not followed: --url must be where its \
             location leads, with https if that has it"
        }
        "wrong_model" => "check --model; /v1/models of the server lists what it has",
        "http_401" | "http_403" => "check the key in --api-key-file or $OPENAI_API_KEY",
        "http_413" => "the prompts are larger than the server takes: lower --input-tokens",
        "http_429" => "the server takes no more: see its limits, and those of a gateway before it",
        status if status.starts_with("http_5") => {
            "the server, or a gateway before it, fails or refuses: see its log"
        }
        "http_400" | "http_422" => "the server refuses the request; --natural-length sends less",
        "timeout" | "abandoned" | "stalled" => SILENT,
        "cut_short" => "the server, or what is between, ends its answers early: see its log",
        _ => "check --url and --model",
    }
}

/// What the figures cannot say.
pub(super) fn unknown(plan: &Plan, report: &Report) -> Vec<String> {
    if report.is_unanswered() {
        return Vec::new();
    }
    let mut unknown = vec![
        "Times are seen from this machine: the network and every proxy between are in them."
            .to_owned(),
    ];
    if let Load::Users { .. } = plan.load {
        unknown.push(
            "Closed loop: users wait for their answers, so a server that stalls is asked less and \
             its stall hardly shows (coordinated omission); --rate asks whatever happens."
                .to_owned(),
        );
    }
    if plan.users.turns.is_some() {
        unknown.push(
            "What a conversation's prompts hold of the answers before are words of the same \
             number: an engine's cache knows the prompts before, not its own answers."
                .to_owned(),
        );
    }
    if plan.users.retries == 0 {
        unknown.push(
            "Nothing is sent twice: users whose client retries see other error rates and waits \
             (--retries)."
                .to_owned(),
        );
    }
    let repeated = |n: usize| report.total.scheduled > n as u64;
    if let Some((path, n)) = plan.prompts.own().filter(|(_, n)| repeated(*n)) {
        unknown.push(format!(
            "The {n} prompts of {path} were sent again and again: a prefix cache knows them, and is \
             faster by it than your users will find it."
        ));
    }
    if plan.classes.iter().any(|class| !class.form.is_streaming) {
        unknown.push(
            "Plain answers show no first token: TTFT, TPOT and ITL are unknown, and only a promise \
             on the whole time is judged."
                .to_owned(),
        );
    } else {
        unknown.push(
            "ITL is between pieces of text. TPOT counts tokens as the server does.".to_owned(),
        );
        if report.total.itl.count > 0 && report.total.token_itl.count == 0 {
            unknown.push(
                "The time between tokens is unknown: pieces may hold several, and do not say how \
                 many (--count-tokens has vLLM and SGLang say it)."
                    .to_owned(),
            );
        }
    }
    if report.total.uncounted > 0 {
        unknown.push(format!(
            "{} answers came without a count of tokens: their pieces of text were counted instead.",
            report.total.uncounted
        ));
    }
    if plan.replicas.is_none() {
        unknown.push(
            "Replicas were not watched (--replicas-url, --watch-health): what the good tokens cost \
             in GPU time is unknown."
                .to_owned(),
        );
    }
    unknown
}
