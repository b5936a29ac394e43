//! vLLM's families as 0.32 shows them; which version shows which is in `dialects/vllm.rs`.
//!
//! Must not hold logic. Texts and labels are those of captured pages.

use super::{Family, Rows, Setting, Unit, family, used_share};
use crate::engine::SleepLevel;

pub(in crate::exposition) const ESTIMATED_FLOPS_PER_GPU: Family = family(
    "estimated_flops_per_gpu",
    "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).",
    Rows::Counter(&[(&[], |_| 0.0)]),
);

pub(in crate::exposition) const ESTIMATED_READ_BYTES_PER_GPU: Family = family(
    "estimated_read_bytes_per_gpu",
    "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).",
    Rows::Counter(&[(&[], |_| 0.0)]),
);

pub(in crate::exposition) const ESTIMATED_WRITE_BYTES_PER_GPU: Family = family(
    "estimated_write_bytes_per_gpu",
    "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).",
    Rows::Counter(&[(&[], |_| 0.0)]),
);

pub(in crate::exposition) const NUM_REQUESTS_RUNNING: Family = family(
    "num_requests_running",
    "Number of requests in model execution batches.",
    Rows::StepGauge(&[(&[], |rank| rank.gauges.running as f64)]),
);

pub(in crate::exposition) const NUM_REQUESTS_WAITING: Family = family(
    "num_requests_waiting",
    "Number of requests waiting to be processed.",
    Rows::StepGauge(&[(&[], |rank| (rank.gauges.waiting + rank.gauges.deferred) as f64)]),
);

pub(in crate::exposition) const NUM_REQUESTS_WAITING_BY_REASON: Family = family(
    "num_requests_waiting_by_reason",
    "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.",
    Rows::StepGauge(&[
        (&[("reason", "capacity")], |rank| rank.gauges.waiting as f64),
        (&[("reason", "deferred")], |rank| rank.gauges.deferred as f64),
    ]),
);

pub(in crate::exposition) const ENGINE_SLEEP_STATE: Family = family(
    "engine_sleep_state",
    "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
    Rows::Gauge(&[
        (&[("sleep_state", "awake")], |rank| f64::from(rank.asleep.is_none())),
        (&[("sleep_state", "weights_offloaded")], |rank| {
            f64::from(rank.asleep == Some(SleepLevel::Offloaded))
        }),
        (&[("sleep_state", "discard_all")], |rank| {
            f64::from(rank.asleep == Some(SleepLevel::Discarded))
        }),
    ]),
);

pub(in crate::exposition) const KV_CACHE_USAGE_PERC: Family = family(
    "kv_cache_usage_perc",
    "KV-cache usage. 1 means 100 percent usage.",
    Rows::StepGauge(&[(&[], |rank| used_share(rank, 0))]),
);

pub(in crate::exposition) const PREFIX_CACHE_QUERIES: Family = family(
    "prefix_cache_queries",
    "Prefix cache queries, in terms of number of queried tokens.",
    Rows::Counter(&[(&[], |rank| rank.metrics.prefix_queries as f64)]),
);

pub(in crate::exposition) const PREFIX_CACHE_HITS: Family = family(
    "prefix_cache_hits",
    "Prefix cache hits, in terms of number of cached tokens.",
    Rows::Counter(&[(&[], |rank| rank.metrics.prefix_hits as f64)]),
);

pub(in crate::exposition) const EXTERNAL_PREFIX_CACHE_QUERIES: Family = family(
    "external_prefix_cache_queries",
    "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried tokens.",
    Rows::Counter(&[(&[], |_| 0.0)]),
);

pub(in crate::exposition) const EXTERNAL_PREFIX_CACHE_HITS: Family = family(
    "external_prefix_cache_hits",
    "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.",
    Rows::Counter(&[(&[], |_| 0.0)]),
);

pub(in crate::exposition) const MM_CACHE_QUERIES: Family = family(
    "mm_cache_queries",
    "Multi-modal cache queries, in terms of number of queried items.",
    Rows::Counter(&[(&[], |_| 0.0)]),
);

pub(in crate::exposition) const MM_CACHE_HITS: Family = family(
    "mm_cache_hits",
    "Multi-modal cache hits, in terms of number of cached items.",
    Rows::Counter(&[(&[], |_| 0.0)]),
);

pub(in crate::exposition) const NUM_PREEMPTIONS: Family = family(
    "num_preemptions",
    "Cumulative number of preemption from the engine.",
    Rows::Counter(&[(&[], |rank| rank.metrics.preemptions as f64)]),
);

pub(in crate::exposition) const PROMPT_TOKENS: Family = family(
    "prompt_tokens",
    "Number of prefill tokens processed.",
    Rows::Counter(&[(&[], |rank| rank.metrics.prompt_tokens as f64)]),
);

