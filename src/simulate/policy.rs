//! What a scaling policy may see at its tick and what it may answer: the one shape that the product
//! and every baseline share.
//!
//! Must not hold a policy. Everything here is what a scaler in a cluster could know: samples are as
//! old as the last scrape, counts are those of the Kubernetes API, nothing of the future is in it.

use crate::decision::{EngineSample, LearnedCost, Phase};
pub use crate::hpa::{Behavior, Change, Limit, Rules, Select};

/// A policy that decides how many replicas one workload should have.
///
/// A policy keeps its own memory (windows, stabilisation, panic, …). It is asked every
/// [`Policy::tick_s`] seconds; one that reads more often than it decides answers [`Action::Keep`]
/// in between.
pub trait Policy: Send {
    /// Seconds between ticks, above 0. May change from tick to tick; asked after each.
    fn tick_s(&self) -> f64;

    /// How its view of the engines comes to be.
    fn source(&self) -> Source {
        Source::PROMETHEUS
    }

    /// What carries its answer out.
    fn actuation(&self) -> Actuation {
        Actuation::Keda { behavior: None, push: false }
    }

    /// One tick: looks and answers.
    fn tick(&mut self, view: &View<'_>) -> Action;

    /// Seconds of the past that still weigh in its answers: how long before the counted part of a
    /// trace it has to start. Default: an hour.
    fn memory_s(&self) -> f64 {
        3_600.0
    }

    /// Replicas that serve when its run begins. Default: what the first minutes need.
    fn initial(&self) -> Option<u32> {
        None
    }

    /// What it has learned, for reports. Default: nothing.
    fn learning(&self) -> Option<&Learning> {
        None
    }
}

/// What a policy has learned of the engine's costs, and when.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Learning {
    /// Seconds since the start of the trace at its first tick.
    pub began_s: f64,
    /// Seconds from its first tick until its level came from what it had learned.
    pub in_force_after_s: Option<f64>,
    /// Seconds since its first tick.
    pub seconds: f64,
    /// Of these, seconds in which its level came from what it had learned.
    pub in_force_s: f64,
    /// What was in force of it, minute by minute: seconds since the start of the trace, and the model.
    pub course: Vec<(f64, LearnedCost)>,
}

/// How a policy reads the engines.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Source {
    /// It scrapes the replicas itself at each tick, some 50 ms before it decides.
    Direct,
    /// Prometheus scrapes every `interval_s` seconds, and a sample can be read `delay_s` later.
    Prometheus {
        /// Scrape interval in seconds.
        interval_s: f64,
        /// Seconds from the scrape to the first query that sees it.
        delay_s: f64,
    },
}

impl Source {
    /// Prometheus every 15 s (the interval of Google's managed Prometheus; kube-prometheus has 30 s).
    pub const PROMETHEUS: Source = Source::Prometheus { interval_s: 15.0, delay_s: 1.0 };
}

/// What a policy sees at one tick.
#[derive(Debug)]
pub struct View<'a> {
    /// Seconds since the start of the run.
    pub now_s: f64,
    /// Replica counts now.
    pub counts: Counts,
    /// An update of the pods is under way.
    pub updating: bool,
    /// The pods as the Kubernetes API has them now, oldest first.
    pub pods: &'a [PodView],
    /// The serving replicas that have been read at least once, oldest first, as last read.
    pub engines: &'a [EngineView],
    /// Requests that the gateway holds because no replica serves.
    pub held: f64,
    /// Counter: requests that have reached the gateway.
    pub arrived: f64,
    /// Latencies of all replicas since the start, those that are gone included, as last read.
    pub latencies: &'a Latencies,
    /// Fewest and most replicas of the workload.
    pub bounds: (u32, u32),
    /// Latency targets in seconds: to the first token, and between tokens.
    pub slo: Slo,
    /// Seconds that a cold start is known to take at the median, as a user could configure it.
    pub cold_start_s: f64,
}

