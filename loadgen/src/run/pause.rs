//! Waiting for a moment to within some 50 µs: the runtime's own timer is a millisecond coarse.
//!
//! Must not know what is waited for.

use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;

#[cfg(target_os = "linux")]
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
#[cfg(target_os = "linux")]
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// A timer of the kernel's that the runtime waits for as it does for a socket. On systems without
/// one, the runtime's own.
#[derive(Debug)]
pub struct Pause {
    #[cfg(target_os = "linux")]
    timer: AsyncFd<OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Pause {
    /// Makes one; must be called within a runtime.
    ///
    /// # Errors
    ///
    /// When the process has as many files as it may.
    #[expect(
        deprecated,
        reason = "what has taken its place is unsafe, for files that others close"
    )]
    pub fn new() -> io::Result<Pause> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Pause { timer: AsyncFd::new(timer)? })
    }

    /// Ends at a moment, or soon after it. Given up before, it can be used again.
    pub async fn until(&self, moment: Instant) {
        if self.fires_at(moment).await.is_err() {
            tokio::time::sleep_until(moment).await;
        }
    }

    async fn fires_at(&self, moment: Instant) -> io::Result<()> {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec::try_from(left).map_err(io::Error::other)?,
        };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.timer.readable().await?;
            // What fired before it was set anew reads as nothing.
            let fired = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut [0; 8])?));
            if let Ok(fired) = fired {
                ready.clear_ready();
                return fired.map(drop);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Pause {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// None here.
    pub fn new() -> io::Result<Pause> {
        Ok(Pause {})
    }

    /// Ends at a moment, or up to two milliseconds after it.
    pub async fn until(&self, moment: Instant) {
        tokio::time::sleep_until(moment).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_pause_is_never_too_short_and_can_be_given_up() {
        let pause = Pause::new().unwrap();
        for wait in [0, 100, 2_500] {
            let moment = Instant::now() + Duration::from_micros(wait);
            pause.until(moment).await;
            assert!(Instant::now() >= moment, "{wait} µs");
        }
        let hour = pause.until(Instant::now() + Duration::from_secs(3_600));
        let given_up = tokio::time::timeout(Duration::from_millis(1), hour).await;
        assert!(given_up.is_err());
        let moment = Instant::now() + Duration::from_millis(1);
        pause.until(moment).await;
        assert!(Instant::now() >= moment);
    }
}
