//! What is read for many workloads at once: Prometheus servers, GPU exporters, wake sources.
//!
//! Built from one configuration and replaced with the next, which takes over every reader whose own
//! part of it stands as it was: what it has read is still good. Readers are tasks of their own, so
//! that no tick waits for a server that serves others too.

mod batches;
mod devices;
mod followed;
mod kept;
mod prometheus;
mod skew;
mod wake;

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::clock::Clock;
use crate::config::{Config, Dcgm};
use crate::decision::{Gpu, Moment, WakeReading};
use crate::inventory::{Endpoint, Member, Workload};
use crate::metrics::Metrics;
use crate::registry::Tracker;
use crate::source;
use crate::source::config::{PrometheusConfig, WakeSourceConfig};
use crate::source::prometheus::PrometheusClient;
use crate::source::scrape::{Scraper, Target};
use crate::source::wake::WakeSource;
use crate::trigger::Context;

pub(super) use prometheus::EnginesRead;

/// Most GPU exporters that are read at once, beside the engines' own turns.
const EXPORTERS_AT_ONCE: usize = 64;

/// The upstreams of one configuration.
#[derive(Debug, Default)]
pub struct Upstreams {
    clients: Vec<Kept<PrometheusConfig, PrometheusClient>>,
    /// Where engine series come from: the first configured Prometheus.
    engines: Option<Kept<PrometheusConfig, Arc<prometheus::Reader>>>,
    devices: Option<Kept<Asks<Dcgm>, Arc<devices::Reader>>>,
    wakes: Vec<Kept<Asks<WakeSourceConfig>, Arc<wake::Reader>>>,
    wake_source_names: BTreeSet<String>,
}

/// A part's own configuration, and that of the Prometheus that it asks.
type Asks<C> = (C, Option<PrometheusConfig>);

/// A part with all of the configuration that it was made from.
#[derive(Debug, Clone)]
struct Kept<C, P> {
    config: C,
    part: P,
}

/// The part that was made from this configuration, or else a new one.
fn keep<'a, C: PartialEq + 'a, P: Clone + 'a>(
    old: impl IntoIterator<Item = &'a Kept<C, P>>,
    config: C,
    make: impl FnOnce(&C) -> Result<P, Error>,
) -> Result<Kept<C, P>, Error> {
    let part = match old.into_iter().find(|kept| kept.config == config) {
        Some(kept) => kept.part.clone(),
        None => make(&config)?,
    };
    Ok(Kept { config, part })
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
        Upstreams::default().changed_to(config, scraper, metrics, clock)
    }

    /// The upstreams of another configuration, with those of these readers that it does not change.
    ///
    /// # Errors
    ///
    /// When a client cannot be made from its configuration.
    pub fn changed_to(
        &self,
        config: &Config,
        scraper: &Scraper,
        metrics: &Metrics,
        clock: Clock,
    ) -> Result<Upstreams, Error> {
        let mut clients = Vec::with_capacity(config.prometheus.len());
        for prometheus in &config.prometheus {
            let make = |config: &_| PrometheusClient::new(config).map_err(named(&prometheus.name));
            clients.push(keep(&self.clients, prometheus.clone(), make)?);
        }
        let find = |name: &str| clients.iter().find(|client| client.config.name == name);
        let asked = |name: &str| find(name).map(|client| client.config.clone());

        let engines = match clients.first() {
            None => None,
            Some(Kept { config, part }) => Some(keep(&self.engines, config.clone(), |_| {
                Ok(Arc::new(prometheus::Reader::start(part.clone(), metrics.clone(), clock)))
            })?),
        };
        let devices = match &config.dcgm {
            None => None,
            Some(dcgm) => {
                let prometheus = match dcgm {
                    Dcgm::Prometheus(name) => find(name),
                    Dcgm::Endpoints(_) => None,
                };
                let parts = (dcgm.clone(), prometheus.map(|client| client.config.clone()));
                Some(keep(&self.devices, parts, |_| {
                    let from = devices_from(dcgm, prometheus.map(|client| &client.part), scraper)?;
                    Ok(Arc::new(devices::Reader::start(from, metrics.clone(), clock)))
                })?)
            }
        };
        let mut wakes = Vec::with_capacity(config.wake_sources.len());
        for (name, wake) in &config.wake_sources {
            let parts = (wake.clone(), wake.prometheus_name().and_then(asked));
            wakes.push(keep(&self.wakes, parts, |_| {
                let client = wake.prometheus_name().and_then(find).map(|client| &client.part);
                let source = WakeSource::new(wake, client, scraper).map_err(named(name))?;
                Ok(Arc::new(wake::Reader::start(source, metrics.clone(), clock)))
            })?);
        }
        let wake_source_names = config.wake_sources.keys().cloned().collect();
        Ok(Upstreams { clients, engines, devices, wakes, wake_source_names })
    }

    /// What these upstreams add to a trigger's policy.
    pub(super) fn context(&self) -> Context<'_> {
        Context { wake_sources: &self.wake_source_names, has_prometheus: self.engines.is_some() }
    }

    /// Reads the wake sources now, and the GPU exporters if that is due. Only for a stepped clock,
    /// on which they do not read by themselves.
    pub async fn read(&self) {
        if let Some(devices) = &self.devices {
            devices.part.read().await;
        }
        for wake in &self.wakes {
            wake.part.read().await;
        }
    }

    /// What Prometheus last said of the engines of a namespace.
    pub(super) async fn engines_of(&self, namespace: &Arc<str>) -> EnginesRead {
        match &self.engines {
            Some(engines) => engines.part.engines_of(namespace).await,
            None => EnginesRead::unconfigured(),
        }
    }

    /// The utilisation of a workload's own devices, of members that are awake; `seen_at` is when it was last known.
    pub(super) fn gpu(
        &self,
        workload: &Workload,
        sleeps: impl Fn(&Member) -> bool,
        seen_at: &mut Option<Moment>,
        now: Moment,
    ) -> Gpu {
        match &self.devices {
            Some(devices) => devices.part.utilisation(workload, sleeps, seen_at, now),
            None => Gpu::Absent,
        }
    }

    /// What the trigger's wake source last said; `nudge` is told when demand comes.
    pub(super) fn wake(
        &self,
        tracker: &Arc<Tracker>,
        nudge: &Arc<Notify>,
        now: Moment,
    ) -> Option<WakeReading> {
        let name = tracker.policy.wake_source.as_ref()?;
        let wake = self.wakes.iter().find(|wake| wake.config.0.name == *name)?;
        Some(wake.part.reading(tracker, nudge, now))
    }
}

