//! Metric families: name, help, rows, and where each value comes from. Each stands once below, by
//! engine; which dialect shows which, and in what order, is in `dialects.rs`.
//!
//! Must not hold logic.

pub(super) mod llama_cpp;
pub(super) mod lmdeploy;
pub(super) mod nim;
pub(super) mod sglang;
pub(super) mod tgi;
pub(super) mod triton;
pub(super) mod trtllm;
pub(super) mod vllm;
pub(super) mod vllm_old;

use super::Rank;
use super::render::{Kind, Source};
use crate::engine::Metrics;

/// A value of an engine.
pub(super) type Value = fn(&Rank<'_>) -> f64;

/// Rows of a family: the labels that tell them apart, and the value.
pub(super) type Labelled = &'static [(&'static [(&'static str, &'static str)], Value)];

/// A metric family.
#[derive(Debug, Clone, Copy)]
pub(super) struct Family {
    /// Without the namespace, and without the `_total` that the dialect gives to counters.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) rows: Rows,
}

/// The samples of a family.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rows {
    Gauge(Labelled),
    /// A gauge that the engine writes at its steps: without samples before the first in
    /// multiprocess mode.
    StepGauge(Labelled),
    /// The same, but there repeated for each process, of which one writes it: vLLM 0.9.2 to 0.11.0.
    PidGauge(Labelled),
    Counter(Labelled),
    /// A counter whose rows appear once they have moved.
    CounterOnceMoved(Labelled),
    /// Requests turned away: the label of the reason, and the reasons. Only the first ever occurs.
    Rejections(&'static str, &'static [&'static str]),
    /// What has come in at each path and method, also what is under way; knows no engine.
    Arrivals,
    Histogram(Source, Unit),
    /// A histogram in which each of that many observations was 1; its bounds are at least that.
    Ones(&'static [f64], fn(&Metrics) -> u64),
    CacheConfig(&'static [(&'static str, Setting)]),
    /// The time of the last change of adapters, of which there are none.
    Lora,
}

impl Rows {
    pub(super) fn kind(self) -> Kind {
        match self {
            Rows::Gauge(_)
            | Rows::StepGauge(_)
            | Rows::PidGauge(_)
            | Rows::CacheConfig(_)
            | Rows::Lora => Kind::Gauge,
            Rows::Counter(_)
            | Rows::CounterOnceMoved(_)
            | Rows::Rejections(..)
            | Rows::Arrivals => Kind::Counter,
            Rows::Histogram(..) | Rows::Ones(..) => Kind::Histogram,
        }
    }
}

/// The unit of a histogram on the page.
#[derive(Debug, Clone, Copy)]
pub(super) enum Unit {
    Seconds,
    Millis,
    Tokens,
}

/// A label of `cache_config_info`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Setting {
    Fixed(&'static str),
    Engine,
    BlockTokens,
    Blocks,
    KvTokens,
    Concurrency,
    PrefixCaching,
}

/// KV blocks in use, with so many more that nobody can use, as vLLM computes it to the last bit.
fn used_share(rank: &Rank<'_>, unusable: usize) -> f64 {
    let total = rank.gauges.kv_blocks_total;
    if !rank.has_stepped {
        return 0.0;
    }
    let free = total - rank.gauges.kv_blocks_used;
    1.0 - free as f64 / (total + unusable) as f64
}

/// Requests that ended by themselves.
fn succeeded(rank: &Rank<'_>) -> f64 {
    (rank.metrics.finished_stop + rank.metrics.finished_length) as f64
}

/// Requests that ended in any way.
fn finished(rank: &Rank<'_>) -> f64 {
    succeeded(rank) + rank.metrics.finished_abort as f64
}

/// Requests without a place in the batch, whatever they wait for.
fn waiting(rank: &Rank<'_>) -> f64 {
    (rank.gauges.waiting + rank.gauges.deferred) as f64
}

/// Steps that had an output.
fn steps(rank: &Rank<'_>) -> f64 {
    rank.metrics.iteration_tokens.count() as f64
}

const fn family(name: &'static str, help: &'static str, rows: Rows) -> Family {
    Family { name, help, rows }
}
