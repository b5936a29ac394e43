//! Pods as the API server writes them, and what is read from them.

use serde_json::{Value, json};

use super::*;

const START: &str = "2026-11-29T10:00:00Z";
const START_MS: i64 = 1_795_946_400_000;

fn pod(metadata: Value, spec: Value, status: Value) -> Option<Pod> {
    let mut object = json!({
        "metadata": {"name": "llm-0", "creationTimestamp": START, "labels": {"app": "llm"}},
        "spec": {"containers": [{"name": "vllm"}]},
        "status": status,
    });
    for (part, values) in [("metadata", metadata), ("spec", spec)] {
        for (key, value) in values.as_object().unwrap() {
            object[part][key] = value.clone();
        }
    }
    Pod::from_object(&serde_json::from_value(object).unwrap())
}

fn with_status(status: Value) -> Pod {
    pod(json!({}), json!({}), status).unwrap()
}

fn ready_condition(status: &str, since: &str) -> Value {
    json!({"type": "Ready", "status": status, "lastTransitionTime": since})
}

fn container(restarts: i32, state: Value) -> Value {
    json!({"name": "vllm", "image": "x", "imageID": "x", "ready": false,
        "restartCount": restarts, "state": state})
}

#[test]
fn a_ready_pod_has_its_times_address_and_labels() {
    let pod = with_status(json!({
        "phase": "Running", "podIP": "10.0.0.7", "startTime": START,
        "conditions": [ready_condition("True", "2026-11-29T10:01:30Z")],
    }));
    assert_eq!(
        pod,
        Pod {
            labels: Arc::new([("app".to_owned(), "llm".to_owned())].into()),
            member: Member {
                id: "llm-0".into(),
                phase: Phase::Ready,
                created_at: Some(Moment(START_MS)),
                ready_at: Some(Moment(START_MS + 90_000)),
                endpoint: Some(Endpoint::Pod { ip: [10, 0, 0, 7].into(), port: None }),
                node: None,
            },
            obstacle: None,
            devices: Arc::default(),
            claims: Box::default(),
            start: None,
            group_size: 1,
            is_ranked: false,
        }
    );
}

