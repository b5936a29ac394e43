//! What is read for many workloads at once: Prometheus servers, GPU exporters, wake sources.
//!
//! Built from one configuration and replaced whole with the next. Its readers are tasks of its own,
//! so that no tick waits for a server that serves others too.

mod devices;
mod followed;
mod prometheus;
mod wake;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::Notify;

use crate::clock::Clock;
use crate::config::{Config, Dcgm};
use crate::decision::{Gpu, Moment, WakeReading};
use crate::inventory::{Endpoint, Workload};
use crate::metrics::Metrics;
use crate::registry::Tracker;
use crate::source;
use crate::source::prometheus::PrometheusClient;
use crate::source::scrape::{Scraper, Target};
use crate::source::wake::WakeSource;

pub(super) use prometheus::EnginesRead;

/// The upstreams of one configuration.
#[derive(Debug, Default)]
pub struct Upstreams {
    /// Where engine series come from: the first configured Prometheus.
    engines: Option<prometheus::Reader>,
    devices: Option<devices::Reader>,
    wakes: BTreeMap<String, wake::Reader>,
    wake_source_names: BTreeSet<String>,
}

impl Upstreams {
    /// Sets up the configured upstreams and starts their readers.
    ///
    /// # Errors
    ///
    /// When a client cannot be made from its configuration.
    pub fn start(
        config: &Config,
        scraper: &Scraper,
        metrics: &Metrics,
        clock: Clock,
    ) -> Result<Upstreams, Error> {
        let mut clients = BTreeMap::new();
        for prometheus in &config.prometheus {
            let client = PrometheusClient::new(prometheus).map_err(named(&prometheus.name))?;
            clients.insert(prometheus.name.as_str(), client);
        }
        let devices = match &config.dcgm {
            None => None,
            Some(Dcgm::Prometheus(name)) => {
                clients.get(name.as_str()).cloned().map(devices::From::Prometheus)
            }
            Some(Dcgm::Endpoints(urls)) => {
                let target = |url: &Arc<str>| {
                    Target::new(&Endpoint::Url(Arc::clone(url)), None, None).map_err(named(url))
                };
                let targets = urls.iter().map(target).collect::<Result<_, _>>()?;
                Some(devices::From::Exporters(targets, scraper.clone()))
            }
        };
        let mut wakes = BTreeMap::new();
        for (name, wake) in &config.wake_sources {
            let client = wake.prometheus_name().and_then(|name| clients.get(name));
            let source = WakeSource::new(wake, client, scraper).map_err(named(name))?;
            let reader = wake::Reader::start(source, metrics.clone(), clock);
            wakes.insert(name.clone(), reader);
        }
        let first = config.prometheus.first().and_then(|first| clients.get(first.name.as_str()));
        let read_engines = |client: &PrometheusClient| {
            prometheus::Reader::start(client.clone(), metrics.clone(), clock)
        };
        Ok(Upstreams {
            engines: first.map(read_engines),
            devices: devices.map(|from| devices::Reader::start(from, metrics.clone(), clock)),
            wake_source_names: wakes.keys().cloned().collect(),
            wakes,
        })
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

    /// The utilisation of a workload's own devices; `seen_at` is when it was last known.
    pub(super) fn gpu(
        &self,
        workload: &Workload,
        seen_at: &mut Option<Moment>,
        now: Moment,
    ) -> Gpu {
        match &self.devices {
            Some(reader) => reader.utilisation(workload, seen_at, now),
            None => Gpu::Absent,
        }
    }

    /// What the trigger's wake source last said; `nudge` is told when demand comes.
    pub(super) fn wake(
        &self,
        tracker: &Tracker,
        nudge: &Arc<Notify>,
        now: Moment,
    ) -> Option<WakeReading> {
        let reader = self.wakes.get(tracker.policy.wake_source.as_ref()?)?;
        Some(reader.reading(tracker, nudge, now))
    }
}

fn named(name: &str) -> impl Fn(source::Error) -> Error {
    move |source| Error { name: name.to_owned(), source }
}

/// An upstream's configuration makes no client.
#[derive(Debug, thiserror::Error)]
#[error("the upstream `{name}` cannot be used")]
pub struct Error {
    name: String,
    #[source]
    source: source::Error,
}
