//! What a scale target and its cluster look like to someone who is about to scale it.
//!
//! Reads once, with the rights of whoever asks, and decides nothing. What may not be read is told
//! as unknown, never guessed.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Node, Pod as ApiPod, PodTemplateSpec};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::discovery::{Discovery, Scope};
use serde_json::Value;

use super::scaled_object::is_word;
use super::template::{self, PodFacts};

/// Objects of one list that are looked at; a longer list is not known whole.
const MAX_LISTED: u32 = 5_000;
/// The label by which KEDA marks the HPA of a ScaledObject.
const KEDA_LABEL: &str = "scaledobject.keda.sh/name";
/// Where the schema of a ScaledObject has the HPA's own tolerance, below a version's schema.
const TOLERANCE: &str = "/schema/openAPIV3Schema/properties/spec/properties/advanced/properties\
    /horizontalPodAutoscalerConfig/properties/behavior/properties/scaleUp/properties/tolerance";

/// A target as a person names it: `KIND[.GROUP]/NAME`, the kind as `kubectl` takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetName {
    /// The kind, plural or short name, in lower case.
    pub kind: String,
    /// The API group, where it is given.
    pub group: Option<String>,
    /// The object's name.
    pub name: String,
}

/// The text names no target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected KIND/NAME, such as deployment/llm or leaderworkerset.leaderworkerset.x-k8s.io/llm"
)]
pub struct NoTarget;

impl FromStr for TargetName {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<TargetName, NoTarget> {
        let (kind, name) = text.split_once('/').ok_or(NoTarget)?;
        let (kind, group) = kind.split_once('.').map_or((kind, None), |(k, g)| (k, Some(g)));
        if !is_word(kind) || !is_word(name) || !group.is_none_or(is_word) {
            return Err(NoTarget);
        }
        let kind = kind.to_ascii_lowercase();
        Ok(TargetName { kind, group: group.map(str::to_owned), name: name.to_owned() })
    }
}

impl fmt::Display for TargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if let Some(group) = &self.group {
            write!(f, ".{group}")?;
        }
        write!(f, "/{}", self.name)
    }
}

/// A target and what matters of its cluster. `None` is what could not be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Survey {
    /// The namespace that was looked at.
    pub namespace: String,
    /// The target's `apiVersion`.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Replicas ordered at present.
    pub replicas: Option<u32>,
    /// The object that controls it and will write its fields, as `Kind/name`.
    pub controller: Option<String>,
    /// What its pods say.
    pub pods: Option<PodFacts>,
    /// The minor version of the API server: 36 of 1.36.
    pub kubernetes_minor: Option<u32>,
    /// What is known of KEDA.
    pub keda: Keda,
    /// Other autoscalers of the same target, as `Kind/name`.
    pub rivals: Option<Vec<String>>,
    /// GPUs that the nodes can give in all.
    pub cluster_gpus: Option<u32>,
}

/// What is known of the cluster's KEDA.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Keda {
    /// Its resource definition may not be read.
    #[default]
    Unknown,
    /// It is not installed.
    Missing,
    /// It is installed.
    Installed {
        /// Whether it passes the HPA's own tolerance on.
        takes_tolerance: bool,
    },
}

