//! The whole source against an API server on a real socket.

mod fake_api;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::decision::Phase;
use crate::inventory::{Workload, WorkloadKey};
use fake_api::FakeApi;

const OBJECTS: &str = "/apis/keda.sh/v1alpha1/scaledobjects";
const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
const STATEFUL_SETS: &str = "/apis/apps/v1/statefulsets";
const PODS: &str = "/api/v1/pods";
const HPAS: &str = "/apis/autoscaling/v2/horizontalpodautoscalers";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/resourceclaims";
const NODES: &str = "/api/v1/nodes";
const ALL: [&str; 4] = [OBJECTS, DEPLOYMENTS, STATEFUL_SETS, PODS];

/// A running source; it is cancelled when dropped.
struct Running {
    inventories: watch::Receiver<Arc<Inventory>>,
    task: JoinHandle<Result<(), Error>>,
    cancel: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Running {
    fn start(api: &FakeApi, namespaces: &[&str]) -> Running {
        let (publish, inventories) = watch::channel(Arc::new(Inventory::default()));
        let cancel = CancellationToken::new();
        let options =
            Options { namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect() };
        let source = run(api.client(), options, publish, Clock::start(), cancel.clone());
        Running { inventories, task: tokio::spawn(source), cancel }
    }

    /// The first inventory, from the present one on, of which this is true.
    async fn until(&mut self, wanted: impl FnMut(&Arc<Inventory>) -> bool) -> Arc<Inventory> {
        let wait = self.inventories.wait_for(wanted);
        let found = tokio::time::timeout(Duration::from_secs(20), wait).await;
        Arc::clone(&found.expect("published within 20 s").expect("the source runs"))
    }

    async fn until_workload(&mut self, wanted: impl Fn(&Workload) -> bool) -> Arc<Workload> {
        let key = WorkloadKey::new("ns", "llm");
        let is_wanted = |i: &Arc<Inventory>| i.workloads.get(&key).is_some_and(|w| wanted(w));
        let inventory = self.until(is_wanted).await;
        Arc::clone(&inventory.workloads[&key])
    }
}

fn scaled_object(target: Value) -> Value {
    json!({
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
        "metadata": {"namespace": "ns", "name": "llm",
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]},
        "spec": {"scaleTargetRef": target, "minReplicaCount": 1, "maxReplicaCount": 8,
            "triggers": [{"type": "external-push", "metadata": {"scalerAddress": "a:1"}}]},
    })
}

fn deployment(replicas: u32) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "llm", "generation": 1},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "llm"}},
            "template": {"spec": {"containers": [{"name": "x",
                "resources": {"limits": {"nvidia.com/gpu": "4"}}}]}}},
        "status": {"observedGeneration": 1, "replicas": replicas, "updatedReplicas": replicas},
    })
}

fn pod(name: &str, ready: &str) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": name, "labels": {"app": "llm"}},
        "spec": {"containers": [{"name": "x", "ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": ready}]},
    })
}

async fn with_llm(replicas: u32) -> FakeApi {
    let api = FakeApi::start().await;
    api.put(OBJECTS, scaled_object(json!({"name": "llm"})));
    api.put(DEPLOYMENTS, deployment(replicas));
    api
}

#[tokio::test]
async fn a_workload_is_listed_then_followed_then_gone() {
    let api = with_llm(2).await;
    api.put(PODS, pod("llm-0", "True"));
    let mut source = Running::start(&api, &[]);
    let workload = source.until_workload(|_| true).await;
    assert_eq!((workload.min, workload.max, workload.gpus_per_replica), (1, 8, Some(4)));
    assert_eq!(workload.triggers[0]["scalerAddress"], "a:1");
    let replicas = workload.replicas;
    assert_eq!((replicas.spec, replicas.ready, replicas.starting), (Some(2), 1, 1));
    assert!(source.until(|_| true).await.synced);

    api.put(PODS, pod("llm-1", "False"));
    let workload = source.until_workload(|workload| workload.members.len() == 2).await;
    assert_eq!(workload.members[1].phase, Phase::Starting);
    api.put(PODS, pod("llm-1", "True"));
    source.until_workload(|workload| workload.replicas.ready == 2).await;
    api.put(DEPLOYMENTS, deployment(0));
    api.delete(PODS, pod("llm-0", "True"));
    api.delete(PODS, pod("llm-1", "True"));
    let workload = source.until_workload(|workload| workload.members.is_empty()).await;
    assert_eq!(workload.replicas.spec, Some(0));

    api.delete(OBJECTS, scaled_object(json!({"name": "llm"})));
    let inventory = source.until(|inventory| inventory.workloads.is_empty()).await;
    assert!(inventory.synced);
    assert_eq!(inventory.stale_since("ns"), None);
}

