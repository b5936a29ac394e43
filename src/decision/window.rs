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

/// The slots of the last minute, oldest first, each of up to five seconds: thirteen at ticks of five
/// seconds, twice as many at most where two shorter ticks just do not fit into one. Each begins where
/// the one before it ends.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<Saved>", into = "Vec<Saved>")]
pub(super) struct Window {
    slots: VecDeque<Slot>,
    /// When the newest ends.
    end: Moment,
}

/// Thirteen are kept for each of thousands of workloads: none larger than it must be.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Slot {
    span_ms: u32,
    sums: [f32; FLOWS],
}

impl Slot {
    fn span_ms(&self) -> u64 {
        self.span_ms.into()
    }
}

/// A slot as it is saved.
#[derive(Serialize, Deserialize)]
struct Saved {
    end: Moment,
    span_ms: u32,
    sums: [f32; FLOWS],
}

impl From<Vec<Saved>> for Window {
    fn from(saved: Vec<Saved>) -> Window {
        let end = saved.last().map_or_else(Moment::default, |newest| newest.end);
        let slot = |Saved { span_ms, sums, .. }| Slot { span_ms, sums };
        Window { slots: saved.into_iter().map(slot).collect(), end }
    }
}

impl From<Window> for Vec<Saved> {
    fn from(Window { slots, mut end }: Window) -> Vec<Saved> {
        let mut saved: Vec<_> = slots
            .into_iter()
            .rev()
            .map(|Slot { span_ms, sums }| {
                let slot = Saved { end, span_ms, sums };
                end = end.minus_millis(u64::from(span_ms));
                slot
            })
            .collect();
        saved.reverse();
        saved
    }
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
        let step_ms = step_ms.min(WINDOW_MS);
        let flows = [
            seen.rates.prompt.get(),
            seen.rates.generated.get(),
            seen.rates.finished.get(),
            seen.rates.arrived.get(),
            seen.rates.queued.get(),
            seen.in_flight(),
            seen.running,
            seen.kv_used,
            seen.rates.ttft_sum.get(),
            seen.rates.ttft_count.get(),
            seen.rates.itl_sum.get(),
            seen.rates.itl_count.get(),
        ]
        .map(|flow| compact(flow.unwrap_or(0.0) * seconds(step_ms)));
        // At most a minute's.
        let span_ms = u32::try_from(step_ms).unwrap_or(u32::MAX);
        match self.slots.back_mut() {
            Some(slot) if slot.span_ms() + step_ms <= SLOT_MS => {
                slot.span_ms += span_ms;
                for (sum, flow) in slot.sums.iter_mut().zip(flows) {
                    *sum += flow;
                }
            }
            Some(_) | None => {
                self.forget(now);
                self.slots.reserve_exact(1);
                self.slots.push_back(Slot { span_ms, sums: flows });
            }
        }
        self.end = now;
        self.forget(now);
    }

    fn forget(&mut self, now: Moment) {
        let mut later_ms: u64 = self.slots.iter().map(Slot::span_ms).sum();
        while let Some(oldest) = self.slots.front() {
            later_ms -= oldest.span_ms();
            if now.millis_since(self.end.minus_millis(later_ms)) < WINDOW_MS {
                break;
            }
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
            covered_ms += slot.span_ms();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks of these lengths one after the other, and when each ended.
    fn window(steps_ms: impl IntoIterator<Item = u64>) -> (Window, Vec<Moment>) {
        let (mut window, mut ends, mut now) = (Window::default(), Vec::new(), Moment(1_000_000));
        let seen = Seen { running: Some(3.0), ..Seen::default() };
        for step_ms in steps_ms {
            now = now.plus_millis(step_ms);
            window.push(&seen, step_ms, now);
            ends.push(now);
        }
        (window, ends)
    }

    fn saved(window: &Window) -> Vec<(Moment, u64)> {
        let saved: Vec<serde_json::Value> =
            serde_json::from_str(&serde_json::to_string(window).unwrap()).unwrap();
        let moment = |slot: &serde_json::Value| Moment(slot["end"].as_i64().unwrap());
        saved.iter().map(|slot| (moment(slot), slot["span_ms"].as_u64().unwrap())).collect()
    }

    #[test]
    fn each_slot_is_saved_with_its_own_end_and_restored_exactly() {
        let (window, ends) = window([5_000, 4_950, 5_050, 20_000, 1_000, 1_000, 3_500]);
        let spans = [5_000, 4_950, 5_050, 20_000, 2_000, 3_500];
        let ends = [0, 1, 2, 3, 5, 6].map(|index| ends[index]);
        assert_eq!(saved(&window), ends.into_iter().zip(spans).collect::<Vec<_>>());
        let text = serde_json::to_string(&window).unwrap();
        assert_eq!(serde_json::from_str::<Window>(&text).unwrap(), window);
        assert_eq!(serde_json::from_str::<Window>("[]").unwrap(), Window::default());
    }

    #[test]
    fn what_ended_a_minute_ago_is_forgotten() {
        let (slots, ends) = window(std::iter::repeat_n(5_000, 30));
        assert_eq!(saved(&slots)[0], (ends[18], 5_000), "twelve are left");
        let (slots, ends) = window(std::iter::repeat_n(4_999, 30));
        assert_eq!(saved(&slots)[0], (ends[17], 4_999), "thirteen are left");
        let (slots, ends) = window([5_000, 5_000, 60_001, 5_000]);
        assert_eq!(saved(&slots), [(ends[2], 60_000), (ends[3], 5_000)]);
    }

    #[test]
    fn ticks_that_share_a_slot_count_like_those_that_do_not() {
        for step_ms in [1_000, 5_000] {
            let (window, _) = window(std::iter::repeat_n(step_ms, 60));
            let means = window.means(WINDOW_MS).unwrap();
            assert!((means.running - 3.0).abs() < 1e-6, "{means:?}");
        }
    }

    #[test]
    fn a_whole_minute_fits_the_allocators_class_of_768_bytes() {
        assert!(13 * size_of::<Slot>() <= 768, "{}", size_of::<Slot>());
    }
}
