//! The configuration file of `serve`: listen addresses, upstreams, wake sources and, without a
//! cluster, the workloads.
//!
//! Parses and validates text; opens no connection. Every fault of a file is reported at once, each
//! with the field, the value and what was expected; only a text that is no YAML ends at its first.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::files::MAX_DOCUMENT_BYTES;
use crate::inventory::Inventory;
use crate::source::config::{PrometheusConfig, WakeSourceConfig};
use crate::yaml;

mod entry;
mod faults;
mod read;

pub use faults::Fault;

use entry::Node;
use faults::Faults;

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
    /// What the file says and what it leaves open.
    pub says: Says,
}

/// How much a file says. Half a file, or an emptied one, says less than was meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Says {
    /// Nothing at all: not one key.
    Nothing,
    /// Something, and nothing of workloads.
    NoWorkloads,
    /// Which workloads there are; with `workloads: []` that there are none.
    Workloads,
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
            says: Says::Nothing,
        }
    }
}

/// Parses and validates a configuration file's text.
///
/// # Errors
///
/// [`Error::Yaml`] when the text is no YAML, [`Error::Faults`] when keys or values are wrong.
pub fn parse(text: &str) -> Result<Config, Error> {
    let root = Node::parse(text).map_err(Error::Yaml)?;
    let mut faults = Faults::default();
    let config = read::config(root, &mut faults);
    let faults = faults.into_list();
    if faults.is_empty() { Ok(config) } else { Err(Error::Faults(faults)) }
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

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is no YAML; the source has line and column.
    #[error("the file is no YAML")]
    Yaml(#[source] yaml::Error),
    /// Keys or values are wrong.
    #[error("{}", faults::text(.0))]
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

#[cfg(test)]
mod tests;
