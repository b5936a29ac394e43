//! The engine's cost model, learned online from counters that every vLLM exposes.
//!
//! A step takes `t0 + c_p·prompt tokens + c_d·generated tokens + c_kv·KV use` (costmodel.md 1).
//! Kept as forgotten normal equations of four unknowns, so its size and cost are constant. Must
//! not decide what to do with a fit, only whether it may be used.
//!
//! What constant load cannot teach: steps of a replica that is busy for the share x of its capacity
//! take `T = t0/(1 − x)`, and as long as one T is all that is seen, every x from 0 to 1 explains it
//! with a t0 of its own. The total cost of a step at that mix is known, but as a price it says that
//! the present count is just enough whatever the load, which would raise for nothing and let
//! nothing go. So an even load leaves the level to its fallbacks, and what is learned under varied
//! load stays.

mod solve;

use serde::{Deserialize, Serialize};

use super::EngineSample;
use super::number::{seconds, usable};
use solve::{N, Normal};

/// Seconds of one replica's time that make one row: the default tick.
const ROW_S: f64 = 5.0;
/// Rows that are remembered (2.8 h of steps): short enough to follow an engine whose steps become
/// 15 % slower and faster in the course of a day. What even hours would wash out is left out of them;
/// see [`CostModel::is_known`].
const MEMORY_ROWS: f64 = 2_000.0;
/// Rows that are further off than [`OUTLIER_ABOVE`] count as if four times as many were remembered. They
/// may be another engine's, as in a rollout, whose mixture with the old one would be met by a price
/// that is right for neither before the mean error tells.
const OFF_PACE: f64 = 0.25;
/// Relative error above which a row counts as an outlier. Idle gaps can only make a step look
/// longer, never shorter: so the upper side is cut sooner and harder.
const OUTLIER_ABOVE: f64 = 0.2;
const OUTLIER_BELOW: f64 = 0.4;
/// An outlier keeps this share of its weight, so that a truly changed engine is still learned.
const OUTLIER_FLOOR: f64 = 0.05;
/// Mean error before the first row was predicted: too large to be usable.
const ERROR_UNKNOWN: f64 = 0.3;
/// Mean error above which this may be another engine than was learned, so that its rows are learned
/// apart too: three times the noise of a quiet machine. A rollout to a GPU twice as fast makes 0.3.
const ERROR_DOUBTFUL: f64 = 3.0 * ERROR_MIN;
/// Of two usable fits the one learned apart takes over if its mean error is this share of the other's.
const MUCH_BETTER: f64 = 0.5;
/// What is learned apart begins anew after so many rows (half an hour): it may itself hold two engines,
/// as in a rollout.
const APART_ROWS: f64 = 360.0;
/// Rows over which the mean error is taken.
const ERROR_ROWS: f64 = 60.0;
/// Rows before the first fit is used to judge others.
const FIRST_ROWS: f64 = 5.0;
/// Share of new rows that is worth solving again.
const NEW_SHARE: f64 = 0.01;
/// Neighbouring rows are alike; ten of them tell about as much as one independent row.
const ROWS_PER_INDEPENDENT: f64 = 10.0;
/// No machine is quieter than this, however well the rows agree.
const ERROR_MIN: f64 = 0.05;
/// Relative variance of the work of a step from which it is told apart from the cost of an empty
/// step: a spread of 10 %. Gauges and counters read at different instants make up a spread of about
/// 4 % by themselves, which passes for work that costs nothing: so much of it makes the price up to
/// 0.04²/0.10² = 16 % too low, about what the trust bound is there for. On simulated fleets under
/// constant load with 5 % of noise, random arrivals teach 97 % of them (half within ten minutes);
/// at a spread of 14 % it was 85 %, at 5 % prices came out a third too low.
const VARIED: f64 = 0.01;
/// What a learned model keeps of it under constant load: enough above the limit that forgetting and
/// noise between two fits do not take it below.
const VARIED_KEPT: f64 = 1.1 * VARIED;
/// Mean error up to which rows that tell nothing new are left out, so that they do not wash out what
/// others told: twice the noise of a quiet machine.
const ERROR_CALM: f64 = 2.0 * ERROR_MIN;
/// Rows on which the fit has to be right at a load before it counts as seen there, and rows (a day)
/// over which that is forgotten.
const REACH_ROWS: f64 = 10.0;
const REACH_MEMORY_ROWS: f64 = 17_280.0;
/// Rows, mean error and relative standard error of the price of work that make a fit usable.
pub(super) const USABLE_ROWS: f64 = 20.0;
const USABLE_ERROR: f64 = 0.25;
const USABLE_SPREAD: f64 = 0.25;

