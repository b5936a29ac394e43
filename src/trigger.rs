//! KEDA's trigger metadata (or the same keys of the configuration) into a validated [`Policy`].
//!
//! Pure: collects every fault at once, reads nothing but its argument.

use std::collections::BTreeSet;

pub use loadgen::series::EngineFamily;

use crate::decision::Spec;
use crate::inventory::{Counted, Workload};
use crate::schedule::WarmSchedule;

mod by_hand;
mod faults;
mod fields;
mod remarks;
#[cfg(test)]
mod tests;

pub use by_hand::ByHand;
pub use faults::{Fault, Faults};
pub use fields::{FIELDS, Field};
pub use remarks::Remark;

/// The most keys that one trigger may have: more than twice the known ones with KEDA's own.
pub const MAX_KEYS: usize = 64;

/// The most triggers of one workload, those included that an edit has just replaced: two triggers
/// and a day of edits.
pub const MAX_TRIGGERS: usize = 16;

/// The most bytes that keys and values of one trigger, or of all listed ones of a workload, may have
/// together: a dozen keys with a long selector stay below 2 KiB, and 10,000 workloads at the limit
/// would be 160 MiB, of which the API server would have to hold as much.
pub const MAX_BYTES: usize = 16 * 1024;

/// Keys that KEDA itself reads or that its documentation names; allowed and without meaning here.
///
/// Each may also come with the suffix [`FROM_ENV`].
pub const KEDA_KEYS: [&str; 7] = [
    "scalerAddress",
    "enableTLS",
    "unsafeSsl",
    "caCert",
    "tlsClientCert",
    "tlsClientKey",
    "tlsCertFile",
];

/// The suffix with which KEDA takes a key's value from the scale target's environment. The key
/// arrives with the suffix and the value resolved; an unresolved one does not arrive at all.
pub const FROM_ENV: &str = "FromEnv";

/// Parses one trigger's metadata.
///
/// # Errors
///
/// Every fault of the metadata at once, in the order of the keys.
pub fn parse<'a>(metadata: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Policy, Faults> {
    let mut entries = Vec::new();
    let mut bytes = 0_usize;
    for (key, value) in metadata {
        bytes = bytes.saturating_add(key.len()).saturating_add(value.len());
        entries.push((key, value));
        if entries.len() > MAX_KEYS || bytes > MAX_BYTES {
            return Err(Faults::new(vec![Fault::oversized()]));
        }
    }
    // A map's order is random; the text of the faults shall not be.
    entries.sort_unstable();

    let mut policy = Policy::default();
    let mut given = BTreeSet::new();
    let mut faults = Vec::new();
    for (key, value) in entries {
        if is_keda_key(key) {
            continue;
        }
        let stem = key.strip_suffix(FROM_ENV).unwrap_or(key);
        let Some(field) = FIELDS.iter().find(|field| field.key == stem) else {
            faults.push(Fault::unknown(key));
            continue;
        };
        if !given.insert(field.key) {
            faults.push(Fault::twice(field.key));
        } else if !field.set(&mut policy, value.trim()) {
            // What came from an environment may be a secret.
            let shown = (stem == key).then_some(value);
            faults.push(Fault::invalid(key, shown, field));
        }
    }
    if faults.is_empty() { Ok(policy) } else { Err(Faults::new(faults)) }
}

/// The name that is most like a given one; `None` if there are no names.
pub(crate) fn nearest<'a>(given: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Longer than every known key. Cut before comparing: the work grows with both lengths.
    const MAX_COMPARED: usize = 40;
    let cut = |text: &str| text.chars().take(MAX_COMPARED).collect::<String>().to_ascii_lowercase();
    let given = cut(given);
    // Relative to the length, so that a long name cut short is not taken for a short one.
    let likeness = |name: &str| strsim::normalized_levenshtein(&given, &cut(name));
    names.max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
}

/// Whether a key is KEDA's own, in either form.
#[must_use]
pub fn is_keda_key(key: &str) -> bool {
    KEDA_KEYS.contains(&key.strip_suffix(FROM_ENV).unwrap_or(key))
}

/// What a trigger's metadata says, validated. Bounds come from the ScaledObject, not from here.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policy {
    /// `engine`: the engine's family, or `None` for recognition by the series present.
    pub engine: Option<EngineFamily>,
    /// `source`: where engine metrics come from, or `None` for [`Policy::source`]'s choice.
    pub source: Option<SourceKind>,
    /// `podSelector`: label selector of the pods to read, instead of the target's own.
    pub pod_selector: Option<String>,
    /// `metricsPort`: port of the pods' metrics, 1..65535.
    pub metrics_port: Option<u16>,
    /// `metricsPath`: path of the pods' metrics, starting with `/`.
    pub metrics_path: Option<String>,
    /// `modelName`: only series of this model count.
    pub model_name: Option<String>,
    /// `wakeSource`: a name from the process's configuration.
    pub wake_source: Option<String>,
    /// `warmSchedule`.
    pub warm_schedule: Option<WarmSchedule>,
    /// `override`.
    pub by_hand: Option<ByHand>,
    /// What the decision is told as it stands here: `sloTtft`, `sloTpot`, `targetInFlight`,
    /// `gpuCeilingPercent`, `ghostHold`, `zeroAfter`, `profile`, `gpusPerReplica`, `mode`.
    /// [`Policy::spec`] adds the workload's own.
    pub spec: Spec,
}

/// What the process's configuration adds to a policy.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The names of the configured wake sources.
    pub wake_sources: &'a BTreeSet<String>,
    /// Whether there is a Prometheus to read engines from.
    pub has_prometheus: bool,
}

impl Policy {
    /// Where this workload's engine metrics are read. Where the trigger does not say: directly,
    /// if the Kubernetes API or the configuration tells where its engines are; else from Prometheus.
    #[must_use]
    pub fn source(&self, workload: &Workload) -> SourceKind {
        let has_address = match workload.counted {
            Counted::ByKubernetes => true,
            Counted::ByAnswers => workload.members.iter().any(|member| member.endpoint.is_some()),
        };
        let default = if has_address { SourceKind::Pods } else { SourceKind::Prometheus };
        self.source.unwrap_or(default)
    }

    /// The decision's input: this policy with the workload's bounds.
    #[must_use]
    pub fn spec(&self, workload: &Workload, context: Context<'_>) -> Spec {
        Spec {
            min: workload.min,
            max: workload.max.max(workload.min).max(1),
            has_wake_source: self
                .wake_source
                .as_ref()
                .is_some_and(|name| context.wake_sources.contains(name)),
            gpus_per_replica: self.spec.gpus_per_replica.or(workload.gpus_per_replica),
            fallback_replicas: workload.fallback_replicas.filter(|replicas| *replicas >= 1),
            hpa_tolerance: workload.kubernetes.hpa.as_ref().map(|hpa| hpa.tolerance(true)),
            tick_ms: self.source(workload).tick_ms(),
            ..self.spec.clone()
        }
    }
}

/// Where engine metrics are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// Direct scrapes of the pods or endpoints.
    Pods,
    /// A Prometheus of the process's configuration.
    Prometheus,
}

impl SourceKind {
    /// Milliseconds between two reads: pods are asked directly, a Prometheus scrapes every 15 s in
    /// most installations and has nothing newer in between.
    #[must_use]
    pub fn tick_ms(self) -> u64 {
        match self {
            SourceKind::Pods => 5_000,
            SourceKind::Prometheus => 15_000,
        }
    }
}
