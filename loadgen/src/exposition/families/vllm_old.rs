//! vLLM's families where versions before 0.32 show them otherwise.
//!
//! Must not hold logic. Texts and labels are those of captured pages.

use super::{Family, Rows, Setting, Unit, family, used_share};

/// The null block counts as used.
pub(in crate::exposition) const GPU_CACHE_USAGE_PERC: Family = family(
    "gpu_cache_usage_perc",
    "GPU KV-cache usage. 1 means 100 percent usage.",
    Rows::StepGauge(&[(&[], |rank| used_share(rank, 1))]),
);

pub(in crate::exposition) const GPU_CACHE_USAGE_PERC_0_9_2: Family = family(
    "gpu_cache_usage_perc",
    "GPU KV-cache usage. 1 means 100 percent usage.DEPRECATED: Use vllm:kv_cache_usage_perc instead.",
    Rows::StepGauge(&[(&[], |rank| used_share(rank, 1))]),
);

pub(in crate::exposition) const GPU_PREFIX_CACHE_QUERIES_0_9_2: Family = family(
    "gpu_prefix_cache_queries",
    "GPU prefix cache queries, in terms of number of queried tokens.DEPRECATED: Use vllm:prefix_cache_queries instead.",
    Rows::Counter(&[(&[], |rank| rank.metrics.prefix_queries as f64)]),
);

pub(in crate::exposition) const GPU_PREFIX_CACHE_HITS_0_9_2: Family = family(
    "gpu_prefix_cache_hits",
    "GPU prefix cache hits, in terms of number of cached tokens.DEPRECATED: Use vllm:prefix_cache_hits instead.",
    Rows::Counter(&[(&[], |rank| rank.metrics.prefix_hits as f64)]),
);

/// V0 until 0.9.0; V1 never swaps, and neither does the simulated engine.
pub(in crate::exposition) const NUM_REQUESTS_SWAPPED: Family = family(
    "num_requests_swapped",
    "Number of requests swapped to CPU.",
    Rows::StepGauge(&[(&[], |_| 0.0)]),
);

pub(in crate::exposition) const CPU_CACHE_USAGE_PERC: Family = family(
    "cpu_cache_usage_perc",
    "CPU KV-cache usage. 1 means 100 percent usage.",
    Rows::StepGauge(&[(&[], |_| 0.0)]),
);

pub(in crate::exposition) const GPU_CACHE_USAGE_PERC_V0: Family = family(
    "gpu_cache_usage_perc",
    "GPU KV-cache usage. 1 means 100 percent usage.",
    Rows::StepGauge(&[(&[], |rank| used_share(rank, 0))]),
);

pub(in crate::exposition) const GPU_PREFIX_CACHE_QUERIES: Family = family(
    "gpu_prefix_cache_queries",
    "GPU prefix cache queries, in terms of number of queried tokens.",
    Rows::Counter(&[(&[], |rank| rank.metrics.prefix_queries as f64)]),
);

pub(in crate::exposition) const GPU_PREFIX_CACHE_HITS: Family = family(
    "gpu_prefix_cache_hits",
    "GPU prefix cache hits, in terms of number of cached tokens.",
    Rows::Counter(&[(&[], |rank| rank.metrics.prefix_hits as f64)]),
);

pub(in crate::exposition) const REQUEST_SUCCESS_0_9_1: Family = family(
    "request_success",
    "Count of successfully processed requests.",
    Rows::Counter(&[
        (&[("finished_reason", "stop")], |rank| rank.metrics.finished_stop as f64),
        (&[("finished_reason", "length")], |rank| rank.metrics.finished_length as f64),
        (&[("finished_reason", "abort")], |rank| rank.metrics.finished_abort as f64),
    ]),
);

pub(in crate::exposition) const TIME_PER_OUTPUT_TOKEN_SECONDS: Family = family(
    "time_per_output_token_seconds",
    "Histogram of time per output token in seconds.",
    Rows::Histogram(|metrics| &metrics.inter_token_latency, Unit::Seconds),
);