/// Steps below which an interval is too thin.
const MIN_STEPS: f64 = 5.0;
/// Longest interval that is one row.
const MAX_ROW_S: f64 = 60.0;
/// A row is at least this many mean prompts long, in tokens of either kind. Engines count a prompt
/// whole when its last piece is computed, so the one that a sample cuts in two stands on one side of
/// it and its work on both: with prompts of 12,000 tokens a row of five seconds holds two or three of
/// them, and the fit takes two thirds of their price for noise. At low load the engine rests before
/// that many have come: there the row may end that is as many times as long as their first tokens took.
const PROMPTS_IN_ROW: f64 = 10.0;

/// Work of one replica between two samples, in which it never rested.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Seconds between the samples.
    pub seconds: f64,
    /// Engine steps.
    pub steps: f64,
    /// Prompts that were completed; `None` where the engine does not count them.
    pub prompts: Option<f64>,
    /// Seconds to their first tokens, added up; `None` where the engine does not tell.
    pub first_tokens_s: Option<f64>,
    /// Prompt tokens that cost work.
    pub prompt: f64,
    /// Generated tokens.
    pub generated: f64,
    /// Mean KV use, 0..1.
    pub kv: f64,
}

impl Interval {
    /// The work between two samples of one replica, of any number of steps: to be put together with
    /// its neighbours until it is whole. `None` if the interval is idle at an edge, holds a restart,
    /// is too long, or by the engine's own token times was idle for a part.
    #[must_use]
    pub fn part(before: &EngineSample, after: &EngineSample) -> Option<Interval> {
        const MAX_MS: u64 = 60_000;
        // An interval whose steps are this much longer than its tokens took had gaps.
        const GAPS: f64 = 1.3;
        let elapsed_ms = after.at.millis_since(before.at);
        if elapsed_ms == 0 || elapsed_ms > MAX_MS {
            return None;
        }
        let grown = |counter: fn(&EngineSample) -> Option<f64>| {
            let grown = usable(counter(after))? - usable(counter(before))?;
            (grown >= 0.0).then_some(grown)
        };
        if usable(before.running)? < 1.0 || usable(after.running)? < 1.0 {
            return None;
        }
        let interval = Interval {
            seconds: seconds(elapsed_ms),
            steps: grown(|sample| sample.steps)?,
            prompts: grown(|sample| sample.ttft_count),
            first_tokens_s: grown(|sample| sample.ttft_sum_s),
            prompt: grown(|sample| sample.prompt_tokens)?,
            generated: grown(|sample| sample.generated_tokens)?,
            kv: f64::midpoint(usable(before.kv_usage)?, usable(after.kv_usage)?).min(1.0),
        };
        let itl = grown(|sample| sample.itl_sum_s).zip(grown(|sample| sample.itl_count));
        let gaps = itl
            .is_some_and(|(sum, n)| n > 0.0 && interval.seconds / interval.steps > GAPS * sum / n);
        (!gaps).then_some(interval)
    }

    /// The prompt and the answer of a request that had a replica to itself, which rested at both samples:
    /// its own times to its tokens are the replica's. `None` if there was no request or more than one,
    /// or the engine does not tell the times or the size of its KV cache.
    #[must_use]
    pub fn alone(before: &EngineSample, after: &EngineSample) -> Option<[Interval; 2]> {
        let grown = |counter: fn(&EngineSample) -> Option<f64>| {
            let grown = usable(counter(after))? - usable(counter(before))?;
            (grown >= 0.0).then_some(grown)
        };
        let rests = |sample: &EngineSample| {
            sample.running == Some(0.0) && sample.waiting.unwrap_or(0.0) <= 0.0
        };
        let n = [grown(|sample| sample.finished)?, grown(|sample| sample.ttft_count)?];
        if !rests(before) || !rests(after) || n.iter().any(|n| (n - 1.0).abs() > 0.5) {
            return None;
        }
        let prompt = grown(|sample| sample.prompt_tokens)?;
        let steps = grown(|sample| sample.steps)?;
        let answer = grown(|sample| sample.itl_count)?;
        let kv = |tokens: f64| Some((tokens / usable(after.kv_tokens)?.max(1.0)).min(1.0));
        let part = |seconds, steps, prompt, generated, kv| Interval {
            seconds,
            steps,
            prompts: Some(1.0),
            first_tokens_s: None,
            prompt,
            generated,
            kv,
        };
        let first_s = grown(|sample| sample.ttft_sum_s)?;
        let rest_s = grown(|sample| sample.itl_sum_s)?;
        (steps > answer && first_s > 0.0 && rest_s > 0.0).then_some([
            part(first_s, steps - answer, prompt, 1.0, kv(prompt / 2.0)?),
            part(rest_s, answer, 0.0, answer, kv(prompt + answer / 2.0)?),
        ])
    }

