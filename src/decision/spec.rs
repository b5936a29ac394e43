//! One workload's policy, validated: what `decide` may never doubt.
//!
//! Built by `trigger` from KEDA's metadata, by `config` from a file, or by a test.

use serde::{Deserialize, Serialize};

use super::Part;

/// The policy of one workload. Every field is in range by construction (`trigger` checks).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Fewest replicas (KEDA's `minReplicaCount`); 0 allows zero.
    pub min: u32,
    /// Most replicas (KEDA's `maxReplicaCount`), at least 1 and at least `min`.
    pub max: u32,
    /// Time-to-first-token target in milliseconds. Default 2,000.
    pub slo_ttft_ms: u64,
    /// Time-per-output-token target in milliseconds. Default 200.
    pub slo_tpot_ms: u64,
    /// In-flight requests that one replica should carry; overrides what is learned.
    pub target_in_flight: Option<f64>,
    /// GPU utilisation, 0..1, above which survivors of a step down may not run. Default 0.8.
    pub gpu_ceiling: f64,
    /// Evidence needed for a release, in milliseconds; overrides the learned hold.
    pub ghost_hold_ms: Option<u64>,
    /// Idle time before zero.
    pub zero_after: ZeroAfter,
    /// A signal that exists at zero replicas is configured.
    pub has_wake_source: bool,
    /// What kind of traffic to assume until measured.
    pub profile: Profile,
    /// GPUs of one replica, where known.
    pub gpus_per_replica: Option<u32>,
    /// Whether the answer is acted on.
    pub mode: Mode,
    /// Replicas of the ScaledObject's `fallback`, where that is at least 1.
    pub fallback_replicas: Option<u32>,
    /// Tolerance of the HPA for a step up, 0..1: its own, else the controller's default. `None` means
    /// that nobody has read the HPA; then no answer is pushed past its dead band.
    pub hpa_tolerance: Option<f64>,
    /// The interval between ticks in milliseconds: 5,000 for direct scrapes, 15,000 for Prometheus.
    pub tick_ms: u64,
    /// A part of the decision that is left out, to measure what it is worth. Default none; no
    /// metadata sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<Part>,
}

impl Default for Spec {
    /// The defaults of the trigger metadata, for 1 to 8 replicas read by direct scrape.
    fn default() -> Self {
        Spec {
            min: 1,
            max: 8,
            slo_ttft_ms: 2_000,
            slo_tpot_ms: 200,
            target_in_flight: None,
            gpu_ceiling: 0.8,
            ghost_hold_ms: None,
            zero_after: ZeroAfter::After { millis: 3_600_000 },
            has_wake_source: false,
            profile: Profile::Chat,
            gpus_per_replica: None,
            mode: Mode::Act,
            fallback_replicas: None,
            hpa_tolerance: None,
            tick_ms: 5_000,
            without: None,
        }
    }
}

impl Spec {
    /// `count` within the bounds; a maximum of 0 counts as 1, and a maximum below the
    /// minimum wins.
    #[must_use]
    pub fn clamp(&self, count: u32) -> u32 {
        let max = self.max.max(1);
        count.clamp(self.min.min(max), max)
    }

    /// Whether a part of the decision is in force.
    pub(super) fn has(&self, part: Part) -> bool {
        self.without != Some(part)
    }
}

/// When an idle workload may go to zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "when", rename_all = "snake_case")]
pub enum ZeroAfter {
    /// Never.
    Never,
    /// After this much evidence of no work.
    After {
        /// In milliseconds. Default 3,600,000.
        millis: u64,
    },
}

/// The kind of traffic assumed until the workload itself has been measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Interactive chat: short prompts, medium answers.
    Chat,
    /// Long prompts: few requests fill a replica.
    LongContext,
    /// Offline work: latency matters little.
    Batch,
}

/// Whether the answer is acted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The decision is the answer.
    Act,
    /// The decision is published; the answer reproduces the present count.
    Shadow,
}
