//! Steps of watches in, inventories out.

mod limits;
mod nodes;
mod reads;
mod revisions;

use std::net::IpAddr;

use kube::runtime::watcher;

use super::*;
use crate::cluster::pod::Obstacle;
use crate::cluster::selector::PodSelector;
use crate::decision::{Phase, Replicas};
use crate::inventory::{Endpoint, Hpa, Member, Pauses, Start};

const NOW: Moment = Moment(1_000);

/// The ends of a scope's lists.
fn ends() -> [Change; 4] {
    [
        Change::ScaledObject(Step::Done),
        Change::Deployment(Step::Done),
        Change::StatefulSet(Step::Done),
        Change::Pod(Step::Done),
    ]
}

/// A world in which every list of the only scope has been read and is empty.
fn listed() -> World {
    let mut world = World::new(&[]);
    for change in ends() {
        apply(&mut world, change);
    }
    world
}

fn apply(world: &mut World, change: Change) {
    world.apply(Update { scope: 0, change }, NOW);
}

fn key(name: &str) -> (Arc<str>, Arc<str>) {
    ("ns".into(), name.into())
}

fn scaled_object(name: &str) -> Change {
    let target = TargetRef { kind: TargetKind::Deployment, name: name.into() };
    scaled_object_of(name, target)
}

fn scaled_object_of(name: &str, target: TargetRef) -> Change {
    let object = ScaledObject {
        target,
        min: 0,
        max: 9,
        fallback_replicas: None,
        triggers: Vec::new(),
        pod_selector: Chosen::Target,
        paused: false,
        pauses: Pauses::default(),
    };
    Change::ScaledObject(Step::Put(key(name), object))
}

fn target(spec: u32, selector: &str) -> Target {
    Target { spec: Some(spec), selector: PodSelector::from_text(selector), ..Target::default() }
}

fn deployment(name: &str, spec: u32) -> Change {
    Change::Deployment(Step::Put(key(name), target(spec, &format!("app={name}"))))
}

fn pod(name: &str, app: &str, phase: Phase, obstacle: Option<Obstacle>) -> Change {
    let ip: IpAddr = [10, 0, 0, 1].into();
    let pod = Pod {
        labels: Arc::new([("app".to_owned(), app.to_owned())].into()),
        member: Member {
            id: name.into(),
            phase,
            created_at: None,
            ready_at: None,
            endpoint: Some(Endpoint::Pod { ip, port: None }),
            node: None,
        },
        obstacle,
        devices: Arc::new([(devices::GPU_RESOURCE.into(), 2)].into()),
        claims: Box::default(),
        start: None,
        group_size: 1,
        is_ranked: false,
    };
    Change::Pod(Step::Put(key(name), pod))
}

/// A node of eight GPUs with this spec.
fn node_that(name: &str, spec: &serde_json::Value) -> Change {
    let node = serde_json::json!({"metadata": {"name": name}, "spec": spec, "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"nvidia.com/gpu": "8"}}});
    let node = Node::from_object(&serde_json::from_value(node).unwrap()).unwrap();
    Change::Node(Step::Put(("".into(), name.into()), node))
}

fn rebuild(world: &mut World) -> Arc<Inventory> {
    world.rebuild().inventory.expect("something is different")
}

fn workload<'a>(inventory: &'a Inventory, name: &str) -> &'a Arc<Workload> {
    &inventory.workloads[&WorkloadKey::new("ns", name)]
}

