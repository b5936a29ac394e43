//! Joins what the inventory knows with what the sources read into one [`Observation`].
//!
//! Pure: no IO, no clock; the readings and the moment are arguments.

use std::sync::Arc;

use crate::decision::{
    Engine, Gpu, KeptSample, Moment, Observation, Phase, Reading, Replicas, Wake, Why,
};
use crate::inventory::{Counted, Member, Workload};

/// What the sources say of one workload, beside its engines.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Around {
    /// GPU utilisation of its devices.
    pub gpu: Gpu,
    /// Demand in front of the engines.
    pub wake: Wake,
    /// Replicas that the warm schedule asks for, its lead included.
    pub schedule_floor: u32,
    /// The count that the trigger's `override` sets, while it is in force.
    pub by_hand: Option<u32>,
}

/// How long an engine may load behind a probe that already says Ready, or at an address that the
/// configuration lists: longer, and its silence is a fault. Some launchers answer the probe before
/// the weights are there.
const LOADING_MS: u64 = 600_000;

/// Builds the observation of one tick. `reading` gives the state of a member's metrics by its id.
pub fn observe(
    workload: &Workload,
    reading: impl Fn(&Member) -> Reading<KeptSample>,
    around: Around,
    now: Moment,
) -> Observation {
    let mut engines: Vec<Engine> = workload
        .members
        .iter()
        .map(|member| Engine {
            id: Arc::clone(&member.id),
            phase: member.phase,
            ready_ms: member.ready_at.map(|at| now.millis_since(at)),
            reading: match member.phase {
                // Its last series may live on in a source; they are nobody's load any more.
                Phase::Terminating => Reading::Missing { why: Why::PodGone },
                Phase::Starting | Phase::Ready | Phase::NotReady => reading(member),
            },
        })
        .collect();
    let refuses = |engine: &Engine| engine.reading == Reading::Missing { why: Why::Refused };
    let mut replicas = match workload.counted {
        Counted::ByKubernetes => {
            let loads = |engine: &Engine, _: &Member| {
                engine.phase == Phase::Ready
                    && refuses(engine)
                    && engine.ready_ms.is_some_and(|ready_ms| ready_ms < LOADING_MS)
            };
            let n_loading = start_those(&mut engines, &workload.members, loads);
            loading(workload.replicas, n_loading)
        }
        Counted::ByAnswers => {
            let loads = |engine: &Engine, member: &Member| {
                let is_new = |listed_at| now.millis_since(listed_at) < LOADING_MS;
                refuses(engine) && member.created_at.is_none_or(is_new)
            };
            start_those(&mut engines, &workload.members, loads);
            count_answers(workload.replicas, &engines)
        }
    };
    replicas.rollout |= workload.kubernetes.rollout_until.is_some_and(|until| now < until);
    Observation {
        replicas,
        engines: engines.into(),
        gpu: around.gpu,
        wake: around.wake,
        schedule_floor: around.schedule_floor,
        by_hand: around.by_hand,
    }
}

/// Counts these engines as starting; how many there are.
fn start_those(
    engines: &mut [Engine],
    members: &[Member],
    are: impl Fn(&Engine, &Member) -> bool,
) -> u32 {
    let mut n = 0;
    for (engine, member) in engines.iter_mut().zip(members) {
        if are(engine, member) {
            engine.phase = Phase::Starting;
            n += 1;
        }
    }
    n
}

/// A pod that is Ready before its engine is, is on its way.
fn loading(counted: Replicas, n_loading: u32) -> Replicas {
    let n_loading = n_loading.min(counted.ready);
    Replicas {
        ready: counted.ready - n_loading,
        starting: counted.starting.saturating_add(n_loading),
        ..counted
    }
}

