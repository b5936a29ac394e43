//! The API's JSON: what is shown of a workload, and how it is put together from a published
//! snapshot.
//!
//! Must not decide, and must not hold anything longer than a request: memory stays the registry's.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::words;
use crate::decision::{
    Answer, DEFAULT_TOLERANCE, Decision, Engine, HpaEffect, KeptSample, Mode, Moment, Phase,
    Reading, Reason, Rule, Spec, Why, hpa_effect,
};
use crate::inventory::{self, Counted, Inventory, Room, Start, WorkloadKey};
use crate::registry::{Caller, Published, Rpc, Tracker, Untracked};
use crate::trigger::{Faults, Remark};

/// One page of workloads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// Ordered by namespace, name and trigger.
    pub workloads: Vec<Workload>,
    /// The `after` of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The workloads of this page's part of the list that have triggers which are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
}

/// A workload with triggers that are refused, so that they are in no other entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// The ScaledObject's namespace.
    pub namespace: String,
    /// The ScaledObject's name.
    pub name: String,
    /// What is wrong with each of them, with all its faults.
    pub faults: Vec<String>,
}

impl Refused {
    /// What is wrong with the triggers of one workload.
    #[must_use]
    pub fn new(key: &WorkloadKey, faults: &[Faults]) -> Refused {
        Refused {
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            faults: faults.iter().map(whole).collect(),
        }
    }
}

/// A workload in short. `None` means not known, never zero.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// The ScaledObject's namespace.
    pub namespace: String,
    /// The ScaledObject's name.
    pub name: String,
    /// Which of its triggers, by the hash of the metadata, 16 hex digits.
    pub trigger: String,
    /// What the rules want; in shadow mode not what is answered.
    pub want: Option<u32>,
    /// KEDA's IsActive.
    pub active: Option<bool>,
    /// Replicas ordered.
    pub spec: Option<u32>,
    /// Replicas serving.
    pub ready: Option<u32>,
    /// Replicas on their way.
    pub starting: Option<u32>,
    /// Fewest replicas.
    pub min: Option<u32>,
    /// Most replicas.
    pub max: Option<u32>,
    /// Requests waiting, over all engines.
    pub waiting: Option<f64>,
    /// Requests running, over all engines.
    pub running: Option<f64>,
    /// `ok`, `starting`, `degraded` or `not_yet_observed`.
    pub health: String,
    /// The rule that set `want`.
    pub binding: Option<Rule>,
    /// `act` or `shadow`.
    pub mode: Option<Mode>,
    /// The ScaledObject is paused: KEDA neither asks for it nor scales it.
    pub paused: bool,
    /// Counts the published decisions of this process.
    pub version: u64,
    /// Milliseconds since the decision was made.
    pub age_ms: u64,
    /// What KEDA is answered.
    pub answer: Answer,
    /// One sentence for a person.
    pub summary: String,
    /// What each rule said, for a person, without those that had nothing to say.
    pub reasons: Vec<String>,
}

/// A workload in full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// In short.
    #[serde(flatten)]
    pub workload: Workload,
    /// All triggers of this workload; `?trigger=` picks another than the first.
    pub triggers: Vec<String>,
    /// What the HPA will do with the value; `None` without a count to compare.
    pub hpa: Option<Hpa>,
    /// What Kubernetes alone says; `None` where the workload is the configuration's.
    #[serde(default)]
    pub cluster: Option<Cluster>,
    /// When KEDA last asked.
    pub asked: Vec<Asked>,
    /// Pods or endpoints, each with its reading.
    pub members: Vec<Member>,
    /// What each rule wanted, in words, without those that had nothing to say.
    pub votes: Vec<VoteText>,
    /// What would change the answer, in words.
    pub next: Vec<String>,
    /// Keys of the trigger that have no effect, each with the reason.
    #[serde(default)]
    pub remarks: Vec<String>,
    /// Other triggers of the workload, or other values of this one, that are refused: each with all
    /// its faults.
    #[serde(default)]
    pub refused: Vec<String>,
    /// The policy in force.
    pub policy: Option<Arc<Spec>>,
    /// The decision as data.
    pub decision: Option<Arc<Decision>>,
}

/// What the HPA will do with the value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hpa {
    /// Replicas that the HPA compares with: those ordered.
    pub current: u32,
    /// The value that it is given.
    pub want: u32,
    /// With the default tolerance of 10 %.
    pub default_tolerance: HpaEffect,
    /// With `behavior` tolerance "0", as recommended.
    pub zero_tolerance: HpaEffect,
    /// With the tolerance of the HPA that was read.
    #[serde(default)]
    pub own_tolerance: Option<HpaEffect>,
    /// The HPA that was read.
    #[serde(default)]
    pub name: Option<String>,
    /// Its tolerance for a step in this direction, 0..1: its own, else the controller's default.
    #[serde(default)]
    pub tolerance: Option<f64>,
    /// In words.
    pub text: String,
}

