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
}

/// Each name with its field: those up to DCGM 4.5, those of 4.6, and those of the exporter's old
/// namespace. GPU_UTIL_RATIO is a percentage in spite of its name.
const NAMES: [(&str, Field); 11] = [
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
];

/// Largest ratio that is believed; the profiling counters round a little above 1.
const MAX_RATIO: f64 = 1.02;

/// Every metric name that a Prometheus query has to select for [`DcgmFold`](super::DcgmFold).
#[must_use]
pub fn prometheus_names() -> Vec<&'static str> {
    NAMES.iter().map(|&(name, _)| name).collect()
}

pub(super) fn field_of(name: &[u8]) -> Option<Field> {
    NAMES.iter().find(|(known, _)| known.as_bytes() == name).map(|&(_, field)| field)
}

/// The value as a share, 0..1, or `None` for a blank or an impossible one. DCGM's
/// integer and float blanks (0x7ffffff0, 0x7ffffffffffffff0, 2^47, 4294967295) are all far above
/// every bound.
pub(super) fn believed(field: Field, value: f64) -> Option<f64> {
    let within = |max: f64| (0.0..=max).contains(&value);
    match field {
        Field::GpuUtil => within(100.0).then_some(value / 100.0),
        Field::GrEngine | Field::Sm | Field::Tensor | Field::Dram => {
            within(MAX_RATIO).then_some(value.min(1.0))
        }
    }
}
