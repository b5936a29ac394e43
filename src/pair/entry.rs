//! What is published of a trigger, to a message and back.
//!
//! Must take an answer even where its details cannot be read: during an update the two ends may be of
//! different versions, and the answer is what KEDA waits for.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::wire;
use crate::decision::{Answer, Decision, Moment, Observation, Spec, State, Unavailable};
use crate::inventory::WorkloadKey;
use crate::registry::{Published, Tracker, TrackerKey};

#[derive(Serialize)]
struct DetailsOut<'a> {
    decision: &'a Decision,
    spec: &'a Spec,
    observation: Option<&'a Observation>,
}

#[derive(Deserialize)]
struct DetailsIn {
    decision: Arc<Decision>,
    spec: Arc<Spec>,
    observation: Option<Arc<Observation>>,
}

/// An entry as it arrived.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) key: TrackerKey,
    pub(super) published: Published,
    pub(super) observation: Option<Arc<Observation>>,
    pub(super) state: Option<State>,
    /// Something of it could not be read.
    pub(super) is_partial: bool,
}

pub(super) fn workload(key: &WorkloadKey) -> wire::Workload {
    wire::Workload { namespace: key.namespace.to_string(), name: key.name.to_string() }
}

/// The message of what is published, with the state where it shall be sent.
pub(super) fn entry(
    tracker: &Tracker,
    published: &Published,
    state: Option<&State>,
) -> wire::Entry {
    let observation = tracker.observed.load();
    let details =
        published.decision.as_deref().zip(published.spec.as_deref()).map(|(decision, spec)| {
            DetailsOut { decision, spec, observation: observation.as_deref() }
        });
    wire::Entry {
        workload: Some(workload(&tracker.key.workload)),
        trigger: tracker.key.trigger,
        version: published.version,
        published_at_ms: published.at.0,
        answer: Some(answer(published.answer)),
        details: details.map(|details| json(&details)).unwrap_or_default(),
        state: state.map(json).unwrap_or_default(),
    }
}

/// Reads an entry; `later_ms` is by how much this process's clock is ahead of the leader's. `None`
/// where even the answer is missing.
pub(super) fn received(entry: wire::Entry, later_ms: i64) -> Option<Received> {
    let workload = entry.workload?;
    let workload = WorkloadKey::new(&workload.namespace, &workload.name);
    let answer = match entry.answer?.kind? {
        wire::answer::Kind::Value(value) => {
            Answer::Value { want: value.want, active: value.active }
        }
        wire::answer::Kind::Unavailable(why) => Answer::Unavailable {
            why: match wire::Unavailable::try_from(why).ok()? {
                wire::Unavailable::NothingKnown => Unavailable::NothingKnown,
                wire::Unavailable::SourceLost => Unavailable::SourceLost,
            },
        },
    };
    let details: Option<DetailsIn> = serde_json::from_slice(&entry.details).ok();
    let state: Option<State> = serde_json::from_slice(&entry.state).ok();
    let is_partial = (details.is_none() && !entry.details.is_empty())
        || (state.is_none() && !entry.state.is_empty());
    let (decision, spec, observation) = details.map_or((None, None, None), |details| {
        (Some(details.decision), Some(details.spec), details.observation)
    });
    let at = Moment(entry.published_at_ms.saturating_add(later_ms));
    Some(Received {
        key: TrackerKey { workload, trigger: entry.trigger },
        // Version 0 means that there is no answer but the present count.
        published: Published { version: entry.version.max(1), at, answer, decision, spec },
        observation,
        state,
        is_partial,
    })
}

fn answer(answer: Answer) -> wire::Answer {
    use wire::answer::Kind;
    let kind = match answer {
        Answer::Value { want, active } => Kind::Value(wire::Value { want, active }),
        Answer::Unavailable { why } => Kind::Unavailable(i32::from(match why {
            Unavailable::NothingKnown => wire::Unavailable::NothingKnown,
            Unavailable::SourceLost => wire::Unavailable::SourceLost,
        })),
    };
    wire::Answer { kind: Some(kind) }
}

/// No value of these types fails to be written: their keys are text.
fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
