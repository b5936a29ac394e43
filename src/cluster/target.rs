//! What a scale target says: replicas ordered, its pods' selector, whether it rolls out.
//!
//! Pure; a count that is missing or impossible stays unknown.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, StatefulSet};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::devices;
use super::selector::PodSelector;
use crate::inventory::Devices;

/// Longest refusal that is kept, in characters: a quota's has some hundred.
const MAX_REFUSAL: usize = 300;

/// A scale target, reduced to what matters here.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Target {
    /// Replicas ordered; `None` when it does not say.
    pub(super) spec: Option<u32>,
    /// Pods of an older template are being replaced.
    pub(super) rollout: bool,
    /// Its pods; `None` when it names none.
    pub(super) selector: Option<PodSelector>,
    /// Devices that its pod template asks for, but for those that it claims.
    pub(super) devices: Arc<Devices>,
    /// Why pods cannot be created, as by a quota: those that are missing will not come soon.
    pub(super) refusal: Option<Arc<str>>,
    /// Who wrote its replicas last, where that was not through the scale subresource.
    pub(super) writer: Option<Arc<str>>,
}

impl Target {
    /// Reads a Deployment.
    pub(super) fn from_deployment(deployment: &Deployment) -> Option<Target> {
        let spec = deployment.spec.as_ref()?;
        let status = deployment.status.as_ref();
        // A rollout that is paused half-way stands until somebody resumes it, perhaps for days.
        let is_paused = spec.paused == Some(true);
        Some(Target {
            spec: count(spec.replicas),
            rollout: is_behind(
                deployment.metadata.generation,
                status.and_then(|status| status.observed_generation),
            ) || (status.is_some_and(rolls_out) && !is_paused),
            selector: PodSelector::from_object(&spec.selector),
            devices: of_template(&spec.template),
            refusal: status.and_then(refusal),
            writer: writer(&deployment.metadata),
        })
    }

    /// Reads a StatefulSet.
    pub(super) fn from_stateful_set(set: &StatefulSet) -> Option<Target> {
        let spec = set.spec.as_ref()?;
        let status = set.status.as_ref();
        let strategy = spec.update_strategy.as_ref();
        // With OnDelete a person replaces the pods, perhaps never: nothing rolls out by itself.
        let is_automatic = strategy.and_then(|s| s.type_.as_deref()) != Some("OnDelete");
        let partition =
            strategy.and_then(|strategy| strategy.rolling_update.as_ref()?.partition).unwrap_or(0);
        // Below a partition the old template stays on purpose, and the revisions stay apart.
        let rolls_out = status.is_some_and(|status| {
            is_automatic
                && status.current_revision != status.update_revision
                && (partition == 0
                    || status.updated_replicas.unwrap_or(0)
                        < status.replicas.saturating_sub(partition))
        });
        Some(Target {
            spec: count(spec.replicas),
            rollout: rolls_out
                || is_behind(
                    set.metadata.generation,
                    status.and_then(|status| status.observed_generation),
                ),
            selector: PodSelector::from_object(&spec.selector),
            devices: of_template(&spec.template),
            refusal: None,
            writer: writer(&set.metadata),
        })
    }

    /// Reads a scale subresource.
    pub(super) fn from_scale(scale: &Scale) -> Target {
        let selector = scale.status.as_ref().and_then(|status| status.selector.as_deref());
        Target {
            // The API server leaves out a count of 0; only a missing `spec` says nothing.
            spec: scale.spec.as_ref().and_then(|spec| known(spec.replicas.unwrap_or(0))),
            rollout: false,
            selector: selector.and_then(PodSelector::from_text),
            ..Target::default()
        }
    }
}

fn of_template(template: &PodTemplateSpec) -> Arc<Devices> {
    Arc::new(template.spec.as_ref().map(devices::of_pod).unwrap_or_default())
}

/// Why the API server refuses pods of this Deployment, by a quota above all.
fn refusal(status: &DeploymentStatus) -> Option<Arc<str>> {
    let condition = status.conditions.iter().flatten().find(|condition| {
        condition.type_ == "ReplicaFailure"
            && condition.status == "True"
            && condition.reason.as_deref() == Some("FailedCreate")
    })?;
    let message = condition.message.as_deref().unwrap_or("it does not say why");
    // What stands before it names a pod that never was, another at each try.
    let why = message.split_once("is forbidden: ").map_or(message, |(_pod, why)| why);
    Some(why.chars().take(MAX_REFUSAL).collect::<String>().into())
}

