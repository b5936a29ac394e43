//! More pods than are kept.

use super::*;
use crate::inventory::Room;

/// A world that keeps three pods, in which `ns` has a workload of four replicas.
fn small() -> World {
    let mut world = listed();
    world.scopes[0].pods = Watched::new("pods", 3);
    apply(&mut world, Change::Pod(Step::Done));
    apply(&mut world, scaled_object("llm"));
    apply(&mut world, deployment("llm", 4));
    world
}

fn ready(name: &str) -> Change {
    pod(name, "llm", Phase::Ready, None)
}

fn elsewhere(name: &str) -> Change {
    let Change::Pod(Step::Put((_, name), mut pod)) = ready(name) else { unreachable!("it is one") };
    pod.member.node = Some("node".into());
    Change::Pod(Step::Put(("elsewhere".into(), name), pod))
}

fn counts(world: &mut World) -> (Option<u32>, bool) {
    let inventory = rebuild(world);
    let workload = workload(&inventory, "llm");
    (workload.replicas.spec, workload.kubernetes.is_cut)
}

#[test]
fn a_count_is_unknown_while_a_pod_of_its_namespace_is_left_out() {
    let mut world = small();
    for name in ["a", "b", "c"] {
        apply(&mut world, ready(name));
    }
    assert_eq!(counts(&mut world), (Some(4), false), "three of four");
    apply(&mut world, ready("d"));
    assert_eq!(counts(&mut world), (None, true), "the fourth is there and is not kept");
    apply(&mut world, Change::Pod(Step::Remove(key("a"))));
    assert_eq!(counts(&mut world), (None, true), "there is room, and it has not been named again");
    apply(&mut world, ready("d"));
    assert_eq!(counts(&mut world), (Some(4), false));
}

#[test]
fn a_left_out_pod_that_goes_or_that_the_next_list_does_not_name_leaves_the_count_known() {
    let mut world = small();
    for name in ["a", "b", "c", "d"] {
        apply(&mut world, ready(name));
    }
    apply(&mut world, Change::Pod(Step::Remove(key("d"))));
    assert_eq!(counts(&mut world), (Some(4), false));
    for name in ["d", "e", "f", "g", "h"] {
        apply(&mut world, ready(name));
    }
    assert_eq!(counts(&mut world), (None, true), "more than can be told apart");
    apply(&mut world, Change::Pod(Step::Begin));
    for name in ["a", "b", "c"] {
        apply(&mut world, ready(name));
    }
    assert!(!world.is_changed(), "the list goes on");
    apply(&mut world, Change::Pod(Step::Done));
    assert_eq!(counts(&mut world), (Some(4), false));
}

#[test]
fn pods_of_a_namespace_without_a_scaled_object_give_way_and_the_room_is_unknown_then() {
    let mut world = small();
    apply(&mut world, node_that("node", &serde_json::json!({})));
    apply(&mut world, Change::Node(Step::Done));
    for name in ["x", "y", "z"] {
        apply(&mut world, elsewhere(name));
    }
    let room = |world: &mut World| rebuild(world).room[devices::GPU_RESOURCE];
    assert_eq!(room(&mut world), Room { allocatable: 8, requested: Some(6) });
    for name in ["a", "b", "c"] {
        apply(&mut world, ready(name));
    }
    apply(&mut world, elsewhere("w"));
    let inventory = rebuild(&mut world);
    let workload = workload(&inventory, "llm");
    assert_eq!((workload.replicas.spec, workload.replicas.ready), (Some(4), 3));
    let room = inventory.room[devices::GPU_RESOURCE];
    assert_eq!(room, Room { allocatable: 8, requested: None }, "not all pods are known");
}
