//! The memory of one endpoint: what it said last, and how old that is.
//!
//! Must not let silence become a number: a failed read and a timestamp that stands still make the
//! last sample stale, with the reason. Whether an engine that answers is alive is the decision's to
//! judge, from its counters.

use crate::decision::{EngineSample, KeptSample, Moment, Reading, Why};

/// Longest sample interval that is learned: beyond it Prometheus itself drops a series.
const MAX_INTERVAL_MS: u32 = 300_000;

/// Samples in succession that are older than the last and move on among themselves, from which their
/// source counts from another time: a clock was set back, or one sample had an impossible time. Of two
/// copies of a Prometheus the one that is behind does not answer so often without the other.
const NEW_TIME: u8 = 3;

/// The memory of one endpoint. Kept for each of thousands: a sample and 56 bytes.
#[derive(Debug, Clone)]
pub struct Freshness {
    last: Option<Last>,
    /// Why there is nothing newer than `last`.
    why: Why,
    /// The last intervals between moved timestamps, in milliseconds; 0 where there was none yet.
    intervals_ms: [u32; 4],
    /// Samples since the last that were older than it, each newer than the one before, and the time of
    /// the newest of them.
    n_older: u8,
    older_at: Moment,
}

#[derive(Debug, Clone)]
struct Last {
    sample: KeptSample,
    /// The sample's timestamp as its source told it.
    told_at: Moment,
    /// When, by our own clock, the sample's timestamp was last seen to move.
    moved_at: Moment,
}

impl Default for Freshness {
    fn default() -> Self {
        let (n_older, older_at) = (0, Moment(0));
        Freshness { last: None, why: Why::NotYetRead, intervals_ms: [0; 4], n_older, older_at }
    }
}

impl Freshness {
    /// Takes a sample that was read at `now`. One whose timestamp has not moved is the same sample.
    pub fn record(&mut self, sample: EngineSample, now: Moment) {
        self.record_ahead(sample, 0, now);
    }

    /// As [`Freshness::record`], of a source whose clock is `ahead_ms` milliseconds ahead. What is the
    /// same sample, and what an older one, its own time tells; how old it is was settled when it was
    /// first seen, whatever becomes of the clock.
    pub fn record_ahead(&mut self, mut sample: EngineSample, ahead_ms: i64, now: Moment) {
        let told_at = sample.at;
        sample.at = Moment(told_at.0.saturating_sub(ahead_ms));
        let sample = KeptSample::from(sample);
        let Some(last) = &mut self.last else {
            self.last = Some(Last { sample, told_at, moved_at: now });
            self.why = Why::NotMoving;
            return;
        };
        self.why = Why::NotMoving;
        if told_at < last.told_at {
            if self.n_older == 0 || told_at > self.older_at {
                self.n_older += 1;
            } else if told_at < self.older_at {
                self.n_older = 1;
            }
            self.older_at = told_at;
            if self.n_older == NEW_TIME {
                self.n_older = 0;
                *last = Last { sample, told_at, moved_at: now };
            }
            return;
        }
        self.n_older = 0;
        if told_at == last.told_at {
            return;
        }
        let interval = sample.at().millis_since(last.sample.at());
        let interval =
            u32::try_from(interval).map_or(MAX_INTERVAL_MS, |ms| ms.min(MAX_INTERVAL_MS));
        self.intervals_ms.rotate_right(1);
        self.intervals_ms[0] = interval;
        *last = Last { sample, told_at, moved_at: now };
    }

    /// Notes that a read failed. What was read before stays, and ages.
    pub fn fail(&mut self, why: Why) {
        self.why = why;
    }

    /// The reading at `now`, where a new sample is asked for every `tick_ms`.
    #[must_use]
    pub fn reading(&self, now: Moment, tick_ms: u64) -> Reading<KeptSample> {
        let Some(last) = &self.last else {
            return Reading::Missing { why: self.why };
        };
        // A source whose clock is ahead must not look fresh for as long as it is ahead.
        let at = last.sample.at();
        let age_ms = now.millis_since(at).max(now.millis_since(last.moved_at));
        let limit_ms = self.limit_ms(tick_ms);
        let is_future = at.millis_since(now) >= limit_ms;
        if age_ms < limit_ms && !is_future {
            return Reading::Fresh { value: last.sample.clone(), age_ms };
        }
        // It moves, and counts from another time.
        let why = if is_future && self.why == Why::NotMoving { Why::Impossible } else { self.why };
        Reading::Stale { value: last.sample.clone(), age_ms, why }
    }

    /// Whether the last sample said that the engine sleeps.
    #[must_use]
    pub fn sleeps(&self) -> bool {
        self.last.as_ref().is_some_and(|last| last.sample.is_asleep())
    }

    /// Age from which a sample is stale, and time in the future from which none can be: the larger of
    /// three ticks and two of the source's own intervals. Of the last four intervals the shortest counts,
    /// so that a gap teaches nothing.
    fn limit_ms(&self, tick_ms: u64) -> u64 {
        let shortest = self.intervals_ms.iter().filter(|&&ms| ms > 0).min();
        let interval_ms = u64::from(shortest.copied().unwrap_or(0));
        (3 * tick_ms).max(2 * interval_ms)
    }
}

#[cfg(test)]
mod tests;
