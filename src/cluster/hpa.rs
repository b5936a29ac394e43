//! What an HPA says: whose it is, what it scales, how far and how fast.
//!
//! Pure. It is read from the HPA and not from the ScaledObject behind it, since an API server drops
//! what its version does not know, the tolerance among it.

use std::sync::Arc;

use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscaler};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::scaled_object::TargetRef;
use crate::hpa::{Behavior, Change, Limit, Rules, Select};
use crate::inventory::Hpa;

/// An HPA, reduced to what matters here.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Autoscaler {
    /// The ScaledObject that KEDA made it of, where it did.
    pub(super) made_of: Option<Arc<str>>,
    /// What it scales.
    pub(super) target: TargetRef,
    /// How.
    pub(super) hpa: Arc<Hpa>,
}

impl Autoscaler {
    /// Reads an HPA; `None` for one that scales nothing of that can be named.
    pub(super) fn from_object(object: &HorizontalPodAutoscaler) -> Option<Autoscaler> {
        let owners = object.metadata.owner_references.iter().flatten();
        let made_of = owners
            .filter(|owner| {
                owner.kind == "ScaledObject" && owner.api_version.starts_with("keda.sh/")
            })
            .map(|owner| Arc::from(owner.name.as_str()))
            .next();
        let spec = &object.spec;
        let target = &spec.scale_target_ref;
        let api_version = target.api_version.as_deref().unwrap_or_default();
        let rules = spec.behavior.as_ref();
        let up = rules.and_then(|both| both.scale_up.as_ref());
        let down = rules.and_then(|both| both.scale_down.as_ref());
        let says = |rules: Option<&HPAScalingRules>| {
            rules.and_then(|rules| rules.tolerance.as_ref()).and_then(fraction).is_some()
        };
        let count = |replicas: i32| u32::try_from(replicas).unwrap_or(0).max(1);
        let hpa = Hpa {
            name: object.metadata.name.as_deref()?.into(),
            min: count(spec.min_replicas.unwrap_or(1)),
            max: count(spec.max_replicas),
            behavior: rules.map(|_| {
                let defaults = Behavior::default();
                Behavior { up: over(up, defaults.up), down: over(down, defaults.down) }
            }),
            says_tolerance_up: says(up),
            says_tolerance_down: says(down),
        };
        let target = TargetRef::new(api_version, &target.kind, target.name.as_str().into())?;
        Some(Autoscaler { made_of, target, hpa: Arc::new(hpa) })
    }
}

/// The rules of one direction, over what they leave out.
fn over(rules: Option<&HPAScalingRules>, defaults: Rules) -> Rules {
    let Some(rules) = rules else { return defaults };
    let limits = rules.policies.as_ref().map(|policies| {
        let limit = |policy: &k8s_openapi::api::autoscaling::v2::HPAScalingPolicy| {
            let value = u32::try_from(policy.value).unwrap_or(0);
            let is_share = policy.type_ == "Percent";
            let change = if is_share { Change::Percent(value) } else { Change::Pods(value) };
            Limit { change, period_ms: millis(policy.period_seconds) }
        };
        policies.iter().map(limit).collect()
    });
    Rules {
        tolerance: rules.tolerance.as_ref().and_then(fraction).unwrap_or(defaults.tolerance),
        window_ms: rules.stabilization_window_seconds.map_or(defaults.window_ms, millis),
        select: match rules.select_policy.as_deref() {
            Some("Min") => Select::Smallest,
            Some("Disabled") => Select::Disabled,
            Some(_) | None => Select::Largest,
        },
        limits: limits.unwrap_or(defaults.limits),
    }
}

fn millis(seconds: i32) -> u64 {
    u64::try_from(seconds).unwrap_or(0) * 1_000
}