/// Why a target cannot be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The API server has no such kind.
    #[error(
        "the cluster has no kind {kind:?}: `kubectl api-resources --namespaced` lists those it has"
    )]
    NoKind {
        /// As given.
        kind: String,
    },
    /// Several groups have the kind.
    #[error("{kind:?} is a kind of several groups: name one of {kind}.{}", groups.join(&format!(", {kind}.")))]
    Ambiguous {
        /// As given.
        kind: String,
        /// Their groups.
        groups: Vec<String>,
    },
    /// Nothing can be ordered of it.
    #[error(
        "{kind} has no scale subresource, so neither KEDA nor the HPA can scale it: name what it \
         makes instead (`kubectl get deployments -n {namespace}`)"
    )]
    NoScale {
        /// The kind.
        kind: String,
        /// Where.
        namespace: String,
    },
    /// There is no such object.
    #[error(
        "there is no {target} in namespace {namespace}: `kubectl get {plural} -n {namespace}` lists those there are"
    )]
    NotFound {
        /// As given.
        target: String,
        /// Where.
        namespace: String,
        /// The resource's name.
        plural: String,
    },
    /// The API server refuses or does not answer.
    #[error("{what} cannot be read")]
    Api {
        /// What was asked for.
        what: String,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// Looks at a target and its cluster.
///
/// # Errors
///
/// When the target itself cannot be read or scaled; everything else is left unknown.
pub async fn survey(
    client: kube::Client,
    namespace: &str,
    target: &TargetName,
) -> Result<Survey, Error> {
    let resource = resolve(&client, namespace, target).await?;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let object = api.get_opt(&target.name).await;
    let object = object.map_err(|error| failed(&target.to_string(), error))?;
    let object = object.ok_or_else(|| Error::NotFound {
        target: target.to_string(),
        namespace: namespace.to_owned(),
        plural: resource.plural.clone(),
    })?;
    let scale = api.get_scale(&target.name).await;
    let scale = scale.map_err(|error| failed(&format!("the scale of {target}"), error))?;
    let selector = scale.status.as_ref().and_then(|status| status.selector.clone());
    let pods = match template::of(&object.data) {
        Some(facts) => Some(facts),
        None => from_a_pod(&client, namespace, selector.as_deref()).await,
    };
    Ok(Survey {
        namespace: namespace.to_owned(),
        api_version: resource.api_version.clone(),
        kind: resource.kind.clone(),
        name: target.name.clone(),
        replicas: scale.spec.and_then(|spec| u32::try_from(spec.replicas.unwrap_or(0)).ok()),
        controller: controller(&object),
        pods,
        kubernetes_minor: minor(&client).await,
        keda: keda(&client).await,
        rivals: rivals(&client, namespace, &resource.kind, &target.name).await,
        cluster_gpus: cluster_gpus(&client).await,
    })
}

fn failed(what: &str, error: kube::Error) -> Error {
    Error::Api { what: what.to_owned(), source: Box::new(error) }
}

/// The API server's names for a kind; the two usual ones are known without asking.
async fn resolve(
    client: &kube::Client,
    namespace: &str,
    target: &TargetName,
) -> Result<ApiResource, Error> {
    let in_apps = target.group.as_deref().is_none_or(|group| group == "apps");
    let known = match target.kind.as_str() {
        "deployment" | "deployments" | "deploy" if in_apps => Some("Deployment"),
        "statefulset" | "statefulsets" | "sts" if in_apps => Some("StatefulSet"),
        _ => None,
    };
    if let Some(kind) = known {
        return Ok(ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", kind)));
    }
    let kind = match target.kind.as_str() {
        "lws" => "leaderworkerset",
        "isvc" => "inferenceservice",
        "llmisvc" => "llminferenceservice",
        other => other,
    };
    let discovery = Discovery::new(client.clone()).run_aggregated().await;
    let discovery = discovery.map_err(|error| failed("the list of kinds", error))?;
    let mut found: Vec<_> = discovery
        .groups()
        // Not of the preferred version alone: KServe's has one of its kinds, and an older the other.
        .flat_map(|group| group.resources_by_stability())
        .filter(|(resource, capabilities)| {
            matches!(capabilities.scope, Scope::Namespaced)
                && (resource.kind.to_ascii_lowercase() == kind || resource.plural == kind)
                && target.group.as_ref().is_none_or(|group| *group == resource.group)
        })
        .collect();
    match (found.pop(), found.is_empty()) {
        (None, _) => Err(Error::NoKind { kind: target.kind.clone() }),
        (Some((resource, capabilities)), true) => {
            if capabilities.subresources.iter().any(|(sub, _)| sub.plural == "scale") {
                Ok(resource)
            } else {
                Err(Error::NoScale { kind: resource.kind, namespace: namespace.to_owned() })
            }
        }
        (Some((last, _)), false) => {
            let mut groups: Vec<String> = found.into_iter().map(|(other, _)| other.group).collect();
            groups.push(last.group);
            groups.sort();
            Err(Error::Ambiguous { kind: target.kind.clone(), groups })
        }
    }
}

/// What the pods of a target without a readable template say, from one of them.
async fn from_a_pod(
    client: &kube::Client,
    namespace: &str,
    selector: Option<&str>,
) -> Option<PodFacts> {
    let list = ListParams::default().labels(selector.filter(|text| !text.is_empty())?).limit(1);
    let pods: Api<ApiPod> = Api::namespaced(client.clone(), namespace);
    let pod = pods.list(&list).await.ok()?.items.into_iter().next()?;
    let template = PodTemplateSpec { metadata: Some(pod.metadata), spec: pod.spec };
    Some(PodFacts::of(&template))
}

fn controller(object: &DynamicObject) -> Option<String> {
    let owners = object.metadata.owner_references.as_ref()?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    Some(format!("{}/{}", owner.kind, owner.name))
}

pub(super) async fn minor(client: &kube::Client) -> Option<u32> {
    let version = client.apiserver_version().await.ok()?;
    // Some clouds write `36+`.
    version.minor.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok()
}

pub(super) async fn keda(client: &kube::Client) -> Keda {
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    match api.get("scaledobjects.keda.sh").await {
        Ok(definition) => {
            let versions = definition.data.pointer("/spec/versions").and_then(Value::as_array);
            let takes_tolerance =
                versions.into_iter().flatten().any(|version| version.pointer(TOLERANCE).is_some());
            Keda::Installed { takes_tolerance }
        }
        Err(kube::Error::Api(status)) if status.is_not_found() => Keda::Missing,
        Err(_unreadable) => Keda::Unknown,
    }
}

/// Whatever else scales the target; the HPA that KEDA makes of a ScaledObject is not another.
async fn rivals(
    client: &kube::Client,
    namespace: &str,
    kind: &str,
    name: &str,
) -> Option<Vec<String>> {
    let list = ListParams::default().limit(MAX_LISTED);
    let hpas: Api<HorizontalPodAutoscaler> = Api::namespaced(client.clone(), namespace);
    let mut found = Vec::new();
    let hpas = hpas.list(&list).await.ok()?;
    for hpa in hpas.items {
        let is_kedas = hpa.metadata.labels.is_some_and(|labels| labels.contains_key(KEDA_LABEL));
        let target = hpa.spec.scale_target_ref;
        let scales_it = target.kind == kind && target.name == name;
        if scales_it && !is_kedas {
            let hpa = hpa.metadata.name.unwrap_or_default();
            found.push(format!("HorizontalPodAutoscaler/{hpa}"));
        }
    }
    let objects = super::watch::scaled_objects(client, Some(namespace));
    let objects = objects.list(&list).await.ok()?;
    if hpas.metadata.continue_.or(objects.metadata.continue_).is_some_and(|it| !it.is_empty()) {
        return None;
    }
    for object in objects.items {
        let target = &object.data["spec"]["scaleTargetRef"];
        let target_kind = target["kind"].as_str().filter(|kind| !kind.is_empty());
        if target_kind.unwrap_or("Deployment") == kind && target["name"] == name {
            found.push(format!("ScaledObject/{}", object.metadata.name.unwrap_or_default()));
        }
    }
    Some(found)
}

async fn cluster_gpus(client: &kube::Client) -> Option<u32> {
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default().limit(MAX_LISTED)).await.ok()?;
    if nodes.metadata.continue_.is_some() {
        return None;
    }
    let of_node = |node: Node| {
        let allocatable = node.status?.allocatable?;
        allocatable.get(super::devices::GPU_RESOURCE)?.0.parse::<u32>().ok()
    };
    Some(nodes.items.into_iter().filter_map(of_node).fold(0, u32::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_named_as_for_kubectl() {
        for (text, kind, group, name) in [
            ("deployment/llm", "deployment", None, "llm"),
            ("Deployment/llm", "deployment", None, "llm"),
            ("deployments.apps/llm-70b", "deployments", Some("apps"), "llm-70b"),
            ("lws.leaderworkerset.x-k8s.io/a.b", "lws", Some("leaderworkerset.x-k8s.io"), "a.b"),
        ] {
            let target: TargetName = text.parse().unwrap();
            let read = (target.kind.as_str(), target.group.as_deref(), target.name.as_str());
            assert_eq!(read, (kind, group, name), "{text}");
        }
        for text in
            ["", "llm", "deployment/", "/llm", "deployment/a/b", "d?/llm", "deployment/../x"]
        {
            assert_eq!(text.parse::<TargetName>(), Err(NoTarget), "{text}");
        }
    }
}