/// What Kubernetes alone says of a workload.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Devices that one replica asks for, by resource name or device class.
    pub devices: BTreeMap<Arc<str>, u32>,
    /// The same devices on the nodes, as far as nodes may be read.
    pub room: BTreeMap<Arc<str>, Room>,
    /// How long a replica takes to start, by those that have.
    pub start: Option<Start>,
    /// What matters of it, in words.
    pub said: Vec<String>,
}

/// When one role of KEDA last called one method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The method.
    pub rpc: String,
    /// `poll` (no deadline) or `hpa`.
    pub caller: String,
    /// Milliseconds since.
    pub age_ms: u64,
}

/// One pod or endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// The pod's name, or the endpoint's address.
    pub id: String,
    /// Where in its life it is; `None` for a configured endpoint, of which only its answers tell.
    pub phase: Option<Phase>,
    /// `fresh`, `stale` or `missing`.
    pub reading: String,
    /// Age of the sample in milliseconds.
    pub age_ms: Option<u64>,
    /// Why the reading is not fresh.
    pub why: Option<Why>,
    /// Requests waiting at it, by the last sample.
    pub waiting: Option<f64>,
    /// Requests running on it, by the last sample.
    pub running: Option<f64>,
    /// KV-cache use, 0..1, by the last sample.
    pub kv_usage: Option<f64>,
    /// Whether it sleeps, by the last sample; `None` where the engine does not tell.
    #[serde(default)]
    pub asleep: Option<bool>,
}

/// One rule's say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VoteText {
    /// The rule.
    pub rule: Rule,
    /// The count it wanted.
    pub want: Option<u32>,
    /// Why, with its numbers.
    pub text: String,
}

impl Workload {
    /// In short, as of `now`.
    #[must_use]
    pub fn new(
        tracker: &Tracker,
        published: &Published,
        inventory: &Inventory,
        now: Moment,
    ) -> Workload {
        let key = &tracker.key.workload;
        let known = inventory.workloads.get(key);
        let decision = published.decision.as_deref();
        let policy = published.spec.as_deref();
        let inputs = decision.map(|decision| &decision.inputs);
        let observed = tracker.observed.load();
        let engines = observed.as_deref().map_or(&[][..], |observed| &observed.engines);
        let (answered, active) = match published.answer {
            Answer::Value { want, active } => (Some(want), Some(active)),
            Answer::Unavailable { .. } => (None, None),
        };
        let spec = known.and_then(|known| known.replicas.spec);
        // Where the engines' own answers count the ready ones, nothing is counted before a decision.
        let counted = known
            .filter(|known| known.counted == Counted::ByKubernetes)
            .map(|known| known.replicas);
        let ready = counted.map(|counts| counts.ready);
        let starting = counted.map(|counts| counts.starting);
        let (min, max) = (known.map(|known| known.min), known.map(|known| known.max));
        let reasons = decision.map_or_else(Vec::new, |decision| {
            vote_texts(decision)
                .map(|vote| format!("{}: {}", vote.rule.label(), vote.text))
                .collect()
        });
        Workload {
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            trigger: tracker.key.trigger_id(),
            want: decision.map_or(answered, Decision::wanted),
            active,
            spec: inputs.map_or(spec, |inputs| inputs.spec),
            ready: inputs.map_or(ready, |inputs| Some(inputs.ready)),
            starting: inputs.map_or(starting, |inputs| Some(inputs.starting)),
            min: policy.map_or(min, |policy| Some(policy.min)),
            max: policy.map_or(max, |policy| Some(policy.max)),
            waiting: inputs.and_then(|inputs| inputs.waiting),
            running: inputs.and_then(|inputs| inputs.running),
            health: decision
                .map_or("not_yet_observed", |decision| words::health_label(decision.health))
                .to_owned(),
            binding: decision.map(|decision| decision.binding),
            mode: policy.map(|policy| policy.mode),
            paused: known.is_some_and(|known| known.paused),
            version: published.version,
            age_ms: now.millis_since(published.at),
            answer: published.answer,
            summary: words::summary(&published.answer, decision, policy, engines),
            reasons,
        }
    }
}

