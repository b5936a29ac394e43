//! Many workloads in one process: each is read and answered, and memory is shown.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use super::engine::{Engine, load};
use super::keda::{Role, trigger};
use super::program::{Config, Scaler};
use crate::support::eventually;

/// Serves this many workloads, each with one endpoint, until each has been read, and for `longer`.
async fn serve(count: usize, longer: Duration) {
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
    let read_after = started_at.elapsed();
    sleep(longer).await;
    println!(
        "{count} workloads: all read {read_after:?} after the start, RssAnon {} KiB {longer:?} later",
        scaler.rss_anon_kib()
    );
    for workload in list["workloads"].as_array().unwrap() {
        assert_eq!(workload["want"], workload["spec"], "{workload:#}");
        assert_eq!(workload["running"], 4.0, "{workload:#}");
    }
    assert_eq!(scaler.metric("ghostscaler_workloads").await, Some(count as f64));
    scaler.stop().await;
}

#[tokio::test]
async fn fifty_workloads_are_served() {
    serve(50, Duration::ZERO).await;
}

#[tokio::test]
async fn a_thousand_workloads_are_served() {
    serve(1_000, Duration::ZERO).await;
}

/// By then the minute that each workload keeps is full.
const A_MINUTE: Duration = Duration::from_secs(65);

/// What each has more than the one before it is what its workloads take: the engine closes each
/// connection.
#[tokio::test]
#[ignore = "shows a number that means something on a free machine only"]
async fn thousands_of_workloads_show_the_memory_of_one() {
    for count in [50, 2_050, 4_050] {
        serve(count, A_MINUTE).await;
    }
}

/// The most workloads that one process is built for, and for how long KEDA's calls are timed.
const FULL: usize = 10_000;
const ASKED_FOR: Duration = Duration::from_secs(30);

/// Each is scraped every five seconds and polled as KEDA does, one of fifty with metadata that is
/// refused: values and errors come from memory, whatever else the process does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "shows a number that means something on a free machine only"]
async fn calls_under_full_load_show_the_longest_of_them() {
    let (address, served) =
        page_server(b"vllm:num_requests_running{model_name=\"m\"} 4\n".into()).await;
    let mut text = String::from("workloads:\n");
    for n in 0..FULL {
        let endpoints = format!("endpoints: ['{address}']");
        writeln!(text, "- {{namespace: fleet, name: llm-{n}, replicas: 1, {endpoints}}}").unwrap();
    }
    let config = Config::new(&text);
    let scaler = Scaler::start(&config.path(), &[]).await;
    let keda = scaler.keda().await;
    eventually("a reading of each", async || {
        (served.load(Ordering::Relaxed) >= 2 * FULL as u64).then_some(())
    })
    .await;
    let scrapes = served.load(Ordering::Relaxed);
    let started_at = Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    let mut times: [Vec<Duration>; 2] = [Vec::new(), Vec::new()];
    for n in 0.. {
        let due = started_at + Duration::from_micros(500) * n;
        if due > started_at + ASKED_FOR {
            break;
        }
        sleep_until(due).await;
        let keda = keda.clone();
        calls.spawn(async move {
            let is_bad = n % 50 == 0;
            let trigger = trigger(&format!("fleet/llm-{}", n as usize % FULL));
            let trigger = if is_bad { trigger.with("sloTtft", "soon") } else { trigger };
            let sent_at = Instant::now();
            let answer = keda.wanted(&trigger, Role::Poll).await;
            let took = sent_at.elapsed();
            assert_eq!(answer.is_err(), is_bad, "{answer:?}");
            (usize::from(is_bad), took)
        });
        while let Some(call) = calls.try_join_next() {
            let (kind, took) = call.unwrap();
            times[kind].push(took);
        }
    }
    for (kind, took) in calls.join_all().await {
        times[kind].push(took);
    }
    let scrapes = served.load(Ordering::Relaxed) - scrapes;
    for (what, mut times) in ["values", "errors"].into_iter().zip(times) {
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 1_000];
        println!(
            "{} {what} beside {scrapes} scrapes: p50 {:?}, p99 {:?}, p99.9 {:?}, longest {:?}",
            times.len(),
            at(500),
            at(990),
            at(999),
            at(1_000)
        );
    }
    assert!(scrapes >= FULL as u64 * ASKED_FOR.as_secs() / 10, "each of them, again and again");
    scaler.stop().await;
}

/// As many targets as make the time of one scrape visible beside a hundredth of a second.
const SCRAPED: usize = 400;
const SCRAPED_FOR: Duration = Duration::from_secs(60);

/// A page captured from vLLM 0.32, read from kept connections every five seconds for each target.
#[tokio::test]
#[ignore = "shows a number that means something on a free machine only"]
#[expect(
    clippy::disallowed_methods,
    reason = "where the captured pages are is the machine's affair"
)]
async fn four_hundred_targets_show_the_cost_of_a_scrape() {
    let fixtures = std::env::var("GHOSTSCALER_FIXTURES")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/fixtures").to_owned());
    let path = format!("{fixtures}/vllm/metrics-after.txt");
    let Ok(page) = std::fs::read(&path) else {
        println!("skipped: no page at {path} (set GHOSTSCALER_FIXTURES)");
        return;
    };
    let page_bytes = page.len();
    let (address, served) = page_server(page).await;
    let mut text = String::from("workloads:\n");
    for n in 0..SCRAPED {
        let endpoints = format!("endpoints: ['{address}']");
        writeln!(text, "- {{namespace: fleet, name: llm-{n}, replicas: 1, {endpoints}}}").unwrap();
    }
    let config = Config::new(&text);
    let scaler = Scaler::start(&config.path(), &[]).await;
    eventually("a reading of each", async || {
        (served.load(Ordering::Relaxed) >= 2 * SCRAPED as u64).then_some(())
    })
    .await;
    let (cpu, scrapes) = (scaler.cpu(), served.load(Ordering::Relaxed));
    sleep(SCRAPED_FOR).await;
    let (cpu, scrapes) = (scaler.cpu() - cpu, served.load(Ordering::Relaxed) - scrapes);
    println!(
        "{scrapes} scrapes of {page_bytes} bytes in {} s: {:.0} us of processor time each, its tick \
         and decision included",
        SCRAPED_FOR.as_secs(),
        cpu.as_secs_f64() * 1e6 / scrapes as f64
    );
    assert!(
        scrapes >= SCRAPED as u64 * SCRAPED_FOR.as_secs() / 10,
        "each of them, again and again"
    );
    scaler.stop().await;
}

/// Serves a page on kept connections, and counts.
async fn page_server(page: Vec<u8>) -> (SocketAddr, Arc<AtomicU64>) {
    let served = Arc::new(AtomicU64::new(0));
    let (count, page) = (Arc::clone(&served), axum::body::Bytes::from(page));
    let answer = move || {
        count.fetch_add(1, Ordering::Relaxed);
        let page = page.clone();
        async move { ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page) }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/metrics", get(answer));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, served)
}
