//! The one place where wall-clock time enters: a monotonic clock anchored to the wall at start. Or
//! one that somebody sets by hand, for a run in simulated time.
//!
//! Must not be used by pure modules; they take a [`Moment`].

use std::sync::atomic::{AtomicI64, Ordering};

use tokio::time::Instant;

use crate::decision::Moment;

/// Tells the time as milliseconds since the Unix epoch, without ever jumping.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Source);

#[derive(Debug, Clone, Copy)]
enum Source {
    Running { anchor: Instant, anchor_at: Moment },
    Stepped { millis: &'static AtomicI64 },
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
    /// Anchors the clock to the wall clock, once.
    #[must_use]
    pub fn start() -> Clock {
        let anchor_at = Moment(jiff::Timestamp::now().as_millisecond());
        Clock(Source::Running { anchor: Instant::now(), anchor_at })
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
            Source::Running { anchor, anchor_at } => {
                let after = u64::try_from(instant.saturating_duration_since(anchor).as_millis());
                let before = u64::try_from(anchor.saturating_duration_since(instant).as_millis());
                anchor_at
                    .plus_millis(after.unwrap_or(u64::MAX))
                    .minus_millis(before.unwrap_or(u64::MAX))
            }
            Source::Stepped { millis } => Moment(millis.load(Ordering::Acquire)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
