//! Simulated time in whole picoseconds: sums are exact, whatever their order.
//!
//! Must not read a clock.

/// A moment of the simulation, in picoseconds since an origin of the caller's choice. The range
/// ends after 213 days; additions saturate there.
///
/// Picoseconds because the smallest constant of a profile, the time to read one resident token,
/// is some ten nanoseconds: it keeps three more digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

/// Picoseconds in a second.
pub const PS_PER_S: u64 = 1_000_000_000_000;
/// Picoseconds in a millisecond.
pub const PS_PER_MS: u64 = 1_000_000_000;

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);
    /// The end of the range; stands for "never".
    pub const MAX: Time = Time(u64::MAX);

    /// The moment that many seconds after the origin; 0 for a negative or undefined number.
    #[must_use]
    pub fn from_secs_f64(seconds: f64) -> Time {
        Time(ps_from_secs(seconds))
    }

    /// The moment that many milliseconds after the origin.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Time {
        Time(millis.saturating_mul(PS_PER_MS))
    }

    /// Seconds since the origin.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        secs_from_ps(self.0)
    }

    /// The moment `span_ps` picoseconds later.
    #[must_use]
    pub const fn plus_ps(self, span_ps: u64) -> Time {
        Time(self.0.saturating_add(span_ps))
    }

    /// Picoseconds from `earlier` to this moment; 0 if it was not earlier.
    #[must_use]
    pub const fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Picoseconds as seconds.
#[must_use]
pub fn secs_from_ps(span_ps: u64) -> f64 {
    span_ps as f64 / PS_PER_S as f64
}

/// Seconds as whole picoseconds, rounded; 0 for a negative or undefined number.
#[must_use]
pub fn ps_from_secs(seconds: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and takes what is not a number for 0"
    )]
    let span_ps = (seconds * PS_PER_S as f64).round() as u64;
    span_ps
}