#[test]
fn the_phase_tells_starting_from_no_longer_ready() {
    for (case, status, phase) in [
        ("no status", json!({}), Phase::Starting),
        (
            "scheduled",
            json!({"phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "True"}]}),
            Phase::Starting,
        ),
        (
            "loading",
            json!({"phase": "Running", "startTime": START,
            "conditions": [ready_condition("False", "2026-11-29T10:00:01Z")]}),
            Phase::Starting,
        ),
        (
            "was ready",
            json!({"phase": "Running", "startTime": START,
            "conditions": [ready_condition("False", "2026-11-29T11:00:00Z")]}),
            Phase::NotReady,
        ),
        (
            "its node is lost",
            json!({"phase": "Running", "startTime": START,
            "conditions": [ready_condition("Unknown", "2026-11-29T11:00:00Z")]}),
            Phase::NotReady,
        ),
        (
            "no times",
            json!({"conditions": [{"type": "Ready", "status": "False"}]}),
            Phase::Starting,
        ),
    ] {
        assert_eq!(with_status(status).member.phase, phase, "{case}");
    }
}

#[test]
fn a_pod_on_its_way_out_is_terminating_whatever_else_it_says() {
    let leaving = pod(
        json!({"deletionTimestamp": "2026-11-29T12:00:00Z"}),
        json!({}),
        json!({"phase": "Running", "conditions": [ready_condition("True", START)],
            "containerStatuses": [container(9, json!({"waiting": {"reason": "CrashLoopBackOff"}}))]}),
    )
    .unwrap();
    assert_eq!(leaving.member.phase, Phase::Terminating);
    assert_eq!((leaving.member.ready_at, leaving.obstacle), (None, None));
}

#[test]
fn a_pod_that_has_ended_is_no_member() {
    for phase in ["Succeeded", "Failed"] {
        assert_eq!(pod(json!({}), json!({}), json!({"phase": phase})), None);
    }
    assert_eq!(pod(json!({"name": null}), json!({}), json!({})), None);
}

#[test]
fn f86_only_the_schedulers_word_makes_a_pod_unschedulable() {
    for (status, reason, obstacle) in [
        ("False", "Unschedulable", Some(Obstacle::Unschedulable)),
        ("False", "SchedulingGated", None),
        ("True", "", None),
    ] {
        let pod = with_status(json!({"phase": "Pending", "conditions":
            [{"type": "PodScheduled", "status": status, "reason": reason}]}));
        assert_eq!(pod.obstacle, obstacle, "{status} {reason}");
        assert_eq!(pod.member.phase, Phase::Starting);
    }
}

#[test]
fn f78_a_pod_that_starts_three_times_before_it_is_ready_is_a_crash_loop() {
    let running = json!({"running": {"startedAt": START}});
    let backs_off = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let never_ready = ready_condition("False", START);
    let was_ready = ready_condition("False", "2026-11-29T11:00:00Z");
    let ready = ready_condition("True", START);
    for (case, ready, container, obstacle) in [
        ("first start", &never_ready, container(0, running.clone()), None),
        ("second restart", &never_ready, container(2, running.clone()), None),
        (
            "third restart",
            &never_ready,
            container(3, running.clone()),
            Some(Obstacle::CrashLooping),
        ),
        (
            "backing off",
            &never_ready,
            container(1, backs_off.clone()),
            Some(Obstacle::CrashLooping),
        ),
        ("restarted over its long life", &was_ready, container(7, running.clone()), None),
        ("backing off later", &was_ready, container(7, backs_off), Some(Obstacle::CrashLooping)),
        ("ready after all", &ready, container(7, running), None),
    ] {
        let pod = with_status(json!({"phase": "Running", "startTime": START,
            "conditions": [ready], "containerStatuses": [container]}));
        assert_eq!(pod.obstacle, obstacle, "{case}");
    }
}

#[test]
fn an_init_container_can_be_the_one_that_crashes() {
    let looping = container(4, json!({"waiting": {"reason": "CrashLoopBackOff"}}));
    let pod = with_status(json!({"phase": "Pending", "initContainerStatuses": [looping]}));
    assert_eq!(pod.obstacle, Some(Obstacle::CrashLooping));
}

#[test]
fn the_metrics_port_is_the_annotated_then_the_named_one() {
    let ports = |ports: Value| json!({"containers": [{"name": "sidecar"}, {"name": "vllm", "ports": ports}]});
    let http = json!({"name": "http", "containerPort": 8000});
    let metrics = json!({"name": "metrics", "containerPort": 9100});
    for (annotation, spec, expected) in [
        (json!(null), ports(json!([])), None),
        (json!(null), ports(json!([http])), Some(8000)),
        (json!(null), ports(json!([http, metrics])), Some(9100)),
        (json!("7000"), ports(json!([http, metrics])), Some(7000)),
        (json!(" 7000 "), ports(json!([])), Some(7000)),
        (json!("0"), ports(json!([http])), Some(8000)),
        (json!("70000"), ports(json!([http])), Some(8000)),
        (json!("http"), ports(json!([])), None),
        (json!(null), ports(json!([{"name": "grpc", "containerPort": 9000}])), None),
        (json!(null), ports(json!([{"name": "http", "containerPort": 0}])), None),
    ] {
        let case = format!("{annotation} {spec}");
        let mut metadata = json!({});
        if annotation.is_string() {
            metadata = json!({"annotations": {"prometheus.io/port": annotation}});
        }
        let pod = pod(metadata, spec, json!({"podIP": "fd00::7"})).unwrap();
        let ip = "fd00::7".parse().unwrap();
        assert_eq!(pod.member.endpoint, Some(Endpoint::Pod { ip, port: expected }), "{case}");
    }
}

#[test]
fn an_address_that_is_none_leaves_the_endpoint_unknown() {
    for ip in [json!(null), json!(""), json!("10.0.0"), json!("example.org")] {
        assert_eq!(with_status(json!({"podIP": ip})).member.endpoint, None);
    }
}

#[test]
fn a_start_is_split_by_the_times_of_scheduler_and_kubelet() {
    let running = |at: &str| json!({"running": {"startedAt": at}});
    let started = |containers: Value, ready: &str| {
        with_status(json!({"phase": "Running", "conditions": [
            {"type": "PodScheduled", "status": "True",
                "lastTransitionTime": "2026-11-29T10:00:04Z"},
            ready_condition(ready, "2026-11-29T10:03:00Z")],
            "containerStatuses": containers}))
        .start
    };
    let proxy = container(0, running("2026-11-29T10:00:20Z"));
    let vllm = container(0, running("2026-11-29T10:01:04Z"));
    let start = Start { schedule_ms: 4_000, pull_ms: 60_000, load_ms: 116_000 };
    let both = json!([proxy, vllm]);
    assert_eq!(started(both.clone(), "True"), Some(start), "the last container counts");
    assert_eq!(start.total_ms(), 180_000);
    assert_eq!(started(both, "False"), None, "it is not over");
    let again = container(1, running("2026-11-29T10:02:00Z"));
    assert_eq!(started(json!([proxy, again]), "True"), None, "its first time is gone");
    assert_eq!(started(json!([]), "True"), None);
    let long_ago = container(0, running("2026-11-28T10:00:00Z"));
    assert_eq!(
        started(json!([long_ago]), "True").map(|start| start.pull_ms),
        None,
        "what began a day before cannot be ready for the first time"
    );
}

#[test]
fn the_node_and_the_claims_of_a_pod_are_read_from_spec_and_status() {
    let spec = json!({"nodeName": "gpu-7", "resourceClaims": [
        {"name": "shared", "resourceClaimName": "team-gpu"},
        {"name": "own", "resourceClaimTemplateName": "gpu"}]});
    let status = json!({"resourceClaimStatuses": [
        {"name": "own", "resourceClaimName": "llm-0-own-x7"}]});
    let pod = pod(json!({}), spec, status).unwrap();
    assert_eq!(pod.member.node.as_deref(), Some("gpu-7"));
    let claims: Vec<&str> = pod.claims.iter().map(|claim| &**claim).collect();
    assert_eq!(claims, ["team-gpu", "llm-0-own-x7"]);
}

#[test]
fn a_pod_of_a_replica_set_is_ranked_and_one_of_a_stateful_set_is_not() {
    let ranked = |kind: &str, controller: bool| {
        let owner = json!({"apiVersion": "apps/v1", "kind": kind, "name": "llm", "uid": "1",
            "controller": controller});
        pod(json!({"ownerReferences": [owner]}), json!({}), json!({})).unwrap().is_ranked
    };
    assert!(ranked("ReplicaSet", true));
    assert!(!ranked("ReplicaSet", false), "somebody else controls it");
    assert!(!ranked("StatefulSet", true));
}
