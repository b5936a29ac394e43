//! The configuration file of `serve`: listen addresses, upstreams, wake sources and, without a
//! cluster, the workloads.
//!
//! Parses and validates text; opens no connection. Every fault of a file is reported at once, each
//! with the field, the value and what was expected.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use serde::Deserialize;

use crate::decision::{Phase, Replicas};
use crate::files::MAX_DOCUMENT_BYTES;
use crate::inventory::{
    Counted, DEFAULT_MAX_REPLICAS, Endpoint, Inventory, Kubernetes, MOST_REPLICAS, Member, Names,
    Workload,
};
use crate::source::config::{PrometheusConfig, WakeSourceConfig, parse_url, shown_url};
use crate::source::scrape::DEFAULT_PATH;
use crate::trigger;

/// Largest configuration file that is read, in bytes. A workload takes about 200 bytes, so this is
/// ten times the 10,000 workloads that one process is built for.
pub const MAX_FILE_BYTES: u64 = MAX_DOCUMENT_BYTES;

/// A validated configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where gRPC listens; `None` leaves the flag's default.
    pub grpc_address: Option<SocketAddr>,
    /// Where HTTP listens; `None` leaves the flag's default.
    pub http_address: Option<SocketAddr>,
    /// Prometheus servers; engine series come from the first.
    pub prometheus: Vec<PrometheusConfig>,
    /// Wake sources by name.
    pub wake_sources: BTreeMap<String, WakeSourceConfig>,
    /// Where DCGM series come from.
    pub dcgm: Option<Dcgm>,
    /// The workloads of the file, as an inventory.
    pub inventory: Arc<Inventory>,
}

/// Where DCGM series come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dcgm {
    /// A configured Prometheus, by name.
    Prometheus(String),
    /// The exporters themselves.
    Endpoints(Vec<Arc<str>>),
}

impl Default for Config {
    fn default() -> Self {
        Config {
            grpc_address: None,
            http_address: None,
            prometheus: Vec::new(),
            wake_sources: BTreeMap::new(),
            dcgm: None,
            inventory: Arc::new(Inventory { synced: true, ..Inventory::default() }),
        }
    }
}

/// Parses and validates a configuration file's text.
///
/// # Errors
///
/// [`Error::Yaml`] when the text is no YAML of this shape, [`Error::Faults`] when values are wrong.
pub fn parse(text: &str) -> Result<Config, Error> {
    // An empty file is an empty configuration, not a fault.
    let raw: Raw = if text.trim().is_empty() {
        Raw::default()
    } else {
        serde_saphyr::from_str(text).map_err(|error| Error::Yaml(Box::new(error)))?
    };
    let mut faults = Faults::default();
    check_names("prometheus", raw.prometheus.iter().map(|config| &config.name), &mut faults);
    check_names("wakeSources", raw.wake_sources.iter().map(|config| &config.name), &mut faults);
    let config = Config {
        grpc_address: faults.address("grpcAddress", raw.grpc_address.as_deref()),
        http_address: faults.address("httpAddress", raw.http_address.as_deref()),
        prometheus: raw.prometheus,
        wake_sources: raw.wake_sources.into_iter().map(|wake| (wake.name.clone(), wake)).collect(),
        dcgm: raw.dcgm.and_then(|dcgm| dcgm.validate(&mut faults)),
        inventory: Arc::new(inventory(raw.workloads, &mut faults)),
    };
    check_references(&config, &mut faults);
    if faults.0.is_empty() { Ok(config) } else { Err(Error::Faults(faults.0)) }
}

fn check_names<'a>(field: &str, names: impl Iterator<Item = &'a String>, faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (index, name) in names.enumerate() {
        if name.is_empty() || !seen.insert(name) {
            faults.add(format!("{field}[{index}].name"), name, "a name that is not used twice");
        }
    }
}

fn inventory(raw: Vec<RawWorkload>, faults: &mut Faults) -> Inventory {
    let mut workloads = BTreeMap::new();
    let mut namespaces = BTreeSet::new();
    for (index, workload) in raw.into_iter().enumerate() {
        let field = format!("workloads[{index}]");
        let namespace = in_common(&mut namespaces, &workload.namespace);
        let workload = workload.validate(namespace, &field, faults);
        let key = workload.key.clone();
        if workloads.insert(key.clone(), Arc::new(workload)).is_some() {
            faults.add(field, &key.to_string(), "a namespace and name that are not used twice");
        }
    }
    Inventory { synced: true, workloads, ..Inventory::default() }
}

/// The text, held once however many have it.
fn in_common(known: &mut BTreeSet<Arc<str>>, text: &str) -> Arc<str> {
    known.get(text).cloned().unwrap_or_else(|| {
        let new = Arc::from(text);
        known.insert(Arc::clone(&new));
        new
    })
}

