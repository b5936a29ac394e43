//! A scaler that may read two namespaces of three that it is told, and nothing of the cluster as a whole; and
//! one as the manifests start it, of all namespaces.
//!
//! Must be given its rights by the commands that the manifests name, or by their own bindings.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};

use super::doctor::examined;
use crate::objects::{NAME, Scaled, Target};
use crate::plane::Calls;
use crate::scaler::can_mount;
use crate::scene::Scene;

/// Its account, of which no other scenario knows.
const ACCOUNT: &str = "role-bindings";
const SECOND: &str = "role-bindings-second";
/// Told to the scaler, and bound to nothing.
const CLOSED: &str = "role-bindings-closed";
/// What three replicas of the test's engine carry well, in requests a second.
const THREE_REPLICAS: f64 = 3.5;
/// How long the API server's load is counted: two lives of a watch and some more.
const STANDS_S: u64 = 150;

/// It scales in both, says once what it does not know, and asks for nothing again and again.
pub(crate) async fn role_bindings(scene: &mut Scene) {
    let mut second = Scene::open("role_bindings_second", Arc::clone(&scene.plane)).await;
    bind(scene);
    if can_mount() {
        scene.setup.in_pod = Some(scene.plane.mount(&scene.client, ACCOUNT).await);
    } else {
        let skipped = "skipped: no mount namespaces here, so it is not started as in a pod";
        scene.timeline.say(skipped);
        println!("{skipped}");
        second.close().await;
        return;
    }
    scene.kubectl().run(&["create", "namespace", CLOSED]);
    scene.setup.flags.extend(["--namespace", SECOND, "--namespace", CLOSED]);
    let scaled = scene.scaled(1, 6).with("ghostHold", "1h");
    both_rise(scene, &mut second, &scaled).await;
    scene
        .until("the queue is served", 180, |now| now.spec == now.ready && now.in_flight < 16)
        .await;
    stands(scene).await;
    says(scene);
    second.close().await;
    asks_for_no_more(scene);
    scene.kubectl().run(&["delete", "namespace", CLOSED, "--wait=false"]);
}

/// Started without a namespace it scales in each, and knows the room on the nodes.
pub(crate) async fn all_namespaces(scene: &mut Scene) {
    let mut second = Scene::open("all_namespaces_second", Arc::clone(&scene.plane)).await;
    scene.setup.watches_all = true;
    let scaled = scene.scaled(1, 6).with("targetInFlight", "2").with("ghostHold", "20s");
    both_rise(scene, &mut second, &scaled).await;
    let snapshot = scene.snapshot().await;
    let room = &snapshot["cluster"]["room"]["nvidia.com/gpu"];
    assert!(room["requested"].as_u64() >= Some(2), "its own pods at least: {snapshot}");
    for both in [&mut *scene, &mut second] {
        both.load(0.0).await;
        both.until("one is left", 300, |now| now.spec == Some(1)).await;
    }
    second.close().await;
}

/// One target in each, with load in both, of which the one scaler orders more.
async fn both_rise(scene: &mut Scene, second: &mut Scene, scaled: &Scaled) {
    second.deploy(&Target::new(1)).await;
    second.scale_with(scaled);
    scene.begin(&Target::new(1), scaled).await;
    for both in [scene, second] {
        both.load(THREE_REPLICAS).await;
        both.until("more than one is ordered", 120, |now| now.spec > Some(1)).await;
    }
}

/// A RoleBinding in each namespace to the manifests' ClusterRole.
fn bind(scene: &mut Scene) {
    let kubectl = scene.kubectl();
    kubectl.run(&["create", "serviceaccount", ACCOUNT, "-n", "ghostscaler"]);
    let account = format!("--serviceaccount=ghostscaler:{ACCOUNT}");
    for namespace in [scene.namespace.as_str(), SECOND] {
        let words = ["create", "rolebinding", "ghostscaler", "--clusterrole=ghostscaler", &account];
        kubectl.run(&[&words[..], &["-n", namespace]].concat());
    }
}

