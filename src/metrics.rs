//! The process's own metrics: the one list of their names, the handles that count, and the page.
//!
//! Must not keep a metric object per workload: those series are made at scrape time from the
//! published snapshots, and are gone with the workload.

mod workloads;

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, prometheus_text, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry as Families, Unit};

use crate::clock::Clock;
use crate::decision::Why;
use crate::registry::Registry;

/// The formats of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.0, for scrapers that ask for it, as Prometheus does.
    OpenMetrics,
    /// The text format 0.0.4, for everything else.
    Text,
}

impl Format {
    /// The format for an `Accept` header.
    #[must_use]
    pub fn accepted(accept: Option<&str>) -> Format {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Format::OpenMetrics,
            Some(_) | None => Format::Text,
        }
    }

    /// Its media type.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Text => prometheus_text::CONTENT_TYPE,
        }
    }
}

/// The prefix of every name.
const PREFIX: &str = "ghostscaler";

/// One family as its readers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Described {
    /// The whole name, as samples carry it (counters with `_total`).
    pub name: &'static str,
    /// `gauge`, `counter`, `histogram` or `info`.
    pub kind: &'static str,
    /// The label names.
    pub labels: &'static [&'static str],
    /// What it says, with the unit.
    pub help: &'static str,
}

/// The families of this module that are not per workload.
const PROCESS: &[Described] = &[
    Described {
        name: "ghostscaler_build_info",
        kind: "info",
        labels: &["version"],
        help: "The version of the running binary",
    },
    Described {
        name: "ghostscaler_decision_duration_seconds",
        kind: "histogram",
        labels: &[],
        help: "Time that one decision of one workload took",
    },
    Described {
        name: "ghostscaler_scrape_duration_seconds",
        kind: "histogram",
        labels: &[],
        help: "Time that one read of an engine or a query took, failures included",
    },
    Described {
        name: "ghostscaler_source_errors_total",
        kind: "counter",
        labels: &["kind"],
        help: "Reads and queries that failed, by cause",
    },
    Described {
        name: "ghostscaler_unmatched_series",
        kind: "gauge",
        labels: &[],
        help: "Engine series of Prometheus, in namespaces that are read, that name no known pod or endpoint",
    },
    Described {
        name: "ghostscaler_config_reloads_total",
        kind: "counter",
        labels: &["result"],
        help: "Reloads of the configuration: applied, or refused with the old one kept",
    },
    Described {
        name: "ghostscaler_decision_log_dropped_total",
        kind: "counter",
        labels: &[],
        help: "Lines of the decision log that were dropped: slow or full disk, or too long",
    },
    Described {
        name: "ghostscaler_state_saves_total",
        kind: "counter",
        labels: &["result"],
        help: "Saves of the learned state: done or failed",
    },
    Described {
        name: "ghostscaler_leading",
        kind: "gauge",
        labels: &[],
        help: "1 where this process decides, 0 where it answers from the leader's answers",
    },
    Described {
        name: "ghostscaler_leader_silence_seconds",
        kind: "gauge",
        labels: &[],
        help: "Time since the leader was heard last; 0 where this process decides",
    },
    Described {
        name: "ghostscaler_lease_held_by_stranger",
        kind: "gauge",
        labels: &[],
        help: "1 while the Lease is held by somebody who is no replica, so that nobody decides",
    },
];

/// Every family of this module, for the README's table. The families of the RPCs are the gRPC
/// part's own.
pub fn described() -> impl Iterator<Item = Described> {
    PROCESS.iter().copied().chain(workloads::DESCRIBED.iter().copied())
}

fn help(name: &str) -> &'static str {
    described().find(|family| family.name == name).map_or("", |family| family.help)
}

/// The handles that the parts of the process count with; cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    decision: Histogram,
    scrape: Histogram,
    source_errors: Family<Kind, Counter>,
    unmatched_series: Gauge,
    config_reloads: Family<Outcome, Counter>,
    decision_log_dropped: Counter,
    state_saves: Family<Outcome, Counter>,
    leading: Gauge,
    leader_silence: Gauge<f64, AtomicU64>,
    lease_held_by_stranger: Gauge,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    result: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

impl Default for Metrics {
    /// All at zero, and on no page yet.
    fn default() -> Metrics {
        let metrics = Metrics {
            // 1 µs to 65 ms: a decision should take 2 µs.
            decision: Histogram::new(exponential_buckets(1e-6, 4.0, 9)),
            // 1 ms to 16 s: a scrape takes a few milliseconds, its deadline is seconds.
            scrape: Histogram::new(exponential_buckets(1e-3, 2.0, 15)),
            source_errors: Family::default(),
            unmatched_series: Gauge::default(),
            config_reloads: Family::default(),
            decision_log_dropped: Counter::default(),
            state_saves: Family::default(),
            leading: Gauge::default(),
            leader_silence: Gauge::default(),
            lease_held_by_stranger: Gauge::default(),
        };
        metrics.leading.set(1);
        // From the first scrape on, so that a rate over the first failure is not lost.
        for result in ["applied", "refused"] {
            drop(metrics.config_reloads.get_or_create(&Outcome { result }));
        }
        for result in ["done", "failed"] {
            drop(metrics.state_saves.get_or_create(&Outcome { result }));
        }
        metrics
    }
}

