//! When: moments as people write them, and a span cut into steps and windows.
//!
//! Must not read a clock; what `now` is comes from the caller.

use std::fmt;

use jiff::Timestamp;

use crate::decision::Moment;
use crate::duration;

/// A moment as it is written on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct When {
    text: String,
    value: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Fixed(Moment),
    BeforeNow { millis: u64 },
}

/// The text is no moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a time such as 2026-11-02T00:00:00Z, 1762041600, now or now-7d")]
pub struct NoMoment;

impl When {
    /// Reads RFC 3339, seconds since 1970, `now` or `now-7d`.
    ///
    /// # Errors
    ///
    /// [`NoMoment`] when it is none of these.
    pub fn parse(text: &str) -> Result<When, NoMoment> {
        let text = text.trim();
        let value = if let Some(rest) = text.strip_prefix("now") {
            let before = rest.strip_prefix('-').map(duration::parse_millis);
            match (rest, before) {
                ("", _) => Value::BeforeNow { millis: 0 },
                (_, Some(Ok(millis))) => Value::BeforeNow { millis },
                (_, Some(Err(_)) | None) => return Err(NoMoment),
            }
        } else if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let seconds: i64 = text.parse().map_err(|_not_a_number| NoMoment)?;
            Value::Fixed(Moment(seconds.checked_mul(1_000).ok_or(NoMoment)?))
        } else {
            let at: Timestamp = text.parse().map_err(|_no_rfc_3339| NoMoment)?;
            Value::Fixed(Moment(at.as_millisecond()))
        };
        Ok(When { text: text.to_owned(), value })
    }

    /// The moment.
    #[must_use]
    pub fn at(&self, now: Moment) -> Moment {
        match self.value {
            Value::Fixed(at) => at,
            Value::BeforeNow { millis } => now.minus_millis(millis),
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A moment as RFC 3339, or its milliseconds where it is beyond the calendar.
#[must_use]
pub fn shown(at: Moment) -> String {
    Timestamp::from_millisecond(at.0).map_or_else(|_| at.0.to_string(), |at| at.to_string())
}

/// A span of time in equal steps, aligned so that the next run asks for the same moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Where it begins: a multiple of the step.
    pub from: Moment,
    /// Where it ends: another, at least one step later.
    pub to: Moment,
    /// The step in milliseconds, above 0.
    pub step_ms: u64,
}

/// Steps that are chosen by themselves: those of common scrape intervals, none above a minute.
const STEPS_MS: [u64; 3] = [15_000, 30_000, 60_000];
/// Steps up to which a finer one is taken: two days of 15 s.
const MOST_STEPS: u64 = 11_520;
/// Steps of one window, of the 11,000 that Prometheus answers: 40 series of ten replicas at 25
/// bytes a sample are 14 MB.
const WINDOW_STEPS: u64 = 1_440;

impl Span {
    /// The span from `from` to `to` with that step, or one that suits its length. Widened to whole
    /// steps at its beginning, cut to them at its end.
    #[must_use]
    pub fn new(from: Moment, to: Moment, step_ms: Option<u64>) -> Span {
        let length_ms = to.millis_since(from);
        let suits = STEPS_MS.into_iter().find(|step_ms| length_ms / step_ms <= MOST_STEPS);
        let step_ms = step_ms.or(suits).unwrap_or(STEPS_MS[STEPS_MS.len() - 1]).max(1);
        let aligned = |at: Moment| {
            let past = at.0.rem_euclid(i64::try_from(step_ms).unwrap_or(i64::MAX));
            Moment(at.0 - past)
        };
        let from = aligned(from);
        Span { from, to: aligned(to).max(from.plus_millis(step_ms)), step_ms }
    }

    /// The same span in about so many steps.
    #[must_use]
    pub fn coarse(&self, n_steps: u64) -> Span {
        let length_ms = self.to.millis_since(self.from);
        // Whole steps of this span, so that what is asked for stays aligned.
        let times = length_ms.div_ceil(self.step_ms).div_ceil(n_steps.max(1)).max(1);
        Span::new(self.from, self.to, Some(self.step_ms * times))
    }

    /// Steps in it.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.to.millis_since(self.from) / self.step_ms).unwrap_or(usize::MAX)
    }

    /// Whether there is no whole step in it; never, as built.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Seconds of a step.
    #[must_use]
    pub fn step_s(&self) -> f64 {
        self.step_ms as f64 / 1e3
    }

    /// Windows of at most 1,440 steps, cut at multiples of their length, so that all but
    /// the outermost are the same for a span that begins or ends elsewhere.
    #[must_use]
    pub fn windows(&self) -> Vec<Span> {
        let window_ms = i64::try_from(WINDOW_STEPS * self.step_ms).unwrap_or(i64::MAX);
        let mut windows = Vec::new();
        let mut from = self.from;
        while from < self.to {
            let next = Moment((from.0.div_euclid(window_ms) + 1).saturating_mul(window_ms));
            let to = next.min(self.to);
            windows.push(Span { from, to, ..*self });
            from = to;
        }
        windows
    }

    /// Two halves of whole steps; `None` if it has but one.
    #[must_use]
    pub fn halves(&self) -> Option<(Span, Span)> {
        let half = u64::try_from(self.len() / 2).ok().filter(|steps| *steps > 0)?;
        let middle = self.from.plus_millis(half * self.step_ms);
        Some((Span { to: middle, ..*self }, Span { from: middle, ..*self }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment(1_762_041_600_000);

    fn at(text: &str) -> Option<i64> {
        When::parse(text).ok().map(|when| when.at(NOW).0)
    }

    #[test]
    fn moments_are_read_in_three_forms() {
        assert_eq!(at("2025-11-02T00:00:00Z"), Some(1_762_041_600_000));
        assert_eq!(at("2025-11-02T01:00:00+01:00"), Some(1_762_041_600_000));
        assert_eq!(at("1762041600"), Some(1_762_041_600_000));
        assert_eq!(at("now"), Some(NOW.0));
        assert_eq!(at("now-1h30m"), Some(NOW.0 - 5_400_000));
        for wrong in ["", "yesterday", "now+1h", "now-", "-5", "2025-11-02", "99999999999999999999"]
        {
            assert_eq!(at(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_step_suits_the_length_and_never_exceeds_a_minute() {
        let step = |days: u64| Span::new(NOW.minus_millis(days * 86_400_000), NOW, None).step_ms;
        assert_eq!(
            [step(1), step(2), step(3), step(7), step(31)],
            [15_000, 15_000, 30_000, 60_000, 60_000]
        );
    }

    #[test]
    fn windows_cover_the_span_once_and_are_the_same_for_another_end() {
        let long = Span::new(NOW.minus_millis(86_400_000), NOW, Some(15_000));
        let later = Span::new(NOW.minus_millis(80_000_000), NOW.plus_millis(90_000), Some(15_000));
        let windows = long.windows();
        assert_eq!(windows.first().map(|window| window.from), Some(long.from));
        assert_eq!(windows.last().map(|window| window.to), Some(long.to));
        assert!(windows.windows(2).all(|pair| pair[0].to == pair[1].from));
        assert!(windows.iter().all(|window| window.len() <= 1_440));
        assert!(windows.iter().filter(|window| later.windows().contains(window)).count() >= 2);
    }

    #[test]
    fn halves_are_whole_steps() {
        let span = Span::new(Moment(0), Moment(45_000), Some(15_000));
        let (first, second) = span.halves().unwrap();
        assert_eq!((first.len(), second.len(), first.to), (1, 2, second.from));
        assert_eq!(first.halves(), None);
    }
}
