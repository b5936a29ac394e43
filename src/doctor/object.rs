//! What a ScaledObject says, as KEDA reads it, with the pointers by which it is patched.
//!
//! Pure. What is missing has KEDA's default.

use std::collections::BTreeMap;

use serde_json::Value;

use super::finding::Patch;
use crate::config::is_kubernetes_name;
use crate::inventory::DEFAULT_MAX_REPLICAS;
use crate::trigger::{self, FIELDS, FROM_ENV, Policy};

/// A whole number at a pointer.
pub(super) fn integer(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer)?.as_i64()
}

/// A text at a pointer, if it is not empty.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
}

/// The elements of a list at a pointer.
pub(super) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// `Kind/name` of an object.
pub(super) fn title(object: &Value) -> String {
    let part = |pointer| text(object, pointer).unwrap_or("?");
    format!("{}/{}", part("/kind"), part("/metadata/name"))
}

pub(super) fn name(object: &Value) -> &str {
    text(object, "/metadata/name").unwrap_or_default()
}

pub(super) fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace").unwrap_or_default()
}

pub(super) fn min(object: &Value) -> i64 {
    integer(object, "/spec/minReplicaCount").unwrap_or(0)
}

pub(super) fn max(object: &Value) -> i64 {
    let default = i64::from(DEFAULT_MAX_REPLICAS);
    integer(object, "/spec/maxReplicaCount").unwrap_or(default)
}

/// Kind and name of what a ScaledObject or an HPA scales.
pub(super) fn target_of(object: &Value) -> (&str, &str) {
    let target = |key| text(object, &format!("/spec/scaleTargetRef/{key}"));
    (target("kind").unwrap_or("Deployment"), target("name").unwrap_or_default())
}

/// The `apiVersion` of what a ScaledObject scales.
pub(super) fn target_api(object: &Value) -> &str {
    text(object, "/spec/scaleTargetRef/apiVersion").unwrap_or("apps/v1")
}

/// One trigger of a ScaledObject.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trigger<'a> {
    pub(super) index: usize,
    pub(super) value: &'a Value,
}

impl<'a> Trigger<'a> {
    pub(super) fn kind(self) -> &'a str {
        text(self.value, "/type").unwrap_or_default()
    }

    /// The value of a metadata key as it is written.
    pub(super) fn metadata(self, key: &str) -> Option<&'a str> {
        self.value["metadata"][key].as_str()
    }

    /// Whether a key is there, as itself or from the environment.
    pub(super) fn has(self, key: &str) -> bool {
        let metadata = &self.value["metadata"];
        metadata.get(key).is_some() || metadata.get(format!("{key}{FROM_ENV}")).is_some()
    }

    /// All metadata.
    pub(super) fn pairs(self) -> BTreeMap<&'a str, &'a str> {
        let metadata = self.value["metadata"].as_object();
        let pairs = metadata.into_iter().flatten();
        pairs.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))).collect()
    }

    /// The pointer to something below this trigger.
    pub(super) fn pointer(self, below: &str) -> String {
        format!("/spec/triggers/{}/{below}", self.index)
    }

    /// An empty change to the object of this trigger, for as long as it stands where it does among
    /// others: another finding's change may take one of them out.
    pub(super) fn patch(self, object: &Value) -> Patch {
        let patch = Patch::to(object);
        if list(object, "/spec/triggers").len() < 2 {
            return patch;
        }
        let keys = ["metadata/query", "metadata/scalerAddress", "type"];
        let key = keys.into_iter().find(|key| self.value.pointer(&format!("/{key}")).is_some());
        patch.while_same(&self.pointer(key.unwrap_or_default()))
    }

    /// What the metadata says; the default for each key that is not readable, which is a finding of
    /// its own.
    pub(super) fn policy(self) -> Policy {
        let readable = |pair: &(&str, &str)| trigger::parse([*pair]).is_ok();
        trigger::parse(self.pairs().into_iter().filter(readable)).unwrap_or_default()
    }

    /// Host and port of the address.
    pub(super) fn address(self) -> Option<(&'a str, &'a str)> {
        self.metadata("scalerAddress")?.rsplit_once(':')
    }

    /// Name and namespace of the Service that the address names, seen from this namespace; `None` for
    /// another host.
    pub(super) fn service(self, from: &'a str) -> Option<(&'a str, &'a str)> {
        let mut parts = self.address()?.0.split('.');
        let (service, home) = (parts.next()?, parts.next().unwrap_or(from));
        let is_service = matches!(parts.next(), None | Some("svc"));
        let is_name = is_kubernetes_name(service) && is_kubernetes_name(home);
        // The first part of an IP address is none of a Service.
        let is_name = is_name && service.starts_with(|c: char| c.is_ascii_lowercase());
        (is_service && is_name).then_some((service, home))
    }
}

/// The reference of an object to what controls it.
pub(super) fn controller(object: &Value) -> Option<&Value> {
    list(object, "/metadata/ownerReferences").iter().find(|owner| owner["controller"] == true)
}

pub(super) fn triggers(object: &Value) -> impl Iterator<Item = Trigger<'_>> {
    let all = list(object, "/spec/triggers").iter().enumerate();
    all.map(|(index, value)| Trigger { index, value })
}

/// The trigger that this scaler answers; none where all of them are others'.
///
/// Another external scaler is known by its keys: none is one of ours.
pub(super) fn own_trigger(object: &Value) -> Option<Trigger<'_>> {
    own_triggers(object).next()
}

/// All the triggers that are this scaler's, or another installation's of it.
pub(super) fn own_triggers(object: &Value) -> impl Iterator<Item = Trigger<'_>> {
    triggers(object).filter(|trigger| {
        let is_external = matches!(trigger.kind(), "external" | "external-push");
        let is_ours = |key: &str| {
            let stem = key.strip_suffix(FROM_ENV).unwrap_or(key);
            FIELDS.iter().any(|field| field.key == stem)
        };
        let pairs = trigger.pairs();
        let mut others = pairs.keys().filter(|key| !trigger::is_keda_key(key)).peekable();
        let names_us = trigger.address().is_some_and(|(host, _)| host.contains("ghostscaler"));
        is_external && (names_us || others.peek().is_none() || others.any(|key| is_ours(key)))
    })
}
