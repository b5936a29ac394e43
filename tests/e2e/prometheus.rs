//! Engines read through a real Prometheus that scrapes them, goes away and comes back.

use super::engine::{Engine, queue};
use super::program::{Config, Scaler};
use crate::support::prometheus::Setup;

#[tokio::test]
async fn tenants_stay_apart_and_a_lost_prometheus_holds_their_counts() {
    let (busy, idle) = (Engine::start().await, Engine::start().await);
    busy.carry(queue());
    // The same pod name and the same model in both namespaces: only the namespace tells.
    let setup = Setup::default().scrape_pod(busy.address, "team-a", "llm-0").scrape_pod(
        idle.address,
        "team-b",
        "llm-0",
    );
    let Some(mut prometheus) = setup.start() else { return };
    let workload = |namespace: &str, engine: &Engine| {
        format!(
            "- {{namespace: {namespace}, name: llm, max: 6, replicas: 2, source: prometheus, \
             modelName: tiny, endpoints: [{{url: 'http://{}', pod: llm-0}}]}}\n",
            engine.address
        )
    };
    let config = Config::new(&format!(
        "prometheus: [{{name: main, url: '{}'}}]\nworkloads:\n{}{}",
        prometheus.url,
        workload("team-a", &busy),
        workload("team-b", &idle)
    ));
    let scaler = Scaler::start(&config.path(), &[]).await;
    let keda = scaler.keda().await;
    // Nothing has been scraped yet, and nobody is told to stop for that.
    assert_eq!(keda.poll("team-a/llm").await, (2, true));
    let team_a = scaler.workload_when("team-a/llm", "at its maximum", |llm| llm["want"] == 6).await;
    let team_b = scaler.healthy("team-b/llm").await;
    assert_eq!((&team_a["waiting"], &team_a["running"]), (&4_000.0.into(), &4.0.into()));
    assert_eq!((&team_b["waiting"], &team_b["running"]), (&0.0.into(), &0.0.into()));
    assert_eq!(keda.poll("team-b/llm").await, (2, true));

    prometheus.kill();
    for (name, want) in [("team-a/llm", 6), ("team-b/llm", 2)] {
        // What it was asked before may be late first.
        let lost = |llm: &serde_json::Value| {
            llm["health"] == "degraded" && llm["decision"]["health"]["why"] == "transport"
        };
        scaler.workload_when(name, "degraded for want of a Prometheus", lost).await;
        assert_eq!(keda.poll(name).await, (want, true), "{name}");
    }
    prometheus.start_again();
    for (name, want) in [("team-a/llm", 6), ("team-b/llm", 2)] {
        scaler.healthy(name).await;
        assert_eq!(keda.poll(name).await, (want, true), "{name}");
    }
    scaler.stop().await;
}
