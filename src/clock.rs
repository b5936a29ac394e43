//! The one place where wall-clock time enters: a monotonic clock anchored to the wall at start.
//!
//! Must not be used by pure modules; they take a [`Moment`].

use tokio::time::Instant;

use crate::decision::Moment;

/// Tells the time as milliseconds since the Unix epoch, without ever jumping.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    anchor: Instant,
    anchor_at: Moment,
}

impl Clock {
    /// Anchors the clock to the wall clock, once.
    #[must_use]
    pub fn start() -> Clock {
        Clock { anchor: Instant::now(), anchor_at: Moment(jiff::Timestamp::now().as_millisecond()) }
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Moment {
        let elapsed = u64::try_from(self.anchor.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.anchor_at.plus_millis(elapsed)
    }

    /// The moment that an instant of the runtime's clock stands for.
    #[must_use]
    pub fn at(&self, instant: Instant) -> Moment {
        let after = u64::try_from(instant.saturating_duration_since(self.anchor).as_millis());
        let before = u64::try_from(self.anchor.saturating_duration_since(instant).as_millis());
        self.anchor_at
            .plus_millis(after.unwrap_or(u64::MAX))
            .minus_millis(before.unwrap_or(u64::MAX))
    }
}
