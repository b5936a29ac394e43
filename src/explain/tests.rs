//! `explain` against a real API, and each way in which it can fail, with what it tells to do.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::*;
use crate::clock::Clock;
use crate::decision::Spec;
use crate::registry::Untracked;
use crate::telemetry::ErrorChain;
use crate::web::fixtures::{api, publish, registry, tracker, wanting, workload as known};
use crate::web::{Access, router, serve};

/// Serves a registry with one decided workload until the guard is dropped.
async fn scaler(access: Access) -> (SocketAddr, DropGuard) {
    let registry = registry([known("prod", "llm")]);
    publish(&tracker(&registry, "prod", "llm"), Clock::start(), 1, wanting(5));
    serving(router(api(&registry, access))).await
}

/// Serves until the guard is dropped.
async fn serving(router: axum::Router) -> (SocketAddr, DropGuard) {
    serving_on("127.0.0.1", router).await
}

async fn serving_on(ip: &str, router: axum::Router) -> (SocketAddr, DropGuard) {
    let listener = TcpListener::bind((ip, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    tokio::spawn(serve(listener, router, shutdown.clone()));
    (address, shutdown.drop_guard())
}

/// Answers every connection with these bytes.
async fn stranger(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0_u8; 1024];
            tokio::io::AsyncReadExt::read(&mut stream, &mut request).await.ok();
            tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.ok();
        }
    });
    address
}

fn args(name: &str, server: &str, format: Format) -> Args {
    // The client needs a provider even for plain HTTP; `main` installs it for the process.
    rustls::crypto::ring::default_provider().install_default().ok();
    Args {
        workload: workload(name).unwrap(),
        server: server.to_owned(),
        trigger: None,
        token_file: None,
        format,
        watch: false,
    }
}

async fn explain(name: &str, server: &str, format: Format) -> Result<String, Error> {
    let mut out = Vec::new();
    run(&args(name, server, format), &mut out).await?;
    Ok(String::from_utf8(out).unwrap())
}

#[tokio::test]
async fn a_running_scaler_is_explained() {
    let (address, _running) = scaler(Access::default()).await;
    // A trailing slash, and HOST:PORT as every other address of the binary is written.
    for server in [format!("http://{address}"), format!("http://{address}/"), address.to_string()] {
        let text = explain("prod/llm", &server, Format::Text).await.unwrap();
        assert!(text.starts_with("prod/llm: 5 replicas, active\n  5 replicas = "), "{text}");
    }
}

#[tokio::test]
async fn json_is_the_answer_of_the_api() {
    let (address, _running) = scaler(Access::default()).await;
    let text = explain("prod/llm", &address.to_string(), Format::Json).await.unwrap();
    let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(shown["want"], 5);
    assert_eq!(shown["decision"]["want"], 5);
}

#[tokio::test]
async fn what_the_api_says_is_read_back_whole() {
    let (address, _running) = scaler(Access::default()).await;
    let text = explain("prod/llm", &address.to_string(), Format::Json).await.unwrap();
    let snapshot: Snapshot = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&snapshot).unwrap() + "\n", text);
}

/// Watches `prod/llm` on the screen for as long as `looking` takes.
async fn watch_while(address: SocketAddr, screen: &Screen, looking: impl Future<Output = ()>) {
    let watching = Args { watch: true, ..args("prod/llm", &address.to_string(), Format::Text) };
    let mut out = screen.clone();
    tokio::select! {
        ended = run(&watching, &mut out) => panic!("{ended:?}"),
        looked = tokio::time::timeout(Duration::from_secs(30), looking) => looked.unwrap(),
    }
}

async fn until(screen: &Screen, wanted: &str) {
    while !screen.text().contains(wanted) {
        sleep(Duration::from_millis(20)).await;
    }
}

/// A terminal that others can look at.
#[derive(Clone, Default)]
struct Screen(Arc<Mutex<Vec<u8>>>);