/// Without Kubernetes an engine that has answered is ready, and one that never has is starting. Once
/// it refuses for longer than one may load, nothing is on its way any more: what was ready in a cluster
/// would count as ready, and silent.
fn count_answers(configured: Replicas, engines: &[Engine]) -> Replicas {
    let Some(spec) = configured.spec else { return configured };
    let is_there = |engine: &&Engine| {
        let refuses = engine.reading.why() == Some(Why::Refused);
        engine.reading.last().is_some() || (refuses && engine.phase == Phase::Ready)
    };
    let n_there = engines.iter().filter(is_there).count();
    let ready = u32::try_from(n_there).unwrap_or(u32::MAX).min(spec);
    Replicas { ready, starting: spec - ready, ..configured }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{EngineSample, Health, Spec, State, decide};
    use crate::inventory::{Kubernetes, WorkloadKey};

    fn member(id: &str, phase: Phase) -> Member {
        Member {
            id: id.into(),
            phase,
            created_at: None,
            ready_at: Some(Moment(1_000)),
            endpoint: None,
            node: None,
        }
    }

    fn workload(counted: Counted, members: Vec<Member>) -> Workload {
        Workload {
            key: WorkloadKey::new("a", "b"),
            min: 0,
            max: 8,
            fallback_replicas: None,
            triggers: Vec::new(),
            replicas: Replicas { spec: Some(3), ready: 2, ..Replicas::default() },
            members,
            counted,
            gpus_per_replica: None,
            paused: false,
            kubernetes: Kubernetes::default(),
        }
    }

    fn fresh(_: &Member) -> Reading<KeptSample> {
        Reading::Fresh { value: EngineSample::default().into(), age_ms: 0 }
    }

    #[test]
    fn without_kubernetes_an_engine_that_answered_is_ready_and_the_rest_is_starting() {
        let members = vec![member("x", Phase::Ready), member("y", Phase::Ready)];
        let silent = |member: &Member| {
            if &*member.id == "x" { fresh(member) } else { Reading::Missing { why: Why::Refused } }
        };
        let seen = observe(
            &workload(Counted::ByAnswers, members),
            silent,
            Around::default(),
            Moment(5_000),
        );
        assert_eq!((seen.replicas.ready, seen.replicas.starting), (1, 2));
        assert_eq!(seen.engines[0].ready_ms, Some(4_000));
    }

    #[test]
    fn a_listed_engine_that_refuses_for_longer_than_one_may_load_is_not_told_as_starting() {
        let refused = |_: &Member| Reading::Missing { why: Why::Refused };
        let counts_at = |now_ms| {
            let created_at = Some(Moment(1_000));
            let listed = Member { created_at, ready_at: None, ..member("x", Phase::Ready) };
            let replicas = Replicas { spec: Some(1), ..Replicas::default() };
            let workload = Workload { replicas, ..workload(Counted::ByAnswers, vec![listed]) };
            let seen = observe(&workload, refused, Around::default(), Moment(now_ms));
            let decision = decide(&Spec::default(), State::default(), &seen, Moment(now_ms)).0;
            (seen.replicas.starting, decision.inputs.starting)
        };
        assert_eq!(counts_at(600_999), (1, 1));
        assert_eq!(counts_at(601_000), (0, 0));
    }

    #[test]
    fn a_listed_engine_that_never_answers_is_starting_for_as_long_as_one_may_load() {
        let refused = |_: &Member| Reading::Missing { why: Why::Refused };
        let health_at = |now_ms| {
            let created_at = Some(Moment(1_000));
            let listed = Member { created_at, ready_at: None, ..member("x", Phase::Ready) };
            let replicas = Replicas { spec: Some(1), ..Replicas::default() };
            let workload = Workload { replicas, ..workload(Counted::ByAnswers, vec![listed]) };
            let seen = observe(&workload, refused, Around::default(), Moment(now_ms));
            decide(&Spec::default(), State::default(), &seen, Moment(now_ms)).0.health
        };
        assert_eq!(health_at(600_999), Health::Starting);
        let since = Moment(601_000);
        let degraded = Health::Degraded { since, why: Why::Refused, answered: 0, expected: 1 };
        assert_eq!(health_at(601_000), degraded);
    }

    #[test]
    fn kubernetes_counts_are_taken_as_they_are() {
        let seen = observe(
            &workload(Counted::ByKubernetes, Vec::new()),
            fresh,
            Around::default(),
            Moment(0),
        );
        assert_eq!((seen.replicas.spec, seen.replicas.ready), (Some(3), 2));
    }

    #[test]
    fn two_revisions_are_a_rollout_until_they_have_stood_for_long() {
        let mut workload = workload(Counted::ByKubernetes, Vec::new());
        workload.kubernetes.rollout_until = Some(Moment(600_000));
        let rolls_out =
            |now_ms| observe(&workload, fresh, Around::default(), Moment(now_ms)).replicas.rollout;
        assert!(rolls_out(599_999));
        assert!(!rolls_out(600_000));
    }

    #[test]
    fn an_engine_that_loads_behind_a_ready_probe_is_on_its_way_and_a_lasting_refusal_is_not() {
        let silent = |member: &Member| {
            if &*member.id == "x" { fresh(member) } else { Reading::Missing { why: Why::Refused } }
        };
        let members = || vec![member("x", Phase::Ready), member("y", Phase::Ready)];
        let at = |now_ms| {
            let workload = workload(Counted::ByKubernetes, members());
            let seen = observe(&workload, silent, Around::default(), Moment(now_ms));
            (seen.replicas.ready, seen.replicas.starting, seen.engines[1].phase)
        };
        // Ready since the first second.
        assert_eq!(at(91_000), (1, 1, Phase::Starting));
        assert_eq!(at(700_000), (2, 0, Phase::Ready));
    }

    #[test]
    fn f14_series_of_a_terminating_pod_are_nobodys_load() {
        let members = vec![member("x", Phase::Terminating)];
        let seen =
            observe(&workload(Counted::ByKubernetes, members), fresh, Around::default(), Moment(0));
        assert_eq!(seen.engines[0].reading, Reading::Missing { why: Why::PodGone });
    }
}