pub(in crate::exposition) const CACHE_CONFIG_INFO_0_9_1: Family = family(
    "cache_config_info",
    "Information of the LLMEngine CacheConfig",
    Rows::CacheConfig(&[
        ("block_size", Setting::BlockTokens),
        ("cache_dtype", Setting::Fixed("auto")),
        ("calculate_kv_scales", Setting::Fixed("False")),
        ("cpu_kvcache_space_bytes", Setting::Fixed("None")),
        ("cpu_offload_gb", Setting::Fixed("0.0")),
        ("enable_prefix_caching", Setting::PrefixCaching),
        ("engine", Setting::Engine),
        ("gpu_memory_utilization", Setting::Fixed("0.9")),
        ("is_attention_free", Setting::Fixed("False")),
        ("num_cpu_blocks", Setting::Fixed("None")),
        ("num_gpu_blocks", Setting::Blocks),
        ("num_gpu_blocks_override", Setting::Fixed("None")),
        ("prefix_caching_hash_algo", Setting::Fixed("builtin")),
        ("sliding_window", Setting::Fixed("None")),
        ("swap_space", Setting::Fixed("4.0")),
        ("swap_space_bytes", Setting::Fixed("4294967296.0")),
    ]),
);

pub(in crate::exposition) const E2E_REQUEST_LATENCY_SECONDS_V0: Family = family(
    "e2e_request_latency_seconds",
    "Histogram of end to end request latency in seconds.",
    Rows::Histogram(|metrics| &metrics.e2e_latency, Unit::Seconds),
);

pub(in crate::exposition) const LORA_REQUESTS_INFO: Family =
    family("lora_requests_info", "Running stats on lora requests.", Rows::Lora);

pub(in crate::exposition) const REQUEST_SUCCESS_V0: Family = family(
    "request_success",
    "Count of successfully processed requests.",
    Rows::CounterOnceMoved(&[
        (&[("finished_reason", "stop")], |rank| rank.metrics.finished_stop as f64),
        (&[("finished_reason", "length")], |rank| rank.metrics.finished_length as f64),
        (&[("finished_reason", "abort")], |rank| rank.metrics.finished_abort as f64),
    ]),
);

pub(in crate::exposition) const NUM_REQUESTS_RUNNING_V0: Family = family(
    "num_requests_running",
    "Number of requests currently running on GPU.",
    Rows::StepGauge(&[(&[], |rank| rank.gauges.running as f64)]),
);

pub(in crate::exposition) const CACHE_CONFIG_INFO_V0: Family = family(
    "cache_config_info",
    "Information of the LLMEngine CacheConfig",
    Rows::CacheConfig(&[
        ("block_size", Setting::BlockTokens),
        ("cache_dtype", Setting::Fixed("auto")),
        ("calculate_kv_scales", Setting::Fixed("False")),
        ("cpu_kvcache_space_bytes", Setting::Fixed("None")),
        ("cpu_offload_gb", Setting::Fixed("0.0")),
        ("enable_prefix_caching", Setting::Fixed("None")),
        ("gpu_memory_utilization", Setting::Fixed("0.9")),
        ("is_attention_free", Setting::Fixed("False")),
        ("num_cpu_blocks", Setting::Fixed("0")),
        ("num_gpu_blocks", Setting::Blocks),
        ("num_gpu_blocks_override", Setting::Fixed("None")),
        ("prefix_caching_hash_algo", Setting::Fixed("builtin")),
        ("sliding_window", Setting::Fixed("None")),
        ("swap_space", Setting::Fixed("4.0")),
        ("swap_space_bytes", Setting::Fixed("4294967296.0")),
    ]),
);

pub(in crate::exposition) const KV_CACHE_USAGE_PERC_0_11: Family = family(
    "kv_cache_usage_perc",
    "KV-cache usage. 1 means 100 percent usage.",
    Rows::PidGauge(&[(&[], |rank| used_share(rank, 0))]),
);

