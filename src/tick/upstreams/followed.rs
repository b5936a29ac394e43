//! The namespaces that somebody follows: what a shared reader has to ask for.
//!
//! Does no IO.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::decision::Moment;

/// A namespace is read for this long after somebody last followed it: four of the slowest ticks.
const FOLLOWED_MS: u64 = 60_000;

/// Namespaces by when they were last followed.
#[derive(Debug, Default)]
pub(super) struct Followed {
    namespaces: Mutex<BTreeMap<Arc<str>, Moment>>,
    joined: Notify,
}

impl Followed {
    /// Follows a namespace from `now` on; a new one is asked for at once.
    pub(super) fn follow(&self, namespace: &Arc<str>, now: Moment) {
        if self.lock().insert(Arc::clone(namespace), now).is_none() {
            self.joined.notify_one();
        }
    }

    /// The namespaces that are still followed, sorted.
    pub(super) fn current(&self, now: Moment) -> Vec<Arc<str>> {
        let mut namespaces = self.lock();
        namespaces.retain(|_, followed_at| now.millis_since(*followed_at) < FOLLOWED_MS);
        namespaces.keys().cloned().collect()
    }

    /// Waits until a new one has joined since the last call; for one waiter.
    pub(super) async fn joined(&self) {
        self.joined.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Moment>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
