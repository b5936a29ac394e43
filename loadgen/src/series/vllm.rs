//! vLLM's series, 0.6 to 0.33: V0 and V1, the Python and the Rust front end, and Ray's names.
//!
//! Data only. Sources: vLLM's own source distributions, and pages captured from 0.9.1, 0.11.0, 0.20.2
//! and 0.32.0. Uncaptured: every other version, such as 0.6 to 0.8 and 0.33, and Ray's names, which
//! are their source's.

use super::{EngineFamily, Field, Profile, Row};

/// Rows sorted by name.
///
/// - `num_requests_waiting` includes deferred requests; the split by reason exists since 0.20 and
///   sums to it, so the two must never be added.
/// - The KV gauge was renamed in 0.9.2 and the old name went in 0.12; some releases export both.
///   It is a fraction in spite of `_perc`, and 0.9.2 to 0.11.0 repeat it for each `pid`.
/// - `kv_cache_size_tokens` is each rank's own size, `num_gpu_blocks` the sum over all ranks,
///   repeated on each (captured: two ranks of 8,192 blocks both say 16,384): sum and maximum.
/// - Prompt work without cache hits: by source since 0.16; 0.13 to 0.15 count it at the end of a
///   request; before that hits cannot be told apart.
/// - `request_success_total` counts aborted and failed requests too: every end of a request.
/// - `iteration_tokens_total` is a histogram in spite of its name; its count is the engine's steps.
/// - `time_per_output_token_seconds` held the time between tokens until 0.11.
static ROWS: [Row; 26] = [
    Row::sum("admission_rejections_total", Field::Rejected),
    Row::sum("cache_config_info", Field::KvTokens).labels(&["kv_cache_size_tokens"]),
    Row::max("cache_config_info", Field::KvTokens)
        .labels(&["block_size", "num_gpu_blocks"])
        .else_at(1),
    Row::max("engine_sleep_state", Field::Awake).only("sleep_state", "awake"),
    Row::max("generation_tokens_created", Field::StartedAt),
    Row::sum("generation_tokens_total", Field::GeneratedTokens),
    Row::max("gpu_cache_usage_perc", Field::KvUsage).else_at(1),
    Row::sum("inter_token_latency_seconds_count", Field::ItlCount),
    Row::sum("inter_token_latency_seconds_sum", Field::ItlSum),
    Row::sum("iteration_tokens_total_count", Field::Steps),
    Row::max("kv_cache_usage_perc", Field::KvUsage),
    Row::sum("num_preemptions_total", Field::Preemptions),
    Row::sum("num_requests_running", Field::Running),
    Row::sum("num_requests_waiting", Field::Waiting).else_at(1),
    Row::sum("num_requests_waiting_by_reason", Field::Waiting).only("reason", "capacity"),
    Row::sum("num_requests_waiting_by_reason", Field::WaitingDeferred).only("reason", "deferred"),
    Row::sum("prompt_tokens_by_source_total", Field::PromptTokens).only("source", "local_compute"),
    Row::sum("prompt_tokens_total", Field::AllPromptTokens),
    Row::sum("prompt_tokens_total", Field::PromptTokens).else_at(2),
    Row::sum("request_generation_tokens_sum", Field::FinishedGeneratedTokens),
    Row::sum("request_prefill_kv_computed_tokens_sum", Field::PromptTokens).else_at(1),
    Row::sum("request_success_total", Field::Finished),
    Row::sum("time_per_output_token_seconds_count", Field::ItlCount).else_at(1),
    Row::sum("time_per_output_token_seconds_sum", Field::ItlSum).else_at(1),
    Row::sum("time_to_first_token_seconds_count", Field::TtftCount),
    Row::sum("time_to_first_token_seconds_sum", Field::TtftSum),
];

pub(super) static PROFILE: Profile = Profile {
    family: EngineFamily::Vllm,
    // Ray puts its own word before the names that it re-exports, and no colon in newer builds.
    prefixes: &["vllm:", "vllm_", "ray_vllm:", "ray_vllm_"],
    rows: &ROWS,
    keep: &[],
    needs_load: false,
};
