//! What a follower has heard of whoever leads, while it hears no answers, and what that means for its
//! readiness.
//!
//! Must not follow (`follow` does) or elect.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::STALE;

/// How long a replica that reaches nobody is not ready, once: so long that its connections are told to go
/// away, which takes 8 s, and that KEDA has asked elsewhere.
const MOVE: Duration = Duration::from_secs(12);

/// What was heard last. Cheap to look at.
#[derive(Debug, Default)]
pub(super) struct Heard(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// When a leader said that it recalls what was learned before.
    recalls_at: Option<Instant>,
    /// Who holds the lease and is no replica.
    stranger: Option<Arc<str>>,
    /// Since when none of the others could be reached, while it is not known who leads.
    unreached_since: Option<Instant>,
}

impl Heard {
    /// A leader recalls what was learned before.
    pub(super) fn recalls(&self) {
        self.lock().recalls_at = Some(Instant::now());
    }

    /// This process leads.
    pub(super) fn leads(&self) {
        self.lock().unreached_since = None;
    }

    /// Who holds the lease has said how it is reached, or has not. Whether that is news.
    pub(super) fn holder(&self, name: &Arc<str>, is_replica: bool) -> bool {
        let stranger = (!is_replica).then(|| Arc::clone(name));
        let mut inner = self.lock();
        let is_news = inner.stranger != stranger;
        inner.stranger = stranger;
        inner.unreached_since = None;
        is_news
    }

    /// All that are known were asked, and one of them answered, or none.
    pub(super) fn asked(&self, is_reached: bool) {
        let mut inner = self.lock();
        let since = inner.unreached_since.unwrap_or_else(Instant::now);
        inner.unreached_since = (!is_reached).then_some(since);
    }

    /// How things stand with this holder of the lease, or without one.
    pub(super) fn head(&self, holder: Option<&Arc<str>>) -> Head {
        let inner = self.lock();
        if inner.recalls_at.is_some_and(|at| at.elapsed() < STALE) {
            return Head::Recalls;
        }
        match holder {
            Some(_) if inner.stranger.as_ref() == holder => Head::Stranger,
            Some(_) => Head::Leads,
            None => Head::Unseen { unreached: inner.unreached_since.map(|at| at.elapsed()) },
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who stands at the head, as far as a follower can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    /// A replica that is seen to lead.
    Leads,
    /// One that answers nobody yet.
    Recalls,
    /// A holder of the lease that is none of the replicas, so that nobody decides.
    Stranger,
    /// Nobody is seen to lead.
    Unseen {
        /// For how long none of the others could be reached.
        unreached: Option<Duration>,
    },
}

impl Head {
    /// Whether answers of this age may go on.
    ///
    /// Where nobody has newer ones they do: whoever was sent away would have nowhere to go. A replica that
    /// neither sees who leads nor reaches another may be the one that is cut off: it sends KEDA away once,
    /// and then answers whoever comes back.
    pub(super) fn stays_ready(self, age: Duration) -> bool {
        age < STALE
            || match self {
                Head::Leads => false,
                Head::Recalls | Head::Stranger => true,
                Head::Unseen { unreached } => {
                    unreached.is_none_or(|time| time < STALE || time >= STALE + MOVE)
                }
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Duration = STALE;

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_is_no_replica_sends_nobody_away() {
        let (heard, holder) = (Heard::default(), Arc::from("somebody"));
        assert!(!heard.head(Some(&holder)).stays_ready(OLD), "a replica, as far as is known");
        assert!(heard.holder(&holder, false), "told once");
        assert!(!heard.holder(&holder, false));
        assert_eq!(heard.head(Some(&holder)), Head::Stranger);
        assert!(heard.head(Some(&holder)).stays_ready(OLD));
        assert_eq!(heard.head(Some(&Arc::from("second"))), Head::Leads, "another has it now");
        assert!(heard.holder(&holder, true));
        assert!(!heard.head(Some(&holder)).stays_ready(OLD));
    }

    #[tokio::test(start_paused = true)]
    async fn who_reaches_nobody_sends_keda_away_once() {
        let heard = Heard::default();
        let stays = || heard.head(None).stays_ready(OLD);
        assert!(stays(), "nobody else is known");
        heard.asked(false);
        assert!(stays(), "for a moment it may be the other's restart");
        tokio::time::advance(STALE).await;
        heard.asked(false);
        assert!(!stays());
        assert!(heard.head(None).stays_ready(Duration::ZERO), "answers that are fresh are right");
        tokio::time::advance(MOVE).await;
        heard.asked(false);
        assert!(stays(), "who comes back is answered");
        heard.asked(true);
        tokio::time::advance(STALE).await;
        assert!(stays(), "another is there, and does not lead either");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_recalls_is_waited_for() {
        let (heard, holder) = (Heard::default(), Arc::from("second"));
        heard.recalls();
        assert!(heard.head(Some(&holder)).stays_ready(OLD));
        tokio::time::advance(STALE).await;
        assert!(!heard.head(Some(&holder)).stays_ready(OLD));
    }
}
