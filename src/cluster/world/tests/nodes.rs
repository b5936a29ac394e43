//! What nodes give, and which of them are told to go.

use super::*;

#[test]
fn f79_ready_pods_on_a_node_that_is_told_to_go_are_leaving() {
    let mut world = listed();
    apply(&mut world, scaled_object("llm"));
    apply(&mut world, deployment("llm", 4));
    for (name, node) in [("a", "spot"), ("b", "spot"), ("c", "other")] {
        apply(&mut world, pod_with(name, |pod| pod.member.node = Some(node.into())));
    }
    let starting = |pod: &mut Pod| {
        pod.member.phase = Phase::Starting;
        pod.member.node = Some("spot".into());
    };
    apply(&mut world, pod_with("d", starting));
    let stays = serde_json::json!({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]});
    apply(&mut world, node_that("spot", &stays));
    apply(&mut world, node_that("other", &stays));
    apply(&mut world, Change::Node(Step::Done));
    let replicas = |world: &mut World| workload(&rebuild(world), "llm").replicas;
    assert_eq!(
        replicas(&mut world),
        Replicas { spec: Some(4), ready: 3, starting: 1, ..Replicas::default() }
    );
    let key = "aws-node-termination-handler/spot-itn";
    let goes = serde_json::json!({"taints": [{"key": key, "effect": "NoSchedule"}]});
    apply(&mut world, node_that("spot", &goes));
    let told = replicas(&mut world);
    assert_eq!((told.ready, told.leaving), (3, 2), "they serve, and not for long");
    apply(&mut world, Change::Node(Step::Remove(("".into(), "spot".into()))));
    assert_eq!(replicas(&mut world).leaving, 0);
}

#[test]
fn the_room_is_what_nodes_that_take_pods_have_and_the_pods_on_them_ask_for() {
    let node = |name: &str| node_that(name, &serde_json::json!({}));
    let room = |world: &mut World| {
        let inventory = rebuild(world);
        inventory.room.get("nvidia.com/gpu").map(|room| (room.allocatable, room.requested))
    };
    let mut world = listed();
    apply(&mut world, node("a"));
    apply(&mut world, node("b"));
    apply(&mut world, Change::Node(Step::Done));
    apply(&mut world, pod_with("placed", |pod| pod.member.node = Some("a".into())));
    apply(&mut world, pod_with("pending", |_| {}));
    assert_eq!(room(&mut world), Some((16, Some(2))));
    // Cordoned: what is on it is neither room nor use of room.
    apply(&mut world, node_that("a", &serde_json::json!({"unschedulable": true})));
    assert_eq!(room(&mut world), Some((8, Some(0))));

    let mut some = World::new(&["ns".into()]);
    for change in [
        Change::ScaledObject(Step::Done),
        Change::Deployment(Step::Done),
        Change::StatefulSet(Step::Done),
        Change::Pod(Step::Done),
        node("a"),
        Change::Node(Step::Done),
    ] {
        apply(&mut some, change);
    }
    assert_eq!(room(&mut some), Some((8, None)), "pods of other namespaces are not known");
}
