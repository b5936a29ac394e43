//! Leads or stands by: what a process does as the leader, as a follower, and in between.
//!
//! Must not elect: it acts on where the election says that this process stands.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::archive::Archive;
use super::heard::Head;
use super::identity::Identity;
use super::{BEAT, FALLBACK_AFTER, STALE, Shared, follow};
use crate::cluster::{Client, deletion, events, lease};
use crate::decision::{Answer, Mode, Unavailable};
use crate::health::Pulse;
use crate::lead::Standing;
use crate::registry::Published;
use crate::telemetry::ErrorChain;
use crate::tick;

/// What was followed until now is as good as own memory; after a longer gap it is a restart's.
const SEAMLESS_MS: u64 = 60_000;
/// Time between two tries to reach the leader.
const RETRY: Duration = Duration::from_millis(500);
/// How long the last states may take to the followers, and to the shards.
const HAND_OVER: Duration = Duration::from_secs(3);
/// How long giving the lease up may take.
const GIVE_UP: Duration = Duration::from_secs(2);
/// Time between two looks of a follower at what it would have to know as the leader.
const KEEP_WARM: Duration = Duration::from_secs(20);

/// Who leads or stands by.
pub(super) struct Office {
    pub(super) shared: Arc<Shared>,
    pub(super) started: Instant,
    pub(super) identity: Identity,
    pub(super) client: Client,
    pub(super) idle_pods_first: bool,
    pub(super) archive: Arc<Archive>,
    pub(super) standing: watch::Receiver<Standing>,
    pub(super) can_answer: watch::Sender<bool>,
    pub(super) pulse: Pulse,
    pub(super) resignation: lease::Resignation,
    pub(super) leaving: CancellationToken,
    pub(super) answered: CancellationToken,
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
    /// Leads or stands by until nobody asks this process any more.
    pub(super) async fn run(&mut self) {
        while !self.answered.is_cancelled() {
            if is_leading(&self.standing.borrow_and_update())
                && !self.resignation.asked.is_cancelled()
            {
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
        self.shared.heard.leads();
        self.recall().await;
        self.shared.has_recalled.store(true, Ordering::Release);
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
        let saves = tokio::spawn(Arc::clone(&self.archive).keep_saving(Arc::clone(&self.shared)));
        let mut saves = AbortOnDropHandle::new(saves);
        let mut looks = interval(BEAT);
        let why = loop {
            tokio::select! {
                // None of them ends by itself: the process must not go on without it.
                _ = &mut ticks => break Ended::Broken,
                _ = &mut saves => break Ended::Broken,
                Some(_) = writers.join_next() => break Ended::Broken,
                () = self.answered.cancelled() => break Ended::Leaving,
                changed = self.standing.changed() => if changed.is_err() { break Ended::Broken },
                _ = looks.tick() => {}
            }
            if !self.shared.parts.lead.decides() {
                break Ended::Lost;
            }
            // While it decides, and not when it learns that it did no more: meanwhile another may have.
            self.shared.mirrored(self.shared.parts.clock.now());
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
        why
    }

    /// Brings back what this process does not know itself.
    async fn recall(&self) {
        let parts = &self.shared.parts;
        let known = self.shared.known();
        let gap_ms = known.map(|known| parts.clock.now().millis_since(known.moment));
        if gap_ms.is_some_and(|gap_ms| gap_ms < SEAMLESS_MS) {
            info!(gap_ms, "going on from the last leader's state");
            self.archive.go_on().await;
            return;
        }
        parts.states.restart();
        let since = known.map(|known| known.saved_until);
        self.archive.recall(&self.shared, since, &self.pulse).await;
    }

    /// Gives everything away and then the lease.
    async fn hand_over(&self) {
        let has_followers = self.shared.followers.count() > 0;
        let told = self.shared.followers.have_all(true, HAND_OVER);
        let saved = timeout(HAND_OVER, self.archive.save_last(&self.shared));
        let (told, saved) = tokio::join!(told, saved);
        info!(has_followers, told, saved = saved.is_ok(), "handing over");
        self.resignation.asked.cancel();
        if timeout(GIVE_UP, self.resignation.done.cancelled()).await.is_err() {
            warn!("the lease could not be given up; it runs out by itself");
        }
    }

    /// Follows whoever leads, until this process does.
    async fn stand_by(&mut self) {
        // Who follows this process later is to get what it will have recalled then.
        self.shared.has_recalled.store(false, Ordering::Release);
        let mut following: Option<(Option<Arc<str>>, AbortOnDropHandle<()>)> = None;
        let mut beats = interval(BEAT);
        let mut warmed_at: Option<Instant> = None;
        let mut trackers = self.shared.parts.registry.changes();
        trackers.mark_changed();
        loop {
            tokio::select! {
                () = self.answered.cancelled() => break,
                changed = self.standing.changed() => if changed.is_err() { break },
                _ = beats.tick() => {}
            }
            self.pulse.beat();
            if self.leaving.is_cancelled() {
                // Another shall lead if the leader goes too.
                self.resignation.asked.cancel();
            }
            if warmed_at.is_none_or(|at| at.elapsed() >= KEEP_WARM) {
                warmed_at = Some(Instant::now());
                tick::stand_by(&self.shared.parts);
                self.shared.parts.registry.drop_idle();
            }
            if trackers.has_changed().is_ok_and(|has| has) {
                trackers.mark_unchanged();
                self.shared.forget_untracked();
            }
            let standing = self.standing.borrow_and_update().clone();
            let seen = match standing {
                _ if is_leading(&standing) && !self.resignation.asked.is_cancelled() => break,
                Standing::Alone | Standing::Leading { .. } => None,
                Standing::Following { leader } => leader,
            };
            // One that is no longer seen to lead may well lead: the API server may be what is lost.
            let is_another = following.as_ref().is_none_or(|(leader, task)| {
                task.is_finished() || (seen.is_some() && *leader != seen)
            });
            // Without the own list of workloads nothing of the leader's could be kept.
            if is_another && self.shared.parts.registry.inventory().synced {
                let keep =
                    keep_following(Arc::clone(&self.shared), self.identity.clone(), seen.clone());
                following = Some((seen.clone(), AbortOnDropHandle::new(tokio::spawn(keep))));
            }
            self.judge_age(seen.as_ref());
        }
        if let Some((_, following)) = following {
            following.abort();
            // Not before its last answer is in force: from here on this process may decide.
            drop(following.await);
        }
        self.shared.set_leader(None);
    }

    /// What the age of the answers means.
    fn judge_age(&self, holder: Option<&Arc<str>>) {
        let age = self.shared.known().map(|known| known.at.elapsed());
        self.shared.parts.metrics.follows(age.unwrap_or_else(|| self.started.elapsed()));
        let head = self.shared.heard.head(holder);
        self.shared.parts.metrics.lease_is_strangers(head == Head::Stranger);
        let can_answer = age.is_some_and(|age| head.stays_ready(age));
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
pub(super) fn fallback(published: &Published) -> Option<Published> {
    let spec = published.spec.as_ref()?;
    let has_fallback = spec.fallback_replicas.is_some_and(|replicas| replicas > 0);
    let counts = matches!(published.answer, Answer::Unavailable { .. });
    let answer = Answer::Unavailable { why: Unavailable::SourceLost };
    let applies = has_fallback && spec.mode == Mode::Act && !counts;
    applies.then(|| Published { answer, ..published.clone() })
}

pub(super) fn is_leading(standing: &Standing) -> bool {
    match standing {
        Standing::Alone => true,
        // What has run out is not told before the API server has answered.
        Standing::Leading { until } => Instant::now() < *until,
        Standing::Following { .. } => false,
    }
}

/// Follows one leader, or whoever leads, again after each break, until dropped.
async fn keep_following(shared: Arc<Shared>, identity: Identity, leader: Option<Arc<str>>) {
    let mut told = String::new();
    let mut pause = RETRY;
    loop {
        let started = Instant::now();
        let why = follow_once(&shared, &identity, leader.as_ref()).await;
        shared.set_leader(None);
        if started.elapsed() > STALE {
            pause = RETRY;
            told.clear();
        }
        if why != told {
            info!(leader = leader.as_deref(), why, "the leader is not followed now");
            told = why;
        }
        sleep(pause).await;
        pause = (pause * 2).min(RETRY * 8);
    }
}

/// Follows until it breaks; says why. Where nobody can be seen to lead, or be looked up, whoever was
/// known last is asked in turn: who does not lead refuses.
pub(super) async fn follow_once(
    shared: &Shared,
    identity: &Identity,
    leader: Option<&Arc<str>>,
) -> String {
    let found = match leader {
        Some(name) => shared.members.find(name).await.map(|found| Some((name, found))),
        None => Ok(None),
    };
    let (mut why, members) = match found {
        Ok(Some((name, Some(member)))) => {
            shared.heard.holder(name, true);
            (String::new(), vec![member])
        }
        Ok(Some((name, None))) => {
            if shared.heard.holder(name, false) {
                warn!(
                    holder = %name,
                    "who holds the Lease has not said how it is reached: while that is no replica of \
                     this scaler nobody decides, and the last answers stay"
                );
            }
            return "it has not said how it is reached".to_owned();
        }
        Ok(None) => ("no other replica is known".to_owned(), shared.members.last_seen()),
        Err(error) => (error.to_string(), shared.members.last_seen()),
    };
    let others = || members.iter().filter(|member| member.name != shared.own);
    let mut is_reached = others().next().is_none();
    for member in others() {
        let client = match follow::connect(identity, member).await {
            Ok(client) => client,
            Err(error) => {
                why = ErrorChain(&error).to_string();
                continue;
            }
        };
        is_reached = true;
        shared.heard.asked(is_reached);
        shared.set_leader(Some(client.clone()));
        let Err(error) = follow::follow(shared, client).await;
        shared.set_leader(None);
        if matches!(error, follow::Error::Recalls) {
            shared.heard.recalls();
        }
        why = ErrorChain(&error).to_string();
    }
    shared.heard.asked(is_reached);
    why
}