impl Snapshot {
    /// In full, as of `now`. `triggers` are the ids of all trackers of the workload.
    #[must_use]
    pub fn new(
        tracker: &Tracker,
        triggers: Vec<String>,
        untracked: &Untracked,
        inventory: &Inventory,
        now: Moment,
    ) -> Snapshot {
        let published = tracker.published.load_full();
        let workload = Workload::new(tracker, &published, inventory, now);
        let policy = published.spec.clone();
        let decision = published.decision.clone();
        let known = inventory.workloads.get(&tracker.key.workload);
        let answered = match workload.answer {
            Answer::Value { want, .. } => Some(want),
            Answer::Unavailable { .. } => None,
        };
        let its_hpa = known.and_then(|known| known.kubernetes.hpa.as_deref());
        let hpa =
            answered.zip(workload.spec).map(|(want, current)| Hpa::new(current, want, its_hpa));
        let cluster = known
            .filter(|known| known.counted == Counted::ByKubernetes)
            .map(|known| Cluster::new(known, inventory, answered, now));
        Snapshot {
            triggers,
            hpa,
            cluster,
            asked: asked(tracker),
            members: members(tracker, inventory),
            votes: decision
                .as_deref()
                .map_or_else(Vec::new, |decision| vote_texts(decision).collect()),
            next: decision
                .as_deref()
                .map_or_else(Vec::new, |decision| words::next(decision, policy.as_deref())),
            remarks: tracker.remarks.load().as_deref().map_or_else(Vec::new, |remarks| {
                let text = |remark: &Remark| format!("{}: {}", remark.key, remark.text);
                remarks.iter().map(text).collect()
            }),
            refused: refused(untracked),
            policy,
            decision,
            workload,
        }
    }
}

impl Hpa {
    fn new(current: u32, want: u32, known: Option<&inventory::Hpa>) -> Hpa {
        Hpa {
            current,
            want,
            default_tolerance: hpa_effect(current, want, DEFAULT_TOLERANCE),
            zero_tolerance: hpa_effect(current, want, 0.0),
            own_tolerance: known.map(|known| words::effect(current, want, Some(known))),
            name: known.map(|known| known.name.to_string()),
            tolerance: known.map(|known| known.tolerance(want > current)),
            text: words::hpa(current, want, known),
        }
    }
}

impl Cluster {
    fn new(
        known: &inventory::Workload,
        inventory: &Inventory,
        answered: Option<u32>,
        now: Moment,
    ) -> Cluster {
        let devices = &*known.kubernetes.devices;
        let room = |name: &Arc<str>| Some((Arc::clone(name), *inventory.room.get(name)?));
        Cluster {
            devices: devices.clone(),
            room: devices.keys().filter_map(room).collect(),
            start: known.kubernetes.start,
            said: words::cluster(known, inventory, answered, now),
        }
    }
}

/// What is wrong with each trigger that is refused, without the limit that an event's text has.
pub(super) fn refused(untracked: &Untracked) -> Vec<String> {
    untracked.refused.iter().map(whole).collect()
}

fn whole(faults: &Faults) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn vote_texts(decision: &Decision) -> impl Iterator<Item = VoteText> {
    let said = decision.votes.iter().filter(|vote| vote.reason != Reason::Silent);
    said.map(|vote| VoteText { rule: vote.rule, want: vote.want, text: vote.reason.to_string() })
}

fn asked(tracker: &Tracker) -> Vec<Asked> {
    let pairs = Rpc::ALL.into_iter().flat_map(|rpc| Caller::ALL.map(|caller| (rpc, caller)));
    pairs
        .filter_map(|(rpc, caller)| {
            let age_ms = tracker.asked(rpc, caller)?;
            let (rpc, caller) = (rpc.label().to_owned(), caller.label().to_owned());
            Some(Asked { rpc, caller, age_ms })
        })
        .collect()
}

/// The members of the last observation; before the first one those of the inventory.
fn members(tracker: &Tracker, inventory: &Inventory) -> Vec<Member> {
    let known = inventory.workloads.get(&tracker.key.workload);
    let mut members: Vec<Member> = match &*tracker.observed.load() {
        Some(observation) => observation.engines.iter().map(Member::observed).collect(),
        None => {
            let members = known.map_or(&[][..], |known| &known.members);
            members.iter().map(|member| Member::unread(&member.id, member.phase)).collect()
        }
    };
    if known.is_some_and(|known| known.counted == Counted::ByAnswers) {
        members.iter_mut().for_each(|member| member.phase = None);
    }
    members
}

impl Member {
    fn unread(id: &str, phase: Phase) -> Member {
        Member {
            id: id.to_owned(),
            phase: Some(phase),
            reading: "missing".to_owned(),
            age_ms: None,
            why: Some(Why::NotYetRead),
            waiting: None,
            running: None,
            kv_usage: None,
            asleep: None,
        }
    }

    fn observed(engine: &Engine) -> Member {
        let (reading, age_ms) = match &engine.reading {
            Reading::Fresh { age_ms, .. } => ("fresh", Some(*age_ms)),
            Reading::Stale { age_ms, .. } => ("stale", Some(*age_ms)),
            Reading::Missing { .. } => ("missing", None),
        };
        let last = engine.reading.last().map(KeptSample::get);
        Member {
            reading: reading.to_owned(),
            age_ms,
            why: engine.reading.why(),
            waiting: last.and_then(|sample| sample.waiting),
            running: last.and_then(|sample| sample.running),
            kv_usage: last.and_then(|sample| sample.kv_usage),
            asleep: last.and_then(|sample| sample.asleep),
            ..Member::unread(&engine.id, engine.phase)
        }
    }
}
