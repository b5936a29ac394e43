//! What a ScaledObject says: target, bounds, triggers, whether it is paused.
//!
//! Pure and tolerant: unknown fields are skipped, so that newer KEDA versions are read too.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::core::DynamicObject;
use serde::Deserialize;

use super::selector::PodSelector;
use crate::inventory::{DEFAULT_MAX_REPLICAS, MOST_REPLICAS, Pauses};
use crate::trigger::{MAX_BYTES, MAX_TRIGGERS};

/// A ScaledObject, reduced to what matters here.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ScaledObject {
    /// What it scales.
    pub(super) target: TargetRef,
    /// Fewest replicas, at most `max`.
    pub(super) min: u32,
    /// Most replicas, at least 1.
    pub(super) max: u32,
    /// Replicas of its fallback, where at least 1.
    pub(super) fallback_replicas: Option<u32>,
    /// Metadata of its `external` and `external-push` triggers.
    pub(super) triggers: Vec<BTreeMap<String, String>>,
    /// Which pods are its replicas.
    pub(super) pod_selector: Chosen,
    /// KEDA does nothing with it at present.
    pub(super) paused: bool,
    /// What else its annotations hold.
    pub(super) pauses: Pauses,
}

/// Which pods are a workload's replicas.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Chosen {
    /// Those of the scale target's own selector.
    Target,
    /// Those of the first trigger's `podSelector`; an unreadable one selects none, never more.
    Pods(Option<PodSelector>),
}

/// A scale target's kind and name, in the ScaledObject's namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TargetRef {
    /// Its kind.
    pub(super) kind: TargetKind,
    /// Its name.
    pub(super) name: Arc<str>,
}

/// The kinds of scale targets that are read differently.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum TargetKind {
    /// `apps` Deployment, watched.
    Deployment,
    /// `apps` StatefulSet, watched.
    StatefulSet,
    /// Anything else with a scale subresource.
    Other {
        /// `group/version`.
        api_version: Arc<str>,
        /// The kind.
        kind: Arc<str>,
    },
}

/// Why a ScaledObject cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Not the shape of a ScaledObject.
    #[error("the spec is not that of a ScaledObject")]
    Shape(#[source] serde_json::Error),
    /// A replica count out of range.
    #[error("`{field}` is {value}: expected 0 to {MOST_REPLICAS}")]
    Replicas {
        /// The field.
        field: &'static str,
        /// Its value.
        value: i64,
    },
    /// A target that names no object of the namespace.
    #[error(
        "`scaleTargetRef` is {api_version:?}, {kind:?}, {name:?}: expected names of letters, digits, `-` and `.`"
    )]
    Target {
        /// Its `apiVersion`.
        api_version: String,
        /// Its `kind`.
        kind: String,
        /// Its `name`.
        name: Arc<str>,
    },
    /// More or larger triggers than are kept.
    #[error(
        "the triggers have {bytes} bytes in {count} maps: expected at most {MAX_BYTES} in {MAX_TRIGGERS}"
    )]
    Triggers {
        /// How many external triggers.
        count: usize,
        /// Bytes of their keys and values.
        bytes: usize,
    },
}

