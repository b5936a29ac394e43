//! LMDeploy's series, 0.9 to 0.18, with `--enable-metrics`.
//!
//! Data only. Uncaptured: the names are those of LMDeploy's source (`metrics/loggers.py`); no page
//! of a running server was at hand to check them.

use super::{EngineFamily, Field, Profile, Row};

/// Rows sorted by name.
///
/// - `num_api_requests_waiting` (0.18) is the queue before the engine's, and adds to it.
/// - The KV gauge has vLLM's old name and is a fraction in spite of it.
/// - `iteration_tokens_total` counts each request's part of a step, not the steps: the cost of a
///   step cannot be learned.
/// - An early release counts generated tokens twice.
/// - `time_per_output_token_seconds` holds the time between tokens before `iter_token_latency`.
static ROWS: [Row; 14] = [
    Row::sum("generation_tokens_total", Field::GeneratedTokens),
    Row::max("gpu_cache_usage_perc", Field::KvUsage),
    Row::sum("iter_token_latency_count", Field::ItlCount),
    Row::sum("iter_token_latency_sum", Field::ItlSum),
    Row::sum("num_api_requests_waiting", Field::Waiting),
    Row::sum("num_requests_running", Field::Running),
    Row::sum("num_requests_waiting", Field::Waiting),
    Row::sum("prompt_tokens_total", Field::PromptTokens),
    Row::sum("request_generation_tokens_sum", Field::FinishedGeneratedTokens),
    Row::sum("request_success_total", Field::Finished),
    Row::sum("time_per_output_token_seconds_count", Field::ItlCount).else_at(1),
    Row::sum("time_per_output_token_seconds_sum", Field::ItlSum).else_at(1),
    Row::sum("time_to_first_token_seconds_count", Field::TtftCount),
    Row::sum("time_to_first_token_seconds_sum", Field::TtftSum),
];

pub(super) static PROFILE: Profile = Profile {
    family: EngineFamily::LmDeploy,
    prefixes: &["lmdeploy:", "lmdeploy_"],
    rows: &ROWS,
    keep: &[],
    needs_load: false,
};
