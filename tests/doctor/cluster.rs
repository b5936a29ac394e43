//! A cluster, by the answers of its API server.

use std::path::Path;

use ghostscaler::doctor::{Error, Outcome};
use serde_json::{Value, json};

use super::api::Api;
use super::{findings, ids, run, unseen};

const OBJECTS: &str = "/apis/keda.sh/v1alpha1/namespaces/team-a/scaledobjects";
const HPAS: &str = "/apis/autoscaling/v2/namespaces/team-a/horizontalpodautoscalers";
const PODS: &str = "/api/v1/namespaces/team-a/pods";
const QUOTAS: &str = "/api/v1/namespaces/team-a/resourcequotas";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/team-a/deployments/llm";
const NODES: &str = "/api/v1/nodes";
const SERVICE: &str = "/api/v1/namespaces/ghostscaler/services/ghostscaler";
const METRICS: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.external.metrics.k8s.io";

/// A cluster with the example of a vLLM, as it would be an hour after it was applied.
async fn cluster() -> Api {
    let api = Api::start().await;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/examples/vllm.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let of = |kind: &str| documents.iter().find(|it| it["kind"] == kind).unwrap().clone();
    let mut target = of("Deployment");
    target["metadata"]["uid"] = json!("1");
    target["spec"]["replicas"] = json!(3);
    target["metadata"]["managedFields"] = json!([{"manager": "kube-controller-manager",
        "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
    api.put(DEPLOYMENT, target);
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": {"name": "llm", "namespace": "team-a"},
        "spec": {"replicas": 3}, "status": {"replicas": 3, "selector": "app=llm"}});
    api.put(&format!("{DEPLOYMENT}/scale"), scale);
    api.list(OBJECTS, &[of("ScaledObject")]);
    let hpa = json!({"metadata": {"name": "keda-hpa-llm", "namespace": "team-a",
            "labels": {"scaledobject.keda.sh/name": "llm"}},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "llm"},
            "metrics": [{"type": "External", "external": {"metric": {"name": "s0-ghostscaler"}}}]}});
    api.list(HPAS, &[hpa]);
    api.list(PODS, &[pod("llm", 4), pod("llm", 5), pod("llm", 6), pod("other", 59)]);
    let quota = json!({"metadata": {"name": "gpus"}, "status": {
        "hard": {"requests.nvidia.com/gpu": "8"}, "used": {"requests.nvidia.com/gpu": "2"}}});
    api.list(QUOTAS, &[quota]);
    let node =
        json!({"metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}});
    api.list(NODES, &[node]);
    let service = |name: &str, namespace: &str| {
        json!({"metadata": {"name": name, "namespace": namespace,
                "labels": {"app.kubernetes.io/name": name}},
            "spec": {"clusterIP": "10.0.0.7", "ports": [{"port": 9090}]}})
    };
    let adapter = service("keda-operator-metrics-apiserver", "keda");
    api.list("/api/v1/services", &[service("ghostscaler", "ghostscaler"), adapter]);
    api.put(SERVICE, service("ghostscaler", "ghostscaler"));
    let map = json!({"metadata": {"name": "ghostscaler"}, "data": {"config.yaml": ""}});
    api.put("/api/v1/namespaces/ghostscaler/configmaps/ghostscaler", map);
    let adapter = json!({"namespace": "keda", "name": "keda-operator-metrics-apiserver"});
    api.put(METRICS, json!({"metadata": {"name": "a"}, "spec": {"service": adapter}}));
    api.put(
        "/version",
        json!({"major": "1", "minor": "36", "gitVersion": "v1.36.3", "gitCommit": "",
        "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
    );
    let kinds = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "apps/v1",
        "resources": [{"name": "deployments", "singularName": "deployment", "namespaced": true,
            "kind": "Deployment", "verbs": ["get"]}]});
    api.put("/apis/apps/v1", kinds);
    let tolerance = json!({"properties": {"tolerance": {}}});
    let schema = ["behavior", "horizontalPodAutoscalerConfig", "advanced", "spec"].iter().fold(
        json!({"properties": {"scaleUp": tolerance}}),
        |inner, name| json!({"properties": {*name: inner}}),
    );
    api.put(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/scaledobjects.keda.sh",
        json!({"metadata": {"name": "scaledobjects.keda.sh"},
            "spec": {"versions": [{"schema": {"openAPIV3Schema": schema}}]}}),
    );
    api.name_caller("admin");
    api
}

fn pod(app: &str, minutes: u32) -> Value {
    json!({"metadata": {"name": format!("{app}-{minutes}"), "namespace": "team-a",
            "labels": {"app": app}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"conditions": [{"type": "Ready", "status": "True",
            "lastTransitionTime": format!("2026-01-01T00:{minutes:02}:00Z")}]}})
}

async fn examined(api: &Api, args: &[&str]) -> (Outcome, Value) {
    let kubeconfig = api.kubeconfig();
    let all = [&["--kubeconfig", kubeconfig.to_str().unwrap()], args].concat();
    run(&all).await.unwrap()
}

#[tokio::test]
async fn the_example_is_in_order_and_nothing_but_prometheus_is_unseen() {
    let api = cluster().await;
    let (outcome, report) = examined(&api, &["--longest-answer", "120s"]).await;
    assert_eq!(findings(&report), Vec::<Value>::new());
    assert_eq!(outcome, Outcome::InOrder);
    for (id, why) in unseen(&report) {
        assert_eq!(why, "no Prometheus is given: --prometheus", "{id}");
    }
    assert_eq!(report["scaled_objects"][0]["namespace"], "team-a");
}

type Break = Box<dyn Fn(&Api)>;

/// What scales the target, and what it scales through.
fn broken_around_the_object() -> Vec<(&'static str, Break)> {
    let rival = json!({"metadata": {"name": "llm-cpu", "namespace": "team-a"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "llm"}}});
    vec![
        (
            "second-autoscaler",
            Box::new(move |api| {
                let rival = rival.clone();
                api.change(HPAS, |list| list["items"].as_array_mut().unwrap().push(rival));
            }),
        ),
        (
            "no-external-metric",
            Box::new(|api| {
                api.change(HPAS, |list| list["items"][0]["spec"]["metrics"] = json!([]));
            }),
        ),
        (
            "replicas-owned-elsewhere",
            Box::new(|api| {
                api.change(DEPLOYMENT, |it| {
                    it["metadata"]["managedFields"] = json!([
                {"manager": "argocd-controller", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}}])
                });
            }),
        ),
        (
            "no-selector",
            Box::new(|api| {
                let none = json!({"spec": {"replicas": 2}, "status": {"replicas": 2}});
                let head = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {}});
                api.change(&format!("{DEPLOYMENT}/scale"), |scale| {
                    *scale = head;
                    scale["spec"] = none["spec"].clone();
                    scale["status"] = none["status"].clone();
                });
            }),
        ),
        (
            "headless-service",
            Box::new(|api| {
                api.change(SERVICE, |it| it["spec"]["clusterIP"] = json!("None"));
            }),
        ),
        (
            "foreign-metrics-api",
            Box::new(|api| {
                api.change(METRICS, |it| it["spec"]["service"]["name"] = json!("cluster-agent"));
            }),
        ),
    ]
}

