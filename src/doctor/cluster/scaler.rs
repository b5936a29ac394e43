//! Facts about the scaler that a trigger's address names, from its Service to its account's rights.
//!
//! Changes nothing: a review of rights is a question.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{fact, place, typed, typed_all};
use crate::clock::Clock;
use crate::cluster;
use crate::cluster::inspect::Cluster;
use crate::config::Config;
use crate::doctor::facts::{Fact, Installation, Lack, Missing, Rights};
use crate::doctor::files::parse_configuration;
use crate::doctor::installed::{self, Line};
use crate::doctor::object::{name, namespace, own_triggers, text};

/// A Lease that was renewed this long ago is held: six times as long as an election takes, since clocks
/// differ.
const RENEWED_MS: i64 = 60_000;
const SCALERS: &str = "app.kubernetes.io/name=ghostscaler";

/// The scaler at one address.
pub(super) struct Scaler {
    pub(super) service: Fact<Option<Value>>,
    pub(super) deployment: Fact<Value>,
    pub(super) configuration: Fact<Arc<Config>>,
    pub(super) rights: Fact<Rights>,
    pub(super) stranger: Fact<Option<String>>,
}

impl Scaler {
    /// Reads what stands behind the Service of this name and namespace, as far as it matters to a
    /// ScaledObject of `from`.
    pub(super) async fn at(cluster: &Cluster, address: Option<(&str, &str)>, from: &str) -> Scaler {
        let service = service(cluster, address).await;
        let deployment = deployment(cluster, &service).await;
        Scaler {
            configuration: configuration(cluster, &deployment).await,
            rights: rights(cluster, &deployment, from).await,
            stranger: stranger(cluster, &deployment).await,
            service,
            deployment,
        }
    }
}

/// Every Service of this scaler, with its Deployment and who asks it.
pub(super) async fn installations(cluster: &Cluster) -> Fact<Vec<Installation>> {
    let services = fact(cluster.list(place("v1", "services", None), Some(SCALERS)).await)?;
    // Who asks matters only where there is a choice.
    let askers = match services.as_slice() {
        [] | [_] => Err(Missing::because("there is no second scaler")),
        _ => fact(cluster.list(place("keda.sh/v1alpha1", "scaledobjects", None), None).await),
    };
    let askers = askers.as_ref().map_err(Missing::from);
    let asks = askers.and_then(|askers| asked(askers, &services));
    let mut deployments: BTreeMap<String, Fact<Vec<Value>>> = BTreeMap::new();
    let mut all = Vec::new();
    for service in &services {
        let service = typed(service.clone(), "v1", "Service");
        let home = namespace(&service);
        if !deployments.contains_key(home) {
            deployments.insert(home.to_owned(), deployments_of(cluster, home).await);
        }
        let known = deployments.get(home).map(|found| found.as_ref().map_err(Missing::from));
        let deployment = match known {
            Some(Ok(found)) => installed::behind(&service, found.iter()),
            Some(Err(missing)) => Err(missing),
            None => Err(Missing::because("its namespace has not been read")),
        };
        let asked_from = asks.as_ref().map_err(Missing::from).map(|asks| {
            let here = asks.iter().filter(|(at, _)| *at == (name(&service), home));
            here.map(|(_, from)| (*from).to_owned()).collect()
        });
        all.push(Installation { deployment, asked_from, service });
    }
    Ok(all)
}

/// Which of these Services are asked, by name and namespace, each with the namespace of who asks.
///
/// Not known where an own trigger has another address, such as an IP or one from the environment: it may
/// be any of them.
fn asked<'a>(askers: &'a [Value], services: &[Value]) -> Fact<Vec<((&'a str, &'a str), &'a str)>> {
    let mut all = Vec::new();
    for object in askers {
        let from = namespace(object);
        for own in own_triggers(object) {
            let is_known = |at: &(&str, &str)| {
                services.iter().any(|service| *at == (name(service), namespace(service)))
            };
            let at = own.service(from).filter(is_known).ok_or_else(|| {
                Missing::because(format!(
                    "{from}/{} does not name a known Service of a scaler",
                    name(object)
                ))
            })?;
            all.push((at, from));
        }
    }
    Ok(all)
}

