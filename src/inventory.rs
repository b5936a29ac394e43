//! What is known of each workload apart from its engines' metrics: bounds, counts and members.
//!
//! Filled by `config` (a file) or by `cluster` (the Kubernetes API); read by `observe` and
//! `registry`. Holds data only, does no IO.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::decision::{DEFAULT_TOLERANCE, Moment, Phase, Replicas};
use crate::hpa::Behavior;

/// Most replicas of a workload that does not say: KEDA's default of `maxReplicaCount`.
pub const DEFAULT_MAX_REPLICAS: u32 = 100;

/// Most replicas that are believed: the HPA's int32 would allow more, no GPU fleet does.
pub const MOST_REPLICAS: u32 = 1_000_000;

/// Namespace and name of a ScaledObject, or of a workload of the configuration.
///
/// Half a dozen tables name each of thousands of workloads: all clones share the [`Names`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct WorkloadKey(Arc<Names>);

/// The parts of a [`WorkloadKey`].
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Names {
    /// The Kubernetes namespace.
    pub namespace: Arc<str>,
    /// The ScaledObject's name.
    pub name: Arc<str>,
}

impl WorkloadKey {
    /// A key from its parts.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> WorkloadKey {
        Names { namespace: namespace.into(), name: name.into() }.into()
    }
}

impl From<Names> for WorkloadKey {
    fn from(names: Names) -> WorkloadKey {
        WorkloadKey(Arc::new(names))
    }
}

impl Deref for WorkloadKey {
    type Target = Names;

    fn deref(&self) -> &Names {
        &self.0
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
    /// What Kubernetes alone says of it.
    pub kubernetes: Kubernetes,
}

/// What Kubernetes alone says of a workload; nothing of it where the configuration describes it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kubernetes {
    /// The HPA that KEDA keeps for it, where it has been read.
    pub hpa: Option<Arc<Hpa>>,
    /// What else scales the same target, as `Kind/name`.
    pub rivals: Box<[String]>,
    /// Devices that one replica asks for.
    pub devices: Arc<Devices>,
    /// How long a replica takes to start, by those that have.
    pub start: Option<Start>,
    /// What holds its ScaledObject.
    pub pauses: Pauses,
    /// Who has written the target's replicas last, where that was not through its scale
    /// subresource, as autoscalers and people do it: a pipeline with a count in its file.
    pub writer: Option<Arc<str>>,
    /// Why the API server refuses more pods of it, as by a quota.
    pub refusal: Option<Arc<str>>,
    /// Its pods are ReplicaSets', which choose by what each says that it costs to take away.
    pub ranks_pods: bool,
    /// Until when pods of two revisions of its template, which stand beside each other, count as a
    /// rollout, where its controller does not say whether it rolls out; `None` where all are of one.
    pub rollout_until: Option<Moment>,
    /// There are more pods than are kept, some of its namespace among those left out: its count is
    /// unknown.
    pub is_cut: bool,
}

/// Devices by resource name (`nvidia.com/gpu`, `nvidia.com/mig-1g.10gb`) or, where they are
/// claimed, by device class (`gpu.nvidia.com`).
pub type Devices = BTreeMap<Arc<str>, u32>;

/// An HPA as the API server keeps it, which drops a tolerance that its version does not know.
#[derive(Debug, Clone, PartialEq)]
pub struct Hpa {
    /// Its name.
    pub name: Arc<str>,
    /// Fewest replicas, at least 1.
    pub min: u32,
    /// Most replicas.
    pub max: u32,
    /// Its `behavior`, where it has one.
    pub behavior: Option<Behavior>,
    /// Whether its `behavior` says the tolerance for steps up. Else the controller's own acts, which
    /// no API tells: 10 % unless kube-controller-manager was given another.
    pub says_tolerance_up: bool,
    /// The same for steps down.
    pub says_tolerance_down: bool,
}

impl Hpa {
    /// The tolerance for a step in this direction, 0..1.
    #[must_use]
    pub fn tolerance(&self, up: bool) -> f64 {
        let rules = self.behavior.as_ref().map(|both| if up { &both.up } else { &both.down });
        rules.map_or(DEFAULT_TOLERANCE, |rules| rules.tolerance)
    }
}

