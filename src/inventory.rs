//! What is known of each workload apart from its engines' metrics: bounds, counts and members.
//!
//! Filled by `config` (a file) or by `cluster` (the Kubernetes API); read by `observe` and
//! `registry`. Holds data only, does no IO.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::decision::{Moment, Phase, Replicas};

/// Most replicas of a workload that does not say: KEDA's default of `maxReplicaCount`.
pub const DEFAULT_MAX_REPLICAS: u32 = 100;

/// Most replicas that are believed: the HPA's int32 would allow more, no GPU fleet does.
pub const MOST_REPLICAS: u32 = 1_000_000;

/// Namespace and name of a ScaledObject, or of a workload of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct WorkloadKey {
    /// The Kubernetes namespace.
    pub namespace: Arc<str>,
    /// The ScaledObject's name.
    pub name: Arc<str>,
}

impl WorkloadKey {
    /// A key from its parts.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> WorkloadKey {
        WorkloadKey { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for WorkloadKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One workload as the inventory knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Its name.
    pub key: WorkloadKey,
    /// Fewest replicas.
    pub min: u32,
    /// Most replicas.
    pub max: u32,
    /// Replicas of the ScaledObject's `fallback`, where that is at least 1.
    pub fallback_replicas: Option<u32>,
    /// Metadata of each trigger that could be ours, as written (`FromEnv` keys unresolved).
    pub triggers: Vec<BTreeMap<String, String>>,
    /// Replica counts.
    pub replicas: Replicas,
    /// Pods of the target, or configured endpoints, ordered by id.
    pub members: Vec<Member>,
    /// Who counts the ready ones.
    pub counted: Counted,
    /// GPUs that one replica asks for, where known.
    pub gpus_per_replica: Option<u32>,
    /// Its ScaledObject is paused: KEDA neither asks for it nor scales it.
    pub paused: bool,
}

/// Who counts a workload's ready replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Kubernetes: `replicas` is whole.
    ByKubernetes,
    /// The engines' own answers: only `replicas.spec` is known.
    ByAnswers,
}

/// One pod or configured endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Pod name, or the endpoint as written.
    pub id: Arc<str>,
    /// Where in its life it is.
    pub phase: Phase,
    /// When it was created, where known.
    pub created_at: Option<Moment>,
    /// When it turned ready, where known.
    pub ready_at: Option<Moment>,
    /// Where its metrics are, where known.
    pub endpoint: Option<Endpoint>,
}

/// Where an engine's metrics are.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    /// A whole URL of the configuration.
    Url(Arc<str>),
    /// A pod's address; port and path come from the trigger or the pod's own declaration.
    Pod {
        /// The pod's IP.
        ip: std::net::IpAddr,
        /// The port that the pod declares for metrics (annotation `prometheus.io/port`, or a
        /// container port named `metrics` or `http`), where it does.
        port: Option<u16>,
    },
}

/// Every workload at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    /// Whether the source has been read whole at least once; before that a workload that is not
    /// listed is unknown, not absent.
    pub synced: bool,
    /// Since when some of it may be out of date, because the source does not answer; `None` while
    /// all of it is kept fresh.
    pub stale_since: Option<Moment>,
    /// The workloads.
    pub workloads: BTreeMap<WorkloadKey, Arc<Workload>>,
}
