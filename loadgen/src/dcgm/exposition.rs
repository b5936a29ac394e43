//! A page of dcgm-exporter: its fields, their order, their labels, their numbers.
//!
//! Must not know how a value came about, nor any socket.
//!
//! No page of a running exporter was captured: the form is that of the exporter's template and
//! lists of counters [NVIDIA/dcgm-exporter, `render_metrics.go`, `dcp-metrics-included.csv`]. Its
//! families come by field id, for the template walks a map whose keys begin with it. Whole numbers
//! have no point and others six digits behind it; there is no timestamp and no end mark.

use std::fmt::Write as _;

use super::config::{HostLabel, Names, PodLabels, Style};

/// What a field measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Quantity {
    /// W.
    Power,
    /// mJ since the start.
    Energy,
    /// Percent of the time with a kernel.
    GpuUtil,
    /// Percent of the time in which memory was read or written.
    MemCopyUtil,
    /// Percent.
    EncoderUtil,
    /// Percent.
    DecoderUtil,
    /// MiB.
    FbFree,
    /// MiB.
    FbUsed,
    /// MiB.
    FbReserved,
    /// Ratio, as the others of the profiling module.
    GrEngine,
    /// Ratio.
    Sm,
    /// Ratio.
    Tensor,
    /// Ratio.
    Dram,
}

/// A family of the page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub(super) quantity: Quantity,
    classic: &'static str,
    renamed: &'static str,
    /// Version 1 has no name for the profiling counters and reserved memory.
    old: Option<&'static str>,
    kind: &'static str,
    help: &'static str,
    /// Digits behind the point.
    digits: usize,
}

impl Field {
    /// Whether the profiling module gives it.
    pub(super) fn is_profiling(&self) -> bool {
        self.classic.starts_with("DCGM_FI_PROF_")
    }

    /// Whether DCGM has it for whole GPUs only, and not for their MIG instances.
    pub(super) fn is_of_whole_gpus(&self) -> bool {
        match self.quantity {
            Quantity::GpuUtil
            | Quantity::MemCopyUtil
            | Quantity::EncoderUtil
            | Quantity::DecoderUtil
            | Quantity::FbReserved => true,
            Quantity::Power
            | Quantity::Energy
            | Quantity::FbFree
            | Quantity::FbUsed
            | Quantity::GrEngine
            | Quantity::Sm
            | Quantity::Tensor
            | Quantity::Dram => false,
        }
    }

    fn name(&self, names: Names) -> Option<&'static str> {
        match names {
            Names::Classic => Some(self.classic),
            Names::Renamed => Some(self.renamed),
            Names::Old => self.old,
        }
    }
}

const fn gauge(
    quantity: Quantity,
    [classic, renamed]: [&'static str; 2],
    old: Option<&'static str>,
    digits: usize,
    help: &'static str,
) -> Field {
    Field { quantity, classic, renamed, old, kind: "gauge", help, digits }
}

/// The fields that a simulation has something to say about, in the order of their ids: 155, 156,
/// 203, 204, 206, 207, 251 to 253, 1001, 1002, 1004, 1005. Clocks, temperatures, links and errors
/// are left out: nothing here would make them true.
pub(super) const FIELDS: [Field; 13] = [
    gauge(
        Quantity::Power,
        ["DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS"],
        Some("dcgm_power_usage"),
        6,
        "Power draw (in W).",
    ),
    Field {
        kind: "counter",
        ..gauge(
            Quantity::Energy,
            ["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"; 2],
            Some("dcgm_total_energy_consumption"),
            0,
            "Total energy consumption since boot (in mJ).",
        )
    },
    gauge(
        Quantity::GpuUtil,
        ["DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"],
        Some("dcgm_gpu_utilization"),
        0,
        "GPU utilization (in %).",
    ),
    gauge(
        Quantity::MemCopyUtil,
        ["DCGM_FI_DEV_MEM_COPY_UTIL"; 2],
        Some("dcgm_mem_copy_utilization"),
        0,
        "Memory utilization (in %).",
    ),
    gauge(
        Quantity::EncoderUtil,
        ["DCGM_FI_DEV_ENC_UTIL"; 2],
        Some("dcgm_enc_utilization"),
        0,
        "Encoder utilization (in %).",
    ),
    gauge(
        Quantity::DecoderUtil,
        ["DCGM_FI_DEV_DEC_UTIL"; 2],
        Some("dcgm_dec_utilization"),
        0,
        "Decoder utilization (in %).",
    ),
    gauge(
        Quantity::FbFree,
        ["DCGM_FI_DEV_FB_FREE"; 2],
        Some("dcgm_fb_free"),
        0,
        "Framebuffer memory free (in MiB).",
    ),
    gauge(
        Quantity::FbUsed,
        ["DCGM_FI_DEV_FB_USED"; 2],
        Some("dcgm_fb_used"),
        0,
        "Framebuffer memory used (in MiB).",
    ),
    gauge(
        Quantity::FbReserved,
        ["DCGM_FI_DEV_FB_RESERVED"; 2],
        None,
        0,
        "Framebuffer memory reserved (in MiB).",
    ),
    gauge(
        Quantity::GrEngine,
        ["DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"],
        None,
        6,
        "Ratio of time the graphics engine is active.",
    ),
    gauge(
        Quantity::Sm,
        ["DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO"],
        None,
        6,
        "The ratio of cycles an SM has at least 1 warp assigned.",
    ),
    gauge(
        Quantity::Tensor,
        ["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"],
        None,
        6,
        "Ratio of cycles the tensor (HMMA) pipe is active.",
    ),
    gauge(
        Quantity::Dram,
        ["DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO"],
        None,
        6,
        "Ratio of cycles the device memory interface is active sending or receiving data.",
    ),
];

/// The labels of a device that every row of it has.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceLabels<'a> {
    /// Its number on the node.
    pub(super) gpu: usize,
    pub(super) uuid: &'a str,
    pub(super) model_name: &'a str,
    /// Profile and id of a MIG instance.
    pub(super) instance: Option<(&'a str, u16)>,
    pub(super) node: &'a str,
}

/// The pod of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct PodOf<'a> {
    pub(super) namespace: &'a str,
    pub(super) pod: &'a str,
    pub(super) container: &'a str,
    /// Its number among those that share the device, where each has a row.
    pub(super) vgpu: Option<usize>,
}

