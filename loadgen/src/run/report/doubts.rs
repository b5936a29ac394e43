//! What a reader must know before a figure is believed: what went wrong, and what was never seen.
//!
//! Must not change a figure.

use std::collections::BTreeMap;

use super::Report;
use crate::run::elasticity::LEAST_SEEN;
use crate::run::failure::Failure;
use crate::run::measure::Outcome;
use crate::run::plan::{Load, Plan};
use crate::run::record;
use crate::run::timeline::Point;

/// Whether requests left so late that what was measured is the client rather than the server: the
/// 99th percentile of the lag above 1 ms and above a hundredth of the median time to first token.
pub(super) fn is_bottleneck(outcome: &Outcome, total: &record::Class) -> bool {
    let lag_s = total.schedule_lag.quantile(0.99).unwrap_or(0.0);
    let usual_s = total.ttft.quantile(0.5).or_else(|| total.e2e.quantile(0.5)).unwrap_or(0.0);
    let is_full = total.errors.contains_key(&Failure::ClientLimit);
    outcome.record.unsent > 0 || is_full || lag_s > (usual_s / 100.0).max(1e-3)
}

/// What makes the figures doubtful.
pub(super) fn warnings(plan: &Plan, outcome: &Outcome, report: &Report) -> Vec<String> {
    let mut warnings = Vec::new();
    let total = &report.total;
    let is_unanswered = report.is_unanswered();
    if is_unanswered {
        let advice = match total.errors {
            0 => SILENT,
            _ => advice(&total.errors_by_class),
        };
        warnings.push(format!("nothing was answered: {advice}"));
    }
    if report.client.is_bottleneck && !is_unanswered {
        let lag_ms = total.schedule_lag.p99.unwrap_or(0.0) * 1e3;
        let unsent = match outcome.record.unsent {
            0 => String::new(),
            n => format!(", {n} not at all"),
        };
        warnings.push(format!(
            "INVALID, the client was the bottleneck: requests left up to {lag_ms:.1} ms late (p99){unsent}; \
             use more --threads or --connections, another machine or a lower rate"
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
    let (begin_s, end_s) = (plan.warmup_s, plan.warmup_s + report.duration_s);
    let within = |point: &&Point| (begin_s..end_s).contains(&point.t_s);
    // The report's own points are as wide as the wait for the last answers makes them.
    let points = outcome.record.timeline.points();
    if is_growing(&points.iter().filter(within).collect::<Vec<_>>()) {
        warnings.push(
            "more and more requests were open though no more were due: the load is more than is \
             carried, or the run too short for answers that take so long"
                .to_owned(),
        );
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
    if total.ttft.count > 0 && total.ttft.count < 100 {
        warnings
            .push(format!("p99 of {} requests is little more than their worst", total.ttft.count));
    }
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
             ignore_eos and min_tokens, and its work is another than that of one that does"
        ));
    }
    if total.in_one_piece > 0 {
        warnings.push(format!(
            "{} answers came in one piece though streams were asked for: their first token is \
             their end, and nothing is known of the time per token",
            total.in_one_piece
        ));
    }
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

/// Whether the open requests more than doubled from the second quarter of the load to the last, but
/// those that were due did not grow by a tenth.
fn is_growing(points: &[&Point]) -> bool {
    /// Points and requests below which chance alone may do it.
    const LEAST_POINTS: usize = 5;
    const LEAST_MORE: f64 = 10.0;
    let quarter = points.len() / 4;
    if quarter < LEAST_POINTS {
        return false;
    }
    let mean = |points: &[&Point], of: fn(&Point) -> u64| {
        points.iter().map(|point| of(point) as f64).sum::<f64>() / points.len() as f64
    };
    let (early, late) = (&points[quarter..2 * quarter], &points[points.len() - quarter..]);
    let open = |points| mean(points, |point| point.in_flight);
    let due = |points| mean(points, |point| point.scheduled);
    due(late) < 1.1 * due(early)
        && open(late) > 2.0 * open(early)
        && open(late) > open(early) + LEAST_MORE
}

const SILENT: &str = "the server is silent, or a time limit too short";

/// What to look at when nothing was answered, by what happened most.
fn advice(errors: &BTreeMap<String, u64>) -> &'static str {
    let most = errors.iter().max_by_key(|(_, n)| **n).map_or("", |(class, _)| class.as_str());
    match most {
        "connect" => "check --url, and whether the server is up",
        "tls" => "check the certificates (--tls-ca names your authority), and whether it is https",
        "wrong_model" => "check --model; /v1/models of the server lists what it has",
        "http_401" | "http_403" => "check the key in --api-key-file or $OPENAI_API_KEY",
        "http_400" | "http_422" => "the server refuses the request; --natural-length sends less",
        "timeout" | "abandoned" | "stalled" => SILENT,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(open: impl Fn(u64) -> u64, due: impl Fn(u64) -> u64) -> Vec<Point> {
        let point = |index: u64| Point {
            t_s: index as f64,
            scheduled: due(index),
            good: 0,
            failed: 0,
            late: 0,
            completed: 0,
            in_flight: open(index),
            ttft_p50: None,
            ttft_p99: None,
        };
        (0..40).map(point).collect()
    }

    #[test]
    fn a_queue_that_grows_under_a_steady_load_is_told() {
        let is_growing = |n: usize, open: fn(u64) -> u64, due: fn(u64) -> u64| {
            is_growing(&timeline(open, due).iter().take(n).collect::<Vec<_>>())
        };
        assert!(is_growing(40, |index| 5 * index, |_| 10));
        // A steady one, one that grows with the load, one that is short, and one of chance.
        assert!(!is_growing(40, |index| 50 + index % 7, |_| 10));
        assert!(!is_growing(40, |index| 5 * index, |index| 10 + index));
        assert!(!is_growing(19, |index| 5 * index, |_| 10));
        assert!(!is_growing(40, |index| index / 9, |_| 1));
    }
}
