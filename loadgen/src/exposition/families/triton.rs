//! Triton's families with the TensorRT-LLM backend, those of its load, tokens and latency.
//!
//! Must not hold logic. Uncaptured: names and texts are those of the backend's source and
//! documentation; but the counters of Triton itself are as on a page of a Triton 2.51 on a CPU
//! (`tests/data/pages`). Each request passes through an ensemble of four models, as in the backend's own
//! example.

use super::{Family, Rows, Unit, family, finished, steps, waiting};

pub(in crate::exposition) const ALL: &[Family] = &[
    family(
        "inference_request_success",
        "Number of successful inference requests, all batch sizes",
        Rows::Counter(&[
            (&[("model", "ensemble")], finished),
            (&[("model", "postprocessing")], finished),
            (&[("model", "preprocessing")], finished),
            (&[("model", "tensorrt_llm")], finished),
        ]),
    ),
    family(
        "inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        Rows::Gauge(&[(&[], |_| 0.0)]),
    ),
    family(
        "inference_first_response_histogram_ms",
        "Duration from request to first response in milliseconds",
        Rows::Histogram(|metrics| &metrics.time_to_first_token, Unit::Millis),
    ),
    family(
        "trt_llm_request_metrics",
        "TRT LLM request metrics",
        Rows::Gauge(&[
            (&[("request_type", "waiting")], waiting),
            (&[("request_type", "context")], |_| 0.0),
            (&[("request_type", "scheduled")], |rank| rank.gauges.running as f64),
            (&[("request_type", "max")], |rank| rank.profile.limits.max_num_seqs as f64),
            (&[("request_type", "active")], |rank| rank.gauges.running as f64 + waiting(rank)),
        ]),
    ),
    family(
        "trt_llm_kv_cache_block_metrics",
        "TRT LLM KV cache block metrics",
        Rows::Gauge(&[
            (&[("kv_cache_block_type", "fraction")], |rank| rank.gauges.kv_usage()),
            (&[("kv_cache_block_type", "tokens_per")], |rank| rank.profile.kv.block_tokens as f64),
            (&[("kv_cache_block_type", "used")], |rank| rank.gauges.kv_blocks_used as f64),
            (&[("kv_cache_block_type", "free")], |rank| {
                (rank.gauges.kv_blocks_total - rank.gauges.kv_blocks_used) as f64
            }),
            (&[("kv_cache_block_type", "max")], |rank| rank.gauges.kv_blocks_total as f64),
        ]),
    ),
    family(
        "trt_llm_general_metrics",
        "General TRT LLM metrics",
        Rows::Gauge(&[(&[("general_type", "iteration_counter")], steps)]),
    ),
    family(
        "llm_input_token_len",
        "TRT LLM response metrics",
        Rows::Histogram(|metrics| &metrics.request_prompt_tokens, Unit::Tokens),
    ),
    family(
        "llm_output_token_len",
        "TRT LLM response metrics",
        Rows::Histogram(|metrics| &metrics.request_generation_tokens, Unit::Tokens),
    ),
];
