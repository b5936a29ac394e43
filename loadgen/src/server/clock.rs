//! The one place where real time enters: the runtime's clock as simulated time and as Unix time.
//!
//! Must not be used by the engine, which is told what time it is.

use std::time::Duration;
#[expect(clippy::disallowed_types, reason = "the wall clock is read once, here")]
use std::time::SystemTime;

use tokio::time::Instant;

use crate::engine::{PS_PER_S, Time, secs_from_ps};

/// Picoseconds in a nanosecond.
const PS_PER_NS: u64 = PS_PER_S / 1_000_000_000;

/// A clock that starts at [`Time::ZERO`] and never jumps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    start: Instant,
    start_unix_s: f64,
}

impl Clock {
    pub(super) fn start() -> Clock {
        #[expect(clippy::disallowed_types, reason = "the wall clock is read once, here")]
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        // A wall clock before 1970 is as good as none.
        let start_unix_s = unix.map_or(0.0, |since| since.as_secs_f64());
        Clock { start: Instant::now(), start_unix_s }
    }

    pub(super) fn now(&self) -> Time {
        let elapsed_ns = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Time(elapsed_ns.saturating_mul(PS_PER_NS))
    }

    /// The instant at which that time has come.
    pub(super) fn instant(&self, at: Time) -> Instant {
        self.start + Duration::from_nanos(at.0.div_ceil(PS_PER_NS))
    }

    /// Seconds since the Unix epoch.
    pub(super) fn unix_s(&self, at: Time) -> f64 {
        self.start_unix_s + secs_from_ps(at.0)
    }

    pub(super) fn unix_now_s(&self) -> f64 {
        self.unix_s(self.now())
    }
}