async fn deployments_of(cluster: &Cluster, home: &str) -> Fact<Vec<Value>> {
    let found = fact(cluster.list(place("apps/v1", "deployments", Some(home)), None).await)?;
    Ok(typed_all(found, "apps/v1", "Deployment"))
}

async fn service(cluster: &Cluster, address: Option<(&str, &str)>) -> Fact<Option<Value>> {
    let (service, home) =
        address.ok_or_else(|| Missing::because("scalerAddress names no Service of the cluster"))?;
    let found = fact(cluster.get(place("v1", "services", Some(home)), service).await)?;
    Ok(found.map(|service| typed(service, "v1", "Service")))
}

async fn deployment(cluster: &Cluster, service: &Fact<Option<Value>>) -> Fact<Value> {
    let service = service.as_ref()?.as_ref();
    let service =
        service.ok_or_else(|| Missing::because("there is no Service at scalerAddress"))?;
    installed::behind(service, deployments_of(cluster, namespace(service)).await?.iter())
}

async fn configuration(cluster: &Cluster, deployment: &Fact<Value>) -> Fact<Arc<Config>> {
    let deployment = deployment.as_ref()?;
    let Some((map, key)) = Line::of(deployment)?.configuration()? else {
        return Ok(Arc::default());
    };
    let home = namespace(deployment);
    let found = fact(cluster.get(place("v1", "configmaps", Some(home)), &map).await)?;
    let text = found.as_ref().and_then(|found| found["data"][key.as_str()].as_str());
    let text = text.ok_or_else(|| {
        Missing::because(format!("there is no ConfigMap {home}/{map} with {key}"))
    })?;
    parse_configuration(text)
}

/// Who renews the scaler's Lease without being one of its replicas. What nobody renews is free.
async fn stranger(cluster: &Cluster, deployment: &Fact<Value>) -> Fact<Option<String>> {
    let deployment = deployment.as_ref()?;
    if !installed::is_one_of_several(deployment) {
        return Ok(None);
    }
    let name = Line::of(deployment)?.lease();
    let leases = place("coordination.k8s.io/v1", "leases", Some(namespace(deployment)));
    let Some(lease) = fact(cluster.get(leases, name).await)? else { return Ok(None) };
    let Some(holder) = text(&lease, "/spec/holderIdentity") else { return Ok(None) };
    let renewed = text(&lease, "/spec/renewTime").and_then(|at| at.parse::<jiff::Timestamp>().ok());
    let now_ms = Clock::start().now().0;
    let is_renewed = renewed.is_some_and(|at| (now_ms - at.as_millisecond()).abs() < RENEWED_MS);
    // A replica says in a Lease of its own how it is reached.
    let record = fact(cluster.get(leases, &format!("{name}-{holder}")).await)?;
    Ok((is_renewed && record.is_none()).then(|| holder.to_owned()))
}

/// What the scaler's account may do: as itself where this runs in its pod, else by asking about
/// it, which takes the right to.
///
/// A scaler that is told its namespaces needs its rights there, and none that only a whole cluster
/// can give; another needs them in all.
async fn rights(cluster: &Cluster, deployment: &Fact<Value>, from: &str) -> Fact<Rights> {
    let deployment = deployment.as_ref()?;
    let is_bound = !Line::of(deployment)?.watched().is_empty();
    let who = place("authentication.k8s.io/v1", "selfsubjectreviews", None);
    let me = fact(cluster.review(who, "SelfSubjectReview", &json!({})).await)?;
    let me = text(&me, "/userInfo/username").unwrap_or_default();
    let (home, account) = (namespace(deployment), installed::account(deployment));
    let user = format!("system:serviceaccount:{home}:{account}");
    let asker = Asker { cluster, about: (me != user).then_some((user.as_str(), home)) };
    let within = is_bound.then(|| from.to_owned());
    let needed = cluster::RBAC.iter().filter(|needed| !is_bound || needed.is_namespaced());
    let lacks = asker.lacks(needed, within.as_deref().unwrap_or_default()).await?;
    let own_lacks = if installed::is_one_of_several(deployment) {
        asker.lacks(cluster::OWN_RBAC.iter(), home).await?
    } else {
        Vec::new()
    };
    Ok(Rights { account: format!("{home}/{account}"), within, lacks, own_lacks })
}