pub(in crate::exposition) const PROMPT_TOKENS_BY_SOURCE: Family = family(
    "prompt_tokens_by_source",
    "Number of prompt tokens by source.",
    Rows::Counter(&[
        (&[("source", "local_compute")], |rank| {
            (rank.metrics.prompt_tokens - rank.metrics.prompt_tokens_cached) as f64
        }),
        (&[("source", "local_cache_hit")], |rank| rank.metrics.prompt_tokens_cached as f64),
        (&[("source", "external_kv_transfer")], |_| 0.0),
    ]),
);

pub(in crate::exposition) const PROMPT_TOKENS_CACHED: Family = family(
    "prompt_tokens_cached",
    "Number of cached prompt tokens (local + external).",
    Rows::Counter(&[(&[], |rank| rank.metrics.prompt_tokens_cached as f64)]),
);

pub(in crate::exposition) const PROMPT_TOKENS_CACHED_BY_SOURCE: Family = family(
    "prompt_tokens_cached_by_source",
    "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
    Rows::Counter(&[
        (&[("source", "device")], |rank| rank.metrics.prefix_hits as f64),
        (&[("source", "host")], |_| 0.0),
        (&[("source", "p2p")], |_| 0.0),
        (&[("source", "disk")], |_| 0.0),
        (&[("source", "external_unspecified")], |_| 0.0),
    ]),
);

pub(in crate::exposition) const GENERATION_TOKENS: Family = family(
    "generation_tokens",
    "Number of generation tokens processed.",
    Rows::Counter(&[(&[], |rank| rank.metrics.generation_tokens as f64)]),
);

pub(in crate::exposition) const REQUEST_SUCCESS: Family = family(
    "request_success",
    "Count of successfully processed requests.",
    Rows::Counter(&[
        (&[("finished_reason", "stop")], |rank| rank.metrics.finished_stop as f64),
        (&[("finished_reason", "length")], |rank| rank.metrics.finished_length as f64),
        (&[("finished_reason", "abort")], |rank| rank.metrics.finished_abort as f64),
        (&[("finished_reason", "error")], |_| 0.0),
        (&[("finished_reason", "repetition")], |_| 0.0),
    ]),
);

pub(in crate::exposition) const ADMISSION_REJECTIONS: Family = family(
    "admission_rejections",
    "Number of admission attempts rejected by a queue limit, by reason.",
    Rows::Rejections("reason", &["max_num_queued_reqs", "max_num_queued_tokens"]),
);

pub(in crate::exposition) const REQUEST_PROMPT_TOKENS: Family = family(
    "request_prompt_tokens",
    "Number of prefill tokens processed.",
    Rows::Histogram(|metrics| &metrics.request_prompt_tokens, Unit::Tokens),
);

pub(in crate::exposition) const REQUEST_GENERATION_TOKENS: Family = family(
    "request_generation_tokens",
    "Number of generation tokens processed.",
    Rows::Histogram(|metrics| &metrics.request_generation_tokens, Unit::Tokens),
);

pub(in crate::exposition) const ITERATION_TOKENS_TOTAL: Family = family(
    "iteration_tokens_total",
    "Histogram of number of tokens per engine_step.",
    Rows::Histogram(|metrics| &metrics.iteration_tokens, Unit::Tokens),
);

pub(in crate::exposition) const REQUEST_MAX_NUM_GENERATION_TOKENS: Family = family(
    "request_max_num_generation_tokens",
    "Histogram of maximum number of requested generation tokens.",
    Rows::Histogram(|metrics| &metrics.request_generation_tokens, Unit::Tokens),
);

pub(in crate::exposition) const REQUEST_PARAMS_N: Family = family(
    "request_params_n",
    "Histogram of the n request parameter.",
    Rows::Ones(&[1.0, 2.0, 5.0, 10.0, 20.0], |metrics| metrics.e2e_latency.count()),
);

pub(in crate::exposition) const REQUEST_PARAMS_MAX_TOKENS: Family = family(
    "request_params_max_tokens",
    "Histogram of the max_tokens request parameter.",
    Rows::Histogram(|metrics| &metrics.request_max_tokens, Unit::Tokens),
);

pub(in crate::exposition) const TIME_TO_FIRST_TOKEN_SECONDS: Family = family(
    "time_to_first_token_seconds",
    "Histogram of time to first token in seconds.",
    Rows::Histogram(|metrics| &metrics.time_to_first_token, Unit::Seconds),
);

pub(in crate::exposition) const INTER_TOKEN_LATENCY_SECONDS: Family = family(
    "inter_token_latency_seconds",
    "Histogram of inter-token latency in seconds.",
    Rows::Histogram(|metrics| &metrics.inter_token_latency, Unit::Seconds),
);

