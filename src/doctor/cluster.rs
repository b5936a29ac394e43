//! Facts from a cluster: what `kubectl` would show, read once.
//!
//! Changes nothing. What may not be read becomes a missing fact with the API server's own words.

use std::sync::Arc;

use serde_json::{Value, json};

use super::facts::{Fact, Facts, Lack, Missing, NodeAutoscaler, Nodes, Owner, Rights};
use super::files::{CONFIG_KEY, parse_configuration};
use super::object::{controller, list, name, own_trigger, target_api, target_of, text, watched};
use super::{Error, Given};
use crate::cluster;
use crate::cluster::inspect::{Cluster, Error as Unread, Place};
use crate::cluster::survey::Keda;
use crate::config::{Config, is_kubernetes_name};
use crate::telemetry::ErrorChain;

/// The label by which KEDA marks the HPA of a ScaledObject.
const KEDA_LABEL: &str = "scaledobject.keda.sh/name";
const EXTERNAL_METRICS: &str = "v1beta1.external.metrics.k8s.io";
/// The label that Karpenter writes on its nodes.
const KARPENTER: &str = "karpenter.sh/nodepool";
/// Where the cluster autoscaler writes what it does.
const AUTOSCALER_STATUS: &str = "cluster-autoscaler-status";
const SCALERS: &str = "app.kubernetes.io/name=ghostscaler";

/// The cluster as a whole and one namespace of it, read once for all its ScaledObjects.
pub(super) struct Surroundings {
    cluster: Cluster,
    namespace: String,
    objects: Vec<Value>,
    hpas: Fact<Vec<Value>>,
    pods: Fact<Vec<Value>>,
    quotas: Fact<Vec<Value>>,
    scaler_services: Fact<Vec<Value>>,
    kubernetes_minor: Fact<u32>,
    keda: Fact<Keda>,
    external_metrics: Fact<Option<Value>>,
    keda_adapter: Fact<Option<Value>>,
    nodes: Fact<Nodes>,
}

impl Surroundings {
    /// Reads them.
    ///
    /// # Errors
    ///
    /// [`Error::Objects`] when the ScaledObjects themselves cannot be read.
    pub(super) async fn read(
        cluster: Cluster,
        namespace: Option<&str>,
    ) -> Result<Surroundings, Error> {
        let namespace = namespace.unwrap_or_else(|| cluster.default_namespace()).to_owned();
        let within = |api_version, resource| place(api_version, resource, Some(&namespace));
        let objects = cluster.list(within("keda.sh/v1alpha1", "scaledobjects"), None).await;
        let objects = objects
            .map_err(|source| Error::Objects { namespace: namespace.clone(), source })?
            .into_iter()
            .map(|object| typed(object, "keda.sh/v1alpha1", "ScaledObject"));
        let (hpas, pods, quotas) = (
            within("autoscaling/v2", "horizontalpodautoscalers"),
            within("v1", "pods"),
            within("v1", "resourcequotas"),
        );
        let services = place("v1", "services", None);
        let adapter =
            "app.kubernetes.io/name in (keda-operator-metrics-apiserver,keda-metrics-apiserver)";
        let minor = cluster.minor().await;
        Ok(Surroundings {
            objects: objects.collect(),
            hpas: fact(cluster.list(hpas, None).await)
                .map(|all| typed_all(all, "autoscaling/v2", "HorizontalPodAutoscaler")),
            pods: fact(cluster.list(pods, None).await),
            quotas: fact(cluster.list(quotas, None).await),
            scaler_services: fact(cluster.list(services, Some(SCALERS)).await),
            kubernetes_minor: minor
                .ok_or_else(|| Missing::because("the API server does not say its version")),
            keda: match cluster.keda().await {
                Keda::Unknown => {
                    Err(Missing::because("KEDA's resource definition may not be read"))
                }
                known @ (Keda::Missing | Keda::Installed { .. }) => Ok(known),
            },
            external_metrics: fact(
                cluster
                    .get(place("apiregistration.k8s.io/v1", "apiservices", None), EXTERNAL_METRICS)
                    .await,
            ),
            keda_adapter: fact(cluster.list(services, Some(adapter)).await)
                .map(|found| found.into_iter().next()),
            nodes: nodes(&cluster).await,
            namespace,
            cluster,
        })
    }

    /// The namespace that is looked at.
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The facts of each ScaledObject, or of the one with this name.
    pub(super) async fn gather(&self, wanted: Option<&str>, given: &Given) -> Vec<Facts> {
        let mut all = Vec::new();
        for object in &self.objects {
            if wanted.is_none_or(|wanted| name(object) == wanted) {
                all.push(self.facts(object, given).await);
            }
        }
        all
    }

