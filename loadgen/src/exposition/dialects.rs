//! Which families a version shows, in its order, and how its pages behave.
//!
//! Must not define a family.

use super::families::{self as f, Family};

/// A version's way to show its metrics.
#[derive(Debug)]
pub struct Dialect {
    /// What `--dialect` calls it.
    pub name: &'static str,
    /// What `/version` answers.
    pub version: &'static str,
    /// The content type of the page.
    pub content_type: &'static str,
    /// After its last client has gone away, an engine's gauges stay as they were until it makes a
    /// token again.
    pub gauges_stick_after_abort: bool,
    /// On SIGTERM with requests in flight, the engine dies and leaves their connections open
    /// without an answer.
    pub hangs_on_sigterm: bool,
    pub(super) families: &'static [Family],
    /// Whether engine series say which rank they belong to.
    pub(super) engine_label: bool,
    /// Engine and API server are processes of their own, so every page is in multiprocess mode.
    pub(super) always_multiprocess: bool,
    /// Before the first request only the cache configuration is there.
    pub(super) lazy: bool,
    pub(super) counts_http: bool,
}

/// No dialect has that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("dialect `{name}` is not known: expected one of {}", known.join(", "))]
pub struct UnknownDialect {
    /// What was asked for.
    pub name: String,
    /// What there is.
    pub known: Vec<&'static str>,
}

impl Dialect {
    /// Every dialect, the newest first.
    pub const ALL: [&'static Dialect; 3] =
        [&Dialect::VLLM_0_32, &Dialect::VLLM_0_9_1_V1, &Dialect::VLLM_0_9_1_V0];

    /// vLLM 0.32.
    pub const VLLM_0_32: Dialect = Dialect {
        name: "vllm-0.32",
        version: "0.32.0",
        content_type: "text/plain; version=1.0.0; charset=utf-8",
        gauges_stick_after_abort: false,
        hangs_on_sigterm: false,
        families: VLLM_0_32,
        engine_label: true,
        always_multiprocess: false,
        lazy: false,
        counts_http: true,
    };

    /// vLLM 0.9.1 with the V1 engine, its default.
    pub const VLLM_0_9_1_V1: Dialect = Dialect {
        name: "vllm-0.9.1-v1",
        version: "0.9.1",
        content_type: "text/plain; version=0.0.4; charset=utf-8",
        gauges_stick_after_abort: true,
        hangs_on_sigterm: true,
        families: VLLM_0_9_1_V1,
        engine_label: true,
        always_multiprocess: false,
        lazy: false,
        counts_http: true,
    };

    /// vLLM 0.9.1 with the V0 engine.
    pub const VLLM_0_9_1_V0: Dialect = Dialect {
        name: "vllm-0.9.1-v0",
        version: "0.9.1",
        content_type: "text/plain; version=0.0.4; charset=utf-8",
        gauges_stick_after_abort: false,
        hangs_on_sigterm: true,
        families: VLLM_0_9_1_V0,
        engine_label: false,
        always_multiprocess: true,
        lazy: true,
        counts_http: false,
    };

    /// The dialect of that name.
    ///
    /// # Errors
    ///
    /// When there is none; the error lists those that there are.
    pub fn named(name: &str) -> Result<&'static Dialect, UnknownDialect> {
        Dialect::ALL.into_iter().find(|dialect| dialect.name == name).ok_or_else(|| {
            let known = Dialect::ALL.iter().map(|dialect| dialect.name).collect();
            UnknownDialect { name: name.to_owned(), known }
        })
    }
}

