//! The keys of the file into a [`Config`].
//!
//! Says which keys there are and what each may be; how the file is written is `entry`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::entry::{Entry, Node};
use super::faults::Faults;
use super::{Config, Dcgm, Error, Says, is_kubernetes_name, parse_listen_address};
use crate::decision::{Phase, Replicas};
use crate::duration;
use crate::inventory::{
    Counted, DEFAULT_MAX_REPLICAS, Endpoint, Inventory, Kubernetes, MOST_REPLICAS, Member, Names,
    Workload,
};
use crate::source::config::{
    self, DEFAULT_TIMEOUT_MS, PrometheusConfig, TIMEOUT_EXPECTED, WakeSourceConfig, parse_url,
    shown_url,
};
use crate::source::scrape::DEFAULT_PATH;
use crate::source::selector::LabelName;
use crate::source::wake::WakeKind;
use crate::trigger::{self, FIELDS, FROM_ENV};

const NAME: &str = "a name";
const MAPPING: &str = "keys and values";

pub(super) fn config(root: Node, faults: &mut Faults) -> Config {
    // An empty file is an empty configuration, not a fault.
    if matches!(root, Node::Nothing) {
        return Config::default();
    }
    let Some(mut entry) = Entry::of(root, "", MAPPING, faults) else { return Config::default() };
    let grpc_address = address("grpcAddress", entry.text("grpcAddress", faults), faults);
    let http_address = address("httpAddress", entry.text("httpAddress", faults), faults);
    let mut servers = Listed::of("prometheus");
    let prometheus: Vec<_> = entry
        .list("prometheus", faults)
        .into_iter()
        .filter_map(|(path, node)| prometheus(node, &path, &mut servers, faults))
        .collect();
    let mut gateways = Listed::of("wakeSources");
    let wake_sources: Vec<_> = entry
        .list("wakeSources", faults)
        .into_iter()
        .filter_map(|(path, node)| wake_source(node, &path, &servers, &mut gateways, faults))
        .collect();
    let dcgm = entry.take("dcgm").and_then(|node| dcgm(node, &servers, faults));
    let says = if entry.has("workloads") { Says::Workloads } else { Says::NoWorkloads };
    let mut inventory = Inventory { synced: true, ..Inventory::default() };
    let mut namespaces = BTreeSet::new();
    for (path, node) in entry.list("workloads", faults) {
        let Some(workload) = workload(node, &path, &gateways, &mut namespaces, faults) else {
            continue;
        };
        let key = workload.key.clone();
        if inventory.workloads.insert(key.clone(), Arc::new(workload)).is_some() {
            faults.add(path, &key.to_string(), "a namespace and name that are not used twice");
        }
    }
    entry.end(faults);
    Config {
        grpc_address,
        http_address,
        wake_sources: wake_sources.into_iter().map(|wake| (wake.name.clone(), wake)).collect(),
        prometheus,
        dcgm,
        inventory: Arc::new(inventory),
        says,
    }
}

/// The names of a list's entries, which others may refer to.
struct Listed {
    list: &'static str,
    known: Vec<String>,
}

impl Listed {
    fn of(list: &'static str) -> Listed {
        Listed { list, known: Vec::new() }
    }

    /// Takes an entry's own name.
    fn note(&mut self, path: String, name: &str, faults: &mut Faults) {
        if name.is_empty() || self.known.iter().any(|known| known == name) {
            faults.add(path, name, "a name that is not used twice");
        } else {
            self.known.push(name.to_owned());
        }
    }

    /// Checks a name that refers to an entry.
    fn check(&self, path: String, name: &str, faults: &mut Faults) {
        if !self.known.iter().any(|known| known == name) {
            faults.name(path, name, self.list, self.known.iter());
        }
    }
}

fn prometheus(
    node: Node,
    path: &str,
    servers: &mut Listed,
    faults: &mut Faults,
) -> Option<PrometheusConfig> {
    let mut entry = Entry::of(node, path, MAPPING, faults)?;
    let name = entry.needed("name", NAME, faults);
    servers.note(entry.at("name"), &name, faults);
    let timeout = entry.text("timeout", faults);
    let server = PrometheusConfig {
        name,
        url: entry.needed("url", config::URL_EXPECTED, faults),
        bearer_token_file: entry.text("bearerTokenFile", faults).map(Into::into),
        ca_file: entry.text("caFile", faults).map(Into::into),
        timeout_ms: timeout.map_or(DEFAULT_TIMEOUT_MS, |text| {
            duration::parse_millis(&text).unwrap_or_else(|_no_duration| {
                faults.add(entry.at("timeout"), &text, TIMEOUT_EXPECTED);
                DEFAULT_TIMEOUT_MS
            })
        }),
        matchers: matchers(&mut entry, faults),
    };
    told(&entry, server.faults(), faults);
    entry.end(faults);
    Some(server)
}