/// A tolerance as the API server writes it: `0`, `50m`, `500u` or `0.05`; `None` for any other form.
fn fraction(quantity: &Quantity) -> Option<f64> {
    let text = quantity.0.as_str();
    let (number, parts) = [('m', 1e3), ('u', 1e6), ('n', 1e9)]
        .into_iter()
        .find_map(|(suffix, parts)| Some((text.strip_suffix(suffix)?, parts)))
        .unwrap_or((text, 1.0));
    let value = number.parse::<f64>().ok()? / parts;
    (0.0..1.0).contains(&value).then_some(value)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::scaled_object::TargetKind;

    fn read(spec: Value, owners: Value) -> Option<Autoscaler> {
        let mut object = json!({
            "metadata": {"name": "keda-hpa-llm", "namespace": "ns", "ownerReferences": owners},
            "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"},
                "minReplicas": 2, "maxReplicas": 9},
        });
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        Autoscaler::from_object(&serde_json::from_value(object).unwrap())
    }

    fn hpa(spec: Value) -> Arc<Hpa> {
        read(spec, json!([])).unwrap().hpa
    }

    #[test]
    fn the_hpa_of_keda_names_its_scaled_object_whatever_it_is_called_itself() {
        let owner = json!([{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "so",
            "uid": "1", "controller": true}]);
        let read = read(json!({}), owner).unwrap();
        assert_eq!(read.made_of.as_deref(), Some("so"));
        assert_eq!(read.target, TargetRef { kind: TargetKind::Deployment, name: "llm".into() });
        assert_eq!((&*read.hpa.name, read.hpa.min, read.hpa.max), ("keda-hpa-llm", 2, 9));
    }

    #[test]
    fn somebody_elses_hpa_is_made_of_nothing() {
        for owners in [
            json!([]),
            json!([{"apiVersion": "apps/v1", "kind": "ScaledObject", "name": "so", "uid": "1"}]),
        ] {
            assert_eq!(read(json!({}), owners).unwrap().made_of, None);
        }
    }

    #[test]
    fn a_tolerance_is_its_own_or_the_controllers() {
        let own =
            |tolerance: Value| hpa(json!({"behavior": {"scaleUp": {"tolerance": tolerance}}}));
        for (text, expected) in [("0", 0.0), ("50m", 0.05), ("500u", 0.0005), ("0.25", 0.25)] {
            let read = own(json!(text));
            assert!((read.tolerance(true) - expected).abs() < 1e-12, "{text}");
            assert!(read.says_tolerance_up && !read.says_tolerance_down);
            assert!((read.tolerance(false) - 0.1).abs() < 1e-12, "the other direction's default");
        }
        // As an API server leaves it whose version has no such field.
        let dropped = hpa(json!({"behavior": {"scaleUp": {"stabilizationWindowSeconds": 0}}}));
        assert!((dropped.tolerance(true) - 0.1).abs() < 1e-12 && !dropped.says_tolerance_up);
        let none = hpa(json!({}));
        assert!((none.tolerance(true) - 0.1).abs() < 1e-12 && none.behavior.is_none());
    }

    #[test]
    fn a_behavior_is_read_whole_and_filled_as_the_api_server_fills_it() {
        let read = hpa(json!({"behavior": {
            "scaleUp": {"selectPolicy": "Min", "stabilizationWindowSeconds": 30, "tolerance": "0",
                "policies": [{"type": "Pods", "value": 9, "periodSeconds": 15},
                    {"type": "Percent", "value": 50, "periodSeconds": 60}]},
            "scaleDown": {"selectPolicy": "Disabled"},
        }}));
        let behavior = read.behavior.as_ref().unwrap();
        let limits = vec![
            Limit { change: Change::Pods(9), period_ms: 15_000 },
            Limit { change: Change::Percent(50), period_ms: 60_000 },
        ];
        let up = Rules { tolerance: 0.0, window_ms: 30_000, select: Select::Smallest, limits };
        assert_eq!(behavior.up, up);
        let down = Rules { select: Select::Disabled, ..Behavior::default().down };
        assert_eq!(behavior.down, down);
    }
}
