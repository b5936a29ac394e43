//! What was learned, in the shards: brought back by who begins to lead, saved while it leads.
//!
//! Must never save over what has not been read: the next leader would have neither. Nor may what is read
//! late, while this process decides, replace what it has decided since.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
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
/// The same where the account may not read it: in the first seconds of an API server it may be.
const RECALL_REFUSED: Duration = Duration::from_secs(5);
/// Time between the first two tries afterwards; it doubles.
const RETRY_LATER: Duration = Duration::from_secs(5);
/// The longest of them.
const RETRY_RARELY: Duration = Duration::from_secs(60);

/// The shards. Whether they have still to be read is [`Shared::is_unread`].
pub(super) struct Archive(Mutex<Inner>);

struct Inner {
    shards: Shards,
    /// What was saved until then is known already.
    since: Option<Moment>,
    /// Why nothing is saved, as it was told last.
    told: Option<String>,
}

/// What is read, and what is there already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Nothing has been decided: what was saved later counts.
    First,
    /// This process decides by what it has: only gaps are filled.
    Late,
}

impl Archive {
    pub(super) fn new(shards: Shards) -> Archive {
        Archive(Mutex::new(Inner { shards, since: None, told: None }))
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
        let started = Instant::now();
        let mut is_told = false;
        while let Err(error) = self.0.lock().await.read(shared, Reading::First).await {
            if !std::mem::replace(&mut is_told, true) {
                warn!(%error, "reading what was learned is tried for {} s", RECALL.as_secs());
            }
            let is_refused = matches!(error, Error::Refused(_));
            if !shared.parts.lead.decides() || (is_refused && started.elapsed() >= RECALL_REFUSED) {
                return;
            }
            sleep(RETRY).await;
        }
    }

    /// Goes on from what the last leader had; it has told whether it had read what was saved. It has
    /// written the shards since this process led, if it ever did.
    pub(super) async fn go_on(&self) {
        let mut inner = self.0.lock().await;
        inner.since = None;
        inner.shards.forget();
    }

    /// Saves the state again and again, until dropped.
    pub(super) async fn keep_saving(self: Arc<Archive>, shared: Arc<Shared>) {
        let interval = Duration::from_millis(SAVE_INTERVAL_MS);
        let mut retry = RETRY_LATER;
        loop {
            if shared.is_unread.load(Ordering::Acquire) {
                sleep(retry).await;
                retry = (retry * 2).min(RETRY_RARELY);
            } else {
                sleep(interval).await;
            }
            // Spread over a fifth of the interval, so that a large fleet is no burst of writes.
            self.save(&shared, interval / 5).await;
        }
    }

    /// Saves the state within about `over`.
    pub(super) async fn save(&self, shared: &Shared, over: Duration) {
        let mut inner = self.0.lock().await;
        let saved = match inner.read(shared, Reading::Late).await {
            Ok(()) => inner.save(shared, over).await,
            unread => unread,
        };
        shared.parts.metrics.state_saved(saved.is_ok());
        let why = saved.err().map(|error| error.to_string());
        if let Some(error) = &why
            && inner.told != why
        {
            warn!(error, "what was learned could not be saved");
        }
        inner.told = why;
    }

    /// Saves the state at once, for the next leader. What has still to be read is left to it: what it
    /// is sent meanwhile must not change.
    pub(super) async fn save_last(&self, shared: &Shared) {
        if shared.is_unread.load(Ordering::Acquire) {
            warn!("what was learned is not saved: what was saved before has not been read");
            return;
        }
        self.save(shared, Duration::ZERO).await;
    }
}

impl Inner {
    /// Reads what has still to be read, if anything.
    async fn read(&mut self, shared: &Shared, reading: Reading) -> Result<(), Error> {
        if !shared.is_unread.load(Ordering::Acquire) {
            return Ok(());
        }
        let (mut restored, mut outdated) = (0_usize, 0_usize);
        for shard in self.shards.restore().await? {
            if self.since.is_some_and(|since| shard.saved_at <= Some(since)) {
                continue;
            }
            for (key, state) in shard.states {
                let states = &shared.parts.states;
                let is_taken = match reading {
                    Reading::First => {
                        states.put(key, state.restored());
                        true
                    }
                    Reading::Late => states.fill(key, state),
                };
                *if is_taken { &mut restored } else { &mut outdated } += 1;
            }
        }
        info!(restored, outdated, "what was saved is restored");
        shared.is_unread.store(false, Ordering::Release);
        Ok(())
    }

    async fn save(&mut self, shared: &Shared, over: Duration) -> Result<(), Error> {
        let parts = &shared.parts;
        let now = parts.clock.now();
        let states = parts.states.snapshot(&parts.registry.inventory(), now);
        self.shards.save(now, &states, &parts.lead, over).await
    }
}
