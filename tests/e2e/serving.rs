//! From an engine's page to what KEDA, a person and the conformance client are told.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::engine::{Engine, load};
use super::keda::{Role, trigger};
use super::program::{Config, PATIENCE, Scaler, run};
use crate::support::eventually;

/// One workload with one engine.
fn one_workload(engine: &Engine) -> Config {
    Config::new(&format!(
        "workloads:\n- {{namespace: demo, name: llm, min: 1, max: 5, replicas: 1, \
         endpoints: ['{}']}}\n",
        engine.address
    ))
}

#[tokio::test]
async fn a_queue_raises_the_count_and_everybody_is_told_why() {
    let engine = Engine::start().await;
    let config = one_workload(&engine);
    let log = config.file("decisions.jsonl");
    let scaler = Scaler::start(&config.path(), &["--decision-log", log.to_str().unwrap()]).await;
    let keda = scaler.keda().await;
    scaler.healthy("demo/llm").await;
    assert_eq!(keda.poll("demo/llm").await, (1, true));
    assert_eq!(keda.targets(&trigger("demo/llm")).await.unwrap(), [1]);

    engine.carry(load(40, 4));
    let queued_at = Instant::now();
    let trigger = trigger("demo/llm");
    let wanted = loop {
        match keda.wanted(&trigger, Role::Hpa).await.unwrap() {
            1 | 2 => {}
            wanted => break wanted,
        }
        sleep(Duration::from_millis(2)).await;
        assert!(queued_at.elapsed() < PATIENCE, "the queue is not seen");
    };
    let told_at = Instant::now();
    let read_at = engine.load_read_at().unwrap();
    println!("queue to answer {:?}, scrape to answer {:?}", told_at - queued_at, told_at - read_at);
    // 40 waiting and 4 running on the one replica: 11 would be needed, 5 are allowed.
    assert_eq!(wanted, 5);

    scaler.healthy("demo/llm").await;
    let (status, list) = scaler.get("/api/v1/workloads").await;
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((status, list["workloads"].as_array().unwrap().len()), (200, 1));
    let entry = &list["workloads"][0];
    let expected = serde_json::json!({
        "namespace": "demo", "name": "llm", "want": 5, "spec": 1, "active": true,
        "waiting": 40.0, "health": "ok", "binding": "max",
    });
    for (key, expected) in expected.as_object().unwrap() {
        assert_eq!(&entry[key], expected, "{key} of {entry:#}");
    }
    let wanted =
        scaler.metric("ghostscaler_workload_wanted_replicas{namespace=\"demo\",name=\"llm\"}");
    assert_eq!(wanted.await, Some(5.0));
    for (path, expected) in [("/livez", 200), ("/readyz", 200), ("/api/v1/workloads/demo/no", 404)]
    {
        assert_eq!(scaler.get(path).await.0, expected, "{path}");
    }
    scaler.stop().await;
    // One more at the first look, for what runs has just begun to: too short for a poll to see surely.
    let decided = fs::read_to_string(&log).unwrap();
    let decided = decided.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut wanted: Vec<u64> =
        decided.filter_map(|line| line["decision"]["want"].as_u64()).collect();
    wanted.dedup();
    assert_eq!(wanted, [1, 2, 5]);
}

#[tokio::test]
async fn explain_prints_the_running_scalers_decision_as_text_and_as_json() {
    let engine = Engine::start().await;
    engine.carry(load(40, 4));
    let config = one_workload(&engine);
    let scaler = Scaler::start(&config.path(), &[]).await;
    scaler.workload_when("demo/llm", "at its maximum", |snapshot| snapshot["want"] == 5).await;
    let server = format!("http://{}", scaler.http);

    let text = run(&["explain", "demo/llm", "--server", &server]).await;
    assert_eq!(text.code, Some(0), "{text:?}");
    for part in ["demo/llm: 5 replicas, active", "waiting requests", "40 waiting", "queue"] {
        assert!(text.stdout.contains(part), "{part:?} is not in\n{}", text.stdout);
    }
    assert!(text.stdout.lines().all(|line| line.chars().count() <= 80), "{}", text.stdout);

    // An address as every other of this program.
    let address = scaler.http.to_string();
    let json = run(&["explain", "demo/llm", "--server", &address, "--format", "json"]).await;
    assert_eq!(json.code, Some(0), "{json:?}");
    let snapshot: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&snapshot["want"], &snapshot["decision"]["want"]), (&5.into(), &5.into()));

    let unknown = run(&["explain", "demo/other", "--server", &server]).await;
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(unknown.stderr.contains("demo/other"), "{}", unknown.stderr);
    scaler.stop().await;
    let nobody = run(&["explain", "demo/llm", "--server", &server]).await;
    assert_eq!(nobody.code, Some(2), "{nobody:?}");
    assert!(nobody.stderr.contains(&server), "{}", nobody.stderr);
}

#[tokio::test]
async fn the_conformance_client_finds_no_fault_in_the_running_scaler() {
    let engine = Engine::start().await;
    engine.carry(load(0, 4));
    let config = one_workload(&engine);
    let scaler = Scaler::start(&config.path(), &[]).await;
    scaler.healthy("demo/llm").await;
    let address = scaler.grpc.to_string();
    let mut args = vec!["conformance", &address, "--namespace", "demo", "--name", "llm"];
    args.extend(["--metadata", "sloTtft=2s", "--bad-metadata", "sloTtft=soon"]);
    args.extend(["--duration", "6s", "--load", "50", "--format", "json"]);
    let report = run(&args).await;
    let json: Value =
        serde_json::from_str(&report.stdout).unwrap_or_else(|error| panic!("{error}: {report:?}"));
    let checks = json["checks"].as_array().unwrap();
    let failed: Vec<&Value> = checks.iter().filter(|check| check["result"] == "fail").collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(report.code, Some(0));
    println!("conformance: {}", json["summary"]);
    assert!(json["summary"]["passed"].as_u64().unwrap() >= 40, "{}", json["summary"]);
    scaler.stop().await;
}

#[tokio::test]
async fn a_thousand_streams_that_are_cancelled_at_once_cut_nobody_off() {
    let engine = Engine::start().await;
    let config = one_workload(&engine);
    let scaler = Scaler::start(&config.path(), &[]).await;
    let address = scaler.grpc.to_string();
    let mut args = vec!["conformance", &address, "--namespace", "demo", "--name", "llm"];
    args.extend(["--only", "D6", "--load", "1000", "--duration", "200ms", "--format", "json"]);
    let report = run(&args).await;
    assert_eq!(report.code, Some(0), "{}", report.stdout);
    assert!(report.stdout.contains("3000 streams"), "{}", report.stdout);
    eventually("the end of all streams", async || {
        (scaler.metric("ghostscaler_grpc_open_streams").await == Some(0.0)).then_some(())
    })
    .await;
    scaler.stop().await;
}

#[tokio::test]
async fn the_bundled_example_runs_with_no_engine_up() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/local/example.yaml");
    let scaler = Scaler::start(&example, &[]).await;
    let keda = scaler.keda().await;
    assert_eq!(keda.poll("demo/llm").await, (1, true));
    assert_eq!(keda.poll("demo/batch").await, (2, true));
    let server = scaler.http.to_string();
    let batch = scaler.workload_when("demo/batch", "decided", |batch| batch["version"] != 0);
    // The ports are anybody's on this machine, but nobody is ever told to stop for lack of data.
    assert_eq!(batch.await["active"], true);
    let explained = run(&["explain", "demo/batch", "--server", &server]).await;
    assert_eq!(explained.code, Some(0), "{explained:?}");
    scaler.stop().await;
}
