//! Text Generation Inference's series, 2.0 to 3.3.
//!
//! Data only. Uncaptured: the names are those of TGI's source (`router` and `backends/v3`); no
//! page of a running server was at hand to check them.

use super::{EngineFamily, Field, Profile, Row};

/// Rows sorted by name.
///
/// - The gauges have no labels, and no series exists before its first event: a server that has
///   had no request yet shows an empty page, which is no reading and never zero.
/// - A batch is admitted by the tokens that it may come to need: their share of the budget is what
///   the KV cache's use is elsewhere. Releases without the budget's gauge tell neither.
/// - Lengths of outputs are counted when a request ends, those of prompts when it is accepted.
///   So no token counter moves with the work, and the time of a step cannot be learned; forward
///   passes are counted as they happen and prove the engine alive.
/// - Of failures, `overloaded` was turned away by `--max-concurrent-requests`; `validation` and
///   `template` never were requests to the engine.
/// - There is no time to first token. The mean time of a token is known for each request.
static ROWS: [Row; 14] = [
    Row::sum("batch_current_max_tokens", Field::KvUsedTokens),
    Row::sum("batch_current_size", Field::Running),
    Row::sum("batch_inference_count", Field::Steps),
    Row::sum("batch_total_tokens", Field::KvTokens),
    Row::sum("queue_size", Field::Waiting),
    Row::sum("request_failure", Field::Finished).only("err", "dropped"),
    Row::sum("request_failure", Field::Finished).only("err", "generation"),
    Row::sum("request_failure", Field::Finished).only("err", "incomplete"),
    Row::sum("request_failure", Field::Rejected).only("err", "overloaded"),
    Row::sum("request_generated_tokens_sum", Field::FinishedGeneratedTokens),
    Row::sum("request_input_length_sum", Field::PromptTokens),
    Row::sum("request_mean_time_per_token_duration_count", Field::ItlCount),
    Row::sum("request_mean_time_per_token_duration_sum", Field::ItlSum),
    Row::sum("request_success", Field::Finished),
];

pub(super) static PROFILE: Profile = Profile {
    family: EngineFamily::Tgi,
    prefixes: &["tgi_"],
    rows: &ROWS,
    keep: &[],
    needs_load: false,
};
