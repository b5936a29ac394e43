//! Wake sources: demand that can be seen in front of engines that are not there.
//!
//! Must not decide whether a workload wakes, nor take silence for no demand.

mod memory;
mod page;
mod template;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::Error;
use super::config::{WakePlan, WakeSourceConfig};
use super::prometheus::{Answer, PrometheusClient};
use super::scrape::{Scraper, Target};
use super::selector::Query;
use crate::inventory::Endpoint;
use page::PageReader;

pub use memory::WakeMemory;
pub use template::Subject;
pub(super) use template::Template;

/// Most series of one workload's wake source: a gateway's pods times its request classes.
pub const MAX_SERIES: usize = 1_024;

/// Most queries of one wake source at once: half of those that engines may take.
const MAX_CONCURRENT: usize = 4;

/// What the number of a wake source means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WakeKind {
    /// Requests held now.
    Gauge,
    /// Requests that have arrived since the gateway's start.
    Counter,
}

/// What a wake source said of one workload at one moment; [`WakeMemory`] reads it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Demand {
    /// Values by a hash of their series' labels.
    series: BTreeMap<u64, f64>,
    /// The source has this metric, if perhaps not for this workload.
    exists: bool,
    /// It is the gateway itself that answered, so that what it no longer lists is zero.
    gateway_answered: bool,
    /// The source said that its answer may be partial.
    partial: bool,
}

/// A configured wake source, ready to be read.
#[derive(Debug, Clone)]
pub struct WakeSource {
    kind: WakeKind,
    place: Place,
}

#[derive(Debug, Clone)]
enum Place {
    Prometheus { client: PrometheusClient, query: Template },
    Page(PageReader),
}

impl WakeSource {
    /// A wake source that asks `prometheus` (the one that its configuration names) or scrapes with
    /// `scraper`, and waits for nobody else who uses them: a wake has 500 ms.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] or [`Error::BadAddress`] when the configuration is wrong, or names a
    /// Prometheus and none is given.
    pub fn new(
        config: &WakeSourceConfig,
        prometheus: Option<&PrometheusClient>,
        scraper: &Scraper,
    ) -> Result<WakeSource, Error> {
        let place = match config.sound_plan()? {
            WakePlan::Query(query) => {
                let client = prometheus.ok_or(Error::BadAddress)?.with_own_turns(MAX_CONCURRENT);
                Place::Prometheus { client, query }
            }
            WakePlan::Page { url, metric, matchers } => {
                let target = Target::new(&Endpoint::Url(url.into()), None, None)?;
                let scraper = scraper.with_own_turns(MAX_CONCURRENT);
                Place::Page(PageReader { scraper, target, metric, matchers })
            }
        };
        Ok(WakeSource { kind: config.kind, place })
    }

    /// What its number means.
    #[must_use]
    pub fn kind(&self) -> WakeKind {
        self.kind
    }

    /// What is asked for a workload: those with the same question are read at once. Empty of a page,
    /// and where the question cannot be asked.
    #[must_use]
    pub fn question(&self, subject: &Subject<'_>) -> String {
        match &self.place {
            Place::Prometheus { query, .. } => query.render(subject).unwrap_or_default(),
            Place::Page(_) => String::new(),
        }
    }

    /// Reads it for these workloads, in their order: a page once for all of them, a query once for
    /// all that have the same one.
    pub async fn read(&self, subjects: &[Subject<'_>]) -> Vec<Result<Demand, Arc<Error>>> {
        match &self.place {
            Place::Prometheus { client, query } => ask(client, query, subjects).await,
            Place::Page(reader) => match reader.read().await.map_err(Arc::new) {
                Ok(page) => {
                    let demand = |subject| reader.demand(&page, subject).map_err(Arc::new);
                    subjects.iter().map(demand).collect()
                }
                Err(error) => subjects.iter().map(|_| Err(Arc::clone(&error))).collect(),
            },
        }
    }
}

async fn ask(
    client: &PrometheusClient,
    template: &Template,
    subjects: &[Subject<'_>],
) -> Vec<Result<Demand, Arc<Error>>> {
    let queries: Vec<Result<String, Error>> =
        subjects.iter().map(|subject| template.render(subject)).collect();
    let mut distinct: Vec<&String> = queries.iter().flatten().collect();
    distinct.sort_unstable();
    distinct.dedup();
    let answers = join_all(distinct.into_iter().map(async |text| {
        let answer = client.instant(&Query::configured(text.clone())).await;
        (text.clone(), answer.and_then(demand).map_err(Arc::new))
    }));
    let answers: BTreeMap<String, Result<Demand, Arc<Error>>> = answers.await.into_iter().collect();
    queries
        .into_iter()
        .map(|query| {
            let answer = answers.get(&query.map_err(Arc::new)?);
            answer.cloned().expect("each query that could be written was asked")
        })
        .collect()
}

fn demand(answer: Answer) -> Result<Demand, Error> {
    let mut series = BTreeMap::new();
    for found in &answer.series {
        if let Some(newest) = found.samples.last() {
            series.insert(key(found.labels.iter()), newest.value);
        }
    }
    let exists = !series.is_empty();
    let partial = answer.warnings > 0;
    bounded(Demand { series, exists, gateway_answered: false, partial })
}

fn bounded(demand: Demand) -> Result<Demand, Error> {
    if demand.series.len() > MAX_SERIES {
        return Err(Error::TooLarge { limit: MAX_SERIES as u64, unit: "series of a wake source" });
    }
    Ok(demand)
}

/// Tells series apart across readings of one process.
fn key<K: AsRef<str>, V: AsRef<str>>(labels: impl Iterator<Item = (K, V)>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (name, value) in labels {
        (name.as_ref(), value.as_ref()).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