impl Screen {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn watching_prints_what_is_new_once_under_the_time() {
    let registry = registry([known("prod", "llm")]);
    let tracker = tracker(&registry, "prod", "llm");
    publish(&tracker, Clock::start(), 1, wanting(5));
    let (address, _running) = serving(router(api(&registry, Access::default()))).await;
    let screen = Screen::default();
    let looking = async {
        until(&screen, "prod/llm: 5 replicas").await;
        // Looked at again, and older by now: nothing else to say.
        sleep(2 * WATCH_INTERVAL).await;
        publish(&tracker, Clock::start(), 2, wanting(6));
        until(&screen, "prod/llm: 6 replicas").await;
    };
    watch_while(address, &screen, looking).await;
    let text = screen.text();
    assert_eq!(text.matches("prod/llm: 5 replicas").count(), 1, "{text}");
    let times: Vec<&str> = text.lines().filter(|line| line.ends_with('Z')).collect();
    assert_eq!(times.len(), 2, "{text}");
    assert!(times.iter().all(|time| time.parse::<jiff::Timestamp>().is_ok()), "{times:?}");
}

#[tokio::test]
async fn watching_goes_on_while_the_scaler_is_started_anew() {
    let registry = registry([known("prod", "llm")]);
    let tracker = tracker(&registry, "prod", "llm");
    publish(&tracker, Clock::start(), 1, wanting(5));
    // An address of loopback that nothing else uses, so that nobody takes the port meanwhile.
    let router_of = || router(api(&registry, Access::default()));
    let (address, running) = serving_on("127.0.46.1", router_of()).await;
    let screen = Screen::default();
    let looking = async {
        until(&screen, "prod/llm: 5 replicas").await;
        drop(running);
        // Long enough that a look finds nobody.
        sleep(3 * WATCH_INTERVAL).await;
        publish(&tracker, Clock::start(), 2, wanting(6));
        let listener = TcpListener::bind(address).await.unwrap();
        tokio::spawn(serve(listener, router_of(), CancellationToken::new()));
        until(&screen, "prod/llm: 6 replicas").await;
    };
    watch_while(address, &screen, looking).await;
}

#[test]
fn only_ages_are_left_out_of_what_was_said() {
    let is_new = |before, now| without_ages(before) != without_ages(now);
    assert!(!is_new(
        "degraded for 1m40s: 0 of\n  1 engines",
        "degraded for 59s: 0 of 1\n  engines"
    ));
    for (before, now) in [("fresh 1s", "stale 1s"), ("12 waiting", "13 waiting"), ("to 5", "to 6")]
    {
        assert!(is_new(before, now), "{before}, {now}");
    }
}

#[test]
fn a_duration_that_is_no_age_is_said() {
    let registry = registry([known("prod", "llm")]);
    let tracker = tracker(&registry, "prod", "llm");
    let said = |hold_ms, slo_ttft_ms, age_ms: u64| {
        let mut decision = wanting(3);
        decision.inputs.hold_ms = hold_ms;
        publish(&tracker, Clock::start(), 1, decision);
        let mut published = (**tracker.published.load()).clone();
        published.spec = Some(Arc::new(Spec { slo_ttft_ms, ..Spec::default() }));
        tracker.publish(published);
        let now = tracker.published.load().at.plus_millis(age_ms);
        let none = Untracked::default();
        let snapshot = Snapshot::new(&tracker, Vec::new(), &none, &registry.inventory(), now);
        page(&snapshot, Vec::new(), Format::Text).unwrap().1
    };
    let before = said(600_000, 2_000, 1_000);
    assert_eq!(said(600_000, 2_000, 3_000), before, "an age alone");
    assert_ne!(said(1_200_000, 2_000, 1_000), before, "another hold");
    assert_ne!(said(600_000, 3_000, 1_000), before, "another SLO");
}

#[tokio::test]
async fn an_unknown_workload_is_told_with_the_way_to_the_known_ones() {
    let (address, _running) = scaler(Access::default()).await;
    let error = explain("prod/none", &address.to_string(), Format::Text).await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("workload prod/none is not known; known are prod/llm: "), "{text}");
    assert!(text.contains("/api/v1/workloads"), "{text}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_with_the_flag() {
    // Bound, so that nobody else gets the port, and not listened on.
    let nobody = tokio::net::TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = nobody.local_addr().unwrap();
    let error = explain("prod/llm", &address.to_string(), Format::Text).await.unwrap_err();
    let text = ErrorChain(&error).to_string();
    assert!(text.starts_with(&format!("no scaler answers at {address}: start one with")), "{text}");
    assert!(text.contains("point --server at its --http-address"), "{text}");
}

#[tokio::test]
async fn a_stranger_is_told_from_a_scaler() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n<html></html>"[..],
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnope",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ] {
        let address = stranger(answer).await;
        let error = explain("prod/llm", &address.to_string(), Format::Text).await.unwrap_err();
        assert!(matches!(error, Error::NotOurs { .. }), "{error}");
        assert!(error.to_string().contains("use the same version here"), "{error}");
    }
    let address = stranger(b"SSH-2.0-OpenSSH_9.6\r\n").await;
    let error = explain("prod/llm", &address.to_string(), Format::Text).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn an_endless_answer_is_not_read_to_its_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let endless = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0_u8; 1024];
        tokio::io::AsyncReadExt::read(&mut stream, &mut request).await.unwrap();
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut stream, head).await.unwrap();
        let chunk = vec![b' '; 1024 * 1024];
        while tokio::io::AsyncWriteExt::write_all(&mut stream, &chunk).await.is_ok() {}
    });
    let error = explain("prod/llm", &address.to_string(), Format::Text).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    // The connection was given up, which ends the writer.
    tokio::time::timeout(Duration::from_secs(10), endless).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_token_file_that_is_not_there_is_told() {
    let mut args = args("prod/llm", "http://127.0.0.1:9", Format::Text);
    args.token_file = Some("/nonexistent/token".into());
    let error = run(&args, &mut Vec::new()).await.unwrap_err();
    assert_eq!(error.to_string(), "`--token-file /nonexistent/token` cannot be read");
}