/// The parts of a replica's start: those of one real replica, so that they add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Milliseconds from creation to a place on a node, nodes that have to come first included.
    pub schedule_ms: u64,
    /// Milliseconds from there until all containers run: volumes, images, init containers.
    pub pull_ms: u64,
    /// Milliseconds from there to ready: weights, compilation, warm-up.
    pub load_ms: u64,
}

impl Start {
    /// Milliseconds from creation to ready.
    #[must_use]
    pub fn total_ms(&self) -> u64 {
        self.schedule_ms.saturating_add(self.pull_ms).saturating_add(self.load_ms)
    }
}

/// What holds a ScaledObject.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pauses {
    /// It may not be scaled down (annotation `paused-scale-in`).
    pub scale_in: bool,
    /// It may not be scaled up (annotation `paused-scale-out`).
    pub scale_out: bool,
    /// Its condition `Paused` says the contrary of its annotations.
    pub is_disputed: bool,
}

/// Devices of one kind on all nodes that take pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// What the nodes can give in all.
    pub allocatable: u32,
    /// What the pods on them ask for; `None` where not all namespaces are read.
    pub requested: Option<u32>,
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
    /// When it was created, where known; a configured endpoint when it was first listed.
    pub created_at: Option<Moment>,
    /// When it turned ready, where known.
    pub ready_at: Option<Moment>,
    /// Where its metrics are, where known.
    pub endpoint: Option<Endpoint>,
    /// The node that it is on, where it is a pod that has one.
    pub node: Option<Arc<str>>,
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
    /// Namespaces that were to be read and may not be: what they hold is unknown.
    pub unread: BTreeSet<Arc<str>>,
    /// Since when what is known of a namespace may be out of date, because the source does not answer
    /// for it. The empty name stands for all; what is kept fresh is not in it.
    pub stale: BTreeMap<Arc<str>, Moment>,
    /// The workloads.
    pub workloads: BTreeMap<WorkloadKey, Arc<Workload>>,
    /// Devices on the nodes, by resource name; empty where nodes may not be read.
    pub room: BTreeMap<Arc<str>, Room>,
}

impl Inventory {
    /// Whether a workload of this namespace that is not listed is absent, and not unknown.
    #[must_use]
    pub fn knows(&self, namespace: &str) -> bool {
        self.synced && !self.unread.contains(namespace)
    }

    /// Since when what is known of a namespace may be out of date; `None` while it is kept fresh.
    #[must_use]
    pub fn stale_since(&self, namespace: &str) -> Option<Moment> {
        self.stale.get("").or_else(|| self.stale.get(namespace)).copied()
    }

    /// This inventory of a configuration with the date of each endpoint: that of `old` where it was
    /// listed before, else `now`.
    #[must_use]
    pub fn dated(&self, old: &Inventory, now: Moment) -> Inventory {
        let mut dated = self.clone();
        for (key, workload) in &mut dated.workloads {
            let before = old.workloads.get(key).map_or(&[][..], |before| &before.members);
            for member in &mut Arc::make_mut(workload).members {
                let known = before.iter().find(|known| known.id == member.id);
                member.created_at = known.map_or(Some(now), |known| known.created_at);
            }
        }
        dated
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn a_workload_with_its_counts_fits_the_allocators_class_of_256_bytes() {
        assert!(size_of::<Workload>() <= 256 - 16, "{}", size_of::<Workload>());
    }

    #[test]
    fn an_endpoint_keeps_the_date_of_its_first_listing() {
        let listed = |endpoints: &str| {
            let text = format!(
                "workloads: [{{namespace: a, name: b, replicas: 2, endpoints: [{endpoints}]}}]"
            );
            config::parse(&text).unwrap().inventory
        };
        let first = listed("'x:1'").dated(&Inventory::default(), Moment(5));
        let second = listed("'x:1', 'y:2'").dated(&first, Moment(9));
        let members = &second.workloads[&WorkloadKey::new("a", "b")].members;
        let dates: Vec<_> = members.iter().map(|member| member.created_at).collect();
        assert_eq!(dates, [Some(Moment(5)), Some(Moment(9))]);
    }
}
