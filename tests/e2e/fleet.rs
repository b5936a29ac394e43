//! Many workloads in one process: each is read and answered, and memory is shown.

use std::fmt::Write as _;

use serde_json::Value;
use tokio::time::Instant;

use super::engine::{Engine, load};
use super::program::{Config, PATIENCE, Scaler};
use crate::support::eventually;

/// Serves this many workloads, each with one endpoint, until each has been read.
async fn serve(count: usize) {
    let engine = Engine::start().await;
    engine.carry(load(0, 4));
    let mut text = String::from("workloads:\n");
    for n in 0..count {
        let replicas = n % 7 + 1;
        writeln!(
            text,
            "- {{namespace: fleet, name: llm-{n}, max: 9, replicas: {replicas}, \
             endpoints: ['{}']}}",
            engine.address
        )
        .unwrap();
    }
    let config = Config::new(&text);
    let started_at = Instant::now();
    let scaler = Scaler::start(&config.path(), &[]).await;
    let keda = scaler.keda().await;
    // Answered from the first moment on, whether read yet or not.
    for n in (0..count).step_by(7) {
        assert_eq!(keda.poll(&format!("fleet/llm-{n}")).await, (1, true));
    }
    let list = eventually("a reading of each", async || {
        let (_, list) = scaler.get("/api/v1/workloads?limit=5000").await;
        let list: Value = serde_json::from_str(&list).unwrap();
        let workloads = list["workloads"].as_array().unwrap();
        assert_eq!(workloads.len(), count);
        workloads.iter().all(|workload| workload["health"] == "ok").then_some(list)
    })
    .await;
    println!(
        "{count} workloads: all read {:?} after the start, RssAnon {} KiB",
        started_at.elapsed(),
        scaler.rss_anon_kib()
    );
    assert!(started_at.elapsed() < 2 * PATIENCE);
    for workload in list["workloads"].as_array().unwrap() {
        assert_eq!(workload["want"], workload["spec"], "{workload:#}");
        assert_eq!(workload["running"], 4.0, "{workload:#}");
    }
    assert_eq!(scaler.metric("ghostscaler_workloads").await, Some(count as f64));
    scaler.stop().await;
}

#[tokio::test]
async fn fifty_workloads_are_served() {
    serve(50).await;
}

#[tokio::test]
async fn a_thousand_workloads_are_served() {
    serve(1_000).await;
}

/// Beside fifty it shows what one workload takes: the engine closes each connection.
#[tokio::test]
#[ignore = "shows a number that means something on a free machine only"]
async fn two_thousand_workloads_show_the_memory_of_one() {
    serve(2_050).await;
}