impl Metrics {
    /// One decision was made.
    pub fn decided(&self, took: Duration) {
        self.decision.observe(took.as_secs_f64());
    }

    /// One read of an engine, or one query, ended; `failed` says how, if it did.
    pub fn scraped(&self, took: Duration, failed: Option<Why>) {
        self.scrape.observe(took.as_secs_f64());
        if let Some(why) = failed {
            self.failed(why);
        }
    }

    /// One read of an engine, or one query, failed, also where none was tried.
    pub fn failed(&self, why: Why) {
        self.source_errors.get_or_create(&Kind { kind: why.label() }).inc();
    }

    /// This many engine series of Prometheus name no pod or endpoint of a workload.
    pub fn unmatched_series(&self, count: usize) {
        self.unmatched_series.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// The same, as it was said last.
    #[cfg(test)]
    pub(crate) fn n_unmatched_series(&self) -> i64 {
        self.unmatched_series.get()
    }

    /// A reload of the configuration was applied or refused.
    pub fn config_reloaded(&self, applied: bool) {
        let result = if applied { "applied" } else { "refused" };
        self.config_reloads.get_or_create(&Outcome { result }).inc();
    }

    /// A save of the learned state was done or failed.
    pub fn state_saved(&self, done: bool) {
        let result = if done { "done" } else { "failed" };
        self.state_saves.get_or_create(&Outcome { result }).inc();
    }

    /// This process decides.
    pub fn leads(&self) {
        self.leading.set(1);
        self.leader_silence.set(0.0);
        self.lease_is_strangers(false);
    }

    /// Whether the Lease is held by somebody who is no replica.
    pub fn lease_is_strangers(&self, is_it: bool) {
        self.lease_held_by_stranger.set(i64::from(is_it));
    }

    /// The same, as it was said last.
    #[cfg(test)]
    pub(crate) fn is_lease_strangers(&self) -> bool {
        self.lease_held_by_stranger.get() == 1
    }

    /// Another decides, heard this long ago.
    pub fn follows(&self, silence: Duration) {
        self.leading.set(0);
        self.leader_silence.set(silence.as_secs_f64());
    }

    /// A line of the decision log was dropped.
    pub fn line_dropped(&self) {
        self.decision_log_dropped.inc();
    }

    /// Lines of the decision log that were dropped so far.
    #[cfg(test)]
    pub(crate) fn lines_dropped(&self) -> u64 {
        self.decision_log_dropped.get()
    }

    fn register(&self, families: &mut Families) {
        let build = Info::new(Build { version: env!("CARGO_PKG_VERSION") });
        families.register("build", help("ghostscaler_build_info"), build);
        families.register_with_unit(
            "decision_duration",
            help("ghostscaler_decision_duration_seconds"),
            Unit::Seconds,
            self.decision.clone(),
        );
        families.register_with_unit(
            "scrape_duration",
            help("ghostscaler_scrape_duration_seconds"),
            Unit::Seconds,
            self.scrape.clone(),
        );
        let source_errors = self.source_errors.clone();
        families.register("source_errors", help("ghostscaler_source_errors_total"), source_errors);
        families.register(
            "unmatched_series",
            help("ghostscaler_unmatched_series"),
            self.unmatched_series.clone(),
        );
        families.register(
            "config_reloads",
            help("ghostscaler_config_reloads_total"),
            self.config_reloads.clone(),
        );
        families.register(
            "decision_log_dropped",
            help("ghostscaler_decision_log_dropped_total"),
            self.decision_log_dropped.clone(),
        );
        let state_saves = self.state_saves.clone();
        families.register("state_saves", help("ghostscaler_state_saves_total"), state_saves);
        families.register("leading", help("ghostscaler_leading"), self.leading.clone());
        families.register_with_unit(
            "leader_silence",
            help("ghostscaler_leader_silence_seconds"),
            Unit::Seconds,
            self.leader_silence.clone(),
        );
        families.register(
            "lease_held_by_stranger",
            help("ghostscaler_lease_held_by_stranger"),
            self.lease_held_by_stranger.clone(),
        );
    }
}

/// The page of `/metrics`.
#[derive(Debug)]
pub struct Page {
    families: Families,
}

impl Page {
    /// A page of the tracked workloads and of what `metrics` counts.
    #[must_use]
    pub fn new(metrics: &Metrics, registry: Registry, clock: Clock) -> Page {
        let mut families = Families::with_prefix(PREFIX);
        metrics.register(&mut families);
        families.register_collector(Box::new(workloads::Collector::new(registry, clock)));
        Page { families }
    }

    /// Where other parts register families of their own, under the common prefix.
    pub fn families_mut(&mut self) -> &mut Families {
        &mut self.families
    }

    /// The page as text.
    ///
    /// # Errors
    ///
    /// When a family cannot be encoded, which no input can bring about.
    pub fn render(&self, format: Format) -> Result<String, fmt::Error> {
        let mut page = String::new();
        match format {
            Format::OpenMetrics => text::encode(&mut page, &self.families)?,
            Format::Text => prometheus_text::encode(&mut page, &self.families)?,
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests;
