//! Who else writes the target's count, and whether the target can be scaled at all.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::doctor::facts::{Facts, Missing};
use crate::doctor::finding::{Finding, Fix, Patch};
use crate::doctor::object::{
    controller, integer, list, name, namespace, own_trigger, target_of, text, title,
};

/// Field managers that write the count because they scale.
const SCALERS: [&str; 3] = ["kube-controller-manager", "keda", "kubectl-scale"];

/// The annotation by which an InferenceService says who scales it.
const KSERVE_SCALER: &str = "serving.kserve.io/autoscalerClass";

pub(super) fn second_autoscaler(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let same = |other: &&Value| target_of(other) == target_of(object);
    let hpas = facts.other_hpas.as_ref().map(|all| all.iter().find(same));
    let objects = facts.other_objects.as_ref().map(|all| all.iter().filter(same).collect());
    // One that is there is enough, whatever else could not be looked at.
    let rivals: Vec<&Value> = match (hpas, objects) {
        (Ok(Some(rival)), _) => vec![rival],
        (Ok(None) | Err(_), Ok(rivals)) if !Vec::is_empty(&rivals) => rivals,
        (Ok(None), Ok(_)) => return Ok(None),
        (Err(missing), _) | (_, Err(missing)) => return Err(missing.into()),
    };
    let all = || rivals.iter().copied().chain([object]);
    // Each of them is told the same, so that whoever follows all findings keeps one.
    let keep = all().min_by_key(|object| precedence(object)).unwrap_or(object);
    let loser = if keep == object { rivals.first().copied() } else { Some(object) };
    let Some(loser) = loser else { return Ok(None) };
    let (kind, target) = target_of(object);
    let names: Vec<String> = rivals.iter().map(|rival| title(rival)).collect();
    let resource = if loser["kind"] == "ScaledObject" { "scaledobject" } else { "hpa" };
    Ok(Some(Finding {
        id: "second-autoscaler",
        what: format!("{} scales {kind}/{target} too", names.join(" and ")),
        why: "two autoscalers of one target undo each other's steps: replicas start and die in a loop",
        fix: Fix::command(
            format!("keep one of them, such as {}", title(keep)),
            format!(
                "kubectl delete {resource} {} -n {} --ignore-not-found",
                name(loser),
                namespace(object)
            ),
        ),
    }))
}

/// Which autoscaler of a target is kept: one of this scaler's, then the older one.
fn precedence(object: &Value) -> (bool, &str, &str) {
    let created = text(object, "/metadata/creationTimestamp").unwrap_or_default();
    (own_trigger(object).is_none(), created, name(object))
}

pub(super) fn replicas_owned_elsewhere(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let target = facts.target.as_ref()?;
    let managed = list(target, "/metadata/managedFields");
    let owner = managed.iter().find_map(|entry| {
        let manager = text(entry, "/manager")?;
        let scales = entry["subresource"] == "scale"
            || SCALERS.iter().any(|scaler| manager.starts_with(scaler));
        let owns = entry.pointer("/fieldsV1/f:spec/f:replicas").is_some();
        (owns && !scales && says_count(entry, target)).then_some(manager)
    });
    let owner = owner.or_else(|| applier(target));
    // What comes from a file has no managers yet, and its count would be written at each apply.
    let is_file = text(target, "/metadata/uid").is_none() && managed.is_empty();
    let in_file = is_file.then(|| integer(target, "/spec/replicas")).flatten();
    let (kind, name) = (text(target, "/kind").unwrap_or_default(), name(target));
    let (what, fix) = match (owner, in_file) {
        (Some(manager), _) => {
            (format!("{manager} writes spec.replicas of {kind}/{name}"), release(manager, target))
        }
        (None, Some(replicas)) => (
            format!("the manifest of {kind}/{name} says replicas: {replicas}"),
            Fix::patch(
                "take replicas out of the manifest; of an object that is applied already first \
                 with `kubectl apply edit-last-applied`, else it falls to 1",
                Patch::to(target).remove("/spec/replicas"),
            ),
        ),
        (None, None) => return Ok(None),
    };
    Ok(Some(Finding {
        id: "replicas-owned-elsewhere",
        what,
        why: "each sync or apply sets the count back and the HPA raises it again: pods die in a loop",
        fix,
    }))
}

/// Whether a manager has written the count itself: what the API server fills in at creation becomes a
/// field of the creator too, unless it applies on the server's side.
fn says_count(entry: &Value, target: &Value) -> bool {
    // 1 is what is filled in.
    let is_default = || integer(target, "/spec/replicas") == Some(1);
    entry["operation"] == "Apply" || (last_applied(target).is_none() && !is_default())
}

