//! Rows to devices: one value a device and field, whatever the number of copies.
//!
//! Must not sum or average rows: three copies of a device at 71 % are one device at 71 %.

use std::collections::{BTreeMap, BTreeSet};

use super::names::{self, Field};
use super::{Device, DeviceKey, Devices, Error, PodRef};
use crate::decision::Moment;

/// Rows this much older than the newest of their device are another scrape's: the exporter's
/// default collection interval.
const ONE_SCRAPE_MS: u64 = 30_000;

/// GPU_UTIL above this proves work, 0..1.
const WORKING_UTIL: f64 = 0.05;

/// The rows of one exporter's page, or of every DCGM series of one Prometheus.
#[derive(Debug, Default)]
pub struct DcgmFold {
    rows: BTreeMap<(DeviceKey, Field), Vec<Row>>,
    owners: BTreeMap<DeviceKey, BTreeMap<PodRef, Moment>>,
    hosts: BTreeMap<DeviceKey, Box<str>>,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    at: Moment,
    value: f64,
    /// A pod is named on it.
    labelled: bool,
}

impl DcgmFold {
    /// Adds one series with the time of its sample. Series that mean nothing here, and values that
    /// are no measurement, are passed over.
    pub fn add<K, V>(
        &mut self,
        name: &str,
        labels: impl Iterator<Item = (K, V)>,
        value: f64,
        at: Moment,
    ) where
        K: AsRef<str>,
        V: AsRef<str>,
    {
        if let Some(field) = names::field_of(name.as_bytes()) {
            self.take(field, labels, value, at);
        }
    }

    /// Adds a row of a known field.
    pub(super) fn take<K, V>(
        &mut self,
        field: Field,
        labels: impl Iterator<Item = (K, V)>,
        value: f64,
        at: Moment,
    ) where
        K: AsRef<str>,
        V: AsRef<str>,
    {
        let Some((key, host, owner)) = RowLabels::read(labels).identify() else {
            return;
        };
        if let Some(host) = host {
            self.hosts.insert(key.clone(), host);
        }
        let labelled = owner.is_some();
        if let Some(owner) = owner {
            let seen = self.owners.entry(key.clone()).or_default().entry(owner).or_insert(at);
            *seen = at.max(*seen);
        }
        // DCGM cannot measure GPU_UTIL for a MIG instance; some builds say 0 all the same.
        if key.instance.is_some() && field == Field::GpuUtil {
            return;
        }
        let key = match field {
            // A MIG instance repeats its board's power.
            Field::Power => DeviceKey { instance: None, ..key },
            Field::GpuUtil
            | Field::GrEngine
            | Field::Sm
            | Field::Tensor
            | Field::Dram
            | Field::FbUsed => key,
        };
        if let Some(value) = names::believed(field, value) {
            self.rows.entry((key, field)).or_default().push(Row { at, value, labelled });
        }
    }

    /// The devices of all series added.
    ///
    /// # Errors
    ///
    /// When there was none.
    pub fn finish(self) -> Result<Devices, Error> {
        let mut devices = Devices::default();
        for ((key, field), rows) in &self.rows {
            let Some((at, value)) = device_value(rows) else {
                continue;
            };
            if *field == Field::Power {
                devices.board_power_w.insert(key.uuid.clone(), value);
                continue;
            }
            let device = devices.by_key.entry(key.clone()).or_default();
            device.at = device.at.max(at);
            device.sampled_at = device.at;
            if let Some(slot) = slot(device, *field) {
                *slot = Some(value);
            }
        }
        for (key, device) in &mut devices.by_key {
            device.host = self.hosts.get(key).cloned();
            let owners = self.owners.get(key).into_iter().flatten();
            device.owners = owners
                .filter(|(_, seen)| device.at.millis_since(**seen) <= ONE_SCRAPE_MS)
                .map(|(owner, _)| owner.clone())
                .collect();
        }
        quarantine_profiling(&mut devices);
        let nothing = devices.by_key.is_empty() && devices.board_power_w.is_empty();
        if nothing { Err(Error::NoKnownSeries) } else { Ok(devices) }
    }
}

/// The newest scrape's value: the row of the device itself where there is one (per-process mode
/// adds rows for pods, which can all be 0 beside a busy device), else the largest copy, which
/// never invents idleness.
fn device_value(rows: &[Row]) -> Option<(Moment, f64)> {
    let newest = rows.iter().map(|row| row.at).max()?;
    let of_scrape = || rows.iter().filter(|row| newest.millis_since(row.at) <= ONE_SCRAPE_MS);
    let largest = |rows: &mut dyn Iterator<Item = &Row>| rows.map(|row| row.value).reduce(f64::max);
    let value = largest(&mut of_scrape().filter(|row| !row.labelled))
        .or_else(|| largest(&mut of_scrape()))?;
    Some((newest, value))
}

