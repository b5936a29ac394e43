//! Several replicas of the scaler with one answer: the leader decides, the others answer from its
//! answers, and what is written to any of them reaches the leader.
//!
//! Must not decide who leads (`cluster::lease` does) nor what is answered (`tick` does).
//!
//! **A follower** takes every published answer over a stream, with its reasons, and what was learned.
//! It answers from that alone. If the stream breaks, the last answers stay in force, as when a
//! source is lost: an error could cost a workload its replicas. After [`STALE`] without a sign of
//! life from a leader that is seen to lead, the follower is not ready any more, so that KEDA asks the
//! leader; after [`FALLBACK_AFTER`] a declared fallback counts.
//!
//! **A hand-over** moves nothing: the new leader goes on from the last answers and from the state
//! behind them, which is sent with each changed answer and once a minute; at an orderly end it is
//! sent whole. Who leads without having followed takes what the shards have.
//!
//! **A write** is answered with success only when the leader and everyone who follows it have it.

mod entry;
mod follow;
mod followers;
pub mod identity;
mod serve;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use tracing::{info, warn};

use crate::cluster::members::{Member, Members};
use crate::cluster::shards::Shards;
use crate::cluster::{Client, deletion, events, lease};
use crate::decision::{Answer, Mode, Moment, Unavailable};
use crate::health::Pulse;
use crate::lead::{Standing, Write};
use crate::registry::Published;
use crate::statedir::SAVE_INTERVAL_MS;
use crate::telemetry::ErrorChain;
use crate::tick::{self, Parts};

use followers::Followers;
use identity::Identity;
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
/// Without a sign of life for this long the leader's answers are old.
pub const STALE: Duration = Duration::from_secs(10);
/// Without one for this long a declared fallback counts, as when an engine's metrics are lost.
pub const FALLBACK_AFTER: Duration = Duration::from_secs(900);
/// What was followed until now is as good as own memory; after a longer gap it is a restart's.
const SEAMLESS_MS: u64 = 60_000;
/// Time between two tries to reach the leader.
const RETRY: Duration = Duration::from_millis(500);
/// How long the last states may take to the followers, and to the shards.
const HAND_OVER: Duration = Duration::from_secs(3);
/// How long a wake may take over the leader.
const WAKE_TIMEOUT: Duration = Duration::from_secs(2);
const BEAT: Duration = Duration::from_secs(1);
/// Time between two looks of a follower at what it would have to know as the leader.
const KEEP_WARM: Duration = Duration::from_secs(20);

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
            members: self.members,
            followers: Followers::default(),
            leader: Mutex::default(),
            known: Mutex::default(),
        });
        let (resign, end) = (CancellationToken::new(), CancellationToken::new());
        let standing = self.standing.subscribe();
        let tls = self.identity.server()?;
        let mut tasks = JoinSet::new();
        let (client, clock) = (self.client.clone(), shared.parts.clock);
        let (resigned, ended) = (resign.clone(), end.clone());
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
            shards: Arc::new(tokio::sync::Mutex::new(self.shards)),
            standing,
            can_answer: self.can_answer,
            pulse: self.pulse,
            resign,
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
    members: Members,
    followers: Followers,
    /// The way to the leader, while it is followed.
    leader: Mutex<Option<PairClient<Channel>>>,
    /// When this process last had everything: as the leader, or from one.
    known: Mutex<Option<Known>>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    at: Instant,
    moment: Moment,
}

