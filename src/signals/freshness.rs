//! The memory of one endpoint: what it said last, how old that is, and whether it is alive.
//!
//! Must not let silence become a number: a failed read, a timestamp that stands still and a hung
//! engine make the last sample stale, with the reason.

use crate::decision::{EngineSample, Moment, Reading, Why};

/// Longest sample interval that is learned: beyond it Prometheus itself drops a series.
const MAX_INTERVAL_MS: u32 = 300_000;

/// An engine that says busy while none of its work counters moves is hung, or its gauges are stuck,
/// after this long and this many samples. The first request after a start may take a minute
/// without finishing a step (vLLM 17280), longer than any later step.
const FROZEN_MS: u64 = 90_000;
const FROZEN_SAMPLES: u8 = 3;

/// The memory of one endpoint. Kept for each of thousands: a sample and 48 bytes.
#[derive(Debug, Clone)]
pub struct Freshness {
    last: Option<Last>,
    /// Why there is nothing newer than `last`.
    why: Why,
    /// The last intervals between moved timestamps, in milliseconds; 0 where there was none yet.
    intervals_ms: [u32; 4],
}

#[derive(Debug, Clone)]
struct Last {
    sample: EngineSample,
    /// When, by our own clock, the sample's timestamp was last seen to move.
    moved_at: Moment,
    /// Time of the sample with which a work counter last moved, or the engine was last not busy.
    alive_at: Moment,
    /// Samples since then.
    n_flat: u8,
}

impl Default for Freshness {
    fn default() -> Self {
        Freshness { last: None, why: Why::NotYetRead, intervals_ms: [0; 4] }
    }
}

impl Freshness {
    /// Takes a sample that was read at `now`. One whose timestamp has not moved is the same sample.
    pub fn record(&mut self, sample: EngineSample, now: Moment) {
        let Some(last) = &mut self.last else {
            self.last = Some(Last { alive_at: sample.at, sample, moved_at: now, n_flat: 0 });
            self.why = Why::NotMoving;
            return;
        };
        self.why = Why::NotMoving;
        if sample.at <= last.sample.at {
            return;
        }
        let interval = sample.at.millis_since(last.sample.at);
        let interval =
            u32::try_from(interval).map_or(MAX_INTERVAL_MS, |ms| ms.min(MAX_INTERVAL_MS));
        self.intervals_ms.rotate_right(1);
        self.intervals_ms[0] = interval;
        if is_busy(&sample) && !has_worked(&last.sample, &sample) {
            last.n_flat = last.n_flat.saturating_add(1);
        } else {
            last.n_flat = 0;
            last.alive_at = sample.at;
        }
        last.sample = sample;
        last.moved_at = now;
    }

    /// Notes that a read failed. What was read before stays, and ages.
    pub fn fail(&mut self, why: Why) {
        self.why = why;
    }

    /// The reading at `now`, where a new sample is asked for every `tick_ms`.
    #[must_use]
    pub fn reading(&self, now: Moment, tick_ms: u64) -> Reading<EngineSample> {
        let Some(last) = &self.last else {
            return Reading::Missing { why: self.why };
        };
        // A source whose clock is ahead must not look fresh for as long as it is ahead.
        let age_ms = now.millis_since(last.sample.at).max(now.millis_since(last.moved_at));
        if age_ms >= self.limit_ms(tick_ms) {
            return Reading::Stale { value: last.sample, age_ms, why: self.why };
        }
        let flat_ms = last.sample.at.millis_since(last.alive_at);
        if last.n_flat >= FROZEN_SAMPLES && flat_ms >= FROZEN_MS {
            return Reading::Stale { value: last.sample, age_ms: flat_ms, why: Why::Frozen };
        }
        Reading::Fresh { value: last.sample, age_ms }
    }

    /// Age from which a sample is stale: the larger of three ticks and two of the source's own
    /// intervals. Of the last four intervals the shortest counts, so that a gap teaches nothing.
    fn limit_ms(&self, tick_ms: u64) -> u64 {
        let shortest = self.intervals_ms.iter().filter(|&&ms| ms > 0).min();
        let interval_ms = u64::from(shortest.copied().unwrap_or(0));
        (3 * tick_ms).max(2 * interval_ms)
    }
}

fn is_busy(sample: &EngineSample) -> bool {
    let busy = [sample.running, sample.waiting].iter().flatten().any(|&requests| requests > 0.0);
    busy && sample.asleep != Some(true)
}

/// Whether a work counter has moved, in either direction (a restart moves it down). An engine
/// without such counters cannot be told from a working one. Old SGLang counts tokens only when a
/// request ends, but the gaps between tokens as they come.
fn has_worked(before: &EngineSample, after: &EngineSample) -> bool {
    let counters = |sample: &EngineSample| {
        [sample.steps, sample.generated_tokens, sample.prompt_tokens, sample.itl_count]
    };
    let after = counters(after);
    after.iter().all(Option::is_none) || counters(before) != after
}

#[cfg(test)]
mod tests;