#[derive(Deserialize)]
struct Whole {
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    scale_target_ref: ScaleTargetRef,
    min_replica_count: Option<i64>,
    max_replica_count: Option<i64>,
    fallback: Option<Fallback>,
    triggers: Option<Vec<Trigger>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScaleTargetRef {
    name: Arc<str>,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
struct Fallback {
    replicas: Option<i64>,
}

#[derive(Deserialize)]
struct Trigger {
    r#type: String,
    metadata: Option<BTreeMap<String, String>>,
}

impl ScaledObject {
    /// Reads an object of the API server.
    ///
    /// # Errors
    ///
    /// When the object is not one that KEDA would work with.
    pub(super) fn from_object(object: &DynamicObject) -> Result<ScaledObject, Error> {
        let Whole { spec } = Whole::deserialize(&object.data).map_err(Error::Shape)?;
        let max = spec.max_replica_count.unwrap_or_else(|| DEFAULT_MAX_REPLICAS.into());
        let max = replicas("maxReplicaCount", max)?.max(1);
        let fallback = spec.fallback.and_then(|fallback| fallback.replicas).unwrap_or(0);
        let fallback = replicas("fallback.replicas", fallback)?;
        let triggers = external_triggers(spec.triggers.unwrap_or_default())?;
        let annotations = object.metadata.annotations.as_ref();
        let paused = is_paused(annotations);
        Ok(ScaledObject {
            target: target_ref(spec.scale_target_ref)?,
            min: replicas("minReplicaCount", spec.min_replica_count.unwrap_or(0))?.min(max),
            max,
            fallback_replicas: (fallback >= 1).then_some(fallback),
            pod_selector: chosen(&triggers),
            triggers,
            paused,
            pauses: Pauses {
                scale_in: annotated(annotations, "autoscaling.keda.sh/paused-scale-in"),
                scale_out: annotated(annotations, "autoscaling.keda.sh/paused-scale-out"),
                is_disputed: condition(&object.data, "Paused").is_some_and(|says| says != paused),
            },
        })
    }
}

fn chosen(triggers: &[BTreeMap<String, String>]) -> Chosen {
    match triggers.iter().find_map(|metadata| metadata.get("podSelector")) {
        Some(text) => Chosen::Pods(PodSelector::from_text(text)),
        None => Chosen::Target,
    }
}

fn replicas(field: &'static str, value: i64) -> Result<u32, Error> {
    match u32::try_from(value) {
        Ok(count) if count <= MOST_REPLICAS => Ok(count),
        Ok(_) | Err(_) => Err(Error::Replicas { field, value }),
    }
}

fn target_ref(target: ScaleTargetRef) -> Result<TargetRef, Error> {
    let ScaleTargetRef { name, api_version, kind } = target;
    TargetRef::new(&api_version, &kind, Arc::clone(&name)).ok_or(Error::Target {
        api_version,
        kind,
        name,
    })
}

impl TargetRef {
    /// A target by KEDA's defaults: no kind is a Deployment, no version is `apps/v1`.
    ///
    /// The parts become parts of a path, so that whoever writes a ScaledObject could otherwise make
    /// this process read elsewhere: `None` where they are no names.
    pub(super) fn new(api_version: &str, kind: &str, name: Arc<str>) -> Option<TargetRef> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let is_valid = is_word(&name)
            && (kind.is_empty() || is_word(kind))
            && (group.is_empty() || is_word(group))
            && (version.is_empty() || is_word(version));
        if !is_valid {
            return None;
        }
        let in_apps = api_version.is_empty() || group == "apps";
        let kind = match kind {
            "" | "Deployment" if in_apps => TargetKind::Deployment,
            "StatefulSet" if in_apps => TargetKind::StatefulSet,
            kind => TargetKind::Other {
                api_version: if in_apps { "apps/v1".into() } else { api_version.into() },
                kind: if kind.is_empty() { "Deployment".into() } else { kind.into() },
            },
        };
        Some(TargetRef { kind, name })
    }
}

/// Whether a text can be part of a path of the API server's.
pub(super) fn is_word(text: &str) -> bool {
    text.len() <= 253
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.')
}

fn external_triggers(triggers: Vec<Trigger>) -> Result<Vec<BTreeMap<String, String>>, Error> {
    let external: Vec<_> = triggers
        .into_iter()
        .filter(|trigger| matches!(trigger.r#type.as_str(), "external" | "external-push"))
        .map(|trigger| trigger.metadata.unwrap_or_default())
        .collect();
    let bytes = external.iter().flatten().map(|(key, value)| key.len() + value.len()).sum();
    if external.len() > MAX_TRIGGERS || bytes > MAX_BYTES {
        return Err(Error::Triggers { count: external.len(), bytes });
    }
    Ok(external)
}

/// As KEDA judges it (`NeedToBePausedByAnnotation`): any `paused-replicas`, or a true `paused`.
fn is_paused(annotations: Option<&BTreeMap<String, String>>) -> bool {
    annotations.is_some_and(|all| all.contains_key("autoscaling.keda.sh/paused-replicas"))
        || annotated(annotations, "autoscaling.keda.sh/paused")
}

/// An annotation that is there and that Go does not read as false (`getBoolAnnotation`).
fn annotated(annotations: Option<&BTreeMap<String, String>>, key: &str) -> bool {
    let said_false =
        |value: &String| matches!(value.as_str(), "0" | "f" | "F" | "false" | "False" | "FALSE");
    annotations.and_then(|all| all.get(key)).is_some_and(|value| !said_false(value))
}

/// What a condition of the status says, where it is there.
fn condition(data: &serde_json::Value, kind: &str) -> Option<bool> {
    let conditions = data["status"]["conditions"].as_array()?;
    let said = conditions.iter().find(|condition| condition["type"] == kind)?;
    Some(said["status"] == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(spec: Value, annotations: Value) -> Result<ScaledObject, Error> {
        let object = json!({
            "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
            "metadata": {"name": "so", "namespace": "ns", "annotations": annotations},
            "spec": spec, "status": {"conditions": "whatever"},
        });
        ScaledObject::from_object(&serde_json::from_value(object).unwrap())
    }

    fn read_spec(spec: Value) -> Result<ScaledObject, Error> {
        read(spec, json!({}))
    }

    #[test]
    fn what_a_scaled_object_leaves_out_is_as_keda_takes_it() {
        let object = read_spec(json!({"scaleTargetRef": {"name": "llm"}, "triggers": []})).unwrap();
        assert_eq!(
            object,
            ScaledObject {
                target: TargetRef { kind: TargetKind::Deployment, name: "llm".into() },
                min: 0,
                max: 100,
                fallback_replicas: None,
                triggers: Vec::new(),
                pod_selector: Chosen::Target,
                paused: false,
                pauses: Pauses::default(),
            }
        );
    }

    #[test]
    fn a_pod_selector_chooses_the_pods_and_an_unreadable_one_chooses_none() {
        let chosen = |text: &str| {
            let metadata = json!({"scalerAddress": "s:9090", "podSelector": text});
            let trigger = json!({"type": "external", "metadata": metadata});
            let spec = json!({"scaleTargetRef": {"name": "llm"}, "triggers": [trigger]});
            read_spec(spec).unwrap().pod_selector
        };
        assert_eq!(chosen("role=leader"), Chosen::Pods(PodSelector::from_text("role=leader")));
        assert_eq!(chosen("a=b=c,("), Chosen::Pods(None));
    }

    #[test]
    fn bounds_fallback_and_external_triggers_are_read_and_the_rest_is_skipped() {
        let object = read_spec(json!({
            "scaleTargetRef": {"name": "llm", "kind": "StatefulSet", "apiVersion": "apps/v1",
                "envSourceContainerName": "x"},
            "minReplicaCount": 1, "maxReplicaCount": 8, "pollingInterval": 5,
            "fallback": {"failureThreshold": 3, "replicas": 4},
            "triggers": [
                {"type": "external-push", "metadata": {"scalerAddress": "a:1", "engine": "vllm"}},
                {"type": "prometheus", "metadata": {"query": "up"}, "authenticationRef": {"name": "x"}},
                {"type": "external", "metadata": {"scalerAddress": "b:2"}, "name": "second"},
            ],
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {}}},
        }))
        .unwrap();
        assert_eq!((object.min, object.max, object.fallback_replicas), (1, 8, Some(4)));
        assert_eq!(object.target.kind, TargetKind::StatefulSet);
        let addresses: Vec<_> =
            object.triggers.iter().map(|t| t["scalerAddress"].as_str()).collect();
        assert_eq!(addresses, ["a:1", "b:2"]);
    }

    #[test]
    fn the_target_is_found_by_kind_and_group() {
        let other = |api_version: &str, kind: &str| TargetKind::Other {
            api_version: api_version.into(),
            kind: kind.into(),
        };
        for (api_version, kind, expected) in [
            (None, None, TargetKind::Deployment),
            (Some("apps/v1"), None, TargetKind::Deployment),
            (None, Some("StatefulSet"), TargetKind::StatefulSet),
            (None, Some("ReplicaSet"), other("apps/v1", "ReplicaSet")),
            (Some("v1"), Some("ReplicationController"), other("v1", "ReplicationController")),
            (
                Some("leaderworkerset.x-k8s.io/v1"),
                Some("LeaderWorkerSet"),
                other("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
            ),
            // Another group's Deployment is not the one that is watched.
            (Some("example.org/v1"), Some("Deployment"), other("example.org/v1", "Deployment")),
        ] {
            let mut target = json!({"name": "llm"});
            if let Some(api_version) = api_version {
                target["apiVersion"] = json!(api_version);
            }
            if let Some(kind) = kind {
                target["kind"] = json!(kind);
            }
            let object = read_spec(json!({"scaleTargetRef": target})).unwrap();
            assert_eq!(object.target.kind, expected, "{target}");
        }
    }

    #[test]
    fn bounds_are_made_consistent_and_a_fallback_of_zero_is_none() {
        for (min, max, fallback, expected) in [
            (json!(5), json!(3), json!(0), (3, 3, None)),
            (json!(0), json!(0), json!(1), (0, 1, Some(1))),
            (json!(null), json!(null), json!(null), (0, 100, None)),
            (json!(2), json!(1_000_000), json!(7), (2, 1_000_000, Some(7))),
        ] {
            let object = read_spec(json!({
                "scaleTargetRef": {"name": "llm"},
                "minReplicaCount": min, "maxReplicaCount": max,
                "fallback": {"replicas": fallback},
            }))
            .unwrap();
            assert_eq!((object.min, object.max, object.fallback_replicas), expected);
        }
    }

    #[test]
    fn paused_is_what_keda_takes_for_paused() {
        for (annotations, paused) in [
            (json!({}), false),
            (json!({"autoscaling.keda.sh/paused": "true"}), true),
            (json!({"autoscaling.keda.sh/paused": "false"}), false),
            (json!({"autoscaling.keda.sh/paused": "0"}), false),
            (json!({"autoscaling.keda.sh/paused": "no"}), true),
            (json!({"autoscaling.keda.sh/paused": ""}), true),
            (json!({"autoscaling.keda.sh/paused-replicas": "2"}), true),
            (
                json!({"autoscaling.keda.sh/paused": "false",
                    "autoscaling.keda.sh/paused-replicas": "2"}),
                true,
            ),
            (json!({"autoscaling.keda.sh/paused-scale-in": "true"}), false),
        ] {
            let object = read(json!({"scaleTargetRef": {"name": "llm"}}), annotations.clone());
            assert_eq!(object.unwrap().paused, paused, "{annotations}");
        }
    }

    #[test]
    fn each_direction_can_be_paused_alone() {
        let pauses = |annotations: Value| {
            let object = read(json!({"scaleTargetRef": {"name": "llm"}}), annotations).unwrap();
            (object.paused, object.pauses.scale_in, object.pauses.scale_out)
        };
        let [scale_in, scale_out] =
            ["in", "out"].map(|way| format!("autoscaling.keda.sh/paused-scale-{way}"));
        assert_eq!(pauses(json!({scale_in.clone(): "true"})), (false, true, false));
        assert_eq!(pauses(json!({scale_out.clone(): "true"})), (false, false, true));
        assert_eq!(pauses(json!({scale_in: "false", scale_out: "false"})), (false, false, false));
    }

    #[test]
    fn f103_a_condition_that_contradicts_the_annotation_is_disputed() {
        let disputed = |annotation: Option<&str>, condition: Option<&str>| {
            let annotations = annotation
                .map_or_else(|| json!({}), |it| json!({"autoscaling.keda.sh/paused": it}));
            let conditions = condition.map(|status| json!({"type": "Paused", "status": status}));
            let object = json!({
                "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
                "metadata": {"name": "so", "namespace": "ns", "annotations": annotations},
                "spec": {"scaleTargetRef": {"name": "llm"}},
                "status": {"conditions": Vec::from_iter(conditions)},
            });
            let object = ScaledObject::from_object(&serde_json::from_value(object).unwrap());
            object.unwrap().pauses.is_disputed
        };
        assert!(disputed(None, Some("True")));
        assert!(disputed(Some("true"), Some("False")));
        assert!(!disputed(None, Some("False")) && !disputed(Some("true"), Some("True")));
        assert!(!disputed(None, None), "not written yet");
    }

    #[test]
    fn what_keda_could_not_use_is_refused_with_the_field_named() {
        let target = json!({"name": "llm"});
        for (spec, expected) in [
            (json!({}), "the spec is not"),
            (json!("text"), "the spec is not"),
            (json!({"scaleTargetRef": {}}), "the spec is not"),
            (json!({"scaleTargetRef": target, "triggers": [{"metadata": {}}]}), "the spec is not"),
            (
                json!({"scaleTargetRef": target, "triggers": [{"type": "external", "metadata": {"a": 1}}]}),
                "the spec is not",
            ),
            (json!({"scaleTargetRef": target, "minReplicaCount": -1}), "`minReplicaCount` is -1"),
            (
                json!({"scaleTargetRef": target, "maxReplicaCount": 1_000_001}),
                "`maxReplicaCount` is 1000001",
            ),
            (
                json!({"scaleTargetRef": target, "fallback": {"replicas": i64::MIN}}),
                "`fallback.replicas` is -9223372036854775808",
            ),
            (json!({"scaleTargetRef": {"name": "../x"}}), "`scaleTargetRef` is"),
            (json!({"scaleTargetRef": {"name": ""}}), "`scaleTargetRef` is"),
            (json!({"scaleTargetRef": {"name": "a", "kind": "K?x"}}), "`scaleTargetRef` is"),
            (
                json!({"scaleTargetRef": {"name": "a", "apiVersion": "g/v1/namespaces/other"}}),
                "`scaleTargetRef` is",
            ),
        ] {
            let message = read_spec(spec.clone()).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{spec}: {message}");
        }
    }

    #[test]
    fn triggers_beyond_the_limits_are_refused() {
        let trigger =
            |size: usize| json!({"type": "external", "metadata": {"k": "v".repeat(size)}});
        let with = |triggers: Vec<Value>| {
            read_spec(json!({"scaleTargetRef": {"name": "llm"}, "triggers": triggers}))
        };
        assert!(with(vec![trigger(MAX_BYTES - 1)]).is_ok());
        assert!(matches!(
            with(vec![trigger(MAX_BYTES)]),
            Err(Error::Triggers { count: 1, bytes }) if bytes == MAX_BYTES + 1
        ));
        assert!(with(vec![trigger(1); MAX_TRIGGERS]).is_ok());
        assert!(with(vec![trigger(1); MAX_TRIGGERS + 1]).is_err());
    }
}
