//! trtllm-serve's series, at `/prometheus/metrics`: those of TensorRT-LLM's 2026 releases.
//!
//! Data only. Uncaptured: the names are those of TensorRT-LLM's source (`metrics/collector.py`); no
//! page of a running server was at hand to check them.
//!
//! 1.0 and 1.1 have no gauge of load under any name, and at `/metrics` is JSON that each reader
//! takes away from the next: both are unreadable here, and said to be.

use super::{EngineFamily, Field, Profile, Row};

/// Rows sorted by name.
///
/// - The gauges need `enable_iter_perf_stats`, the counters `return_perf_metrics`. Neither exists
///   before its first value, so that a server which has had no request says nothing of its load.
/// - A gauge is repeated for each `pid`, as Python's multiprocess mode does it.
/// - Lengths are counted when a request ends. So no token counter moves with the work, and the time
///   of a step cannot be learned; nor is there a counter of steps, so that a hang shows late.
/// - Prompt tokens include what the cache held, which is counted apart at the same moment.
/// - `time_per_output_token_seconds` has one value a request.
static ROWS: [Row; 15] = [
    Row::sum("generation_tokens_total", Field::FinishedGeneratedTokens),
    Row::max("kv_cache_max_blocks", Field::KvBlocks),
    Row::max("kv_cache_tokens_per_block", Field::KvBlockTokens),
    Row::max("kv_cache_utilization", Field::KvUsage),
    Row::max("max_num_active_requests", Field::MaxRunning),
    Row::sum("num_requests_completed_total", Field::Finished).else_at(1),
    Row::sum("num_requests_running", Field::Running),
    Row::sum("num_requests_waiting", Field::Waiting),
    Row::sum("prompt_cached_tokens_total", Field::CachedPromptTokens),
    Row::sum("prompt_tokens_total", Field::PromptTokens),
    Row::sum("request_success_total", Field::Finished),
    Row::sum("time_per_output_token_seconds_count", Field::ItlCount),
    Row::sum("time_per_output_token_seconds_sum", Field::ItlSum),
    Row::sum("time_to_first_token_seconds_count", Field::TtftCount),
    Row::sum("time_to_first_token_seconds_sum", Field::TtftSum),
];

pub(super) static PROFILE: Profile = Profile {
    family: EngineFamily::Trtllm,
    // Dynamo re-exports the names with a colon.
    prefixes: &["trtllm_", "trtllm:"],
    rows: &ROWS,
    keep: &[],
    needs_load: false,
};
