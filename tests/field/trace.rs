//! The form of a case that is told as data: settings, then steps, then what has to come of them.
//!
//! Must not run anything; `replay` does.
//!
//! A file holds `about` (what was reported and what is right), `differs` where the design's own
//! answer stands for the reported one's, and `runs`, each from a new start. What a step sets stays
//! until a later step sets it again.

use std::collections::BTreeMap;

use ghostscaler::decision::{Notice, Phase, Rule, Why};
use ghostscaler::duration::parse_millis;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

/// One case.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Trace {
    /// What was reported, and what is right.
    #[expect(dead_code, reason = "for the reader of the file")]
    about: String,
    /// Where the design's own answer stands for the reported one's.
    #[expect(dead_code, reason = "for the reader of the file")]
    differs: Option<String>,
    pub(crate) runs: Vec<Run>,
}

/// One workload from its start on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// What this run shows.
    pub(crate) what: String,
    /// The trigger's metadata, and KEDA's own `min`, `max` and `fallback`. Default 1 to 8 replicas.
    #[serde(default)]
    pub(crate) settings: BTreeMap<String, Setting>,
    /// Time of the first tick, as RFC 3339. Default a Monday at noon, UTC.
    pub(crate) starts: Option<String>,
    /// The scale target follows the answer at once, and a new replica serves after this time.
    /// Without it the target stands as the steps say.
    #[serde(default, rename = "follows", deserialize_with = "some_millis")]
    pub(crate) follows_ms: Option<u64>,
    /// Holds at every tick of the run.
    #[serde(default)]
    pub(crate) expects: Expect,
    pub(crate) steps: Vec<Step>,
}

/// One value of a trigger's metadata.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Setting {
    Number(u32),
    Text(String),
}

/// What happens for some time.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    /// How long; the ticks are those that the decision asks for, one at least.
    #[serde(rename = "for", deserialize_with = "millis")]
    pub(crate) lasts_ms: u64,
    #[serde(default)]
    pub(crate) set: Set,
    /// Holds at every tick of the step.
    #[serde(default)]
    pub(crate) expects: Expect,
    /// Holds at its last tick.
    #[serde(default)]
    pub(crate) ends: Expect,
    /// Holds at one of its ticks at least.
    pub(crate) meets: Option<Expect>,
    /// Notices that are given in it, each once.
    #[serde(default)]
    pub(crate) tells: Vec<Notice>,
    /// Most changes of the wanted count in it.
    pub(crate) changes_at_most: Option<usize>,
}

/// What a step changes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Set {
    /// Replicas as `ready/spec`; the rest is starting.
    pub(crate) replicas: Option<String>,
    /// Of those that start, the ones that the scheduler cannot place.
    pub(crate) unschedulable: Option<u32>,
    /// Of the ready ones, those whose node is told to go.
    pub(crate) leaving: Option<u32>,
    /// Pods, counted from 0, that are in another phase than their place says.
    pub(crate) pods: Option<BTreeMap<usize, Phase>>,
    /// Requests waiting and running in all.
    pub(crate) waiting: Option<Signal>,
    pub(crate) running: Option<Signal>,
    /// KV use of each engine, 0..1. Default 0.005 for each running request.
    pub(crate) kv: Option<Signal>,
    /// Preemptions per minute, of each engine.
    pub(crate) preemptions_a_minute: Option<f64>,
    /// Counters of work stand still whatever the gauges say: of all engines, or by number.
    pub(crate) stuck: Option<Stuck>,
    /// What the engines have on their pages.
    pub(crate) exposes: Option<Exposes>,
    /// Engines that sleep, counted from 0.
    pub(crate) asleep: Option<Vec<usize>>,
    /// Engines that cannot be read: all of them, or by number; `{}` ends it.
    pub(crate) silent: Option<Silent>,
    /// What the devices say. Default nothing, ever.
    pub(crate) gpu: Option<Devices>,
    /// What a gateway in front says. Default nothing is configured.
    pub(crate) gateway: Option<Gateway>,
}

impl Set {
    /// This change on top of what stands already.
    pub(crate) fn over(&self, standing: Set) -> Set {
        let new = self.clone();
        Set {
            replicas: new.replicas,
            unschedulable: new.unschedulable.or(standing.unschedulable),
            leaving: new.leaving.or(standing.leaving),
            pods: new.pods,
            waiting: new.waiting.or(standing.waiting),
            running: new.running.or(standing.running),
            kv: new.kv.or(standing.kv),
            preemptions_a_minute: new.preemptions_a_minute.or(standing.preemptions_a_minute),
            stuck: new.stuck.or(standing.stuck),
            exposes: new.exposes.or(standing.exposes),
            asleep: new.asleep.or(standing.asleep),
            silent: new.silent.or(standing.silent),
            gpu: new.gpu.or(standing.gpu),
            gateway: new.gateway.or(standing.gateway),
        }
    }
}

/// A number in the course of a step.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Signal {
    /// The same at each tick.
    Steady(f64),
    /// One after the other at each tick, over and over.
    Cycle { cycle: Vec<f64> },
    /// From the first to the second over the step.
    Ramp { ramp: [f64; 2] },
    /// By engine, where the others are told in all.
    Each { each: Vec<f64> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Exposes {
    All,
    Gauges,
    Counters,
    Nothing,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Stuck {
    All(bool),
    Some(Vec<usize>),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Silent {
    All(Why),
    Some(BTreeMap<usize, Why>),
}

/// GPU activity, 0..1, or none any more.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Devices {
    Fresh { busy: f64, sm: Option<f64> },
    Lost(Lost),
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Lost {
    Lost,
}

/// Demand in front of the engines.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Gateway {
    /// Requests that it holds.
    pub(crate) queued: f64,
    /// One arrives at the first tick of the step, or at each of them.
    pub(crate) arrives: Arrives,
    /// It cannot be read.
    pub(crate) unknown: Option<Why>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Arrives {
    #[default]
    Never,
    Once,
    Always,
}

/// What one decision has to be. What is not given may be anything.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Expect {
    pub(crate) want: Option<u32>,
    pub(crate) at_least: Option<u32>,
    pub(crate) at_most: Option<u32>,
    /// What IsActive answers.
    pub(crate) active: Option<bool>,
    /// An error is answered, no value.
    pub(crate) unavailable: Option<bool>,
    pub(crate) health: Option<Healthy>,
    /// Why it is degraded.
    pub(crate) why: Option<Why>,
    /// The rule that set the count.
    pub(crate) rule: Option<Rule>,
    /// The reason that a rule gives, by its code.
    pub(crate) says: BTreeMap<Rule, String>,
    /// Requests waiting, as the decision counts them.
    pub(crate) waiting: Option<f64>,
    /// The engines whose queue does not move, by their pods.
    pub(crate) stuck: Option<Vec<String>>,
    /// The time until a woken replica serves lies between these; `[]` for no such time.
    pub(crate) eta: Option<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Healthy {
    Ok,
    Starting,
    Degraded,
    NotYetObserved,
}

fn millis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    parse_millis(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

fn some_millis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    millis(deserializer).map(Some)
}
