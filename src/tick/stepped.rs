//! The tick of one trigger on a stepped clock, when its caller says so and not by a timer.
//!
//! Must not differ from the loop of `tick` in anything but who waits for what is due.

use std::sync::Arc;

use futures_util::FutureExt as _;

use super::{Engines, Follow, MIN_TICK_MS, Parts};
use crate::decision::Moment;
use crate::registry::Tracker;

/// The ticks of one trigger. The first is due at once.
#[derive(Debug)]
pub struct Stepped {
    follow: Follow,
    engines: Engines,
    due: Moment,
}

impl Stepped {
    /// The ticks of `tracker`, whose clock must be a stepped one.
    #[must_use]
    pub fn new(parts: Arc<Parts>, tracker: Arc<Tracker>) -> Stepped {
        let due = parts.clock.now();
        let state = parts.states.of(&tracker, due);
        let (nudge, crowd) = (Arc::default(), Arc::default());
        let follow = Follow { parts, tracker, state, nudge, crowd, gpu_seen_at: None };
        Stepped { follow, engines: Engines::default(), due }
    }

    /// When the next tick is due, unless demand at a wake source asks for one before.
    #[must_use]
    pub fn due(&self) -> Moment {
        self.due
    }

    /// Makes the tick that is due or asked for now, if any, from its first read to its published
    /// decision. Gives false if the workload is gone.
    pub async fn step(&mut self) -> bool {
        let now = self.follow.parts.clock.now();
        let is_nudged = self.follow.nudge.notified().now_or_never().is_some();
        let reads = now >= self.due;
        if !reads && (!is_nudged || self.follow.is_active()) {
            return true;
        }
        let Some(next_tick_ms) = self.follow.tick(&mut self.engines, reads).await else {
            return false;
        };
        let next = now.plus_millis(next_tick_ms.max(MIN_TICK_MS));
        self.due = if reads { next } else { self.due.min(next) };
        true
    }
}
