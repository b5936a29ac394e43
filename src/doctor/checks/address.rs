//! Where KEDA calls: whether that Service exists, and answers with one voice.

use serde_json::{Value, json};

use crate::doctor::facts::{Facts, Missing};
use crate::doctor::finding::{Finding, Fix, Patch};
use crate::doctor::object::{list, name, namespace, own_trigger, title, watched};

/// The port at which the manifests' Service answers KEDA.
const PORT: u64 = 9090;

pub(super) fn no_such_service(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let Some(own) = own_trigger(object) else { return Ok(None) };
    let address = own.metadata("scalerAddress").unwrap_or_default();
    let what = match facts.service.as_ref()? {
        None => format!("scalerAddress is {address:?}, and there is no such Service"),
        Some(service) => {
            let ports: Vec<u64> = ports(service).collect();
            let named = own.address().and_then(|(_, port)| port.parse().ok());
            if named.is_some_and(|port| ports.contains(&port)) {
                return Ok(None);
            }
            format!("scalerAddress is {address:?}, and that Service has the ports {ports:?}")
        }
    };
    let scalers = facts.scaler_services.as_ref().ok();
    let right =
        scalers.and_then(|all| all.iter().find(|service| ports(service).any(|p| p == PORT)));
    let text = "point it at the scaler's Service";
    let fix = match right {
        Some(service) => Fix::patch(
            text,
            Patch::to(object).set(
                &own.pointer("metadata/scalerAddress"),
                format!("{}.{}.svc.cluster.local:{PORT}", name(service), namespace(service)),
            ),
        ),
        None => Fix::command(
            format!("install the scaler, then {text}"),
            "kubectl apply -k manifests/\nkubectl get services -A -l app.kubernetes.io/name=ghostscaler",
        ),
    };
    Ok(Some(Finding {
        id: "no-such-service",
        what,
        why: "KEDA cannot ask the scaler: it makes no HPA of a new object, and keeps the count of \
              an old one for ever",
        fix,
    }))
}

fn ports(service: &Value) -> impl Iterator<Item = u64> {
    list(service, "/spec/ports").iter().filter_map(|port| port["port"].as_u64())
}

pub(super) fn headless_service(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    if own_trigger(object).is_none() {
        return Ok(None);
    }
    let Some(service) = facts.service.as_ref()? else { return Ok(None) };
    if service["spec"]["clusterIP"] != "None" {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "headless-service",
        what: format!("scalerAddress names {}, which is headless", title(service)),
        why: "KEDA then asks the scaler's pods in turn, call by call: one poll mixes two pods' \
              answers, and a new pod is not seen until a connection breaks",
        fix: Fix::patch(
            "give it an address of its own; one that is applied already has to be deleted first, \
             for its clusterIP cannot be changed",
            Patch::to(service).remove("/spec/clusterIP").remove("/spec/clusterIPs"),
        ),
    }))
}

pub(super) fn two_scalers(facts: &Facts) -> Result<Option<Finding>, Missing> {
    if own_trigger(&facts.object).is_none() {
        return Ok(None);
    }
    let mut namespaces: Vec<&str> = facts.scaler_services.as_ref()?.iter().map(namespace).collect();
    namespaces.sort_unstable();
    namespaces.dedup();
    if namespaces.len() < 2 {
        return Ok(None);
    }
    let object = &facts.object;
    let address = own_trigger(object).and_then(|own| own.address()).map(|(host, _)| host);
    let used = address.map(|host| host.split('.').nth(1).unwrap_or_else(|| namespace(object)));
    let keep = "keep one, or give each its own with --namespace";
    let unused = namespaces.iter().find(|one| Some(**one) != used);
    let fix = match (used.filter(|used| namespaces.contains(used)), unused) {
        (Some(used), Some(other)) => Fix::command(
            format!("{keep}; such as keep {used}, which this one asks"),
            format!(
                "kubectl delete deployment,service -n {other} -l app.kubernetes.io/name=ghostscaler"
            ),
        ),
        // Which of them answers is not seen from here.
        (None, _) | (_, None) => Fix::words(keep),
    };
    Ok(Some(Finding {
        id: "two-scalers",
        what: format!("there are scalers in the namespaces {}", namespaces.join(" and ")),
        why: "both follow every ScaledObject: each writes its events and its series of the same \
              workload, and they need not agree",
        fix,
    }))
}

pub(super) fn not_watched(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    if own_trigger(object).is_none() {
        return Ok(None);
    }
    let Some(scaler) = facts.scaler.as_ref()? else { return Ok(None) };
    let (watched, own) = (watched(scaler), namespace(object));
    if watched.is_empty() || watched.contains(&own) {
        return Ok(None);
    }
    Ok(Some(Finding {
        id: "namespace-not-watched",
        what: format!("the scaler watches {}, and not {own}", watched.join(" and ")),
        why: "it knows nothing of this ScaledObject and answers KEDA with an error: the count stays \
              where it is",
        fix: Fix::words(format!(
            "add --namespace={own} to the scaler's arguments, and bind its role there"
        )),
    }))
}

pub(super) fn tls_mismatch(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let Some(own) = own_trigger(object) else { return Ok(None) };
    let Some(scaler) = facts.scaler.as_ref()? else { return Ok(None) };
    let containers = list(scaler, "/spec/template/spec/containers");
    let args = containers.iter().flat_map(|container| list(container, "/args"));
    let has = |flag: &str| {
        args.clone().filter_map(Value::as_str).any(|arg| arg.split('=').next() == Some(flag))
    };
    let (serves, demands) = (has("--tls-cert"), has("--tls-client-ca"));
    let shows = own.value.get("authenticationRef").is_some();
    let speaks = shows || own.has("enableTLS");
    let reference = own.pointer("authenticationRef");
    let credentials = json!({"name": "ghostscaler", "kind": "ClusterTriggerAuthentication"});
    let (what, fix) = if serves && demands && !shows {
        (
            "the scaler demands a client certificate, and the trigger has no authenticationRef",
            Fix::patch(
                "name the credentials (manifests/overlays/tls has them)",
                Patch::to(object).set(&reference, credentials),
            ),
        )
    } else if serves && !speaks {
        (
            "the scaler speaks TLS, and the trigger does not",
            Fix::patch(
                "turn it on; the authority goes into a TriggerAuthentication",
                Patch::to(object).set(&own.pointer("metadata/enableTLS"), "true"),
            ),
        )
    } else if !serves && speaks {
        (
            "the trigger speaks TLS, and the scaler does not",
            Fix::patch(
                "turn it off, or install manifests/overlays/tls",
                Patch::to(object).remove(&reference).remove(&own.pointer("metadata/enableTLS")),
            ),
        )
    } else {
        return Ok(None);
    };
    Ok(Some(Finding {
        id: "tls-mismatch",
        what: what.to_owned(),
        why: "each call ends in the handshake; KEDA's event says no more than that it got an \
              empty metric spec",
        fix,
    }))
}