const VLLM_0_32: &[Family] = &[
    f::ESTIMATED_FLOPS_PER_GPU,
    f::ESTIMATED_READ_BYTES_PER_GPU,
    f::ESTIMATED_WRITE_BYTES_PER_GPU,
    f::NUM_REQUESTS_RUNNING,
    f::NUM_REQUESTS_WAITING,
    f::NUM_REQUESTS_WAITING_BY_REASON,
    f::ENGINE_SLEEP_STATE,
    f::KV_CACHE_USAGE_PERC,
    f::PREFIX_CACHE_QUERIES,
    f::PREFIX_CACHE_HITS,
    f::EXTERNAL_PREFIX_CACHE_QUERIES,
    f::EXTERNAL_PREFIX_CACHE_HITS,
    f::MM_CACHE_QUERIES,
    f::MM_CACHE_HITS,
    f::NUM_PREEMPTIONS,
    f::PROMPT_TOKENS,
    f::PROMPT_TOKENS_BY_SOURCE,
    f::PROMPT_TOKENS_CACHED,
    f::PROMPT_TOKENS_CACHED_BY_SOURCE,
    f::GENERATION_TOKENS,
    f::REQUEST_SUCCESS,
    f::ADMISSION_REJECTIONS,
    f::REQUEST_PROMPT_TOKENS,
    f::REQUEST_GENERATION_TOKENS,
    f::ITERATION_TOKENS_TOTAL,
    f::REQUEST_MAX_NUM_GENERATION_TOKENS,
    f::REQUEST_PARAMS_N,
    f::REQUEST_PARAMS_MAX_TOKENS,
    f::TIME_TO_FIRST_TOKEN_SECONDS,
    f::INTER_TOKEN_LATENCY_SECONDS,
    f::REQUEST_TIME_PER_OUTPUT_TOKEN_SECONDS,
    f::E2E_REQUEST_LATENCY_SECONDS,
    f::REQUEST_QUEUE_TIME_SECONDS,
    f::REQUEST_INFERENCE_TIME_SECONDS,
    f::REQUEST_PREFILL_TIME_SECONDS,
    f::REQUEST_DECODE_TIME_SECONDS,
    f::REQUEST_NUM_PREEMPTIONS,
    f::REQUEST_PREFILL_KV_COMPUTED_TOKENS,
    f::CACHE_CONFIG_INFO,
];

const VLLM_0_9_1_V1: &[Family] = &[
    f::NUM_REQUESTS_RUNNING,
    f::NUM_REQUESTS_WAITING,
    f::GPU_CACHE_USAGE_PERC,
    f::GPU_PREFIX_CACHE_QUERIES,
    f::GPU_PREFIX_CACHE_HITS,
    f::NUM_PREEMPTIONS,
    f::PROMPT_TOKENS,
    f::GENERATION_TOKENS,
    f::REQUEST_SUCCESS_0_9_1,
    f::REQUEST_PROMPT_TOKENS,
    f::REQUEST_GENERATION_TOKENS,
    f::ITERATION_TOKENS_TOTAL,
    f::REQUEST_MAX_NUM_GENERATION_TOKENS,
    f::REQUEST_PARAMS_N,
    f::REQUEST_PARAMS_MAX_TOKENS,
    f::TIME_TO_FIRST_TOKEN_SECONDS,
    f::TIME_PER_OUTPUT_TOKEN_SECONDS,
    f::E2E_REQUEST_LATENCY_SECONDS,
    f::REQUEST_QUEUE_TIME_SECONDS,
    f::REQUEST_INFERENCE_TIME_SECONDS,
    f::REQUEST_PREFILL_TIME_SECONDS,
    f::REQUEST_DECODE_TIME_SECONDS,
    f::CACHE_CONFIG_INFO_0_9_1,
];

const VLLM_0_9_1_V0: &[Family] = &[
    f::ITERATION_TOKENS_TOTAL,
    f::TIME_TO_FIRST_TOKEN_SECONDS,
    f::TIME_PER_OUTPUT_TOKEN_SECONDS,
    f::E2E_REQUEST_LATENCY_SECONDS_V0,
    f::REQUEST_QUEUE_TIME_SECONDS,
    f::REQUEST_INFERENCE_TIME_SECONDS,
    f::REQUEST_PREFILL_TIME_SECONDS,
    f::REQUEST_DECODE_TIME_SECONDS,
    f::REQUEST_PROMPT_TOKENS,
    f::REQUEST_GENERATION_TOKENS,
    f::REQUEST_PARAMS_N,
    f::REQUEST_MAX_NUM_GENERATION_TOKENS,
    f::REQUEST_PARAMS_MAX_TOKENS,
    f::LORA_REQUESTS_INFO,
    f::NUM_PREEMPTIONS,
    f::PROMPT_TOKENS,
    f::GENERATION_TOKENS,
    f::REQUEST_SUCCESS_V0,
    f::NUM_REQUESTS_RUNNING_V0,
    f::NUM_REQUESTS_WAITING,
    f::GPU_CACHE_USAGE_PERC_V0,
    f::CACHE_CONFIG_INFO_V0,
];
