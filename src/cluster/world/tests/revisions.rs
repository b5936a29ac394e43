//! Targets that only their `/scale` is read of: groups of pods, and pods of two revisions of one template.

use super::*;
use crate::decision::{EngineSample, KeptSample, Reading, Spec, State, Why, decide};
use crate::observe::{Around, observe};

const MINUTE_MS: u64 = 60_000;

fn world() -> World {
    let engine = TargetRef {
        kind: TargetKind::Other {
            api_version: "leaderworkerset.x-k8s.io/v1".into(),
            kind: "LeaderWorkerSet".into(),
        },
        name: "llm".into(),
    };
    let mut world = listed();
    apply(&mut world, scaled_object_of("llm", engine.clone()));
    rebuild(&mut world);
    world.apply_scale(0, &"ns".into(), engine, Read::There(target(2, "app=llm")));
    world
}

/// A pod that came, and where it is ready turned so, that many minutes after `NOW`.
fn pod_of(name: &str, revision: &str, phase: Phase, created: u64, ready: Option<u64>) -> Change {
    pod_with(name, |pod| {
        let key = "leaderworkerset.sigs.k8s.io/template-revision-hash".to_owned();
        Arc::make_mut(&mut pod.labels).insert(key, revision.to_owned());
        pod.member.phase = phase;
        pod.member.created_at = Some(NOW.plus_millis(created * MINUTE_MS));
        pod.member.ready_at = ready.map(|minute| NOW.plus_millis(minute * MINUTE_MS));
    })
}

/// Until how many minutes after `NOW` it is a rollout.
fn rollout_until(world: &mut World) -> Option<u64> {
    let until = workload(&rebuild(world), "llm").kubernetes.rollout_until;
    until.map(|until| until.millis_since(NOW) / MINUTE_MS)
}

#[test]
fn two_revisions_are_a_rollout_until_all_pods_are_of_one() {
    let mut world = world();
    apply(&mut world, pod_of("llm-0", "old", Phase::Ready, 0, Some(2)));
    apply(&mut world, pod_of("llm-1", "old", Phase::Ready, 0, Some(2)));
    assert_eq!(rollout_until(&mut world), None);
    apply(&mut world, pod_of("llm-1", "new", Phase::Starting, 60, None));
    assert_eq!(rollout_until(&mut world), Some(60 + 240), "a start is believed for four hours");
    apply(&mut world, pod_of("llm-0", "old", Phase::Terminating, 0, None));
    assert_eq!(rollout_until(&mut world), None, "the last old one goes");
}

#[test]
fn two_revisions_that_stand_for_good_are_a_rollout_for_ten_minutes_after_the_last_move() {
    let mut world = world();
    apply(&mut world, pod_of("llm-0", "old", Phase::Ready, 0, Some(2)));
    apply(&mut world, pod_of("llm-1", "new", Phase::Ready, 60, Some(65)));
    assert_eq!(rollout_until(&mut world), Some(75), "since it turned ready");
    apply(&mut world, pod_of("llm-2", "old", Phase::Ready, 90, Some(93)));
    assert_eq!(rollout_until(&mut world), Some(103), "the set of pods is another");
}

#[test]
fn a_new_revision_that_cannot_start_and_an_old_one_that_flaps_are_no_rollout_for_good() {
    for obstacle in [Obstacle::CrashLooping, Obstacle::Unschedulable] {
        let mut world = world();
        apply(&mut world, pod_of("llm-0", "old", Phase::Ready, 0, Some(500)));
        let mut stuck = pod_of("llm-1", "new", Phase::Starting, 60, None);
        if let Change::Pod(Step::Put(_, pod)) = &mut stuck {
            pod.obstacle = Some(obstacle);
        }
        apply(&mut world, stuck);
        assert_eq!(rollout_until(&mut world), Some(70), "{obstacle:?}");
    }
}

#[test]
fn f101_a_canary_that_only_its_scale_is_read_of_holds_the_count_until_it_is_done() {
    let mut world = world();
    let rollout = TargetRef {
        kind: TargetKind::Other {
            api_version: "argoproj.io/v1alpha1".into(),
            kind: "Rollout".into(),
        },
        name: "llm".into(),
    };
    apply(&mut world, scaled_object_of("llm", rollout.clone()));
    world.rebuild();
    world.apply_scale(0, &"ns".into(), rollout, Read::There(target(10, "app=llm")));
    for index in 0..11 {
        let canary = index == 10;
        let hash = if canary { "new" } else { "stable" };
        apply(
            &mut world,
            pod_with(&format!("llm-{index:02}"), |pod| {
                let key = "rollouts-pod-template-hash".to_owned();
                Arc::make_mut(&mut pod.labels).insert(key, hash.to_owned());
                pod.member.created_at = Some(NOW.plus_millis(u64::from(canary)));
            }),
        );
    }
    let inventory = rebuild(&mut world);
    let seen = |now| {
        let none = |_: &Member| Reading::Missing { why: Why::NotYetRead };
        let seen = observe(workload(&inventory, "llm"), none, Around::default(), now);
        (seen.replicas.spec, seen.replicas.ready, seen.replicas.rollout)
    };
    assert_eq!(seen(NOW.plus_millis(600_000)), (Some(10), 10, true));
    assert_eq!(seen(NOW.plus_millis(600_001)), (Some(10), 10, false), "it rests");
}

#[test]
fn f92_requests_for_three_groups_of_two_pods_ask_for_three_and_not_for_six() {
    let mut world = world();
    for (group, index) in [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")] {
        apply(
            &mut world,
            pod_with(&format!("llm-{group}-{index}"), |pod| {
                let labels = Arc::make_mut(&mut pod.labels);
                for (key, value) in [("group-key", group), ("worker-index", index)] {
                    labels.insert(format!("leaderworkerset.sigs.k8s.io/{key}"), value.to_owned());
                }
                pod.group_size = 2;
                pod.devices = Arc::new([(devices::GPU_RESOURCE.into(), 8)].into());
            }),
        );
    }
    let inventory = rebuild(&mut world);
    let workload = workload(&inventory, "llm");
    let counted = (workload.replicas.spec, workload.replicas.ready, workload.gpus_per_replica);
    assert_eq!(counted, (Some(2), 2, Some(16)));
    // Twelve at once, four a replica.
    let value = EngineSample { running: Some(2.0), waiting: Some(4.0), ..EngineSample::default() };
    let value = KeptSample::from(value);
    let reading = |_: &Member| Reading::Fresh { value: value.clone(), age_ms: 0 };
    let seen = observe(workload, reading, Around::default(), NOW);
    let spec = Spec { max: 9, target_in_flight: Some(4.0), ..Spec::default() };
    assert_eq!(decide(&spec, State::default(), &seen, NOW).0.want, 3);
}
