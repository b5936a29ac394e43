//! Where KEDA calls: whether that Service exists, and answers with one voice.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::doctor::facts::{Fact, Facts, Installation, Missing};
use crate::doctor::finding::{Finding, Fix, Patch};
use crate::doctor::installed::{Line, account, replaced};
use crate::doctor::object::{Trigger, list, name, namespace, own_trigger, text, title};

/// The port at which the manifests' Service answers KEDA.
const PORT: u64 = 9090;
/// The role of the manifests that each watched namespace binds.
const ROLE: &str = "ghostscaler";

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
    let mut scalers = facts.installations.iter().flatten().map(|one| &one.service);
    let right = scalers.find(|service| ports(service).any(|port| port == PORT));
    let text = "point it at the scaler's Service";
    let fix = match right {
        Some(service) => Fix::patch(text, pointed_at(service, object, own)),
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

/// The change that lets the trigger ask this Service.
fn pointed_at(service: &Value, object: &Value, own: Trigger<'_>) -> Patch {
    let (name, home) = (name(service), namespace(service));
    own.patch(object).set(
        &own.pointer("metadata/scalerAddress"),
        format!("{name}.{home}.svc.cluster.local:{PORT}"),
    )
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
        fix: if text(service, "/metadata/uid").is_some() {
            Fix::command(
                "give it an address of its own: a new one, for the clusterIP of this cannot be \
                 changed; and take `clusterIP: None` out of what applies it",
                replaced(service),
            )
        } else {
            Fix::patch(
                "give it an address of its own",
                Patch::to(service).remove("/spec/clusterIP").remove("/spec/clusterIPs"),
            )
        },
    }))
}

pub(super) fn two_scalers(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let Some(own) = own_trigger(object) else { return Ok(None) };
    let all = facts.installations.as_ref()?;
    // Whether the only one follows this namespace is another check's question.
    if all.len() < 2 {
        return Ok(None);
    }
    let home = namespace(object);
    let mut followers: Vec<Follower<'_>> = Vec::new();
    for one in all {
        let deployment = one.deployment.as_ref()?;
        let watched = Line::of(deployment)?.watched();
        let known = followers.iter_mut().find(|known| known.deployment == deployment);
        if let Some(known) = known {
            known.installations.push(one);
        } else if watched.is_empty() || watched.contains(&home) {
            followers.push(Follower { installations: vec![one], deployment, watched });
        }
    }
    followers.sort_by_key(|follower| (namespace(follower.deployment), name(follower.deployment)));
    let used = own.service(home);
    let asks = |follower: &&Follower<'_>| follower.asked_from().is_ok_and(|all| all.contains(home));
    let is_used = |follower: &&Follower<'_>| follower.is_at(used);
    // The same for every ScaledObject of the namespace: what one is told to keep, none is told to delete.
    let first_asked = followers.iter().find(asks);
    let Some(keep) =
        first_asked.or_else(|| followers.iter().find(is_used)).or_else(|| followers.first())
    else {
        return Ok(None);
    };
    let Some(other) = followers.iter().find(|other| other.deployment != keep.deployment) else {
        return Ok(None);
    };
    let names: Vec<String> = followers.iter().map(Follower::title).collect();
    Ok(Some(Finding {
        id: "two-scalers",
        what: format!("{} follow the namespace {home}", names.join(" and ")),
        why: "each writes its events and its series of the same workload, and they need not agree",
        fix: one_less(keep, other, object, own),
    }))
}

/// A scaler that follows a namespace.
struct Follower<'a> {
    /// Each Service that selects its pods.
    installations: Vec<&'a Installation>,
    deployment: &'a Value,
    /// The namespaces that it is told; none means all.
    watched: Vec<&'a str>,
}

impl<'a> Follower<'a> {
    fn title(&self) -> String {
        format!("{}/{}", namespace(self.deployment), name(self.deployment))
    }

    fn is_at(&self, address: Option<(&str, &str)>) -> bool {
        self.services().any(|service| address == Some((name(service), namespace(service))))
    }

    fn services(&self) -> impl Iterator<Item = &'a Value> {
        self.installations.iter().map(|one| &one.service)
    }

    /// The namespaces that ask it, at whichever of its Services.
    fn asked_from(&self) -> Fact<BTreeSet<&'a str>> {
        let mut all = BTreeSet::new();
        for one in &self.installations {
            all.extend(one.asked_from.as_ref()?.iter().map(String::as_str));
        }
        Ok(all)
    }
}

