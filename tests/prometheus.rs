//! The Prometheus source against a real Prometheus that scrapes a real page.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use ghostscaler::clock::Clock;
use ghostscaler::decision::{Moment, WakeReading, Why};
use ghostscaler::source::config::{PrometheusConfig, WakeSourceConfig};
use ghostscaler::source::engines::{Batch, dcgm_series, engine_series};
use ghostscaler::source::prometheus::PrometheusClient;
use ghostscaler::source::scrape::{Options, Scraper};
use ghostscaler::source::selector::{LabelName, NamespaceLabel, Namespaces};
use ghostscaler::source::wake::{Subject, WakeKind, WakeMemory, WakeSource};
use ghostscaler::source::{Error, QueryFault};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use crate::support::eventually;
use crate::support::exporter::Exporter;
use crate::support::nobody::Nobody;
use crate::support::prometheus::{Prometheus, Setup, tls_file};

const WINDOW_MS: u64 = 60_000;
const WAITING: [&str; 1] = ["waiting"];
/// Names that would find others' series, or none, if any step forgot to escape.
const HOSTILE: [&str; 14] = [
    "team-a",
    "team.a",
    "teamxa",
    "a",
    "b",
    "a|b",
    ".*",
    ".+",
    "a\"b",
    "a\\b",
    "a\nb",
    "a\\nb",
    "[ab]",
    "a\"} or {namespace=~\".*",
];

fn client(config: &PrometheusConfig) -> PrometheusClient {
    PrometheusClient::new(config).unwrap()
}

fn namespaces(names: &[&str]) -> Namespaces {
    Namespaces::batches(names.iter().copied()).unwrap().remove(0)
}

