//! What becomes due only once an answer is there: the next turn of a conversation, the next one of a
//! user in a closed loop.
//!
//! Must not decide what follows: `lane` does.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::lane::Job;

/// What comes at a moment.
#[derive(Debug)]
pub(super) enum Next {
    /// This request.
    Turn(Job),
    /// The schedule's next request: a user is free.
    User,
}

/// What is to come, in the order of time.
#[derive(Debug, Default)]
pub(super) struct Later {
    queue: Mutex<Queue>,
    /// Told when something is added.
    pub(super) added: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    n_added: u64,
    /// By moment, and by the order in which they were added.
    waiting: BTreeMap<(Duration, u64), Next>,
}

impl Later {
    /// Adds what comes so many seconds after the run's start.
    pub(super) fn add(&self, due_s: f64, next: Next) {
        let mut queue = self.queue();
        queue.n_added += 1;
        let key = (Duration::from_secs_f64(due_s.max(0.0)), queue.n_added);
        queue.waiting.insert(key, next);
        self.added.notify_one();
    }

    /// When the first of them comes.
    pub(super) fn first_s(&self) -> Option<f64> {
        self.queue().waiting.first_key_value().map(|((due, _), _)| due.as_secs_f64())
    }

    /// Takes the first of them if it has come, with its moment.
    pub(super) fn take(&self, now_s: f64) -> Option<(f64, Next)> {
        let mut queue = self.queue();
        let first = queue.waiting.first_entry()?;
        let due_s = first.key().0.as_secs_f64();
        (due_s <= now_s).then(|| (due_s, first.remove()))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