/// How one of two leaves the namespace to the other, without a loss to anyone whom it answers.
fn one_less(keep: &Follower<'_>, other: &Follower<'_>, object: &Value, own: Trigger<'_>) -> Fix {
    let (kept, gone, home) = (keep.title(), other.title(), namespace(object));
    // Of both: which one is kept hangs on who asks either.
    let asked_from = match (keep.asked_from(), other.asked_from()) {
        (Ok(_), Ok(asked_from)) => asked_from,
        (Err(missing), _) | (_, Err(missing)) => {
            return Fix::words(format!(
                "keep {kept} here: give {gone} the namespaces that it is for with --namespace, or \
                 delete it once no ScaledObject of the cluster asks it, by whatever address ({missing})"
            ));
        }
    };
    if other.is_at(own.service(home)) {
        let text = format!("ask {kept}, as others of this namespace do");
        let mut services = keep.services();
        return match services.find(|service| ports(service).any(|port| port == PORT)) {
            Some(service) => Fix::patch(text, pointed_at(service, object, own)),
            None => Fix::words(text),
        };
    }
    if asked_from.contains(home) {
        return Fix::words(format!(
            "keep {kept}: first point the ScaledObjects of this namespace that ask {gone} at it, \
             each by its own finding; then this one has the rest"
        ));
    }
    let mut left: Vec<&str> = other.watched.iter().copied().filter(|one| *one != home).collect();
    if other.watched.is_empty() {
        left = asked_from.into_iter().collect();
    }
    if left.is_empty() {
        let deleted = |kind: &str, name: &str| {
            let namespace = namespace(other.deployment);
            format!("kubectl delete {kind} {name} -n {namespace} --ignore-not-found")
        };
        let services = other.services().map(|service| deleted("service", name(service)));
        let commands = [deleted("deployment", name(other.deployment))].into_iter().chain(services);
        return Fix::command(
            format!("keep {kept}; nobody asks {gone}"),
            commands.collect::<Vec<_>>().join("\n"),
        );
    }
    match Line::of(other.deployment) {
        Ok(line) => Fix::patch(
            format!("keep {kept} here, and let {gone} follow only those who ask it"),
            line.with_watched(&left),
        ),
        Err(missing) => Fix::words(format!("give {gone} its own --namespace: {missing}")),
    }
}

pub(super) fn not_watched(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    if own_trigger(object).is_none() {
        return Ok(None);
    }
    let scaler = facts.scaler.as_ref()?;
    let line = Line::of(scaler)?;
    let (mut watched, own) = (line.watched(), namespace(object));
    if watched.is_empty() || watched.contains(&own) {
        return Ok(None);
    }
    let what = format!("the scaler watches {}, and not {own}", watched.join(" and "));
    watched.push(own);
    let (home, account) = (namespace(scaler), account(scaler));
    Ok(Some(Finding {
        id: "namespace-not-watched",
        what,
        why: "it knows nothing of this ScaledObject and answers KEDA with an error: the count stays \
              where it is",
        fix: Fix::patch(
            "let it watch this namespace too, and bind its role there",
            line.with_watched(&watched),
        )
        .and(format!(
            "kubectl create rolebinding {account} -n {own} --clusterrole={ROLE} \
             --serviceaccount={home}:{account}"
        )),
    }))
}

pub(super) fn tls_mismatch(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let Some(own) = own_trigger(object) else { return Ok(None) };
    let line = Line::of(facts.scaler.as_ref()?)?;
    let (serves, demands) = (line.has("--tls-cert"), line.has("--tls-client-ca"));
    let shows = own.value.get("authenticationRef").is_some();
    let speaks = shows || own.has("enableTLS");
    let reference = own.pointer("authenticationRef");
    let credentials = json!({"name": "ghostscaler", "kind": "ClusterTriggerAuthentication"});
    let (what, fix) = if serves && demands && !shows {
        (
            "the scaler demands a client certificate, and the trigger has no authenticationRef",
            Fix::patch(
                "name the credentials (manifests/overlays/tls has them)",
                own.patch(object).set(&reference, credentials),
            ),
        )
    } else if serves && !speaks {
        (
            "the scaler speaks TLS, and the trigger does not",
            Fix::patch(
                "turn it on; the authority goes into a TriggerAuthentication",
                own.patch(object).set(&own.pointer("metadata/enableTLS"), "true"),
            ),
        )
    } else if !serves && speaks {
        (
            "the trigger speaks TLS, and the scaler does not",
            Fix::patch(
                "turn it off, or install manifests/overlays/tls",
                own.patch(object).remove(&reference).remove(&own.pointer("metadata/enableTLS")),
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
