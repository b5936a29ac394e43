//! What a scale target says: replicas ordered, its pods' selector, whether it rolls out.
//!
//! Pure; a count that is missing or impossible stays unknown.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, StatefulSet};
use k8s_openapi::api::autoscaling::v1::Scale;

use super::pod;
use super::selector::PodSelector;

/// A scale target, reduced to what matters here.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Target {
    /// Replicas ordered; `None` when it does not say.
    pub(super) spec: Option<u32>,
    /// Pods of an older template are being replaced.
    pub(super) rollout: bool,
    /// Its pods; `None` when it names none.
    pub(super) selector: Option<PodSelector>,
    /// GPUs that its pod template asks for.
    pub(super) gpus: Option<u32>,
}

impl Target {
    /// Reads a Deployment.
    pub(super) fn from_deployment(deployment: &Deployment) -> Option<Target> {
        let spec = deployment.spec.as_ref()?;
        let status = deployment.status.as_ref();
        Some(Target {
            spec: count(spec.replicas),
            rollout: is_behind(
                deployment.metadata.generation,
                status.and_then(|status| status.observed_generation),
            ) || status.is_some_and(rolls_out),
            selector: PodSelector::from_object(&spec.selector),
            gpus: spec.template.spec.as_ref().and_then(pod::gpus),
        })
    }

    /// Reads a StatefulSet.
    pub(super) fn from_stateful_set(set: &StatefulSet) -> Option<Target> {
        let spec = set.spec.as_ref()?;
        let status = set.status.as_ref();
        let strategy = spec.update_strategy.as_ref();
        // With OnDelete a person replaces the pods, perhaps never: nothing rolls out by itself.
        let is_automatic = strategy.and_then(|s| s.type_.as_deref()) != Some("OnDelete");
        let partition = strategy
            .and_then(|strategy| strategy.rolling_update.as_ref()?.partition)
            .unwrap_or(0);
        let rolls_out = status.is_some_and(|status| {
            is_automatic
                && status.current_revision != status.update_revision
                && status.updated_replicas.unwrap_or(0) < status.replicas.saturating_sub(partition)
        });
        Some(Target {
            spec: count(spec.replicas),
            rollout: rolls_out
                || is_behind(
                    set.metadata.generation,
                    status.and_then(|status| status.observed_generation),
                ),
            selector: PodSelector::from_object(&spec.selector),
            gpus: spec.template.spec.as_ref().and_then(pod::gpus),
        })
    }

    /// Reads a scale subresource.
    pub(super) fn from_scale(scale: &Scale) -> Target {
        let selector = scale
            .status
            .as_ref()
            .and_then(|status| status.selector.as_deref());
        Target {
            // The API server leaves out a count of 0; only a missing `spec` says nothing.
            spec: scale
                .spec
                .as_ref()
                .and_then(|spec| known(spec.replicas.unwrap_or(0))),
            rollout: false,
            selector: selector.and_then(PodSelector::from_text),
            gpus: None,
        }
    }
}

/// The API server's default is one replica.
fn count(replicas: Option<i32>) -> Option<u32> {
    known(replicas.unwrap_or(1))
}

fn known(replicas: i32) -> Option<u32> {
    u32::try_from(replicas).ok()
}

fn is_behind(generation: Option<i64>, observed: Option<i64>) -> bool {
    generation.is_some_and(|generation| observed.unwrap_or(0) < generation)
}

/// Whether pods of an older template exist, or those of the newest are not all there yet.
///
/// `updatedReplicas < spec.replicas` alone would not do: a scale up that quota or room holds back
/// looks the same, and would forbid every step down while it lasts. The Progressing condition
/// leaves `NewReplicaSetAvailable` for a new template only, not for a scale up (Kubernetes,
/// deployment/progress.go), and turns False when the rollout's own deadline is over.
fn rolls_out(status: &DeploymentStatus) -> bool {
    let has_old = status.updated_replicas.unwrap_or(0) < status.replicas.unwrap_or(0);
    let progresses = status.conditions.iter().flatten().any(|condition| {
        condition.type_ == "Progressing"
            && condition.status == "True"
            && matches!(
                condition.reason.as_deref(),
                Some("NewReplicaSetCreated" | "FoundNewReplicaSet" | "ReplicaSetUpdated")
            )
    });
    has_old || progresses
}