#[test]
fn replicas_are_counted_from_the_pods_within_what_is_ordered() {
    use Obstacle::{CrashLooping, Unschedulable};
    use Phase::{NotReady, Ready, Starting, Terminating};
    let at = |spec, ready, starting| Replicas {
        spec: Some(spec),
        ready,
        starting,
        ..Replicas::default()
    };
    for (case, spec, pods, expected) in [
        ("all ready", 2, vec![(Ready, None); 2], at(2, 2, 0)),
        ("ordered, no pod yet", 3, vec![(Ready, None)], at(3, 1, 2)),
        ("at zero", 0, vec![], at(0, 0, 0)),
        ("surge is no capacity", 2, vec![(Ready, None); 3], at(2, 2, 0)),
        ("no longer ready", 2, vec![(Ready, None), (NotReady, None)], at(2, 1, 1)),
        (
            "F21: leaving pods are no quorum",
            3,
            vec![(Ready, None), (Terminating, None), (Terminating, None)],
            Replicas { terminating: 2, ..at(3, 1, 2) },
        ),
        (
            "F86: no room",
            4,
            vec![(Ready, None), (Starting, None), (Starting, Some(Unschedulable))],
            Replicas { unschedulable: 1, ..at(4, 1, 2) },
        ),
        (
            "F78: starts again and again",
            2,
            vec![(Ready, None), (Starting, Some(CrashLooping))],
            Replicas { crash_looping: 1, ..at(2, 1, 0) },
        ),
        (
            "a surge pod without room takes nothing from the others",
            2,
            vec![(Ready, None), (Ready, None), (Starting, Some(Unschedulable))],
            Replicas { unschedulable: 1, ..at(2, 2, 0) },
        ),
    ] {
        let mut world = listed();
        apply(&mut world, scaled_object("llm"));
        apply(&mut world, deployment("llm", spec));
        for (index, (phase, obstacle)) in pods.into_iter().enumerate() {
            apply(&mut world, pod(&format!("llm-{index}"), "llm", phase, obstacle));
        }
        assert_eq!(workload(&rebuild(&mut world), "llm").replicas, expected, "{case}");
    }
}

#[test]
fn without_its_target_a_workload_has_no_count_and_no_pods() {
    let mut world = listed();
    apply(&mut world, scaled_object("llm"));
    apply(&mut world, pod("llm-0", "llm", Phase::Ready, None));
    let inventory = rebuild(&mut world);
    assert_eq!(workload(&inventory, "llm").replicas, Replicas::default());
    assert!(workload(&inventory, "llm").members.is_empty());
}

