//! trtllm-serve's families, those of its load, tokens and latency.
//!
//! Must not hold logic. Uncaptured: names and texts are those of TensorRT-LLM's source in 2026. Left
//! out are `request_error`, `iteration_latency_seconds`, and the counts of context and generation
//! requests, which the simulated engine does not keep apart.

use super::vllm::{
    E2E_REQUEST_LATENCY_SECONDS, REQUEST_DECODE_TIME_SECONDS, REQUEST_INFERENCE_TIME_SECONDS,
    REQUEST_PREFILL_TIME_SECONDS, REQUEST_QUEUE_TIME_SECONDS, TIME_TO_FIRST_TOKEN_SECONDS,
};
use super::{Family, Rows, Unit, family, waiting};

/// Python's multiprocess mode tells the gauges of processes apart.
const PID: (&str, &str) = ("pid", "1");

pub(in crate::exposition) const ALL: &[Family] = &[
    PROMPT_CACHED_TOKENS,
    family(
        "request_success",
        "Count of successfully processed requests.",
        Rows::CounterOnceMoved(&[
            (&[("finished_reason", "stop")], |rank| rank.metrics.finished_stop as f64),
            (&[("finished_reason", "length")], |rank| rank.metrics.finished_length as f64),
            (&[("finished_reason", "cancelled")], |rank| rank.metrics.finished_abort as f64),
        ]),
    ),
    E2E_REQUEST_LATENCY_SECONDS,
    TIME_TO_FIRST_TOKEN_SECONDS,
    family(
        "time_per_output_token_seconds",
        "Histogram of time per output token in seconds.",
        Rows::Histogram(|metrics| &metrics.time_per_output_token, Unit::Seconds),
    ),
    REQUEST_QUEUE_TIME_SECONDS,
    REQUEST_PREFILL_TIME_SECONDS,
    REQUEST_DECODE_TIME_SECONDS,
    REQUEST_INFERENCE_TIME_SECONDS,
    family(
        "prompt_tokens",
        "Cumulative number of prompt (input) tokens processed.",
        Rows::CounterOnceMoved(&[(&[], |rank| rank.metrics.request_prompt_tokens.sum() as f64)]),
    ),
    family(
        "generation_tokens",
        "Cumulative number of generation (output) tokens produced.",
        Rows::CounterOnceMoved(&[(&[], |rank| {
            rank.metrics.request_generation_tokens.sum() as f64
        })]),
    ),
    family(
        "kv_cache_utilization",
        "KV cache utilization",
        Rows::StepGauge(&[(&[PID], |rank| rank.gauges.kv_usage())]),
    ),
    family(
        "num_requests_running",
        "Number of active requests",
        Rows::StepGauge(&[(&[PID], |rank| rank.gauges.running as f64)]),
    ),
    family(
        "num_requests_waiting",
        "Number of queued requests",
        Rows::StepGauge(&[(&[PID], waiting)]),
    ),
    family(
        "num_scheduled_requests",
        "Number of scheduled requests",
        Rows::StepGauge(&[(&[PID], |rank| rank.gauges.running as f64)]),
    ),
    family(
        "num_paused_requests",
        "Number of paused requests",
        Rows::StepGauge(&[(&[PID], |_| 0.0)]),
    ),
    family(
        "kv_cache_hit_rate",
        "KV cache hit rate",
        Rows::StepGauge(&[(&[PID], |rank| {
            rank.metrics.prefix_hits as f64 / (rank.metrics.prefix_queries as f64).max(1.0)
        })]),
    ),
    family(
        "max_num_active_requests",
        "Maximum number of active requests",
        Rows::StepGauge(&[(&[PID], |rank| rank.profile.limits.max_num_seqs as f64)]),
    ),
    family(
        "kv_cache_max_blocks",
        "Maximum number of KV cache blocks",
        Rows::StepGauge(&[(&[PID], |rank| rank.gauges.kv_blocks_total as f64)]),
    ),
    family(
        "kv_cache_tokens_per_block",
        "Number of tokens per KV cache block",
        Rows::StepGauge(&[(&[PID], |rank| rank.profile.kv.block_tokens as f64)]),
    ),
];

/// The one engine family that is there before the first request.
const PROMPT_CACHED_TOKENS: Family = family(
    "prompt_cached_tokens",
    "Process-lifetime total prompt tokens served from KV cache.",
    Rows::Counter(&[(&[], |rank| {
        let metrics = rank.metrics;
        (metrics.request_prompt_tokens.sum() - metrics.request_computed_tokens.sum()) as f64
    })]),
);
