//! Zero and back: what wakes, and what could put to sleep by mistake.

use serde_json::Value;

use crate::decision::ZeroAfter;
use crate::doctor::facts::{Facts, Missing};
use crate::doctor::finding::{Finding, Fix, Patch};
use crate::doctor::object::{integer, min, own_trigger, text, triggers};
use crate::duration::format_millis;
use crate::generate::{COOLDOWN_S, INITIAL_COOLDOWN_S};
use crate::trigger::nearest;

/// KEDA's own default.
const KEDA_COOLDOWN_S: i64 = 300;
/// Series that only a running replica gives.
const GONE_AT_ZERO: [&str; 3] = ["vllm", "sglang", "DCGM_"];

pub(super) fn no_wake_source(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    if min(object) > 0 {
        return Ok(None);
    }
    let what = match own_trigger(object) {
        Some(own) if own.has("wakeSource") || own.policy().spec.zero_after == ZeroAfter::Never => {
            return Ok(None);
        }
        Some(_) => "minReplicaCount is 0 and the trigger names no wakeSource".to_owned(),
        None => {
            let is_gone = |query: &str| GONE_AT_ZERO.iter().any(|name| query.contains(name));
            let mut queries = triggers(object).map(|trigger| trigger.metadata("query"));
            if !queries.all(|query| query.is_some_and(is_gone)) {
                return Ok(None);
            }
            "minReplicaCount is 0 and each trigger reads series that only a running replica has"
                .to_owned()
        }
    };
    let configured = facts.configuration.as_ref().ok();
    let source = configured.and_then(|config| config.wake_sources.keys().next());
    let fix = match (own_trigger(object), source) {
        (Some(own), Some(source)) => Fix::patch(
            format!("name the wake source {source:?} of the scaler's configuration"),
            own.patch(object).set(&own.pointer("metadata/wakeSource"), source.as_str()),
        ),
        (Some(_) | None, _) => Fix::patch(
            "keep one replica; or configure a wake source (manifests/examples/scale-to-zero) and \
             name it in the trigger",
            Patch::to(object).set("/spec/minReplicaCount", 1),
        ),
    };
    Ok(Some(Finding {
        id: "no-wake-source",
        what,
        why: "an engine that is gone cannot say that somebody wants it: what sleeps never wakes, \
              so this scaler never lets it sleep",
        fix,
    }))
}

pub(super) fn unknown_wake_source(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let Some(own) = own_trigger(object) else { return Ok(None) };
    let Some(named) = own.metadata("wakeSource") else { return Ok(None) };
    let known = &facts.configuration.as_ref()?.wake_sources;
    if known.contains_key(named) {
        return Ok(None);
    }
    let nearest = nearest(named, known.keys().map(String::as_str));
    let fix = match nearest {
        Some(nearest) => Fix::patch(
            format!("take {nearest:?}, the nearest of the configuration's"),
            own.patch(object).set(&own.pointer("metadata/wakeSource"), nearest),
        ),
        None => Fix::patch(
            "the configuration has no wake source at all: add one \
             (manifests/examples/scale-to-zero), or keep one replica and name none",
            own.patch(object)
                .remove(&own.pointer("metadata/wakeSource"))
                .set("/spec/minReplicaCount", min(object).max(1)),
        ),
    };
    Ok(Some(Finding {
        id: "unknown-wake-source",
        what: format!("wakeSource is {named:?}, and the scaler's configuration has no such one"),
        why: "zero is never reached, and what is at zero wakes for nobody",
        fix,
    }))
}

pub(super) fn polled_wake(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let Some(own) = own_trigger(object).filter(|own| own.kind() == "external") else {
        return Ok(None);
    };
    if min(object) > 0 {
        return Ok(None);
    }
    let polling_s = integer(object, "/spec/pollingInterval").unwrap_or(30);
    Ok(Some(Finding {
        id: "polled-wake",
        what: format!("the trigger's type is external, and pollingInterval is {polling_s} s"),
        why: "KEDA opens no push stream: each wake waits for the next poll instead of half a second",
        fix: Fix::patch(
            "take external-push",
            own.patch(object).set(&own.pointer("type"), "external-push"),
        ),
    }))
}

