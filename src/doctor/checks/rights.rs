//! Whether the scaler's account may do what the scaler does, and nobody else does it in its place.

use serde_json::{Value, json};

use crate::cluster::{OWN_RBAC, Permission, RBAC};
use crate::doctor::facts::{Facts, Lack, Missing};
use crate::doctor::finding::{Finding, Fix};
use crate::doctor::installed::Line;
use crate::doctor::object::namespace;

const REMEDY: &str = "apply the roles of this version's manifests (kubectl apply -k manifests/), or, \
                      where the installation is another's, such of the account's own";

pub(super) fn missing_permission(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let rights = facts.rights.as_ref()?;
    if rights.lacks.is_empty() {
        return Ok(None);
    }
    let namespace = rights.within.as_deref();
    let needed = RBAC.iter().filter(|needed| namespace.is_none() || needed.is_namespaced());
    Ok(Some(Finding {
        id: "missing-permission",
        what: format!("the account {} may not {}", rights.account, told(&rights.lacks)),
        why: "what it cannot read it does not know: workloads without targets, pods or counts are \
              held where they are",
        fix: Fix::command(REMEDY, granted(&rights.account, "needs", namespace, needed)),
    }))
}

pub(super) fn missing_own_permission(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let rights = facts.rights.as_ref()?;
    if rights.own_lacks.is_empty() {
        return Ok(None);
    }
    let (home, _name) = rights.account.split_once('/').unwrap_or_default();
    Ok(Some(Finding {
        id: "missing-own-permission",
        what: format!(
            "in its own namespace the account {} may not {}",
            rights.account,
            told(&rights.own_lacks)
        ),
        why: "its replicas cannot elect the one that decides, so that none turns ready, or keep what \
              it has learned, or tell when that cannot be used",
        fix: Fix::command(
            REMEDY,
            granted(&rights.account, "own-needs", Some(home), OWN_RBAC.iter()),
        ),
    }))
}

pub(super) fn strangers_lease(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let Some(stranger) = facts.stranger.as_ref()? else { return Ok(None) };
    let scaler = facts.scaler.as_ref()?;
    let line = Line::of(scaler)?;
    let (home, lease) = (namespace(scaler), line.lease());
    Ok(Some(Finding {
        id: "lease-held-by-stranger",
        what: format!(
            "the Lease {home}/{lease} is renewed by {stranger}, which is no replica of the scaler"
        ),
        why: "nobody decides: the replicas answer the last counts, and demand is not followed",
        fix: Fix::words(format!(
            "end what runs as {stranger}; only where that has a right to the Lease, give the scaler \
             another with --lease-name, which costs what was learned: the ConfigMaps that keep it \
             are called after the Lease, and under another name it begins anew"
        )),
    }))
}

/// The lacks as words.
fn told(lacks: &[Lack]) -> String {
    let told = |lack: &Lack| {
        let group = if lack.api_group.is_empty() { "core" } else { lack.api_group };
        format!("{} {} ({group})", lack.verbs.join(", "), lack.resource)
    };
    let words: Vec<String> = lacks.iter().map(told).collect();
    words.join("; ")
}

/// The command that gives an account these permissions, all of them: a role that had only what is lacked
/// today would take away what it gave yesterday.
fn granted<'a>(
    account: &str,
    what: &str,
    namespace: Option<&str>,
    needed: impl Iterator<Item = &'a Permission>,
) -> String {
    let (home, name) = account.split_once('/').unwrap_or_default();
    let (role, binding) = match namespace {
        Some(_) => ("Role", "RoleBinding"),
        None => ("ClusterRole", "ClusterRoleBinding"),
    };
    // Another name than that of the manifests' roles, which may have more, and than another
    // installation's, whose subjects it would replace.
    let mut metadata = json!({"name": format!("{home}-{name}-{what}")});
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    let rule = |needed: &Permission| {
        json!({"apiGroups": [needed.api_group], "resources": [needed.resource],
            "verbs": needed.verbs})
    };
    let api = "rbac.authorization.k8s.io";
    let rules: Vec<Value> = needed.map(rule).collect();
    let objects = [
        json!({"apiVersion": format!("{api}/v1"), "kind": role, "metadata": metadata, "rules": rules}),
        json!({"apiVersion": format!("{api}/v1"), "kind": binding, "metadata": metadata,
            "roleRef": {"apiGroup": api, "kind": role, "name": metadata["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": home}]}),
    ];
    let text = serde_saphyr::to_string_multiple(&objects).unwrap_or_default();
    format!("kubectl apply -f - <<'EOF'\n{}\nEOF", text.trim_end())
}
