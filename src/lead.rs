//! Who decides: this process alone, this one of several, or another.
//!
//! Holds data only. Must not elect (`cluster::lease` does) or talk to anybody (`pair` does).

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::inventory::WorkloadKey;

/// Where this process stands among the replicas of the scaler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// There is no election: this process decides.
    Alone,
    /// This process decides, until then unless it renews.
    Leading {
        /// A pause of the process that lasts beyond it ends the right to decide.
        until: Instant,
    },
    /// Another decides, or nobody.
    Following {
        /// Who was seen to renew lately; `None` if nobody was, or nothing can be seen.
        leader: Option<Arc<str>>,
    },
}

/// The present [`Standing`], for those who must know. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Lead {
    standing: watch::Receiver<Standing>,
}

impl Default for Lead {
    /// Without an election.
    fn default() -> Lead {
        Lead { standing: watch::channel(Standing::Alone).1 }
    }
}

impl Lead {
    /// What an election publishes.
    #[must_use]
    pub fn of(standing: watch::Receiver<Standing>) -> Lead {
        Lead { standing }
    }

    /// Whether this process may decide now. Looked at before each decision is published, so that a
    /// process that was paused publishes nothing more.
    #[must_use]
    pub fn decides(&self) -> bool {
        match *self.standing.borrow() {
            Standing::Alone => true,
            Standing::Leading { until } => Instant::now() < until,
            Standing::Following { .. } => false,
        }
    }
}

/// Hands writes to whoever decides. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Writes {
    queue: mpsc::Sender<Write>,
}

/// A write on its way to the leader.
#[derive(Debug)]
pub struct Write {
    /// The workload that shall be woken.
    pub key: WorkloadKey,
    /// Where the leader's answer goes, as the JSON that the API answers with. Dropped when there is
    /// no leader.
    pub answer: oneshot::Sender<Vec<u8>>,
}

/// Nobody has taken the write: there is no leader, it is out of reach, or it was not sure that the
/// write would outlive it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no replica of the scaler has taken the write")]
pub struct NotTaken;

impl Writes {
    /// The way in, and where the writes come out. At most `limit` wait.
    #[must_use]
    pub fn channel(limit: usize) -> (Writes, mpsc::Receiver<Write>) {
        let (queue, writes) = mpsc::channel(limit);
        (Writes { queue }, writes)
    }

    /// Asks the leader to wake a workload; gives its answer.
    ///
    /// # Errors
    ///
    /// When nobody has surely taken it; asking again does no harm.
    pub async fn wake(&self, key: WorkloadKey) -> Result<Vec<u8>, NotTaken> {
        let (answer, answered) = oneshot::channel();
        self.queue.try_send(Write { key, answer }).map_err(|_full_or_ended| NotTaken)?;
        answered.await.map_err(|_dropped| NotTaken)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_was_paused_past_its_time_decides_nothing_more() {
        let until = Instant::now() + Duration::from_secs(7);
        let (_election, standing) = watch::channel(Standing::Leading { until });
        let lead = Lead::of(standing);
        assert!(lead.decides());
        tokio::time::advance(Duration::from_secs(7)).await;
        assert!(!lead.decides());
        assert!(Lead::default().decides(), "alone it always does");
    }
}
