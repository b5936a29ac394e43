//! The one place where wall-clock time enters: a monotonic clock anchored to the wall at start, which
//! follows it slowly where that is set afterwards. Or one that somebody sets by hand, for a run in
//! simulated time.
//!
//! Must not be used by pure modules; they take a [`Moment`].

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::decision::Moment;

/// How often the wall clock is looked at.
const LOOK: Duration = Duration::from_secs(60);
/// A smaller difference is left alone.
const MEANT_MS: u64 = 1_000;
/// The clock follows the wall by a twentieth of the time that passes: the noise that decisions take.
const SLOWLY: i64 = 20;

/// Tells the time as milliseconds since the Unix epoch, without ever jumping.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Source);

#[derive(Debug, Clone, Copy)]
enum Source {
    Running(&'static Running),
    Stepped { millis: &'static AtomicI64 },
}

/// Apart from the clock, which thousands have a copy of.
#[derive(Debug)]
struct Running {
    anchor: Instant,
    course: ArcSwap<Course>,
}

/// What to add to the milliseconds since the anchor.
#[derive(Debug, Clone, Copy)]
struct Course {
    since_ms: i64,
    from: i64,
    to: i64,
}

impl Course {
    fn at(&self, millis: i64) -> i64 {
        let turned = millis.saturating_sub(self.since_ms).max(0) / SLOWLY;
        self.from + (self.to - self.from).clamp(-turned, turned)
    }
}

/// The hand of a stepped clock.
#[derive(Debug)]
pub struct Hand {
    millis: &'static AtomicI64,
}

impl Hand {
    /// Moves the clock forward to this moment; never back.
    pub fn set(&self, now: Moment) {
        self.millis.fetch_max(now.0, Ordering::Release);
    }
}

impl Clock {
    /// Anchors the clock to the wall clock. As with a stepped one its course is never given back.
    #[must_use]
    pub fn start() -> Clock {
        let offset = wall().0;
        let course = ArcSwap::from_pointee(Course { since_ms: 0, from: offset, to: offset });
        let running = Running { anchor: Instant::now(), course };
        Clock(Source::Running(Box::leak(Box::new(running))))
    }

    /// Follows the wall clock where it is set, or the machine has slept, until cancelled: by 3 s in a
    /// minute, never back and never faster, so that no jump becomes activity or staleness. A schedule
    /// is late by what is left of the difference.
    pub async fn keep_to_wall(self, cancel: CancellationToken) {
        while cancel.run_until_cancelled(sleep(LOOK)).await.is_some() {
            self.turn_to(wall(), Instant::now());
        }
    }

    fn turn_to(self, wall: Moment, instant: Instant) {
        let Source::Running(Running { anchor, course }) = self.0 else { return };
        let shown = self.at(instant);
        if wall.0.abs_diff(shown.0) < MEANT_MS {
            return;
        }
        let since_ms = millis_between(*anchor, instant);
        let from = course.load().at(since_ms);
        course.store(Arc::new(Course { since_ms, from, to: from + (wall.0 - shown.0) }));
    }

    /// A clock that stands still until its hand is moved. Meant for one run of a process: its eight
    /// bytes are never given back, so that the clock stays a plain value.
    #[must_use]
    pub fn stepped(start: Moment) -> (Clock, Hand) {
        let millis: &AtomicI64 = Box::leak(Box::new(AtomicI64::new(start.0)));
        (Clock(Source::Stepped { millis }), Hand { millis })
    }

    /// Whether somebody else says what time it is, and so when anything is due.
    #[must_use]
    pub fn is_stepped(&self) -> bool {
        matches!(self.0, Source::Stepped { .. })
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.at(Instant::now())
    }

    /// The moment that an instant of the runtime's clock stands for; on a stepped clock it is always
    /// now.
    #[must_use]
    pub fn at(&self, instant: Instant) -> Moment {
        match self.0 {
            Source::Running(Running { anchor, course }) => {
                let millis = millis_between(*anchor, instant);
                Moment(millis.saturating_add(course.load().at(millis)))
            }
            Source::Stepped { millis } => Moment(millis.load(Ordering::Acquire)),
        }
    }
}

fn wall() -> Moment {
    Moment(jiff::Timestamp::now().as_millisecond())
}

/// Milliseconds from the first instant to the second, which may be the earlier one.
fn millis_between(from: Instant, to: Instant) -> i64 {
    let after = i64::try_from(to.saturating_duration_since(from).as_millis());
    let before = i64::try_from(from.saturating_duration_since(to).as_millis());
    after.unwrap_or(i64::MAX) - before.unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_that_is_set_is_followed_slowly_and_never_back() {
        for step_ms in [60_000_i64, -60_000, 3_600_000, 900] {
            let clock = Clock::start();
            let Source::Running(Running { anchor, .. }) = clock.0 else { unreachable!() };
            let after = |second: u64| *anchor + Duration::from_secs(second);
            let start = clock.at(*anchor);
            let wall_at = |second: u64| start.plus_millis(second * 1_000).0 + step_ms;
            let mut last = start;
            for second in 0..=1_800 {
                let now = clock.at(after(second));
                let passed_ms = now.0 - last.0;
                assert!(second == 0 || (949..=1_051).contains(&passed_ms), "{second}: {passed_ms}");
                last = now;
                if second % 60 == 0 {
                    clock.turn_to(Moment(wall_at(second)), after(second));
                }
            }
            let left_ms = wall_at(1_800) - last.0;
            let expected = match step_ms {
                // 1,800 s / 20 are 90 s.
                3_600_000 => 3_510_000..=3_512_000,
                900 => 900..=900,
                _ => -1_000..=1_000,
            };
            assert!(expected.contains(&left_ms), "{step_ms}: {left_ms}");
        }
    }

    #[test]
    fn a_stepped_clock_goes_where_its_hand_says_and_never_back() {
        let (clock, hand) = Clock::stepped(Moment(5));
        let elsewhere = clock;
        hand.set(Moment(9));
        hand.set(Moment(7));
        assert_eq!((clock.now(), elsewhere.at(Instant::now())), (Moment(9), Moment(9)));
        assert!(clock.is_stepped());
    }
}