/// The target, and the room that it has.
fn broken_below_the_target() -> Vec<(&'static str, Break)> {
    vec![
        (
            "max-beyond-quota",
            Box::new(|api| {
                api.change(QUOTAS, |it| {
                    it["items"][0]["status"]["hard"] = json!({"requests.nvidia.com/gpu": "4"});
                });
            }),
        ),
        (
            "max-beyond-gpus",
            Box::new(|api| {
                api.change(NODES, |it| {
                    it["items"][0]["status"]["allocatable"] = json!({"nvidia.com/gpu": "4"});
                });
            }),
        ),
        (
            "nodes-taken-away",
            Box::new(|api| {
                api.change(NODES, |it| {
                    it["items"][0]["metadata"]["labels"] = json!({"karpenter.sh/nodepool": "gpu"});
                });
            }),
        ),
        (
            "start-outlasts-probe",
            Box::new(|api| {
                // The middle one of the three starts took five minutes.
                api.change(DEPLOYMENT, |it| {
                    let container = &mut it["spec"]["template"]["spec"]["containers"][0];
                    container["startupProbe"]["failureThreshold"] = json!(20);
                });
            }),
        ),
        ("missing-permission", Box::new(|api| api.deny("pods"))),
        (
            "target-is-controlled",
            Box::new(|api| {
                api.change(DEPLOYMENT, |it| {
                    it["metadata"]["ownerReferences"] = json!([
                {"apiVersion": "a/v1", "kind": "A", "name": "a", "controller": true}])
                });
            }),
        ),
    ]
}

