//! KEDA's fallback: when it can take over, and what it would do.

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
