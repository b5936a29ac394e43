//! Everything that one tick saw of one workload, as data.
//!
//! Built by `observe` from sources and inventory, or read back from a decision log.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::number::usable;
use super::{KeptSample, Moment, Reading, Why};

/// What one tick saw.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Replica counts and their state.
    pub replicas: Replicas,
    /// One entry per engine endpoint that exists (a pod, or a configured endpoint), ordered by id.
    pub engines: Box<[Engine]>,
    /// GPU utilisation of the workload's own devices.
    pub gpu: Gpu,
    /// Demand seen in front of the engines, which also exists at zero replicas.
    pub wake: Wake,
    /// Replicas that the warm schedule asks for now, its lead of one cold start included.
    pub schedule_floor: u32,
    /// The count that somebody has set by hand, while it is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_hand: Option<u32>,
}

/// Replica counts of the scale target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replicas {
    /// Replicas ordered (the scale target's spec); `None` when even that is not known.
    pub spec: Option<u32>,
    /// Replicas serving.
    pub ready: u32,
    /// Replicas on their way: scheduled, pulling or loading.
    pub starting: u32,
    /// Replicas that end; no capacity and no quorum.
    pub terminating: u32,
    /// Replicas that the scheduler cannot place; no capacity.
    pub unschedulable: u32,
    /// Replicas that start again and again; no capacity.
    pub crash_looping: u32,
    /// Of the ready ones, those whose node is told to go: they serve, and will not for long.
    #[serde(default, skip_serializing_if = "is_none")]
    pub leaving: u32,
    /// A rollout is under way: surge pods are no capacity and nothing goes below `spec`.
    pub rollout: bool,
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

/// One engine endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Engine {
    /// The pod's name, or the endpoint's address. Shared with whoever else remembers it.
    pub id: Arc<str>,
    /// Where in its life the replica is.
    pub phase: Phase,
    /// Milliseconds since the replica turned ready, where known.
    pub ready_ms: Option<u64>,
    /// What its metrics said. Shared with whoever else remembers the sample.
    pub reading: Reading<KeptSample>,
}

/// Where in its life a replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Created, not ready yet.
    Starting,
    /// Ready.
    Ready,
    /// Was ready, is not now.
    NotReady,
    /// Going away.
    Terminating,
}

/// The engine's own numbers at one moment. Sums over data-parallel ranks, maxima where said.
///
/// `None` means that this engine does not expose the number, never that it is zero. Counters are
/// totals since the engine's start and may reset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineSample {
    /// When the sample was taken.
    pub at: Moment,
    /// Requests waiting that more capacity would cure (vLLM `reason="capacity"` where it exists).
    pub waiting: Option<f64>,
    /// Requests waiting for something that replicas do not cure (vLLM `reason="deferred"`).
    pub waiting_deferred: Option<f64>,
    /// Requests running.
    pub running: Option<f64>,
    /// KV-cache use of the fullest engine, 0..1.
    pub kv_usage: Option<f64>,
    /// KV-cache size in tokens, summed over engines.
    pub kv_tokens: Option<f64>,
    /// Counter: prompt tokens that cost work, net of prefix-cache hits where the engine says so.
    pub prompt_tokens: Option<f64>,
    /// Counter: the same with those that a prefix cache held.
    pub all_prompt_tokens: Option<f64>,
    /// Counter: generated tokens.
    pub generated_tokens: Option<f64>,
    /// Counter: finished requests, whatever their end.
    pub finished: Option<f64>,
    /// Counter: generated tokens of finished requests.
    pub finished_generated_tokens: Option<f64>,
    /// Counter: requests refused by an admission limit; demand the gauges do not show.
    pub rejected: Option<f64>,
    /// Counter: preemptions.
    pub preemptions: Option<f64>,
    /// Counter: engine steps.
    pub steps: Option<f64>,
    /// Counter: summed time to first token, seconds.
    pub ttft_sum_s: Option<f64>,
    /// Counter: requests in `ttft_sum_s`.
    pub ttft_count: Option<f64>,
    /// Counter: summed time between output tokens, seconds.
    pub itl_sum_s: Option<f64>,
    /// Counter: tokens in `itl_sum_s`.
    pub itl_count: Option<f64>,
    /// The engine's own limit of running requests, where it exports one.
    pub max_running: Option<f64>,
    /// The engine sleeps: warm, not waste and not capacity.
    pub asleep: Option<bool>,
    /// When the engine started, where it says so.
    pub started_at: Option<Moment>,
    /// Largest minus smallest `waiting` over data-parallel ranks: a routing fault, not capacity.
    pub waiting_spread: Option<f64>,
}