/// Asks about an account's rights.
struct Asker<'a> {
    cluster: &'a Cluster,
    /// The account and its namespace, where it is another than the own.
    about: Option<(&'a str, &'a str)>,
}

impl Asker<'_> {
    /// What of `needed` is refused in `namespace`; in all of them where that is empty.
    async fn lacks(
        &self,
        needed: impl Iterator<Item = &'static cluster::Permission>,
        namespace: &str,
    ) -> Fact<Vec<Lack>> {
        let mut lacks = Vec::new();
        for permission in needed {
            let mut verbs = Vec::new();
            for verb in permission.verbs {
                if !self.may(permission, verb, namespace).await? {
                    verbs.push(*verb);
                }
            }
            if !verbs.is_empty() {
                let cluster::Permission { api_group, resource, .. } = *permission;
                lacks.push(Lack { api_group, resource, verbs });
            }
        }
        Ok(lacks)
    }

    async fn may(
        &self,
        permission: &cluster::Permission,
        verb: &str,
        namespace: &str,
    ) -> Fact<bool> {
        let (resource, subresource) =
            permission.resource.split_once('/').unwrap_or((permission.resource, ""));
        let attributes = json!({"group": permission.api_group, "resource": resource,
            "subresource": subresource, "verb": verb,
            "namespace": namespace});
        let mut spec = json!({"resourceAttributes": attributes});
        let (resource, kind) = match self.about {
            None => ("selfsubjectaccessreviews", "SelfSubjectAccessReview"),
            Some((user, home)) => {
                spec["user"] = json!(user);
                spec["groups"] = json!([
                    "system:serviceaccounts",
                    format!("system:serviceaccounts:{home}"),
                    "system:authenticated"
                ]);
                ("subjectaccessreviews", "SubjectAccessReview")
            }
        };
        let at = place("authorization.k8s.io/v1", resource, None);
        let status = fact(self.cluster.review(at, kind, &spec).await)?;
        Ok(status["allowed"] == true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(from: &str, addresses: &[Value]) -> Value {
        let triggers: Vec<Value> = addresses
            .iter()
            .map(|metadata| json!({"type": "external-push", "metadata": metadata}))
            .collect();
        json!({"metadata": {"name": "llm", "namespace": from}, "spec": {"triggers": triggers}})
    }

    #[test]
    fn who_asks_a_scaler_is_not_known_where_an_address_may_be_anybodys() {
        let service = |home: &str| json!({"metadata": {"name": "ghostscaler", "namespace": home}});
        let services = [service("a"), service("b")];
        let plain = |home: &str| json!({"scalerAddress": format!("ghostscaler.{home}.svc:9090")});
        let known = [asker("t", &[plain("a"), plain("b")]), asker("u", &[plain("b")])];
        let (a, b) = (("ghostscaler", "a"), ("ghostscaler", "b"));
        assert_eq!(asked(&known, &services), Ok(vec![(a, "t"), (b, "t"), (b, "u")]));
        for metadata in [
            json!({"scalerAddress": "dns:///ghostscaler.b:9090"}),
            json!({"scalerAddress": "10.0.0.7:9090"}),
            json!({"scalerAddressFromEnv": "SCALER"}),
            json!({"scalerAddress": "other.b:9090"}),
        ] {
            let askers = [asker("t", &[plain("a"), metadata])];
            let missing = asked(&askers, &services).unwrap_err();
            assert_eq!(missing.0, "t/llm does not name a known Service of a scaler");
        }
        // Another external scaler's is its own affair.
        let other = json!({"scalerAddress": "10.0.0.7:1", "queue": "a"});
        assert_eq!(asked(&[asker("t", &[other])], &services), Ok(Vec::new()));
    }
}
