//! What is read for many workloads at once: Prometheus servers, GPU exporters, wake sources.
//!
//! Built from one configuration and replaced whole with the next. Its readers are tasks of its own,
//! so that no tick waits for a server that serves others too.

mod prometheus;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::clock::Clock;
use crate::config::Config;
use crate::decision::{Moment, Wake};
use crate::metrics::Metrics;
use crate::observe::Around;
use crate::registry::Tracker;
use crate::source;
use crate::source::prometheus::PrometheusClient;

pub(super) use prometheus::EnginesRead;

use prometheus::Reader;

/// The upstreams of one configuration.
#[derive(Debug, Default)]
pub struct Upstreams {
    /// Where engine series come from: the first configured Prometheus.
    engines: Option<Reader>,
    wake_source_names: BTreeSet<String>,
}

impl Upstreams {
    /// Sets up the configured upstreams; asks none of them yet.
    ///
    /// # Errors
    ///
    /// When a client cannot be made from its configuration.
    pub fn start(config: &Config, metrics: &Metrics, clock: Clock) -> Result<Upstreams, Error> {
        let mut clients = BTreeMap::new();
        for prometheus in &config.prometheus {
            let named = |source| Error { name: prometheus.name.clone(), source };
            let client = PrometheusClient::new(prometheus).map_err(named)?;
            clients.insert(prometheus.name.as_str(), client);
        }
        let first = config.prometheus.first().and_then(|first| clients.get(first.name.as_str()));
        let engines = first.map(|client| Reader::start(client.clone(), metrics.clone(), clock));
        Ok(Upstreams { engines, wake_source_names: config.wake_sources.keys().cloned().collect() })
    }

    /// The names that a trigger's `wakeSource` may have.
    #[must_use]
    pub fn wake_source_names(&self) -> &BTreeSet<String> {
        &self.wake_source_names
    }

    /// What Prometheus last said of the engines of a namespace.
    pub(super) async fn engines_of(&self, namespace: &Arc<str>) -> EnginesRead {
        match &self.engines {
            Some(reader) => reader.engines_of(namespace).await,
            None => EnginesRead::unconfigured(),
        }
    }

    /// What is known around a workload's engines.
    pub(super) fn around(
        &self,
        _tracker: &Tracker,
        woken_at: Option<Moment>,
        _now: Moment,
    ) -> Around {
        Around { wake: Wake { source: None, requested_at: woken_at }, ..Around::default() }
    }
}

/// An upstream's configuration makes no client.
#[derive(Debug, thiserror::Error)]
#[error("the Prometheus `{name}` cannot be used")]
pub struct Error {
    name: String,
    #[source]
    source: source::Error,
}
