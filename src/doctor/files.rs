//! Facts from files: several documents each, as a person keeps them or as a pipeline renders them.
//!
//! What the files do not have is missing, never assumed to be absent from a cluster.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::facts::{Fact, Facts, Installation, Missing};
use super::installed;
use super::object::{list, name, namespace, own_trigger, target_of, text};
use super::{Error, Given};
use crate::config;
use crate::files::{self, MAX_DOCUMENT_BYTES};

/// The label by which KEDA marks the HPA of a ScaledObject.
const KEDA_LABEL: &str = "scaledobject.keda.sh/name";
/// Where the manifests' ConfigMap has the scaler's configuration file.
const CONFIG_KEY: &str = "config.yaml";

/// The documents of these files; `-` is standard input. Those without a namespace get this one.
///
/// # Errors
///
/// [`Error::File`] and [`Error::Yaml`], with the file.
pub(super) fn read(paths: &[impl AsRef<Path>], default: &str) -> Result<Vec<Value>, Error> {
    let mut documents = Vec::new();
    for path in paths {
        let path = path.as_ref();
        let read = if path == Path::new("-") {
            files::bounded(io::stdin(), MAX_DOCUMENT_BYTES)
        } else {
            files::read(path, MAX_DOCUMENT_BYTES)
        };
        let bytes =
            read.map_err(|source| Error::File { flag: "file", path: path.to_owned(), source })?;
        let found: Vec<Value> = serde_saphyr::from_slice_multiple(&bytes)
            .map_err(|source| Error::Yaml { path: path.to_owned(), source: source.into() })?;
        for document in found {
            match document["kind"].as_str() {
                Some("List") => documents.extend_from_slice(list(&document, "/items")),
                Some(_) => documents.push(document),
                None => {}
            }
        }
    }
    for document in &mut documents {
        if namespace(document).is_empty() && document["metadata"].is_object() {
            document["metadata"]["namespace"] = json!(default);
        }
    }
    Ok(documents)
}

/// The facts of each ScaledObject among the documents, or of the one with this name.
pub(super) fn gather(documents: &[Value], wanted: Option<&str>, given: &Given) -> Vec<Facts> {
    let is_wanted = |object: &&Value| wanted.is_none_or(|wanted| name(object) == wanted);
    of_kind(documents, "ScaledObject")
        .filter(is_wanted)
        .map(|object| facts(object, documents, given))
        .collect()
}

fn facts(object: &Value, documents: &[Value], given: &Given) -> Facts {
    let own = own_trigger(object);
    let beside = |kind: &'static str| {
        of_kind(documents, kind).filter(move |other| namespace(other) == namespace(object))
    };
    let (kind, target) = target_of(object);
    let target_object = documents.iter().find(|other| {
        other["kind"] == kind && name(other) == target && namespace(other) == namespace(object)
    });
    let is_kedas = |hpa: &&Value| hpa["metadata"]["labels"][KEDA_LABEL] == name(object);
    // What an HPA of KEDA's scales, its object says.
    let is_of_an_object = |hpa: &&Value| {
        beside("ScaledObject").any(|it| hpa["metadata"]["labels"][KEDA_LABEL] == name(it))
    };
    let address = own.and_then(|own| own.service(namespace(object)));
    let service = of_kind(documents, "Service")
        .find(|service| address == Some((name(service), namespace(service))));
    let behind = |service| installed::behind(service, of_kind(documents, "Deployment"));
    Facts {
        object: object.clone(),
        target: found(target_object, &format!("{kind}/{target}")),
        scale: only_a_cluster("the target's scale"),
        owner: only_a_cluster("what controls the target"),
        hpa: found(beside("HorizontalPodAutoscaler").find(is_kedas), "KEDA's HPA").map(Some),
        other_hpas: all(
            beside("HorizontalPodAutoscaler").filter(|hpa| !is_of_an_object(hpa)),
            "other HPAs",
        ),
        other_objects: all(
            beside("ScaledObject").filter(|other| name(other) != name(object)),
            "other ScaledObjects",
        ),
        pods: only_a_cluster("pods"),
        service: found(service, "the scaler's Service").map(Some),
        scaler: service.ok_or_else(|| not_there("the scaler's Service")).and_then(behind),
        installations: installations(documents),
        stranger: only_a_cluster("who holds the scaler's Lease"),
        configuration: configuration(documents),
        kubernetes_minor: only_a_cluster("the version of Kubernetes"),
        keda: only_a_cluster("the version of KEDA"),
        external_metrics: only_a_cluster("who serves external metrics"),
        keda_adapter: only_a_cluster("KEDA's adapter"),
        nodes: only_a_cluster("nodes"),
        quotas: all(beside("ResourceQuota"), "quotas"),
        rights: only_a_cluster("the scaler's rights"),
        prometheus: given.prometheus(),
        cold_start_ms: given.cold_start(None),
        longest_answer_ms: given.longest_answer(None),
    }
}

/// The scaler's Services among the documents. Who else asks them only a cluster tells.
fn installations(documents: &[Value]) -> Fact<Vec<Installation>> {
    let services = of_kind(documents, "Service").filter(is_scalers);
    let all: Vec<Installation> = services
        .map(|service| Installation {
            service: service.clone(),
            deployment: installed::behind(service, of_kind(documents, "Deployment")),
            asked_from: only_a_cluster("who asks a scaler"),
        })
        .collect();
    if all.is_empty() { missing("the scaler's Service") } else { Ok(all) }
}

/// Whether a Service is one of this scaler's, by the manifests' label or name.
fn is_scalers(service: &&Value) -> bool {
    service["metadata"]["labels"]["app.kubernetes.io/name"] == "ghostscaler"
        || name(service) == "ghostscaler"
}

fn configuration(documents: &[Value]) -> Fact<Arc<config::Config>> {
    let maps = of_kind(documents, "ConfigMap");
    let mut texts = maps.filter_map(|map| text(map, &format!("/data/{CONFIG_KEY}")));
    let text = texts.next().ok_or_else(|| not_there("the scaler's configuration"))?;
    parse_configuration(text)
}

/// A configuration file's text as a fact.
pub(super) fn parse_configuration(text: &str) -> Fact<Arc<config::Config>> {
    config::parse(text).map(Arc::new).map_err(|error| {
        Missing::because(format!("the scaler's configuration is refused: {error}"))
    })
}

fn of_kind<'a>(documents: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    documents.iter().filter(move |document| document["kind"] == kind)
}

fn found(object: Option<&Value>, what: &str) -> Fact<Value> {
    object.cloned().ok_or_else(|| not_there(what))
}

/// Those of a kind; none in files says nothing of a cluster.
fn all<'a>(objects: impl Iterator<Item = &'a Value>, what: &str) -> Fact<Vec<Value>> {
    let objects: Vec<Value> = objects.cloned().collect();
    if objects.is_empty() { missing(what) } else { Ok(objects) }
}

fn missing<T>(what: &str) -> Fact<T> {
    Err(not_there(what))
}

fn not_there(what: &str) -> Missing {
    Missing::because(format!("the files do not have {what}"))
}

fn only_a_cluster<T>(what: &str) -> Fact<T> {
    Err(Missing::because(format!("only a cluster tells {what}")))
}
