//! Dynamo's model of an aggregated engine: the time of a step, linear in the prompt tokens of the
//! step and the tokens that lie in the KV cache [ai-dynamo/dynamo 439d645 and 518a702,
//! `components/src/dynamo/planner/core/perf_model/{base,agg}.py`].
//!
//! Must not scale anything.

use std::collections::{BTreeMap, VecDeque};

/// `max_num_fpm_samples`, also the window of the moving averages.
const SAMPLES: usize = 64;
/// `fpm_sample_bucket_size` is 16: four buckets along each axis.
const BUCKETS_PER_AXIS: f64 = 4.0;
/// `load_min_observations`.
const MIN_OBSERVATIONS: usize = 5;

/// One step of an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Step {
    /// Prompt tokens computed in it.
    pub(super) prompt_tokens: f64,
    /// Tokens resident while it ran.
    pub(super) kv_tokens: f64,
    /// How long it took, above 0.
    pub(super) seconds: f64,
}

/// What a replica can be asked to keep, and what its engine allows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limits {
    pub(super) ttft_s: f64,
    pub(super) itl_s: f64,
    pub(super) max_num_batched_tokens: f64,
    pub(super) max_num_seqs: f64,
    pub(super) kv_tokens: f64,
}

/// The model, refitted after each step.
#[derive(Debug, Default)]
pub(super) struct Regression {
    steps: Vec<Step>,
    fit: Option<Fit>,
    pub(super) prompt_length: Average,
    pub(super) decode_length: Average,
    prompt_tokens: Average,
}

impl Regression {
    /// Takes in a step; of too many, the oldest of the fullest bucket goes.
    pub(super) fn add(&mut self, step: Step) {
        self.prompt_tokens.add(step.prompt_tokens);
        self.steps.push(step);
        if self.steps.len() > SAMPLES {
            self.retire();
        }
        self.fit = Fit::of(&self.steps);
    }

    /// Whether there are steps enough for a fit, which they may still not give.
    pub(super) fn has_enough(&self) -> bool {
        self.steps.len() >= MIN_OBSERVATIONS
    }

    /// Seconds to the first token of a request of mean length that comes now.
    pub(super) fn ttft_s(&self, queued: f64, kv_tokens: f64, limits: &Limits) -> Option<f64> {
        let fit = self.fit?;
        let mut left = queued + self.prompt_length.mean();
        let mut seconds = 0.0;
        while left > 0.0 {
            let chunk = left.min(limits.max_num_batched_tokens.max(1.0));
            seconds += fit.seconds(chunk, kv_tokens);
            left -= chunk;
        }
        Some(seconds)
    }

    /// Seconds between two tokens with one more request than those whose tokens are given.
    pub(super) fn itl_s(&self, kv_tokens: f64) -> Option<f64> {
        let kv_tokens = kv_tokens + self.decode_length.mean();
        Some(self.fit?.seconds(self.prompt_tokens.mean(), kv_tokens))
    }

    /// Requests per second that one engine serves within the limits, for requests of these mean
    /// lengths; of an engine that cannot serve one within them, what it does serve.
    pub(super) fn best_rate(&self, prompt: f64, output: f64, limits: &Limits) -> Option<f64> {
        let fit = self.fit.filter(|_| prompt > 0.0 && output > 0.0)?;
        let context = prompt + output / 2.0;
        let cap = (limits.kv_tokens / context.max(1.0)).min(limits.max_num_seqs);
        let mut best = None;
        let mut batch = 1.0;
        // Beyond what steps can admit, prompts would pile up.
        while batch <= cap.max(1.0) {
            let left = limits.max_num_batched_tokens - batch;
            if batch > 1.0 && (left <= 0.0 || prompt / left > output) {
                break;
            }
            let per_step = (batch * prompt / output.max(1.0)).min(limits.max_num_batched_tokens);
            let step_s = fit.seconds(per_step, batch * context);
            let ttft_s = self.ttft_s(per_step, batch * context, limits)?;
            let keeps = step_s <= limits.itl_s && ttft_s <= limits.ttft_s;
            if keeps || best.is_none() {
                best = Some(batch / (output * step_s));
            }
            if !keeps {
                break;
            }
            batch += 1.0;
        }
        best
    }