fn check_references(config: &Config, faults: &mut Faults) {
    let prometheus_names = || config.prometheus.iter().map(|entry| &entry.name);
    let is_prometheus = |name: &str| prometheus_names().any(|known| known == name);
    for prometheus in &config.prometheus {
        if let Err(fault) = prometheus.validate() {
            let field = format!("prometheus {}: {}", prometheus.name, fault.field);
            faults.add(field, &fault.value, fault.expected);
        }
    }
    for (name, wake) in &config.wake_sources {
        if let Err(fault) = wake.validate() {
            faults.add(
                format!("wakeSources {name}: {}", fault.field),
                &fault.value,
                fault.expected,
            );
        }
        if let Some(prometheus) = wake.prometheus_name()
            && !is_prometheus(prometheus)
        {
            let field = format!("wakeSources {name}: prometheus");
            faults.name(field, prometheus, "prometheus", prometheus_names());
        }
    }
    if let Some(Dcgm::Prometheus(name)) = &config.dcgm
        && !is_prometheus(name)
    {
        faults.name("dcgm.prometheus".to_owned(), name, "prometheus", prometheus_names());
    }
    for workload in config.inventory.workloads.values() {
        let Some(wanted) = workload.triggers.iter().find_map(|map| map.get("wakeSource")) else {
            continue;
        };
        if !config.wake_sources.contains_key(wanted) {
            let field = format!("workload {}: wakeSource", workload.key);
            faults.name(field, wanted, "wakeSources", config.wake_sources.keys());
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Raw {
    grpc_address: Option<String>,
    http_address: Option<String>,
    #[serde(default)]
    prometheus: Vec<PrometheusConfig>,
    #[serde(default)]
    wake_sources: Vec<WakeSourceConfig>,
    dcgm: Option<RawDcgm>,
    #[serde(default)]
    workloads: Vec<RawWorkload>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawDcgm {
    prometheus: Option<String>,
    #[serde(default)]
    endpoints: Vec<String>,
}

impl RawDcgm {
    fn validate(self, faults: &mut Faults) -> Option<Dcgm> {
        match (self.prometheus, self.endpoints) {
            (Some(name), endpoints) if endpoints.is_empty() => Some(Dcgm::Prometheus(name)),
            (None, endpoints) if !endpoints.is_empty() => Some(Dcgm::Endpoints(
                endpoints
                    .iter()
                    .enumerate()
                    .filter_map(|(i, text)| {
                        faults.metrics_url(&format!("dcgm.endpoints[{i}]"), text)
                    })
                    .collect(),
            )),
            (Some(_), _) | (None, _) => {
                faults.add("dcgm".to_owned(), "", "either `prometheus` or `endpoints`");
                None
            }
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawWorkload {
    namespace: String,
    name: String,
    min: Option<Scalar>,
    max: Option<Scalar>,
    replicas: Option<Scalar>,
    #[serde(default)]
    endpoints: Vec<RawEndpoint>,
    /// Everything else is a policy key of the trigger metadata; `trigger` knows which exist.
    #[serde(flatten)]
    policy: BTreeMap<String, Scalar>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RawEndpoint {
    Address(String),
    WithPod {
        url: String,
        /// The pod's name, which joins the endpoint with DCGM's and Prometheus's series.
        pod: String,
    },
}

/// A YAML scalar, kept as the text that trigger metadata would hold.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Scalar {
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
}

impl Scalar {
    fn into_text(self) -> String {
        match self {
            Scalar::Bool(value) => value.to_string(),
            Scalar::Unsigned(value) => value.to_string(),
            Scalar::Signed(value) => value.to_string(),
            Scalar::Float(value) => value.to_string(),
            Scalar::Text(value) => value,
        }
    }
}

impl RawWorkload {
    fn validate(self, namespace: Arc<str>, field: &str, faults: &mut Faults) -> Workload {
        for (part, value) in [("namespace", &*namespace), ("name", &self.name)] {
            if !is_kubernetes_name(value) {
                faults.add(
                    format!("{field}.{part}"),
                    value,
                    "a Kubernetes name: lower-case letters, digits, - and .",
                );
            }
        }
        let min = faults.count(&format!("{field}.min"), self.min, 0).unwrap_or(0);
        let max = faults.count(&format!("{field}.max"), self.max, min.max(1));
        let max = max.unwrap_or_else(|| DEFAULT_MAX_REPLICAS.max(min));
        let replicas = faults.count(&format!("{field}.replicas"), self.replicas, 0);
        let members = members(self.endpoints, field, faults);
        let policy: BTreeMap<String, String> =
            self.policy.into_iter().map(|(key, value)| (key, value.into_text())).collect();
        let pairs = policy.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        if let Err(policy_faults) = trigger::parse(pairs) {
            for fault in policy_faults.iter() {
                faults.add(format!("{field}.{}", fault.key), &fault.value, &fault.expected);
            }
        }
        Workload {
            key: Names { namespace, name: self.name.into() }.into(),
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
        }
    }
}

fn members(raw: Vec<RawEndpoint>, field: &str, faults: &mut Faults) -> Vec<Member> {
    let mut seen = BTreeSet::new();
    let mut members = Vec::with_capacity(raw.len());
    for (index, endpoint) in raw.into_iter().enumerate() {
        let field = format!("{field}.endpoints[{index}]");
        let (text, pod) = match endpoint {
            RawEndpoint::Address(text) => (text, None),
            RawEndpoint::WithPod { url, pod } => (url, Some(pod)),
        };
        let Some(url) = faults.metrics_url(&field, &text) else { continue };
        let id: Arc<str> = pod.map_or_else(|| Arc::clone(&url), Arc::from);
        if !seen.insert(Arc::clone(&id)) {
            faults.add(field, &id, "an endpoint or pod that is not listed twice");
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

/// Whether a text can name an object or a namespace (a DNS subdomain).
pub(crate) fn is_kubernetes_name(text: &str) -> bool {
    let ends_well = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    !text.is_empty()
        && text.len() <= 253
        && text.chars().all(|c| ends_well(c) || c == '-' || c == '.')
        && text.starts_with(ends_well)
        && text.ends_with(ends_well)
}

/// Reads a flag's value as the name of an object or a namespace.
pub(crate) fn kubernetes_name(text: &str) -> Result<String, &'static str> {
    if is_kubernetes_name(text) {
        Ok(text.to_owned())
    } else {
        Err("expected a Kubernetes name: lower-case letters, digits, - and .")
    }
}

/// Reads a flag's value as the address of somebody to call.
pub(crate) fn host_and_port(text: &str) -> Result<String, &'static str> {
    let is_address = text.rsplit_once(':').is_some_and(|(host, port)| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
        !host.is_empty() && host.chars().all(allowed) && port.parse::<u16>().is_ok_and(|p| p > 0)
    });
    is_address.then(|| text.to_owned()).ok_or("expected HOST:PORT")
}

#[derive(Debug, Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn add(&mut self, field: String, value: &str, expected: &str) {
        self.0.push(Fault { field, value: value.to_owned(), expected: expected.to_owned() });
    }

    /// A name that no entry of `list` has.
    fn name<'a>(
        &mut self,
        field: String,
        value: &str,
        list: &str,
        known: impl Iterator<Item = &'a String>,
    ) {
        let expected = match trigger::nearest(value, known.map(String::as_str)) {
            Some(nearest) => format!("the name of an entry of `{list}`, nearest is {nearest}"),
            None => format!("the name of an entry of `{list}`, which has none"),
        };
        self.add(field, value, &expected);
    }

    /// A number of replicas, `least` or more.
    fn count(&mut self, field: &str, value: Option<Scalar>, least: u32) -> Option<u32> {
        let text = value?.into_text();
        let count = text.parse().ok().filter(|count| (least..=MOST_REPLICAS).contains(count));
        if count.is_none() {
            let expected = format!("a number from {least} to {MOST_REPLICAS}");
            self.add(field.to_owned(), &text, &expected);
        }
        count
    }

    fn address(&mut self, field: &str, text: Option<&str>) -> Option<SocketAddr> {
        let text = text?;
        match parse_listen_address(text) {
            Ok(address) => Some(address),
            Err(Error::Address { expected, .. }) => {
                self.add(field.to_owned(), text, expected);
                None
            }
            Err(Error::Yaml(_) | Error::Faults(_)) => None,
        }
    }

    /// `HOST:PORT`, or a whole URL with or without a path.
    fn metrics_url(&mut self, field: &str, text: &str) -> Option<Arc<str>> {
        let with_scheme =
            if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let Some(mut url) = parse_url(&with_scheme) else {
            let expected = "HOST:PORT, or an http or https URL without credentials";
            self.add(field.to_owned(), shown_url(text), expected);
            return None;
        };
        if url.path() == "/" {
            url.set_path(DEFAULT_PATH);
        }
        Some(url.as_str().into())
    }
}

/// Reads `HOST:PORT` with an IP address as host, as listeners need it; `:PORT` and `localhost:PORT`
/// are understood too.
///
/// # Errors
///
/// [`Error::Address`] with the text and what was expected.
pub fn parse_listen_address(text: &str) -> Result<SocketAddr, Error> {
    let spelled = text
        .strip_prefix("localhost:")
        .map(|port| format!("127.0.0.1:{port}"))
        .or_else(|| text.strip_prefix(':').map(|port| format!("0.0.0.0:{port}")))
        .unwrap_or_else(|| text.to_owned());
    spelled.parse().map_err(|_not_an_address| Error::Address {
        value: text.to_owned(),
        expected: "HOST:PORT with an IP address, such as 0.0.0.0:9090",
    })
}

/// One wrong value of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where it stands.
    pub field: String,
    /// What stands there.
    pub value: String,
    /// What was expected.
    pub expected: String,
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is no YAML of this shape; the source has line and column.
    #[error("the file does not have the shape of a configuration")]
    Yaml(#[source] Box<serde_saphyr::Error>),
    /// Values are wrong.
    #[error("{}", list(.0))]
    Faults(Vec<Fault>),
    /// A listen address is wrong.
    #[error("{value:?}: expected {expected}")]
    Address {
        /// What was given.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
}

fn list(faults: &[Fault]) -> String {
    let lines: Vec<String> = faults
        .iter()
        .map(|Fault { field, value, expected }| match value.as_str() {
            "" => format!("`{field}`: expected {expected}"),
            value => format!("`{field}` is {value:?}: expected {expected}"),
        })
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests;