/// Drops the profiling counters of a node on which all of them stand at zero while GPU_UTIL proves
/// work: a known fault of the module (dcgm-exporter 662) that would read as idleness.
fn quarantine_profiling(devices: &mut Devices) {
    let mut working = BTreeSet::new();
    let mut measuring = BTreeSet::new();
    for device in devices.by_key.values() {
        if device.gpu_util.is_some_and(|util| util > WORKING_UTIL) {
            working.insert(device.host.clone());
        }
        if device.gr_engine.is_some_and(|active| active > 0.0) {
            measuring.insert(device.host.clone());
        }
    }
    for device in devices.by_key.values_mut() {
        if working.contains(&device.host) && !measuring.contains(&device.host) {
            device.gr_engine = None;
            device.sm = None;
            device.tensor = None;
            device.dram = None;
        }
    }
}

fn slot(device: &mut Device, field: Field) -> Option<&mut Option<f64>> {
    match field {
        Field::GpuUtil => Some(&mut device.gpu_util),
        Field::GrEngine => Some(&mut device.gr_engine),
        Field::Sm => Some(&mut device.sm),
        Field::Tensor => Some(&mut device.tensor),
        Field::Dram => Some(&mut device.dram),
        Field::FbUsed => Some(&mut device.fb_used_mib),
        // The board's, not the device's.
        Field::Power => None,
    }
}

/// The labels of a row that matter, under all their names. An empty label is an absent one.
struct RowLabels<V> {
    uuid: Option<V>,
    instance: Option<V>,
    host: Option<V>,
    target: Option<V>,
    pod: Option<V>,
    namespace: Option<V>,
    container: Option<V>,
    exported_pod: Option<V>,
    exported_namespace: Option<V>,
}

impl<V: AsRef<str>> RowLabels<V> {
    fn read<K: AsRef<str>>(labels: impl Iterator<Item = (K, V)>) -> RowLabels<V> {
        let mut row = RowLabels {
            uuid: None,
            instance: None,
            host: None,
            target: None,
            pod: None,
            namespace: None,
            container: None,
            exported_pod: None,
            exported_namespace: None,
        };
        for (label, value) in labels {
            let slot = match label.as_ref() {
                "UUID" | "uuid" | "gpu_uuid" => &mut row.uuid,
                "GPU_I_ID" => &mut row.instance,
                "Hostname" | "hostname" => &mut row.host,
                "instance" => &mut row.target,
                "pod" | "pod_name" => &mut row.pod,
                "namespace" | "pod_namespace" => &mut row.namespace,
                "container" | "container_name" => &mut row.container,
                "exported_pod" => &mut row.exported_pod,
                "exported_namespace" => &mut row.exported_namespace,
                _ => continue,
            };
            if !value.as_ref().is_empty() {
                *slot = Some(value);
            }
        }
        row
    }

    /// Device, node and owner; `None` for a row that names no device.
    fn identify(self) -> Option<(DeviceKey, Option<Box<str>>, Option<PodRef>)> {
        let boxed = |label: &Option<V>| label.as_ref().map(|value| Box::from(value.as_ref()));
        let uuid = self.uuid.as_ref()?.as_ref();
        // The kubelet's ids of shared devices are "UUID::replica".
        let uuid = uuid.split_once("::").map_or(uuid, |(uuid, _replica)| uuid);
        let key = DeviceKey { uuid: uuid.into(), instance: boxed(&self.instance) };
        // Behind a Prometheus without honorLabels `pod` is the exporter's and the workload's is
        // `exported_pod`.
        let (namespace, pod) = match self.exported_pod {
            Some(_) => (&self.exported_namespace, &self.exported_pod),
            None => (&self.namespace, &self.pod),
        };
        let container = self.container.as_ref().map(AsRef::as_ref);
        let is_exporter = |pod: &str| {
            let own = ["exporter", "dcgm-exporter", "nvidia-dcgm-exporter"];
            pod.contains("dcgm-exporter")
                || (self.exported_pod.is_none()
                    && container.is_some_and(|name| own.contains(&name)))
        };
        let owner = pod.as_ref().map(AsRef::as_ref).filter(|pod| !is_exporter(pod));
        let owner = owner
            .map(|pod| PodRef { namespace: boxed(namespace).unwrap_or_default(), pod: pod.into() });
        let host = boxed(&self.host).or_else(|| boxed(&self.target));
        Some((key, host, owner))
    }
}
