//! What a tick decided and why, as data; text is made only when someone looks.

use serde::{Deserialize, Serialize};

use super::{Moment, Reason, Why};

/// The decision of one tick.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[must_use = "an unread decision changes nothing"]
pub struct Decision {
    /// When it was made.
    pub at: Moment,
    /// What the scaler answers now.
    pub answer: Answer,
    /// The count that the rules want, after the clamp; in shadow mode not the answer.
    pub want: u32,
    /// The rule that set `want`.
    pub binding: Rule,
    /// What each rule wanted, in the order of [`Rule::ALL`].
    pub votes: Box<[Vote]>,
    /// Whether the inputs were whole.
    pub health: Health,
    /// The inputs and what was made of them.
    pub inputs: Inputs,
    /// What would have to change for the next lower or higher count.
    pub next: Next,
    /// Notable changes of this tick, for events.
    pub notices: Box<[Notice]>,
    /// Replicas that have work and move nothing, by id: no capacity, whatever their probes say.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub stuck: Box<[Box<str>]>,
    /// Milliseconds until the next tick is due.
    pub next_tick_ms: u64,
}

impl Decision {
    /// The count that the rules want; `None` where not even the present count is known.
    #[must_use]
    pub fn wanted(&self) -> Option<u32> {
        let unknown = Answer::Unavailable { why: Unavailable::NothingKnown };
        (self.answer != unknown).then_some(self.want)
    }
}

/// What the scaler answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Answer {
    /// A wanted count and activity, always from the same decision.
    Value {
        /// Replicas.
        want: u32,
        /// KEDA's IsActive.
        active: bool,
    },
    /// An error: nothing is known, or a declared fallback shall count.
    Unavailable {
        /// Why.
        why: Unavailable,
    },
}

/// Why there is no value to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unavailable {
    /// Not even the present count is known.
    NothingKnown,
    /// The source has been lost for longer than the bounded time and the ScaledObject has a
    /// fallback of at least one replica, which shall count.
    SourceLost,
}

/// The rules of the decision, in the order in which they are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Work demand holds the level.
    Demand,
    /// Queue depth leads.
    Queue,
    /// KV-cache pressure.
    Kv,
    /// GPU utilisation is the ceiling.
    GpuCeiling,
    /// The ghost score lets go.
    Ghost,
    /// Warm minimum and schedule.
    Warm,
    /// Zero after long idleness.
    Zero,
    /// Waking from zero.
    Wake,
    /// Degraded inputs hold.
    Degraded,
    /// Adoption after a start: never below the present count until a hold of evidence stands.
    Adopt,
    /// A rollout holds.
    Rollout,
    /// What is about to leave is replaced.
    Leaving,
    /// Somebody has set the count by hand.
    ByHand,
    /// Clamp to the maximum.
    Max,
    /// Clamp to the minimum.
    Min,
}

impl Rule {
    /// All rules, in order.
    pub const ALL: [Rule; 15] = [
        Rule::Demand,
        Rule::Queue,
        Rule::Kv,
        Rule::GpuCeiling,
        Rule::Ghost,
        Rule::Warm,
        Rule::Zero,
        Rule::Wake,
        Rule::Degraded,
        Rule::Adopt,
        Rule::Rollout,
        Rule::Leaving,
        Rule::ByHand,
        Rule::Max,
        Rule::Min,
    ];

    /// The metric label and JSON word.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Rule::Demand => "demand",
            Rule::Queue => "queue",
            Rule::Kv => "kv",
            Rule::GpuCeiling => "gpu_ceiling",
            Rule::Ghost => "ghost",
            Rule::Warm => "warm",
            Rule::Zero => "zero",
            Rule::Wake => "wake",
            Rule::Degraded => "degraded",
            Rule::Adopt => "adopt",
            Rule::Rollout => "rollout",
            Rule::Leaving => "leaving",
            Rule::ByHand => "by_hand",
            Rule::Max => "max",
            Rule::Min => "min",
        }
    }
}

/// What one rule wanted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Vote {
    /// The rule.
    pub rule: Rule,
    /// The count it wanted; `None` when it had no say.
    pub want: Option<u32>,
    /// Why, with its numbers.
    pub reason: Reason,
}