impl Shared {
    /// Everything is known as of now.
    fn mirrored(&self) {
        let known = Known { at: Instant::now(), moment: self.parts.clock.now() };
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
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
    const AGAIN: Duration = Duration::from_secs(30);
    let mut is_told = false;
    loop {
        match shared.members.publish(&own).await {
            Ok(()) => {
                is_told = false;
                sleep(AGAIN).await;
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

/// Who leads or stands by.
struct Office {
    shared: Arc<Shared>,
    started: Instant,
    identity: Identity,
    client: Client,
    idle_pods_first: bool,
    shards: Arc<tokio::sync::Mutex<Shards>>,
    standing: watch::Receiver<Standing>,
    can_answer: watch::Sender<bool>,
    pulse: Pulse,
    resign: CancellationToken,
    leaving: CancellationToken,
    answered: CancellationToken,
}

/// Why leading has ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// The lease is another's, or could not be renewed.
    Lost,
    /// This process is leaving.
    Leaving,
    /// A part has failed.
    Broken,
}

impl Office {
    async fn run(&mut self) {
        while !self.answered.is_cancelled() {
            if is_leading(&self.standing.borrow_and_update()) && !self.resign.is_cancelled() {
                match self.lead().await {
                    Ended::Lost => warn!("leading no more: another decides, or nobody"),
                    Ended::Leaving => self.hand_over().await,
                    Ended::Broken => return,
                }
            } else {
                self.stand_by().await;
            }
        }
    }

    /// Decides for as long as this process leads.
    async fn lead(&mut self) -> Ended {
        self.recall().await;
        self.can_answer.send_replace(true);
        self.shared.parts.metrics.leads();
        let end = CancellationToken::new();
        let parts = &self.shared.parts;
        let (client, registry, clock) = (self.client.clone(), parts.registry.clone(), parts.clock);
        let mut ticks = tokio::spawn(tick::run(Arc::clone(parts), self.pulse.clone(), end.clone()));
        let mut writers = JoinSet::new();
        if self.idle_pods_first {
            let (client, registry) = (client.clone(), registry.clone());
            writers.spawn(deletion::run(client, registry, clock, end.clone()));
        }
        writers.spawn(events::run(client, registry, clock, end.clone()));
        let saves = tokio::spawn(keep_saving(Arc::clone(&self.shards), Arc::clone(parts)));
        let saves = AbortOnDropHandle::new(saves);
        let mut looks = interval(BEAT);
        let why = loop {
            tokio::select! {
                _ = &mut ticks => break Ended::Broken,
                () = self.answered.cancelled() => break Ended::Leaving,
                changed = self.standing.changed() => if changed.is_err() { break Ended::Broken },
                _ = looks.tick() => {}
            }
            if !self.shared.parts.lead.decides() {
                break Ended::Lost;
            }
            if self.leaving.is_cancelled() && self.shared.followers.count() > 0 {
                break Ended::Leaving;
            }
        };
        end.cancel();
        drop(saves);
        // Not before the last decision is made: what follows sends it.
        if why != Ended::Broken {
            drop(ticks.await);
        }
        writers.shutdown().await;
        self.shared.mirrored();
        why
    }

    /// Brings back what this process does not know itself.
    async fn recall(&self) {
        let parts = &self.shared.parts;
        let known = self.shared.known();
        let gap_ms = known.map(|known| parts.clock.now().millis_since(known.moment));
        if gap_ms.is_some_and(|gap_ms| gap_ms < SEAMLESS_MS) {
            info!(gap_ms, "going on from the last leader's state");
            return;
        }
        parts.states.restart();
        let saved = self.shards.lock().await.restore().await;
        let since = known.map(|known| known.moment);
        let mut restored = 0_usize;
        for shard in saved {
            if since.is_some_and(|since| shard.saved_at <= Some(since)) {
                continue;
            }
            for (key, state) in shard.states {
                restored += 1;
                parts.states.put(key, state.restored());
            }
        }
        info!(restored, "what was saved is restored");
    }

    /// Gives everything away and then the lease.
    async fn hand_over(&self) {
        let parts = &self.shared.parts;
        let has_followers = self.shared.followers.count() > 0;
        let told = self.shared.followers.have_all(true, HAND_OVER);
        let saved = async {
            let mut shards = self.shards.lock().await;
            timeout(HAND_OVER, save(&mut shards, parts, Duration::ZERO)).await
        };
        let (told, saved) = tokio::join!(told, saved);
        info!(has_followers, told, saved = saved.is_ok(), "handing over");
        self.resign.cancel();
        let mut standing = self.standing.clone();
        let given_up = standing.wait_for(|standing| !is_leading(standing));
        if timeout(2 * BEAT, given_up).await.is_err() {
            warn!("the lease could not be given up; it runs out by itself");
        }
    }

    /// Follows whoever leads, until this process does.
    async fn stand_by(&mut self) {
        let mut following: Option<(Arc<str>, AbortOnDropHandle<()>)> = None;
        let mut beats = interval(BEAT);
        let mut warmed_at: Option<Instant> = None;
        loop {
            tokio::select! {
                () = self.answered.cancelled() => break,
                changed = self.standing.changed() => if changed.is_err() { break },
                _ = beats.tick() => {}
            }
            self.pulse.beat();
            if self.leaving.is_cancelled() {
                // Another shall lead if the leader goes too.
                self.resign.cancel();
            }
            if warmed_at.is_none_or(|at| at.elapsed() >= KEEP_WARM) {
                warmed_at = Some(Instant::now());
                tick::stand_by(&self.shared.parts);
            }
            let standing = self.standing.borrow_and_update().clone();
            let seen = match standing {
                Standing::Alone | Standing::Leading { .. } if !self.resign.is_cancelled() => break,
                Standing::Alone | Standing::Leading { .. } => None,
                Standing::Following { leader } => leader,
            };
            // One that is no longer seen to lead may well lead: the API server may be what is lost.
            if let Some(seen) = &seen
                && following.as_ref().is_none_or(|(leader, _)| leader != seen)
            {
                let keep = keep_following(
                    Arc::clone(&self.shared),
                    self.identity.clone(),
                    Arc::clone(seen),
                );
                following = Some((Arc::clone(seen), AbortOnDropHandle::new(tokio::spawn(keep))));
            }
            self.judge_age(seen.is_some());
        }
        if let Some((_, following)) = following {
            following.abort();
            // Not before its last answer is in force: from here on this process may decide.
            drop(following.await);
        }
        self.shared.set_leader(None);
    }

    /// What the age of the answers means.
    fn judge_age(&self, is_leader_seen: bool) {
        let age = self.shared.known().map(|known| known.at.elapsed());
        self.shared.parts.metrics.follows(age.unwrap_or(self.started.elapsed()));
        let can_answer = age.is_some_and(|age| age < STALE || !is_leader_seen);
        self.can_answer.send_if_modified(|before| {
            let is_news = *before != can_answer;
            if is_news && age.is_some() && !can_answer {
                warn!("the leader's answers are old: the last ones stay, and KEDA is sent to it");
            }
            *before = can_answer;
            is_news
        });
        if age.is_some_and(|age| age >= FALLBACK_AFTER) {
            for tracker in self.shared.parts.registry.trackers().iter() {
                let published = tracker.published.load_full();
                if let Some(fallback) = fallback(&published) {
                    tracker.publish(fallback);
                }
            }
        }
    }
}

/// The answer that lets a declared fallback count, where there is one and it does not count yet.
fn fallback(published: &Published) -> Option<Published> {
    let spec = published.spec.as_ref()?;
    let has_fallback = spec.fallback_replicas.is_some_and(|replicas| replicas > 0);
    let counts = matches!(published.answer, Answer::Unavailable { .. });
    let answer = Answer::Unavailable { why: Unavailable::SourceLost };
    let applies = has_fallback && spec.mode == Mode::Act && !counts;
    applies.then(|| Published { answer, ..published.clone() })
}

fn is_leading(standing: &Standing) -> bool {
    matches!(standing, Standing::Alone | Standing::Leading { .. })
}

/// Follows one leader, again after each break, until dropped.
async fn keep_following(shared: Arc<Shared>, identity: Identity, leader: Arc<str>) {
    let mut told = String::new();
    let mut pause = RETRY;
    loop {
        let started = Instant::now();
        let why = follow_once(&shared, &identity, &leader).await;
        shared.set_leader(None);
        if started.elapsed() > STALE {
            pause = RETRY;
            told.clear();
        }
        if why != told {
            info!(%leader, why, "the leader is not followed now");
            told = why;
        }
        sleep(pause).await;
        pause = (pause * 2).min(RETRY * 8);
    }
}

/// Follows until it breaks; says why.
async fn follow_once(shared: &Shared, identity: &Identity, leader: &str) -> String {
    let member = match shared.members.find(leader).await {
        Ok(Some(member)) => member,
        Ok(None) => return "it has not said how it is reached".to_owned(),
        Err(error) => return error.to_string(),
    };
    let client = match follow::connect(identity, &member).await {
        Ok(client) => client,
        Err(error) => return ErrorChain(&error).to_string(),
    };
    shared.set_leader(Some(client.clone()));
    let Err(error) = follow::follow(shared, client).await;
    ErrorChain(&error).to_string()
}

/// Saves the state again and again, until dropped.
async fn keep_saving(shards: Arc<tokio::sync::Mutex<Shards>>, parts: Arc<Parts>) {
    let interval = Duration::from_millis(SAVE_INTERVAL_MS);
    loop {
        sleep(interval).await;
        // Spread over a fifth of the interval, so that a large fleet is no burst of writes.
        save(&mut *shards.lock().await, &parts, interval / 5).await;
    }
}

async fn save(shards: &mut Shards, parts: &Parts, over: Duration) {
    let states = parts.states.snapshot(&parts.registry.inventory());
    let saved = shards.save(parts.clock.now(), &states, &parts.lead, over).await;
    parts.metrics.state_saved(saved.is_ok());
    if let Err(error) = saved {
        warn!(%error, "what was learned could not be saved");
    }
}

#[cfg(test)]
mod tests;