/// A fleet at work on which nothing changes: watches go on, and that is all.
async fn stands(scene: &mut Scene) {
    let from = jiff::Timestamp::now();
    scene.wait(STANDS_S).await;
    let calls = Calls::since(&scene.plane.asked_by(ACCOUNT), from);
    scene.timeline.say(&format!("in {STANDS_S} s it asked for: {calls}"));
    // Six kinds in each of two namespaces, a watch a minute.
    let minutes = usize::try_from(STANDS_S.div_ceil(60)).unwrap();
    let watches = calls.count(|what| what.starts_with("watch "));
    assert!((12..=12 * (minutes + 1)).contains(&watches), "{calls}");
    let refused = calls.count(|what| what.starts_with("list ") && what.ends_with("(403)"));
    let nodes = calls.count(|what| what == "list nodes (403)");
    assert!((1..=8).contains(&nodes), "every half minute: {calls}");
    // The closed namespace's: four kinds every ten seconds, two every thirty.
    assert!(refused - nodes <= 80, "{calls}");
    let writes = calls.count(|what| ["create", "patch"].iter().any(|verb| what.starts_with(verb)));
    assert!(writes <= 4, "an event for a decision, none for a tick: {calls}");
    let objects = calls.count(|what| what == "get scaledobjects");
    assert!(objects <= writes, "the object that an event is about: {calls}");
    let all = watches + refused + writes + objects;
    assert_eq!(all, calls.count(|_| true), "and no list: {calls}");
}

/// What it cannot know is in its log, once.
fn says(scene: &mut Scene) {
    let log = fs::read_to_string(scene.setup.dir.join("scaler.log")).unwrap();
    let warned: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|line: &Value| line["level"] == "WARN" || line["level"] == "ERROR")
        .collect();
    let of = |word: &str| warned.iter().filter(|line| line.to_string().contains(word)).count();
    assert_eq!(of("nodes"), 1, "{warned:#?}");
    assert_eq!(of("its workloads are unknown"), 1, "{warned:#?}");
    // One of each kind of the closed namespace.
    assert!(warned.len() <= 2 + 6, "{warned:#?}");
    scene.timeline.say(&format!("{} warnings, each once", warned.len()));
}

/// `doctor` asks for nothing that only a whole cluster can give, and misses a binding that is gone.
fn asks_for_no_more(scene: &mut Scene) {
    let scaler = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": ACCOUNT, "namespace": "ghostscaler"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": ACCOUNT}},
            "template": {
                "metadata": {"labels": {"app": ACCOUNT}},
                "spec": {"serviceAccountName": ACCOUNT, "containers": [{
                    "name": "ghostscaler", "image": "ghostscaler",
                    "args": ["serve", "--namespace", scene.namespace, "--namespace", SECOND]}]},
            },
        },
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": ACCOUNT, "namespace": "ghostscaler"},
        "spec": {"selector": {"app": ACCOUNT}, "ports": [{"name": "grpc", "port": 9090}]},
    });
    for object in [scaler, service] {
        scene.kubectl().try_run_with(&["apply", "-f", "-"], &object.to_string()).unwrap();
    }
    let address = format!("{ACCOUNT}.ghostscaler.svc.cluster.local:9090");
    let patch = json!([{"op": "replace", "path": "/spec/triggers/0/metadata/scalerAddress",
        "value": address}]);
    let words = ["patch", "scaledobject", NAME, "-n", &scene.namespace, "--type=json"];
    scene.kubectl().run(&[&words[..], &["--patch", &patch.to_string()]].concat());
    let (found, text) = examined(scene);
    assert!(!found.contains(&"missing-permission".to_owned()), "{text}");
    scene.kubectl().run(&["delete", "rolebinding", "ghostscaler", "-n", &scene.namespace]);
    let (found, text) = examined(scene);
    assert!(found.contains(&"missing-permission".to_owned()), "{text}");
    assert!(!text.contains("nodes"), "no RoleBinding gives them: {text}");
    scene.timeline.say("doctor misses the binding once it is gone, and nothing else");
}
