//! The scaler as it is installed: which Deployment stands behind a Service, and what its pod template says.
//!
//! Pure. Nothing is concluded from names: another installation calls its parts otherwise.

use serde_json::{Value, json};

use super::facts::{Fact, Missing};
use super::finding::Patch;
use super::object::{list, name, namespace, text, title};

/// The flag that binds a scaler to some namespaces.
const NAMESPACE: &str = "--namespace";
/// The flag that names the Lease of the election, and the Lease without it.
const LEASE: (&str, &str) = ("--lease-name", "ghostscaler");
/// The subcommand by which its container is known among others of the pod.
const SERVE: &str = "serve";

/// The Deployment whose pods a Service selects, of those that are there.
pub(super) fn behind<'a>(
    service: &Value,
    mut deployments: impl Iterator<Item = &'a Value>,
) -> Fact<Value> {
    let selector = service.pointer("/spec/selector").and_then(Value::as_object);
    let Some(selector) = selector.filter(|selector| !selector.is_empty()) else {
        let what = format!("{} selects no pods: what answers there is not known", title(service));
        return Err(Missing::because(what));
    };
    let found = deployments.find(|deployment| {
        let labels = deployment.pointer("/spec/template/metadata/labels");
        namespace(deployment) == namespace(service)
            && labels
                .is_some_and(|labels| selector.iter().all(|(key, value)| labels[key] == *value))
    });
    found.cloned().ok_or_else(|| {
        Missing::because(format!("no Deployment is found whose pods {} selects", title(service)))
    })
}

/// What the command line of a scaler says.
pub(super) struct Line<'a> {
    deployment: &'a Value,
    /// The pointer to its words.
    args: String,
    words: Vec<&'a str>,
}

impl<'a> Line<'a> {
    /// That of the container that runs `serve`.
    pub(super) fn of(deployment: &'a Value) -> Fact<Line<'a>> {
        let containers = list(deployment, "/spec/template/spec/containers").iter().enumerate();
        let mut lines = containers.flat_map(|(index, container)| {
            ["args", "command"].map(|key| {
                let words = list(container, &format!("/{key}")).iter();
                let args = format!("/spec/template/spec/containers/{index}/{key}");
                (args, words.filter_map(Value::as_str).collect::<Vec<_>>())
            })
        });
        let found = lines.find(|(_, words)| words.contains(&SERVE));
        let (args, words) = found.ok_or_else(|| {
            Missing::because(format!("no container of {} runs `{SERVE}`", title(deployment)))
        })?;
        Ok(Line { deployment, args, words })
    }

    pub(super) fn has(&self, flag: &str) -> bool {
        self.values(flag).next().is_some()
    }

    /// Each value of a flag, in either spelling.
    fn values(&self, flag: &str) -> impl Iterator<Item = &'a str> {
        let next = |index: usize| self.words.get(index + 1).copied();
        let places = self.words.iter().enumerate();
        places.filter_map(move |(index, word)| match word.strip_prefix(flag)? {
            "" => next(index),
            value => value.strip_prefix('='),
        })
    }

    /// The namespaces that it is told to watch; none means all.
    pub(super) fn watched(&self) -> Vec<&'a str> {
        self.values(NAMESPACE).flat_map(|names| names.split(',')).map(str::trim).collect()
    }

    /// A change that lets it watch these and no others.
    pub(super) fn with_watched(&self, namespaces: &[&str]) -> Patch {
        let told = format!("{NAMESPACE}={}", namespaces.join(","));
        self.without(NAMESPACE).set(&format!("{}/-", self.args), told)
    }

    /// The Lease by which its replicas elect the one that decides.
    pub(super) fn lease(&self) -> &'a str {
        self.values(LEASE.0).last().unwrap_or(LEASE.1)
    }

    /// A change that lets them take another Lease.
    pub(super) fn with_lease(&self, name: &str) -> Patch {
        self.without(LEASE.0).set(&format!("{}/-", self.args), format!("{}={name}", LEASE.0))
    }

    /// A change that takes a flag out, wherever it stands.
    fn without(&self, flag: &str) -> Patch {
        // From the end on, so that the places before stay what they are.
        let words = self.words.iter().enumerate().rev();
        words.fold(Patch::to(self.deployment), |patch, (index, word)| {
            let at = |index: usize| format!("{}/{index}", self.args);
            match word.strip_prefix(flag) {
                Some("") => patch.remove(&at(index + 1)).remove(&at(index)),
                Some(value) if value.starts_with('=') => patch.remove(&at(index)),
                Some(_) | None => patch,
            }
        })
    }

    /// ConfigMap and key of the configuration file; `None` where it runs without one.
    pub(super) fn configuration(&self) -> Fact<Option<(String, String)>> {
        let Some(path) = self.values("--config").last() else { return Ok(None) };
        let none = || Missing::because(format!("--config={path} is no file of a ConfigMap"));
        let container = self.args.rsplit_once('/').map_or("", |(container, _)| container);
        let mounts = list(self.deployment, &format!("{container}/volumeMounts"));
        let within = |mount: &'a Value| {
            let rest = path.strip_prefix(text(mount, "/mountPath")?.trim_end_matches('/'))?;
            match rest.strip_prefix('/') {
                Some(file) => Some((mount, file)),
                None if rest.is_empty() => Some((mount, text(mount, "/subPath")?)),
                None => None,
            }
        };
        let (mount, file) = mounts.iter().find_map(within).ok_or_else(none)?;
        let volumes = list(self.deployment, "/spec/template/spec/volumes");
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]);
        let map = volume.and_then(|volume| volume.get("configMap")).ok_or_else(none)?;
        let item = list(map, "/items").iter().find(|item| item["path"] == file);
        let key = item.and_then(|item| text(item, "/key")).unwrap_or(file);
        Ok(Some((text(map, "/name").ok_or_else(none)?.to_owned(), key.to_owned())))
    }
}

/// The account under which its pods run.
pub(super) fn account(deployment: &Value) -> &str {
    text(deployment, "/spec/template/spec/serviceAccountName").unwrap_or("default")
}

/// Whether its pods know their names, by which they elect the one that decides.
pub(super) fn is_one_of_several(deployment: &Value) -> bool {
    let containers = list(deployment, "/spec/template/spec/containers").iter();
    let mut env = containers.flat_map(|container| list(container, "/env"));
    env.any(|variable| variable["name"] == "POD_NAME")
}

/// The command that makes a Service anew from what it is, without what ties it to its present address.
pub(super) fn replaced(service: &Value) -> String {
    let mut anew = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name(service), "namespace": namespace(service)},
        "spec": service["spec"]});
    for key in ["labels", "annotations"] {
        if let Some(words) = service["metadata"].get(key) {
            anew["metadata"][key] = words.clone();
        }
    }
    if let Some(annotations) =
        anew.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
    {
        // It says `None` too.
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    if let Some(spec) = anew["spec"].as_object_mut() {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    let text = serde_saphyr::to_string(&anew).unwrap_or_default();
    format!("kubectl replace --force -f - <<'EOF'\n{}\nEOF", text.trim_end())
}
