//! KEDA's fallback: when it can take over, and what it would do.

use crate::decision::Mode;
use crate::doctor::facts::{Facts, Missing};
use crate::doctor::finding::{Finding, Fix, Patch};
use crate::doctor::object::{integer, min, own_trigger, text};

pub(super) fn of_zero(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    if own_trigger(object).is_none() || object.pointer("/spec/fallback").is_none() {
        return Ok(None);
    }
    if integer(object, "/spec/fallback/replicas").unwrap_or(0) > 0 {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "fallback-of-zero",
        what: "fallback.replicas is 0".to_owned(),
        why: "it never takes over: this scaler counts it as none and holds, and to KEDA a scaler \
              that is gone is then an idle one, so with minReplicaCount 0 an outage ends at zero",
        fix: Fix::patch(
            "take the fallback out: the scaler itself holds the last count when it cannot see",
            Patch::to(object).remove("/spec/fallback"),
        ),
    }))
}

pub(super) fn never_fires(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let Some(own) = own_trigger(object) else { return Ok(None) };
    let replicas = integer(object, "/spec/fallback/replicas").unwrap_or(0);
    if replicas <= 0 {
        return Ok(None);
    }
    let target = text(object, "/spec/advanced/scalingModifiers/target");
    let is_formula = text(object, "/spec/advanced/scalingModifiers/formula").is_some();
    let without =
        "take the fallback out: the scaler itself holds the last count when it cannot see";
    let remove = || Patch::to(object).remove("/spec/fallback");
    let (what, fix) = if integer(object, "/spec/fallback/failureThreshold").is_none() {
        (
            "the fallback has no failureThreshold, without which KEDA takes no such object"
                .to_owned(),
            Fix::patch(
                "three failed calls",
                Patch::to(object).set("/spec/fallback/failureThreshold", 3),
            ),
        )
    } else if own.policy().spec.mode == Mode::Shadow {
        (
            "there is a fallback, and mode is shadow: what the scaler cannot see is no error then"
                .to_owned(),
            Fix::patch(format!("{without}; or let the trigger act"), remove()),
        )
    } else if is_formula && target.is_none_or(|target| target.parse::<i64>().is_err()) {
        (
            format!(
                "there is a fallback, and the target of scalingModifiers is {}, not a whole number",
                target.unwrap_or("missing")
            ),
            Fix::patch(format!("{without}; or make the target whole"), remove()),
        )
    } else {
        return Ok(None);
    };
    Ok(Some(Finding {
        id: "fallback-never-fires",
        what,
        why: "whoever wrote it counts on it, and it never takes over; nor does any fallback when the \
              scaler itself is gone, for KEDA then counts no failures",
        fix,
    }))
}

pub(super) fn below_usual(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let replicas = integer(object, "/spec/fallback/replicas").filter(|replicas| *replicas > 0);
    let Some(replicas) = replicas else { return Ok(None) };
    let behavior = text(object, "/spec/fallback/behavior").unwrap_or("static");
    if behavior != "static" {
        return Ok(None);
    }
    // A manifest without a count says nothing of what is usual beyond the minimum.
    let target = facts.target.as_ref()?;
    let usual = integer(target, "/spec/replicas").unwrap_or(1).max(min(object));
    if replicas >= usual {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "fallback-below-usual",
        what: format!("fallback.replicas is {replicas}, at present {usual} run"),
        why: "a static fallback is an exact count, over whatever other triggers ask for: an \
              outage of the metrics cuts a fleet that is busy",
        fix: Fix::patch(
            "let it only raise",
            Patch::to(object).set("/spec/fallback/behavior", "currentReplicasIfHigher"),
        ),
    }))
}
