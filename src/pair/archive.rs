//! What was learned, in the shards: brought back by who begins to lead, saved while it leads.
//!
//! Must never save over what has not been read: the next leader would have neither.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{BEAT, Shared};
use crate::cluster::shards::{Error, Shards};
use crate::decision::Moment;
use crate::health::Pulse;
use crate::statedir::SAVE_INTERVAL_MS;

/// How long a new leader tries to read what was saved before it decides without.
const RECALL: Duration = Duration::from_secs(30);
/// Time between two tries until then.
const RETRY: Duration = Duration::from_millis(500);
/// Time between two tries afterwards.
const RETRY_LATER: Duration = Duration::from_secs(5);

/// The shards. Whether they have still to be read is [`Shared::is_unread`].
pub(super) struct Archive(Mutex<Inner>);

struct Inner {
    shards: Shards,
    /// What was saved until then is known already.
    since: Option<Moment>,
}

impl Archive {
    pub(super) fn new(shards: Shards) -> Archive {
        Archive(Mutex::new(Inner { shards, since: None }))
    }

    /// Brings back what was saved later than `since`, by the clock of who saved it. What cannot be read
    /// for too long is brought back later, before anything is saved.
    pub(super) async fn recall(&self, shared: &Shared, since: Option<Moment>, pulse: &Pulse) {
        shared.is_unread.store(true, Ordering::Release);
        self.0.lock().await.since = since;
        // One try alone may take longer than a process may be silent.
        let beats = async {
            loop {
                pulse.beat();
                sleep(BEAT).await;
            }
        };
        tokio::select! {
            () = self.try_to_read(shared) => {}
            () = beats => {}
            () = sleep(RECALL) => {}
        }
        if shared.is_unread.load(Ordering::Acquire) {
            warn!("what was learned cannot be read: it is left alone, and read when it can be");
        }
    }

    async fn try_to_read(&self, shared: &Shared) {
        let mut is_told = false;
        while let Err(error) = self.0.lock().await.read(shared).await {
            if !std::mem::replace(&mut is_told, true) {
                warn!(%error, "reading what was learned is tried for {} s", RECALL.as_secs());
            }
            if !shared.parts.lead.decides() {
                return;
            }
            sleep(RETRY).await;
        }
    }

    /// Goes on from what the last leader had; it has told whether it had read what was saved.
    pub(super) async fn go_on(&self) {
        self.0.lock().await.since = None;
    }

    /// Saves the state again and again, until dropped.
    pub(super) async fn keep_saving(self: Arc<Archive>, shared: Arc<Shared>) {
        let interval = Duration::from_millis(SAVE_INTERVAL_MS);
        loop {
            let is_unread = shared.is_unread.load(Ordering::Acquire);
            sleep(if is_unread { RETRY_LATER } else { interval }).await;
            // Spread over a fifth of the interval, so that a large fleet is no burst of writes.
            self.save(&shared, interval / 5).await;
        }
    }

    /// Saves the state within about `over`.
    pub(super) async fn save(&self, shared: &Shared, over: Duration) {
        let mut inner = self.0.lock().await;
        let saved = inner.save(shared, over).await;
        drop(inner);
        shared.parts.metrics.state_saved(saved.is_ok());
        if let Err(error) = saved {
            warn!(%error, "what was learned could not be saved");
        }
    }
}

impl Inner {
    /// Reads what has still to be read, if anything.
    async fn read(&mut self, shared: &Shared) -> Result<(), Error> {
        if !shared.is_unread.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut restored = 0_usize;
        for shard in self.shards.restore().await? {
            if self.since.is_some_and(|since| shard.saved_at <= Some(since)) {
                continue;
            }
            for (key, state) in shard.states {
                restored += 1;
                shared.parts.states.put(key, state.restored());
            }
        }
        info!(restored, "what was saved is restored");
        shared.is_unread.store(false, Ordering::Release);
        Ok(())
    }

    async fn save(&mut self, shared: &Shared, over: Duration) -> Result<(), Error> {
        self.read(shared).await?;
        let parts = &shared.parts;
        let states = parts.states.snapshot(&parts.registry.inventory());
        self.shards.save(parts.clock.now(), &states, &parts.lead, over).await
    }
}
