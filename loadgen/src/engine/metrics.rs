//! What the engine counts about itself, exactly as vLLM counts it: plain numbers and buckets.
//!
//! Must not know any exposition format.

use crate::engine::request::{FinishReason, Served};
use crate::engine::step_time::Progression;
use crate::engine::time::{PS_PER_MS, Time};

/// Gauges, written when a step ends and not in between, as vLLM does: what arrives during a step
/// is in neither of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gauges {
    /// Admitted requests, those in chunked prefill too (`num_requests_running`).
    pub running: usize,
    /// Waiting for capacity, preempted ones too (`reason="capacity"`).
    pub waiting: usize,
    /// Waiting for something else (`reason="deferred"`).
    pub deferred: usize,
    /// KV blocks in use; blocks that only the prefix cache keeps are free.
    pub kv_blocks_used: usize,
    /// KV blocks that can be used: all but vLLM's null block.
    pub kv_blocks_total: usize,
}

impl Gauges {
    /// `kv_cache_usage_perc`: 0 to 1.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        self.kv_blocks_used as f64 / self.kv_blocks_total as f64
    }
}

/// A histogram over whole numbers: picoseconds or tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    bounds: Vec<u64>,
    // One more than bounds: the last counts what lies above all of them.
    counts: Vec<u64>,
    sum: u128,
}

impl Histogram {
    fn new(bounds: Vec<u64>) -> Histogram {
        let counts = vec![0; bounds.len() + 1];
        Histogram { bounds, counts, sum: 0 }
    }

    fn of_millis(bounds_ms: &[u64]) -> Histogram {
        Histogram::new(bounds_ms.iter().map(|ms| ms * PS_PER_MS).collect())
    }

    /// Upper bounds of the buckets, inclusive, ascending, without the infinite one.
    #[must_use]
    pub fn bounds(&self) -> &[u64] {
        &self.bounds
    }

    /// Observations in each bucket alone (not cumulated); one more than the bounds.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// All observations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of what was observed, in the unit of the bounds.
    #[must_use]
    pub fn sum(&self) -> u128 {
        self.sum
    }

    pub(crate) fn observe(&mut self, value: u64, times: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        self.counts[bucket] += times;
        self.sum += u128::from(value) * u128::from(times);
    }

    /// Observes each of the first `steps` values of a progression `times` times.
    pub(crate) fn observe_progression(&mut self, values: Progression, steps: usize, times: u64) {
        let all = steps as u64;
        let mut counted = 0;
        let mut bucket = self.bounds.partition_point(|&bound| bound < values.first_ps);
        while counted < all {
            let within = match self.bounds.get(bucket) {
                Some(&bound) if values.growth_ps > 0 => bound
                    .checked_sub(values.first_ps)
                    .map_or(0, |room| room / values.growth_ps + 1)
                    .clamp(counted, all),
                // Equal values share the bucket of the first; beyond all bounds is the last one.
                Some(_) | None => all,
            };
            self.counts[bucket] += (within - counted) * times;
            counted = within;
            bucket += 1;
        }
        self.sum += values.sum_ps(steps) * u128::from(times);
    }
}

// Bounds of vLLM 0.32 [v1/metrics/loggers.py], in milliseconds or tokens.
const TTFT_MS: [u64; 22] = [
    1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1_000, 2_500, 5_000, 7_500, 10_000, 20_000,
    40_000, 80_000, 160_000, 640_000, 2_560_000,
];
const PER_TOKEN_MS: [u64; 19] = [
    10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1_000, 2_500, 5_000, 7_500, 10_000, 20_000,
    40_000, 80_000,
];
const REQUEST_MS: [u64; 21] = [
    300, 500, 800, 1_000, 1_500, 2_000, 2_500, 5_000, 10_000, 15_000, 20_000, 30_000, 40_000,
    50_000, 60_000, 120_000, 240_000, 480_000, 960_000, 1_920_000, 7_680_000,
];
const ITERATION_TOKENS: [u64; 13] =
    [1, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384];
const PREEMPTIONS: [u64; 7] = [1, 2, 3, 4, 5, 10, 20];

/// 1, 2, 5, 10, … up to `largest`.
fn one_two_five(largest: u64) -> Vec<u64> {
    (0..)
        .flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power)))
        .take_while(|&bound| bound <= largest)
        .collect()
}