    /// Both, of which `next` begins where the other ends.
    #[must_use]
    pub fn then(self, next: Interval) -> Interval {
        let seconds = self.seconds + next.seconds;
        let both = |before: Option<f64>, after: Option<f64>| Some(before? + after?);
        Interval {
            seconds,
            steps: self.steps + next.steps,
            prompts: both(self.prompts, next.prompts),
            first_tokens_s: both(self.first_tokens_s, next.first_tokens_s),
            prompt: self.prompt + next.prompt,
            generated: self.generated + next.generated,
            kv: (self.kv * self.seconds + next.kv * next.seconds) / seconds,
        }
    }

    /// Whether it is long enough to be a row: what its ends cut in two matters little.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let prompts_tell = self.prompts.is_none_or(|prompts| {
            (self.prompt + self.generated) * prompts >= PROMPTS_IN_ROW * self.prompt
                && prompts > 0.0
        });
        self.steps >= MIN_STEPS && (prompts_tell || self.seconds >= MAX_ROW_S)
    }

    /// Whether it may be a row where nothing follows, for the engine came to rest.
    #[must_use]
    pub fn is_enough(&self) -> bool {
        let is_long = self.prompts.zip(self.first_tokens_s).is_some_and(|(prompts, sum_s)| {
            prompts > 0.0 && self.seconds * prompts >= PROMPTS_IN_ROW * sum_s
        });
        self.steps >= MIN_STEPS && is_long
    }

    /// Whether an engine exposes all that an interval is made of.
    pub(super) fn is_exposed(sample: &EngineSample) -> bool {
        let EngineSample { running, steps, prompt_tokens, generated_tokens, kv_usage, .. } = sample;
        [running, steps, prompt_tokens, generated_tokens, kv_usage].iter().all(|n| n.is_some())
    }

    fn step_s(&self) -> f64 {
        self.seconds / self.steps
    }

    fn features(&self) -> [f64; N] {
        [1.0, self.prompt / self.steps, self.generated / self.steps, self.kv]
    }
}

/// The learned model and how sure it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CostModel {
    normal: Normal,
    /// Seconds: per step, per prompt token, per generated token, per step at full KV cache.
    costs: [f64; N],
    /// Rows behind the fit.
    rows: f64,
    /// Rows since the last fit.
    new_rows: f64,
    /// Mean relative error of predictions made before the row was learned.
    error: f64,
    /// Relative standard error of the priced work, from the last fit.
    spread: f64,
    /// Mean work of a step in seconds, and its relative variance, from the last fit.
    work_s: f64,
    varied: f64,
    /// Whether the last fit may be used.
    usable: bool,
    /// How busy replicas were, 0..1, where the fit was last seen to be right.
    reach: f64,
    /// What the rows say by themselves since the fit has been wrong.
    apart: Option<Box<CostModel>>,
}

impl Default for CostModel {
    /// Knows nothing.
    fn default() -> Self {
        CostModel {
            normal: Normal::default(),
            costs: [0.0; N],
            rows: 0.0,
            new_rows: 0.0,
            error: ERROR_UNKNOWN,
            spread: 1.0,
            work_s: 0.0,
            varied: 0.0,
            usable: false,
            reach: 0.0,
            apart: None,
        }
    }
}

impl CostModel {
    /// Learns from one interval of one of `n_replicas` alike.
    pub fn observe(&mut self, interval: &Interval, n_replicas: f64) {
        self.learn(interval, n_replicas);
        if self.rows < ERROR_ROWS || self.error <= ERROR_CALM {
            self.apart = None;
        } else if self.error > ERROR_DOUBTFUL || self.apart.is_some() {
            let apart = self.apart.get_or_insert_default();
            if apart.rows >= APART_ROWS {
                **apart = CostModel::default();
            }
            apart.learn(interval, n_replicas);
        }
    }