    fn retire(&mut self) {
        let axis = |of: fn(&Step) -> f64| {
            let values = self.steps.iter().map(of);
            let (low, high) =
                values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
            move |step: &Step| {
                if high <= low {
                    return 0;
                }
                let share = (of(step) - low) / (high - low);
                super::count((share * BUCKETS_PER_AXIS).min(BUCKETS_PER_AXIS - 1.0))
            }
        };
        let (prompts, kv) = (axis(|step| step.prompt_tokens), axis(|step| step.kv_tokens));
        let bucket = |step: &Step| (prompts(step), kv(step));
        let mut sizes: BTreeMap<(u32, u32), usize> = BTreeMap::new();
        self.steps.iter().for_each(|step| *sizes.entry(bucket(step)).or_default() += 1);
        let fullest = sizes.values().copied().max().unwrap_or(0);
        let oldest = self.steps.iter().position(|step| sizes.get(&bucket(step)) == Some(&fullest));
        if let Some(oldest) = oldest {
            self.steps.remove(oldest);
        }
    }
}

/// The mean of the last values, without the zeros before the first other.
#[derive(Debug, Default)]
pub(super) struct Average {
    values: VecDeque<f64>,
    sum: f64,
}

impl Average {
    pub(super) fn add(&mut self, value: f64) {
        if self.values.is_empty() && value <= 0.0 {
            return;
        }
        if self.values.len() == SAMPLES
            && let Some(oldest) = self.values.pop_front()
        {
            self.sum -= oldest;
        }
        self.values.push_back(value);
        self.sum += value;
    }

    pub(super) fn mean(&self) -> f64 {
        if self.values.is_empty() { 0.0 } else { self.sum / self.values.len() as f64 }
    }
}

/// A plane through the steps.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Fit {
    base_s: f64,
    per_prompt_token_s: f64,
    per_kv_token_s: f64,
}

impl Fit {
    /// Least squares; of directions that the steps do not tell apart the shortest answer. A negative
    /// price is no answer.
    fn of(steps: &[Step]) -> Option<Fit> {
        if steps.len() < MIN_OBSERVATIONS {
            return None;
        }
        let n = steps.len() as f64;
        let mean = |of: fn(&Step) -> f64| steps.iter().map(of).sum::<f64>() / n;
        let (x0, y0) = (mean(|step| step.prompt_tokens), mean(|step| step.kv_tokens));
        let t0 = mean(|step| step.seconds);
        let (mut xx, mut xy, mut yy, mut xt, mut yt) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for step in steps {
            let (x, y, t) = (step.prompt_tokens - x0, step.kv_tokens - y0, step.seconds - t0);
            xx += x * x;
            xy += x * y;
            yy += y * y;
            xt += x * t;
            yt += y * t;
        }
        let determinant = xx * yy - xy * xy;
        let (x, y) = if determinant > 1e-12 * xx * yy {
            ((yy * xt - xy * yt) / determinant, (xx * yt - xy * xt) / determinant)
        } else {
            // All on one line: along it.
            let trace = xx + yy;
            let along = if trace > 0.0 { (xt + yt) / trace / (xx + 2.0 * xy + yy) } else { 0.0 };
            (along * (xx + xy), along * (xy + yy))
        };
        let fit = Fit { base_s: t0 - x * x0 - y * y0, per_prompt_token_s: x, per_kv_token_s: y };
        let is_sound = x.is_finite() && y.is_finite() && x >= 0.0 && y >= 0.0;
        is_sound.then_some(fit)
    }

