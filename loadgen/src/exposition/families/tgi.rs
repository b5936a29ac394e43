//! Text Generation Inference's families, those of its load, tokens and latency.
//!
//! Must not hold logic. Uncaptured: names and texts are those of TGI 3's source. Of the real page
//! this one differs in four ways: the buckets are the simulated engine's, prefill and decode are
//! one pass, a prompt's length counts when its request ends instead of when it is accepted, and the
//! count at arrival leaves out what was turned away. Left out are the times of batches
//! (`batch_inference_duration`, `batch_forward_duration`, `batch_decode_duration`,
//! `batch_filter_duration`) and of validation.

use super::{Family, Rows, Unit, family, finished, steps, succeeded, waiting};

pub(in crate::exposition) const ALL: &[Family] = &[
    family(
        "request_count",
        "Total number of requests",
        Rows::Counter(&[(&[], |rank| finished(rank) + rank.gauges.running as f64 + waiting(rank))]),
    ),
    family("request_success", "Number of successful requests", Rows::Counter(&[(&[], succeeded)])),
    family(
        "request_failure",
        "Number of failed requests",
        Rows::Rejections("err", &["overloaded"]),
    ),
    family("queue_size", "Current queue size", Rows::Gauge(&[(&[], waiting)])),
    family(
        "batch_current_size",
        "Current batch size",
        Rows::Gauge(&[(&[], |rank| rank.gauges.running as f64)]),
    ),
    family(
        "batch_current_max_tokens",
        "Maximum tokens for the current batch",
        Rows::Gauge(&[(&[], |rank| {
            (rank.gauges.kv_blocks_used * rank.profile.kv.block_tokens) as f64
        })]),
    ),
    family(
        "batch_total_tokens",
        "Maximum tokens of all batches",
        Rows::Gauge(&[(&[], |rank| {
            (rank.gauges.kv_blocks_total * rank.profile.kv.block_tokens) as f64
        })]),
    ),
    family(
        "batch_inference_count",
        "Inference calls per method (prefill or decode)",
        Rows::Counter(&[(&[("method", "decode")], steps)]),
    ),
    family(
        "request_input_length",
        "Input token length per request",
        Rows::Histogram(|metrics| &metrics.request_prompt_tokens, Unit::Tokens),
    ),
    family(
        "request_generated_tokens",
        "Generated tokens per request",
        Rows::Histogram(|metrics| &metrics.request_generation_tokens, Unit::Tokens),
    ),
    family(
        "request_max_new_tokens",
        "Maximum new tokens per request",
        Rows::Histogram(|metrics| &metrics.request_max_tokens, Unit::Tokens),
    ),
    family(
        "request_duration",
        "Total time spent processing the request",
        Rows::Histogram(|metrics| &metrics.e2e_latency, Unit::Seconds),
    ),
    family(
        "request_queue_duration",
        "Time spent in the queue per request",
        Rows::Histogram(|metrics| &metrics.queue_time, Unit::Seconds),
    ),
    family(
        "request_inference_duration",
        "Request inference duration",
        Rows::Histogram(|metrics| &metrics.inference_time, Unit::Seconds),
    ),
    family(
        "request_mean_time_per_token_duration",
        "Mean time per token per request",
        Rows::Histogram(|metrics| &metrics.time_per_output_token, Unit::Seconds),
    ),
];
