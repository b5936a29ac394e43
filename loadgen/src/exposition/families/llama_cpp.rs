//! llama.cpp's families.
//!
//! Must not hold logic. Texts are those of pages captured from builds 10434 and 11549.

use super::{Family, Rank, Rows, family, steps, waiting};
use crate::engine::{Histogram, PS_PER_S};

pub(in crate::exposition) const ALL: &[Family] = &[
    family(
        "prompt_tokens_total",
        "Number of prompt tokens processed, excluding cached tokens",
        Rows::Counter(&[(&[], |rank| {
            (rank.metrics.prompt_tokens - rank.metrics.prompt_tokens_cached) as f64
        })]),
    ),
    family(
        "prompt_tokens_cached_total",
        "Number of prompt tokens reused from the cache",
        Rows::Counter(&[(&[], |rank| rank.metrics.prompt_tokens_cached as f64)]),
    ),
    family(
        "prompt_seconds_total",
        "Total time spent processing prompts",
        Rows::Counter(&[(&[], |rank| seconds(&rank.metrics.prefill_time))]),
    ),
    family(
        "tokens_predicted_total",
        "Number of generation tokens processed",
        Rows::Counter(&[(&[], predicted)]),
    ),
    family(
        "tokens_predicted_seconds_total",
        "Total time spent generating tokens",
        Rows::Counter(&[(&[], |rank| seconds(&rank.metrics.decode_time))]),
    ),
    family(
        "n_decode_total",
        "Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding",
        Rows::Counter(&[(&[], steps)]),
    ),
    // Of requests that have ended; the real server counts a running one too.
    family(
        "n_tokens_max",
        "Largest observed sequence length (prompt + generation)",
        Rows::Counter(&[(&[], |rank| rank.metrics.longest_sequence as f64)]),
    ),
    family(
        "spec_decode_num_draft_tokens_total",
        "Speculative: Total draft tokens generated",
        Rows::Counter(&[(&[], |_| 0.0)]),
    ),
    family(
        "spec_decode_num_accepted_tokens_total",
        "Speculative: Total draft tokens accepted by the target model",
        Rows::Counter(&[(&[], |_| 0.0)]),
    ),
    family(
        "spec_decode_num_drafts_total",
        "Speculative: Total speculative decoding verification steps",
        Rows::Counter(&[(&[], |_| 0.0)]),
    ),
    family(
        "prompt_tokens_seconds",
        "Average prompt throughput in tokens/s",
        Rows::Gauge(&[(&[], |rank| {
            rate(rank.metrics.prompt_tokens as f64, seconds(&rank.metrics.prefill_time))
        })]),
    ),
    family(
        "predicted_tokens_seconds",
        "Average generation throughput in tokens/s",
        Rows::Gauge(&[(&[], |rank| rate(predicted(rank), seconds(&rank.metrics.decode_time)))]),
    ),
    family(
        "requests_processing",
        "Number of requests processing",
        Rows::Gauge(&[(&[], |rank| rank.gauges.running as f64)]),
    ),
    family("requests_deferred", "Number of requests deferred", Rows::Gauge(&[(&[], waiting)])),
    family(
        "n_busy_slots_per_decode",
        "Average number of busy slots per llama_decode() call",
        Rows::Gauge(&[(&[], |rank| rate(rank.metrics.generation_tokens as f64, steps(rank)))]),
    ),
];

/// Tokens of requests that have ended: those of others are not counted yet.
fn predicted(rank: &Rank<'_>) -> f64 {
    rank.metrics.request_generation_tokens.sum() as f64
}

fn seconds(histogram: &Histogram) -> f64 {
    histogram.sum() as f64 / PS_PER_S as f64
}

fn rate(count: f64, per: f64) -> f64 {
    if per > 0.0 { count / per } else { 0.0 }
}