    async fn facts(&self, object: &Value, given: &Given) -> Facts {
        let (kind, target) = target_of(object);
        let named = (target_api(object), kind, target);
        let read = fact(self.cluster.target(&self.namespace, named).await);
        let read = read.and_then(|found| {
            found.ok_or_else(|| Missing::because(format!("there is no {kind}/{target}")))
        });
        let (target, scale) = match read {
            Ok((target, scale)) => (Ok(target), Ok(scale)),
            Err(missing) => (Err(missing.clone()), Err(missing)),
        };
        let owner = self.owner(&target).await;
        let pods = self.pods_of(&scale);
        let is_kedas = |hpa: &Value| hpa["metadata"]["labels"][KEDA_LABEL] == name(object);
        let hpas = self.hpas.as_ref();
        let address = service_of(object, &self.namespace);
        let scaler = self.scaler(address).await;
        let rights = self.rights(address, &scaler).await;
        let seen = pods.as_ref().ok().map(|pods| super::checks::seen_starts_ms(pods));
        Facts {
            target,
            scale,
            owner,
            hpa: hpas
                .map(|all| all.iter().find(|hpa| is_kedas(hpa)).cloned())
                .map_err(Missing::from),
            other_hpas: hpas
                .map(|all| all.iter().filter(|hpa| !is_kedas(hpa)).cloned().collect())
                .map_err(Missing::from),
            other_objects: Ok(self
                .objects
                .iter()
                .filter(|other| name(other) != name(object))
                .cloned()
                .collect()),
            service: self.service(address).await,
            scaler_services: self.scaler_services.clone(),
            configuration: self.configuration(address).await,
            kubernetes_minor: self.kubernetes_minor.clone(),
            keda: self.keda.clone(),
            external_metrics: self.external_metrics.clone(),
            keda_adapter: self.keda_adapter.clone(),
            nodes: self.nodes.clone(),
            quotas: self.quotas.clone(),
            scaler,
            rights,
            prometheus: given.prometheus(),
            // The middle one: a pod that was not ready for a while since counts as a long start.
            cold_start_ms: given
                .cold_start(seen.and_then(|starts| starts.get(starts.len() / 2).copied())),
            longest_answer_ms: given.longest_answer(None),
            pods,
            object: object.clone(),
        }
    }

    async fn owner(&self, target: &Fact<Value>) -> Fact<Option<Owner>> {
        let Some(owner) = controller(target.as_ref()?) else { return Ok(None) };
        let at = |key| text(owner, key).unwrap_or_default();
        let named = (at("/apiVersion"), at("/kind"), at("/name"));
        let read = fact(self.cluster.target(&self.namespace, named).await)?;
        let (object, scale) =
            read.ok_or_else(|| Missing::because(format!("there is no {}/{}", named.1, named.2)))?;
        Ok(Some(Owner { object, scales: scale.is_some() }))
    }

    fn pods_of(&self, scale: &Fact<Option<Value>>) -> Fact<Vec<Value>> {
        let scale = scale.as_ref()?.as_ref();
        let selector = scale.and_then(|scale| text(scale, "/status/selector"));
        let Some(selector) = selector else {
            return Err(Missing::because("the target's scale has no selector"));
        };
        let pods = self.pods.as_ref()?;
        let labels = |pod: &Value| serde_json::from_value(pod["metadata"]["labels"].clone()).ok();
        let is_one = |pod: &&Value| {
            labels(pod).is_some_and(|labels| cluster::inspect::selects(selector, &labels))
        };
        Ok(pods.iter().filter(is_one).cloned().collect())
    }

    async fn service(&self, address: Option<(&str, &str)>) -> Fact<Option<Value>> {
        let (service, home) = address.ok_or_else(outside)?;
        let found = fact(self.cluster.get(place("v1", "services", Some(home)), service).await)?;
        Ok(found.map(|service| typed(service, "v1", "Service")))
    }

    async fn scaler(&self, address: Option<(&str, &str)>) -> Fact<Option<Value>> {
        let (service, home) = address.ok_or_else(outside)?;
        fact(self.cluster.get(place("apps/v1", "deployments", Some(home)), service).await)
    }

    async fn configuration(&self, address: Option<(&str, &str)>) -> Fact<Arc<Config>> {
        let (service, home) = address.ok_or_else(outside)?;
        let map = fact(self.cluster.get(place("v1", "configmaps", Some(home)), service).await)?;
        let text = map.as_ref().and_then(|map| text(map, &format!("/data/{CONFIG_KEY}")));
        let text = text.ok_or_else(|| {
            Missing::because(format!("there is no ConfigMap {home}/{service} with {CONFIG_KEY}"))
        })?;
        parse_configuration(text)
    }

