//! The configuration file while the program runs: changed, broken, mended.

use super::engine::{Engine, Load, Manner, queue};
use super::keda::{pushed, trigger};
use super::program::{Config, Scaler};
use crate::support::eventually;

/// Reloads with this result so far.
async fn reloads(scaler: &Scaler, result: &str) -> Option<f64> {
    scaler.metric(&format!("ghostscaler_config_reloads_total{{result=\"{result}\"}}")).await
}

/// Waits until there have been this many reloads with this result.
async fn reloaded(scaler: &Scaler, result: &str, count: f64) {
    let what = format!("{count} times {result}");
    eventually(&what, async || (reloads(scaler, result).await? >= count).then_some(())).await;
}

#[tokio::test]
async fn a_changed_file_is_applied_and_sighup_applies_it_too() {
    let engine = Engine::start().await;
    engine.carry(queue());
    let gateway = Engine::of_text("gateway_requests_total{model=\"a\"} 7\n").await;
    let endpoints = format!("endpoints: ['{}']", engine.address);
    let text = |max: u32, asleep: &str, more: &str| {
        format!(
            "workloads:\n\
             - {{namespace: demo, name: llm, max: {max}, replicas: 1, {endpoints}}}\n\
             - {{namespace: demo, name: asleep, max: 2, replicas: 0{asleep}}}\n{more}"
        )
    };
    let config = Config::new(&text(2, "", ""));
    let scaler = Scaler::start(&config.path(), &[]).await;
    let keda = scaler.keda().await;
    scaler.workload_when("demo/llm", "at its maximum", |snapshot| snapshot["want"] == 2).await;
    assert_eq!(scaler.get("/api/v1/workloads/demo/new").await.0, 404);

    // Seen by itself: a larger maximum, a new workload.
    let new =
        format!("- {{namespace: demo, name: new, min: 1, max: 3, replicas: 2, {endpoints}}}\n");
    config.replace(&text(4, "", &new));
    scaler.workload_when("demo/llm", "at its new maximum", |llm| llm["want"] == 4).await;
    assert_eq!(keda.poll("demo/llm").await, (4, true));
    scaler.workload_when("demo/new", "at its maximum", |new| new["want"] == 3).await;
    assert_eq!(keda.poll("demo/new").await, (3, true));
    assert_eq!(reloads(&scaler, "applied").await, Some(1.0));

    // Told by a signal: a wake source for the one that sleeps; the new workload goes.
    let sources = format!(
        "wakeSources:\n- {{name: gateway, kind: counter, url: 'http://{}/metrics', \
         metric: gateway_requests_total}}\n",
        gateway.address
    );
    config.replace(&text(4, ", wakeSource: gateway", &sources));
    scaler.signal("HUP");
    reloaded(&scaler, "applied", 2.0).await;
    assert_eq!(scaler.get("/api/v1/workloads/demo/new").await.0, 404);
    let reads_gateway =
        |asleep: &serde_json::Value| asleep["decision"]["inputs"]["gateway_queued"] == 0.0;
    scaler.workload_when("demo/asleep", "reading its gateway", reads_gateway).await;
    assert_eq!(keda.poll("demo/asleep").await, (0, false));
    let mut stream = keda.stream(&trigger("demo/asleep")).await;
    gateway.set(Manner::Text("gateway_requests_total{model=\"a\"} 8\n".into()));
    assert_eq!(pushed(&mut stream).await, Some(true));
    assert_eq!(keda.poll("demo/asleep").await, (1, true));

    // A signal without a change is a reload too, and changes nothing.
    scaler.signal("HUP");
    reloaded(&scaler, "applied", 3.0).await;
    assert_eq!(keda.poll("demo/asleep").await, (1, true));
    assert_eq!(keda.poll("demo/llm").await, (4, true));
    scaler.stop().await;
}

