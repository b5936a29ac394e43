//! What is known of one ScaledObject and of what stands around it.
//!
//! Data only. A fact that was not looked at, or could not be, says why, and is never guessed: the
//! checks that need it are then told as not made.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::survey::Keda;
use crate::config::Config;
use crate::source::Error as SourceError;

/// Something that is known, or why it is not.
pub type Fact<T> = Result<T, Missing>;

/// Why a fact is not known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Missing(pub String);

impl Missing {
    /// For this reason.
    pub(super) fn because(reason: impl Into<String>) -> Missing {
        Missing(reason.into())
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&Missing> for Missing {
    fn from(missing: &Missing) -> Missing {
        missing.clone()
    }
}

/// One ScaledObject and what is known around it. Objects are as the API server or a file has them.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The ScaledObject.
    pub object: Value,
    /// What it scales.
    pub target: Fact<Value>,
    /// The target's scale subresource; `None` if it has none.
    pub scale: Fact<Option<Value>>,
    /// What controls the target; `None` if nothing does.
    pub owner: Fact<Option<Owner>>,
    /// The HPA that KEDA made of the ScaledObject; `None` if there is none.
    pub hpa: Fact<Option<Value>>,
    /// The namespace's other HPAs.
    pub other_hpas: Fact<Vec<Value>>,
    /// The namespace's other ScaledObjects.
    pub other_objects: Fact<Vec<Value>>,
    /// The pods of the target.
    pub pods: Fact<Vec<Value>>,
    /// The Service that the trigger's address names; `None` if there is none.
    pub service: Fact<Option<Value>>,
    /// The scaler's own Deployment: the one whose pods that Service selects.
    pub scaler: Fact<Value>,
    /// Who holds the Lease of the scaler's replicas and renews it without being one; `None` if nobody.
    pub stranger: Fact<Option<String>>,
    /// Every Service of this scaler, wherever it is.
    pub installations: Fact<Vec<Installation>>,
    /// The scaler's configuration file.
    pub configuration: Fact<Arc<Config>>,
    /// The minor version of Kubernetes: 36 of 1.36.
    pub kubernetes_minor: Fact<u32>,
    /// The cluster's KEDA.
    pub keda: Fact<Keda>,
    /// Who answers for external metrics; `None` if nobody does.
    pub external_metrics: Fact<Option<Value>>,
    /// The Service of KEDA's metrics adapter.
    pub keda_adapter: Fact<Option<Value>>,
    /// The nodes' GPUs and who removes nodes.
    pub nodes: Fact<Nodes>,
    /// The namespace's quotas.
    pub quotas: Fact<Vec<Value>>,
    /// What the scaler's account may not do of what it needs.
    pub rights: Fact<Rights>,
    /// What Prometheus knows.
    pub prometheus: Fact<Prometheus>,
    /// From order to readiness, in milliseconds.
    pub cold_start_ms: Fact<u64>,
    /// The longest answers, p99 from request to end, in milliseconds.
    pub longest_answer_ms: Fact<u64>,
}

/// A Service of this scaler and who is at both of its ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Installation {
    /// The Service.
    pub service: Value,
    /// The Deployment whose pods it selects.
    pub deployment: Fact<Value>,
    /// The namespaces of the ScaledObjects that ask it, in the whole cluster.
    pub asked_from: Fact<BTreeSet<String>>,
}

/// What controls a target.
#[derive(Debug, Clone, PartialEq)]
pub struct Owner {
    /// The object.
    pub object: Value,
    /// It has a scale subresource of its own.
    pub scales: bool,
}

/// The nodes, as far as it matters here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    /// GPUs that they can give in all.
    pub gpus: u32,
    /// Whether something adds and removes nodes.
    pub autoscaler: Option<NodeAutoscaler>,
}

/// What adds and removes nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeAutoscaler {
    /// Karpenter, by its label on nodes.
    Karpenter,
    /// The cluster autoscaler, by the ConfigMap of its status.
    ClusterAutoscaler,
}

/// What an account may do of [`cluster::RBAC`](crate::cluster::RBAC), and of
/// [`cluster::OWN_RBAC`](crate::cluster::OWN_RBAC) in its own namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// The account, as `NAMESPACE/NAME`.
    pub account: String,
    /// The namespace in which it was asked about what the workloads take; `None` for all.
    pub within: Option<String>,
    /// What it lacks where the workloads are.
    pub lacks: Vec<Lack>,
    /// What it lacks in its own namespace; nothing where it has no other replica.
    pub own_lacks: Vec<Lack>,
}

/// One permission that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// The API group.
    pub api_group: &'static str,
    /// The resource.
    pub resource: &'static str,
    /// The verbs that are refused.
    pub verbs: Vec<&'static str>,
}

/// What a Prometheus said.
#[derive(Debug, Clone)]
pub struct Prometheus {
    /// Its address.
    pub url: String,
    /// Its answers, or the first fault.
    pub said: Result<Said, Arc<SourceError>>,
}

/// The answers of a Prometheus.
#[derive(Debug, Clone, Default)]
pub struct Said {
    /// Label sets of series that look like an engine's load, by whatever name and in whatever
    /// namespace.
    pub engines: Vec<Labels>,
    /// The query of the trigger's wake source, where it has one.
    pub wake: Option<Wake>,
}

/// What the query of a wake source gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wake {
    /// The source's name.
    pub source: String,
    /// It gives no series at all.
    pub is_empty: bool,
    /// Its selectors.
    pub selectors: Vec<Selected>,
}

/// A series' labels that matter, its name among them as `__name__`.
pub type Labels = BTreeMap<String, String>;

/// One selector of a query and what there is of its metric.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selected {
    /// The metric's name.
    pub metric: String,
    /// Labels that have to be equal to a value.
    pub wants: Labels,
    /// What the series have in these labels.
    pub found: Vec<Labels>,
}