#[tokio::test]
async fn a_broken_scaled_object_hides_no_other() {
    let api = with_llm(1).await;
    api.put(OBJECTS, json!({"metadata": {"namespace": "ns", "name": "broken"}, "spec": 7}));
    let mut source = Running::start(&api, &[]);
    let inventory = source.until(|inventory| inventory.synced).await;
    assert_eq!(inventory.workloads.len(), 1);
}

#[tokio::test]
async fn a_watch_that_ends_is_resumed_where_it_stopped_without_a_new_list() {
    let api = with_llm(2).await;
    let mut source = Running::start(&api, &[]);
    source.until_workload(|workload| workload.replicas.spec == Some(2)).await;
    api.hang_up(DEPLOYMENTS);
    api.put(DEPLOYMENTS, deployment(3));
    source.until_workload(|workload| workload.replicas.spec == Some(3)).await;
    api.put(DEPLOYMENTS, deployment(4));
    source.until_workload(|workload| workload.replicas.spec == Some(4)).await;
    assert_eq!(api.count("list", DEPLOYMENTS), 1);
}

#[tokio::test]
async fn after_410_gone_everything_is_listed_anew_and_what_went_meanwhile_is_gone() {
    let api = with_llm(2).await;
    api.put(PODS, pod("llm-0", "True"));
    api.put(PODS, pod("llm-1", "True"));
    let mut source = Running::start(&api, &[]);
    source.until_workload(|workload| workload.members.len() == 2).await;
    api.hang_up(PODS);
    api.delete(PODS, pod("llm-0", "True"));
    api.expire(PODS);
    let workload = source.until_workload(|workload| workload.members.len() == 1).await;
    assert_eq!(&*workload.members[0].id, "llm-1");
    assert_eq!(api.count("list", PODS), 2);
    source.until(|inventory| inventory.stale.is_empty()).await;
}

#[tokio::test]
async fn what_may_not_be_read_leaves_the_source_unsynced_and_running() {
    let api = with_llm(2).await;
    api.fail(PODS, Some(403));
    let mut source = Running::start(&api, &[]);
    let inventory = source.until(|inventory| !inventory.stale.is_empty()).await;
    assert!(!inventory.synced);
    assert!(inventory.workloads.is_empty(), "its pods are unknown, not absent");
    assert!(!source.task.is_finished());
    api.fail(PODS, None);
    let inventory = source.until(|inventory| inventory.synced).await;
    assert_eq!(inventory.workloads.len(), 1);
    assert_eq!(inventory.stale_since("ns"), None);
}

#[tokio::test]
async fn without_the_api_server_the_last_inventory_stays_and_is_called_stale() {
    let api = with_llm(2).await;
    let mut source = Running::start(&api, &[]);
    source.until(|inventory| inventory.synced && !inventory.workloads.is_empty()).await;
    for path in ALL {
        api.fail(path, Some(500));
        api.hang_up(path);
    }
    let inventory = source.until(|inventory| !inventory.stale.is_empty()).await;
    assert!(inventory.synced);
    assert_eq!(inventory.workloads[&WorkloadKey::new("ns", "llm")].replicas.spec, Some(2));
    api.put(DEPLOYMENTS, deployment(5));
    for path in ALL {
        api.fail(path, None);
    }
    source.until_workload(|workload| workload.replicas.spec == Some(5)).await;
}

#[tokio::test]
async fn only_the_named_namespaces_are_read_each_for_itself() {
    let api = FakeApi::start().await;
    let of = |namespace: &str, resource: &str| match resource {
        "scaledobjects" => format!("/apis/keda.sh/v1alpha1/namespaces/{namespace}/{resource}"),
        "pods" => format!("/api/v1/namespaces/{namespace}/{resource}"),
        _ => format!("/apis/apps/v1/namespaces/{namespace}/{resource}"),
    };
    api.put(&of("ns", "scaledobjects"), scaled_object(json!({"name": "llm"})));
    api.put(&of("ns", "deployments"), deployment(2));
    api.fail(&of("forbidden", "pods"), Some(403));
    let mut source = Running::start(&api, &["ns", "forbidden", "ns"]);
    source.until_workload(|workload| workload.replicas.spec == Some(2)).await;
    assert!(!source.until(|_| true).await.synced, "the other namespace was not read");
    assert_eq!(api.count("list", &of("ns", "pods")), 1, "named twice, read once");
    assert!(ALL.iter().all(|path| api.count("list", path) == 0));
}