fn devices_from(
    dcgm: &Dcgm,
    prometheus: Option<&PrometheusClient>,
    scraper: &Scraper,
) -> Result<devices::From, Error> {
    match dcgm {
        Dcgm::Prometheus(name) => {
            let client = prometheus.ok_or(source::Error::BadAddress).map_err(named(name))?;
            Ok(devices::From::Prometheus(client.clone()))
        }
        Dcgm::Endpoints(urls) => {
            let target = |url: &Arc<str>| {
                Target::new(&Endpoint::Url(Arc::clone(url)), None, None).map_err(named(url))
            };
            let targets = urls.iter().map(target).collect::<Result<_, _>>()?;
            Ok(devices::From::Exporters(targets, scraper.with_own_turns(EXPORTERS_AT_ONCE)))
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::source::scrape::Options;

    const BEFORE: &str = "
prometheus:
- {name: main, url: 'http://127.0.0.1:1'}
- {name: gpus, url: 'http://127.0.0.1:2'}
dcgm: {prometheus: gpus}
wakeSources:
- {name: page, kind: gauge, url: 'http://127.0.0.1:3/metrics', metric: queue}
- {name: query, kind: counter, prometheus: main, query: sum(requests_total)}
";

    /// Which readers are the same after the change: engines, devices, `page`, `query`.
    fn kept(after: &str) -> [bool; 4] {
        let scraper = Scraper::new(Options::default()).unwrap();
        let (metrics, clock) = (Metrics::default(), Clock::start());
        let [before, after] = [BEFORE, after].map(|text| config::parse(text).unwrap());
        let before = Upstreams::start(&before, &scraper, &metrics, clock).unwrap();
        let after = before.changed_to(&after, &scraper, &metrics, clock).unwrap();
        let same_wake = |name: &str| {
            let find = |all: &Upstreams| {
                let found = all.wakes.iter().find(|wake| wake.config.0.name == name);
                Arc::clone(&found.unwrap().part)
            };
            Arc::ptr_eq(&find(&before), &find(&after))
        };
        let same = |a: Option<bool>| a.unwrap_or(false);
        [
            same(
                before
                    .engines
                    .as_ref()
                    .zip(after.engines.as_ref())
                    .map(|(a, b)| Arc::ptr_eq(&a.part, &b.part)),
            ),
            same(
                before
                    .devices
                    .as_ref()
                    .zip(after.devices.as_ref())
                    .map(|(a, b)| Arc::ptr_eq(&a.part, &b.part)),
            ),
            same_wake("page"),
            same_wake("query"),
        ]
    }

    #[tokio::test]
    async fn a_changed_configuration_restarts_the_readers_that_it_changes_and_no_others() {
        for (from, to, expected) in [
            ("", "", [true; 4]),
            ("metric: queue", "metric: held", [true, true, false, true]),
            ("sum(requests_total)", "requests_total", [true, true, true, false]),
            ("127.0.0.1:1", "127.0.0.1:4", [false, true, true, false]),
            ("127.0.0.1:2", "127.0.0.1:4", [true, false, true, true]),
            ("dcgm: {prometheus: gpus}", "", [true, false, true, true]),
        ] {
            assert_eq!(kept(&BEFORE.replace(from, to)), expected, "{from} to {to}");
        }
    }
}
