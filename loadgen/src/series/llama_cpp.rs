//! llama.cpp's series, `llama-server --metrics`.
//!
//! Data only. Sources: llama.cpp's own source, and pages captured from builds 10434 and 11549.

use super::{EngineFamily, Field, Profile, Row};

/// Rows sorted by name.
///
/// - There are no labels. `requests_processing` never exceeds the slots (`--parallel`), whose
///   number is not told; what has no slot waits as `requests_deferred`.
/// - `tokens_predicted_total` moves when a request ends (captured: it stood for two seconds while
///   four ran), and nothing counts the requests themselves. It still says what a saturated server
///   makes in a minute. `n_decode_total` moves with every step and proves the engine alive.
/// - The KV cache is shared out to the slots in advance, so `kv_cache_usage_ratio`, which was there
///   until May 2025, limits nothing and is not read. Without it the cost of a step is not learned.
/// - Counters have six digits: one of ten million moves by tens.
/// - `tokens_predicted_seconds_total` is summed over the slots: by tokens, it is their mean time.
static ROWS: [Row; 7] = [
    Row::sum("n_decode_total", Field::Steps),
    Row::sum("prompt_tokens_total", Field::PromptTokens),
    Row::sum("requests_deferred", Field::Waiting),
    Row::sum("requests_processing", Field::Running),
    Row::sum("tokens_predicted_seconds_total", Field::ItlSum),
    Row::sum("tokens_predicted_total", Field::GeneratedTokens),
    Row::sum("tokens_predicted_total", Field::ItlCount),
];

pub(super) static PROFILE: Profile = Profile {
    family: EngineFamily::LlamaCpp,
    prefixes: &["llamacpp:", "llamacpp_"],
    rows: &ROWS,
    keep: &[],
    needs_load: false,
};
