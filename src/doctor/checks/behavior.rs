//! The HPA's `behavior`: whether the scaler's decision gets through as it is, and when.

use serde_json::{Value, json};

use crate::cluster::survey::Keda;
use crate::decision::{DEFAULT_TOLERANCE, HpaEffect, hpa_effect};
use crate::doctor::facts::{Facts, Missing};
use crate::doctor::finding::{Finding, Fix, Patch};
use crate::doctor::object::{integer, list, max, own_trigger, text};
use crate::duration::format_millis;

const BEHAVIOR: &str = "/spec/advanced/horizontalPodAutoscalerConfig/behavior";
/// What the API server makes of a scaleDown without a window.
const DEFAULT_WINDOW_S: i64 = 300;
/// The evidence that the scaler itself asks for before a step down, until it has learned better.
const FIRST_HOLD_MS: u64 = 600_000;
/// What the API server makes of a scaleUp without policies: so many pods in 15 s, or twice as many.
const DEFAULT_STEP: i64 = 4;
const DEFAULT_PERIOD_S: i64 = 15;
/// From this minor version on an HPA has a tolerance of its own, by a feature gate first.
const GATED_SINCE: u32 = 33;
/// From this minor version on it has one always.
const ALWAYS_SINCE: u32 = 35;

pub(super) fn double_damping(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let Some(own) = own_trigger(object) else { return Ok(None) };
    let at = |below: &str| format!("{BEHAVIOR}/scaleDown/{below}");
    let window = integer(object, &at("stabilizationWindowSeconds"));
    let window_s = window.unwrap_or(DEFAULT_WINDOW_S);
    if window_s == 0 {
        return Ok(None);
    }
    let hold_ms = own.policy().spec.ghost_hold_ms.unwrap_or(FIRST_HOLD_MS);
    let window_ms = u64::try_from(window_s).unwrap_or(0).saturating_mul(1_000);
    let source = if window.is_some() { "" } else { ", Kubernetes's default" };
    Ok(Some(Finding {
        id: "double-damping",
        what: format!(
            "the scaler holds {} before a step down and the HPA another {}{source}: the effective \
             delay is {} ({} s)",
            format_millis(hold_ms),
            format_millis(window_ms),
            format_millis(hold_ms.saturating_add(window_ms)),
            hold_ms.saturating_add(window_ms) / 1_000,
        ),
        why: "GPUs that were let go on evidence are paid for longer; two dampers that do not know \
              each other add up",
        fix: Fix::patch(
            "one owner of hysteresis: let the HPA pass the answer on",
            Patch::to(object).set(&at("stabilizationWindowSeconds"), 0),
        ),
    }))
}

pub(super) fn limited_steps(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    if own_trigger(object).is_none() {
        return Ok(None);
    }
    let max = max(object);
    let up = format!("{BEHAVIOR}/scaleUp");
    let down = format!("{BEHAVIOR}/scaleDown");
    let mut patch = Patch::to(object);
    let mut limits = Vec::new();
    let largest = largest_step(object, &up, 1).unwrap_or((DEFAULT_STEP, DEFAULT_PERIOD_S));
    if largest.0 < max - 1 {
        limits.push(format!("scaleUp takes {} from one replica", at_most(largest)));
        let policy = json!([{"type": "Pods", "value": max, "periodSeconds": 15}]);
        patch = patch.remove(&format!("{up}/selectPolicy")).set(&format!("{up}/policies"), policy);
    }
    let window_s = integer(object, &format!("{up}/stabilizationWindowSeconds")).unwrap_or(0);
    if window_s > 0 {
        limits.push(format!("scaleUp waits {window_s} s"));
        patch = patch.set(&format!("{up}/stabilizationWindowSeconds"), 0);
    }
    let smallest = largest_step(object, &down, max).unwrap_or((max, DEFAULT_PERIOD_S));
    if smallest.0 < max - 1 {
        limits.push(format!("scaleDown takes {} from {max} replicas", at_most(smallest)));
        let policy = json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]);
        patch =
            patch.remove(&format!("{down}/selectPolicy")).set(&format!("{down}/policies"), policy);
    }
    if limits.is_empty() {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "limited-steps",
        what: format!("{}: the scaler may order {max} at once", limits.join(", ")),
        why: "a burst that needs many replicas gets them step by step, each of them a cold start \
              later than it could be",
        fix: Fix::patch("let every step through at once", patch),
    }))
}