#[test]
fn pods_go_to_every_target_that_selects_them_ordered_by_name() {
    let mut world = listed();
    for (name, selector) in
        [("a", "app=a"), ("both", "app in (a,b)"), ("not-a", "app!=a"), ("none", "")]
    {
        apply(&mut world, scaled_object(name));
        apply(&mut world, Change::Deployment(Step::Put(key(name), target(1, selector))));
    }
    for (name, app) in [("z", "a"), ("y", "b"), ("x", "c"), ("w", "a")] {
        apply(&mut world, pod(name, app, Phase::Ready, None));
    }
    let inventory = rebuild(&mut world);
    let members = |name| {
        let members = workload(&inventory, name).members.iter();
        members.map(|member| member.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(members("a"), ["w", "z"]);
    assert_eq!(members("both"), ["w", "y", "z"]);
    assert_eq!(members("not-a"), ["x", "y"]);
    assert!(members("none").is_empty());
    assert_eq!(workload(&inventory, "a").gpus_per_replica, Some(2));
}

#[test]
fn a_new_list_removes_what_it_does_not_name() {
    let mut world = listed();
    for name in ["kept", "gone"] {
        apply(&mut world, scaled_object(name));
        apply(&mut world, deployment(name, 1));
    }
    rebuild(&mut world);
    apply(&mut world, Change::ScaledObject(Step::Begin));
    apply(&mut world, scaled_object("kept"));
    assert!(!world.is_changed(), "until its end the list may still name the other");
    apply(&mut world, Change::ScaledObject(Step::Done));
    let inventory = rebuild(&mut world);
    let names: Vec<_> = inventory.workloads.keys().map(|key| &*key.name).collect();
    assert_eq!(names, ["kept"]);
}

#[test]
fn a_list_that_breaks_off_removes_nothing() {
    let mut world = listed();
    apply(&mut world, scaled_object("llm"));
    rebuild(&mut world);
    apply(&mut world, Change::ScaledObject(Step::Begin));
    apply(&mut world, Change::ScaledObject(Step::Failed(broken())));
    apply(&mut world, Change::ScaledObject(Step::Begin));
    apply(&mut world, scaled_object("llm"));
    apply(&mut world, Change::ScaledObject(Step::Done));
    assert!(!world.is_changed());
}

#[test]
fn an_interruption_keeps_the_inventory_and_says_since_when() {
    let mut world = listed();
    apply(&mut world, scaled_object("llm"));
    apply(&mut world, deployment("llm", 3));
    assert_eq!(rebuild(&mut world).stale_since("ns"), None);
    for (seconds, change) in [
        (20, Change::Pod(Step::Failed(broken()))),
        (10, Change::Deployment(Step::Failed(broken()))),
        (30, Change::Deployment(Step::Failed(broken()))),
    ] {
        world.apply(Update { scope: 0, change }, Moment(seconds));
    }
    let inventory = rebuild(&mut world);
    assert_eq!(inventory.stale_since("ns"), Some(Moment(10)), "the first failure of the longest");
    assert!(inventory.synced);
    assert_eq!(workload(&inventory, "llm").replicas.spec, Some(3));
    apply(&mut world, Change::Deployment(Step::Resumed));
    assert_eq!(rebuild(&mut world).stale_since("ns"), Some(Moment(20)));
    apply(&mut world, Change::Pod(Step::Done));
    assert_eq!(rebuild(&mut world).stale_since("ns"), None);
}

fn broken() -> watcher::Error {
    watcher::Error::NoResourceVersion
}

#[test]
fn what_changes_nothing_is_not_published_and_what_stays_the_same_stays_in_place() {
    let mut world = listed();
    for name in ["a", "b"] {
        apply(&mut world, scaled_object(name));
        apply(&mut world, deployment(name, 1));
    }
    let before = rebuild(&mut world);
    apply(&mut world, deployment("a", 1));
    assert!(!world.is_changed(), "the same again");
    apply(&mut world, pod("stranger", "other", Phase::Ready, None));
    assert!(world.rebuild().inventory.is_none(), "nobody's pod");
    apply(&mut world, deployment("a", 2));
    let after = rebuild(&mut world);
    assert_eq!(workload(&after, "a").replicas.spec, Some(2));
    assert!(Arc::ptr_eq(workload(&before, "b"), workload(&after, "b")));
}

#[test]
fn pods_of_one_template_share_their_labels_and_the_last_takes_them_along() {
    let mut world = listed();
    for name in ["x", "y"] {
        apply(&mut world, pod(name, "llm", Phase::Ready, None));
    }
    world.rebuild();
    assert_eq!(world.scopes[0].labels.len(), 1);
    let labels = |name| Arc::clone(&world.scopes[0].pods.get("ns", name).unwrap().labels);
    assert!(Arc::ptr_eq(&labels("x"), &labels("y")));
    for name in ["x", "y"] {
        apply(&mut world, Change::Pod(Step::Remove(key(name))));
    }
    world.rebuild();
    assert!(world.scopes[0].labels.is_empty());
}

#[test]
fn a_target_of_another_kind_is_asked_for_and_counts_once_it_has_answered() {
    let engine = TargetRef {
        kind: TargetKind::Other { api_version: "example.org/v1".into(), kind: "Engine".into() },
        name: "llm".into(),
    };
    let namespace: Arc<str> = "ns".into();
    let mut world = listed();
    apply(&mut world, scaled_object_of("llm", engine.clone()));
    apply(&mut world, pod("llm-0", "llm", Phase::Ready, None));
    let rebuilt = world.rebuild();
    let wanted = WantedScales {
        scope: 0,
        namespace: Arc::clone(&namespace),
        targets: [engine.clone()].into(),
    };
    assert_eq!(rebuilt.scales, [wanted]);
    assert_eq!(workload(&rebuilt.inventory.unwrap(), "llm").replicas.spec, None);

    world.apply_scale(0, &namespace, engine.clone(), Read::There(target(2, "app=llm")));
    let inventory = rebuild(&mut world);
    let replicas = workload(&inventory, "llm").replicas;
    assert_eq!((replicas.spec, replicas.ready, replicas.starting), (Some(2), 1, 1));
    world.apply_scale(0, &namespace, engine.clone(), Read::There(target(2, "app=llm")));
    assert!(!world.is_changed(), "the same again");

    world.apply_scale(0, &namespace, engine.clone(), Read::Lost);
    let inventory = rebuild(&mut world);
    let replicas = workload(&inventory, "llm").replicas;
    assert_eq!((replicas.spec, replicas.ready), (None, 1), "the count is lost, its pods are not");
    world.apply_scale(0, &namespace, engine.clone(), Read::Lost);
    assert!(!world.is_changed(), "lost as before");

    world.apply_scale(0, &namespace, engine.clone(), Read::Absent);
    let inventory = rebuild(&mut world);
    let lost = workload(&inventory, "llm");
    assert_eq!((lost.replicas.spec, lost.members.len()), (None, 0));

    apply(&mut world, Change::ScaledObject(Step::Remove(key("llm"))));
    assert!(world.rebuild().scales[0].targets.is_empty());
    world.apply_scale(0, &namespace, engine, Read::There(target(2, "app=llm")));
    assert!(!world.is_changed(), "an answer that nobody waits for any more");
}

#[test]
fn a_pod_selector_reads_other_pods_than_the_targets_own() {
    for (selector, expected) in [
        (Chosen::Target, vec!["own"]),
        (Chosen::Pods(PodSelector::from_text("app=leader")), vec!["leader"]),
        (Chosen::Pods(None), vec![]),
    ] {
        let mut world = listed();
        let target = TargetRef { kind: TargetKind::Deployment, name: "llm".into() };
        let Change::ScaledObject(Step::Put(key, mut object)) = scaled_object_of("llm", target)
        else {
            unreachable!("it is one")
        };
        object.pod_selector = selector;
        apply(&mut world, Change::ScaledObject(Step::Put(key, object)));
        apply(&mut world, deployment("llm", 1));
        apply(&mut world, pod("own", "llm", Phase::Ready, None));
        apply(&mut world, pod("leader", "leader", Phase::Ready, None));
        let inventory = rebuild(&mut world);
        let members = &workload(&inventory, "llm").members;
        let ids: Vec<&str> = members.iter().map(|member| &*member.id).collect();
        assert_eq!(ids, expected);
    }
}

fn autoscaler(name: &str, made_of: Option<&str>, target: &str) -> Change {
    let hpa = Hpa {
        name: name.into(),
        min: 1,
        max: 9,
        behavior: None,
        says_tolerance_up: false,
        says_tolerance_down: false,
    };
    let target = TargetRef { kind: TargetKind::Deployment, name: target.into() };
    let read = Autoscaler { made_of: made_of.map(Arc::from), target, hpa: Arc::new(hpa) };
    Change::Hpa(Step::Put(key(name), read))
}

#[test]
fn f104_whatever_else_scales_a_target_is_its_rival_and_kedas_own_hpa_is_not() {
    let mut world = listed();
    apply(&mut world, scaled_object("llm"));
    apply(&mut world, deployment("llm", 1));
    apply(&mut world, autoscaler("keda-hpa-llm", Some("llm"), "llm"));
    apply(&mut world, autoscaler("other", None, "elsewhere"));
    let kubernetes = workload(&rebuild(&mut world), "llm").kubernetes.clone();
    assert_eq!(kubernetes.hpa.as_ref().map(|hpa| &*hpa.name), Some("keda-hpa-llm"));
    assert!(kubernetes.rivals.is_empty());

    let target = TargetRef { kind: TargetKind::Deployment, name: "llm".into() };
    apply(&mut world, scaled_object_of("second", target));
    apply(&mut world, autoscaler("keda-hpa-second", Some("second"), "llm"));
    apply(&mut world, autoscaler("by-hand", None, "llm"));
    let inventory = rebuild(&mut world);
    let rivals = |name| workload(&inventory, name).kubernetes.rivals.clone();
    assert_eq!(*rivals("llm"), ["ScaledObject/second", "HorizontalPodAutoscaler/by-hand"]);
    assert_eq!(*rivals("second"), ["ScaledObject/llm", "HorizontalPodAutoscaler/by-hand"]);
}

#[test]
fn what_no_answer_stands_on_is_not_waited_for_and_makes_nothing_stale() {
    let mut world = listed();
    apply(&mut world, scaled_object("llm"));
    for change in [
        Change::Hpa(Step::Failed(broken())),
        Change::Claim(Step::Failed(broken())),
        Change::Node(Step::Failed(broken())),
    ] {
        apply(&mut world, change);
    }
    let inventory = rebuild(&mut world);
    assert!(inventory.synced);
    assert_eq!(inventory.stale_since("ns"), None);
}

/// A pod of `llm` with more than `pod` gives it.
fn pod_with(name: &str, more: impl FnOnce(&mut Pod)) -> Change {
    let Change::Pod(Step::Put(key, mut read)) = pod(name, "llm", Phase::Ready, None) else {
        unreachable!("it is one")
    };
    more(&mut read);
    Change::Pod(Step::Put(key, read))
}

#[test]
fn the_start_in_the_middle_is_shown_and_outlives_its_pods() {
    let mut world = listed();
    apply(&mut world, scaled_object("llm"));
    apply(&mut world, deployment("llm", 3));
    let start = |load_ms| Start { schedule_ms: 1_000, pull_ms: 30_000, load_ms };
    for (name, load_ms) in [("a", 600_000), ("b", 60_000), ("c", 90_000)] {
        apply(&mut world, pod_with(name, |pod| pod.start = Some(start(load_ms))));
    }
    assert_eq!(workload(&rebuild(&mut world), "llm").kubernetes.start, Some(start(90_000)));
    for name in ["a", "b", "c"] {
        apply(&mut world, Change::Pod(Step::Remove(key(name))));
    }
    apply(&mut world, deployment("llm", 0));
    assert_eq!(workload(&rebuild(&mut world), "llm").kubernetes.start, Some(start(90_000)));
}

#[test]
fn claimed_devices_count_with_those_that_are_asked_for() {
    let mut world = listed();
    apply(&mut world, scaled_object("llm"));
    apply(&mut world, deployment("llm", 1));
    apply(
        &mut world,
        pod_with("llm-0", |pod| {
            pod.devices = Arc::default();
            pod.claims = ["llm-0-gpu".into()].into();
        }),
    );
    assert_eq!(workload(&rebuild(&mut world), "llm").gpus_per_replica, None, "not read yet");
    let devices = Arc::new([("gpu.nvidia.com".into(), 4)].into());
    apply(&mut world, Change::Claim(Step::Put(key("llm-0-gpu"), devices)));
    let inventory = rebuild(&mut world);
    assert_eq!(workload(&inventory, "llm").gpus_per_replica, Some(4));
    assert_eq!(workload(&inventory, "llm").kubernetes.devices["gpu.nvidia.com"], 4);
}

#[test]
fn f85_what_a_quota_refuses_will_not_come_soon() {
    let mut world = listed();
    apply(&mut world, scaled_object("llm"));
    let refusal = Some("exceeded quota: team-a, limited: requests.nvidia.com/gpu=4".into());
    let refused = Target { refusal, ..target(8, "app=llm") };
    apply(&mut world, Change::Deployment(Step::Put(key("llm"), refused)));
    for name in ["a", "b", "c", "d"] {
        apply(&mut world, pod(name, "llm", Phase::Ready, None));
    }
    let inventory = rebuild(&mut world);
    let workload = workload(&inventory, "llm");
    let replicas = workload.replicas;
    assert_eq!((replicas.ready, replicas.starting, replicas.unschedulable), (4, 0, 4));
    let refusal = workload.kubernetes.refusal.as_deref().unwrap();
    assert!(refusal.starts_with("exceeded quota: team-a"), "{refusal}");
}

#[test]
fn f101_a_canary_beside_the_target_adds_nothing_to_its_count() {
    let mut world = listed();
    apply(&mut world, scaled_object("llm"));
    apply(&mut world, deployment("llm", 10));
    for index in 0..11 {
        apply(&mut world, pod(&format!("llm-{index:02}"), "llm", Phase::Ready, None));
    }
    let replicas = workload(&rebuild(&mut world), "llm").replicas;
    assert_eq!((replicas.spec, replicas.ready, replicas.starting), (Some(10), 10, 0));
}
