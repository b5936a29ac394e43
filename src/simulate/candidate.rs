//! A policy with one setting, ready to be run any number of times.
//!
//! Must not run it.

use std::fmt;
use std::sync::Arc;

use super::policy::{Policy, Slo};

/// What a policy may know of the workload before it starts: what its user would configure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Context {
    /// Fewest replicas.
    pub min: u32,
    /// Most replicas.
    pub max: u32,
    /// Latency targets.
    pub slo: Slo,
    /// Tokens that the KV cache of one replica holds.
    pub kv_tokens: f64,
    /// The engine's `max_num_seqs` and `max_num_batched_tokens`.
    pub limits: (f64, f64),
    /// GPUs of one replica.
    pub gpus: u32,
    /// Mean prompt and answer of the workload in tokens, for policies that want them configured.
    pub mean_tokens: (f64, f64),
    /// Prompt tokens that one replica computes per second in full steps, as calibrated.
    pub prefill_tokens_per_s: f64,
}

/// Makes a new policy.
pub type Make = Arc<dyn Fn(&Context) -> Box<dyn Policy> + Send + Sync>;

/// A policy with one setting.
#[derive(Clone)]
pub struct Candidate {
    /// The policy; all its settings share the name.
    pub policy: &'static str,
    /// Its setting, such as `target 5`; empty for one that has none.
    pub setting: String,
    /// Why this setting is run.
    pub why: Why,
    /// Makes it.
    pub make: Make,
}

/// Why a setting is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It is what the product does without being told anything.
    Default,
    /// It is what the policy's own documentation ships.
    Documented,
    /// It is a point of the sweep over the policy's knob.
    Swept,
    /// It is the product with a rule off.
    Ablation,
}

impl Candidate {
    /// A candidate whose policies are made by `make`.
    #[must_use]
    pub fn new<P: Policy + 'static>(
        policy: &'static str,
        setting: impl Into<String>,
        why: Why,
        make: impl Fn(&Context) -> P + Send + Sync + 'static,
    ) -> Candidate {
        let make: Make = Arc::new(move |context| Box::new(make(context)));
        Candidate { policy, setting: setting.into(), why, make }
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {:?})", self.policy, self.setting, self.why)
    }
}
