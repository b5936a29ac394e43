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
    /// First tokens that came too late; see [`Rates::late`].
    #[serde(skip_serializing_if = "Known::is_not")]
    pub(in crate::decision) late: Known,
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
            late: Known::NOT,
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
        self.late.add(other.late);
        self.itl_sum.add(other.itl_sum);
        self.itl_count.add(other.itl_count);
    }

    /// Tokens per second that came too slowly; see [`super::Seen::slow`].
    pub(super) fn slow(&self, slo: Slo) -> f64 {
        let target_s = slo.tpot_s;
        let sum = self.itl_sum.get().unwrap_or(0.0);
        if sum > target_s * self.itl_count.get().unwrap_or(0.0) { sum / target_s } else { 0.0 }
    }

    /// First tokens per second that came too late, of those of `elapsed_s`: after the target, and after
    /// twice what their prompts take alone. `None` before those have a price.
    ///
    /// A replica ends few long prompts between two samples, and who comes to an empty one waits for
    /// nobody: one is late where of what they waited in all more falls on it than nobody is late by,
    /// taken halfway between all of it and its share, and all are late where they are in the mean.
    ///
    /// `all_prompts` are their prompt tokens a second with those that a prefix cache held: an empty
    /// replica's cache holds none of them.
    pub(super) fn late(
        &self,
        elapsed_s: f64,
        all_prompts: Option<f64>,
        slo: Slo,
        costs: Option<[f64; 4]>,
    ) -> Option<f64> {
        let [step_s, prompt_s, ..] = costs?;
        let (sum_s, count) = (self.ttft_sum.get()? * elapsed_s, self.ttft_count.get()? * elapsed_s);
        let prompts = self.prompt.get()?;
        let own_s = prompt_s * prompts * elapsed_s + step_s * count;
        let held_s = prompt_s * (all_prompts.unwrap_or(prompts) - prompts).max(0.0) * elapsed_s;
        let (waited_s, own_each_s) = (sum_s - own_s, own_s / count.max(1.0));
        let alone_each_s = own_each_s + held_s / count.max(1.0);
        let slack_s = slo.ttft_s.max(2.0 * alone_each_s) - own_each_s;
        let late = if waited_s > slack_s * count {
            count
        } else if waited_s > slack_s * f64::midpoint(1.0, count) {
            1.0
        } else {
            0.0
        };
        Some(late.min(count) / elapsed_s)
    }

    /// Whether the mean times to the first token and between tokens are within the targets, as far
    /// as they are known. Prompts that take an empty replica longer than half of the target have twice
    /// what they take.
    pub(super) fn keep(&self, slo: Slo, costs: Option<[f64; 4]>) -> bool {
        let kept = |sum: Known, count: Known, target_s: f64| {
            sum.get().zip(count.get()).is_none_or(|(sum, count)| sum <= target_s * count)
        };
        let first_tokens = self.ttft_count.get().filter(|count| *count > 0.0);
        let own_s = costs
            .zip(self.prompt.get())
            .zip(first_tokens)
            .map_or(0.0, |(([step_s, prompt_s, ..], prompt), count)| {
                step_s + prompt_s * prompt / count
            });
        kept(self.ttft_sum, self.ttft_count, slo.ttft_s.max(2.0 * own_s))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Late ones of five seconds with so many prompts of 10,000 tokens, of a second each, that waited
    /// so long in all.
    fn late(prompts: f64, waited_s: f64) -> f64 {
        late_of(prompts, waited_s, None)
    }

    /// The same where a cache held a part of so many prompt tokens.
    fn late_of(prompts: f64, waited_s: f64, all_tokens: Option<f64>) -> f64 {
        let rates = Rates {
            prompt: Some(2_000.0 * prompts).into(),
            ttft_count: Some(0.2 * prompts).into(),
            ttft_sum: Some(0.2 * (1.01 * prompts + waited_s)).into(),
            ..Rates::default()
        };
        let slo = Slo { ttft_s: 2.0, tpot_s: 0.2 };
        let all_prompts = all_tokens.map(|tokens| tokens / 5.0);
        5.0 * rates.late(5.0, all_prompts, slo, Some([0.010, 0.000_1, 0.001, 0.0])).unwrap()
    }

    #[test]
    fn a_long_prompt_is_late_after_twice_its_own_time() {
        assert!(late(1.0, 1.0) < 1e-9);
        assert!((late(1.0, 1.1) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_a_cache_held_lengthens_what_a_prompt_may_take() {
        // A second of work of a prompt of 3 s: it may take 6.02 s, and so wait for 5.01 s.
        assert!(late_of(1.0, 4.9, Some(30_000.0)) < 1e-9);
        assert!((late_of(1.0, 5.1, Some(30_000.0)) - 1.0).abs() < 1e-9);
        // Counters that are not of one moment may say less than what was worked on.
        assert!((late_of(1.0, 1.1, Some(0.0)) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn of_a_few_one_waited_for_the_others_and_all_do_in_a_backlog() {
        assert!(late(3.0, 1.9) < 1e-9);
        assert!((late(3.0, 2.1) - 1.0).abs() < 1e-9);
        assert!((late(3.0, 3.1) - 3.0).abs() < 1e-9);
        assert!(late(0.0, 0.0) < 1e-9);
    }

    #[test]
    fn long_prompts_keep_the_target_in_twice_what_they_take_alone() {
        // Three in five seconds, of 15,000 tokens: 1.51 s each on an empty replica.
        let of = |first_tokens: f64, ttft_s: f64, costs| {
            let rates = Rates {
                prompt: Some(9_000.0).into(),
                ttft_count: Some(first_tokens).into(),
                ttft_sum: Some(first_tokens * ttft_s).into(),
                ..Rates::default()
            };
            rates.keep(Slo { ttft_s: 2.0, tpot_s: 0.2 }, costs)
        };
        let costs = Some([0.010, 0.000_1, 0.001, 0.0]);
        assert!(of(0.6, 3.0, costs) && !of(0.6, 3.1, costs));
        assert!(of(0.6, 1.9, None) && !of(0.6, 2.1, None));
        assert!(of(0.0, 0.0, costs), "nobody who is served is late");
    }

    #[test]
    fn without_a_price_nobody_is_known_to_be_late() {
        let rates =
            Rates { ttft_sum: Some(9.0).into(), ttft_count: Some(1.0).into(), ..Rates::default() };
        assert_eq!(rates.late(5.0, None, Slo { ttft_s: 2.0, tpot_s: 0.2 }, None), None);
    }
}
