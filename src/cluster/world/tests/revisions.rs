//! Pods of two revisions of one template, of a target that does not say whether it rolls out.

use super::*;

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
