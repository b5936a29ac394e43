//! What the probes of Kubernetes may know: whether the loops turn, and whether an answer exists.
//!
//! Must not look at upstreams: a source outage is no reason to restart or to leave the Service.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::Clock;
use crate::decision::Moment;

/// A loop that has not come round for this long is hung. Ticks are due every second or less often
/// than every 15 s, so two slow ticks fit; the probe's own three failures at 5 s and its grace come on
/// top, and together they stay well within the cool-down after which KEDA could scale a silent target to
/// zero.
pub const HUNG_AFTER_MS: u64 = 45_000;

/// The state behind `/livez` and `/readyz`; cheap to clone.
#[derive(Debug, Clone)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    hung_after_ms: u64,
    ready: AtomicBool,
    pulses: Mutex<Vec<(&'static str, Arc<AtomicI64>)>>,
}

/// The sign of life of one loop.
#[derive(Debug, Clone)]
pub struct Pulse {
    clock: Clock,
    last: Arc<AtomicI64>,
}

impl Health {
    /// Not ready, with no loop to watch yet.
    #[must_use]
    pub fn new(clock: Clock) -> Health {
        Health::with_limit(clock, HUNG_AFTER_MS)
    }

    /// The same with another limit than [`HUNG_AFTER_MS`].
    pub(crate) fn with_limit(clock: Clock, hung_after_ms: u64) -> Health {
        let (ready, pulses) = (AtomicBool::new(false), Mutex::default());
        Health(Arc::new(Inner { clock, hung_after_ms, ready, pulses }))
    }

    /// Says whether this process can answer: the workloads are listed, and among several replicas its
    /// answers are the leader's.
    pub fn set_ready(&self, ready: bool) {
        self.0.ready.store(ready, Ordering::Release);
    }

    /// Whether `/readyz` is to say so.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.ready.load(Ordering::Acquire)
    }

    /// Watches one more loop, which must beat more often than [`HUNG_AFTER_MS`] from now on.
    #[must_use]
    pub fn pulse(&self, name: &'static str) -> Pulse {
        let last = Arc::new(AtomicI64::new(self.0.clock.now().0));
        let mut pulses = self.0.pulses.lock().unwrap_or_else(PoisonError::into_inner);
        pulses.push((name, Arc::clone(&last)));
        Pulse { clock: self.0.clock, last }
    }

    /// The loops that hang, each with the milliseconds since its last beat.
    #[must_use]
    pub fn hung(&self) -> Vec<(&'static str, u64)> {
        let now = self.0.clock.now();
        let pulses = self.0.pulses.lock().unwrap_or_else(PoisonError::into_inner);
        let ages = pulses
            .iter()
            .map(|(name, last)| (*name, now.millis_since(Moment(last.load(Ordering::Relaxed)))));
        ages.filter(|(_, age_ms)| *age_ms > self.0.hung_after_ms).collect()
    }
}

impl Pulse {
    /// The loop has come round.
    pub fn beat(&self) {
        self.last.store(self.clock.now().0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_the_loop_that_stopped_beating_is_hung() {
        let health = Health::new(Clock::start());
        let tick = health.pulse("tick");
        let _stopped = health.pulse("grpc");
        tokio::time::advance(Duration::from_millis(HUNG_AFTER_MS)).await;
        assert_eq!(health.hung(), []);
        tick.beat();
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(health.hung(), [("grpc", HUNG_AFTER_MS + 1)]);
    }

    #[test]
    fn readiness_is_off_until_it_is_set() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _guard = runtime.enter();
        let health = Health::new(Clock::start());
        assert!(!health.is_ready());
        let handle = health.clone();
        handle.set_ready(true);
        assert!(health.is_ready());
    }
}
