//! Facts from a cluster: what `kubectl` would show, read once.
//!
//! Changes nothing. What may not be read becomes a missing fact with the API server's own words.

mod scaler;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::{Value, json};

use super::facts::{Fact, Facts, Installation, Missing, NodeAutoscaler, Nodes, Owner};
use super::object::{controller, list, name, own_trigger, target_api, target_of, text};
use super::{Error, Given};
use crate::cluster;
use crate::cluster::inspect::{Cluster, Error as Unread, Place};
use crate::cluster::survey::Keda;
use crate::telemetry::ErrorChain;
use scaler::Scaler;

/// The label by which KEDA marks the HPA of a ScaledObject.
const KEDA_LABEL: &str = "scaledobject.keda.sh/name";
const EXTERNAL_METRICS: &str = "v1beta1.external.metrics.k8s.io";
/// The label that Karpenter writes on its nodes.
const KARPENTER: &str = "karpenter.sh/nodepool";
/// Where the cluster autoscaler writes what it does.
const AUTOSCALER_STATUS: &str = "cluster-autoscaler-status";

/// The cluster as a whole and one namespace of it, read once for all its ScaledObjects.
pub(super) struct Surroundings {
    cluster: Cluster,
    namespace: String,
    objects: Vec<Value>,
    hpas: Fact<Vec<Value>>,
    pods: Fact<Vec<Value>>,
    quotas: Fact<Vec<Value>>,
    installations: Fact<Vec<Installation>>,
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
            installations: scaler::installations(&cluster).await,
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
        let mut scalers: BTreeMap<Option<(&str, &str)>, Scaler> = BTreeMap::new();
        for object in &self.objects {
            if wanted.is_none_or(|wanted| name(object) == wanted) {
                let address = own_trigger(object).and_then(|own| own.service(&self.namespace));
                // All of them ask the same one, as a rule.
                let scaler = match scalers.entry(address) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(place) => {
                        place.insert(Scaler::at(&self.cluster, address, &self.namespace).await)
                    }
                };
                all.push(self.facts(object, scaler, given).await);
            }
        }
        all
    }

    async fn facts(&self, object: &Value, scaler: &Scaler, given: &Given) -> Facts {
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
        let seen = pods.as_ref().ok().map(|pods| super::checks::seen_starts_ms(pods));
        Facts {
            target,
            scale,
            owner,
            hpa: hpas
                .map(|all| all.iter().find(|hpa| is_kedas(hpa)).cloned())
                .map_err(Missing::from),
            other_hpas: hpas
                .map(|all| all.iter().filter(|hpa| !self.is_of_an_object(hpa)).cloned().collect())
                .map_err(Missing::from),
            other_objects: Ok(self
                .objects
                .iter()
                .filter(|other| name(other) != name(object))
                .cloned()
                .collect()),
            service: scaler.service.clone(),
            scaler: scaler.deployment.clone(),
            installations: self.installations.clone(),
            configuration: scaler.configuration.clone(),
            rights: scaler.rights.clone(),
            stranger: scaler.stranger.clone(),
            kubernetes_minor: self.kubernetes_minor.clone(),
            keda: self.keda.clone(),
            external_metrics: self.external_metrics.clone(),
            keda_adapter: self.keda_adapter.clone(),
            nodes: self.nodes.clone(),
            quotas: self.quotas.clone(),
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

    /// Whether KEDA has made an HPA of an object that is there: what else it scales, that object says.
    fn is_of_an_object(&self, hpa: &Value) -> bool {
        self.objects.iter().any(|object| hpa["metadata"]["labels"][KEDA_LABEL] == name(object))
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