/// The manager of `spec.replicas` that does not go through `/scale`: the HPA, KEDA and `kubectl scale`
/// do, so it is a file that somebody applies.
fn writer(metadata: &ObjectMeta) -> Option<Arc<str>> {
    let managers = metadata.managed_fields.iter().flatten();
    let owns = |fields: &serde_json::Value| fields.pointer("/f:spec/f:replicas").is_some();
    managers
        .filter(|entry| entry.subresource.as_deref() != Some("scale"))
        .find(|entry| entry.fields_v1.as_ref().is_some_and(|fields| owns(&fields.0)))
        .and_then(|entry| Some(entry.manager.as_deref()?.into()))
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn deployment(replicas: Value, generation: i64, status: Value) -> Target {
        let object = json!({
            "metadata": {"name": "llm", "generation": generation},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": "llm"}},
                "template": {"spec": {"containers": [
                    {"name": "vllm", "resources": {"limits": {"nvidia.com/gpu": "4"}}},
                ]}},
            },
            "status": status,
        });
        Target::from_deployment(&serde_json::from_value(object).unwrap()).unwrap()
    }

    fn progressing(status: &str, reason: &str) -> Value {
        json!([
            {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"},
            {"type": "Progressing", "status": status, "reason": reason},
        ])
    }

    #[test]
    fn a_deployment_gives_its_replicas_selector_and_gpus() {
        let target = deployment(json!(3), 1, json!({"observedGeneration": 1}));
        assert_eq!(target.spec, Some(3));
        assert_eq!(devices::whole(&target.devices), Some(4));
        assert_eq!(target.selector, PodSelector::from_text("app=llm"));
        assert!(!target.rollout);
    }

    #[test]
    fn a_quota_that_refuses_pods_is_seen_and_a_slow_rollout_is_not_one() {
        let refused = |kind: &str, status: &str, reason: &str| {
            let condition = json!({"type": kind, "status": status, "reason": reason,
                "message": "pods \"llm-0\" is forbidden: exceeded quota: gpus"});
            deployment(json!(8), 1, json!({"observedGeneration": 1, "conditions": [condition]}))
                .refusal
        };
        let said = refused("ReplicaFailure", "True", "FailedCreate");
        assert_eq!(said.as_deref(), Some("exceeded quota: gpus"));
        assert_eq!(refused("ReplicaFailure", "False", "FailedCreate"), None);
        assert_eq!(refused("Progressing", "True", "ReplicaSetUpdated"), None);
    }

    #[test]
    fn the_writer_of_the_count_is_the_one_beside_the_scale_subresource() {
        let written = |entries: Value| {
            let object = json!({"metadata": {"name": "llm", "managedFields": entries},
                "spec": {"selector": {"matchLabels": {"app": "llm"}}, "template": {}}});
            let read = Target::from_deployment(&serde_json::from_value(object).unwrap());
            read.unwrap().writer
        };
        let entry = |manager: &str, subresource: &str, fields: Value| {
            json!({"manager": manager, "subresource": subresource, "fieldsV1": fields,
                "fieldsType": "FieldsV1", "apiVersion": "apps/v1", "operation": "Apply"})
        };
        let count = json!({"f:spec": {"f:replicas": {}}});
        let other = json!({"f:spec": {"f:template": {}}});
        let argo = "argocd-controller";
        let by_argo = written(json!([
            entry("kube-controller-manager", "status", other.clone()),
            entry(argo, "", count.clone())
        ]));
        assert_eq!(by_argo.as_deref(), Some(argo));
        let by_hpa = written(json!([
            entry("kube-controller-manager", "scale", count),
            entry(argo, "", other)
        ]));
        assert_eq!(by_hpa, None);
        assert_eq!(written(json!(null)), None);
    }

    #[test]
    fn a_missing_count_is_the_default_and_an_impossible_one_is_unknown() {
        let spec = |replicas| deployment(replicas, 1, json!({"observedGeneration": 1})).spec;
        assert_eq!(spec(json!(null)), Some(1));
        assert_eq!(spec(json!(0)), Some(0));
        assert_eq!(spec(json!(-1)), None);
    }

    #[test]
    fn a_rollout_that_is_paused_half_way_is_none() {
        let rolls_out = |paused: bool| {
            let object = json!({
                "metadata": {"name": "llm", "generation": 3},
                "spec": {"replicas": 3, "paused": paused, "template": {},
                    "selector": {"matchLabels": {"app": "llm"}}},
                "status": {"observedGeneration": 3, "replicas": 4, "updatedReplicas": 1},
            });
            let read = Target::from_deployment(&serde_json::from_value(object).unwrap());
            read.unwrap().rollout
        };
        assert!(rolls_out(false));
        assert!(!rolls_out(true));
    }

    #[test]
    fn a_deployment_rolls_out_while_pods_of_another_template_exist_or_are_to_come() {
        for (case, generation, status, rollout) in [
            (
                "complete",
                2,
                json!({"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3,
                "conditions": progressing("True", "NewReplicaSetAvailable")}),
                false,
            ),
            (
                "not seen by the controller yet",
                3,
                json!({"observedGeneration": 2, "replicas": 3,
                "updatedReplicas": 3}),
                true,
            ),
            (
                "old and new, one surge",
                3,
                json!({"observedGeneration": 3, "replicas": 4,
                "updatedReplicas": 1}),
                true,
            ),
            (
                "all new, not all available",
                3,
                json!({"observedGeneration": 3, "replicas": 3,
                "updatedReplicas": 3, "conditions": progressing("True", "ReplicaSetUpdated")}),
                true,
            ),
            (
                "stuck past its deadline with old pods",
                3,
                json!({"observedGeneration": 3, "replicas": 4,
                "updatedReplicas": 1,
                "conditions": progressing("False", "ProgressDeadlineExceeded")}),
                true,
            ),
            (
                "never became available",
                1,
                json!({"observedGeneration": 1, "replicas": 3,
                "updatedReplicas": 3,
                "conditions": progressing("False", "ProgressDeadlineExceeded")}),
                false,
            ),
            (
                "scale up held back by quota",
                4,
                json!({"observedGeneration": 4, "replicas": 1,
                "updatedReplicas": 1,
                "conditions": progressing("True", "NewReplicaSetAvailable")}),
                false,
            ),
            ("at zero", 5, json!({"observedGeneration": 5}), false),
            ("no status yet", 1, json!({}), true),
        ] {
            assert_eq!(deployment(json!(3), generation, status).rollout, rollout, "{case}");
        }
    }

    #[test]
    fn a_stateful_set_rolls_out_while_its_revisions_differ_and_it_replaces_pods_itself() {
        let rolls_out = |strategy: Value, current: &str, updated: i32| {
            let object = json!({
                "metadata": {"name": "llm", "generation": 2},
                "spec": {"replicas": 4, "serviceName": "llm", "updateStrategy": strategy,
                    "selector": {"matchLabels": {"app": "llm"}}, "template": {}},
                "status": {"observedGeneration": 2, "replicas": 4, "updatedReplicas": updated,
                    "currentRevision": current, "updateRevision": "new"},
            });
            Target::from_stateful_set(&serde_json::from_value(object).unwrap()).unwrap().rollout
        };
        let rolling = |partition: i32| json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition}});
        for (strategy, current, updated, rollout) in [
            (json!(null), "new", 4, false),
            (json!(null), "old", 1, true),
            // The last pod exists, but is not available yet.
            (rolling(0), "old", 4, true),
            (rolling(3), "old", 0, true),
            (rolling(3), "old", 1, false),
            (json!({"type": "OnDelete"}), "old", 1, false),
        ] {
            let case = format!("{strategy} {current} {updated}");
            assert_eq!(rolls_out(strategy, current, updated), rollout, "{case}");
        }
    }

    #[test]
    fn a_scale_without_a_count_is_at_zero_and_one_without_spec_is_unknown() {
        for (scale, spec, has_selector) in [
            (
                json!({"spec": {"replicas": 3}, "status": {"replicas": 1, "selector": "a=b"}}),
                Some(3),
                true,
            ),
            // As the API server writes a target at zero.
            (json!({"spec": {}, "status": {"replicas": 0, "selector": "a=b"}}), Some(0), true),
            (json!({"spec": {"replicas": -2}, "status": {"replicas": 0}}), None, false),
            (json!({"status": {"replicas": 2, "selector": ""}}), None, false),
            (json!({}), None, false),
        ] {
            let target = Target::from_scale(&serde_json::from_value(scale.clone()).unwrap());
            assert_eq!((target.spec, target.selector.is_some()), (spec, has_selector), "{scale}");
        }
    }

    #[test]
    fn an_object_without_spec_is_no_target() {
        let object = json!({"metadata": {"name": "llm"}});
        assert_eq!(Target::from_deployment(&serde_json::from_value(object.clone()).unwrap()), None);
        assert_eq!(Target::from_stateful_set(&serde_json::from_value(object).unwrap()), None);
    }
}
