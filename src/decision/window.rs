//! A sliding minute of rates, so that the level follows demand and not its noise.
//!
//! Must not price anything: it keeps tokens and requests, whose price may be learned later.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Moment;
use super::members::Seen;
use super::number::{compact, seconds};

/// Span of the level's mean: long enough to halve the noise of 5-s samples three times, short
/// against a cold start (costmodel.md 3: the best of 30, 60 and 120 s).
pub(super) const WINDOW_MS: u64 = 60_000;
/// Span of the mean that leads while something waits.
pub(super) const RECENT_MS: u64 = 15_000;
const SLOT_MS: u64 = 5_000;
const FLOWS: usize = 12;

/// The slots of the last minute, oldest first: at most thirteen of five seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Window {
    slots: VecDeque<Slot>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Slot {
    end: Moment,
    span_ms: u64,
    sums: [f32; FLOWS],
}

/// Prompt tokens, generated tokens and finished requests per second.
pub(super) type Flow = [f64; 3];

/// Means over a span.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Means {
    /// Seconds of the span.
    pub(super) span_s: f64,
    /// Prompt tokens per second.
    pub(super) prompt: f64,
    /// Generated tokens per second.
    pub(super) generated: f64,
    /// Requests finished per second.
    pub(super) finished: f64,
    /// Requests arrived per second.
    pub(super) arrived: f64,
    /// Requests per second by which a queue grew; negative while it was worked off.
    pub(super) queued: f64,
    /// Requests in flight.
    pub(super) in_flight: f64,
    /// Requests running.
    pub(super) running: f64,
    /// Sum of KV use over replicas.
    pub(super) kv_used: f64,
    /// Mean time to the first token, where known.
    pub(super) ttft_s: Option<f64>,
    /// Mean time between tokens, where known.
    pub(super) itl_s: Option<f64>,
}

impl Means {
    /// What was served.
    pub(super) fn served(&self) -> Flow {
        [self.prompt, self.generated, self.finished]
    }

    /// Requests that waited, in the mean.
    pub(super) fn waiting(&self) -> f64 {
        (self.in_flight - self.running).max(0.0)
    }
}

impl Window {
    /// Adds what was seen over the last step.
    pub(super) fn push(&mut self, seen: &Seen, step_ms: u64, now: Moment) {
        if step_ms == 0 {
            return;
        }
        if step_ms > WINDOW_MS {
            self.slots.clear();
        }
        let step_ms = step_ms.min(WINDOW_MS);
        let flows = [
            seen.rates.prompt,
            seen.rates.generated,
            seen.rates.finished,
            seen.rates.arrived,
            seen.rates.queued,
            seen.in_flight(),
            seen.running,
            seen.kv_used,
            seen.rates.ttft_sum,
            seen.rates.ttft_count,
            seen.rates.itl_sum,
            seen.rates.itl_count,
        ]
        .map(|flow| compact(flow.unwrap_or(0.0) * seconds(step_ms)));
        match self.slots.back_mut() {
            Some(slot) if slot.span_ms + step_ms <= SLOT_MS => {
                slot.end = now;
                slot.span_ms += step_ms;
                for (sum, flow) in slot.sums.iter_mut().zip(flows) {
                    *sum += flow;
                }
            }
            Some(_) | None => {
                self.forget(now);
                // Thousands of windows are kept: none larger than it must be.
                self.slots.reserve_exact(1);
                self.slots.push_back(Slot { end: now, span_ms: step_ms, sums: flows });
            }
        }
        self.forget(now);
    }

    fn forget(&mut self, now: Moment) {
        while self.slots.front().is_some_and(|slot| now.millis_since(slot.end) >= WINDOW_MS) {
            self.slots.pop_front();
        }
    }

    /// Means over the last `span_ms`, if it has been seen whole but for a slot.
    pub(super) fn means(&self, span_ms: u64) -> Option<Means> {
        let mut covered_ms = 0;
        let mut sums = [0.0; FLOWS];
        for slot in self.slots.iter().rev() {
            if covered_ms >= span_ms {
                break;
            }
            covered_ms += slot.span_ms;
            for (sum, part) in sums.iter_mut().zip(slot.sums) {
                *sum += f64::from(part);
            }
        }
        if covered_ms + SLOT_MS < span_ms {
            return None;
        }
        let span_s = seconds(covered_ms);
        let [
            prompt,
            generated,
            finished,
            arrived,
            queued,
            in_flight,
            running,
            kv_used,
            latencies @ ..,
        ] = sums.map(|sum| sum / span_s);
        let [ttft_sum, ttft_count, itl_sum, itl_count] = latencies;
        let mean = |sum: f64, count: f64| (count > 0.0).then(|| sum / count);
        Some(Means {
            span_s,
            prompt,
            generated,
            finished,
            arrived: arrived.max(0.0),
            queued,
            in_flight,
            running,
            kv_used,
            ttft_s: mean(ttft_sum, ttft_count),
            itl_s: mean(itl_sum, itl_count),
        })
    }
}