#[tokio::test]
async fn a_bad_new_file_is_refused_and_counted_and_the_old_one_stays() {
    let engine = Engine::start().await;
    engine.carry(queue());
    let good = |max: u32| {
        format!(
            "workloads: [{{namespace: demo, name: llm, max: {max}, replicas: 1, \
             endpoints: ['{}']}}]\n",
            engine.address
        )
    };
    let config = Config::new(&good(3));
    let scaler = Scaler::start(&config.path(), &[]).await;
    let keda = scaler.keda().await;
    scaler.workload_when("demo/llm", "at its maximum", |snapshot| snapshot["want"] == 3).await;

    config.replace(&good(0));
    reloaded(&scaler, "refused", 1.0).await;
    for (n, bad) in ["workloads: [", "{}: {}", "workloads: [{namespace: demo, name: llm, maxx: 9}]"]
        .into_iter()
        .enumerate()
    {
        config.replace(bad);
        scaler.signal("HUP");
        reloaded(&scaler, "refused", n as f64 + 2.0).await;
        assert_eq!(keda.poll("demo/llm").await, (3, true), "{bad}");
    }
    std::fs::remove_file(config.path()).unwrap();
    scaler.signal("HUP");
    reloaded(&scaler, "refused", 5.0).await;
    assert_eq!(keda.poll("demo/llm").await, (3, true));
    let told = scaler.logged("the old configuration stays", 5).await;
    assert!(told.iter().any(|line| line.to_string().contains("workloads[0].max")), "{told:#?}");
    assert!(told.iter().any(|line| line.to_string().contains("maxx")), "{told:#?}");
    assert_eq!(reloads(&scaler, "applied").await, Some(0.0));

    config.replace(&good(5));
    scaler.workload_when("demo/llm", "at its new maximum", |llm| llm["want"] == 5).await;
    assert_eq!(reloads(&scaler, "applied").await, Some(1.0));
    scaler.stop().await;
}

#[tokio::test]
async fn an_emptied_file_is_refused_and_what_comes_back_goes_on_at_its_count() {
    let engine = Engine::start().await;
    engine.carry(queue());
    let others = "- {namespace: demo, name: other, replicas: 1}\n";
    let all = format!(
        "workloads:\n{others}- {{namespace: demo, name: llm, max: 3, replicas: 1, \
         endpoints: ['{}']}}\n",
        engine.address
    );
    let config = Config::new(&all);
    let scaler = Scaler::start(&config.path(), &[]).await;
    let keda = scaler.keda().await;
    scaler.workload_when("demo/llm", "at its maximum", |llm| llm["want"] == 3).await;

    // Emptied by a full disk or a redirected command; a pipe in its place; the list gone from it.
    let mut refused = 0.0;
    let mut still_there = async |what: &str| {
        scaler.signal("HUP");
        refused += 1.0;
        reloaded(&scaler, "refused", refused).await;
        assert_eq!(keda.poll("demo/llm").await, (3, true), "{what}");
    };
    for emptied in ["", "# workloads\n", "workloads:\n", "prometheus: []\n"] {
        config.replace(emptied);
        still_there(emptied).await;
    }
    std::fs::remove_file(config.path()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(config.path()).status().unwrap();
    assert!(made.success());
    still_there("a pipe without a writer").await;
    std::fs::remove_file(config.path()).unwrap();
    std::fs::create_dir(config.path()).unwrap();
    still_there("a directory").await;
    std::fs::remove_dir(config.path()).unwrap();
    let told = scaler.logged("the old configuration stays", 6).await;
    for remedy in ["write `workloads: []`", "a pipe or a device", "it is a directory"] {
        assert!(told.iter().any(|line| line.to_string().contains(remedy)), "{remedy}: {told:#?}");
    }
    assert_eq!(reloads(&scaler, "applied").await, Some(0.0));

    // Cut short, and whole again: the queue has gone meanwhile, and the count has not.
    config.replace(&format!("workloads:\n{others}"));
    scaler.signal("HUP");
    reloaded(&scaler, "applied", 1.0).await;
    assert_eq!(scaler.get("/api/v1/workloads/demo/llm").await.0, 404);
    engine.carry(Load::default());
    config.replace(&all);
    scaler.signal("HUP");
    reloaded(&scaler, "applied", 2.0).await;
    let decided = |llm: &serde_json::Value| llm["version"].as_u64() > Some(1);
    let llm = scaler.workload_when("demo/llm", "decided again", decided).await;
    assert_eq!(llm["want"], 3, "{llm:#}");
    assert_eq!(keda.poll("demo/llm").await, (3, true));

    // Meant.
    config.replace("workloads: []\n");
    scaler.signal("HUP");
    reloaded(&scaler, "applied", 3.0).await;
    assert_eq!(scaler.get("/api/v1/workloads/demo/llm").await.0, 404);
    scaler.stop().await;
}
