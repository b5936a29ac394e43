//! The series of the workloads, made at scrape time from the published snapshots.
//!
//! Must not keep anything between scrapes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::Described;
use crate::clock::Clock;
use crate::decision::{Answer, Inputs, Moment, Reading, Why};
use crate::inventory::WorkloadKey;
use crate::registry::{Caller, Published, Registry, Rpc, Tracker, precedence};
use crate::web::words;

const WORKLOAD: &[&str] = &["namespace", "name"];

/// The families, in the order of the page.
pub(super) const DESCRIBED: &[Described] = &[
    described("ghostscaler_workloads", &[], "Triggers that are tracked"),
    gauge("ghostscaler_workload_wanted_replicas", "Replicas that the rules want"),
    gauge(
        "ghostscaler_workload_answered_replicas",
        "Replicas that KEDA is answered; absent while the answer is an error",
    ),
    gauge(
        "ghostscaler_workload_active",
        "KEDA's IsActive, 0 or 1; absent while the answer is an error",
    ),
    gauge("ghostscaler_workload_spec_replicas", "Replicas ordered"),
    gauge("ghostscaler_workload_ready_replicas", "Replicas serving"),
    gauge("ghostscaler_workload_starting_replicas", "Replicas on their way"),
    gauge("ghostscaler_workload_waiting_requests", "Requests waiting, over all engines"),
    gauge("ghostscaler_workload_running_requests", "Requests running, over all engines"),
    gauge(
        "ghostscaler_workload_work",
        "Work demanded, in replica-seconds of engine time per second",
    ),
    gauge(
        "ghostscaler_workload_utilization_target_ratio",
        "Utilisation that a replica can carry inside the SLO, 0 to 1",
    ),
    gauge("ghostscaler_workload_headroom_replicas", "Headroom kept for growth within a cold start"),
    gauge("ghostscaler_workload_kv_usage_ratio", "KV-cache use of the fullest engine, 0 to 1"),
    gauge("ghostscaler_workload_gpu_busy_ratio", "GPU time busy, 0 to 1"),
    gauge("ghostscaler_workload_ghost_score", "Ghost score of one replica fewer, 0 to 100"),
    gauge("ghostscaler_workload_decision_age_seconds", "Time since the last decision"),
    gauge("ghostscaler_workload_input_age_seconds", "Age of the oldest fresh sample it stands on"),
    described(
        "ghostscaler_workload_health",
        &["namespace", "name", "state"],
        "1 for the state that holds: ok, starting, degraded or not_yet_observed",
    ),
    described(
        "ghostscaler_workload_binding_rule",
        &["namespace", "name", "rule"],
        "1 for the rule that set the wanted count",
    ),
    described(
        "ghostscaler_workload_asked_age_seconds",
        &["namespace", "name", "rpc", "caller"],
        "Time since KEDA last asked, by method and caller (poll or hpa)",
    ),
    gauge(
        "ghostscaler_workload_refused_triggers",
        "Triggers, or values of one that KEDA brought, that are refused; absent where there are none",
    ),
    described(
        "ghostscaler_engine_readings",
        &["state", "why"],
        "Engine readings by state (fresh, stale or missing) and cause",
    ),
];

const fn gauge(name: &'static str, help: &'static str) -> Described {
    described(name, WORKLOAD, help)
}

const fn described(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Described {
    Described { name, kind: "gauge", labels, help }
}

#[derive(Debug)]
pub(super) struct Collector {
    registry: Registry,
    clock: Clock,
}

/// One workload at scrape time.
struct Row {
    tracker: Arc<Tracker>,
    published: Arc<Published>,
}

impl Collector {
    pub(super) fn new(registry: Registry, clock: Clock) -> Collector {
        Collector { registry, clock }
    }

    /// One row a workload, of the trigger that counts for it; series of several would collide.
    fn rows(&self) -> Vec<Row> {
        let mut rows: BTreeMap<WorkloadKey, Row> = BTreeMap::new();
        for tracker in self.registry.trackers().iter() {
            let row =
                Row { tracker: Arc::clone(tracker), published: tracker.published.load_full() };
            match rows.entry(tracker.key.workload.clone()) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(row);
                }
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    let rank = |row: &Row| precedence(&row.tracker, &row.published);
                    if rank(&row) > rank(entry.get()) {
                        entry.insert(row);
                    }
                }
            }
        }
        rows.into_values().collect()
    }
}

impl Row {
    fn answered(&self) -> Option<(u32, bool)> {
        match self.published.answer {
            Answer::Value { want, active } => Some((want, active)),
            Answer::Unavailable { .. } => None,
        }
    }

    fn inputs(&self) -> Option<&Inputs> {
        self.published.decision.as_deref().map(|decision| &decision.inputs)
    }
}

/// The value of one family for one workload.
type Value = fn(&Row, Moment) -> Option<f64>;