#[test]
fn a_workload_is_namespace_and_name() {
    assert_eq!(workload("prod/llm"), Ok(("prod".to_owned(), "llm".to_owned())));
    for text in ["", "llm", "/llm", "prod/", "a/b/c", "prod/ll m", "prod/../x", "prod/ö"] {
        assert_eq!(workload(text), Err(NoWorkload), "{text}");
    }
    assert_eq!(workload(&format!("prod/{}", "x".repeat(254))), Err(NoWorkload));
}

#[test]
fn addresses_and_urls_lead_to_the_same_path() {
    for (server, expected) in [
        ("localhost:8080", "http://localhost:8080/api/v1/workloads/prod/llm"),
        ("https://scaler.example/base/", "https://scaler.example/base/api/v1/workloads/prod/llm"),
        ("http://[::1]:80", "http://[::1]/api/v1/workloads/prod/llm"),
    ] {
        let url = url(&args("prod/llm", server, Format::Text)).unwrap();
        assert_eq!(url.as_str(), expected);
    }
    for server in ["", "ftp://x", "http://", "unix:///run/x", "http://a b"] {
        let error = url(&args("prod/llm", server, Format::Text)).unwrap_err();
        assert!(error.to_string().contains("expected a URL"), "{server}: {error}");
    }
}

#[test]
fn a_trigger_is_asked_for_by_its_id() {
    let mut args = args("prod/llm", "localhost:8080", Format::Text);
    args.trigger = Some("00ff&x".to_owned());
    assert_eq!(url(&args).unwrap().query(), Some("trigger=00ff%26x"));
}
