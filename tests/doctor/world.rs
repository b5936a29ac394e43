//! A cluster with the example of a vLLM and the scaler of the manifests, as it would be an hour after both
//! were applied.

use std::path::Path;
use std::sync::{Arc, Mutex};

use ghostscaler::doctor::Outcome;
use serde_json::{Value, json};

use super::api::Api;
use super::run;
use crate::support::exporter::Exporter;

pub(super) const SCALE: &str = "/apis/apps/v1/namespaces/team-a/deployments/llm/scale";

/// The cluster, what is known beside it, and what Prometheus scrapes.
pub(super) struct World {
    pub(super) api: Api,
    /// What the command line says.
    pub(super) args: Mutex<Vec<String>>,
    /// The page of engines and gateway, where there is a Prometheus.
    pub(super) page: Option<Arc<Exporter>>,
}

impl World {
    /// All is well, and at least one replica is kept.
    pub(super) async fn new() -> World {
        let api = Api::start().await;
        for document in file("manifests/examples/vllm.yaml") {
            api.put(document);
        }
        api.remove("Service", Some("team-a"), "llm");
        for name in ["deployment", "service", "configmap"] {
            for mut document in file(&format!("manifests/base/{name}.yaml")) {
                let labels = json!({"app.kubernetes.io/name": "ghostscaler"});
                document["metadata"]["labels"] = labels;
                api.put(document);
            }
        }
        api.change("Deployment", "llm", |it| {
            it["spec"]["replicas"] = json!(3);
            it["metadata"]["managedFields"] = json!([{"manager": "kube-controller-manager",
                "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
        });
        api.answer(SCALE, scale(&json!({"replicas": 3, "selector": "app=llm"})));
        api.put(hpa());
        for minutes in [4, 5, 6] {
            api.put(pod("llm", minutes));
        }
        api.put(pod("other", 59));
        api.put(
            json!({"kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "team-a"},
            "status": {"hard": gpus(64), "used": gpus(10)}}),
        );
        api.put(json!({"kind": "Node", "metadata": {"name": "n"}, "status":
            {"allocatable": gpus(64)}}));
        let adapter = "keda-operator-metrics-apiserver";
        api.put(json!({"kind": "Service", "metadata": {"name": adapter, "namespace": "keda",
                "labels": {"app.kubernetes.io/name": adapter}}, "spec": {}}));
        api.put(json!({"kind": "APIService", "spec": {"service":
                {"namespace": "keda", "name": adapter}},
            "metadata": {"name": "v1beta1.external.metrics.k8s.io"}}));
        answers(&api);
        api.name_caller("admin");
        let args = Mutex::new(vec!["--longest-answer".to_owned(), "120s".to_owned()]);
        World { api, args, page: None }
    }

    /// The same, and it may sleep.
    pub(super) fn put_to_sleep(&self) {
        self.object(|it| {
            it["spec"]["minReplicaCount"] = json!(0);
            let metadata = &mut it["spec"]["triggers"][0]["metadata"];
            metadata["wakeSource"] = json!("gateway");
            metadata["modelName"] = json!("m1");
            metadata["sloTtft"] = json!("10m");
        });
        self.api.change("ConfigMap", "ghostscaler", |it| {
            it["data"]["config.yaml"] = json!(
                "prometheus: [{name: main, url: 'http://prometheus:9090'}]\n\
                 wakeSources:\n- name: gateway\n  kind: gauge\n  prometheus: main\n  \
                 query: sum(queue_size{model=\"{model}\",ns=\"{namespace}\"}) or 0 * max(up)\n"
            );
        });
    }

    /// Changes the ScaledObject.
    pub(super) fn object(&self, change: impl FnOnce(&mut Value)) {
        self.api.change("ScaledObject", "llm", change);
    }

    /// Changes the metadata of its trigger.
    pub(super) fn metadata(&self, key: &str, value: impl Into<Value>) {
        self.object(|it| it["spec"]["triggers"][0]["metadata"][key] = value.into());
    }

    /// Changes the target's pods: their spec.
    pub(super) fn pods(&self, change: impl FnOnce(&mut Value)) {
        self.api.change("Deployment", "llm", |it| change(&mut it["spec"]["template"]["spec"]));
    }

    /// Adds arguments to the scaler's.
    pub(super) fn scaler_args(&self, args: &[&str]) {
        self.api.change("Deployment", "ghostscaler", |it| {
            let container = &mut it["spec"]["template"]["spec"]["containers"][0];
            container["args"].as_array_mut().unwrap().extend(args.iter().map(|&arg| json!(arg)));
        });
    }

    /// What `doctor` says of the ScaledObject.
    pub(super) async fn examined(&self) -> (Outcome, Value) {
        let kubeconfig = self.api.kubeconfig();
        let args = self.args.lock().unwrap().clone();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let all =
            [&["--kubeconfig", kubeconfig.to_str().unwrap(), "llm"], args.as_slice()].concat();
        run(&all).await.unwrap()
    }
}

/// The documents of a file of this repository.
fn file(path: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The HPA that KEDA makes.
pub(super) fn hpa() -> Value {
    json!({"kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "keda-hpa-llm", "namespace": "team-a",
            "labels": {"scaledobject.keda.sh/name": "llm"}},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "llm"},
            "behavior": {"scaleUp": {"tolerance": "0"}},
            "metrics": [{"type": "External", "external": {"metric": {"name": "s0-ghostscaler"}}}]}})
}

/// A scale with this status, of the count that it says.
pub(super) fn scale(status: &Value) -> Value {
    json!({"apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": {"name": "llm", "namespace": "team-a"},
        "spec": {"replicas": status["replicas"]}, "status": status})
}

/// An amount of GPUs.
pub(super) fn gpus(amount: u32) -> Value {
    json!({"nvidia.com/gpu": amount.to_string(), "requests.nvidia.com/gpu": amount.to_string()})
}

/// A pod that took so long to be ready.
pub(super) fn pod(app: &str, minutes: u32) -> Value {
    json!({"kind": "Pod", "metadata": {"name": format!("{app}-{minutes}"), "namespace": "team-a",
            "labels": {"app": app}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"conditions": [{"type": "Ready", "status": "True",
            "lastTransitionTime": format!("2026-01-01T00:{minutes:02}:00Z")}]}})
}

/// The version of Kubernetes.
pub(super) fn version(minor: u32) -> Value {
    json!({"major": "1", "minor": minor.to_string(), "gitVersion": format!("v1.{minor}.3"),
        "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "",
        "platform": ""})
}

/// What the server says of itself.
fn answers(api: &Api) {
    api.answer("/version", version(36));
    let kinds = |group: &str, name: &str, kind: &str| {
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group,
            "resources": [{"name": format!("{name}s"), "singularName": name, "namespaced": true,
                "kind": kind, "verbs": ["get"]}]})
    };
    api.answer("/apis/apps/v1", kinds("apps/v1", "deployment", "Deployment"));
    let kserve = "serving.kserve.io/v1beta1";
    let kinds = kinds(kserve, "inferenceservice", "InferenceService");
    api.answer(&format!("/apis/{kserve}"), kinds);
    let tolerance = json!({"properties": {"tolerance": {}}});
    let schema = ["behavior", "horizontalPodAutoscalerConfig", "advanced", "spec"].iter().fold(
        json!({"properties": {"scaleUp": tolerance}}),
        |inner, name| json!({"properties": {*name: inner}}),
    );
    api.answer(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/scaledobjects.keda.sh",
        json!({"metadata": {"name": "scaledobjects.keda.sh"},
            "spec": {"versions": [{"schema": {"openAPIV3Schema": schema}}]}}),
    );
}
