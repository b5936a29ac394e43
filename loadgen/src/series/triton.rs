//! Triton's series with the TensorRT-LLM backend, 24.05 on, at port 8002.
//!
//! Data only. Uncaptured: the names are those of the backend's source and of the page in its own
//! documentation; no running server was at hand to check them.

use super::{EngineFamily, Field, Profile, Row};

/// Rows sorted by name.
///
/// - `nv_inference_pending_request_count` is near zero with in-flight batching whatever waits
///   (triton-inference-server/server issue 6494), so it is not read: a Triton without the backend's
///   gauges is no known engine. Before 24.05 the backend has no `waiting`, which is then unknown.
/// - Series stand for every model that a request passes through, the ensemble and its parts, and
///   the backend's own may stand under two of these names: of each the largest counts. Of two
///   models of the backend in one server that is the busier one.
/// - Counters have no `_total`. Lengths are counted when a request ends, so that the time of a step
///   cannot be learned; `iteration_counter` counts the steps and proves the engine alive.
/// - The first response's time needs `--metrics-config histogram_latencies=true`.
static ROWS: [Row; 12] = [
    Row::max("inference_first_response_histogram_ms_count", Field::TtftCount),
    Row::max("inference_first_response_histogram_ms_sum", Field::TtftSum).millis(),
    Row::max("inference_request_success", Field::Finished),
    Row::max("llm_input_token_len_sum", Field::PromptTokens),
    Row::max("llm_output_token_len_sum", Field::FinishedGeneratedTokens),
    Row::max("trt_llm_general_metrics", Field::Steps).only("general_type", "iteration_counter"),
    Row::max("trt_llm_kv_cache_block_metrics", Field::KvUsage)
        .only("kv_cache_block_type", "fraction"),
    Row::max("trt_llm_kv_cache_block_metrics", Field::KvBlocks).only("kv_cache_block_type", "max"),
    Row::max("trt_llm_kv_cache_block_metrics", Field::KvBlockTokens)
        .only("kv_cache_block_type", "tokens_per"),
    Row::max("trt_llm_request_metrics", Field::MaxRunning).only("request_type", "max"),
    Row::max("trt_llm_request_metrics", Field::Running).only("request_type", "scheduled"),
    Row::max("trt_llm_request_metrics", Field::Waiting).only("request_type", "waiting"),
];

pub(super) static PROFILE: Profile = Profile {
    family: EngineFamily::Triton,
    prefixes: &["nv_"],
    rows: &ROWS,
    keep: &[],
    needs_load: true,
};
