//! What the triggers say: metadata, kinds of metrics, and metrics that are no demand.

use serde_json::Value;

use crate::doctor::facts::{Facts, Missing};
use crate::doctor::finding::{Finding, Fix, Patch};
use crate::doctor::object::{Trigger, own_trigger, text, triggers};
use crate::doctor::workload::Engine;
use crate::trigger::{self, FIELDS, FROM_ENV, nearest};

/// Parts of the names of metrics that are shares and not amounts.
const SHARES: [&str; 6] = ["_perc", "_UTIL", "_util", "percent", "_ratio", "_ACTIVE"];
/// Device memory, which an engine reserves whole when it starts.
const MEMORY: [&str; 2] = ["DCGM_FI_DEV_FB_", "nvidia_gpu_memory_used"];

pub(super) fn bad_metadata(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let Some(own) = own_trigger(object) else { return Ok(None) };
    let Err(faults) = trigger::parse(own.pairs()) else { return Ok(None) };
    let mut patch = own.patch(object);
    for (key, value) in own.pairs() {
        let stem = key.strip_suffix(FROM_ENV).unwrap_or(key);
        let known = FIELDS.iter().find(|field| field.key == stem);
        if trigger::is_keda_key(key) || known.is_some() && trigger::parse([(key, value)]).is_ok() {
            continue;
        }
        let at = |key: &str| own.pointer(&format!("metadata/{}", escaped(key)));
        patch = patch.remove(&at(key));
        // A slip of the pen keeps its value, where that fits.
        let meant = nearest(stem, FIELDS.iter().map(|field| field.key)).filter(|_| known.is_none());
        if let Some(meant) = meant.filter(|meant| trigger::parse([(*meant, value)]).is_ok()) {
            let key = if stem == key { meant.to_owned() } else { format!("{meant}{FROM_ENV}") };
            patch = patch.set(&at(&key), value);
        }
    }
    Ok(Some(Finding {
        id: "bad-metadata",
        what: faults.to_string(),
        why: "the scaler refuses the trigger, so KEDA keeps the count where it is, whatever comes",
        fix: Fix::patch("take the nearest key, or the default where a value does not fit", patch),
    }))
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

pub(super) fn value_metric(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let Some(own) = own_trigger(object) else { return Ok(None) };
    if text(own.value, "/metricType") != Some("Value") {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "value-metric",
        what: "metricType of the trigger is Value".to_owned(),
        why: "the HPA multiplies a Value by the pods that are ready: while replicas start it \
              scales down under load, and to the minimum when none is ready",
        fix: Fix::patch(
            "take AverageValue: the answer is the count itself",
            own.patch(object).set(&own.pointer("metricType"), "AverageValue"),
        ),
    }))
}

pub(super) fn percent_as_average(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let is_share = |trigger: &Trigger<'_>| {
        let query = trigger.metadata("query").unwrap_or_default();
        let averaged = text(trigger.value, "/metricType") != Some("Value");
        averaged && !query.contains("sum(") && SHARES.iter().any(|part| query.contains(part))
    };
    let Some(share) = triggers(object).find(is_share) else { return Ok(None) };
    let (text, patch) = without(
        object,
        share,
        |patch| patch.set(&share.pointer("metricType"), "Value"),
        "take metricType Value, which the HPA compares as it is",
    );
    Ok(Some(Finding {
        id: "percent-as-average",
        what: format!(
            "trigger {} asks for a share ({}) as AverageValue",
            share.index,
            share.metadata("query").unwrap_or_default()
        ),
        why: "the HPA divides an AverageValue by the replicas: 90 % on 10 replicas counts as 9 %, \
              so it scales down the more the larger the fleet is",
        fix: Fix::patch(text, patch),
    }))
}

pub(super) fn memory_as_load(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let is_memory = |trigger: &Trigger<'_>| {
        let query = trigger.metadata("query").unwrap_or_default();
        MEMORY.iter().any(|name| query.contains(name))
    };
    let Some(memory) = triggers(object).find(is_memory) else { return Ok(None) };
    let name = text(object, "/metadata/name").unwrap_or_default();
    let (text, patch) = without(
        object,
        memory,
        |patch| {
            patch
                .set(&memory.pointer("type"), "external-push")
                .set(&memory.pointer("metricType"), "AverageValue")
                .set(
                    &memory.pointer("metadata"),
                    serde_json::json!({"scalerAddress": crate::generate::DEFAULT_ADDRESS}),
                )
        },
        &format!("let this scaler decide {name} by its work"),
    );
    Ok(Some(Finding {
        id: "memory-as-load",
        what: format!(
            "trigger {} scales on GPU memory ({})",
            memory.index,
            memory.metadata("query").unwrap_or_default()
        ),
        why: "an engine reserves nine tenths of the memory when it starts, idle or not: this rule \
              fires for ever, and at zero it is 0",
        fix: Fix::patch(text, patch),
    }))
}

pub(super) fn target_beyond_engine(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let Some(own) = own_trigger(object) else { return Ok(None) };
    let Some(target) = own.policy().spec.target_in_flight else { return Ok(None) };
    let engine = Engine::of(facts.target.as_ref()?);
    let Some(takes) = engine.and_then(|engine| engine.option("--max-num-seqs")) else {
        return Ok(None);
    };
    if takes.parse::<f64>().is_ok_and(|takes| target < takes) {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "target-beyond-engine",
        what: format!("targetInFlight is {target}, and the engine runs {takes} at once at most"),
        why: "what runs can never exceed the target, so only what waits in the engine itself \
              raises the count: a queue in front of it is not seen",
        fix: Fix::patch(
            "take it out: what one replica carries is learned",
            own.patch(object)
                .remove(&own.pointer("metadata/targetInFlight"))
                .remove(&own.pointer("metadata/targetInFlightFromEnv")),
        ),
    }))
}

/// Takes a trigger out where this scaler's own decides anyway; else does something else with it.
fn without(
    object: &Value,
    trigger: Trigger<'_>,
    otherwise: impl FnOnce(Patch) -> Patch,
    words: &str,
) -> (String, Patch) {
    if own_trigger(object).is_some() {
        let patch = trigger.patch(object).remove(&format!("/spec/triggers/{}", trigger.index));
        return ("take it out: this scaler reads KV cache and GPU use itself".to_owned(), patch);
    }
    (words.to_owned(), otherwise(trigger.patch(object)))
}
