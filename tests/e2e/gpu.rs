//! GPU metrics from an exporter's own page: seen, lost, and back.

use std::future::pending;

use loadgen::dcgm::{self, Fleet};
use serde_json::Value;
use tokio::net::TcpListener;

use super::engine::{Engine, Manner, load};
use super::program::{Config, Scaler};

/// Two devices, one each for the pods of a namespace, busy for 40 and 60 % of the time.
fn devices(namespace: &str) -> String {
    let device = |n: u8, busy: u8| {
        let labels = format!(
            "gpu=\"{n}\",UUID=\"GPU-{namespace}-{n}\",device=\"nvidia{n}\",\
             modelName=\"NVIDIA H100\",Hostname=\"n1\",container=\"vllm\",\
             namespace=\"{namespace}\",pod=\"llm-{n}\""
        );
        format!("DCGM_FI_DEV_GPU_UTIL{{{labels}}} {busy}\n")
    };
    format!("# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n{}{}", device(0, 40), device(1, 60))
}

/// What a rule said.
fn vote<'a>(snapshot: &'a Value, rule: &str) -> &'a Value {
    let votes = snapshot["decision"]["votes"].as_array().unwrap();
    votes.iter().find(|vote| vote["rule"] == rule).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn lost_gpu_metrics_stop_steps_down_until_they_are_back() {
    let exporter = Engine::of_text(devices("gpus") + &devices("others")).await;
    let engines = [Engine::start().await, Engine::start().await];
    // Too much for one of the two, so that evidence begins when the load ends.
    engines.iter().for_each(|engine| engine.carry(load(0, 8)));
    let workload = |namespace: &str| {
        format!(
            "- {{namespace: {namespace}, name: llm, min: 1, max: 4, replicas: 2, ghostHold: 10s, \
             endpoints: [{{url: 'http://{}', pod: llm-0}}, {{url: 'http://{}', pod: llm-1}}]}}\n",
            engines[0].address, engines[1].address
        )
    };
    let config = Config::new(&format!(
        "dcgm: {{endpoints: ['{}']}}\nworkloads:\n{}{}",
        exporter.address,
        workload("gpus"),
        workload("none")
    ));
    let scaler = Scaler::start(&config.path(), &[]).await;
    let busy = |llm: &Value| llm["decision"]["inputs"]["gpu_busy"] == 0.5;
    scaler.workload_when("gpus/llm", "with its GPUs' use", busy).await;
    let none = scaler.healthy("none/llm").await;
    assert_eq!(vote(&none, "gpu_ceiling")["reason"]["code"], "gpu_absent", "{none:#}");
    assert_eq!(none["decision"]["inputs"]["gpu_busy"], Value::Null);

    // The exporter answers, and says nothing of these devices any more.
    exporter.set(Manner::Text(devices("others")));
    let lost = |llm: &Value| vote(llm, "gpu_ceiling")["reason"]["code"] == "gpu_lost";
    scaler.workload_when("gpus/llm", "without its GPUs' use", lost).await;
    engines.iter().for_each(|engine| engine.carry(load(0, 0)));
    // The same engines without GPUs: what evidence says where nothing stands in its way.
    scaler.workload_when("none/llm", "down by one", |llm| llm["want"] == 1).await;
    // Lost devices are no lost engine.
    let whole = |llm: &Value| llm["decision"]["next"]["down_in_ms"] == 0 && llm["health"] == "ok";
    let held = scaler.workload_when("gpus/llm", "as surely idle", whole).await;
    assert!(lost(&held), "{held:#}");
    assert_eq!(scaler.keda().await.poll("gpus/llm").await, (2, true));

    exporter.set(Manner::Text(devices("gpus")));
    scaler.workload_when("gpus/llm", "down by one", |llm| llm["want"] == 1).await;
    assert_eq!(scaler.keda().await.poll("gpus/llm").await, (1, true));
    scaler.stop().await;
}

#[tokio::test]
async fn the_simulated_exporters_of_two_nodes_are_read_as_one_workload() {
    let node = |n: u8, busy: f64| {
        let pod = format!("{{namespace: sim, name: llm-{n}, load: {{busy: {busy}}}}}");
        format!("{{name: n{n}, gpus: [{{model: h100-80gb, pods: [{pod}]}}]}}")
    };
    let nodes = [node(0, 0.4), node(1, 0.6)].join(", ");
    let fleet = format!("{{style: {{interval: 1s}}, nodes: [{nodes}]}}");
    let fleet = Fleet::parse("fleet", &fleet).unwrap();
    let mut listeners = Vec::new();
    for _ in &fleet.nodes {
        listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let exporters: Vec<_> =
        listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    let gpus = tokio::spawn(async move { dcgm::serve(&fleet, listeners, pending()).await });
    let engines = [Engine::start().await, Engine::start().await];
    let config = Config::new(&format!(
        "dcgm: {{endpoints: ['{}']}}\nworkloads:\n- {{namespace: sim, name: llm, min: 1, max: 4, \
         replicas: 2, endpoints: [{{url: 'http://{}', pod: llm-0}}, \
         {{url: 'http://{}', pod: llm-1}}]}}\n",
        exporters.join("', '"),
        engines[0].address,
        engines[1].address
    ));
    let scaler = Scaler::start(&config.path(), &[]).await;
    let busy = |llm: &Value| {
        let busy = llm["decision"]["inputs"]["gpu_busy"].as_f64();
        busy.is_some_and(|busy| (busy - 0.5).abs() < 1e-6)
    };
    scaler.workload_when("sim/llm", "with the mean of both nodes", busy).await;
    scaler.stop().await;
    gpus.abort();
}
