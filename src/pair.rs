//! Several replicas of the scaler with one answer: the leader decides, the others answer from its
//! answers, and what is written to any of them reaches the leader.
//!
//! Must not decide who leads (`cluster::lease` does) nor what is answered (`tick` does).
//!
//! **A follower** takes every published answer over a stream, with its reasons, and what was learned.
//! It answers from that alone. If the stream breaks, the last answers stay in force, as when a
//! source is lost: an error could cost a workload its replicas. After [`STALE`] without a sign of
//! life from a leader that is seen to lead, the follower is not ready any more, so that KEDA asks the
//! leader, unless that says that it is not ready itself, or is none of the replicas (`heard` weighs it);
//! after [`FALLBACK_AFTER`] a declared fallback counts.
//!
//! **A hand-over** moves nothing: the new leader goes on from the last answers and from the state
//! behind them, which is sent with each changed answer and once a minute; at an orderly end it is
//! sent whole. Who leads without having followed takes what the shards have.
//!
//! **A write** is answered with success only when the leader and everyone who follows it have it.

mod archive;
mod entry;
mod follow;
mod followers;
mod heard;
pub mod identity;
mod office;
mod serve;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use tracing::warn;

use crate::cluster::members::{Member, Members};
use crate::cluster::shards::Shards;
use crate::cluster::{Client, lease};
use crate::decision::Moment;
use crate::health::Pulse;
use crate::lead::{Standing, Write};
use crate::registry::TrackerKey;
use crate::telemetry::ErrorChain;
use crate::tick::Parts;

use archive::Archive;
use followers::Followers;
use heard::Heard;
use identity::Identity;
use office::Office;
use wire::pair_client::PairClient;

/// The messages, generated from `proto/pair.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::restriction,
    clippy::pedantic,
    clippy::nursery,
    reason = "generated code"
)]
mod wire {
    tonic::include_proto!("ghostscaler.pair");
}

/// Largest message: one trigger with 1,024 engines has some 2 MiB of reasons and state.
const MAX_MESSAGE_BYTES: usize = 8 * 1024 * 1024;
/// Without a sign of life for this long the leader's answers are old. Longer than a take-over, which
/// begins 10 s after the last renewal and takes some looks of 2 s: in it no replica may turn unready.
pub const STALE: Duration = Duration::from_secs(20);
/// Without one for this long a declared fallback counts, as when an engine's metrics are lost.
pub const FALLBACK_AFTER: Duration = Duration::from_secs(900);
/// How long a wake may take over the leader.
const WAKE_TIMEOUT: Duration = Duration::from_secs(2);
const BEAT: Duration = Duration::from_secs(1);
/// How often each replica says how it is reached.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(30);
/// What a leader says to who would follow it before it has recalled what was learned.
const RECALLS: &str = "it does not know yet what was learned before";
/// How often it is asked again whether who follows is still a replica.
pub const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Everything that the replicas need of each other.
pub struct Pair {
    /// What decides here, while this process leads.
    pub parts: Arc<Parts>,
    /// For the election and what a leader writes.
    pub client: Client,
    /// Whether a leader says which pods go first at a step down.
    pub idle_pods_first: bool,
    /// The election.
    pub election: lease::Options,
    /// Who the others are.
    pub members: Members,
    /// Where the state is kept.
    pub shards: Shards,
    /// How the others reach this process.
    pub own: Member,
    /// Its key.
    pub identity: Identity,
    /// Where the others connect.
    pub listener: TcpListener,
    /// Where [`crate::lead::Lead`] reads.
    pub standing: watch::Sender<Standing>,
    /// Whether there is an answer for everything.
    pub can_answer: watch::Sender<bool>,
    /// Writes of this process's own API.
    pub writes: mpsc::Receiver<Write>,
    /// The sign of life of the ticks.
    pub pulse: Pulse,
    /// How often it is asked again whether who follows is still a replica; usually [`ASK_AGAIN`].
    pub ask_again: Duration,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("own", &self.own).finish_non_exhaustive()
    }
}