/// Writes the pages of one style.
#[derive(Debug)]
pub(super) struct Page<'a> {
    style: &'a Style,
    text: String,
    begun: Option<&'static str>,
}

impl<'a> Page<'a> {
    pub(super) fn new(style: &'a Style) -> Page<'a> {
        Page { style, text: String::new(), begun: None }
    }

    /// Adds a row of a field; its rows come together. Nothing where the style has no such field.
    pub(super) fn row(
        &mut self,
        field: &Field,
        device: DeviceLabels<'_>,
        pod: Option<PodOf<'_>>,
        value: f64,
    ) {
        let Some(name) = field.name(self.style.names) else {
            return;
        };
        if self.begun != Some(name) {
            self.begun = Some(name);
            let Field { help, kind, .. } = field;
            self.add(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        }
        let mut labels = self.device_labels(device);
        if let Some(pod) = pod.filter(|_| self.style.pods != PodLabels::None) {
            labels.extend(self.pod_labels(pod));
        }
        if self.style.pods == PodLabels::Exported {
            labels.extend(target_labels(device.node));
            // A Prometheus knows no order but the alphabet's.
            labels.sort_unstable();
        }
        self.add(format_args!("{name}"));
        for (index, (label, value)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            self.add(format_args!("{before}{label}=\"{value}\""));
        }
        self.add(format_args!("}} {value:.0$}\n", field.digits));
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    fn device_labels(&self, device: DeviceLabels<'_>) -> Vec<(&'static str, String)> {
        let uuid = match self.style.names {
            Names::Classic | Names::Renamed => "UUID",
            Names::Old => "uuid",
        };
        let mut labels = vec![
            ("gpu", device.gpu.to_string()),
            (uuid, device.uuid.to_owned()),
            // Made up; real ones have gaps too.
            ("pci_bus_id", format!("00000000:{:02X}:00.0", 0x19 + 2 * device.gpu)),
            ("device", format!("nvidia{}", device.gpu)),
            ("modelName", device.model_name.to_owned()),
        ];
        if let Some((profile, id)) = device.instance {
            labels.push(("GPU_I_PROFILE", profile.to_owned()));
            labels.push(("GPU_I_ID", id.to_string()));
        }
        let host = match self.style.host {
            HostLabel::Hostname => Some("Hostname"),
            HostLabel::Lowercase => Some("hostname"),
            HostLabel::None => None,
        };
        labels.extend(host.map(|label| (label, device.node.to_owned())));
        labels.push(("DCGM_FI_DRIVER_VERSION", "570.124.06".to_owned()));
        labels
    }

    fn pod_labels(&self, pod: PodOf<'_>) -> impl Iterator<Item = (&'static str, String)> {
        let [container, namespace, name] = match (self.style.names, self.style.pods) {
            (Names::Old, _) => ["container_name", "pod_namespace", "pod_name"],
            (_, PodLabels::Exported) => {
                ["exported_container", "exported_namespace", "exported_pod"]
            }
            (_, PodLabels::Plain | PodLabels::None) => ["container", "namespace", "pod"],
        };
        let mut labels = vec![
            (container, pod.container.to_owned()),
            (namespace, pod.namespace.to_owned()),
            (name, pod.pod.to_owned()),
        ];
        // The template writes attributes by their names.
        labels.sort_unstable();
        labels.extend(pod.vgpu.map(|vgpu| ("vgpu", vgpu.to_string())));
        labels.into_iter()
    }

    fn add(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        self.text.write_fmt(text).ok();
    }
}

/// What a Prometheus adds that scrapes the exporter as its chart says.
fn target_labels(node: &str) -> [(&'static str, String); 7] {
    [
        ("container", "exporter".to_owned()),
        ("endpoint", "metrics".to_owned()),
        ("instance", format!("{node}:9400")),
        ("job", "nvidia-dcgm-exporter".to_owned()),
        ("namespace", "gpu-operator".to_owned()),
        ("pod", format!("nvidia-dcgm-exporter-{node}")),
        ("service", "nvidia-dcgm-exporter".to_owned()),
    ]
}