pub(super) fn short_cooldown(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let cooldown_s = integer(object, "/spec/cooldownPeriod").unwrap_or(KEDA_COOLDOWN_S);
    if min(object) > 0 || cooldown_s >= COOLDOWN_S || own_trigger(object).is_none() {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "short-cooldown",
        what: format!(
            "cooldownPeriod is {cooldown_s} s with minReplicaCount 0: expected {COOLDOWN_S} or more"
        ),
        why: "it is all that stands between a hung or cut-off scaler and zero: on KEDA 2.21 \
              answers that came 1.5 s late took 2 replicas to 0 after 27 s with a cool-down of 20, and \
              a dead node can hang its polls for 305 s",
        fix: Fix::patch(
            format!("set cooldownPeriod to {COOLDOWN_S}: this scaler says itself when to sleep"),
            Patch::to(object).set("/spec/cooldownPeriod", COOLDOWN_S),
        ),
    }))
}

pub(super) fn idle_cooldown(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let given = integer(object, "/spec/cooldownPeriod");
    let Some(cooldown_s) = given.filter(|given_s| ![KEDA_COOLDOWN_S, COOLDOWN_S].contains(given_s))
    else {
        return Ok(None);
    };
    let idles = integer(object, "/spec/idleReplicaCount").is_some();
    if min(object) == 0 || idles || own_trigger(object).is_none() {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "idle-cooldown",
        what: format!(
            "cooldownPeriod is {cooldown_s} s and minReplicaCount {}: it has no effect here",
            min(object)
        ),
        why: "it governs the last step to zero alone, never those between max and min, so whoever \
              set it waits for nothing",
        fix: Fix::patch(
            "take it out; what holds replicas here is ghostHold in the trigger's metadata",
            Patch::to(object).remove("/spec/cooldownPeriod"),
        ),
    }))
}

pub(super) fn idle_count(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let Some(idle) = integer(object, "/spec/idleReplicaCount") else { return Ok(None) };
    if own_trigger(object).is_none() {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "idle-count-without-effect",
        what: format!(
            "idleReplicaCount is {idle} with minReplicaCount {}: it has no effect here",
            min(object)
        ),
        why: "this scaler answers minReplicaCount at the least, and `true` with it, so KEDA never takes \
              the target for idle; one that stands at the idle count goes up with the first poll",
        fix: Fix::patch(
            "take it out; what may sleep has minReplicaCount 0 and names a wakeSource",
            Patch::to(object).remove("/spec/idleReplicaCount"),
        ),
    }))
}

pub(super) fn no_initial_cooldown(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let initial_s = integer(object, "/spec/initialCooldownPeriod").unwrap_or(0);
    // Once it has been active, KEDA counts from then.
    let was_active = text(object, "/status/lastActiveTime").is_some();
    if min(object) > 0 || initial_s >= COOLDOWN_S || was_active || own_trigger(object).is_none() {
        return Ok(None);
    }
    // A manifest that leaves the count to the HPA is of a target that runs.
    let running = integer(facts.target.as_ref()?, "/spec/replicas").unwrap_or(1);
    if running == 0 {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "no-initial-cooldown",
        what: format!("initialCooldownPeriod is {initial_s} s and the target runs"),
        why: "KEDA takes a new object to zero at the first poll that is not active: 3 replicas \
              were gone after 0.17 s on KEDA 2.21",
        fix: Fix::patch(
            format!("set initialCooldownPeriod to {INITIAL_COOLDOWN_S}"),
            Patch::to(object).set("/spec/initialCooldownPeriod", INITIAL_COOLDOWN_S),
        ),
    }))
}

pub(super) fn cold_start_above_slo(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object: &Value = &facts.object;
    let Some(own) = own_trigger(object) else { return Ok(None) };
    let policy = own.policy();
    if min(object) > 0 || policy.spec.zero_after == ZeroAfter::Never || !own.has("wakeSource") {
        return Ok(None);
    }
    let start_ms = *facts.cold_start_ms.as_ref()?;
    if start_ms <= policy.spec.slo_ttft_ms {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "cold-start-above-slo",
        what: format!(
            "a cold start takes {}, sloTtft is {}, and minReplicaCount is 0",
            format_millis(start_ms),
            format_millis(policy.spec.slo_ttft_ms)
        ),
        why: "who wakes it waits for a whole start: each first request after a sleep misses the SLO",
        fix: Fix::patch(
            "keep one replica; where the wait is worth the GPU, say so with --accept \
             cold-start-above-slo",
            Patch::to(object).set("/spec/minReplicaCount", 1),
        ),
    }))
}
