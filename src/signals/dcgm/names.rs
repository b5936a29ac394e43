//! DCGM's names, old and new, their scales, and the values that are no measurement.
//!
//! The scale is decided by the name alone: 0.9 is 0.9 % on GPU_UTIL and 90 % on GR_ENGINE_ACTIVE.

/// What a series measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    GpuUtil,
    GrEngine,
    Sm,
    Tensor,
    Dram,
    FbUsed,
    Power,
}

/// Each name with its field: those up to DCGM 4.5, those of 4.6, and those of the exporter's old
/// namespace. GPU_UTIL_RATIO is a percentage in spite of its name.
const NAMES: [(&str, Field); 16] = [
    ("DCGM_FI_DEV_GPU_UTIL", Field::GpuUtil),
    ("DCGM_FI_DEV_GPU_UTIL_RATIO", Field::GpuUtil),
    ("dcgm_gpu_utilization", Field::GpuUtil),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", Field::GrEngine),
    ("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", Field::GrEngine),
    ("DCGM_FI_PROF_SM_ACTIVE", Field::Sm),
    ("DCGM_FI_PROF_SM_UTIL_RATIO", Field::Sm),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", Field::Tensor),
    ("DCGM_FI_PROF_TENSOR_UTIL_RATIO", Field::Tensor),
    ("DCGM_FI_PROF_DRAM_ACTIVE", Field::Dram),
    ("DCGM_FI_PROF_DRAM_UTIL_RATIO", Field::Dram),
    ("DCGM_FI_DEV_FB_USED", Field::FbUsed),
    ("dcgm_fb_used", Field::FbUsed),
    ("DCGM_FI_DEV_POWER_USAGE", Field::Power),
    ("DCGM_FI_DEV_BOARD_POWER_WATTS", Field::Power),
    ("dcgm_power_usage", Field::Power),
];

/// Largest ratio that is believed; the profiling counters round a little above 1.
const MAX_RATIO: f64 = 1.02;
/// Most memory that is believed: NVML's "not available" is 17,592,186,044,415 MiB.
const MAX_FB_MIB: f64 = 1_000_000.0;
/// Most watts that are believed: 1.5 times the limit of the largest board (1,200 W).
const MAX_WATTS: f64 = 1_800.0;

/// Every metric name that a Prometheus query has to select for [`DcgmFold`](super::DcgmFold).
#[must_use]
pub fn prometheus_names() -> Vec<&'static str> {
    NAMES.iter().map(|&(name, _)| name).collect()
}

pub(super) fn field_of(name: &[u8]) -> Option<Field> {
    NAMES.iter().find(|(known, _)| known.as_bytes() == name).map(|&(_, field)| field)
}

/// The value in our unit (shares 0..1, MiB, W), or `None` for a blank or an impossible one. DCGM's
/// integer and float blanks (0x7ffffff0, 0x7ffffffffffffff0, 2^47, 4294967295) are all far above
/// every bound.
pub(super) fn believed(field: Field, value: f64) -> Option<f64> {
    let within = |max: f64| (0.0..=max).contains(&value);
    match field {
        Field::GpuUtil => within(100.0).then_some(value / 100.0),
        Field::GrEngine | Field::Sm | Field::Tensor | Field::Dram => {
            within(MAX_RATIO).then_some(value.min(1.0))
        }
        Field::FbUsed => within(MAX_FB_MIB).then_some(value),
        // A board that is on draws something.
        Field::Power => (within(MAX_WATTS) && value > 0.0).then_some(value),
    }
}