/// Who applies a manifest with a count by `kubectl apply` or as it does. The HPA takes the field over
/// with its first step, and the next apply takes it back.
fn applier(target: &Value) -> Option<&'static str> {
    last_applied(target)?.pointer("/spec/replicas")?;
    let labels = target.pointer("/metadata/labels").and_then(Value::as_object);
    let annotations = target.pointer("/metadata/annotations").and_then(Value::as_object);
    let mut keys = labels.into_iter().chain(annotations).flat_map(|all| all.keys());
    let by_argo = keys.any(|key| key.starts_with("argocd.argoproj.io/"));
    Some(if by_argo { "argocd-controller" } else { "kubectl-client-side-apply" })
}

/// The manifest that was applied last on the client's side.
fn last_applied(target: &Value) -> Option<Value> {
    let key = "/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration";
    serde_json::from_str(text(target, key)?).ok()
}

/// How this manager lets go of the count without writing it once more.
fn release(manager: &str, target: &Value) -> Fix {
    let (kind, name) = (text(target, "/kind").unwrap_or_default(), name(target));
    let group = text(target, "/apiVersion").and_then(|it| it.split_once('/')).map_or("", |it| it.0);
    if manager.starts_with("argocd") {
        return Fix::command(
            "tell the Argo CD application to leave the count alone, also when it syncs",
            format!(
                "spec:\n  ignoreDifferences:\n  - group: {group}\n    kind: {kind}\n    \
                 jsonPointers:\n    - /spec/replicas\n  syncPolicy:\n    \
                 syncOptions: [RespectIgnoreDifferences=true]"
            ),
        );
    }
    if manager == "kubectl-client-side-apply" {
        return Fix::command(
            "take replicas out of what was applied last, then out of the manifest",
            format!(
                "kubectl apply edit-last-applied {} {name} -n {}",
                kind.to_ascii_lowercase(),
                namespace(target)
            ),
        );
    }
    Fix::words(format!(
        "take spec.replicas out of what {manager} applies; with server-side apply it then lets go \
         of the field and the count stays"
    ))
}

pub(super) fn target_is_controlled(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let target = facts.target.as_ref()?;
    let Some(controller) = controller(target) else { return Ok(None) };
    let owner = facts.owner.as_ref().ok().and_then(Option::as_ref);
    if owner.is_some_and(|owner| lets_go(&owner.object)) {
        return Ok(None);
    }
    let at = |key| text(controller, key).unwrap_or_default();
    let reference = "/spec/scaleTargetRef";
    let fix = match owner {
        Some(owner) if owner.scales => Fix::patch(
            "scale the owner, which has a scale subresource",
            Patch::to(&facts.object)
                .set(&format!("{reference}/apiVersion"), at("/apiVersion"))
                .set(&format!("{reference}/kind"), at("/kind"))
                .set(&format!("{reference}/name"), at("/name")),
        ),
        Some(owner) => let_go(&owner.object),
        None => Fix::words(
            "scale the owner, if it has a scale subresource; else tell its controller to leave \
             replicas alone",
        ),
    };
    Ok(Some(Finding {
        id: "target-is-controlled",
        what: format!("{} is controlled by {}/{}", title(target), at("/kind"), at("/name")),
        why: "its controller sets the count back to what its own object says",
        fix,
    }))
}

/// Whether the owner leaves its Deployment's count to others. KServe's kinds have no scale subresource
/// (0.19), and do so where they are told.
fn lets_go(owner: &Value) -> bool {
    match text(owner, "/kind") {
        Some("InferenceService") => {
            text(owner, &format!("/metadata/annotations/{}", KSERVE_SCALER.replace('/', "~1")))
                == Some("external")
        }
        Some("LLMInferenceService") => {
            ["/spec/replicas", "/spec/scaling"].iter().all(|count| owner.pointer(count).is_none())
        }
        Some(_) | None => false,
    }
}

/// How an owner without a scale subresource lets go of the count.
fn let_go(owner: &Value) -> Fix {
    let (kind, name, namespace) = (text(owner, "/kind"), name(owner), namespace(owner));
    match kind {
        Some("InferenceService") => Fix::command(
            "tell KServe that another scales it: it then leaves its Deployment's count alone",
            format!(
                "kubectl annotate inferenceservice {name} -n {namespace} {KSERVE_SCALER}=external \
                 --overwrite"
            ),
        ),
        Some("LLMInferenceService") => Fix::patch(
            "take the count out of it: KServe then leaves its Deployment's alone",
            Patch::to(owner).remove("/spec/replicas").remove("/spec/scaling"),
        ),
        kind => Fix::words(format!(
            "{} has no scale subresource to scale instead: tell its controller to leave replicas \
             alone",
            kind.unwrap_or("the owner")
        )),
    }
}