fn values(batch: &Batch) -> Vec<f64> {
    let mut values: Vec<f64> = batch.series.iter().map(|series| series.value).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// A label value as the text format writes it.
fn written(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Waits until the first scrape can be read.
async fn first_batch(prometheus: &Prometheus, names: &[&str]) -> Batch {
    let (client, namespaces) = (client(&prometheus.config()), namespaces(names));
    let batch = eventually("a series", async || {
        let batch = engine_series(&client, &namespaces, &WAITING, WINDOW_MS).await.ok()?;
        (!batch.series.is_empty()).then_some(batch)
    });
    // Dropping it prints nothing; a scrape that never worked is seen in the log only.
    tokio::time::timeout(Duration::from_secs(40), batch).await.unwrap_or_else(|_elapsed| {
        panic!("{}", prometheus.log());
    })
}

#[tokio::test]
async fn f112_hostile_names_find_exactly_their_own_series() {
    let mut page = String::from("waiting{model_name=\"no namespace\"} 99\n");
    for (value, name) in HOSTILE.iter().enumerate() {
        let name = written(name);
        writeln!(page, "waiting{{namespace=\"{name}\",model_name=\"m\"}} {value}").unwrap();
        writeln!(page, "waiting{{namespace=\"models\",model_name=\"{name}\"}} {value}").unwrap();
    }
    let exporter = Exporter::start(page).await;
    let Some(prometheus) = Setup::default().scrape(exporter.address).start() else {
        return;
    };
    first_batch(&prometheus, &["models"]).await;
    let client = client(&prometheus.config());
    let scraper = Scraper::new(Options::default()).unwrap();
    for (value, name) in HOSTILE.iter().enumerate() {
        let expected = value as f64;
        let own = engine_series(&client, &namespaces(&[name]), &WAITING, WINDOW_MS).await.unwrap();
        assert_eq!(values(&own), [expected], "namespace {name:?}");
        let model = LabelName::new("model_name").unwrap();
        let selector = client.selector(&namespaces(&["models"]), NamespaceLabel::Namespace);
        let answer = client.instant(&selector.with(&model, name).newest()).await.unwrap();
        let found: Vec<f64> = answer.series.iter().map(|series| series.samples[0].value).collect();
        assert_eq!(found, [expected], "model {name:?}");
        for query in [
            "waiting{namespace='models',model_name=\"{model}\"}",
            "waiting{namespace=\"models\",model_name=~'{model}'}",
        ] {
            let source = wake_source(query, &client, &scraper);
            assert_eq!(held(&source, name).await, Some(expected), "{query} {name:?}");
        }
    }
    let all = engine_series(&client, &namespaces(&HOSTILE), &WAITING, WINDOW_MS).await.unwrap();
    let expected: Vec<f64> = (0..HOSTILE.len()).map(|value| value as f64).collect();
    assert_eq!(values(&all), expected);
    let absent = engine_series(&client, &namespaces(&["c"]), &WAITING, WINDOW_MS).await.unwrap();
    assert_eq!(absent.series, []);
}

/// Another team's traffic for the same model is nothing of this one's: what is not there is missing.
#[tokio::test]
async fn f115_a_namespace_without_series_never_gets_anothers() {
    let page = "waiting{namespace=\"b\",model_name=\"m\"} 50\n";
    let exporter = Exporter::start(page).await;
    let Some(prometheus) = Setup::default().scrape(exporter.address).start() else {
        return;
    };
    first_batch(&prometheus, &["b"]).await;
    let client = client(&prometheus.config());
    let scraper = Scraper::new(Options::default()).unwrap();
    let source =
        wake_source("waiting{namespace=\"{namespace}\",model_name=\"{model}\"}", &client, &scraper);
    for (namespace, expected) in [("a", None), ("b", Some(50.0))] {
        let own = namespaces(&[namespace]);
        let series = engine_series(&client, &own, &WAITING, WINDOW_MS).await.unwrap();
        assert_eq!(values(&series).first().copied(), expected, "{namespace}");
        let subject = Subject { namespace, name: "llm", model: Some("m") };
        assert_eq!(held_by(&source, subject).await, expected, "{namespace}");
    }
}

fn wake_config(kind: WakeKind, query: &str) -> WakeSourceConfig {
    WakeSourceConfig {
        name: "gateway".to_owned(),
        kind,
        prometheus: Some("main".to_owned()),
        query: Some(query.to_owned()),
        url: None,
        metric: None,
        matchers: BTreeMap::new(),
    }
}

fn wake_source(query: &str, client: &PrometheusClient, scraper: &Scraper) -> WakeSource {
    let config = wake_config(WakeKind::Gauge, query);
    WakeSource::new(&config, Some(client), scraper).unwrap()
}

async fn held(source: &WakeSource, model: &str) -> Option<f64> {
    held_by(source, Subject { namespace: "models", name: "llm", model: Some(model) }).await
}

async fn held_by(source: &WakeSource, subject: Subject<'_>) -> Option<f64> {
    let demand = source.read(&[subject]).await.remove(0).unwrap();
    match WakeMemory::default().take(source.kind(), Ok(&demand), Moment(0)) {
        WakeReading::Fresh { queued, .. } => Some(queued),
        WakeReading::Unknown { .. } => None,
    }
}

#[tokio::test]
async fn f11_a_lost_target_keeps_its_last_sample_with_a_time_that_stands_still() {
    let exporter = Exporter::start("waiting{namespace=\"a\"} 30\n").await;
    let Some(prometheus) = Setup::default().scrape(exporter.address).start() else {
        return;
    };
    let first = first_batch(&prometheus, &["a"]).await.series[0].at;
    let (client, namespaces) = (client(&prometheus.config()), namespaces(&["a"]));
    let read = async |window_ms| {
        engine_series(&client, &namespaces, &WAITING, window_ms).await.unwrap().series
    };
    let moved = eventually("a newer sample", async || {
        let at = read(WINDOW_MS).await[0].at;
        (at > first).then_some(at)
    })
    .await;
    let age_ms = Clock::start().now().millis_since(moved);
    assert!(age_ms < WINDOW_MS, "times are milliseconds since the epoch: {age_ms} ms old");

    drop(exporter);
    let last = eventually("the end of the samples", async || {
        let at = read(WINDOW_MS).await[0].at;
        sleep(Duration::from_millis(2_500)).await;
        (read(WINDOW_MS).await[0].at == at).then_some(at)
    })
    .await;
    assert!(last >= moved);
    let values: Vec<f64> = read(WINDOW_MS).await.iter().map(|series| series.value).collect();
    assert_eq!(values, [30.0]);
    // Out of the window it is missing, and never a zero.
    assert_eq!(read(1_500).await, []);
}

#[tokio::test]
async fn f19_copies_of_a_federation_count_once() {
    let exporter = Exporter::start(
        "waiting{namespace=\"a\",pod=\"x\",prometheus_replica=\"a\"} 10\n\
         waiting{namespace=\"a\",pod=\"x\",prometheus_replica=\"b\"} 10\n\
         waiting{namespace=\"a\",pod=\"y\",prometheus_replica=\"b\"} 4\n",
    )
    .await;
    let Some(prometheus) = Setup::default().scrape(exporter.address).start() else {
        return;
    };
    let batch = first_batch(&prometheus, &["a"]).await;
    assert_eq!(values(&batch), [4.0, 10.0]);
}

#[tokio::test]
async fn dcgm_series_are_found_whichever_label_has_the_namespace() {
    let page = |pod: &str| format!("gpu{{UUID=\"GPU-{pod}\",namespace=\"a\",pod=\"{pod}\"}} 80\n");
    let (kept, moved) = (Exporter::start(page("x")).await, Exporter::start(page("y")).await);
    let setup = Setup::default().scrape(kept.address).scrape_in_namespace(moved.address, "gpus");
    let Some(prometheus) = setup.start() else {
        return;
    };
    let client = client(&prometheus.config());
    let read = async |names: &[&str]| {
        dcgm_series(&client, &namespaces(names), &["gpu"], WINDOW_MS).await.ok()
    };
    let batch = eventually("both series", async || {
        read(&["a"]).await.filter(|batch| batch.series.len() == 2)
    })
    .await;
    let uuids: Vec<_> = batch.series.iter().map(|series| series.labels.get("UUID")).collect();
    assert!(uuids.contains(&Some("GPU-x")) && uuids.contains(&Some("GPU-y")), "{uuids:?}");
    // The exporter's namespace is nobody's workload.
    assert_eq!(read(&["gpus"]).await.unwrap().series, []);
}

#[tokio::test]
async fn a_range_has_a_sample_for_each_step() {
    let exporter = Exporter::start("waiting{namespace=\"a\"} 3\n").await;
    let Some(prometheus) = Setup::default().scrape(exporter.address).start() else {
        return;
    };
    let newest = first_batch(&prometheus, &["a"]).await.series[0].at;
    let client = client(&prometheus.config());
    let query = client.selector(&namespaces(&["a"]), NamespaceLabel::Namespace);
    let query = query.named(WAITING).newest();
    let answer = client.range(&query, newest, newest.plus_millis(1_000), 500).await.unwrap();
    let samples: Vec<_> =
        answer.series[0].samples.iter().map(|sample| (sample.at.0, sample.value)).collect();
    assert_eq!(samples, [(newest.0, 3.0), (newest.0 + 500, 3.0), (newest.0 + 1_000, 3.0)]);
    let fault = client.range(&query, Moment(0), newest, 1_000).await.unwrap_err();
    assert!(matches!(fault, Error::Query { status: 400, fault: QueryFault::BadQuery }));
}

#[tokio::test]
async fn a_store_behind_it_that_is_gone_makes_the_answer_partial() {
    let exporter = Exporter::start("waiting{namespace=\"a\"} 3\n").await;
    let closed = Nobody::new();
    let setup = Setup::default().scrape(exporter.address).remote_store(closed.address());
    let Some(prometheus) = setup.start() else {
        return;
    };
    let batch = first_batch(&prometheus, &["a"]).await;
    assert!(batch.partial);
    assert_eq!(values(&batch), [3.0]);
}

#[tokio::test]
async fn wrong_queries_and_a_stopped_server_are_told_apart() {
    let exporter = Exporter::start("waiting{namespace=\"a\"} 3\n").await;
    let Some(prometheus) = Setup::default().scrape(exporter.address).start() else {
        return;
    };
    first_batch(&prometheus, &["a"]).await;
    let client = client(&prometheus.config());
    let scraper = Scraper::new(Options::default()).unwrap();
    let subject = Subject { namespace: "a", name: "llm", model: None };
    let ask = async |query: &str| {
        wake_source(query, &client, &scraper).read(&[subject]).await.remove(0).unwrap_err()
    };
    for (query, status, expected) in [
        ("sum(", 400, QueryFault::BadQuery),
        ("label_replace(up, \"a\", \"$1\", \"b\", \"(\")", 422, QueryFault::Execution),
    ] {
        let error = ask(query).await;
        let Error::Query { status: seen, fault } = &*error else { panic!("{error:?}") };
        assert_eq!((*seen, *fault), (status, expected), "{query}");
    }
    drop(prometheus);
    // A kept connection may break first.
    eventually("a refused connection", async || {
        (ask("up").await.why() == Why::Refused).then_some(())
    })
    .await;
}

#[tokio::test]
async fn https_needs_the_right_authority() {
    let exporter = Exporter::start("waiting{namespace=\"a\"} 3\n").await;
    let Some(prometheus) = Setup::default().scrape(exporter.address).tls().start() else {
        return;
    };
    let namespaces = namespaces(&["a"]);
    let read = async |ca: &str| {
        let config = PrometheusConfig { ca_file: Some(tls_file(ca)), ..prometheus.config() };
        engine_series(&client(&config), &namespaces, &WAITING, WINDOW_MS).await
    };
    let batch = eventually("a series over TLS", async || {
        read("ca.pem").await.ok().filter(|batch| !batch.series.is_empty())
    })
    .await;
    assert_eq!(values(&batch), [3.0]);
    assert_eq!(read("other-ca.pem").await.unwrap_err().why(), Why::Tls);
}

#[tokio::test]
async fn f16_a_rotated_token_is_used_at_once_and_a_wrong_one_is_unauthorized() {
    let exporter = Exporter::start("waiting{namespace=\"a\"} 3\n").await;
    let Some(prometheus) = Setup::default().scrape(exporter.address).start() else {
        return;
    };
    first_batch(&prometheus, &["a"]).await;
    let wanted = Arc::new(Mutex::new("first".to_owned()));
    let address = guard(prometheus.url.clone(), Arc::clone(&wanted)).await;
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    fs::write(&token, "first\n").unwrap();
    let config = PrometheusConfig {
        url: format!("http://{address}"),
        bearer_token_file: Some(token.clone()),
        ..prometheus.config()
    };
    let (client, namespaces) = (client(&config), namespaces(&["a"]));
    let read = async || engine_series(&client, &namespaces, &WAITING, WINDOW_MS).await;
    assert_eq!(values(&read().await.unwrap()), [3.0]);
    *wanted.lock().unwrap() = "second".to_owned();
    let error = read().await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { status: 401 }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("first"));
    fs::write(&token, "second\n").unwrap();
    assert_eq!(values(&read().await.unwrap()), [3.0]);
}

/// A proxy that lets only those with the token through to `upstream`.
async fn guard(upstream: String, token: Arc<Mutex<String>>) -> SocketAddr {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let pass = async move |uri: Uri, headers: HeaderMap, body: Bytes| -> Response {
        let expected = format!("Bearer {}", token.lock().unwrap());
        if headers.get(AUTHORIZATION).is_none_or(|shown| *shown != *expected) {
            return (StatusCode::UNAUTHORIZED, expected).into_response();
        }
        let answer = http
            .post(format!("{upstream}{}", uri.path()))
            .header(CONTENT_TYPE, &headers[CONTENT_TYPE])
            .body(body)
            .send()
            .await
            .unwrap();
        let content_type = answer.headers()[CONTENT_TYPE].clone();
        let status = answer.status();
        let body = answer.bytes().await.unwrap();
        (status, [(CONTENT_TYPE, content_type)], body).into_response()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(pass);
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

#[tokio::test]
async fn the_first_request_that_a_gateway_ever_counts_is_an_arrival() {
    let exporter = Exporter::start("up_since 1\n").await;
    let Some(prometheus) = Setup::default().scrape(exporter.address).start() else {
        return;
    };
    let client = client(&prometheus.config());
    let scraper = Scraper::new(Options::default()).unwrap();
    let query = "requests_total{namespace=\"{namespace}\"} or 0 * up";
    let config = wake_config(WakeKind::Counter, query);
    let source = WakeSource::new(&config, Some(&client), &scraper).unwrap();
    let subject = Subject { namespace: "a", name: "llm", model: None };
    let started = Instant::now();
    let mut memory = WakeMemory::default();
    let mut read = async || {
        let demand = source.read(&[subject]).await.remove(0);
        let demand = demand.as_ref().map_err(|error| error.why());
        let at = i64::try_from(started.elapsed().as_millis()).unwrap();
        memory.take(source.kind(), demand, Moment(at))
    };
    let quiet = WakeReading::Fresh { queued: 0.0, last_arrival_at: None };
    eventually("the gateway's page", async || (read().await == quiet).then_some(())).await;
    exporter.show("requests_total{namespace=\"a\"} 1\n");
    let arrived = eventually("the arrival", async || match read().await {
        WakeReading::Fresh { last_arrival_at, .. } => last_arrival_at,
        WakeReading::Unknown { .. } => None,
    })
    .await;
    let again = WakeReading::Fresh { queued: 0.0, last_arrival_at: Some(arrived) };
    assert_eq!(read().await, again);
}
