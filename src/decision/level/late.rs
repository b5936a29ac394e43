//! Rule 5, the slower half: what is late on steady replicas, though the plan says it should not be.
//!
//! The plan knows means. An answer of thirty tokens lasts seconds, in which a few prompts of others
//! may take every step; a prompt of ten thousand tokens waits behind another. How often that makes
//! a request late depends on the engine's batches, which no counter shows, so it is seen and not
//! predicted. Must not learn from backlogs or starts, nor give anybody more than the plan does.

use serde::{Deserialize, Serialize};

use super::{Ask, Level, pool};
use crate::decision::number::{compact, seconds};

/// Late share that is accepted on steady replicas: of the 1 % that is promised, bursts and starts
/// need the rest.
const ACCEPTED: f64 = 0.003;
/// Below this part of it capacity is given back.
const CALM: f64 = 0.25;
/// Capacity that is planned with at least (DESIGN: ±15 %; upwards lies the cliff).
const KEPT_MIN: f64 = 0.85;
/// Of its slack, what a mean prompt takes from which prompts are long: five of them in a row are late.
/// There it is the margin that grows, by up to so many of what the plan has for waits: of prompts of
/// 12,000 tokens 1 % is late at 0.3 of the capacity on 8 replicas, and at 0.6 on 20. Where attention
/// makes prompts cost with their square, five of them are needed.
const LONG: f64 = 0.2;
const MARGIN_MOST: f64 = 6.0;
/// What is accepted there in half an hour and, of the 1 % that is promised of all, in a day: an hour of
/// few requests and long prompts may be later than one of many.
const ACCEPTED_LONG: f64 = 0.004;
const ACCEPTED_DAY: f64 = 0.007;
const DAY_S: f64 = 86_400.0;
/// The margin moves so many times as fast as the capacity does, for it has further to go.
const MARGIN_PACE: f64 = 4.0;
/// What is taken in an hour for each further share that is accepted and late, three of them at most, and
/// given back in an hour that is calm: so little that a night does not forget the day.
const TAKEN_PER_S: f64 = 0.15 / 3_600.0;
const GIVEN_PER_S: f64 = 0.01 / 3_600.0;
/// What is given back of the margin in an hour in which fewer are late than accepted, while fewer have
/// been in a day.
const GIVEN_LONG_PER_S: f64 = 0.1 / 3_600.0;
const MOST_EXCESS: f64 = 3.0;
/// What is seen counts like the mean of half an hour.
const MEMORY_S: f64 = 1_800.0;
/// Share of the planned utilisation below which being on time says nothing.
const MIN_USED: f64 = 0.5;
/// Longest mean answer, at its target pace, of which samples of five seconds speak.
const SHORT_ANSWER_S: f64 = 15.0;
/// First tokens of a tick that count, in those of a usual one.
const MOST_AT_ONCE: f64 = 10.0;
/// Shortest sample whose pace is one.
const SAMPLE_S: f64 = 4.0;

/// How much of the capacity is planned with, and how much more of a pool is kept free.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Late {
    kept: f64,
    share: f32,
    margin: f32,
    /// Long prompts of a day, fading, and those of them that were late.
    long: f32,
    long_late: f32,
}

impl Default for Late {
    fn default() -> Self {
        Late { kept: 1.0, share: 0.0, margin: 0.0, long: 0.0, long_late: 0.0 }
    }
}

impl Late {
    /// Factor on the capacity.
    pub(super) fn kept(&self) -> f64 {
        self.kept
    }

    /// What long prompts need of a pool beyond the planned margin, as a share of that.
    pub(super) fn margin(&self) -> f64 {
        self.margin.into()
    }

    /// Learns from one tick of steady replicas without a backlog.
    pub(super) fn note(&mut self, ask: &Ask<'_>, level: &Level, answer: Option<f64>, step_s: f64) {
        let Some((price, work)) = level.price.as_ref().zip(level.work) else { return };
        let n = f64::from(ask.seen.live.max(1));
        let busy = work / n;
        let Some(minute) = ask.minute.filter(|minute| minute.waiting() < n) else { return };
        if busy < MIN_USED * level.rho.unwrap_or(price.cap) {
            return;
        }
        let own_s = price.prompt_each_s + price.step_s / (1.0 - busy.min(0.95));
        let is_long = own_s > LONG * pool::slack_s(ask, own_s);
        let is_short =
            answer.is_some_and(|tokens| tokens * seconds(ask.spec.slo_tpot_ms) <= SHORT_ANSWER_S);
        let tokens = ask.seen.rates.itl_count.get().filter(|_| is_short && step_s >= SAMPLE_S);
        let slow = tokens.map(|tokens| (ask.seen.slow / tokens.max(1.0)).min(1.0));
        let first_tokens = ask.seen.rates.ttft_count.get().filter(|count| *count > 0.0);
        let (waits, weight_s) = if is_long {
            // Few of them, so that each is seen, and counts as one.
            let counted = ask.seen.rates.late.get().zip(first_tokens);
            if let Some((late, all)) = counted {
                let keep = DAY_S / (DAY_S + step_s);
                let faded = |sum: f32, rate: f64| compact(f64::from(sum) * keep + rate * step_s);
                self.long = faded(self.long, all);
                self.long_late = faded(self.long_late, late);
            }
            let waits = counted.map(|(late, all)| late / all);
            let usual = minute.finished.max(f64::MIN_POSITIVE);
            (waits, step_s * (first_tokens.unwrap_or(0.0) / usual).min(MOST_AT_ONCE))
        } else {
            let share = |ttft_s| pool::late_share(ask, own_s, ttft_s, busy);
            (minute.ttft_s.map(share), step_s)
        };
        // What is not seen is not on time.
        if slow.is_none() && (is_short || waits.is_none()) {
            return;
        }
        let late = slow.unwrap_or(0.0) + waits.unwrap_or(0.0);
        let share = f64::from(self.share);
        self.share = compact(share + weight_s / (weight_s + MEMORY_S) * (late - share));
        if is_long {
            let margin = self.margin() + MARGIN_PACE * step_s * self.grown_per_s();
            self.margin = compact(margin.clamp(0.0, MARGIN_MOST));
        } else {
            self.kept = (self.kept - step_s * self.taken_per_s()).clamp(KEPT_MIN, 1.0);
        }
    }

    /// Capacity that is taken in a second; negative where some is given back.
    fn taken_per_s(&self) -> f64 {
        let share = f64::from(self.share);
        let excess = share / ACCEPTED - 1.0;
        if excess > 0.0 {
            TAKEN_PER_S * excess.min(MOST_EXCESS)
        } else if share < CALM * ACCEPTED {
            -GIVEN_PER_S
        } else {
            0.0
        }
    }

    /// What the margin of long prompts grows by in a second, before its pace. The half hour says where
    /// to, and the day whether.
    fn grown_per_s(&self) -> f64 {
        let share = f64::from(self.share);
        let excess = share / ACCEPTED_LONG - 1.0;
        let day_is_late = f64::from(self.long_late) > ACCEPTED_DAY * f64::from(self.long);
        match (excess > 0.0, day_is_late) {
            (true, true) => TAKEN_PER_S * excess.min(MOST_EXCESS),
            (false, false) => -GIVEN_LONG_PER_S,
            (false, true) if share < CALM * ACCEPTED_LONG => -GIVEN_PER_S,
            (true, false) | (false, true) => 0.0,
        }
    }
}
