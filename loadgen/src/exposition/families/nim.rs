//! NIM's families.
//!
//! Must not hold logic. Uncaptured: names and texts are those of NIM's documentation; the buckets,
//! of which NIM has fewer, are the simulated engine's.

use super::vllm::{
    GENERATION_TOKENS, NUM_REQUESTS_WAITING, PROMPT_TOKENS, REQUEST_GENERATION_TOKENS,
    REQUEST_PROMPT_TOKENS, TIME_TO_FIRST_TOKEN_SECONDS,
};
use super::vllm_old::{
    E2E_REQUEST_LATENCY_SECONDS_V0, GPU_CACHE_USAGE_PERC_V0, NUM_REQUESTS_RUNNING_V0,
    TIME_PER_OUTPUT_TOKEN_SECONDS,
};
use super::{Family, Rows, family, succeeded};

pub(in crate::exposition) const ALL: &[Family] = &[
    NUM_REQUESTS_RUNNING_V0,
    NUM_REQUESTS_WAITING,
    family(
        "num_request_max",
        "Max number of concurrently running requests.",
        Rows::StepGauge(&[(&[], |rank| rank.profile.limits.max_num_seqs as f64)]),
    ),
    GPU_CACHE_USAGE_PERC_V0,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    TIME_TO_FIRST_TOKEN_SECONDS,
    TIME_PER_OUTPUT_TOKEN_SECONDS,
    E2E_REQUEST_LATENCY_SECONDS_V0,
    REQUEST_PROMPT_TOKENS,
    REQUEST_GENERATION_TOKENS,
    family(
        "request_success",
        "Number of successful requests; requests with finish reason \"stop\" or \"length\" are counted",
        Rows::Counter(&[(&[], succeeded)]),
    ),
    family(
        "request_failure",
        "Number of failed requests; requests with other finish reason are counted",
        Rows::Counter(&[(&[], |rank| rank.metrics.finished_abort as f64)]),
    ),
    family(
        "request_finish",
        "Number of finished requests, with label indicating finish reason",
        Rows::CounterOnceMoved(&[
            (&[("finished_reason", "stop")], |rank| rank.metrics.finished_stop as f64),
            (&[("finished_reason", "length")], |rank| rank.metrics.finished_length as f64),
            (&[("finished_reason", "abort")], |rank| rank.metrics.finished_abort as f64),
        ]),
    ),
];
