//! The product as a policy: its own `observe` and `decide`, fed with what it would have read.
//!
//! Must not decide anything, nor pass on anything that a scrape or the Kubernetes API does not say.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::policy::{Action, Actuation, Behavior, Learning, Policy, Source, Target, View};
use crate::decision::{
    Answer, Decision, LevelSource, Moment, Replicas, Spec, State, Wake, WakeReading, decide,
};
use crate::inventory::{Counted, Kubernetes, Member, Workload, WorkloadKey};
use crate::observe::{Around, observe};
use crate::signals::freshness::Freshness;

/// Seconds between two notes of what has been learned.
const COURSE_STEP_S: f64 = 60.0;

/// The scaler, scraping the pods itself.
#[derive(Debug)]
pub struct Ghostscaler {
    spec: Spec,
    state: State,
    /// What each engine said last, by the id of its pod.
    memories: BTreeMap<u32, Freshness>,
    workload: Workload,
    decision: Option<Decision>,
    arrived: f64,
    last_arrival_at: Option<Moment>,
    learning: Learning,
}

impl Ghostscaler {
    /// A new scaler with that policy, which knows nothing yet.
    #[must_use]
    pub fn new(spec: Spec) -> Ghostscaler {
        let workload = Workload {
            key: WorkloadKey::new("simulate", "workload"),
            min: spec.min,
            max: spec.max,
            fallback_replicas: None,
            triggers: Vec::new(),
            replicas: Replicas::default(),
            members: Vec::new(),
            counted: Counted::ByKubernetes,
            gpus_per_replica: spec.gpus_per_replica,
            paused: false,
            kubernetes: Kubernetes::default(),
        };
        Ghostscaler {
            spec,
            state: State::default(),
            memories: BTreeMap::new(),
            workload,
            decision: None,
            arrived: 0.0,
            last_arrival_at: None,
            learning: Learning::default(),
        }
    }

    fn take_in(&mut self, view: &View<'_>, now: Moment) {
        for engine in view.engines {
            self.memories.entry(engine.id).or_default().record(engine.sample, now);
        }
        let exists = |id: &u32| view.pods.binary_search_by_key(id, |pod| pod.id).is_ok();
        self.memories.retain(|id, _| exists(id));
        let counts = view.counts;
        self.workload.replicas = Replicas {
            spec: Some(counts.spec),
            ready: counts.ready,
            starting: counts.starting - counts.unschedulable,
            terminating: counts.terminating,
            unschedulable: counts.unschedulable,
            rollout: view.updating,
            ..Replicas::default()
        };
        let listed = self.workload.members.iter().zip(view.pods);
        let same = self.workload.members.len() == view.pods.len()
            && listed
                .into_iter()
                .all(|(member, pod)| member.phase == pod.phase && id_of(member) == Some(pod.id));
        if !same {
            let members = view.pods.iter().map(|pod| Member {
                id: Arc::from(name_of(pod.id)),
                phase: pod.phase,
                created_at: Some(moment(pod.created_at_s)),
                ready_at: pod.ready_at_s.map(moment),
                endpoint: None,
                node: None,
            });
            self.workload.members = members.collect();
        }
        if view.arrived > self.arrived {
            self.last_arrival_at = Some(now);
        }
        self.arrived = view.arrived;
    }

    fn around(&self, view: &View<'_>) -> Around {
        let queued = view.held;
        let source = self
            .spec
            .has_wake_source
            .then_some(WakeReading::Fresh { queued, last_arrival_at: self.last_arrival_at });
        Around { wake: Wake { source, requested_at: None }, ..Around::default() }
    }

    fn note_learning(&mut self, decision: &Decision, now_s: f64) {
        let Some(last) = &self.decision else {
            self.learning.began_s = now_s;
            return;
        };
        let step_s = decision.at.secs_since(last.at);
        let learning = &mut self.learning;
        learning.seconds += step_s;
        let in_force = decision.inputs.level_source == LevelSource::CostModel;
        if in_force {
            learning.in_force_s += step_s;
            learning.in_force_after_s.get_or_insert(learning.seconds);
        }
        let is_due = learning.course.last().is_none_or(|(at_s, _)| now_s - at_s >= COURSE_STEP_S);
        // A fit that is not in force passes by the truth on its way, and nobody is served by it.
        if let Some(model) = decision.inputs.model.filter(|_| is_due && in_force) {
            learning.course.push((now_s, model));
        }
    }
}

impl Policy for Ghostscaler {
    fn tick_s(&self) -> f64 {
        // As the tick of `serve`: never below 200 ms.
        self.decision.as_ref().map_or(5.0, |decision| decision.next_tick_ms.max(200) as f64 / 1e3)
    }

    fn source(&self) -> Source {
        Source::Direct
    }

    fn actuation(&self) -> Actuation {
        // What `generate` writes.
        let behavior = Behavior::pass_through(self.spec.max);
        Actuation::Keda { behavior: Some(behavior), push: true }
    }

    /// All of it: what it has learned of the engine.
    fn memory_s(&self) -> f64 {
        f64::MAX
    }

    fn tick(&mut self, view: &View<'_>) -> Action {
        let now = moment(view.now_s);
        self.take_in(view, now);
        let memories = &self.memories;
        let tick_ms = self.spec.tick_ms;
        let reading = |member: &Member| {
            let memory = id_of(member).and_then(|id| memories.get(&id));
            memory.map_or_else(
                || Freshness::default().reading(now, tick_ms),
                |memory| memory.reading(now, tick_ms),
            )
        };
        let observation = observe(&self.workload, reading, self.around(view), now);
        let state = std::mem::take(&mut self.state);
        let (decision, state) = decide(&self.spec, state, &observation, now);
        self.state = state;
        self.note_learning(&decision, view.now_s);
        let action = match decision.answer {
            Answer::Value { want, active } => {
                let metric = super::policy::Metric {
                    value: f64::from(want),
                    target: Target::AverageValue(1.0),
                };
                Action::Metrics { metrics: vec![metric], active }
            }
            Answer::Unavailable { .. } => Action::Keep,
        };
        self.decision = Some(decision);
        action
    }

    fn learning(&self) -> Option<&Learning> {
        Some(&self.learning)
    }
}

/// Pods are named so that their names sort as their ids do.
fn name_of(id: u32) -> String {
    format!("pod-{id:08}")
}

fn id_of(member: &Member) -> Option<u32> {
    member.id.strip_prefix("pod-").and_then(|id| id.parse().ok())
}

fn moment(seconds: f64) -> Moment {
    let millis = std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default().as_millis();
    Moment(i64::try_from(millis).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Phase;

    #[test]
    fn names_of_pods_lead_back_to_their_ids_in_order() {
        let member = |id| Member {
            id: Arc::from(name_of(id)),
            phase: Phase::Ready,
            created_at: None,
            ready_at: None,
            endpoint: None,
            node: None,
        };
        assert_eq!(id_of(&member(120)), Some(120));
        assert!(name_of(9) < name_of(10));
    }
}