    /// What the scaler's account may do: as itself where this runs in its pod, else by asking about
    /// it, which takes the right to.
    ///
    /// A scaler that is told its namespaces needs its rights there, and none that only a whole cluster
    /// can give; another, or one whose arguments are not known, needs them in all.
    async fn rights(
        &self,
        address: Option<(&str, &str)>,
        scaler: &Fact<Option<Value>>,
    ) -> Fact<Rights> {
        let (service, home) = address.ok_or_else(outside)?;
        let scaler = scaler.as_ref().ok().and_then(Option::as_ref);
        let within = scaler.is_some_and(|scaler| !watched(scaler).is_empty());
        let who = place("authentication.k8s.io/v1", "selfsubjectreviews", None);
        let me = fact(self.cluster.review(who, "SelfSubjectReview", &json!({})).await)?;
        let me = text(&me, "/userInfo/username").unwrap_or_default();
        let account = format!("{home}/{service}");
        let user = format!("system:serviceaccount:{home}:{service}");
        let other = (me != user).then_some((user.as_str(), home));
        let everywhere = if within { self.namespace.as_str() } else { "" };
        let needed = || cluster::RBAC.iter().filter(|needed| !within || needed.is_namespaced());
        let lacks = self.lacks(needed(), everywhere, other).await?;
        let own_lacks = if scaler.is_some_and(is_one_of_several) {
            self.lacks(cluster::OWN_RBAC.iter(), home, other).await?
        } else {
            Vec::new()
        };
        Ok(Rights { account, lacks, own_lacks })
    }

    /// What of `needed` is refused in `namespace`; all of them where that is empty.
    async fn lacks(
        &self,
        needed: impl Iterator<Item = &'static cluster::Permission>,
        namespace: &str,
        other: Option<(&str, &str)>,
    ) -> Fact<Vec<Lack>> {
        let mut lacks = Vec::new();
        for permission in needed {
            let mut verbs = Vec::new();
            for verb in permission.verbs {
                if !self.may(permission, verb, namespace, other).await? {
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
        other: Option<(&str, &str)>,
    ) -> Fact<bool> {
        let (resource, subresource) =
            permission.resource.split_once('/').unwrap_or((permission.resource, ""));
        let attributes = json!({"group": permission.api_group, "resource": resource,
            "subresource": subresource, "verb": verb,
            "namespace": namespace});
        let mut spec = json!({"resourceAttributes": attributes});
        let (resource, kind) = match other {
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

/// Whether its pods know their names, by which they elect the one that decides.
fn is_one_of_several(scaler: &Value) -> bool {
    let containers = scaler.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    let env = containers.into_iter().flatten().filter_map(|container| container["env"].as_array());
    env.flatten().any(|variable| variable["name"] == "POD_NAME")
}

async fn nodes(cluster: &Cluster) -> Fact<Nodes> {
    let nodes = fact(cluster.list(place("v1", "nodes", None), None).await)?;
    let takes_pods = |node: &&Value| {
        let is_down = |it: &Value| it["type"] == "Ready" && it["status"] != "True";
        node["spec"]["unschedulable"] != true
            && !list(node, "/status/conditions").iter().any(is_down)
    };
    let gpus = |node: &Value| {
        text(node, "/status/allocatable/nvidia.com~1gpu").and_then(|gpus| gpus.parse().ok())
    };
    let by_karpenter = |node: &Value| node["metadata"]["labels"].get(KARPENTER).is_some();
    let autoscaler = if nodes.iter().any(by_karpenter) {
        Some(NodeAutoscaler::Karpenter)
    } else {
        let status = place("v1", "configmaps", Some("kube-system"));
        let status = fact(cluster.get(status, AUTOSCALER_STATUS).await)?;
        status.map(|_status| NodeAutoscaler::ClusterAutoscaler)
    };
    Ok(Nodes {
        gpus: nodes.iter().filter(takes_pods).filter_map(gpus).fold(0, u32::saturating_add),
        autoscaler,
    })
}

/// Name and namespace of the Service that the trigger's address names; `None` for another host.
fn service_of<'a>(object: &'a Value, namespace: &'a str) -> Option<(&'a str, &'a str)> {
    let (host, _) = own_trigger(object)?.address()?;
    let mut parts = host.split('.');
    let (service, home) = (parts.next()?, parts.next().unwrap_or(namespace));
    let is_service = matches!(parts.next(), None | Some("svc"));
    let is_name = is_kubernetes_name(service) && is_kubernetes_name(home);
    // The first part of an IP address is none of a Service.
    let is_name = is_name && service.starts_with(|c: char| c.is_ascii_lowercase());
    (is_service && is_name).then_some((service, home))
}

fn outside() -> Missing {
    Missing::because("scalerAddress names no Service of the cluster")
}

fn place<'a>(api_version: &'a str, resource: &'a str, namespace: Option<&'a str>) -> Place<'a> {
    Place { api_version, resource, namespace }
}

fn fact<T>(read: Result<T, Unread>) -> Fact<T> {
    read.map_err(|error| Missing::because(ErrorChain(&error).to_string()))
}

/// An object of a list, which leaves out what all have in common.
fn typed(mut object: Value, api_version: &str, kind: &str) -> Value {
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    object
}

fn typed_all(objects: Vec<Value>, api_version: &str, kind: &str) -> Vec<Value> {
    objects.into_iter().map(|object| typed(object, api_version, kind)).collect()
}
