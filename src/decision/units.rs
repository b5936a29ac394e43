//! Points in time as data, so that every time-dependent rule can be replayed.
//!
//! Must not read a clock: a [`Moment`] always comes from the caller.

use serde::{Deserialize, Serialize};

/// A point in time, in milliseconds since the Unix epoch.
///
/// In `serve` it comes from a monotonic clock anchored to the wall clock at start, so that a clock
/// jump creates neither activity nor staleness.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Moment(pub i64);

impl Moment {
    /// Milliseconds from `earlier` to `self`; 0 if `earlier` is later.
    #[must_use]
    pub fn millis_since(self, earlier: Moment) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }

    /// Seconds from `earlier` to `self`; 0 if `earlier` is later.
    #[must_use]
    pub fn secs_since(self, earlier: Moment) -> f64 {
        // Durations here are far below 2^53 ms (285,000 years), so the conversion is exact.
        self.millis_since(earlier) as f64 / 1_000.0
    }

    /// The moment `millis` later.
    #[must_use]
    pub fn plus_millis(self, millis: u64) -> Moment {
        Moment(self.0.saturating_add_unsigned(millis))
    }

    /// The moment `millis` earlier.
    #[must_use]
    pub fn minus_millis(self, millis: u64) -> Moment {
        Moment(self.0.saturating_sub_unsigned(millis))
    }
}
