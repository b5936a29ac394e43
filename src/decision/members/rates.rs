//! Rates of one sample interval, and their sum over replicas.
//!
//! Must not make a rate out of a restart: a counter that went back starts a new baseline.

use serde::{Deserialize, Serialize};

use super::Slo;
use crate::decision::EngineSample;
use crate::decision::known::Known;
use crate::decision::number::seconds;

/// Per second; not known where the engine does not expose the counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::decision) struct Rates {
    /// Prompt tokens that cost work.
    pub(in crate::decision) prompt: Known,
    /// Generated tokens.
    pub(in crate::decision) generated: Known,
    /// Requests finished.
    pub(in crate::decision) finished: Known,
    /// Generated tokens of finished requests.
    pub(in crate::decision) finished_generated: Known,
    /// Requests that came: finished, plus the growth of what is in flight, plus refused.
    pub(in crate::decision) arrived: Known,
    /// Growth of what waits; negative while a queue is worked off.
    pub(in crate::decision) queued: Known,
    /// Requests whose prompt was begun: finished plus the growth of what runs.
    pub(in crate::decision) admitted: Known,
    /// Engine steps.
    pub(in crate::decision) steps: Known,
    /// Preemptions.
    pub(in crate::decision) preemptions: Known,
    /// Seconds that first tokens took, and first tokens.
    pub(in crate::decision) ttft_sum: Known,
    pub(in crate::decision) ttft_count: Known,
    /// Seconds between tokens, and tokens after the first.
    pub(in crate::decision) itl_sum: Known,
    pub(in crate::decision) itl_count: Known,
}

impl Rates {
    /// Rates from one sample to the next; `None` if the engine started anew in between.
    pub(super) fn between(
        before: &EngineSample,
        after: &EngineSample,
        elapsed_ms: u64,
    ) -> Option<Rates> {
        if restarted(before, after) {
            return None;
        }
        let per_second = 1.0 / seconds(elapsed_ms);
        let rate = |counter: fn(&EngineSample) -> Option<f64>| {
            Some((counter(after)? - counter(before)?) * per_second)
        };
        let finished = rate(|sample| sample.finished);
        let running = rate(|sample| sample.running);
        let queued = rate(|sample| sample.waiting);
        let waiting = queued.unwrap_or(0.0);
        let rejected = rate(|sample| sample.rejected).unwrap_or(0.0);
        let admitted = finished.zip(running).map(|(done, grown)| done + grown);
        Some(Rates {
            prompt: rate(|sample| sample.prompt_tokens).into(),
            generated: rate(|sample| sample.generated_tokens).into(),
            finished: finished.into(),
            finished_generated: rate(|sample| sample.finished_generated_tokens).into(),
            arrived: admitted.map(|begun| begun + waiting + rejected).into(),
            queued: queued.into(),
            admitted: admitted.into(),
            steps: rate(|sample| sample.steps).into(),
            preemptions: rate(|sample| sample.preemptions).into(),
            ttft_sum: rate(|sample| sample.ttft_sum_s).into(),
            ttft_count: rate(|sample| sample.ttft_count).into(),
            itl_sum: rate(|sample| sample.itl_sum_s).into(),
            itl_count: rate(|sample| sample.itl_count).into(),
        })
    }

    /// Whether any counter of work moved; `None` if there is none.
    pub(in crate::decision) fn moved(&self) -> Option<bool> {
        let counters = [self.steps, self.generated, self.prompt, self.finished];
        let mut known = counters.into_iter().filter_map(Known::get).peekable();
        known.peek()?;
        Some(known.any(|rate| rate > 0.0))
    }

    /// Whether the engine does nothing, told by what moves with each step: ended requests and their
    /// lengths stand still too while a long one runs.
    pub(super) fn stand_still(&self) -> bool {
        let moves_with_steps = self.steps.get().or_else(|| self.generated.get()).is_some();
        moves_with_steps && self.moved() == Some(false)
    }

    pub(super) fn add(&mut self, other: &Rates) {
        self.prompt.add(other.prompt);
        self.generated.add(other.generated);
        self.finished.add(other.finished);
        self.finished_generated.add(other.finished_generated);
        self.arrived.add(other.arrived);
        self.queued.add(other.queued);
        self.admitted.add(other.admitted);
        self.steps.add(other.steps);
        self.preemptions.add(other.preemptions);
        self.ttft_sum.add(other.ttft_sum);
        self.ttft_count.add(other.ttft_count);
        self.itl_sum.add(other.itl_sum);
        self.itl_count.add(other.itl_count);
    }

    /// Tokens per second that came too slowly; see [`super::Seen::slow`].
    pub(super) fn slow(&self, slo: Slo) -> f64 {
        let target_s = slo.tpot_s;
        let sum = self.itl_sum.get().unwrap_or(0.0);
        if sum > target_s * self.itl_count.get().unwrap_or(0.0) { sum / target_s } else { 0.0 }
    }

    /// Whether the mean times to the first token and between tokens are within the targets, as far
    /// as they are known.
    pub(super) fn keep(&self, slo: Slo) -> bool {
        let kept = |sum: Known, count: Known, target_s: f64| {
            sum.get().zip(count.get()).is_none_or(|(sum, count)| sum <= target_s * count)
        };
        kept(self.ttft_sum, self.ttft_count, slo.ttft_s)
            && kept(self.itl_sum, self.itl_count, slo.tpot_s)
    }
}

/// A counter that went back, or another start time: nothing before it can be compared.
fn restarted(before: &EngineSample, after: &EngineSample) -> bool {
    const COUNTERS: [fn(&EngineSample) -> Option<f64>; 11] = [
        |sample| sample.prompt_tokens,
        |sample| sample.generated_tokens,
        |sample| sample.finished,
        |sample| sample.finished_generated_tokens,
        |sample| sample.rejected,
        |sample| sample.preemptions,
        |sample| sample.steps,
        |sample| sample.ttft_sum_s,
        |sample| sample.ttft_count,
        |sample| sample.itl_sum_s,
        |sample| sample.itl_count,
    ];
    let started_anew = match (before.started_at, after.started_at) {
        (Some(before), Some(after)) => before != after,
        (None, _) | (_, None) => false,
    };
    started_anew
        || COUNTERS.iter().any(|counter| {
            let pair = counter(after).zip(counter(before));
            pair.is_some_and(|(after, before)| after < before)
        })
}
