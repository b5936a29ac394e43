//! Whether the scaler's account may do what the scaler does.

use serde_json::json;

use crate::doctor::facts::{Facts, Lack, Missing};
use crate::doctor::finding::{Finding, Fix, Patch};

/// The name of both roles of the manifests.
const ROLE: &str = "ghostscaler";
const REMEDY: &str = "apply the roles of this version's manifests (kubectl apply -k manifests/), or \
                      add the rules";

pub(super) fn missing_permission(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let rights = facts.rights.as_ref()?;
    if rights.lacks.is_empty() {
        return Ok(None);
    }
    let role = json!({"kind": "ClusterRole", "metadata": {"name": ROLE}, "rules": []});
    let (what, patch) = told(&rights.lacks, Patch::to(&role));
    Ok(Some(Finding {
        id: "missing-permission",
        what: format!("the account {} may not {what}", rights.account),
        why: "what it cannot read it does not know: workloads without targets, pods or counts are \
              held where they are",
        fix: Fix::patch(REMEDY, patch),
    }))
}

pub(super) fn missing_own_permission(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let rights = facts.rights.as_ref()?;
    if rights.own_lacks.is_empty() {
        return Ok(None);
    }
    let (namespace, _name) = rights.account.split_once('/').unwrap_or_default();
    let role = json!({"kind": "Role", "metadata": {"name": ROLE, "namespace": namespace},
        "rules": []});
    let (what, patch) = told(&rights.own_lacks, Patch::to(&role));
    Ok(Some(Finding {
        id: "missing-own-permission",
        what: format!("in its own namespace the account {} may not {what}", rights.account),
        why: "its replicas cannot elect the one that decides, so that none turns ready, or keep what \
              it has learned, or tell when that cannot be used",
        fix: Fix::patch(REMEDY, patch),
    }))
}

/// The lacks as words, and the rules that end them.
fn told(lacks: &[Lack], mut role: Patch) -> (String, Patch) {
    let mut words = Vec::new();
    for lack in lacks {
        let group = if lack.api_group.is_empty() { "core" } else { lack.api_group };
        words.push(format!("{} {} ({group})", lack.verbs.join(", "), lack.resource));
        let rule = json!({"apiGroups": [lack.api_group], "resources": [lack.resource],
            "verbs": lack.verbs});
        role = role.set("/rules/-", rule);
    }
    (words.join("; "), role)
}
