//! What a ScaledObject says: target, bounds, triggers, whether it is paused.
//!
//! Pure and tolerant: unknown fields are skipped, so that newer KEDA versions are read too.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::core::DynamicObject;
use serde::Deserialize;

/// Most triggers that are kept of one ScaledObject.
const MAX_TRIGGERS: usize = 16;
/// Most bytes of trigger metadata that are kept of one ScaledObject: a dozen keys with a long
/// selector stay below 2 KiB; 10,000 objects at the limit would be 160 MiB, of which the API
/// server would have to hold as much.
const MAX_METADATA_BYTES: usize = 16 * 1024;
/// Bound of replica counts, far above any fleet; KEDA's own is 2^31 - 1.
const MAX_REPLICAS: i64 = 1_000_000;
/// KEDA's default of `maxReplicaCount` (scaledobject_types.go).
const DEFAULT_MAX_REPLICAS: i64 = 100;

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
    /// KEDA does nothing with it at present.
    pub(super) paused: bool,
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
    #[error("`{field}` is {value}: expected 0 to {MAX_REPLICAS}")]
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
        "the triggers have {bytes} bytes in {count} maps: expected at most {MAX_METADATA_BYTES} in {MAX_TRIGGERS}"
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
        let max = replicas(
            "maxReplicaCount",
            spec.max_replica_count.unwrap_or(DEFAULT_MAX_REPLICAS),
        )?
        .max(1);
        let fallback = spec
            .fallback
            .and_then(|fallback| fallback.replicas)
            .unwrap_or(0);
        let fallback = replicas("fallback.replicas", fallback)?;
        Ok(ScaledObject {
            target: target_ref(spec.scale_target_ref)?,
            min: replicas("minReplicaCount", spec.min_replica_count.unwrap_or(0))?.min(max),
            max,
            fallback_replicas: (fallback >= 1).then_some(fallback),
            triggers: external_triggers(spec.triggers.unwrap_or_default())?,
            paused: is_paused(object.metadata.annotations.as_ref()),
        })
    }
}

fn replicas(field: &'static str, value: i64) -> Result<u32, Error> {
    match u32::try_from(value) {
        Ok(count) if value <= MAX_REPLICAS => Ok(count),
        Ok(_) | Err(_) => Err(Error::Replicas { field, value }),
    }
}

/// KEDA's defaults: no kind is a Deployment, no version is `apps/v1`.
///
/// The parts become parts of a path, so that whoever writes a ScaledObject could otherwise make
/// this process read elsewhere.
fn target_ref(target: ScaleTargetRef) -> Result<TargetRef, Error> {
    let ScaleTargetRef {
        name,
        api_version,
        kind,
    } = target;
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let is_valid = is_word(&name)
        && (kind.is_empty() || is_word(&kind))
        && (group.is_empty() || is_word(group))
        && (version.is_empty() || is_word(version));
    if !is_valid {
        return Err(Error::Target {
            api_version,
            kind,
            name,
        });
    }
    let in_apps = api_version.is_empty() || group == "apps";
    let kind = match kind.as_str() {
        "" | "Deployment" if in_apps => TargetKind::Deployment,
        "StatefulSet" if in_apps => TargetKind::StatefulSet,
        kind => TargetKind::Other {
            api_version: if in_apps {
                "apps/v1".into()
            } else {
                api_version.into()
            },
            kind: if kind.is_empty() {
                "Deployment".into()
            } else {
                kind.into()
            },
        },
    };
    Ok(TargetRef { kind, name })
}

fn is_word(text: &str) -> bool {
    text.len() <= 253
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.')
}

fn external_triggers(triggers: Vec<Trigger>) -> Result<Vec<BTreeMap<String, String>>, Error> {
    let external: Vec<_> = triggers
        .into_iter()
        .filter(|trigger| matches!(trigger.r#type.as_str(), "external" | "external-push"))
        .map(|trigger| trigger.metadata.unwrap_or_default())
        .collect();
    let bytes = external
        .iter()
        .flatten()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if external.len() > MAX_TRIGGERS || bytes > MAX_METADATA_BYTES {
        return Err(Error::Triggers {
            count: external.len(),
            bytes,
        });
    }
    Ok(external)
}

/// As KEDA judges it (`NeedToBePausedByAnnotation`): any `paused-replicas`, or a `paused` that Go
/// does not read as false.
fn is_paused(annotations: Option<&BTreeMap<String, String>>) -> bool {
    let Some(annotations) = annotations else {
        return false;
    };
    let said_false = |value: &String| {
        matches!(
            value.as_str(),
            "0" | "f" | "F" | "false" | "False" | "FALSE"
        )
    };
    annotations.contains_key("autoscaling.keda.sh/paused-replicas")
        || annotations
            .get("autoscaling.keda.sh/paused")
            .is_some_and(|value| !said_false(value))
}
