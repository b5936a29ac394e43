//! The file that describes a fleet: nodes, GPUs, who holds them, what they do, what goes wrong.
//!
//! Must not interpret it: [`Exporter`](super::Exporter) does. What it accepts makes an exporter.

mod check;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use crate::duration;
use crate::engine::{Faults, Time};
use crate::files::{self, MAX_DOCUMENT_BYTES};
use crate::yaml;

/// A fleet of nodes, each with an exporter of its own.
#[derive(Debug, Clone, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// How every exporter writes.
    #[serde(default)]
    pub style: Style,
    /// The nodes, 1 to 1,000.
    pub nodes: Vec<Node>,
}

/// What differs between versions and flags of the exporter.
#[derive(Debug, Clone, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Style {
    /// How often values are collected. Default: 30 s, the exporter's.
    pub interval: Span,
    /// The metrics' names. Default: classic.
    pub names: Names,
    /// The labels that say which pod holds a device. Default: plain.
    pub pods: PodLabels,
    /// The label with the node's name. Default: `Hostname`.
    pub host: HostLabel,
    /// What a device with several pods looks like. Default: one row.
    pub shared: SharedRows,
    /// Whether SM_ACTIVE is exported, as it is not by default in the real exporter. Default: true.
    pub sm_active: bool,
}

impl Default for Style {
    fn default() -> Style {
        Style {
            interval: Span(30_000),
            names: Names::default(),
            pods: PodLabels::default(),
            host: HostLabel::default(),
            shared: SharedRows::default(),
            sm_active: true,
        }
    }
}

/// The names of metrics.
#[derive(Debug, Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Names {
    /// `DCGM_FI_DEV_GPU_UTIL`: up to DCGM 4.5.
    #[default]
    Classic,
    /// `DCGM_FI_DEV_GPU_UTIL_RATIO`: those of DCGM 4.6.
    Renamed,
    /// `dcgm_gpu_utilization`: `--use-old-namespace` with the counters of version 1, which has no
    /// profiling counters; the labels are `uuid`, `pod_name` and so on.
    Old,
}

/// The labels that say which pod holds a device.
#[derive(Debug, Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum PodLabels {
    /// `pod`, `namespace`, `container`: the exporter's own page.
    #[default]
    Plain,
    /// `exported_pod` and so on beside the exporter's own `pod`: what a Prometheus that does not
    /// honour labels makes of the page.
    Exported,
    /// None: the exporter without `--kubernetes`.
    None,
}

/// The label with the node's name.
#[derive(Debug, Clone, Copy, Default, Deserialize, PartialEq, Eq)]
pub enum HostLabel {
    /// `Hostname`.
    #[default]
    Hostname,
    /// `hostname`, as versions after May 2026 write it.
    #[serde(rename = "hostname")]
    Lowercase,
    /// None.
    #[serde(rename = "none")]
    None,
}

/// The rows of a device with several pods.
#[derive(Debug, Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum SharedRows {
    /// One, which names another of them at each collection.
    #[default]
    One,
    /// A copy for each of them, with `vgpu`: `KUBERNETES_VIRTUAL_GPUS` before 4.5.3.
    Copies,
    /// The device's own without a pod, and beside it one of GPU_UTIL and FB_USED for each of them:
    /// that flag from 4.5.3 on.
    Processes,
}

/// A node with its exporter.
#[derive(Debug, Clone, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its name, unique.
    pub name: String,
    /// Its profiling module. Default: on.
    #[serde(default)]
    pub profiling: Profiling,
    /// When its page is empty, as while the exporter reloads.
    #[serde(default)]
    pub gaps: Vec<Gap>,
    /// Its GPUs, 1 to 64.
    pub gpus: Vec<Gpu>,
}

/// The state of the profiling module.
#[derive(Debug, Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Profiling {
    /// As it should be.
    #[default]
    On,
    /// No `PROF_` series: no SYS_ADMIN, or another list of counters.
    Off,
    /// All of them are 0 whatever happens, a known fault.
    Zero,
}

/// A time without values.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// When it begins, since the start.
    pub from: Span,
    /// How long it is.
    #[serde(rename = "for")]
    pub lasts: Span,
}

impl Gap {
    /// Whether it is now.
    pub(super) fn holds(&self, now: Time) -> bool {
        self.from.time() <= now && now < self.from.time().plus_ps(self.lasts.time().0)
    }
}

/// A GPU, or several that are alike and held by the same pods.
#[derive(Debug, Clone, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Which: a short name such as `h100-80gb`, or NVML's.
    pub model: String,
    /// How many. Default: 1.
    #[serde(default = "one")]
    pub count: usize,
    /// How pods share it, where there is more than one.
    #[serde(default)]
    pub sharing: Option<Sharing>,
    /// Who holds it: nobody, one, or several that share it.
    #[serde(default)]
    pub pods: Vec<Pod>,
    /// Its MIG instances, in place of `pods`.
    #[serde(default)]
    pub mig: Vec<Instance>,
    /// When it has no rows.
    #[serde(default)]
    pub gaps: Vec<Gap>,
}