    fn seconds(&self, prompt_tokens: f64, kv_tokens: f64) -> f64 {
        let seconds =
            self.base_s + self.per_prompt_token_s * prompt_tokens + self.per_kv_token_s * kv_tokens;
        seconds.max(1e-6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        ttft_s: 2.0,
        itl_s: 0.05,
        max_num_batched_tokens: 2_048.0,
        max_num_seqs: 256.0,
        kv_tokens: 400_000.0,
    };

    /// Steps of 10 ms + 0.05 ms a prompt token + 0.1 µs a resident one.
    fn step(prompt_tokens: f64, kv_tokens: f64) -> Step {
        let seconds = 0.01 + 0.05e-3 * prompt_tokens + 0.1e-6 * kv_tokens;
        Step { prompt_tokens, kv_tokens, seconds }
    }

    fn fitted() -> Regression {
        let mut regression = Regression::default();
        for (prompts, kv) in [(100.0, 5e4), (900.0, 2e4), (400.0, 1e5), (1_500.0, 4e4), (50.0, 9e4)]
        {
            assert!(!regression.has_enough());
            regression.add(step(prompts, kv));
        }
        regression.prompt_length.add(1_000.0);
        regression
    }

    #[test]
    fn a_plane_is_found_from_five_steps_on() {
        let fit = fitted().fit.unwrap();
        assert!((fit.base_s - 0.01).abs() < 1e-9, "{fit:?}");
        assert!((fit.per_prompt_token_s - 0.05e-3).abs() < 1e-9);
        assert!((fit.per_kv_token_s - 0.1e-6).abs() < 1e-12);
    }

    #[test]
    fn the_first_token_waits_for_whole_steps() {
        // 3,096 queued and 1,000 of its own: two steps of 2,048 and nothing left.
        let ttft_s = fitted().ttft_s(3_096.0, 1e5, &LIMITS).unwrap();
        assert!((ttft_s - 2.0 * (0.01 + 0.1024 + 0.01)).abs() < 1e-9, "{ttft_s}");
        assert!((fitted().ttft_s(0.0, 0.0, &LIMITS).unwrap() - 0.06).abs() < 1e-9);
    }

    #[test]
    fn the_best_rate_is_the_last_batch_within_the_targets() {
        // A step of batch b: 10 ms + 0.05 ms × 5 b + 0.1 µs × 1,100 b = 10 ms + 0.36 ms × b, within
        // 50 ms up to b = 111.
        let rate = fitted().best_rate(1_000.0, 200.0, &LIMITS).unwrap();
        assert!((rate - 111.0 / (200.0 * (0.01 + 0.36e-3 * 111.0))).abs() < 1e-6, "{rate}");
        // Out of reach even alone: what one request at a time gives.
        let strict = Limits { itl_s: 0.001, ..LIMITS };
        let alone = fitted().best_rate(1_000.0, 200.0, &strict).unwrap();
        assert!((alone - 1.0 / (200.0 * 0.01036)).abs() < 1e-6, "{alone}");
    }

    #[test]
    fn more_load_that_costs_less_is_no_model() {
        let mut regression = Regression::default();
        for i in 0..8 {
            let kv_tokens = f64::from(i * i) * 1e3;
            let prompt_tokens = f64::from(i) * 100.0;
            let seconds = 0.1 - 1e-6 * kv_tokens + 1e-4 * prompt_tokens;
            regression.add(Step { prompt_tokens, kv_tokens, seconds });
        }
        assert_eq!(regression.fit, None);
    }

    #[test]
    fn steps_on_one_line_are_priced_along_it() {
        let mut regression = Regression::default();
        for i in 1..=6 {
            let tokens = f64::from(i) * 1e3;
            regression.add(Step {
                prompt_tokens: tokens,
                kv_tokens: 2.0 * tokens,
                seconds: 0.01 + 5e-6 * tokens,
            });
        }
        let fit = regression.fit.unwrap();
        // The shortest of all (x, y) with x + 2 y = 5e-6.
        assert!((fit.per_prompt_token_s - 1e-6).abs() < 1e-12, "{fit:?}");
        assert!((fit.per_kv_token_s - 2e-6).abs() < 1e-12, "{fit:?}");
    }

    #[test]
    fn the_fullest_bucket_loses_its_oldest_step() {
        let mut regression = Regression::default();
        regression.add(step(2_000.0, 2e5));
        (0..80).for_each(|i| regression.add(step(f64::from(i), 1e3)));
        assert_eq!(regression.steps.len(), SAMPLES);
        assert!((regression.steps[0].prompt_tokens - 2_000.0).abs() < 1e-9, "the rare one stays");
        assert!((regression.steps[1].prompt_tokens - 17.0).abs() < 1e-9);
    }
}