pub(in crate::exposition) const REQUEST_TIME_PER_OUTPUT_TOKEN_SECONDS: Family = family(
    "request_time_per_output_token_seconds",
    "Histogram of time_per_output_token_seconds per request.",
    Rows::Histogram(|metrics| &metrics.time_per_output_token, Unit::Seconds),
);

pub(in crate::exposition) const E2E_REQUEST_LATENCY_SECONDS: Family = family(
    "e2e_request_latency_seconds",
    "Histogram of e2e request latency in seconds.",
    Rows::Histogram(|metrics| &metrics.e2e_latency, Unit::Seconds),
);

pub(in crate::exposition) const REQUEST_QUEUE_TIME_SECONDS: Family = family(
    "request_queue_time_seconds",
    "Histogram of time spent in WAITING phase for request.",
    Rows::Histogram(|metrics| &metrics.queue_time, Unit::Seconds),
);

pub(in crate::exposition) const REQUEST_INFERENCE_TIME_SECONDS: Family = family(
    "request_inference_time_seconds",
    "Histogram of time spent in RUNNING phase for request.",
    Rows::Histogram(|metrics| &metrics.inference_time, Unit::Seconds),
);

pub(in crate::exposition) const REQUEST_PREFILL_TIME_SECONDS: Family = family(
    "request_prefill_time_seconds",
    "Histogram of time spent in PREFILL phase for request.",
    Rows::Histogram(|metrics| &metrics.prefill_time, Unit::Seconds),
);

pub(in crate::exposition) const REQUEST_DECODE_TIME_SECONDS: Family = family(
    "request_decode_time_seconds",
    "Histogram of time spent in DECODE phase for request.",
    Rows::Histogram(|metrics| &metrics.decode_time, Unit::Seconds),
);

pub(in crate::exposition) const REQUEST_NUM_PREEMPTIONS: Family = family(
    "request_num_preemptions",
    "Histogram of the number of times a request was preempted.",
    Rows::Histogram(|metrics| &metrics.request_preemptions, Unit::Tokens),
);

pub(in crate::exposition) const REQUEST_PREFILL_KV_COMPUTED_TOKENS: Family = family(
    "request_prefill_kv_computed_tokens",
    "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
    Rows::Histogram(|metrics| &metrics.request_computed_tokens, Unit::Tokens),
);

pub(in crate::exposition) const CACHE_CONFIG_INFO: Family = family(
    "cache_config_info",
    "Information of the LLMEngine CacheConfig",
    Rows::CacheConfig(&[
        ("_block_size_resolved", Setting::Fixed("True")),
        ("block_size", Setting::BlockTokens),
        ("cache_dtype", Setting::Fixed("auto")),
        ("cache_hit_alignment_tokens", Setting::Fixed("None")),
        ("effective_attention_block_size", Setting::BlockTokens),
        ("enable_mamba_shared_prefix_checkpoint", Setting::Fixed("False")),
        ("enable_prefix_caching", Setting::PrefixCaching),
        ("engine", Setting::Engine),
        ("gpu_memory_utilization", Setting::Fixed("0.92")),
        ("hash_block_size", Setting::Fixed("None")),
        ("is_attention_free", Setting::Fixed("False")),
        ("kv_cache_dtype_skip_layers", Setting::Fixed("[]")),
        ("kv_cache_layout", Setting::Fixed("None")),
        ("kv_cache_max_concurrency", Setting::Concurrency),
        ("kv_cache_memory_bytes", Setting::Fixed("None")),
        ("kv_cache_size_tokens", Setting::KvTokens),
        ("kv_offloading_backend", Setting::Fixed("native")),
        ("kv_offloading_size", Setting::Fixed("None")),
        ("kv_sharing_fast_prefill", Setting::Fixed("False")),
        ("mamba_block_size", Setting::Fixed("None")),
        ("mamba_cache_dtype", Setting::Fixed("auto")),
        ("mamba_cache_mode", Setting::Fixed("none")),
        ("mamba_page_size_padded", Setting::Fixed("None")),
        ("mamba_ssm_cache_dtype", Setting::Fixed("float32")),
        ("num_cpu_blocks", Setting::Fixed("None")),
        ("num_gpu_blocks", Setting::Blocks),
        ("num_gpu_blocks_override", Setting::Fixed("None")),
        ("prefix_cache_retention_interval", Setting::Fixed("0")),
        ("prefix_caching_hash_algo", Setting::Fixed("sha256")),
        ("prefix_match_unit", Setting::Fixed("None")),
        ("replayssm_buffer_len", Setting::Fixed("16")),
        ("skip_page_size_padded", Setting::Fixed("None")),
        ("sliding_window", Setting::Fixed("None")),
        ("swa_bounded_replay", Setting::Fixed("True")),
        ("use_kda_recoverssm", Setting::Fixed("False")),
        ("use_replayssm", Setting::Fixed("False")),
        ("user_specified_block_size", Setting::Fixed("False")),
    ]),
);
