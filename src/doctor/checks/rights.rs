//! Whether the scaler's account may do what the scaler does.

use serde_json::json;

use crate::doctor::facts::{Facts, Missing};
use crate::doctor::finding::{Finding, Fix, Patch};

/// The role of the manifests.
const ROLE: &str = "ghostscaler";

pub(super) fn missing_permission(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let rights = facts.rights.as_ref()?;
    if rights.lacks.is_empty() {
        return Ok(None);
    }
    let role = json!({"kind": "ClusterRole", "metadata": {"name": ROLE}, "rules": []});
    let mut patch = Patch::to(&role);
    let mut lacks = Vec::new();
    for lack in &rights.lacks {
        let group = if lack.api_group.is_empty() { "core" } else { lack.api_group };
        lacks.push(format!("{} {} ({group})", lack.verbs.join(", "), lack.resource));
        let rule = json!({"apiGroups": [lack.api_group], "resources": [lack.resource],
            "verbs": lack.verbs});
        patch = patch.set("/rules/-", rule);
    }
    Ok(Some(Finding {
        id: "missing-permission",
        what: format!("the account {} may not {}", rights.account, lacks.join("; ")),
        why: "what it cannot read it does not know: workloads without targets, pods or counts are \
              held where they are",
        fix: Fix::patch(
            "apply the role of this version's manifests (kubectl apply -k manifests/), or add the \
             rules",
            patch,
        ),
    }))
}