fn wake_source(
    node: Node,
    path: &str,
    servers: &Listed,
    gateways: &mut Listed,
    faults: &mut Faults,
) -> Option<WakeSourceConfig> {
    let mut entry = Entry::of(node, path, MAPPING, faults)?;
    let name = entry.needed("name", NAME, faults);
    gateways.note(entry.at("name"), &name, faults);
    let expected = "gauge or counter";
    let kind = match entry.needed("kind", expected, faults).as_str() {
        "gauge" => WakeKind::Gauge,
        "counter" => WakeKind::Counter,
        other => {
            faults.add(entry.at("kind"), other, expected);
            WakeKind::Gauge
        }
    };
    let source = WakeSourceConfig {
        name,
        kind,
        prometheus: entry.text("prometheus", faults),
        query: entry.text("query", faults),
        url: entry.text("url", faults),
        metric: entry.text("metric", faults),
        matchers: matchers(&mut entry, faults),
    };
    told(&entry, source.faults(), faults);
    if let Some(server) = source.prometheus_name() {
        servers.check(entry.at("prometheus"), server, faults);
    }
    entry.end(faults);
    Some(source)
}

/// The faults of an entry's values, at their places.
fn told(entry: &Entry, of_values: Vec<config::Fault>, faults: &mut Faults) {
    for fault in of_values {
        faults.add(entry.at(&fault.field), &fault.value, fault.expected);
    }
}

fn matchers(entry: &mut Entry, faults: &mut Faults) -> BTreeMap<LabelName, String> {
    let path = entry.at("matchers");
    let given = entry.take("matchers").and_then(|node| Entry::of(node, &path, MAPPING, faults));
    let mut matchers = BTreeMap::new();
    for (label, value) in given.map(|mut given| given.drain()).unwrap_or_default() {
        let path = format!("{path}.{label}");
        let value = value.into_text(&path, "a label's value", faults);
        match LabelName::new(&label) {
            Some(label) => drop(matchers.insert(label, value.unwrap_or_default())),
            None => faults.add(path, "", "a Prometheus label's name"),
        }
    }
    matchers
}

fn dcgm(node: Node, servers: &Listed, faults: &mut Faults) -> Option<Dcgm> {
    let expected = "either `prometheus` or `endpoints`";
    let mut entry = Entry::of(node, "dcgm", expected, faults)?;
    let server = entry.text("prometheus", faults);
    let endpoints = entry.list("endpoints", faults);
    let dcgm = match server {
        Some(name) if endpoints.is_empty() => {
            servers.check(entry.at("prometheus"), &name, faults);
            Some(Dcgm::Prometheus(name))
        }
        None if !endpoints.is_empty() => {
            let url = |(path, node): (String, Node)| {
                let text = node.into_text(&path, ENDPOINT, faults)?;
                metrics_url(&path, &text, faults)
            };
            Some(Dcgm::Endpoints(endpoints.into_iter().filter_map(url).collect()))
        }
        Some(_) | None => {
            faults.add("dcgm".to_owned(), "", expected);
            None
        }
    };
    entry.end(faults);
    dcgm
}

fn workload(
    node: Node,
    path: &str,
    gateways: &Listed,
    namespaces: &mut BTreeSet<Arc<str>>,
    faults: &mut Faults,
) -> Option<Workload> {
    let mut entry = Entry::of(node, path, MAPPING, faults)?;
    let namespace = kubernetes_name(&mut entry, "namespace", faults);
    let name = kubernetes_name(&mut entry, "name", faults);
    let min = count(&mut entry, "min", 0, faults).unwrap_or(0);
    let max = count(&mut entry, "max", min.max(1), faults);
    let max = max.unwrap_or_else(|| DEFAULT_MAX_REPLICAS.max(min));
    let replicas = count(&mut entry, "replicas", 0, faults);
    let members = members(entry.list("endpoints", faults), faults);
    let policy = policy(entry, gateways, faults);
    if namespace.is_empty() || name.is_empty() {
        return None;
    }
    Some(Workload {
        key: Names { namespace: in_common(namespaces, &namespace), name: name.into() }.into(),
        min,
        max,
        fallback_replicas: None,
        triggers: vec![policy],
        replicas: Replicas { spec: replicas, ..Replicas::default() },
        members,
        counted: Counted::ByAnswers,
        gpus_per_replica: None,
        paused: false,
        kubernetes: Kubernetes::default(),
    })
}

/// The text, held once however many have it.
fn in_common(known: &mut BTreeSet<Arc<str>>, text: &str) -> Arc<str> {
    known.get(text).cloned().unwrap_or_else(|| {
        let new = Arc::from(text);
        known.insert(Arc::clone(&new));
        new
    })
}

