//! What the lean engine takes in, gives out and counts.
//!
//! Must not know how the numbers come about.

use crate::engine::time::{Time, secs_from_ps};

/// One completion to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeanRequest {
    /// Names the request in events.
    pub id: u32,
    /// Length of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens of the prompt that the prefix cache holds, counted in whole blocks.
    pub cached_tokens: u32,
    /// Tokens to generate, at least 1. Prompt and output fit into the KV cache together.
    pub output_tokens: u32,
}

/// What happened in the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeanEvent {
    /// A request got its first token.
    FirstToken {
        /// The request.
        id: u32,
        /// The end of the step that made it.
        at: Time,
    },
    /// A request got its last token.
    Finished {
        /// The request.
        id: u32,
        /// When it reached this engine.
        arrival: Time,
        /// When it got its first token.
        first_token: Time,
        /// When it got its last token.
        at: Time,
    },
}

/// What the engine's metrics page says; the names are those of vLLM's families. Counters are
/// totals since the engine's start.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LeanSample {
    /// `num_requests_running`.
    pub running: usize,
    /// `num_requests_waiting`.
    pub waiting: usize,
    /// `kv_cache_usage_perc`, 0 to 1.
    pub kv_usage: f64,
    /// `prompt_tokens_total`.
    pub prompt_tokens: u64,
    /// `prompt_tokens_by_source_total{source="local_compute"}`.
    pub computed_prompt_tokens: u64,
    /// `generation_tokens_total`.
    pub generation_tokens: u64,
    /// `request_success_total`.
    pub finished: u64,
    /// `request_prompt_tokens_sum`.
    pub finished_prompt_tokens: u64,
    /// `request_generation_tokens_sum`.
    pub finished_generation_tokens: u64,
    /// `num_preemptions_total`.
    pub preemptions: u64,
    /// `iteration_tokens_total_count`: steps that gave a token.
    pub steps: u64,
    /// `time_to_first_token_seconds_sum`.
    pub ttft_sum_s: f64,
    /// `time_to_first_token_seconds_count`.
    pub ttft_count: u64,
    /// `inter_token_latency_seconds_sum`.
    pub itl_sum_s: f64,
    /// `inter_token_latency_seconds_count`.
    pub itl_count: u64,
    /// Summed time from queued to first scheduled, of requests that have been scheduled.
    pub queue_time_sum_s: f64,
    /// Requests in `queue_time_sum_s`.
    pub queue_time_count: u64,
}

/// The counters of an engine.
#[derive(Debug, Clone, Default)]
pub(super) struct Sums {
    sample: LeanSample,
    pub(super) preemptions: u64,
    pub(super) busy_ps: u64,
}

impl Sums {
    pub(super) fn sample(&self, running: usize, waiting: usize, kv_usage: f64) -> LeanSample {
        LeanSample { running, waiting, kv_usage, preemptions: self.preemptions, ..self.sample }
    }

    /// Steps in which so many decoded and nobody began; `gaps_ps` since the step before them.
    pub(super) fn decoded(&mut self, decoding: usize, steps: usize, gaps_ps: u64, busy_ps: u64) {
        let tokens = decoding as u64 * steps as u64;
        self.busy_ps += busy_ps;
        self.sample.generation_tokens += tokens;
        self.sample.steps += steps as u64;
        self.sample.itl_sum_s += secs_from_ps(gaps_ps) * decoding as f64;
        self.sample.itl_count += tokens;
    }

    /// One step in which so many decoded and so many began to.
    pub(super) fn stepped(&mut self, decoding: usize, promoted: usize, gap_ps: u64, busy_ps: u64) {
        self.busy_ps += busy_ps;
        self.sample.generation_tokens += (decoding + promoted) as u64;
        self.sample.steps += u64::from(decoding + promoted > 0);
        self.sample.itl_sum_s += secs_from_ps(gap_ps) * decoding as f64;
        self.sample.itl_count += decoding as u64;
    }

    pub(super) fn scheduled(&mut self, queued_ps: u64) {
        self.sample.queue_time_sum_s += secs_from_ps(queued_ps);
        self.sample.queue_time_count += 1;
    }

    pub(super) fn first_token(&mut self, prompt: u32, cached: u32, ttft_ps: u64) {
        self.sample.prompt_tokens += u64::from(prompt);
        self.sample.computed_prompt_tokens += u64::from(prompt.saturating_sub(cached));
        self.sample.ttft_sum_s += secs_from_ps(ttft_ps);
        self.sample.ttft_count += 1;
    }

    /// A token after a preemption: the gap reaches back to the last one before it.
    pub(super) fn resumed(&mut self, gap_ps: u64) {
        self.sample.itl_sum_s += secs_from_ps(gap_ps);
        self.sample.itl_count += 1;
    }

    pub(super) fn finished(&mut self, request: &LeanRequest) {
        self.sample.finished += 1;
        self.sample.finished_prompt_tokens += u64::from(request.prompt_tokens);
        self.sample.finished_generation_tokens += u64::from(request.output_tokens);
    }
}
