//! vLLM's dialects, by version.
//!
//! Must not define a family.

use super::{BeforeFirst, Dialect, Evidence, Family, Label, Manners, PYTHON};
use crate::exposition::families::{vllm as f, vllm_old as old};

const TEXT_1: &str = "text/plain; version=1.0.0; charset=utf-8";
const TEXT_0: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What every version since 0.8.3 has in common.
const V1: Dialect = Dialect {
    paths: &["/metrics", "/metrics/"],
    namespace: "vllm:",
    labels: &[Label::Rank("engine"), Label::Model("model_name")],
    has_created: true,
    has_process: true,
    counts_http: true,
    ..PYTHON
};

impl Dialect {
    /// vLLM 0.33, whose names are those of 0.32 by its source.
    pub const VLLM_0_33: Dialect = Dialect {
        name: "vllm-0.33",
        version: "0.33.0",
        evidence: Evidence::Uncaptured,
        ..Dialect::VLLM_0_32
    };

    /// vLLM 0.32.
    pub const VLLM_0_32: Dialect = Dialect {
        name: "vllm-0.32",
        version: "0.32.0",
        evidence: Evidence::Captured,
        content_type: TEXT_1,
        families: FAMILIES_0_32,
        ..V1
    };

    /// vLLM 0.20.
    pub const VLLM_0_20: Dialect = Dialect {
        name: "vllm-0.20",
        version: "0.20.2",
        evidence: Evidence::Captured,
        content_type: TEXT_1,
        families: FAMILIES_0_20,
        ..V1
    };

    /// vLLM 0.11.0 with the V1 engine.
    pub const VLLM_0_11: Dialect = Dialect {
        name: "vllm-0.11",
        version: "0.11.0",
        evidence: Evidence::Captured,
        content_type: TEXT_1,
        families: FAMILIES_0_11,
        ..V1
    };

    /// vLLM 0.9.2 with the V1 engine, which has the KV gauge and the prefix cache under both of
    /// their names.
    pub const VLLM_0_9_2: Dialect = Dialect {
        name: "vllm-0.9.2",
        version: "0.9.2",
        evidence: Evidence::Uncaptured,
        families: FAMILIES_0_9_2,
        ..Dialect::VLLM_0_9_1_V1
    };

    /// vLLM 0.8.5 with the V1 engine, whose names are those of 0.9.1 by its source.
    pub const VLLM_0_8: Dialect = Dialect {
        name: "vllm-0.8",
        version: "0.8.5",
        evidence: Evidence::Uncaptured,
        ..Dialect::VLLM_0_9_1_V1
    };

    /// vLLM 0.6.6 with the V0 engine: what 0.9.1 has of it, and what was swapped to the host.
    pub const VLLM_0_6: Dialect = Dialect {
        name: "vllm-0.6",
        version: "0.6.6",
        evidence: Evidence::Uncaptured,
        families: FAMILIES_0_6,
        ..Dialect::VLLM_0_9_1_V0
    };

    /// vLLM 0.9.1 with the V1 engine, its default.
    pub const VLLM_0_9_1_V1: Dialect = Dialect {
        name: "vllm-0.9.1-v1",
        version: "0.9.1",
        evidence: Evidence::Captured,
        content_type: TEXT_0,
        manners: Manners {
            gauges_stick_after_abort: true,
            hangs_on_sigterm: true,
            ..Manners::VLLM
        },
        families: FAMILIES_0_9_1_V1,
        ..V1
    };

    /// vLLM 0.9.1 with the V0 engine.
    pub const VLLM_0_9_1_V0: Dialect = Dialect {
        name: "vllm-0.9.1-v0",
        version: "0.9.1",
        evidence: Evidence::Captured,
        content_type: TEXT_0,
        manners: Manners { hangs_on_sigterm: true, ..Manners::VLLM },
        families: FAMILIES_0_9_1_V0,
        labels: &[Label::Model("model_name")],
        always_multiprocess: true,
        before_first: BeforeFirst::Only(&["cache_config_info"]),
        counts_http: false,
        ..V1
    };

    /// vLLM 0.32 as Ray's agent re-exports it: names without a colon, and labels of Ray's own.
    pub const VLLM_RAY: Dialect = Dialect {
        name: "vllm-ray",
        version: "0.32.0",
        evidence: Evidence::Uncaptured,
        content_type: TEXT_0,
        namespace: "ray_vllm_",
        families: FAMILIES_RAY,
        labels: &[
            Label::Rank("engine"),
            Label::Model("model_name"),
            Label::Fixed("Component", "core_worker"),
            Label::Fixed("NodeAddress", "10.0.0.1"),
            Label::Fixed("ReplicaId", "llm-1"),
            Label::Fixed("SessionName", "session"),
            Label::Fixed("Version", "2.60.0"),
            Label::Fixed("WorkerId", "w1"),
        ],
        has_created: false,
        has_process: false,
        counts_http: false,
        ..V1
    };
}

