//! Targets that are no Deployments: a StatefulSet, groups of pods, and KServe's kinds, which have no scale.

use std::process::Command;

use serde_json::{Value, json};

use super::doctor::{examined, paste};
use crate::objects::{Kind, NAME, Target};
use crate::operator::Operator;
use crate::scene::Scene;

/// What three replicas of the test's engine carry well, in requests a second.
const THREE_REPLICAS: f64 = 3.5;

/// Its pods come and go one after the other, in the order of their numbers.
pub(crate) async fn stateful_set(scene: &mut Scene) {
    up_and_down(scene, Kind::StatefulSet).await;
}

/// Counts are groups, on the operator's own resource definition.
pub(crate) async fn leader_worker_set(scene: &mut Scene) {
    let _operator = Operator::start(&scene.client, &scene.namespace);
    up_and_down(scene, Kind::LeaderWorkerSet).await;
    let snapshot = scene.snapshot().await;
    let members = snapshot["members"].as_array().unwrap();
    assert_eq!(members.len(), 1, "a group is one replica: {members:?}");
    assert_eq!(members[0]["id"], "llm-0", "its leader speaks for it");
    let said = snapshot["cluster"]["said"].to_string();
    assert!(said.contains("2 nvidia.com/gpu"), "the GPUs of both pods: {said}");
}

/// From one to several and back; the most that were ordered.
async fn up_and_down(scene: &mut Scene, kind: Kind) -> Option<u32> {
    let scaled = scene.scaled(1, 6).of(kind);
    scene.begin(&Target::new(1).kind(kind), &scaled).await;
    scene.load(THREE_REPLICAS).await;
    scene.until("more than one is ordered", 60, |now| now.spec > Some(1)).await;
    let settled =
        scene.until("the queue is served", 180, |now| now.spec == now.ready && now.in_flight < 16);
    let most = settled.await.spec;
    scene.load(0.0).await;
    scene.until("one is left", 240, |now| now.spec == Some(1) && now.ready == Some(1)).await;
    scene.stays("one is kept", 20, |now| now.spec == Some(1)).await;
    most
}

/// KServe's kinds by its own resource definitions have no scale subresource (0.19): what each makes is
/// scaled, once KServe is told to leave the count alone.
pub(crate) async fn kserve(scene: &mut Scene) {
    for (alias, kind, object) in [
        (
            "isvc",
            "InferenceService",
            json!({"apiVersion": "serving.kserve.io/v1beta1",
            "spec": {"predictor": {"model": {"modelFormat": {"name": "vllm"}}}}}),
        ),
        (
            "llmisvc",
            "LLMInferenceService",
            json!({"apiVersion": "serving.kserve.io/v1alpha2",
            "spec": {"model": {"uri": "hf://facebook/opt-125m"}, "replicas": 1}}),
        ),
    ] {
        let owner = applied(scene, kind, object);
        let said = refusal(scene, &format!("{alias}/{NAME}"));
        assert!(said.contains(&format!("{kind} has no scale subresource")), "{said}");
        let mut deployment = Target::new(1).object();
        deployment["metadata"]["ownerReferences"] = json!([owner]);
        scene.apply(&deployment);
        // Nobody answers at its address, and KEDA need not: this is about the target alone.
        scene.apply(&scene.scaled(1, 4).object());
        let controlled = || {
            let (found, text) = examined(scene);
            (found.contains(&"target-is-controlled".to_owned()), text)
        };
        let (is_found, text) = controlled();
        assert!(is_found, "{text}");
        let fix = text.split("\n\n").find(|block| {
            block.starts_with("kubectl annotate inferenceservice")
                || block.starts_with("kubectl patch llminferenceservice")
        });
        paste(scene, fix.unwrap_or_else(|| panic!("{text}")));
        let (is_found, text) = controlled();
        assert!(!is_found, "{text}");
        scene.timeline.say(&format!("{kind}: its Deployment is scaled, and KServe lets go of it"));
        scene.kubectl().run(&["delete", "deployment,scaledobject", NAME, "-n", &scene.namespace]);
    }
}

/// Creates it, and gives the reference that what it makes would have.
fn applied(scene: &Scene, kind: &str, mut object: Value) -> Value {
    object["kind"] = json!(kind);
    object["metadata"] = json!({"name": NAME});
    scene.apply(&object);
    let words = ["get", kind, NAME, "-n", &scene.namespace, "-o", "jsonpath={.metadata.uid}"];
    let uid = scene.kubectl().run(&words);
    json!({"apiVersion": object["apiVersion"], "kind": kind, "name": NAME, "uid": uid,
        "controller": true})
}

/// Why `generate` writes nothing for a target.
fn refusal(scene: &Scene, target: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_ghostscaler"))
        .args(["generate", target, "-n", &scene.namespace])
        .env("KUBECONFIG", scene.plane.admin())
        .output()
        .unwrap();
    assert!(!output.status.success(), "{target} was taken");
    String::from_utf8_lossy(&output.stderr).into_owned()
}
