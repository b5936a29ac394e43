//! Engine and GPU series of many namespaces from a Prometheus: one query for all of them.
//!
//! Must not interpret a series (see `signals`) or pass one on that is not of the asked namespaces.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::Error;
use super::prometheus::{Answer, Labels, PrometheusClient};
use super::selector::{NamespaceLabel, Namespaces};
use crate::decision::Moment;

/// Labels by which two copies of one Prometheus mark their series. Ray's engines have a `replica`
/// of their own.
const REPLICA_LABELS: [&str; 3] = ["prometheus_replica", "__replica__", "replica"];
const RAY_PREFIX: &str = "ray_";

/// The newest sample of one series.
#[derive(Debug, Clone, PartialEq)]
pub struct NewestSample {
    /// The metric's name.
    pub name: Box<str>,
    /// Its other labels, without those of Prometheus's copies.
    pub labels: Labels,
    /// The newest value that is a number; may be infinite.
    pub value: f64,
    /// When it was taken, by Prometheus's clock.
    pub at: Moment,
}

/// What one query found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// One entry a series, each of one of the asked namespaces. What is not here was not found.
    pub series: Vec<NewestSample>,
    /// Prometheus warned: series may be missing.
    pub partial: bool,
    /// Series came in copies, as of two Prometheus with one job: of each the newest was taken.
    pub copied: bool,
    /// When it answered, by the clock of whoever sent the answer; `None` if that was not told.
    pub told_at: Option<Moment>,
}

/// The series with one of these metric names (`signals` has the list), from samples of the last `window_ms` milliseconds:
/// at least two of the source's sample intervals. A series whose target is gone keeps its last
/// sample's timestamp until it leaves the window.
///
/// # Errors
///
/// Any fault of the query; [`Error::AmbiguousTenant`] when the answer has series of a namespace
/// that was not asked for.
pub async fn engine_series(
    client: &PrometheusClient,
    namespaces: &Namespaces,
    names: &[impl AsRef<str>],
    window_ms: u64,
) -> Result<Batch, Error> {
    let mut newest = Newest::default();
    newest.find(client, namespaces, NamespaceLabel::Namespace, names, window_ms).await?;
    Ok(newest.into_batch())
}

/// As [`engine_series`], for an exporter that reports on other namespaces' pods: a scrape without
/// `honorLabels` moves its word to `exported_namespace`, and `namespace` is then its own.
///
/// # Errors
///
/// As [`engine_series`].
pub async fn dcgm_series(
    client: &PrometheusClient,
    namespaces: &Namespaces,
    names: &[impl AsRef<str>],
    window_ms: u64,
) -> Result<Batch, Error> {
    let mut newest = Newest::default();
    for label in [NamespaceLabel::Exported, NamespaceLabel::NotExported] {
        newest.find(client, namespaces, label, names, window_ms).await?;
    }
    Ok(newest.into_batch())
}

#[derive(Default)]
struct Newest {
    by_labels: HashMap<Labels, (Moment, f64)>,
    partial: bool,
    copied: bool,
    told_at: Option<Moment>,
}

impl Newest {
    async fn find(
        &mut self,
        client: &PrometheusClient,
        namespaces: &Namespaces,
        label: NamespaceLabel,
        names: &[impl AsRef<str>],
        window_ms: u64,
    ) -> Result<(), Error> {
        let query = client
            .selector(namespaces, label)
            .named(names.iter().map(AsRef::as_ref))
            .over(window_ms);
        self.add(client.instant(&query).await?, namespaces, label)
    }

    fn add(
        &mut self,
        answer: Answer,
        namespaces: &Namespaces,
        label: NamespaceLabel,
    ) -> Result<(), Error> {
        self.partial |= answer.warnings > 0;
        self.told_at = answer.told_at.or(self.told_at);
        for series in answer.series {
            if !belongs(&series.labels, namespaces, label) {
                return Err(Error::AmbiguousTenant);
            }
            // A NaN is no number that could be older or newer than another.
            let Some(newest) = series.samples.iter().rev().find(|sample| !sample.value.is_nan())
            else {
                continue;
            };
            let ray =
                series.labels.get("__name__").is_some_and(|name| name.starts_with(RAY_PREFIX));
            let labels = series
                .labels
                .without(|name| REPLICA_LABELS.contains(&name) && !(ray && name == "replica"));
            match self.by_labels.entry(labels) {
                Entry::Vacant(entry) => {
                    entry.insert((newest.at, newest.value));
                }
                Entry::Occupied(mut entry) => {
                    self.copied = true;
                    if newest.at > entry.get().0 {
                        entry.insert((newest.at, newest.value));
                    }
                }
            }
        }
        Ok(())
    }

    fn into_batch(self) -> Batch {
        let Newest { by_labels, partial, copied, told_at } = self;
        let mut series: Vec<NewestSample> = by_labels
            .into_iter()
            .map(|(labels, (at, value))| NewestSample {
                name: labels.get("__name__").unwrap_or_default().into(),
                labels: labels.without(|name| name == "__name__"),
                value,
                at,
            })
            .collect();
        // The map's order is random; the same answer should read the same.
        series.sort_unstable_by(|a, b| (&a.name, &a.labels).cmp(&(&b.name, &b.labels)));
        Batch { series, partial, copied, told_at }
    }
}

/// What the query asked for is checked again: a proxy may have rewritten it.
fn belongs(labels: &Labels, namespaces: &Namespaces, label: NamespaceLabel) -> bool {
    let exported = labels.get("exported_namespace");
    let namespace = match label {
        NamespaceLabel::Namespace => labels.get("namespace"),
        NamespaceLabel::Exported => exported,
        NamespaceLabel::NotExported if exported.is_none() => labels.get("namespace"),
        NamespaceLabel::NotExported => None,
    };
    namespace.is_some_and(|name| namespaces.contains(name))
}

#[cfg(test)]
mod tests;
