//! The start of a replica: what makes it longer than it has to be, and what gives up before its end.

use serde_json::Value;

use crate::cluster::pod_facts;
use crate::doctor::facts::{Facts, Missing, NodeAutoscaler};
use crate::doctor::finding::{Finding, Fix, Patch};
use crate::doctor::object::{integer, list, text};
use crate::doctor::workload::{Engine, pod_pointer};
use crate::duration::format_millis;

/// Kubernetes's own deadline of a Deployment's progress.
const DEFAULT_DEADLINE_S: i64 = 600;
/// Room above a start that has been seen.
const ROOM_PERCENT: i64 = 150;

pub(super) fn weights_in_image(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let Some(engine) = Engine::of(facts.target.as_ref()?) else { return Ok(None) };
    let Some(path) = engine.model().filter(|model| model.starts_with('/')) else {
        return Ok(None);
    };
    let mounts = engine.at("volumeMounts").and_then(Value::as_array);
    let holds = |mount: &Value| {
        let at = text(mount, "/mountPath").map(|at| at.trim_end_matches('/'));
        at.is_some_and(|at| path == at || path.starts_with(&format!("{at}/")))
    };
    if mounts.into_iter().flatten().any(holds) {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "weights-in-image",
        what: format!("the model is {path}, and no volume is mounted there: it is in the image"),
        why: "each node pulls and unpacks tens of gigabytes before a replica can start, again for \
              each new version of the engine",
        fix: Fix::words(format!(
            "put the weights where they are read as they load and mount that at {path}: a \
             persistentVolumeClaim that has them, or a hostPath that the nodes are given beforehand; \
             which of them is there only you know"
        )),
    }))
}

pub(super) fn outlasts_deadline(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let target = facts.target.as_ref()?;
    if target["kind"] != "Deployment" {
        return Ok(None);
    }
    let deadline_s = integer(target, "/spec/progressDeadlineSeconds").unwrap_or(DEFAULT_DEADLINE_S);
    let allowed_s = Engine::of(target).and_then(|engine| probe_s(&engine)).unwrap_or(0);
    let seen_s = facts.cold_start_ms.as_ref().ok().map(seconds);
    let (start_s, what) = match seen_s {
        Some(seen_s) if seen_s > deadline_s => {
            (with_room(seen_s), format!("a start takes {seen_s} s"))
        }
        Some(_) | None if allowed_s > deadline_s => {
            (allowed_s, format!("the startup probe allows {allowed_s} s"))
        }
        Some(_) => return Ok(None),
        // Without a probe of its own only what has been seen could tell.
        None if allowed_s == 0 => {
            facts.cold_start_ms.as_ref()?;
            return Ok(None);
        }
        None => return Ok(None),
    };
    Ok(Some(Finding {
        id: "start-outlasts-deadline",
        what: format!("{what}, and progressDeadlineSeconds is {deadline_s}"),
        why: "a rollout counts as failed while its first replica still loads: pipelines roll it \
              back, and what has started is thrown away",
        fix: Fix::patch(
            format!("set progressDeadlineSeconds to {start_s}"),
            Patch::to(target).set("/spec/progressDeadlineSeconds", start_s),
        ),
    }))
}

pub(super) fn outlasts_probe(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let Some(engine) = Engine::of(facts.target.as_ref()?) else { return Ok(None) };
    let Some(allowed_s) = probe_s(&engine) else { return Ok(None) };
    let start_ms = *facts.cold_start_ms.as_ref()?;
    let start_s = seconds(&start_ms);
    if start_s <= allowed_s {
        return Ok(None);
    }
    let probe = format!("{}/startupProbe", engine.container);
    let period_s = integer(engine.target, &format!("{probe}/periodSeconds")).unwrap_or(10).max(1);
    let failures = with_room(start_s) / period_s + 1;
    Ok(Some(Finding {
        id: "start-outlasts-probe",
        what: format!(
            "a start takes {}, and the startup probe gives up after {allowed_s} s",
            format_millis(start_ms)
        ),
        why: "the kubelet kills the engine while it loads, and it begins again: it never serves",
        fix: Fix::patch(
            format!("let the probe fail {failures} times"),
            Patch::to(engine.target).set(&format!("{probe}/failureThreshold"), failures),
        ),
    }))
}

/// How long the startup probe lets a start take, in seconds; `None` without one.
fn probe_s(engine: &Engine<'_>) -> Option<i64> {
    let probe = engine.at("startupProbe")?;
    let at = |key: &str, default| integer(probe, key).unwrap_or(default);
    let tries_s = at("/periodSeconds", 10).saturating_mul(at("/failureThreshold", 3));
    Some(at("/initialDelaySeconds", 0).saturating_add(tries_s))
}

fn seconds(millis: &u64) -> i64 {
    i64::try_from(millis.div_ceil(1_000)).unwrap_or(i64::MAX)
}

fn with_room(seconds: i64) -> i64 {
    seconds.saturating_mul(ROOM_PERCENT) / 100
}

pub(super) fn nodes_taken_away(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let target = facts.target.as_ref()?;
    let Some(pod) = pod_pointer(target) else { return Ok(None) };
    if pod_facts(target).and_then(|pods| pods.gpus).is_none() {
        return Ok(None);
    }
    let (who, key, value) = match facts.nodes.as_ref()?.autoscaler {
        None => return Ok(None),
        Some(NodeAutoscaler::Karpenter) => ("Karpenter", "karpenter.sh/do-not-disrupt", "true"),
        Some(NodeAutoscaler::ClusterAutoscaler) => {
            ("the cluster autoscaler", "cluster-autoscaler.kubernetes.io/safe-to-evict", "false")
        }
    };
    let template = pod.strip_suffix("/spec").unwrap_or(&pod);
    let annotations = target.pointer(&format!("{template}/metadata/annotations"));
    if annotations.is_some_and(|all| all[key] == value) {
        return Ok(None);
    }
    let key = key.replace('/', "~1");
    Ok(Some(Finding {
        id: "nodes-taken-away",
        what: format!("{who} manages the nodes, and nothing keeps it off these pods"),
        why: "it weighs nodes by CPU and memory, of which an engine uses little: it moves busy \
              GPU nodes, and new ones whose engines still load",
        fix: Fix::patch(
            "annotate the pods",
            Patch::to(target).set(&format!("{template}/metadata/annotations/{key}"), value),
        ),
    }))
}

/// The pods of a list whose start is known: from creation to readiness, in milliseconds, sorted.
///
/// Only of those that have never been anything but ready since: a later change of the condition would
/// be taken for the start.
#[must_use]
pub(in crate::doctor) fn seen_starts_ms(pods: &[Value]) -> Vec<u64> {
    let mut starts: Vec<u64> = pods.iter().filter_map(seen_start_ms).collect();
    starts.sort_unstable();
    starts
}

fn seen_start_ms(pod: &Value) -> Option<u64> {
    let time = |text: &str| text.parse::<jiff::Timestamp>().ok();
    let created = time(text(pod, "/metadata/creationTimestamp")?)?;
    let conditions = list(pod, "/status/conditions");
    let ready = conditions.iter().find(|it| it["type"] == "Ready" && it["status"] == "True")?;
    let ready = time(text(ready, "/lastTransitionTime")?)?;
    let restarts = list(pod, "/status/containerStatuses");
    if restarts.iter().any(|status| status["restartCount"].as_i64().unwrap_or(0) > 0) {
        return None;
    }
    u64::try_from(ready.as_millisecond() - created.as_millisecond()).ok()
}
