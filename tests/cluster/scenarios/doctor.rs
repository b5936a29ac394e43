//! `doctor` on a real API server, KEDA and HPA: what it finds goes away by the commands that it prints.

use std::process::Command;

use serde_json::{Value, json};

use crate::objects::Target;
use crate::scene::Scene;

/// A scene with six things wrong with it.
pub(crate) async fn doctor(scene: &mut Scene) {
    let scaled = scene.scaled(1, 12).without_tolerance();
    scene.begin(&Target::new(2), &scaled).await;
    // KEDA makes the HPA a moment after the ScaledObject.
    scene.wait(20).await;
    scene.apply(&json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "rival"},
        "spec": {"minReplicas": 1, "maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"}},
    }));
    let expected = [
        "second-autoscaler",
        "replicas-owned-elsewhere",
        "no-tolerance",
        "idle-cooldown",
        "answers-cut",
        "no-pre-stop",
    ];
    let (found, text) = examined(scene);
    assert_eq!(found, expected, "{text}");
    scene.timeline.say(&format!("found: {}", found.join(", ")));
    for command in text.split("\n\n").filter(|block| block.starts_with("kubectl ")) {
        paste(scene, command);
    }
    let (found, text) = examined(scene);
    assert_eq!(found, Vec::<String>::new(), "{text}");
    scene.timeline.say("pasted, and nothing is left");
    scene.until("the target is ready again", 90, |now| now.ready.is_some_and(|n| n > 0)).await;
    headless(scene);
}

/// A Service cannot be given an address: the printed command makes it anew.
fn headless(scene: &mut Scene) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "scaler", "labels": {"team": "a"}},
        "spec": {"clusterIP": "None", "selector": {"app": "scaler"},
            "ports": [{"name": "grpc", "port": 9090, "appProtocol": "kubernetes.io/h2c"}]},
    });
    scene.apply(&service);
    let address = format!("scaler.{}.svc.cluster.local:9090", scene.namespace);
    let patch = json!([{"op": "replace", "path": "/spec/triggers/0/metadata/scalerAddress",
        "value": address}]);
    let words = ["patch", "scaledobject", "llm", "-n", &scene.namespace, "--type=json"];
    scene.kubectl().run(&[&words[..], &["--patch", &patch.to_string()]].concat());
    let (found, text) = examined(scene);
    assert!(found.contains(&"headless-service".to_owned()), "{text}");
    let mut blocks = text.split("\n\n").filter(|block| block.starts_with("kubectl replace"));
    paste(scene, blocks.next().unwrap());
    let (found, text) = examined(scene);
    assert!(!found.contains(&"headless-service".to_owned()), "{text}");
    let words = ["get", "service", "scaler", "-n", &scene.namespace, "-o", "json"];
    let anew: Value = serde_json::from_str(&scene.kubectl().run(&words)).unwrap();
    let has_address = anew["spec"]["clusterIP"].as_str().is_some_and(|it| it != "None");
    assert!(has_address && anew["metadata"]["labels"]["team"] == "a", "{anew:#}");
    let port = &anew["spec"]["ports"][0];
    assert_eq!((&port["name"], &port["port"]), (&json!("grpc"), &json!(9090)));
    scene.timeline.say("a headless Service has an address of its own");
}

/// The ids of the findings, and the page.
pub(super) fn examined(scene: &Scene) -> (Vec<String>, String) {
    let report: Value = serde_json::from_str(&said(scene, "json")).unwrap();
    let found = report["scaled_objects"][0]["findings"].as_array().unwrap();
    let ids = found.iter().map(|finding| finding["id"].as_str().unwrap().to_owned());
    (ids.collect(), said(scene, "text"))
}

/// What it prints.
fn said(scene: &Scene, format: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_ghostscaler"))
        .args(["doctor", "llm", "-n", &scene.namespace, "--format", format])
        .env("KUBECONFIG", scene.plane.admin())
        .output()
        .unwrap();
    let [out, said] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}");
    out.into_owned()
}

/// Runs a command as it was printed.
pub(super) fn paste(scene: &Scene, command: &str) {
    let kubectl = scene.kubectl();
    let folder = kubectl.program.parent().unwrap().display().to_string();
    let output = Command::new("sh")
        .arg("-c")
        .arg(format!("PATH={folder}:$PATH; {command}"))
        .env("KUBECONFIG", &kubectl.kubeconfig)
        // What a person would do in the editor.
        .env("KUBE_EDITOR", "sed -i /replicas:/d")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}\n{said}");
}
