//! Engines that fail in every way a wire allows: the count is held, and KEDA waits for nobody.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;
use tokio::time::Instant;

use super::engine::{Engine, METRICS, Manner, answer, queue};
use super::keda::{Keda, Role, trigger};
use super::program::{Config, Scaler};

/// What an engine begins to do, and the causes that may be told of it.
fn faults() -> Vec<(&'static str, Manner, &'static [&'static str])> {
    let says = |status: &str, head: &str, body: &[u8]| Manner::Bytes(answer(status, head, body));
    let page = |lines: &str| says("200 OK", METRICS, lines.as_bytes());
    let html = b"<!doctype html><html><body>please log in</body></html>\n";
    let gauges = |waiting: &str| {
        format!(
            "vllm:num_requests_running{{engine=\"0\"}} 4\n\
             vllm:num_requests_waiting{{engine=\"0\"}} {waiting}\n"
        )
    };
    let cut_off = "vllm:num_requests_running{engine=\"0\"} 4\nvllm:num_requests_wait";
    let announced =
        format!("HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n{METRICS}\r\n\r\n{cut_off}");
    let many_labels: String = (0..500).map(|n| format!("l{n}=\"{n}\",")).collect();
    let many_series: String =
        (0..20_000).map(|n| format!("vllm:num_requests_waiting{{engine=\"{n}\"}} 1\n")).collect();
    let line = format!("# {}\n", "endless ".repeat(8));
    let slow = answer("200 OK", METRICS, gauges("0").as_bytes());
    vec![
        ("http-500", says("500 Internal Server Error", METRICS, b"oops\n"), &["http_status"]),
        ("http-401", says("401 Unauthorized", "content-type: text/html", html), &["unauthorized"]),
        ("hang", Manner::Hangs, &["timeout"]),
        ("html", says("200 OK", "content-type: text/html", html), &["bad_body"]),
        ("html-as-text", says("200 OK", METRICS, html), &["bad_body"]),
        ("empty", page(""), &["no_known_series", "bad_body"]),
        ("cut-off", page(cut_off), &["bad_body"]),
        ("cut-short", Manner::Bytes(announced.into_bytes()), &["transport"]),
        ("no-http", Manner::Bytes(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()), &["transport"]),
        (
            "gzip",
            says("200 OK", &format!("{METRICS}\r\ncontent-encoding: gzip"), b"\x1f\x8b\x08\x00"),
            &["bad_body"],
        ),
        ("gzip-unsaid", says("200 OK", METRICS, b"\x1f\x8b\x08\x00\x00\xff\n"), &["bad_body"]),
        ("large", page(&"# fifty megabytes\n".repeat(50_000_000 / 18)), &["too_large"]),
        // How far it comes within the deadline is the machine's.
        ("endless", Manner::Endless(line.repeat(900), Duration::ZERO), &["too_large", "timeout"]),
        ("trickle", Manner::Endless(line, Duration::from_millis(50)), &["timeout"]),
        ("slow-loris", Manner::Drips(slow, Duration::from_millis(100)), &["timeout"]),
        (
            "many-labels",
            page(&gauges("0").replace("engine", &format!("{many_labels}engine"))),
            &["too_large"],
        ),
        ("many-series", page(&many_series), &["too_large"]),
        ("nan", page(&gauges("NaN")), &["impossible"]),
        ("infinite", page(&gauges("+Inf")), &["impossible"]),
        ("negative", page(&gauges("-1")), &["impossible"]),
        ("absurd", page(&gauges("1e308")), &["impossible"]),
        ("label-soup", page("vllm:num_requests_waiting{engine=\"0\",,=\"\"x} 4\n"), &["bad_body"]),
        ("another-page", page("node_cpu_seconds_total 1\n"), &["no_known_series"]),
    ]
}

/// Legal, if hostile: twice the same series, escapes, braces and commas in values, spaces.
const SOUP: &str = "\
    # TYPE vllm:num_requests_running gauge\n\
    vllm:num_requests_running{engine=\"0\",model_name=\"a\\\"}\\\\{\\n,\"} 4\n\
    vllm:num_requests_running{engine=\"0\",model_name=\"a\\\"}\\\\{\\n,\"} 4\n\
    \n  vllm:num_requests_waiting { engine = \"0\" , model_name = \"\u{1f980} = {}\" , }  4e1 \n\
    # a comment with \"quotes\" and a \\ at its end \\\n";

/// Polls every workload in turn until `over`; gives the times that GetMetrics took.
async fn polls(keda: &Keda, names: &[String], over: impl AsyncFn() -> bool) -> Vec<Duration> {
    let mut took = Vec::new();
    while !over().await {
        for name in names {
            let trigger = trigger(name);
            let asked_at = Instant::now();
            let wanted = keda.wanted(&trigger, Role::Poll).await;
            took.push(asked_at.elapsed());
            assert_eq!(wanted.unwrap(), 5, "{name} is not held");
            assert!(keda.is_active(&trigger, Role::Poll).await.unwrap(), "{name}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    took
}

#[tokio::test]
async fn whatever_an_engine_does_the_count_is_held_and_its_cause_is_told() {
    let faults = faults();
    let mut gone = Engine::start().await;
    let engines = join_all(faults.iter().map(|_| Engine::start())).await;
    let mut text = String::from("workloads:\n");
    let named = faults.iter().map(|(name, _, _)| *name).chain(["refused"]);
    let mut names = Vec::new();
    for (name, engine) in named.zip(engines.iter().chain([&gone])) {
        engine.carry(queue());
        names.push(format!("demo/{name}"));
        text.push_str(&format!(
            "- {{namespace: demo, name: {name}, max: 5, replicas: 1, endpoints: ['{}']}}\n",
            engine.address
        ));
    }
    let config = Config::new(&text);
    let scaler = Scaler::start(&config.path(), &[]).await;
    let keda = scaler.keda().await;
    for name in &names {
        scaler.workload_when(name, "at its maximum", |snapshot| snapshot["want"] == 5).await;
    }

    let n_polled = AtomicUsize::new(0);
    let a_few = async || n_polled.fetch_add(1, Ordering::Relaxed) >= 20;
    let mut before = polls(&keda, &names, a_few).await;
    for (engine, (_, manner, _)) in engines.iter().zip(&faults) {
        engine.set(manner.clone());
    }
    gone.leave().await;
    let failed_at = Instant::now();
    let causes = faults.iter().map(|(_, _, causes)| *causes).chain([&["refused"][..]]);
    let expected: Vec<(&String, &[&str])> = names.iter().zip(causes).collect();
    let is_told = |snapshot: &Value, causes: &[&str]| {
        let why = snapshot["decision"]["health"]["why"].as_str();
        snapshot["health"] == "degraded" && why.is_some_and(|why| causes.contains(&why))
    };
    let limit = Duration::from_secs(100);
    let all_told = async || {
        let mut untold = Vec::new();
        for (name, causes) in &expected {
            let snapshot = scaler.workload(name).await;
            if !is_told(&snapshot, causes) {
                untold.push(format!(
                    "{name}: {}, members {}",
                    snapshot["summary"], snapshot["members"]
                ));
            }
        }
        assert!(failed_at.elapsed() < limit, "not told within {limit:?}: {untold:#?}");
        untold.is_empty()
    };
    let mut took = polls(&keda, &names, all_told).await;
    println!("all {} told after {:?}", names.len(), failed_at.elapsed());
    took.sort_unstable();
    before.sort_unstable();
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    let usual = before[before.len() / 2];
    println!(
        "GetMetrics in the outage: median {median:?}, longest {longest:?}, {} calls; before {usual:?}",
        took.len()
    );
    // Both on one machine within a minute; who waits for an engine waits for seconds.
    assert!(median < 50 * usual, "an outage must not be seen in the answers' time");
    assert_eq!(scaler.get("/livez").await.0, 200);
    assert_eq!(scaler.get("/readyz").await.0, 200);

    // Each recovers by itself.
    for engine in &engines {
        engine.set(Manner::Page);
    }
    gone.come_back();
    for name in &names {
        scaler.healthy(name).await;
        assert_eq!(keda.poll(name).await, (5, true), "{name}");
    }
    scaler.stop().await;
}

#[tokio::test]
async fn a_page_that_is_legal_if_hostile_is_read_as_it_is() {
    let engine = Engine::of_text(SOUP).await;
    let config = Config::new(&format!(
        "workloads: [{{namespace: demo, name: soup, max: 50, replicas: 1, endpoints: ['{}']}}]\n",
        engine.address
    ));
    let scaler = Scaler::start(&config.path(), &[]).await;
    // 4 run on the one replica: ten more of it for the 40 that wait.
    let soup = scaler.workload_when("demo/soup", "read", |soup| soup["want"] != 1).await;
    let read = (&soup["running"], &soup["waiting"], &soup["want"]);
    assert_eq!(read, (&4.0.into(), &40.0.into(), &11.into()), "{soup:#}");
    scaler.stop().await;
}

#[tokio::test]
async fn an_engine_that_never_answered_is_not_observed_and_its_count_stands() {
    let mut engine = Engine::start().await;
    engine.leave().await;
    let config = Config::new(&format!(
        "workloads:\n\
         - {{namespace: demo, name: two, min: 0, replicas: 2, endpoints: ['{}']}}\n\
         - {{namespace: demo, name: none, min: 0, replicas: 0, endpoints: ['{}']}}\n\
         - {{namespace: demo, name: unknown, min: 0, endpoints: ['{}']}}\n",
        engine.address, engine.address, engine.address
    ));
    let scaler = Scaler::start(&config.path(), &[]).await;
    let keda = scaler.keda().await;
    for name in ["demo/two", "demo/none", "demo/unknown"] {
        scaler.workload_when(name, "decided", |snapshot| snapshot["version"] != 0).await;
    }
    assert_eq!(keda.poll("demo/two").await, (2, true));
    assert_eq!(keda.poll("demo/none").await, (0, false));
    for role in [Role::Poll, Role::Hpa] {
        let unknown = trigger("demo/unknown");
        let status = keda.wanted(&unknown, role).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
        let status = keda.is_active(&unknown, role).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
        assert_eq!(keda.targets(&unknown).await.unwrap(), [1]);
    }
    let status = keda.wanted(&trigger("demo/other"), Role::Poll).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::NotFound, "{status}");
    scaler.stop().await;
}