#[tokio::test]
async fn a_target_of_any_kind_is_read_through_its_scale() {
    let api = FakeApi::start().await;
    let scale_path = "/apis/example.org/v1/namespaces/ns/engines/llm/scale";
    let scale = |replicas: u32| {
        Some(json!({"metadata": {"name": "llm"}, "spec": {"replicas": replicas},
            "status": {"replicas": 1, "selector": "app=llm"}}))
    };
    api.single(
        "/apis/example.org/v1",
        Some(json!({"kind": "APIResourceList", "groupVersion": "example.org/v1", "resources": [
            {"name": "engines", "kind": "Engine", "namespaced": true, "singularName": "",
                "verbs": ["get"]},
            {"name": "engines/scale", "kind": "Scale", "namespaced": true, "singularName": "",
                "verbs": ["get"]},
        ]})),
    );
    let target = json!({"name": "llm", "kind": "Engine", "apiVersion": "example.org/v1"});
    api.put(OBJECTS, scaled_object(target));
    let mut source = Running::start(&api, &[]);
    let workload = source.until_workload(|_| true).await;
    assert_eq!(workload.replicas.spec, None, "not there yet");

    api.single(scale_path, scale(3));
    api.put(PODS, pod("llm-0", "True"));
    let workload = source.until_workload(|workload| workload.replicas.spec == Some(3)).await;
    assert_eq!((workload.replicas.ready, workload.replicas.starting), (1, 2));

    api.single(scale_path, scale(1));
    api.put(PODS, pod("llm-1", "True"));
    source.until_workload(|workload| workload.replicas.spec == Some(1)).await;
    assert_eq!(api.count("get", "/apis/example.org/v1"), 1, "the kind is looked up once");
}

#[tokio::test]
async fn rbac_is_exactly_what_is_asked_for() {
    let api = FakeApi::start().await;
    let target = json!({"name": "llm", "kind": "ReplicaSet", "apiVersion": "apps/v1"});
    api.single(
        "/apis/apps/v1",
        Some(json!({"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [
            {"name": "replicasets", "kind": "ReplicaSet", "namespaced": true, "singularName": "",
                "verbs": ["get"]},
        ]})),
    );
    let scale = "/apis/apps/v1/namespaces/ns/replicasets/llm/scale";
    api.single(scale, Some(json!({"spec": {"replicas": 1}})));
    api.put(OBJECTS, scaled_object(target));
    let mut source = Running::start(&api, &[]);
    source.until_workload(|workload| workload.replicas.spec == Some(1)).await;
    let all_watched = async {
        let extras = [HPAS, CLAIMS, NODES];
        while ALL.iter().chain(&extras).any(|path| api.count("watch", path) == 0) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all_watched).await.expect("watched within 20 s");
    // Discovery is everybody's by Kubernetes' own default role `system:discovery`.
    let discovery = ("get", "/apis/apps/v1".to_owned());
    let asked: BTreeSet<_> = api.asked().into_iter().filter(|asked| *asked != discovery).collect();
    // What events need is asked for when there is one.
    let of_events = |verb, permission: &Permission| {
        permission.api_group == "events.k8s.io"
            || (verb, permission.resource) == ("get", "scaledobjects")
    };
    let permitted: BTreeSet<_> = RBAC
        .iter()
        .flat_map(|permission| permission.verbs.iter().map(move |verb| (*verb, permission)))
        .filter(|(verb, permission)| !of_events(*verb, permission))
        .map(|(verb, permission)| {
            let path = match (permission.api_group, permission.resource) {
                ("", resource) => format!("/api/v1/{resource}"),
                ("keda.sh", resource) => format!("/apis/keda.sh/v1alpha1/{resource}"),
                ("*", "*/scale") => scale.to_owned(),
                ("autoscaling", resource) => format!("/apis/autoscaling/v2/{resource}"),
                (group, resource) => format!("/apis/{group}/v1/{resource}"),
            };
            (verb, path)
        })
        .collect();
    assert_eq!(asked, permitted);
}

#[tokio::test]
async fn cancelling_ends_the_source() {
    let api = with_llm(1).await;
    let mut source = Running::start(&api, &[]);
    source.until(|inventory| inventory.synced).await;
    source.cancel.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(20), &mut source.task).await;
    assert!(matches!(ended, Ok(Ok(Ok(())))));
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_used_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("absent");
    let error = connect(Some(&path)).await.err().expect("there is no such file");
    assert_eq!(error.to_string(), format!("the kubeconfig {} cannot be used", path.display()));
    std::fs::write(&path, "clusters: 7").unwrap();
    assert!(matches!(connect(Some(&path)).await, Err(Error::Kubeconfig { .. })));
}