const FAMILIES_0_32: &[Family] = &[
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

const FAMILIES_0_20: &[Family] = &[
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
    f::GENERATION_TOKENS,
    f::REQUEST_SUCCESS,
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
    f::REQUEST_PREFILL_KV_COMPUTED_TOKENS,
    old::CACHE_CONFIG_INFO_0_20,
];

const FAMILIES_0_11: &[Family] = &[
    f::NUM_REQUESTS_RUNNING,
    f::NUM_REQUESTS_WAITING,
    old::KV_CACHE_USAGE_PERC_0_11,
    f::PREFIX_CACHE_QUERIES,
    f::PREFIX_CACHE_HITS,
    f::NUM_PREEMPTIONS,
    f::PROMPT_TOKENS,
    f::GENERATION_TOKENS,
    old::REQUEST_SUCCESS_0_9_1,
    f::REQUEST_PROMPT_TOKENS,
    f::REQUEST_GENERATION_TOKENS,
    f::ITERATION_TOKENS_TOTAL,
    f::REQUEST_MAX_NUM_GENERATION_TOKENS,
    f::REQUEST_PARAMS_N,
    f::REQUEST_PARAMS_MAX_TOKENS,
    f::TIME_TO_FIRST_TOKEN_SECONDS,
    old::TIME_PER_OUTPUT_TOKEN_SECONDS_0_11,
    f::INTER_TOKEN_LATENCY_SECONDS,
    f::REQUEST_TIME_PER_OUTPUT_TOKEN_SECONDS,
    f::E2E_REQUEST_LATENCY_SECONDS,
    f::REQUEST_QUEUE_TIME_SECONDS,
    f::REQUEST_INFERENCE_TIME_SECONDS,
    f::REQUEST_PREFILL_TIME_SECONDS,
    f::REQUEST_DECODE_TIME_SECONDS,
    old::CACHE_CONFIG_INFO_0_11,
];

const FAMILIES_0_9_1_V1: &[Family] = &[
    f::NUM_REQUESTS_RUNNING,
    f::NUM_REQUESTS_WAITING,
    old::GPU_CACHE_USAGE_PERC,
    old::GPU_PREFIX_CACHE_QUERIES,
    old::GPU_PREFIX_CACHE_HITS,
    f::NUM_PREEMPTIONS,
    f::PROMPT_TOKENS,
    f::GENERATION_TOKENS,
    old::REQUEST_SUCCESS_0_9_1,
    f::REQUEST_PROMPT_TOKENS,
    f::REQUEST_GENERATION_TOKENS,
    f::ITERATION_TOKENS_TOTAL,
    f::REQUEST_MAX_NUM_GENERATION_TOKENS,
    f::REQUEST_PARAMS_N,
    f::REQUEST_PARAMS_MAX_TOKENS,
    f::TIME_TO_FIRST_TOKEN_SECONDS,
    old::TIME_PER_OUTPUT_TOKEN_SECONDS,
    f::E2E_REQUEST_LATENCY_SECONDS,
    f::REQUEST_QUEUE_TIME_SECONDS,
    f::REQUEST_INFERENCE_TIME_SECONDS,
    f::REQUEST_PREFILL_TIME_SECONDS,
    f::REQUEST_DECODE_TIME_SECONDS,
    old::CACHE_CONFIG_INFO_0_9_1,
];

const FAMILIES_0_9_2: &[Family] = &[
    f::NUM_REQUESTS_RUNNING,
    f::NUM_REQUESTS_WAITING,
    old::GPU_CACHE_USAGE_PERC_0_9_2,
    old::GPU_PREFIX_CACHE_QUERIES_0_9_2,
    old::GPU_PREFIX_CACHE_HITS_0_9_2,
    old::KV_CACHE_USAGE_PERC_0_11,
    f::PREFIX_CACHE_QUERIES,
    f::PREFIX_CACHE_HITS,
    f::NUM_PREEMPTIONS,
    f::PROMPT_TOKENS,
    f::GENERATION_TOKENS,
    old::REQUEST_SUCCESS_0_9_1,
    f::REQUEST_PROMPT_TOKENS,
    f::REQUEST_GENERATION_TOKENS,
    f::ITERATION_TOKENS_TOTAL,
    f::REQUEST_MAX_NUM_GENERATION_TOKENS,
    f::REQUEST_PARAMS_N,
    f::REQUEST_PARAMS_MAX_TOKENS,
    f::TIME_TO_FIRST_TOKEN_SECONDS,
    old::TIME_PER_OUTPUT_TOKEN_SECONDS,
    f::E2E_REQUEST_LATENCY_SECONDS,
    f::REQUEST_QUEUE_TIME_SECONDS,
    f::REQUEST_INFERENCE_TIME_SECONDS,
    f::REQUEST_PREFILL_TIME_SECONDS,
    f::REQUEST_DECODE_TIME_SECONDS,
    old::CACHE_CONFIG_INFO_0_9_1,
];

const FAMILIES_0_6: &[Family] = &[
    old::NUM_REQUESTS_RUNNING_V0,
    old::NUM_REQUESTS_SWAPPED,
    f::NUM_REQUESTS_WAITING,
    old::GPU_CACHE_USAGE_PERC_V0,
    old::CPU_CACHE_USAGE_PERC,
    f::NUM_PREEMPTIONS,
    f::PROMPT_TOKENS,
    f::GENERATION_TOKENS,
    f::ITERATION_TOKENS_TOTAL,
    f::TIME_TO_FIRST_TOKEN_SECONDS,
    old::TIME_PER_OUTPUT_TOKEN_SECONDS,
    old::E2E_REQUEST_LATENCY_SECONDS_V0,
    f::REQUEST_QUEUE_TIME_SECONDS,
    f::REQUEST_INFERENCE_TIME_SECONDS,
    f::REQUEST_PREFILL_TIME_SECONDS,
    f::REQUEST_DECODE_TIME_SECONDS,
    f::REQUEST_PROMPT_TOKENS,
    f::REQUEST_GENERATION_TOKENS,
    f::REQUEST_PARAMS_N,
    f::REQUEST_MAX_NUM_GENERATION_TOKENS,
    f::REQUEST_PARAMS_MAX_TOKENS,
    old::REQUEST_SUCCESS_V0,
    old::CACHE_CONFIG_INFO_V0,
];

const FAMILIES_0_9_1_V0: &[Family] = &[
    f::ITERATION_TOKENS_TOTAL,
    f::TIME_TO_FIRST_TOKEN_SECONDS,
    old::TIME_PER_OUTPUT_TOKEN_SECONDS,
    old::E2E_REQUEST_LATENCY_SECONDS_V0,
    f::REQUEST_QUEUE_TIME_SECONDS,
    f::REQUEST_INFERENCE_TIME_SECONDS,
    f::REQUEST_PREFILL_TIME_SECONDS,
    f::REQUEST_DECODE_TIME_SECONDS,
    f::REQUEST_PROMPT_TOKENS,
    f::REQUEST_GENERATION_TOKENS,
    f::REQUEST_PARAMS_N,
    f::REQUEST_MAX_NUM_GENERATION_TOKENS,
    f::REQUEST_PARAMS_MAX_TOKENS,
    old::LORA_REQUESTS_INFO,
    f::NUM_PREEMPTIONS,
    f::PROMPT_TOKENS,
    f::GENERATION_TOKENS,
    old::REQUEST_SUCCESS_V0,
    old::NUM_REQUESTS_RUNNING_V0,
    f::NUM_REQUESTS_WAITING,
    old::GPU_CACHE_USAGE_PERC_V0,
    old::CACHE_CONFIG_INFO_V0,
];

/// Ray passes on what the engine's own logger writes: without the settings of the cache.
const FAMILIES_RAY: &[Family] = &[
    f::NUM_REQUESTS_RUNNING,
    f::NUM_REQUESTS_WAITING,
    f::NUM_REQUESTS_WAITING_BY_REASON,
    f::ENGINE_SLEEP_STATE,
    f::KV_CACHE_USAGE_PERC,
    f::PREFIX_CACHE_QUERIES,
    f::PREFIX_CACHE_HITS,
    f::NUM_PREEMPTIONS,
    f::PROMPT_TOKENS,
    f::PROMPT_TOKENS_BY_SOURCE,
    f::PROMPT_TOKENS_CACHED,
    f::GENERATION_TOKENS,
    f::REQUEST_SUCCESS,
    f::REQUEST_PROMPT_TOKENS,
    f::REQUEST_GENERATION_TOKENS,
    f::ITERATION_TOKENS_TOTAL,
    f::TIME_TO_FIRST_TOKEN_SECONDS,
    f::INTER_TOKEN_LATENCY_SECONDS,
    f::REQUEST_TIME_PER_OUTPUT_TOKEN_SECONDS,
    f::E2E_REQUEST_LATENCY_SECONDS,
    f::REQUEST_QUEUE_TIME_SECONDS,
];