/// Whether the inputs were whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Health {
    /// Every expected input is fresh.
    Ok,
    /// All replicas are starting: not a lost source.
    Starting,
    /// Some inputs are not fresh; the last wanted count goes on.
    Degraded {
        /// Since when.
        since: Moment,
        /// The most frequent cause.
        why: Why,
        /// Engines that answered.
        answered: u32,
        /// Engines that should have.
        expected: u32,
    },
    /// Nothing has been observed yet; the present count is the answer.
    NotYetObserved,
}

/// The inputs of the decision and what was made of them. `None` means not known, never zero.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    /// Replicas ordered.
    pub spec: Option<u32>,
    /// Replicas ready, those that sleep among them.
    pub ready: u32,
    /// Replicas on their way, own young orders included.
    pub starting: u32,
    /// Requests waiting, over all engines.
    pub waiting: Option<f64>,
    /// Requests running, over all engines.
    pub running: Option<f64>,
    /// KV-cache use of the fullest engine, 0..1.
    pub kv_usage: Option<f64>,
    /// GPU time busy, 0..1.
    pub gpu_busy: Option<f64>,
    /// Requests held by the gateway.
    pub gateway_queued: Option<f64>,
    /// Age of the oldest fresh sample, milliseconds.
    pub age_ms: Option<u64>,
    /// Work demanded, in replica-seconds of engine time per second.
    pub work: Option<f64>,
    /// Utilisation that a replica can carry inside the SLO, 0..1.
    pub rho: Option<f64>,
    /// Headroom, in replicas.
    pub headroom: Option<f64>,
    /// Where the level comes from.
    pub level_source: LevelSource,
    /// Expected cold start, milliseconds.
    pub cold_start_ms: u64,
    /// Ghost score of one replica fewer, 0..100; `None` at one replica or none.
    pub ghost_score: Option<f64>,
    /// Evidence needed for a release, milliseconds.
    pub hold_ms: u64,
    /// Fresh share of the expected ticks of the last hold, 0..1.
    pub coverage: f64,
    /// What was learned of the engine's cost, in force or not yet.
    pub model: Option<LearnedCost>,
}

/// The engine's cost model: a step takes `step_ms + prompt_ms · prompt tokens + generated_ms ·
/// generated tokens + kv_ms · KV use`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LearnedCost {
    /// Milliseconds of an empty step.
    pub step_ms: f64,
    /// Milliseconds per prompt token.
    pub prompt_ms: f64,
    /// Milliseconds per generated token.
    pub generated_ms: f64,
    /// Milliseconds per step at full KV cache.
    pub kv_ms: f64,
    /// Mean relative error of the predictions, 0..1.
    pub error: f64,
    /// Observations behind it, in samples of five seconds.
    pub rows: f64,
}

/// Where the level comes from, best first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LevelSource {
    /// The learned cost model.
    CostModel,
    /// Measured throughput at saturation.
    Saturation,
    /// In-flight requests per replica, by `targetInFlight` or the profile's preset.
    InFlight,
    /// Nothing learned yet: only queue and KV raise.
    #[default]
    Unlearned,
}

/// What would have to change for a different answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Next {
    /// Waiting requests at which one more replica would be wanted.
    pub up_at_waiting: Option<f64>,
    /// Evidence still missing for a release, milliseconds.
    pub down_in_ms: Option<u64>,
    /// Idle time still missing for zero, milliseconds.
    pub zero_in_ms: Option<u64>,
    /// Time until a woken replica is expected, milliseconds.
    pub wake_eta_ms: Option<u64>,
}

/// A change worth telling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// More replicas wanted than before.
    ScaledUp,
    /// Fewer replicas wanted than before.
    ScaledDown,
    /// Inputs became incomplete.
    Degraded,
    /// Inputs are whole again.
    Recovered,
    /// Woken from zero.
    Woke,
    /// Went to zero.
    Slept,
    /// Zero is allowed but no wake source is configured, so it never happens.
    NoWakeSource,
    /// Queues stand while GPUs idle and nothing explains it: more replicas will not help.
    NotServing,
    /// A queue that does not move: stuck gauges or a hung engine.
    StuckQueue,
    /// Some engine waits while others idle: a routing fault.
    Imbalance,
    /// Replicas cannot be placed or start again and again.
    CapacityExhausted,
}