impl EngineSample {
    /// Numbers that it has beside its times and its sleep.
    pub(super) const N_NUMBERS: usize = 19;

    /// All its numbers, in one order.
    pub(super) fn numbers_mut(&mut self) -> [&mut Option<f64>; Self::N_NUMBERS] {
        let EngineSample {
            at: _,
            asleep: _,
            started_at: _,
            waiting,
            waiting_deferred,
            running,
            kv_usage,
            kv_tokens,
            prompt_tokens,
            all_prompt_tokens,
            generated_tokens,
            finished,
            finished_generated_tokens,
            rejected,
            preemptions,
            steps,
            ttft_sum_s,
            ttft_count,
            itl_sum_s,
            itl_count,
            max_running,
            waiting_spread,
        } = self;
        [
            waiting,
            waiting_deferred,
            running,
            kv_usage,
            kv_tokens,
            prompt_tokens,
            all_prompt_tokens,
            generated_tokens,
            finished,
            finished_generated_tokens,
            rejected,
            preemptions,
            steps,
            ttft_sum_s,
            ttft_count,
            itl_sum_s,
            itl_count,
            max_running,
            waiting_spread,
        ]
    }

    /// The sample without what cannot be: a number that is infinite, negative or absurd is not
    /// known.
    pub(super) fn cleaned(mut self) -> EngineSample {
        for number in self.numbers_mut() {
            *number = usable(*number);
        }
        self
    }
}

/// GPU utilisation over the devices of ready replicas past their warm-up, one vote a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub enum Gpu {
    /// DCGM is not read, or is and has never named a device of this workload: rule 4 is absent.
    #[default]
    Absent,
    /// Never seen for this workload, and DCGM cannot be read: rule 4 is absent.
    Unread {
        /// Why.
        why: Why,
    },
    /// Seen before and lost: no step down until it is back, one hour at most.
    Lost {
        /// Milliseconds since the last fresh sample.
        for_ms: u64,
        /// Why DCGM cannot be read; `None` where it is read, and names no device of this workload.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<Why>,
    },
    /// Fresh.
    Fresh(GpuSample),
}

impl Gpu {
    /// Whether the devices are known, or were.
    #[must_use]
    pub fn was_seen(&self) -> bool {
        match self {
            Gpu::Lost { .. } | Gpu::Fresh(_) => true,
            Gpu::Absent | Gpu::Unread { .. } => false,
        }
    }
}

/// Device means, each device counted once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// Devices in the means.
    pub devices: u32,
    /// Replicas past their warm-up of which no device is in the means: with one of them the means are
    /// a part's, and prove nothing of the whole.
    #[serde(default, skip_serializing_if = "is_none")]
    pub unread: u32,
    /// Share of time busy, 0..1 (GPU_UTIL or GR_ENGINE_ACTIVE): proof of idleness, never of load.
    pub busy: Option<f64>,
    /// Streaming-multiprocessor activity, 0..1.
    pub sm: Option<f64>,
    /// Tensor-pipe activity, 0..1.
    pub tensor: Option<f64>,
    /// Memory-interface activity, 0..1.
    pub dram: Option<f64>,
}

/// Demand seen in front of the engines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Wake {
    /// What the wake source says; `None` when the workload has none.
    pub source: Option<WakeReading>,
    /// When somebody last asked for a wake through the API.
    pub requested_at: Option<Moment>,
}

/// A wake source's state, flattened because it carries one number of two kinds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum WakeReading {
    /// Fresh: requests held by the gateway now, and when an arrival was last seen.
    Fresh {
        /// Requests that the gateway holds, 0 if it only counts arrivals.
        queued: f64,
        /// When arrivals were last seen to rise.
        last_arrival_at: Option<Moment>,
    },
    /// Not readable: demand is unknown, which is not zero.
    Unknown {
        /// Why.
        why: Why,
    },
}
