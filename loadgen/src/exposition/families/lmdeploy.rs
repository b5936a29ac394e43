//! LMDeploy's families, those of its load, tokens and latency.
//!
//! Must not hold logic. Uncaptured: names, texts and labels are those of the page that LMDeploy
//! 0.18's own code makes without an engine (`tests/data/pages`). The buckets are the simulated engine's.
//! Where families are vLLM's, these stand here.

use super::vllm::{
    E2E_REQUEST_LATENCY_SECONDS, GENERATION_TOKENS, ITERATION_TOKENS_TOTAL, NUM_REQUESTS_RUNNING,
    NUM_REQUESTS_WAITING, PROMPT_TOKENS, REQUEST_DECODE_TIME_SECONDS, REQUEST_GENERATION_TOKENS,
    REQUEST_INFERENCE_TIME_SECONDS, REQUEST_PREFILL_TIME_SECONDS, REQUEST_PROMPT_TOKENS,
    REQUEST_QUEUE_TIME_SECONDS, TIME_TO_FIRST_TOKEN_SECONDS,
};
use super::vllm_old::GPU_CACHE_USAGE_PERC_V0;
use super::{Family, Rows, Unit, family, finished};

pub(in crate::exposition) const ALL: &[Family] = &[
    family(
        "num_api_requests_waiting",
        "Number of requests waiting for free request handles.",
        Rows::Gauge(&[(&[], |_| 0.0)]),
    ),
    NUM_REQUESTS_RUNNING,
    NUM_REQUESTS_WAITING,
    GPU_CACHE_USAGE_PERC_V0,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    family(
        "request_success",
        "Count of successfully processed requests.",
        Rows::Counter(&[
            (&[("finished_reason", "ResponseType.FINISH")], finished),
            (&[("finished_reason", "ResponseType.CANCEL")], |_| 0.0),
        ]),
    ),
    REQUEST_PROMPT_TOKENS,
    REQUEST_GENERATION_TOKENS,
    ITERATION_TOKENS_TOTAL,
    TIME_TO_FIRST_TOKEN_SECONDS,
    family(
        "time_per_output_token_seconds",
        "Histogram of time per output token in seconds.",
        Rows::Histogram(|metrics| &metrics.time_per_output_token, Unit::Seconds),
    ),
    family(
        "iter_token_latency",
        "Histogram of inter-token latency",
        Rows::Histogram(|metrics| &metrics.inter_token_latency, Unit::Seconds),
    ),
    E2E_REQUEST_LATENCY_SECONDS,
    REQUEST_QUEUE_TIME_SECONDS,
    REQUEST_INFERENCE_TIME_SECONDS,
    REQUEST_PREFILL_TIME_SECONDS,
    REQUEST_DECODE_TIME_SECONDS,
];