/// The key cannot be used to serve with.
#[derive(Debug, thiserror::Error)]
#[error("the replicas' own port cannot be served")]
pub struct Error(#[from] identity::Error);

impl Pair {
    /// Leads or follows until `answered`. At `leaving` a leader hands over at once if anybody follows
    /// it, and goes on answering as a follower.
    ///
    /// # Errors
    ///
    /// When its own key cannot be used.
    pub async fn run(
        self,
        leaving: CancellationToken,
        answered: CancellationToken,
    ) -> Result<(), Error> {
        self.parts.metrics.follows(Duration::ZERO);
        let shared = Arc::new(Shared {
            parts: self.parts,
            own: Arc::clone(&self.own.name),
            members: self.members,
            ask_again: self.ask_again,
            followers: Followers::default(),
            leader: Mutex::default(),
            known: Mutex::default(),
            heard: Heard::default(),
            has_recalled: AtomicBool::new(false),
            pending: Mutex::default(),
            is_unread: AtomicBool::new(false),
        });
        let (resignation, end) = (lease::Resignation::default(), CancellationToken::new());
        let standing = self.standing.subscribe();
        let tls = self.identity.server()?;
        let mut tasks = JoinSet::new();
        let (client, clock) = (self.client.clone(), shared.parts.clock);
        let (resigned, ended) = (resignation.clone(), end.clone());
        tasks.spawn(lease::run(client, self.election, clock, self.standing, resigned, ended));
        tasks.spawn(announce(Arc::clone(&shared), self.own));
        // It ends with the API, which is before the end.
        let desk = AbortOnDropHandle::new(tokio::spawn(desk(Arc::clone(&shared), self.writes)));
        let serving = serve::serve(self.listener, tls, Arc::clone(&shared), end.clone());
        tasks.spawn(async move {
            if let Err(error) = serving.await {
                warn!(error = %ErrorChain(&error), "the replicas' own port is no longer served");
            }
        });
        let mut office = Office {
            shared,
            started: Instant::now(),
            identity: self.identity,
            client: self.client,
            idle_pods_first: self.idle_pods_first,
            archive: Arc::new(Archive::new(self.shards)),
            standing,
            can_answer: self.can_answer,
            pulse: self.pulse,
            resignation,
            leaving,
            answered,
        };
        tokio::select! {
            () = office.run() => {}
            // None of them ends by itself, so the process must not go on without it.
            _ = tasks.join_next() => {}
        }
        end.cancel();
        drop(desk);
        Ok(())
    }
}

/// What leader and follower have in common.
#[derive(Debug)]
struct Shared {
    parts: Arc<Parts>,
    /// This process's own name.
    own: Arc<str>,
    ask_again: Duration,
    members: Members,
    followers: Followers,
    /// The way to the leader, while it is followed.
    leader: Mutex<Option<PairClient<Channel>>>,
    /// When this process last had everything: as the leader, or from one.
    known: Mutex<Option<Known>>,
    /// Of whoever leads, while it is not followed.
    heard: Heard,
    /// As the leader: what was learned before is back, so there is something to follow.
    has_recalled: AtomicBool,
    /// Answers of triggers that this process does not track yet.
    pending: Mutex<HashMap<TrackerKey, entry::Received>>,
    /// What was saved before has still to be read: by this process as the leader, or by whom it follows.
    is_unread: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    at: Instant,
    moment: Moment,
    /// The same by the clock of who led then, and so saved: two nodes' clocks are not compared.
    saved_until: Moment,
}

impl Shared {
    /// Everything is known as of now, which is `leaders_now` for who leads.
    fn mirrored(&self, leaders_now: Moment) {
        let moment = self.parts.clock.now();
        let known = Known { at: Instant::now(), moment, saved_until: leaders_now };
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<TrackerKey, entry::Received>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what was learned of triggers that are gone.
    fn forget_untracked(&self) {
        let trackers = self.parts.registry.trackers();
        let pending = self.pending();
        self.parts.states.keep_only(|key| {
            let is_tracked = trackers.binary_search_by(|own| own.key.cmp(key)).is_ok();
            is_tracked || pending.contains_key(key)
        });
    }

    fn known(&self) -> Option<Known> {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_leader(&self, leader: Option<PairClient<Channel>>) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = leader;
    }

    fn leader(&self) -> Option<PairClient<Channel>> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Says how this process is reached, again and again, since the record may be deleted.
async fn announce(shared: Arc<Shared>, own: Member) {
    let mut is_told = false;
    loop {
        match shared.members.publish(&own).await {
            Ok(()) => {
                is_told = false;
                // Kept for a time without the API server. If it fails now, the last list stays.
                drop(shared.members.list().await);
                sleep(ANNOUNCE_AGAIN).await;
            }
            Err(error) => {
                if !is_told {
                    warn!(%error, "the other replicas cannot find this one");
                }
                is_told = true;
                sleep(2 * BEAT).await;
            }
        }
    }
}

/// Takes this process's own writes to the leader. Who gets no answer is told that there is none.
async fn desk(shared: Arc<Shared>, mut writes: mpsc::Receiver<Write>) {
    while let Some(write) = writes.recv().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let taken = match shared.leader() {
                None => shared.wake_here(&write.key).await,
                Some(mut leader) => {
                    let asked = leader.wake(entry::workload(&write.key));
                    let answered = timeout(WAKE_TIMEOUT, asked).await;
                    answered.ok().and_then(Result::ok).map(|reply| reply.into_inner().wake)
                }
            };
            if let Some(wake) = taken {
                // Who asked may have left.
                drop(write.answer.send(wake));
            }
        });
    }
}

#[cfg(test)]
mod tests;
