//! SGLang's families, those of its load, tokens and latency.
//!
//! Must not hold logic. Uncaptured: names, texts and types are those that SGLang 0.5.23's own code
//! makes without an engine (`tests/data/pages`), but for `http_requests_total`, which its HTTP layer
//! has by its source. The buckets are the simulated engine's, all families have the labels of the
//! scheduler's, and the token counters do not have `is_streaming`. `gen_throughput` is the mean over
//! all working time, where SGLang has that of its last interval.

use super::vllm::TIME_TO_FIRST_TOKEN_SECONDS;
use super::{Family, Rows, Unit, family, finished, used_share};

pub(in crate::exposition) const ALL: &[Family] = &[
    family(
        "num_running_reqs",
        "The number of running requests.",
        Rows::Gauge(&[(&[], |rank| rank.gauges.running as f64)]),
    ),
    family(
        "num_used_tokens",
        "The number of used tokens.",
        Rows::Gauge(&[(&[], |rank| {
            (rank.gauges.kv_blocks_used * rank.profile.kv.block_tokens) as f64
        })]),
    ),
    family(
        "gen_throughput",
        "The generation throughput (token/s).",
        Rows::Gauge(&[(&[], |rank| match rank.gauges.running {
            0 => 0.0,
            _ => rank.metrics.generation_tokens as f64 / rank.busy_s.max(f64::MIN_POSITIVE),
        })]),
    ),
    family("token_usage", "The token usage.", Rows::Gauge(&[(&[], |rank| used_share(rank, 0))])),
    family(
        "num_queue_reqs",
        "The number of requests in the waiting queue.",
        Rows::Gauge(&[(&[], |rank| rank.gauges.waiting as f64)]),
    ),
    family(
        "num_grammar_queue_reqs",
        "The number of requests in the grammar waiting queue.",
        Rows::Gauge(&[(&[], |rank| rank.gauges.deferred as f64)]),
    ),
    family(
        "max_total_num_tokens",
        "Maximum total number of tokens in the KV cache pool.",
        Rows::Gauge(&[(&[], |rank| {
            (rank.gauges.kv_blocks_total * rank.profile.kv.block_tokens) as f64
        })]),
    ),
    family(
        "num_retracted_requests",
        "Total number of retracted requests.",
        Rows::Counter(&[(&[], |rank| rank.metrics.preemptions as f64)]),
    ),
    family(
        "realtime_tokens",
        "Total number of tokens processed (updated on each log interval). mode: prefill_compute, prefill_cache, decode.",
        Rows::Counter(&[
            (&[("mode", "prefill_compute")], |rank| {
                (rank.metrics.prompt_tokens - rank.metrics.prompt_tokens_cached) as f64
            }),
            (&[("mode", "prefill_cache")], |rank| rank.metrics.prompt_tokens_cached as f64),
            (&[("mode", "decode")], |rank| rank.metrics.generation_tokens as f64),
        ]),
    ),
    family(
        "prompt_tokens",
        "Number of prefill tokens processed.",
        Rows::Counter(&[(&[], |rank| rank.metrics.request_prompt_tokens.sum() as f64)]),
    ),
    family(
        "generation_tokens",
        "Number of generation tokens processed.",
        Rows::Counter(&[(&[], |rank| rank.metrics.request_generation_tokens.sum() as f64)]),
    ),
    family("num_requests", "Number of requests processed.", Rows::Counter(&[(&[], finished)])),
    TIME_TO_FIRST_TOKEN_SECONDS,
    family(
        "inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        Rows::Histogram(|metrics| &metrics.inter_token_latency, Unit::Seconds),
    ),
    family(
        "e2e_request_latency_seconds",
        "Histogram of End-to-end request latency in seconds",
        Rows::Histogram(|metrics| &metrics.e2e_latency, Unit::Seconds),
    ),
    family(
        "queue_time_seconds",
        "Histogram of queueing time in seconds.",
        Rows::Histogram(|metrics| &metrics.queue_time, Unit::Seconds),
    ),
    family("http_requests", "Total number of HTTP requests by endpoint and method", Rows::Arrivals),
];