/// How pods share a GPU.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Sharing {
    /// By which means.
    pub by: Means,
    /// For how many pods there is room, at most 64.
    pub replicas: usize,
}

/// The means of sharing.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Means {
    /// In turn: the times busy add up.
    TimeSlicing,
    /// At the same time: the device is idle only when all are, each by itself.
    Mps,
}

/// A MIG instance.
#[derive(Debug, Clone, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// `GPU_I_PROFILE`, such as `1g.5gb`.
    pub profile: String,
    /// `GPU_I_ID`: an id, not an index.
    pub id: u16,
    /// Who holds it.
    #[serde(default)]
    pub pods: Vec<Pod>,
}

/// A pod that holds a device.
#[derive(Debug, Clone, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Pod {
    /// Its namespace. Without namespace and name it is a process that no pod accounts for.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Its name.
    #[serde(default)]
    pub name: Option<String>,
    /// Its container. Default: `main`.
    #[serde(default)]
    pub container: Option<String>,
    /// Memory that it holds, MiB. Default: its share of 0.9 of the device's, from its start on: an
    /// engine allocates weights and KV cache up front.
    #[serde(default)]
    pub fb_mib: Option<f64>,
    /// What it does. Default: nothing.
    #[serde(default)]
    pub load: Option<Load>,
    /// When it ends, since the start. Default: never.
    #[serde(default)]
    pub ends: Option<Span>,
    /// How long its labels stay after its end. Default: not at all.
    #[serde(default)]
    pub label_lingers: Span,
    /// Whether the activity counters stay at their last value after its end. Default: false.
    #[serde(default)]
    pub latched: bool,
}

/// What a pod's process does.
#[derive(Debug, Clone, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Busy for a constant share of the time, 0 to 1.
    Busy(f64),
    /// Busy for a share of the time that rises and falls.
    Sine(Sine),
    /// Busy for shares of the time that hold from a moment on: `[[0s, 0.1], [10m, 0.8]]`.
    Steps(Vec<(Span, f64)>),
    /// As busy as an engine whose metrics are read each second.
    Engine(EngineLoad),
}

/// A share of the time busy that rises and falls; below 0 is 0, above 1 is 1.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Sine {
    /// At the start, and in the mean.
    pub mean: f64,
    /// How far it goes from there.
    pub amplitude: f64,
    /// Between two peaks.
    pub period: Span,
}

/// An engine to read.
#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct EngineLoad {
    /// Its metrics page, `http://HOST:PORT/metrics`.
    pub url: String,
    /// The profile that says what its work takes: a preset or a file.
    pub profile: String,
}

/// A duration as people write it, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub u64);

impl Span {
    /// That long after the origin.
    #[must_use]
    pub fn time(self) -> Time {
        Time::from_millis(self.0)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        struct AsWritten;

        impl Visitor<'_> for AsWritten {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as 90, 90s, 5m or 1h")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Span, E> {
                duration::parse_millis(text).map(Span).map_err(E::custom)
            }
        }

        // A bare number is read as its text too.
        deserializer.deserialize_str(AsWritten)
    }
}

impl Fleet {
    /// Reads the file of a fleet.
    ///
    /// # Errors
    ///
    /// When it cannot be read, is no fleet, or has values that make none; all of them are named.
    pub fn load(path: &str) -> Result<Fleet, Error> {
        let text = files::read_text(Path::new(path), MAX_DOCUMENT_BYTES)
            .map_err(|source| Error::Read { path: path.into(), source })?;
        Fleet::parse(path, &text)
    }

    /// Reads a fleet from YAML. `origin` names the text in errors.
    ///
    /// # Errors
    ///
    /// As [`Fleet::load`].
    pub fn parse(origin: &str, text: &str) -> Result<Fleet, Error> {
        let fleet: Fleet = serde_saphyr::from_str(text)
            .map_err(|source| Error::Parse { origin: origin.to_owned(), source: source.into() })?;
        let faults = check::faults_of(&fleet);
        if faults.0.is_empty() {
            return Ok(fleet);
        }
        Err(Error::Invalid { origin: origin.to_owned(), faults })
    }
}

fn one() -> usize {
    1
}

/// Why there is no fleet.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("failed to read fleet `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The text is not the YAML of a fleet.
    #[error("fleet `{origin}` cannot be parsed")]
    Parse {
        /// The file.
        origin: String,
        /// Where and why; an unknown field is named here.
        source: yaml::Error,
    },
    /// Some values make no fleet.
    #[error("fleet `{origin}`: {faults}")]
    Invalid {
        /// The file.
        origin: String,
        /// Which values, and what was expected.
        faults: Faults,
    },
}

#[cfg(test)]
mod tests;