/// The families with one value a workload, without the common prefix and the unit; the rest of
/// [`DESCRIBED`] has labels of its own.
const VALUES: &[(&str, Option<Unit>, Value)] = &[
    ("workload_wanted_replicas", None, |row, _| {
        row.published.decision.as_deref()?.wanted().map(f64::from)
    }),
    ("workload_answered_replicas", None, |row, _| row.answered().map(|(want, _)| f64::from(want))),
    ("workload_active", None, |row, _| {
        row.answered().map(|(_, active)| f64::from(u8::from(active)))
    }),
    ("workload_spec_replicas", None, |row, _| row.inputs()?.spec.map(f64::from)),
    ("workload_ready_replicas", None, |row, _| Some(f64::from(row.inputs()?.ready))),
    ("workload_starting_replicas", None, |row, _| Some(f64::from(row.inputs()?.starting))),
    ("workload_waiting_requests", None, |row, _| row.inputs()?.waiting),
    ("workload_running_requests", None, |row, _| row.inputs()?.running),
    ("workload_work", None, |row, _| row.inputs()?.work),
    ("workload_utilization_target_ratio", None, |row, _| row.inputs()?.rho),
    ("workload_headroom_replicas", None, |row, _| row.inputs()?.headroom),
    ("workload_kv_usage_ratio", None, |row, _| row.inputs()?.kv_usage),
    ("workload_gpu_busy_ratio", None, |row, _| row.inputs()?.gpu_busy),
    ("workload_ghost_score", None, |row, _| row.inputs()?.ghost_score),
    ("workload_decision_age", Some(Unit::Seconds), |row, now| {
        Some(now.secs_since(row.published.at))
    }),
    ("workload_input_age", Some(Unit::Seconds), |row, _| row.inputs()?.age_ms.map(seconds)),
];

impl prometheus_client::collector::Collector for Collector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (rows, now) = (self.rows(), self.clock.now());
        let n_tracked = self.registry.trackers().len();
        let count = u32::try_from(n_tracked).unwrap_or(u32::MAX);
        family(&mut encoder, "workloads", None)?.encode_gauge(&count)?;
        for (name, unit, value) in VALUES {
            let mut metric = family(&mut encoder, name, unit.as_ref())?;
            for row in &rows {
                if let Some(value) = value(row, now) {
                    row.sample(&mut metric, &[], value)?;
                }
            }
        }
        let mut metric = family(&mut encoder, "workload_health", None)?;
        for row in &rows {
            let health = row.published.decision.as_deref().map(|decision| decision.health);
            let state = health.map_or("not_yet_observed", words::health_label);
            row.sample(&mut metric, &[("state", state)], 1.0)?;
        }
        let mut metric = family(&mut encoder, "workload_binding_rule", None)?;
        for row in &rows {
            if let Some(decision) = &row.published.decision {
                row.sample(&mut metric, &[("rule", decision.binding.label())], 1.0)?;
            }
        }
        let mut metric = family(&mut encoder, "workload_asked_age", Some(&Unit::Seconds))?;
        for row in &rows {
            for rpc in Rpc::ALL {
                for caller in Caller::ALL {
                    if let Some(age_ms) = row.tracker.asked(rpc, caller) {
                        let labels = [("rpc", rpc.label()), ("caller", caller.label())];
                        row.sample(&mut metric, &labels, seconds(age_ms))?;
                    }
                }
            }
        }
        let mut metric = family(&mut encoder, "workload_refused_triggers", None)?;
        for (key, faults) in self.registry.refused() {
            let count = u32::try_from(faults.len()).unwrap_or(u32::MAX);
            let labels = vec![("namespace", &*key.namespace), ("name", &*key.name)];
            metric.encode_family(&labels)?.encode_gauge(&count)?;
        }
        readings(&mut encoder, &rows)
    }
}

impl Row {
    fn sample(
        &self,
        family: &mut MetricEncoder<'_>,
        more: &[(&'static str, &'static str)],
        value: f64,
    ) -> fmt::Result {
        let key = &self.tracker.key.workload;
        let mut labels = vec![("namespace", &*key.namespace), ("name", &*key.name)];
        labels.extend_from_slice(more);
        family.encode_family(&labels)?.encode_gauge(&value)
    }
}

fn family<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    unit: Option<&'a Unit>,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    let whole = match unit {
        None => format!("{}_{name}", super::PREFIX),
        Some(unit) => format!("{}_{name}_{}", super::PREFIX, unit.as_str()),
    };
    // The full stop is what the crate puts after the help of registered families.
    let help = format!("{}.", super::help(&whole));
    encoder.encode_descriptor(name, &help, unit, MetricType::Gauge)
}

/// Counts over all engines, so that the cardinality is that of the closed list of causes.
fn readings(encoder: &mut DescriptorEncoder<'_>, rows: &[Row]) -> fmt::Result {
    let mut counts: BTreeMap<(&'static str, &'static str), u32> = BTreeMap::new();
    for row in rows {
        let observed = row.tracker.observed.load();
        for engine in observed.iter().flat_map(|observation| &observation.engines) {
            let state = match engine.reading {
                Reading::Fresh { .. } => "fresh",
                Reading::Stale { .. } => "stale",
                Reading::Missing { .. } => "missing",
            };
            let why = engine.reading.why().map_or("", Why::label);
            *counts.entry((state, why)).or_default() += 1;
        }
    }
    let mut metric = family(encoder, "engine_readings", None)?;
    for ((state, why), count) in counts {
        metric.encode_family(&vec![("state", state), ("why", why)])?.encode_gauge(&count)?;
    }
    Ok(())
}

/// Exact below 2^53 ms, which is 285,000 years.
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1_000.0
}