/// Everything else is a policy key of the trigger metadata; `trigger` knows which exist.
fn policy(mut entry: Entry, gateways: &Listed, faults: &mut Faults) -> BTreeMap<String, String> {
    let names = FIELDS.map(|field| field.key);
    let is_known = |key: &str| {
        let stem = key.strip_suffix(FROM_ENV).unwrap_or(key);
        names.contains(&stem) || trigger::is_keda_key(key)
    };
    let mut policy = BTreeMap::new();
    for (key, node) in entry.drain() {
        if !is_known(&key) {
            entry.unknown(&key, &names, faults);
            continue;
        }
        let value = if matches!(node, Node::Nothing) {
            // As trigger metadata has it.
            Some(String::new())
        } else {
            node.into_text(&entry.at(&key), "text or a number", faults)
        };
        policy.extend(value.map(|value| (key, value)));
    }
    let pairs = policy.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    if let Err(of_policy) = trigger::parse(pairs) {
        for fault in of_policy.iter() {
            faults.add(entry.at(&fault.key), &fault.value, &fault.expected);
        }
    }
    if let Some(wake_source) = policy.get("wakeSource") {
        gateways.check(entry.at("wakeSource"), wake_source, faults);
    }
    policy
}

fn members(endpoints: Vec<(String, Node)>, faults: &mut Faults) -> Vec<Member> {
    let mut seen = BTreeSet::new();
    let mut members = Vec::with_capacity(endpoints.len());
    for (path, node) in endpoints {
        let Some((url, pod)) = endpoint(node, &path, faults) else { continue };
        let id: Arc<str> = pod.map_or_else(|| Arc::clone(&url), Arc::from);
        if !seen.insert(Arc::clone(&id)) {
            faults.add(path, &id, "an endpoint or pod that is not listed twice");
            continue;
        }
        members.push(Member {
            id,
            phase: Phase::Ready,
            created_at: None,
            ready_at: None,
            endpoint: Some(Endpoint::Url(url)),
            node: None,
        });
    }
    members.sort_by(|a, b| a.id.cmp(&b.id));
    members
}

const ENDPOINT: &str = "HOST:PORT, or an http or https URL without credentials";

/// Where an engine's metrics are, and the pod's name where it is said: it joins the endpoint with
/// DCGM's and Prometheus's series.
fn endpoint(node: Node, path: &str, faults: &mut Faults) -> Option<(Arc<str>, Option<String>)> {
    if let Node::Text(text) = &node {
        return Some((metrics_url(path, text, faults)?, None));
    }
    let mut entry = Entry::of(node, path, "HOST:PORT, a URL, or `url` and `pod`", faults)?;
    let text = entry.needed("url", ENDPOINT, faults);
    let url = metrics_url(&entry.at("url"), &text, faults);
    let pod = entry.needed("pod", "a pod's name", faults);
    entry.end(faults);
    Some((url?, Some(pod)))
}

fn kubernetes_name(entry: &mut Entry, key: &'static str, faults: &mut Faults) -> String {
    let expected = "a Kubernetes name: lower-case letters, digits, - and .";
    let name = entry.needed(key, expected, faults);
    if !is_kubernetes_name(&name) {
        faults.add(entry.at(key), &name, expected);
    }
    name
}

/// A number of replicas, `least` or more.
fn count(entry: &mut Entry, key: &'static str, least: u32, faults: &mut Faults) -> Option<u32> {
    let path = entry.at(key);
    let expected = format!("a number from {least} to {MOST_REPLICAS}");
    let text = entry.take(key)?.into_text(&path, &expected, faults)?;
    let count = text.parse().ok().filter(|count| (least..=MOST_REPLICAS).contains(count));
    if count.is_none() {
        faults.add(path, &text, &expected);
    }
    count
}

fn address(field: &str, text: Option<String>, faults: &mut Faults) -> Option<SocketAddr> {
    let text = text?;
    match parse_listen_address(&text) {
        Ok(address) => Some(address),
        Err(Error::Address { expected, .. }) => {
            faults.add(field.to_owned(), &text, expected);
            None
        }
        Err(Error::Yaml(_) | Error::Faults(_)) => None,
    }
}

/// `HOST:PORT`, or a whole URL with or without a path.
fn metrics_url(path: &str, text: &str, faults: &mut Faults) -> Option<Arc<str>> {
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let Some(mut url) = parse_url(&with_scheme) else {
        faults.add(path.to_owned(), shown_url(text), ENDPOINT);
        return None;
    };
    if url.path() == "/" {
        url.set_path(DEFAULT_PATH);
    }
    Some(url.as_str().into())
}
