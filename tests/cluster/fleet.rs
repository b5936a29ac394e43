//! How much memory and time ten thousand workloads take: a real etcd and a real API server full of
//! objects, and the scaler that reads them.
//!
//! Must have no controller, scheduler or kubelet beside them: they would be measured too.

use std::fmt::Debug;
use std::fs;
use std::process::Command;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use kube::core::NamespaceResourceScope;
use kube::core::Resource;
use libtest_mimic::Trial;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::objects::{Scaled, Target};
use crate::plane::{Calls, Plane};
use crate::ports;
use crate::process::Process;

/// Namespaces, and what stands in each: 10,000 ScaledObjects with 50,000 pods in all.
const NAMESPACES: usize = 100;
const OBJECTS: usize = 100;
const PODS_OF_EACH: usize = 5;
/// Requests at the API server at once, while it is filled.
const AT_ONCE: usize = 32;
/// How long one write may fail.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the scaler is watched once it is ready.
const STEADY: Duration = Duration::from_secs(60);
/// A scaler that is not ready by then will not be.
const READY: Duration = Duration::from_secs(300);

/// The measurement; it takes minutes, so it runs only when asked for by `--ignored`.
pub(crate) fn trial() -> Trial {
    Trial::test("fleet", || {
        let plane = match Plane::start_store() {
            Ok(plane) => plane,
            Err(missing) => {
                println!("skipped: the fleet: {missing}");
                return Ok(());
            }
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(measure(&plane));
        Ok(())
    })
    .with_ignored_flag(true)
}

async fn measure(plane: &Plane) {
    let client = plane.client().await;
    let filling = Instant::now();
    fill(&client).await;
    println!(
        "{} ScaledObjects, Deployments and HPAs, {} pods written in {:.0} s",
        NAMESPACES * OBJECTS,
        NAMESPACES * OBJECTS * PODS_OF_EACH,
        filling.elapsed().as_secs_f64()
    );
    let rights = plane.scaler_rights(&client, plane.dir()).await;
    let [grpc, http] = ports::free();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ghostscaler"));
    command.arg("serve").arg("--kubeconfig").arg(rights).args(["--log-format", "json"]);
    command.arg("--grpc-address").arg(format!("127.0.0.1:{grpc}"));
    command.arg("--http-address").arg(format!("127.0.0.1:{http}"));
    let started = Instant::now();
    let mut scaler = Process::start(&mut command, &plane.dir().join("scaler.log"));
    let web = reqwest::Client::builder().no_proxy().build().unwrap();
    let get = |path: &str| web.get(format!("http://127.0.0.1:{http}{path}")).send();
    while !get("/readyz").await.is_ok_and(|answer| answer.status().is_success()) {
        assert!(scaler.runs(), "the scaler has ended");
        assert!(started.elapsed() < READY, "not ready within {} s", READY.as_secs());
        sleep(Duration::from_millis(50)).await;
    }
    println!("ready after {:.1} s, {}", started.elapsed().as_secs_f64(), memory(&scaler));
    let page = get("/metrics").await.unwrap().text().await.unwrap();
    let tracked = page.lines().find_map(|line| line.strip_prefix("ghostscaler_workloads "));
    assert_eq!(tracked, Some((NAMESPACES * OBJECTS).to_string().as_str()), "triggers tracked");
    // The first ticks of all of them.
    sleep(Duration::from_secs(20)).await;
    let (before, watched, from) = (cpu_s(&scaler), Instant::now(), jiff::Timestamp::now());
    sleep(STEADY).await;
    let share = (cpu_s(&scaler) - before) / watched.elapsed().as_secs_f64();
    println!("then {:.1} % of a core without any change, {}", 100.0 * share, memory(&scaler));
    let calls = Calls::since(&plane.asked_by("ghostscaler"), from);
    println!("and of the API server it asked for: {calls}");
    assert_eq!(calls.count(|what| what.starts_with("list ")), 0, "{calls}");
}

async fn fill(client: &kube::Client) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let kind = GroupVersionKind::gvk("keda.sh", "v1alpha1", "ScaledObject");
    let scaled_objects = ApiResource::from_gvk_with_plural(&kind, "scaledobjects");
    for index in 0..NAMESPACES {
        let namespace = format!("team-{index}");
        create(&namespaces, json!({"metadata": {"name": namespace}})).await;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace);
        create(&accounts, json!({"metadata": {"name": "default"}})).await;
    }
    let all = (0..NAMESPACES * OBJECTS).map(|index| {
        let (namespace, name) = (format!("team-{}", index % NAMESPACES), format!("llm-{index}"));
        let (client, resource) = (client.clone(), scaled_objects.clone());
        async move {
            let objects: Api<DynamicObject> =
                Api::namespaced_with(client.clone(), &namespace, &resource);
            let made = create(&objects, scaled_object(&name)).await;
            let uid = made.metadata.uid.unwrap();
            create(&in_namespace::<Deployment>(&client, &namespace), deployment(&name)).await;
            let hpas = in_namespace::<HorizontalPodAutoscaler>(&client, &namespace);
            create(&hpas, hpa(&name, &uid)).await;
            for number in 0..PODS_OF_EACH {
                let pods = in_namespace::<Pod>(&client, &namespace);
                create(&pods, pod(&name, number)).await;
                // What starts is decided on each second, and a fleet does not start for ever. Without
                // an address nothing is scraped.
                let ready = json!({"status": {"phase": "Running", "conditions": [
                    {"type": "Ready", "status": "True",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
                let patch = Patch::Merge(&ready);
                let name = format!("{name}-{number}");
                let options = PatchParams::default();
                persist(async || pods.patch_status(&name, &options, &patch).await).await;
            }
        }
    });
    stream::iter(all).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

fn in_namespace<K>(client: &kube::Client, namespace: &str) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced(client.clone(), namespace)
}

/// Creates an object; a server that is filled as fast as it goes has failures of its own.
async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    let object = serde_json::from_value(object).unwrap();
    persist(async || match api.create(&PostParams::default(), &object).await {
        // An attempt that seemed to have failed.
        Err(kube::Error::Api(status)) if status.is_already_exists() => api.get(&name).await,
        other => other,
    })
    .await
}

async fn persist<T>(attempt: impl AsyncFn() -> Result<T, kube::Error>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        sleep(Duration::from_millis(300)).await;
    }
}

fn named(mut object: Value, name: &str) -> Value {
    object["metadata"]["name"] = json!(name);
    object
}

fn scaled_object(name: &str) -> Value {
    let mut object = named(Scaled::new("ghostscaler:9090", 1, 8).object(), name);
    object["spec"]["scaleTargetRef"]["name"] = json!(name);
    object
}

fn deployment(name: &str) -> Value {
    let replicas = u32::try_from(PODS_OF_EACH).unwrap();
    let mut object = named(Target::new(replicas).object(), name);
    object["spec"]["selector"]["matchLabels"]["app"] = json!(name);
    object["spec"]["template"]["metadata"]["labels"]["app"] = json!(name);
    object
}

fn hpa(name: &str, uid: &str) -> Value {
    let behavior =
        scaled_object(name)["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
            .clone();
    json!({
        "metadata": {"name": format!("keda-hpa-{name}"), "ownerReferences": [
            {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": name, "uid": uid}]},
        "spec": {"minReplicas": 1, "maxReplicas": 8, "behavior": behavior,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "metrics": [{"type": "External", "external": {
                "metric": {"name": "s0-wanted-replicas"},
                "target": {"type": "AverageValue", "averageValue": "1"}}}]},
    })
}

fn pod(name: &str, number: usize) -> Value {
    let mut template = deployment(name)["spec"]["template"].clone();
    template["spec"]["nodeName"] = json!(format!("gpu-{}", number));
    named(template, &format!("{name}-{number}"))
}

/// Memory of the process as the kernel counts it.
fn memory(process: &Process) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let mib = |key: &str| {
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        let kib: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        format!("{key} {:.0} MiB", kib / 1_024.0)
    };
    ["RssAnon:", "VmHWM:"].map(|key| mib(key).replace(':', "")).join(", ")
}

/// Processor time that it has used, in seconds; the kernel counts in hundredths.
fn cpu_s(process: &Process) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    // The name in parentheses may hold anything.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks = |index: usize| fields[index].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / 100.0
}
