//! Who follows this process, and whether all of them have what was published.
//!
//! Holds counters only; `serve` moves them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::timeout;

/// The followers. Cheap to clone; all clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Followers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    demand: watch::Sender<Demand>,
    connected: Mutex<Connected>,
}

impl Default for Inner {
    fn default() -> Inner {
        Inner { demand: watch::Sender::new(Demand::default()), connected: Mutex::default() }
    }
}

#[derive(Debug, Default)]
struct Connected {
    next: u64,
    met: HashMap<u64, watch::Receiver<u64>>,
}

/// What somebody waits for: that everything as of now is sent and taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Demand {
    /// Rises with each demand.
    pub(super) number: u64,
    /// The states too, whenever they were sent last.
    pub(super) with_states: bool,
}

/// One follower; it is forgotten when this is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    followers: Followers,
    id: u64,
    met: watch::Sender<u64>,
    pub(super) demand: watch::Receiver<Demand>,
}

impl Followers {
    /// How many are connected.
    pub(super) fn count(&self) -> usize {
        self.connected().met.len()
    }

    pub(super) fn connect(&self) -> Connection {
        let demand = self.0.demand.subscribe();
        let mut connected = self.connected();
        let id = connected.next;
        connected.next += 1;
        let (met, receiver) = watch::channel(0);
        connected.met.insert(id, receiver);
        Connection { followers: self.clone(), id, met, demand }
    }

    /// Waits until everything that is published now is in force at every follower; says whether it
    /// is. Without followers it is.
    pub(super) async fn have_all(&self, with_states: bool, within: Duration) -> bool {
        let mut number = 0;
        self.0.demand.send_modify(|demand| {
            demand.number += 1;
            demand.with_states |= with_states;
            number = demand.number;
        });
        let connected: Vec<_> = self.connected().met.values().cloned().collect();
        let waits = connected.into_iter().map(|mut met| async move {
            timeout(within, met.wait_for(|met| *met >= number)).await.is_ok_and(|met| met.is_ok())
        });
        join_all(waits).await.into_iter().all(|has| has)
    }

    fn connected(&self) -> MutexGuard<'_, Connected> {
        self.0.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// The follower has all that was published when this demand was made.
    pub(super) fn has_met(&self, demand: u64) {
        self.met.send_replace(demand);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.followers.connected().met.remove(&self.id);
    }
}
