//! The scaler as it is installed: which Deployment stands behind a Service, and what its pod template says.
//!
//! Pure. A Deployment is found by a Service's selector and its container by the words that it runs, not by
//! what they are called: another installation calls its parts otherwise.

use serde_json::{Value, json};

use super::facts::{Fact, Missing};
use super::finding::Patch;
use super::object::{list, name, namespace, text, title};

/// The flag that binds a scaler to some namespaces.
const NAMESPACE: &str = "--namespace";
/// The flag that names the configuration file, and the variable that does where it is not given.
const CONFIG: (&str, &str) = ("--config", "GHOSTSCALER_CONFIG");
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
    /// The pointer to its container.
    container: String,
    /// Its words, each with the pointer to it.
    words: Vec<(String, &'a str)>,
}

impl<'a> Line<'a> {
    /// That of the container that runs `serve`.
    pub(super) fn of(deployment: &'a Value) -> Fact<Line<'a>> {
        let containers = list(deployment, "/spec/template/spec/containers");
        let mut lines = (0..containers.len()).map(|index| {
            let container = format!("/spec/template/spec/containers/{index}");
            // As Kubernetes runs them: one behind the other.
            let lists = ["command", "args"].map(|key| format!("{container}/{key}"));
            let words = lists.iter().flat_map(|at| {
                let words = list(deployment, at).iter().enumerate();
                words.filter_map(move |(index, word)| {
                    Some((format!("{at}/{index}"), word.as_str()?))
                })
            });
            Line { deployment, words: words.collect(), container }
        });
        let found = lines.find(|line| line.words.iter().any(|(_, word)| *word == SERVE));
        found.ok_or_else(|| {
            Missing::because(format!("no container of {} runs `{SERVE}`", title(deployment)))
        })
    }

    pub(super) fn has(&self, flag: &str) -> bool {
        self.values(flag).next().is_some()
    }

    /// Each value of a flag, in either spelling.
    fn values(&self, flag: &str) -> impl Iterator<Item = &'a str> {
        let next = |index: usize| self.words.get(index + 1).map(|(_, word)| *word);
        let places = self.words.iter().enumerate();
        places.filter_map(move |(index, (_, word))| match word.strip_prefix(flag)? {
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
        // Behind the arguments, which stand behind the command.
        self.without(NAMESPACE).set(&format!("{}/args/-", self.container), told)
    }

    /// The Lease by which its replicas elect the one that decides.
    pub(super) fn lease(&self) -> &'a str {
        self.values(LEASE.0).last().unwrap_or(LEASE.1)
    }

    /// A change that takes a flag out, wherever it stands, for as long as it stands there.
    fn without(&self, flag: &str) -> Patch {
        // From the end on, so that the places before stay what they are.
        let words = self.words.iter().enumerate().rev();
        let removed = |patch: Patch, at: &str| patch.while_same(at).remove(at);
        words.fold(Patch::to(self.deployment), |patch, (index, (at, word))| {
            match (word.strip_prefix(flag), self.words.get(index + 1)) {
                (Some(""), Some((value, _))) => removed(removed(patch, value), at),
                (Some(""), None) => removed(patch, at),
                (Some(value), _) if value.starts_with('=') => removed(patch, at),
                (Some(_) | None, _) => patch,
            }
        })
    }

    /// The path of the configuration file, by flag or variable; `None` where neither is given.
    fn configuration_file(&self) -> Fact<Option<&'a str>> {
        if let Some(path) = self.values(CONFIG.0).last() {
            return Ok(Some(path));
        }
        let mut variables = list(self.deployment, &format!("{}/env", self.container)).iter();
        // Kubernetes lets the last of a name win, and all of them over `envFrom`.
        let Some(variable) = variables.rfind(|variable| variable["name"] == CONFIG.1) else {
            return match list(self.deployment, &format!("{}/envFrom", self.container)) {
                [] => Ok(None),
                _ => Err(Missing::because(format!("{} may come from envFrom", CONFIG.1))),
            };
        };
        let path = text(variable, "/value");
        let unread = || Missing::because(format!("{} has no value that is written out", CONFIG.1));
        path.map(Some).ok_or_else(unread)
    }

    /// ConfigMap and key of the configuration file; `None` where it runs without one.
    pub(super) fn configuration(&self) -> Fact<Option<(String, String)>> {
        let Some(path) = self.configuration_file()? else { return Ok(None) };
        let none = || Missing::because(format!("{path} is no file of a ConfigMap"));
        let mounts = list(self.deployment, &format!("{}/volumeMounts", self.container));
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