pub(super) fn no_selector(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let (kind, target) = target_of(&facts.object);
    let (what, fix) = match facts.scale.as_ref()? {
        Some(scale) if text(scale, "/status/selector").is_some() => return Ok(None),
        Some(_) => (
            format!("the scale of {kind}/{target} has no selector"),
            Fix::words(format!(
                "give the resource definition of {kind} `subresources: {{scale: {{specReplicasPath: \
                 .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: \
                 .status.selector}}}}`, and let its controller write the pods' labels there"
            )),
        ),
        None => (
            format!("{kind}/{target} has no scale subresource"),
            Fix::words("scale what it makes instead: the Deployment or StatefulSet of its pods"),
        ),
    };
    Ok(Some(Finding {
        id: "no-selector",
        what,
        why: "the HPA cannot tell which pods are meant and does nothing; the scaler finds no engine",
        fix,
    }))
}

pub(super) fn pods_differ(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let Some(scale) = facts.scale.as_ref()? else { return Ok(None) };
    let Some(ordered) = integer(scale, "/spec/replicas") else { return Ok(None) };
    let ends = |pod: &Value| {
        let phase = text(pod, "/status/phase");
        pod["metadata"].get("deletionTimestamp").is_some()
            || matches!(phase, Some("Succeeded" | "Failed"))
    };
    let pods: Vec<&Value> = facts.pods.as_ref()?.iter().filter(|pod| !ends(pod)).collect();
    let stand = i64::try_from(pods.len()).unwrap_or(i64::MAX);
    // Two templates at a time: a rollout or a canary, whose pods come on top.
    let templates: BTreeSet<&str> = pods.iter().filter_map(|pod| template_hash(pod)).collect();
    if stand == ordered || templates.len() > 1 {
        return Ok(None);
    }
    let controls = |owner: &&Value| owner["controller"] == true;
    let owner = |pod: &&Value| {
        let owner = list(pod, "/metadata/ownerReferences").iter().find(controls)?;
        Some(format!("{}/{}", text(owner, "/kind")?, text(owner, "/name")?))
    };
    let owners: BTreeSet<String> = pods.iter().filter_map(owner).collect();
    let owners: Vec<String> = owners.into_iter().take(3).collect();
    let by = if owners.is_empty() { String::new() } else { format!(" of {}", owners.join(", ")) };
    let (kind, target) = target_of(&facts.object);
    let selector = text(scale, "/status/selector").unwrap_or_default();
    Ok(Some(Finding {
        id: "pods-differ",
        what: format!("{kind}/{target} orders {ordered}, and there are {stand} pods{by}"),
        why: "whoever has changed what the target makes holds GPUs that no decision gives back, or \
              keeps away what was ordered",
        fix: Fix::command(
            "set what the target makes back to the target's count; the pods and their owners are",
            format!(
                "kubectl get pods -n {} -l '{selector}' -o \
                 custom-columns=POD:.metadata.name,OWNER:.metadata.ownerReferences[*].name",
                namespace(&facts.object)
            ),
        ),
    }))
}

/// What tells the pods of one template from those of another.
fn template_hash(pod: &Value) -> Option<&str> {
    let labels = &pod["metadata"]["labels"];
    ["pod-template-hash", "controller-revision-hash"].iter().find_map(|key| labels[key].as_str())
}

pub(super) fn pause_disputed(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let conditions = list(object, "/status/conditions");
    let paused = conditions.iter().find(|condition| condition["type"] == "Paused");
    let says = paused.is_some_and(|condition| condition["status"] == "True");
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    let wants = annotations
        .is_some_and(|all| all.keys().any(|key| key.starts_with("autoscaling.keda.sh/paused")));
    if !says || wants {
        return Ok(None);
    }
    let (name, namespace) = (name(object), namespace(object));
    Ok(Some(Finding {
        id: "pause-disputed",
        what: "its condition says Paused and no annotation pauses it".to_owned(),
        why: "KEDA has missed the end of the pause: nothing scales until it looks again",
        fix: Fix::command(
            "pause it and let it go once more",
            format!(
                "kubectl annotate scaledobject {name} -n {namespace} \
                 autoscaling.keda.sh/paused=true --overwrite\n\
                 kubectl annotate scaledobject {name} -n {namespace} autoscaling.keda.sh/paused-"
            ),
        ),
    }))
}
