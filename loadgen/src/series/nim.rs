//! NIM for LLMs' series, 1.0 to 1.14, at `/v1/metrics` (before 1.0 `/metrics`): without a prefix.
//!
//! Data only. Uncaptured: the names are those of NIM's documentation; no page of a running server
//! was at hand to check them.

use super::{EngineFamily, Field, Profile, Row};

/// Rows sorted by name.
///
/// - The names are vLLM's of old without `vllm:`. A NIM that shows vLLM's own is read as vLLM.
/// - Requests that ended: `request_finish_total` has all of them, older releases count successes
///   and failures apart.
/// - There is no counter of steps: the cost of a step cannot be learned.
static ROWS: [Row; 14] = [
    Row::sum("generation_tokens_total", Field::GeneratedTokens),
    Row::max("gpu_cache_usage_perc", Field::KvUsage),
    Row::sum("num_request_max", Field::MaxRunning),
    Row::sum("num_requests_running", Field::Running),
    Row::sum("num_requests_waiting", Field::Waiting),
    Row::sum("prompt_tokens_total", Field::PromptTokens),
    Row::sum("request_failure_total", Field::Finished).else_at(1),
    Row::sum("request_finish_total", Field::Finished),
    Row::sum("request_generation_tokens_sum", Field::FinishedGeneratedTokens),
    Row::sum("request_success_total", Field::Finished).else_at(1),
    Row::sum("time_per_output_token_seconds_count", Field::ItlCount),
    Row::sum("time_per_output_token_seconds_sum", Field::ItlSum),
    Row::sum("time_to_first_token_seconds_count", Field::TtftCount),
    Row::sum("time_to_first_token_seconds_sum", Field::TtftSum),
];

pub(super) static PROFILE: Profile = Profile {
    family: EngineFamily::Nim,
    prefixes: &[""],
    rows: &ROWS,
    keep: &[],
    needs_load: true,
};