    fn learn(&mut self, interval: &Interval, n_replicas: f64) {
        let step_s = interval.step_s();
        let features = interval.features();
        let in_range = step_s > 0.0 && features.iter().all(|value| (0.0..=1e6).contains(value));
        if !in_range {
            return;
        }
        // Many replicas tell the same thing at once: together they are one clock.
        let weight = interval.seconds / ROW_S / n_replicas.max(1.0);
        let mut trust = 1.0;
        let mut pace = 1.0;
        if self.rows >= FIRST_ROWS {
            let error = step_s / self.predict(&features).max(1e-9) - 1.0;
            trust = if error > OUTLIER_ABOVE {
                (OUTLIER_ABOVE / error).powi(2).max(OUTLIER_FLOOR)
            } else if error < -OUTLIER_BELOW {
                (OUTLIER_BELOW / -error).max(OUTLIER_FLOOR)
            } else {
                1.0
            };
            if self.usable && error.abs() > OUTLIER_ABOVE {
                pace = OFF_PACE;
            }
            self.reach_to(step_s, error, weight);
            let share = weight / (weight + ERROR_ROWS);
            self.error += share * (error.abs().min(1.0) - self.error);
        }
        // Rows of two engines make a fit that is right for neither, however well it meets their means.
        let is_another = self.rows >= ERROR_ROWS && self.error > USABLE_ERROR;
        if is_another || self.is_known(&features) {
            return;
        }
        let weight = pace * weight;
        let keep = MEMORY_ROWS / (MEMORY_ROWS + weight);
        // Relative errors are what counts: each row is scaled by its step time, and by the predicted
        // one where it agrees. The measured one holds the step that the sample cut in two, which as a
        // divisor would take from the price of work what it adds to the cost of a step.
        let scale_s = if self.rows >= USABLE_ROWS && trust >= 1.0 {
            self.predict(&features).max(step_s * OUTLIER_BELOW)
        } else {
            step_s
        };
        let scaled = features.map(|value| value / scale_s);
        self.normal.add(&scaled, step_s / scale_s, weight * trust, keep);
        self.rows = self.rows * keep + weight * trust;
        self.new_rows += weight;
    }

    /// Notes that the fit was right at this step time: of a step, what is not the base is work, so
    /// `1 - t0 / step` is how busy the replica was.
    fn reach_to(&mut self, step_s: f64, error: f64, weight: f64) {
        if !self.usable || error.abs() > OUTLIER_ABOVE {
            return;
        }
        let [base_s, ..] = self.costs;
        let busy = 1.0 - base_s / step_s;
        self.reach *= REACH_MEMORY_ROWS / (REACH_MEMORY_ROWS + weight);
        if busy > self.reach {
            self.reach += weight / (weight + REACH_ROWS) * (busy - self.reach);
        }
    }

    /// Whether a row can only dilute what is known: under constant load every row is like the mean,
    /// and a price that was learned from varied load would fade into noise.
    fn is_known(&self, features: &[f64; N]) -> bool {
        let [step_s, ..] = self.costs;
        let deviation = (self.predict(features) - step_s) / self.work_s.max(1e-9) - 1.0;
        self.usable
            && self.varied < VARIED_KEPT
            && self.error <= ERROR_CALM
            && deviation * deviation < VARIED_KEPT
    }

    /// Solves for the costs, once there is enough that is new. Separate from
    /// [`CostModel::observe`], so that a decision is priced by what was known before it.
    pub fn refit(&mut self) {
        let limit = if self.is_usable() { MUCH_BETTER * self.error } else { USABLE_ERROR };
        if let Some(apart) = &mut self.apart {
            apart.refit();
            let is_better = apart.error <= limit;
            if apart.rows >= ERROR_ROWS && apart.is_usable() && is_better {
                *self = std::mem::take(apart);
            }
        }
        if self.rows < FIRST_ROWS / 2.0 || self.new_rows < NEW_SHARE * self.rows {
            return;
        }
        self.new_rows = 0.0;
        self.costs = self.normal.solve();
        // Targets of scaled rows are about 1, so the right-hand side holds the mean features: the
        // part of a step that is work is their inner product with the costs.
        let mut mean = self.normal.right().map(|sum| sum / self.rows);
        mean[0] = 0.0;
        let work: f64 = mean.iter().zip(self.costs).map(|(value, cost)| value * cost).sum();
        let variance = self.normal.variance_along(&mean).max(0.0) * ROWS_PER_INDEPENDENT;
        let mut prices = self.costs;
        prices[0] = 0.0;
        (self.work_s, self.varied) = self.normal.mean_and_relative_variance(&prices);
        let error = self.error.max(ERROR_MIN) * variance.sqrt();
        self.spread = if work > 0.0 { (error / work).min(1.0) } else { 1.0 };
        self.usable = self.rows >= USABLE_ROWS
            && self.varied >= VARIED
            && self.error <= USABLE_ERROR
            && self.spread <= USABLE_SPREAD;
    }

    fn predict(&self, features: &[f64; N]) -> f64 {
        features.iter().zip(self.costs).map(|(value, cost)| value * cost).sum()
    }

    /// Enough rows, a small error, and work told apart from the cost of an empty step.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.usable && self.error <= USABLE_ERROR
    }

    /// Seconds: per step, per prompt token, per generated token, per step at full KV cache.
    #[must_use]
    pub fn costs(&self) -> [f64; N] {
        self.costs
    }

    /// The share of its capacity, 0..1, up to which a replica has been seen to be as the fit says.
    #[must_use]
    pub fn reach(&self) -> f64 {
        self.reach
    }

    /// Observations behind the fit, in samples of five seconds.
    #[must_use]
    pub fn rows(&self) -> f64 {
        self.rows
    }

    /// Mean relative error of the predictions, 0..1.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.error
    }
}
