//! The API server before the scheduler: one thread that reads requests and streams tokens.
//!
//! Must not delay a token's event: it says when the engine made it.

use crate::engine::profile;
use crate::engine::step_time::{Curve, Progression};
use crate::engine::time::{Time, ps_from_secs};

/// The thread's work, in the order in which it comes.
#[derive(Debug)]
pub(crate) struct Frontend {
    request: Curve,
    token_ps: u64,
    free_at: Time,
}

impl Frontend {
    pub(crate) fn new(profile: &profile::Frontend) -> Frontend {
        Frontend {
            request: Curve::through(&profile.request_ms),
            token_ps: ps_from_secs(profile.token_ms / 1e3),
            free_at: Time::ZERO,
        }
    }

    /// Reads a request; returns when the scheduler has it.
    pub(crate) fn read(&mut self, prompt_tokens: usize, now: Time) -> Time {
        let request_ps = self.request.at(prompt_tokens);
        self.free_at = self.free_at.max(now).plus_ps(request_ps);
        self.free_at
    }

    /// Streams the tokens of a step that ended now.
    pub(crate) fn stream(&mut self, tokens: usize, now: Time) {
        self.free_at = self.free_at.max(now).plus_ps(self.token_ps.saturating_mul(tokens as u64));
    }

    /// Streams the tokens of steps that followed one another from `start` on, as many of each.
    pub(crate) fn stream_steps(
        &mut self,
        tokens: usize,
        start: Time,
        times: Progression,
        steps: usize,
    ) {
        // With each step the thread is free at max(free, end of the step) + c. Unfolded, that is
        // the largest of free + n·c and end_i + (n − i + 1)·c. The ends grow by ever longer
        // steps, so the latter is convex in i and largest at the first or the last step.
        let c_ps = self.token_ps.saturating_mul(tokens as u64);
        let all_ps = c_ps.saturating_mul(steps as u64);
        let from_first = self.free_at.max(start.plus_ps(times.first_ps)).plus_ps(all_ps);
        let total_ps = u64::try_from(times.sum_ps(steps)).unwrap_or(u64::MAX);
        self.free_at = from_first.max(start.plus_ps(total_ps).plus_ps(c_ps));
    }
}