#[tokio::test]
async fn each_thing_that_breaks_in_a_cluster_is_seen_there() {
    for (id, broken) in broken_around_the_object().into_iter().chain(broken_below_the_target()) {
        let api = cluster().await;
        broken(&api);
        let (outcome, report) = examined(&api, &["--longest-answer", "120s"]).await;
        let found = findings(&report);
        if id == "no-selector" {
            assert_eq!(ids(&found), [id]);
        } else {
            assert_eq!((ids(&found), outcome), (vec![id], Outcome::Findings), "{found:#?}");
        }
    }
}

#[tokio::test]
async fn a_patch_for_an_object_of_a_list_names_its_kind() {
    let api = cluster().await;
    api.change(OBJECTS, |list| {
        let object = list["items"][0].as_object_mut().unwrap();
        object.remove("kind");
        object.remove("apiVersion");
        object["spec"]["minReplicaCount"] = json!(0);
    });
    let (_, report) = examined(&api, &[]).await;
    let patch = &findings(&report)[0]["fix"]["patch"];
    assert_eq!((&patch["kind"], &patch["name"]), (&json!("ScaledObject"), &json!("llm")));
}

#[tokio::test]
async fn what_may_not_be_read_is_told_with_the_servers_words() {
    let api = cluster().await;
    api.forbid(NODES);
    let (outcome, report) = examined(&api, &["--longest-answer", "120s"]).await;
    assert_eq!(outcome, Outcome::InOrder);
    let unseen = unseen(&report);
    for id in ["max-beyond-gpus", "nodes-taken-away"] {
        let (_, why) = unseen.iter().find(|(unseen, _)| unseen == id).unwrap();
        assert_eq!(why, "you may not read nodes: so the test wants it");
    }
}

#[tokio::test]
async fn the_scalers_own_rights_are_asked_for_by_whoever_may() {
    let api = cluster().await;
    examined(&api, &[]).await;
    assert_eq!(api.reviews(), ["selfsubjectreviews", "subjectaccessreviews"]);
    // In its own pod it asks for itself, which takes no right.
    let api = cluster().await;
    api.name_caller("system:serviceaccount:ghostscaler:ghostscaler");
    api.deny("scaledobjects");
    let (_, report) = examined(&api, &[]).await;
    assert_eq!(api.reviews(), ["selfsubjectaccessreviews", "selfsubjectreviews"]);
    assert_eq!(ids(&findings(&report)), ["missing-permission"]);
    // Who may not ask is told so, and nothing is taken for granted.
    let api = cluster().await;
    api.forbid("/apis/authorization.k8s.io/v1/subjectaccessreviews");
    let (_, report) = examined(&api, &[]).await;
    assert!(unseen(&report).iter().any(|(id, _)| id == "missing-permission"));
}

#[tokio::test]
async fn a_scaler_of_some_namespaces_needs_no_right_that_only_a_cluster_gives() {
    let api = cluster().await;
    api.deny("nodes");
    let (_, report) = examined(&api, &[]).await;
    assert_eq!(ids(&findings(&report)), ["missing-permission"], "it watches all namespaces");
    let scaler = |namespace: &str| {
        let container =
            json!({"name": "ghostscaler", "args": ["serve", format!("--namespace={namespace}")]});
        json!({"metadata": {"name": "ghostscaler", "namespace": "ghostscaler"},
            "spec": {"template": {"spec": {"containers": [container]}}}})
    };
    let path = "/apis/apps/v1/namespaces/ghostscaler/deployments/ghostscaler";
    api.put(path, scaler("team-a"));
    let (_, report) = examined(&api, &[]).await;
    assert_eq!(findings(&report), Vec::<Value>::new());
    api.put(path, scaler("team-b"));
    let (_, report) = examined(&api, &[]).await;
    assert_eq!(ids(&findings(&report)), ["namespace-not-watched"]);
}

#[tokio::test]
async fn without_scaled_objects_nothing_could_be_looked_at() {
    let api = cluster().await;
    let kubeconfig = api.kubeconfig();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let error = run(&["--kubeconfig", kubeconfig, "other"]).await.unwrap_err();
    assert_eq!(error.to_string(), "there is no ScaledObject other in namespace team-a");
    api.forbid(OBJECTS);
    let error = run(&["--kubeconfig", kubeconfig]).await.unwrap_err();
    assert!(matches!(error, Error::Objects { .. }), "{error}");
    let error = run(&["--kubeconfig", "/does/not/exist"]).await.unwrap_err();
    assert!(matches!(error, Error::Cluster(_)), "{error}");
}