pub(in crate::exposition) const CACHE_CONFIG_INFO_0_20: Family = family(
    "cache_config_info",
    "Information of the LLMEngine CacheConfig",
    Rows::CacheConfig(&[
        ("_block_size_resolved", Setting::Fixed("True")),
        ("block_size", Setting::BlockTokens),
        ("cache_dtype", Setting::Fixed("auto")),
        ("calculate_kv_scales", Setting::Fixed("False")),
        ("enable_prefix_caching", Setting::PrefixCaching),
        ("engine", Setting::Engine),
        ("gpu_memory_utilization", Setting::Fixed("0.92")),
        ("hash_block_size", Setting::Fixed("None")),
        ("is_attention_free", Setting::Fixed("False")),
        ("kv_cache_dtype_skip_layers", Setting::Fixed("[]")),
        ("kv_cache_memory_bytes", Setting::Fixed("None")),
        ("kv_offloading_backend", Setting::Fixed("native")),
        ("kv_offloading_size", Setting::Fixed("None")),
        ("kv_sharing_fast_prefill", Setting::Fixed("False")),
        ("mamba_block_size", Setting::Fixed("None")),
        ("mamba_cache_dtype", Setting::Fixed("auto")),
        ("mamba_cache_mode", Setting::Fixed("none")),
        ("mamba_page_size_padded", Setting::Fixed("None")),
        ("mamba_ssm_cache_dtype", Setting::Fixed("auto")),
        ("num_cpu_blocks", Setting::Fixed("None")),
        ("num_gpu_blocks", Setting::Blocks),
        ("num_gpu_blocks_override", Setting::Fixed("None")),
        ("prefix_caching_hash_algo", Setting::Fixed("sha256")),
        ("sliding_window", Setting::Fixed("None")),
        ("user_specified_block_size", Setting::Fixed("False")),
        ("user_specified_mamba_block_size", Setting::Fixed("False")),
    ]),
);

pub(in crate::exposition) const CACHE_CONFIG_INFO_0_11: Family = family(
    "cache_config_info",
    "Information of the LLMEngine CacheConfig",
    Rows::CacheConfig(&[
        ("block_size", Setting::BlockTokens),
        ("cache_dtype", Setting::Fixed("auto")),
        ("calculate_kv_scales", Setting::Fixed("False")),
        ("cpu_kvcache_space_bytes", Setting::Fixed("None")),
        ("cpu_offload_gb", Setting::Fixed("0.0")),
        ("enable_prefix_caching", Setting::PrefixCaching),
        ("engine", Setting::Engine),
        ("gpu_memory_utilization", Setting::Fixed("0.9")),
        ("is_attention_free", Setting::Fixed("False")),
        ("kv_cache_memory_bytes", Setting::Fixed("None")),
        ("kv_sharing_fast_prefill", Setting::Fixed("False")),
        ("mamba_cache_dtype", Setting::Fixed("auto")),
        ("mamba_page_size_padded", Setting::Fixed("None")),
        ("mamba_ssm_cache_dtype", Setting::Fixed("auto")),
        ("num_cpu_blocks", Setting::Fixed("None")),
        ("num_gpu_blocks", Setting::Blocks),
        ("num_gpu_blocks_override", Setting::Fixed("None")),
        ("prefix_caching_hash_algo", Setting::Fixed("sha256")),
        ("sliding_window", Setting::Fixed("None")),
        ("swap_space", Setting::Fixed("4.0")),
        ("swap_space_bytes", Setting::Fixed("4294967296.0")),
    ]),
);

pub(in crate::exposition) const TIME_PER_OUTPUT_TOKEN_SECONDS_0_11: Family = family(
    "time_per_output_token_seconds",
    "Histogram of time per output token in seconds.DEPRECATED: Use vllm:inter_token_latency_seconds instead.",
    Rows::Histogram(|metrics| &metrics.inter_token_latency, Unit::Seconds),
);
