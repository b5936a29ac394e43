//! SGLang's series, 0.4 to 0.5.23, with the colon or, by content negotiation, the underscore.
//!
//! Data only. Uncaptured: the names are those of SGLang's own wheels, and of 0.5.23 those that its
//! metrics code wrote without an engine; no page of a running server was at hand to check them.

use super::{EngineFamily, Field, Profile, Row};

/// Rows sorted by name.
///
/// - Waiting for a grammar to compile, or for the other half of a prefill/decode pair, is nothing
///   that replicas cure; waiting for room in the decode engine is.
/// - `realtime_tokens_total` (0.5.9 on) moves as work is done; `prompt_tokens_total` and
///   `generation_tokens_total` move when a request ends, and are therefore the finished lengths:
///   while a long request runs they stand still in an engine that works.
/// - `num_requests_total` counts requests that ended, well or not.
/// - Retraction is what vLLM calls preemption.
static ROWS: [Row; 23] = [
    Row::sum("cache_config_info", Field::KvTokens).labels(&["page_size", "num_pages"]).else_at(1),
    Row::sum("generation_tokens_total", Field::FinishedGeneratedTokens),
    Row::sum("inter_token_latency_seconds_count", Field::ItlCount),
    Row::sum("inter_token_latency_seconds_sum", Field::ItlSum),
    Row::sum("max_total_num_tokens", Field::KvTokens),
    Row::sum("num_decode_prealloc_queue_reqs", Field::Waiting),
    Row::sum("num_decode_transfer_queue_reqs", Field::WaitingDeferred),
    Row::sum("num_grammar_queue_reqs", Field::WaitingDeferred),
    Row::sum("num_prefill_bootstrap_queue_reqs", Field::WaitingDeferred),
    Row::sum("num_prefill_inflight_queue_reqs", Field::WaitingDeferred),
    Row::sum("num_prefill_prealloc_queue_reqs", Field::WaitingDeferred),
    Row::sum("num_queue_reqs", Field::Waiting),
    Row::sum("num_requests_total", Field::Finished),
    Row::sum("num_retracted_requests_total", Field::Preemptions),
    Row::sum("num_running_reqs", Field::Running),
    Row::sum("prompt_tokens_total", Field::PromptTokens).else_at(1),
    Row::sum("realtime_tokens_total", Field::GeneratedTokens).only("mode", "decode"),
    Row::sum("realtime_tokens_total", Field::PromptTokens).only("mode", "prefill_compute"),
    Row::sum("time_per_output_token_seconds_count", Field::ItlCount).else_at(1),
    Row::sum("time_per_output_token_seconds_sum", Field::ItlSum).else_at(1),
    Row::sum("time_to_first_token_seconds_count", Field::TtftCount),
    Row::sum("time_to_first_token_seconds_sum", Field::TtftSum),
    Row::max("token_usage", Field::KvUsage),
];

pub(super) static PROFILE: Profile = Profile {
    family: EngineFamily::Sglang,
    prefixes: &["sglang:", "sglang_"],
    rows: &ROWS,
    // With priority scheduling the series without a priority is the total; with metrics of all
    // schedulers each tensor- and pipeline-parallel rank repeats rank 0.
    keep: &[("priority", ""), ("tp_rank", "0"), ("pp_rank", "0")],
    needs_load: false,
};