/// How many replicas the policies of a direction allow from this count, and in how many seconds; `None`
/// where there are no policies.
///
/// A policy that has room for the whole range limits nothing, however long its period: the HPA counts
/// from what there was when the period began (Kubernetes, `calculateScaleUpLimitWithScalingRules`).
fn largest_step(object: &Value, direction: &str, from: i64) -> Option<(i64, i64)> {
    let step = |policy: &Value| {
        let value = policy["value"].as_i64().unwrap_or(0);
        let is_share = policy["type"] == "Percent";
        let step = if is_share { (from.saturating_mul(value) + 99) / 100 } else { value };
        (step, policy["periodSeconds"].as_i64().unwrap_or(DEFAULT_PERIOD_S))
    };
    let steps = list(object, &format!("{direction}/policies")).iter().map(step);
    match text(object, &format!("{direction}/selectPolicy")) {
        Some("Disabled") => Some((0, DEFAULT_PERIOD_S)),
        Some("Min") => steps.min(),
        Some(_) | None => steps.max(),
    }
}

fn at_most((step, period_s): (i64, i64)) -> String {
    format!("{step} within {period_s} s")
}

pub(super) fn no_tolerance(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    if own_trigger(object).is_none() || !swallows(max(object)) || is_unsupported(facts) {
        return Ok(None);
    }
    let directions = ["scaleUp", "scaleDown"];
    let lacks = |direction: &&str| !is_zero(object, &format!("{BEHAVIOR}/{direction}/tolerance"));
    let lacking: Vec<&str> = directions.into_iter().filter(lacks).collect();
    if lacking.is_empty() {
        return Ok(None);
    }
    let patch = lacking.iter().fold(Patch::to(object), |patch, direction| {
        patch.set(&format!("{BEHAVIOR}/{direction}/tolerance"), "0")
    });
    Ok(Some(Finding {
        id: "no-tolerance",
        what: format!(
            "{} of behavior {} no tolerance of \"0\", and maxReplicaCount is {}",
            lacking.join(" and "),
            if lacking.len() > 1 { "have" } else { "has" },
            max(object)
        ),
        why: "the HPA ignores every change within 10 %: from 10 replicas on each step of one is \
              swallowed, up to the SLO's cost and down to the bill's",
        fix: Fix::patch("set the tolerance to \"0\" (Kubernetes 1.35, KEDA 2.18)", patch),
    }))
}

pub(super) fn tolerance_unsupported(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    if own_trigger(object).is_none() || !swallows(max(object)) {
        return Ok(None);
    }
    let minor = *facts.kubernetes_minor.as_ref()?;
    let dropped = |hpa: &Value| {
        let at = "/spec/behavior/scaleUp/tolerance";
        is_zero(object, &format!("{BEHAVIOR}/scaleUp/tolerance")) && !is_zero(hpa, at)
    };
    let what = if facts.keda == Ok(Keda::Installed { takes_tolerance: false }) {
        "this KEDA is older than 2.18, which passes no tolerance on".to_owned()
    } else if minor < GATED_SINCE {
        format!("Kubernetes 1.{minor} has no tolerance of an HPA's own")
    } else if minor < ALWAYS_SINCE && facts.hpa.as_ref()?.as_ref().is_some_and(dropped) {
        format!(
            "Kubernetes 1.{minor} dropped the tolerance: its feature gate HPAConfigurableTolerance \
             is off"
        )
    } else {
        return Ok(None);
    };
    Ok(Some(Finding {
        id: "tolerance-unsupported",
        what: format!("{what}, and maxReplicaCount is {}", max(object)),
        why: "from 10 replicas on each step of one is swallowed; the scaler gets past that \
              upwards by asking for one more, and downwards it waits",
        fix: Fix::command(
            "update to Kubernetes 1.35 and KEDA 2.18, or set the flag of the whole cluster",
            "kube-controller-manager --horizontal-pod-autoscaler-tolerance=0",
        ),
    }))
}

/// Whether the default tolerance swallows some step of one up to this count.
fn swallows(max: i64) -> bool {
    let max = u32::try_from(max).unwrap_or(0);
    let ignored = |count| {
        matches!(hpa_effect(count, count + 1, DEFAULT_TOLERANCE), HpaEffect::Ignored { .. })
    };
    (1..max).any(ignored)
}

fn is_unsupported(facts: &Facts) -> bool {
    facts.keda == Ok(Keda::Installed { takes_tolerance: false })
        || facts.kubernetes_minor.as_ref().is_ok_and(|minor| *minor < GATED_SINCE)
}

/// A quantity that is there and is zero.
fn is_zero(object: &Value, pointer: &str) -> bool {
    match object.pointer(pointer) {
        Some(Value::Number(number)) => number.as_f64().is_some_and(|number| number.abs() <= 0.0),
        Some(Value::String(text)) => {
            text.trim_end_matches('m').parse::<f64>().is_ok_and(|number| number.abs() <= 0.0)
        }
        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) | None => false,
    }
}