/// Latency targets in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slo {
    /// Time to first token.
    pub ttft_s: f64,
    /// Mean time per output token after the first.
    pub tpot_s: f64,
}

/// Replica counts as the Kubernetes API has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Ordered (the scale target's `spec.replicas`).
    pub spec: u32,
    /// Serving.
    pub ready: u32,
    /// On their way; `spec = ready + starting`.
    pub starting: u32,
    /// Of these, those that the scheduler cannot place yet.
    pub unschedulable: u32,
    /// Told to end, still finishing requests; in none of the others.
    pub terminating: u32,
}

/// One pod of the workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PodView {
    /// The replica, unique over the run; higher is younger.
    pub id: u32,
    /// Where in its life it is.
    pub phase: Phase,
    /// Seconds since the start of the run at which it was created.
    pub created_at_s: f64,
    /// The same for the moment when it turned ready, if it has.
    pub ready_at_s: Option<f64>,
}

/// One serving replica as last read.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineView {
    /// The replica, unique over the run; higher is younger.
    pub id: u32,
    /// Seconds since the start of the run at which it turned ready.
    pub ready_at_s: f64,
    /// What vLLM's page says. `at` is in milliseconds since the start of the run.
    pub sample: EngineSample,
    /// Counter: seconds in which a step ran. Its rate is what DCGM calls GPU utilisation.
    pub busy_s: f64,
    /// Prompt tokens of waiting requests. No vLLM page has it; gateways and Dynamo's engines do.
    pub queued_prompt_tokens: f64,
}

/// Counters of a histogram: vLLM's buckets, not cumulated, the last one open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Latencies {
    /// Time to first token, counted when it appears, in the buckets of [`TTFT_BOUNDS_S`].
    pub ttft: [u64; TTFT_BOUNDS_S.len() + 1],
    /// Mean time per output token, counted when a request ends, in those of [`TPOT_BOUNDS_S`].
    pub tpot: [u64; TPOT_BOUNDS_S.len() + 1],
}

/// Upper bounds of `time_to_first_token_seconds` [vLLM 0.32, v1/metrics/loggers.py].
pub const TTFT_BOUNDS_S: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// Upper bounds of `request_time_per_output_token_seconds` [the same].
pub const TPOT_BOUNDS_S: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

/// A policy's answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// The last answer stands.
    Keep,
    /// Values that the HPA reads from now on; of several the one that wants most counts. Only with
    /// [`Actuation::Keda`].
    Metrics {
        /// One for each metric of the HPA.
        metrics: Vec<Metric>,
        /// KEDA's IsActive: false lets a workload with a minimum of 0 go to zero after the cooldown.
        active: bool,
    },
    /// The count that is written to the scale target now, within the bounds. Only with
    /// [`Actuation::Direct`].
    Replicas(u32),
}

impl Action {
    /// One metric that is active while its value is above 0.
    #[must_use]
    pub fn metric(value: f64, target: Target) -> Action {
        Action::Metrics { metrics: vec![Metric { value, target }], active: value > 0.0 }
    }
}

/// A value of an external metric and its target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metric {
    /// The value, finite and not negative.
    pub value: f64,
    /// The target.
    pub target: Target,
}

/// What the HPA compares a value with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// `AverageValue`: the value is a sum, shared by the replicas.
    AverageValue(f64),
    /// `Value`: the ratio to the target scales the ready replicas.
    Value(f64),
}

/// What carries a policy's answers out.
#[derive(Debug, Clone, PartialEq)]
pub enum Actuation {
    /// KEDA and the HPA: a sync every 15 s.
    Keda {
        /// The HPA's behaviour; `None` is what a ScaledObject without one gets, which is not the
        /// same as an empty one.
        behavior: Option<Behavior>,
        /// Whether activity is pushed to KEDA, or only seen at its poll every 30 s.
        push: bool,
    },
    /// The policy's own controller writes the scale target at its tick.
    Direct,
}
