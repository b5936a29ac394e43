//! KEDA's trigger metadata (or the same keys of the configuration) into a validated [`Policy`].
//!
//! Pure: collects every fault at once, reads nothing but its argument.

use crate::decision::{Mode, Profile, ZeroAfter};
use crate::schedule::WarmSchedule;

/// What a trigger's metadata says, validated. Bounds come from the ScaledObject, not from here.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// `engine`: the engine's family, or `None` for recognition by the series present.
    pub engine: Option<EngineFamily>,
    /// `source`: where engine metrics come from, or `None` for the process's default.
    pub source: Option<SourceKind>,
    /// `podSelector`: label selector of the pods to read, instead of the target's own.
    pub pod_selector: Option<String>,
    /// `metricsPort`: port of the pods' metrics, 1..65535.
    pub metrics_port: Option<u16>,
    /// `metricsPath`: path of the pods' metrics, starting with `/`.
    pub metrics_path: Option<String>,
    /// `modelName`: only series of this model count.
    pub model_name: Option<String>,
    /// `sloTtft` in milliseconds. Default 2,000.
    pub slo_ttft_ms: u64,
    /// `sloTpot` in milliseconds. Default 200.
    pub slo_tpot_ms: u64,
    /// `targetInFlight`: in-flight requests that one replica should carry.
    pub target_in_flight: Option<f64>,
    /// `gpuCeilingPercent` as a fraction. Default 0.8.
    pub gpu_ceiling: f64,
    /// `ghostHold` in milliseconds.
    pub ghost_hold_ms: Option<u64>,
    /// `zeroAfter`. Default one hour.
    pub zero_after: ZeroAfter,
    /// `wakeSource`: a name from the process's configuration.
    pub wake_source: Option<String>,
    /// `warmSchedule`.
    pub warm_schedule: Option<WarmSchedule>,
    /// `profile`. Default chat.
    pub profile: Profile,
    /// `gpusPerReplica`, 1..1024.
    pub gpus_per_replica: Option<u32>,
    /// `mode`. Default act.
    pub mode: Mode,
}

/// An engine family that can be named by `engine`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineFamily {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
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
