//! What cannot be read, is not read yet, or can no longer be read.

use super::*;

/// What the API server answers where a role is missing.
fn refused() -> watcher::Error {
    let status =
        kube::core::Status { code: 403, reason: "Forbidden".to_owned(), ..Default::default() };
    watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
}

#[test]
fn a_namespace_that_may_not_be_read_is_unknown_after_half_a_minute_and_no_other_waits_for_it() {
    let mut world = World::new(&["ns".into(), "closed".into()]);
    for change in ends().into_iter().chain([scaled_object("llm"), deployment("llm", 3)]) {
        apply(&mut world, change);
    }
    let fail = |world: &mut World, error, at| {
        let change = Change::ScaledObject(Step::Failed(error));
        world.apply(Update { scope: 1, change }, NOW.plus_millis(at));
        rebuild(world)
    };
    assert!(!fail(&mut world, refused(), 0).synced, "its role may be bound in a moment");
    let inventory = fail(&mut world, refused(), 30_000);
    assert!(inventory.synced && inventory.knows("ns") && !inventory.knows("closed"));
    assert_eq!(inventory.stale_since("ns"), None);
    assert_eq!(inventory.stale_since("closed"), Some(NOW));
    for change in ends() {
        world.apply(Update { scope: 1, change }, NOW);
    }
    assert!(rebuild(&mut world).knows("closed"), "its role was bound at last");
}

#[test]
fn an_api_server_that_does_not_answer_is_waited_for() {
    let mut world = World::new(&["ns".into()]);
    for at in [0, 30_000, 600_000] {
        let change = Change::ScaledObject(Step::Failed(broken()));
        world.apply(Update { scope: 0, change }, NOW.plus_millis(at));
    }
    assert!(!rebuild(&mut world).synced);
    for at in [0, 600_000] {
        let change = Change::ScaledObject(Step::Failed(refused()));
        world.apply(Update { scope: 0, change }, NOW.plus_millis(at));
    }
    assert!(!rebuild(&mut world).synced, "it was the only namespace");
}

#[test]
fn a_server_that_comes_back_and_refuses_for_a_moment_is_not_given_up_on() {
    let mut world = World::new(&["ns".into(), "slow".into()]);
    for change in ends() {
        apply(&mut world, change);
    }
    let fail = |world: &mut World, error, at| {
        let change = Change::Pod(Step::Failed(error));
        world.apply(Update { scope: 1, change }, NOW.plus_millis(at));
        world.is_synced()
    };
    assert!(!fail(&mut world, broken(), 0));
    assert!(!fail(&mut world, refused(), 40_000), "refused for the first time");
    assert!(!fail(&mut world, broken(), 60_000));
    assert!(!fail(&mut world, refused(), 80_000), "and once more for the first time");
    assert!(fail(&mut world, refused(), 110_000), "for half a minute");
    assert_eq!(rebuild(&mut world).stale_since("slow"), Some(NOW), "not read since the start");
}

#[test]
fn a_scaled_object_that_can_no_longer_be_read_stays_as_it_was() {
    let mut world = listed();
    apply(&mut world, scaled_object("llm"));
    apply(&mut world, deployment("llm", 3));
    rebuild(&mut world);
    apply(&mut world, Change::ScaledObject(Step::Keep(key("llm"))));
    assert!(!world.is_changed());
    apply(&mut world, Change::ScaledObject(Step::Begin));
    apply(&mut world, Change::ScaledObject(Step::Keep(key("llm"))));
    apply(&mut world, Change::ScaledObject(Step::Done));
    assert!(!world.is_changed(), "the list has named it");
}

#[test]
fn nothing_is_published_of_a_scope_before_all_of_it_was_read() {
    let mut world = World::new(&[]);
    apply(&mut world, scaled_object("llm"));
    apply(&mut world, Change::ScaledObject(Step::Done));
    apply(&mut world, deployment("llm", 3));
    apply(&mut world, Change::Deployment(Step::Done));
    apply(&mut world, Change::StatefulSet(Step::Done));
    assert!(!world.is_changed(), "the pods were not read: three replicas would look lost");
    apply(&mut world, Change::Pod(Step::Done));
    assert!(world.is_changed());
    let inventory = rebuild(&mut world);
    assert!(inventory.synced);
    assert_eq!(workload(&inventory, "llm").replicas.spec, Some(3));
}

#[test]
fn a_scope_that_cannot_be_read_keeps_no_other_from_being_published() {
    let mut world = World::new(&["a".into(), "b".into()]);
    for change in ends().into_iter().chain([scaled_object("llm")]) {
        world.apply(Update { scope: 1, change }, NOW);
    }
    let inventory = rebuild(&mut world);
    assert!(!inventory.synced);
    assert_eq!(inventory.workloads.len(), 1);
}
