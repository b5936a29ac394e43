//! What one case came to, as a line of a file.
//!
//! Must not judge it.

use serde::{Deserialize, Serialize};

/// One case, measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Its name.
    pub(crate) case: String,
    /// The trace.
    pub(crate) trace: String,
    /// Whether nothing about the engine was changed.
    pub(crate) plain: bool,
    /// Factor on the trace's rate.
    pub(crate) scale: f64,
    /// Requests that count.
    pub(crate) requests: usize,
    /// Hours that count.
    pub(crate) hours: f64,
    /// GPUs of a replica.
    pub(crate) gpus: usize,
    /// Replicas that the busiest minute needs.
    pub(crate) peak_need: f64,
    /// The share of requests within their targets that is asked for.
    pub(crate) bar: f64,
    /// How many seeds ours has run.
    pub(crate) seeds: usize,
    /// GPU-hours of the cheapest plan at the bar; `None` if no plan attains it.
    pub(crate) clairvoyant: Option<f64>,
    /// The same of another program.
    pub(crate) other_clairvoyant: Option<f64>,
    /// GPU-hours of the smallest static fleet at the bar.
    pub(crate) fixed: Option<f64>,
    /// Ours.
    pub(crate) ours: Line,
    /// The lowest attainment of a seed.
    pub(crate) worst: f64,
    /// Seconds until the learned model was within 10 % of the truth.
    pub(crate) learned_after_s: Option<f64>,
    /// Every peer at every setting.
    pub(crate) peers: Vec<Line>,
}

/// One policy at one setting.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Line {
    /// The policy.
    pub(crate) policy: String,
    /// Its setting.
    pub(crate) setting: String,
    /// Why it was run.
    pub(crate) why: String,
    /// Share of requests within their targets.
    pub(crate) attainment: f64,
    /// The same with the bare target to the first token.
    pub(crate) attainment_raw: f64,
    /// GPU-hours.
    pub(crate) gpu_hours: f64,
    /// Pods created.
    pub(crate) cold_starts: f64,
    /// Changes against the one before, within ten minutes.
    pub(crate) flaps: f64,
}

impl Record {
    /// The lower of the two clairvoyants.
    pub(crate) fn lowest(&self) -> Option<f64> {
        let both = self.clairvoyant.into_iter().chain(self.other_clairvoyant);
        both.reduce(f64::min)
    }

    /// Whether so many GPU-hours are at most 10 % or half a replica above the clairvoyant's.
    pub(crate) fn is_near(&self, gpu_hours: f64) -> bool {
        let half = 0.5 * self.hours * self.gpus as f64;
        self.lowest().is_some_and(|lowest| gpu_hours <= (1.10 * lowest).max(lowest + half))
    }

    /// Whether a policy attains what is asked for.
    pub(crate) fn attains(&self, line: &Line) -> bool {
        line.attainment >= self.bar
    }

    /// Whether a peer may be compared by its cost: it attains the bar or, where ours misses that, at least
    /// as much as ours.
    pub(crate) fn attains_as_much(&self, peer: &Line) -> bool {
        peer.attainment >= self.bar.min(self.ours.attainment)
    }

    /// Peers but for the static fleet, which is a reference.
    pub(crate) fn causal(&self) -> impl Iterator<Item = &Line> + Clone {
        self.peers.iter().filter(|line| line.policy != "static")
    }
}