/// Everything an engine has counted since it started. Times are in picoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// The gauges as the last step left them.
    pub gauges: Gauges,
    /// `num_preemptions_total`.
    pub preemptions: u64,
    /// `prompt_tokens_total`: counted when a prompt's prefill is complete.
    pub prompt_tokens: u64,
    /// The part of them that the prefix cache held (`prompt_tokens_cached_total`).
    pub prompt_tokens_cached: u64,
    /// `generation_tokens_total`: counted at each step.
    pub generation_tokens: u64,
    /// `prefix_cache_queries_total`, in tokens; 0 with prefix caching off.
    pub prefix_queries: u64,
    /// `prefix_cache_hits_total`, in tokens.
    pub prefix_hits: u64,
    /// `request_success_total{finished_reason="stop"}`.
    pub finished_stop: u64,
    /// `request_success_total{finished_reason="length"}`.
    pub finished_length: u64,
    /// `request_success_total{finished_reason="abort"}`: given up by the engine. A client that
    /// goes away is not counted, as vLLM 0.32 does not.
    pub finished_abort: u64,
    /// Tokens of the longest request that ended, but for its last, which nothing was computed from.
    pub longest_sequence: u64,
    /// `iteration_tokens_total`: tokens of each step that had an output; a prompt counts whole in
    /// the step that completes it.
    pub iteration_tokens: Histogram,
    /// `time_to_first_token_seconds`, when the first token appears.
    pub time_to_first_token: Histogram,
    /// `inter_token_latency_seconds`, for each token but the first.
    pub inter_token_latency: Histogram,
    /// `request_time_per_output_token_seconds`, at the end of a request like all that follow.
    pub time_per_output_token: Histogram,
    /// `e2e_request_latency_seconds`.
    pub e2e_latency: Histogram,
    /// `request_queue_time_seconds`: queued to first scheduled.
    pub queue_time: Histogram,
    /// `request_prefill_time_seconds`: first scheduled to first token.
    pub prefill_time: Histogram,
    /// `request_decode_time_seconds`: first to last token.
    pub decode_time: Histogram,
    /// `request_inference_time_seconds`: first scheduled to last token.
    pub inference_time: Histogram,
    /// `request_prompt_tokens`.
    pub request_prompt_tokens: Histogram,
    /// `request_prefill_kv_computed_tokens`: the prompt net of cached tokens.
    pub request_computed_tokens: Histogram,
    /// `request_generation_tokens`.
    pub request_generation_tokens: Histogram,
    /// `request_params_max_tokens`.
    pub request_max_tokens: Histogram,
    /// `request_num_preemptions`.
    pub request_preemptions: Histogram,
}

impl Metrics {
    /// Nothing counted yet. Buckets of lengths end at `max_model_tokens`, as vLLM's do.
    pub(crate) fn new(max_model_tokens: usize) -> Metrics {
        let lengths = Histogram::new(one_two_five(max_model_tokens as u64));
        let per_request = Histogram::of_millis(&REQUEST_MS);
        let per_token = Histogram::of_millis(&PER_TOKEN_MS);
        Metrics {
            gauges: Gauges::default(),
            preemptions: 0,
            prompt_tokens: 0,
            prompt_tokens_cached: 0,
            generation_tokens: 0,
            prefix_queries: 0,
            prefix_hits: 0,
            finished_stop: 0,
            finished_length: 0,
            finished_abort: 0,
            longest_sequence: 0,
            iteration_tokens: Histogram::new(ITERATION_TOKENS.to_vec()),
            time_to_first_token: Histogram::of_millis(&TTFT_MS),
            inter_token_latency: per_token.clone(),
            time_per_output_token: per_token,
            e2e_latency: per_request.clone(),
            queue_time: per_request.clone(),
            prefill_time: per_request.clone(),
            decode_time: per_request.clone(),
            inference_time: per_request,
            request_prompt_tokens: lengths.clone(),
            request_computed_tokens: lengths.clone(),
            request_generation_tokens: lengths.clone(),
            request_max_tokens: lengths,
            request_preemptions: Histogram::new(PREEMPTIONS.to_vec()),
        }
    }

    /// Counts a request that ended now.
    pub(crate) fn finish(
        &mut self,
        at: Time,
        reason: FinishReason,
        served: &Served,
        max_tokens: u32,
    ) {
        *match reason {
            FinishReason::Stop => &mut self.finished_stop,
            FinishReason::Length => &mut self.finished_length,
            FinishReason::Abort => &mut self.finished_abort,
        } += 1;
        // One that never reached a stage spent no time in it.
        let scheduled = served.scheduled.unwrap_or(served.queued);
        let first_token = served.first_token.unwrap_or(scheduled);
        let last_token = served.last_token.max(first_token);
        let decode_ps = last_token.since(first_token);
        let gaps = u64::from(served.generated_tokens.saturating_sub(1));
        self.e2e_latency.observe(at.since(served.arrival), 1);
        self.queue_time.observe(scheduled.since(served.queued), 1);
        self.prefill_time.observe(first_token.since(scheduled), 1);
        self.decode_time.observe(decode_ps, 1);
        self.inference_time.observe(last_token.since(scheduled), 1);
        self.time_per_output_token.observe(decode_ps.checked_div(gaps).unwrap_or(0), 1);
        let tokens = u64::from(served.prompt_tokens) + u64::from(served.generated_tokens);
        self.longest_sequence = self.longest_sequence.max(tokens.saturating_sub(1));
        let computed = served.prompt_tokens - served.cached_tokens;
        self.request_prompt_tokens.observe(served.prompt_tokens.into(), 1);
        self.request_computed_tokens.observe(computed.into(), 1);
        self.request_generation_tokens.observe(served.generated_tokens.into(), 1);
        self.request_max_tokens.observe(max_tokens.into(), 1);
        self.request_preemptions.observe(served.preemptions.into(), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_progression_is_observed_as_its_values_one_by_one() {
        for (first_ps, growth_ps, steps) in [(1, 1, 40), (5, 0, 7), (9, 13, 30), (500, 3, 4)] {
            let values = Progression { first_ps, growth_ps };
            let mut one_by_one = Histogram::new(vec![1, 4, 5, 5, 30, 200]);
            let mut together = one_by_one.clone();
            for step in 0..steps {
                one_by_one.observe(first_ps + step as u64 * growth_ps, 3);
            }
            together.observe_progression(values, steps, 3);
            assert_eq!(together, one_by_one, "{values:?}");
        }
    }

    #[test]
    fn length_buckets_are_those_of_the_real_server() {
        assert_eq!(
            one_two_five(2_048),
            [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000],
            "--max-model-len 2048"
        );
    }
}
