//! The story that every lane is told: when requests come, and how long they are.
//!
//! Pure: everything follows from the seed.

use loadgen::engine::Time;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use serde::Serialize;

/// A stretch of the story: the rate goes straight from one value to the other.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) seconds: u32,
    pub(super) from_per_s: f64,
    pub(super) to_per_s: f64,
}

pub(super) const fn part(name: &'static str, seconds: u32, from_per_s: f64, to_per_s: f64) -> Part {
    Part { name, seconds, from_per_s, to_per_s }
}

/// What a dip is called.
const DIP: &str = "dip";

/// A working day in 2 h 37 min, before the seed's own level: from nothing to a peak of some four
/// replicas and back to nothing for longer than the scaler's `zeroAfter`.
const PARTS: [Part; 16] = [
    part("asleep", 300, 0.0, 0.0),
    part("first users", 300, 1.5, 1.5),
    part("morning", 1_200, 1.5, 18.0),
    part("peak", 300, 18.0, 18.0),
    part(DIP, 30, 1.0, 1.0),
    part("peak", 210, 18.0, 18.0),
    part(DIP, 30, 1.0, 1.0),
    part("peak", 210, 18.0, 18.0),
    part(DIP, 30, 1.0, 1.0),
    part("peak", 210, 18.0, 18.0),
    part("noon", 300, 18.0, 9.0),
    part("lull", 600, 9.0, 9.0),
    part("step up", 900, 14.0, 14.0),
    part("evening", 600, 14.0, 0.5),
    part("last users", 120, 0.5, 0.5),
    part("idle", 4_080, 0.0, 0.0),
];

/// Seeds differ by up to so much in their level, each way.
const LEVEL_SPREAD: f64 = 0.1;

/// Log-normal lengths in tokens: median, sigma, least, most. A chat with documents: on the A100 of
/// the profile one request in a full batch takes some 0.2 s of a replica's time.
const PROMPT: (f64, f64, f64, f64) = (1_200.0, 0.6, 50.0, 6_000.0);
const OUTPUT: (f64, f64, f64, f64) = (220.0, 0.6, 10.0, 1_000.0);

/// One request of the story.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Arrival {
    pub(super) at: Time,
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens: u32,
}

/// A story as a seed tells it.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) seed: u64,
    /// What the parts' rates are multiplied by.
    pub(super) level: f64,
    pub(super) parts: Vec<Part>,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) seconds: u32,
}

impl Story {
    /// The day of a seed.
    pub(super) fn new(seed: u64) -> Story {
        Story::of(&PARTS, seed)
    }

    /// Another story.
    pub(super) fn of(parts: &[Part], seed: u64) -> Story {
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(seed));
        let level = 1.0 + LEVEL_SPREAD * (2.0 * dice.uniform() - 1.0);
        let at_level = |part: &Part| Part {
            from_per_s: part.from_per_s * level,
            to_per_s: part.to_per_s * level,
            ..*part
        };
        let parts: Vec<Part> = parts.iter().map(at_level).collect();
        let mut arrivals = Vec::new();
        let mut start_s = 0;
        for part in &parts {
            arrivals_of(part, f64::from(start_s), &mut dice, &mut arrivals);
            start_s += part.seconds;
        }
        Story { seed, level, parts, arrivals, seconds: start_s }
    }

    /// Its end.
    pub(super) fn end(&self) -> Time {
        Time::from_millis(u64::from(self.seconds) * 1_000)
    }

    /// The dips: start and end.
    pub(super) fn dips(&self) -> Vec<(Time, Time)> {
        let mut end_s = 0;
        let spans = self.parts.iter().map(|part| {
            let start_s = end_s;
            end_s += part.seconds;
            (part.name, start_s, end_s)
        });
        let at = |s: u32| Time::from_millis(u64::from(s) * 1_000);
        spans
            .filter(|(name, ..)| *name == DIP)
            .map(|(_, start_s, end_s)| (at(start_s), at(end_s)))
            .collect()
    }

    /// Requests that arrive between two moments.
    pub(super) fn arrived(&self, from: Time, to: Time) -> usize {
        let before = |time: Time| self.arrivals.partition_point(|arrival| arrival.at < time);
        before(to) - before(from)
    }
}

/// Poisson arrivals of a part, thinned from its highest rate.
fn arrivals_of(part: &Part, start_s: f64, dice: &mut Dice, arrivals: &mut Vec<Arrival>) {
    let highest = part.from_per_s.max(part.to_per_s);
    let seconds = f64::from(part.seconds);
    let mut after_s = 0.0;
    if highest <= 0.0 {
        return;
    }
    loop {
        after_s += dice.exponential() / highest;
        if after_s >= seconds {
            return;
        }
        let rate = part.from_per_s + (part.to_per_s - part.from_per_s) * after_s / seconds;
        if dice.uniform() * highest < rate {
            arrivals.push(Arrival {
                at: Time::from_secs_f64(start_s + after_s),
                prompt_tokens: dice.length(PROMPT),
                output_tokens: dice.length(OUTPUT),
            });
        }
    }
}

struct Dice(Pcg64Mcg);

impl Dice {
    /// 0 up to, and without, 1.
    fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Mean 1.
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.uniform()).ln()
    }

    /// The sum of twelve uniform numbers is normal enough, and the same on every machine.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to a few thousand"
    )]
    fn length(&mut self, (median, sigma, least, most): (f64, f64, f64, f64)) -> u32 {
        (median * (sigma * self.normal()).exp()).clamp(least, most).round() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_tells_one_story_and_another_seed_another() {
        let story = Story::new(7);
        assert_eq!(story.arrivals, Story::new(7).arrivals);
        assert_ne!(story.arrivals, Story::new(8).arrivals);
        assert!(story.arrivals.is_sorted_by_key(|arrival| arrival.at));
    }

    #[test]
    fn every_part_has_the_requests_of_its_rate() {
        let story = Story::new(3);
        let mut start_s = 0;
        for part in &story.parts {
            let at = |s: u32| Time::from_millis(u64::from(s) * 1_000);
            let n = story.arrived(at(start_s), at(start_s + part.seconds)) as f64;
            let mean = f64::from(part.seconds) * (part.from_per_s + part.to_per_s) / 2.0;
            assert!((n - mean).abs() <= 5.0 * mean.sqrt(), "{}: {n} for {mean}", part.name);
            start_s += part.seconds;
        }
        assert_eq!(story.dips().len(), 3);
    }
}
