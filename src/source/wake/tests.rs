//! Wake sources against a gateway's page and a Prometheus, as far as the wire goes.

use std::time::Duration;

use super::*;
use crate::config;
use crate::decision::{Moment, WakeReading, Why};
use crate::source::config::PrometheusConfig;
use crate::source::scrape::Options;
use crate::source::tests::{Act, Server, answer, ok};

const LLM: Subject<'_> = Subject { namespace: "team-a", name: "llm", model: Some("m") };
const OTHER: Subject<'_> = Subject { namespace: "team-b", name: "llm", model: Some("m") };

/// A wake source as the file has it, beside a Prometheus that is called main.
fn configured(yaml: &str) -> WakeSourceConfig {
    let main = "{name: main, url: 'http://127.0.0.1:1'}";
    let config = config::parse(&format!("prometheus: [{main}]\nwakeSources: [{yaml}]"));
    config.unwrap().wake_sources.pop_first().unwrap().1
}

fn source(yaml: &str, server: &Server) -> WakeSource {
    let yaml = yaml.replace("SERVER", &format!("http://{}", server.address));
    let config = configured(&yaml);
    let prometheus = PrometheusConfig::at(&format!("http://{}", server.address));
    let prometheus = PrometheusClient::new(&prometheus).unwrap();
    let scraper = Scraper::new(Options::default()).unwrap();
    WakeSource::new(&config, Some(&prometheus), &scraper).unwrap()
}

fn page_source(server: &Server) -> WakeSource {
    source(
        "{name: gw, kind: gauge, url: SERVER/metrics, metric: queue_size,
          matchers: {ns: '{namespace}', model: '{model}'}}",
        server,
    )
}

fn queued(source: &WakeSource, read: &Result<Demand, Arc<Error>>) -> WakeReading {
    let read = read.as_ref().map_err(|error| error.why());
    WakeMemory::default().take(source.kind(), read, Moment(5))
}

fn held(queued: f64) -> WakeReading {
    let last_arrival_at = (queued > 0.0).then_some(Moment(5));
    WakeReading::Fresh { queued, last_arrival_at }
}

/// Lets futures run until each has asked for its turn and, where there is one, sent its request.
async fn under_way<F: Future + Unpin>(futures: &mut [F], is: impl Fn() -> bool) {
    while !is() {
        for future in futures.iter_mut() {
            assert!(futures_util::poll!(future).is_pending());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_fleet_that_hangs_takes_no_turn_of_a_wake_source() {
    const TURNS: usize = 3;
    let (hangs, gateway) =
        (Server::start(Act::Hang).await, Server::page("queue_size{ns=\"team-a\"} 2\n").await);
    let scraper =
        Scraper::new(Options { max_concurrent: TURNS, timeout_ms: 60_000, ..Options::default() })
            .unwrap();
    let config = configured(&format!(
        "{{name: gw, kind: gauge, url: '{}', metric: queue_size}}",
        gateway.url()
    ));
    let source = WakeSource::new(&config, None, &scraper).unwrap();
    let target = Target::new(&Endpoint::Url(hangs.url().as_str().into()), None, None).unwrap();
    let mut fleet: Vec<_> = (0..10 * TURNS).map(|_| Box::pin(scraper.open(&target))).collect();
    under_way(&mut fleet, || hangs.accepted() == TURNS).await;
    let read = source.read(&[LLM]).await;
    assert_eq!(queued(&source, &read[0]), held(2.0));
    for engine in &mut fleet {
        assert!(futures_util::poll!(engine).is_pending(), "the fleet hung all the while");
    }
}

#[tokio::test]
async fn engine_queries_that_hang_take_no_turn_of_a_wake_source() {
    let server = Server::start(Act::Hang).await;
    let at = PrometheusConfig::at(&format!("http://{}", server.address));
    let prometheus = PrometheusClient::new(&PrometheusConfig { timeout_ms: 60_000, ..at }).unwrap();
    let config = configured("{name: gw, kind: gauge, prometheus: main, query: queue_size}");
    let scraper = Scraper::new(Options::default()).unwrap();
    let source = WakeSource::new(&config, Some(&prometheus), &scraper).unwrap();
    let query = Query::configured("up".to_owned());
    let mut engines: Vec<_> = (0..50).map(|_| Box::pin(prometheus.instant(&query))).collect();
    under_way(&mut engines, || server.accepted() == 8).await;
    let subjects = [LLM];
    let mut read = [Box::pin(source.read(&subjects))];
    // It is sent although none of the others has been answered.
    under_way(&mut read, || server.accepted() == 9).await;
}

#[tokio::test]
async fn a_page_is_read_once_and_gives_each_workload_its_own() {
    let server = Server::page(
        "# TYPE queue_size gauge\n\
         queue_size{ns=\"team-a\",model=\"m\",prio=\"0\"} 2\n\
         queue_size{ns=\"team-a\",model=\"m\",prio=\"1\"} 3\n\
         queue_size{ns=\"team-a\",model=\"m2\"} 50\n\
         queue_size{model=\"m\"} 50\n\
         queue_size_total{ns=\"team-a\",model=\"m\"} 50\n",
    )
    .await;
    let source = page_source(&server);
    let read = source.read(&[LLM, OTHER]).await;
    assert_eq!(server.requests().len(), 1);
    assert_eq!(queued(&source, &read[0]), held(5.0));
    assert_eq!(queued(&source, &read[1]), held(0.0));
}

#[tokio::test]
async fn a_page_without_the_metric_or_cut_off_is_unknown() {
    for (body, why) in [
        ("other 1\n", Why::NoKnownSeries),
        ("", Why::BadBody),
        ("queue_size{ns=\"team-a\",model=\"m\"} 2", Why::BadBody),
        ("<html>\n", Why::BadBody),
    ] {
        let server = Server::page(body).await;
        let source = page_source(&server);
        let read = source.read(&[LLM]).await;
        assert_eq!(queued(&source, &read[0]), WakeReading::Unknown { why }, "{body:?}");
    }
}

#[tokio::test]
async fn a_page_that_cannot_be_had_is_unknown_to_all() {
    let server = Server::start(Act::AnswerAndClose(Vec::new())).await;
    let read = page_source(&server).read(&[LLM, OTHER]).await;
    for read in read {
        assert_eq!(read.unwrap_err().why(), Why::Transport);
    }
}

#[tokio::test]
async fn whatever_a_gateway_sends_is_a_reading_or_has_its_fault() {
    let page = |body: &str| Act::Answer(ok("text/plain", body));
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n";
    let gzip = "Content-Type: text/plain\r\nContent-Encoding: gzip\r\n";
    let unknown = |why| WakeReading::Unknown { why };
    let of = |value: &str| page(&format!("queue_size{{ns=\"team-a\",model=\"m\"}} {value}\n"));
    for (act, expected) in [
        (of("NaN"), unknown(Why::Impossible)),
        (of("+Inf"), unknown(Why::Impossible)),
        (of("-1"), unknown(Why::Impossible)),
        (of("text"), unknown(Why::Impossible)),
        (of("1e308"), held(1e308)),
        (page(""), unknown(Why::BadBody)),
        (page("\u{1f}\u{8b}\u{8}"), unknown(Why::BadBody)),
        (Act::Answer(ok("text/html", "queue_size 1\n")), unknown(Why::BadBody)),
        (Act::Answer(answer("200 OK", gzip, "bomb")), unknown(Why::BadBody)),
        (
            Act::Answer(format!("{head}Content-Length: 52428800\r\n\r\n").into_bytes()),
            unknown(Why::TooLarge),
        ),
        (
            Act::Endless(
                format!("{head}Content-Length: 999\r\n\r\n").into_bytes(),
                b"#".to_vec(),
                Duration::from_millis(10),
            ),
            unknown(Why::Timeout),
        ),
        // The same series twice counts once; labels may hold anything.
        (
            page(
                "queue_size{ns=\"team-a\",model=\"m\"} 2\n\
                 queue_size{ns=\"team-a\",model=\"m\"} 2\n\
                 queue_size{ns=\"team-a\",model=\"m\",x=\"a\\\"},=\\n\u{202e}{\"} 3\n\
                 queue_size{ns=\"team-a\\\",model=\\\"m\"} 50\n",
            ),
            held(5.0),
        ),
    ] {
        let server = Server::start(act.clone()).await;
        let source = page_source(&server);
        let read = source.read(&[LLM]).await;
        assert_eq!(queued(&source, &read[0]), expected, "{act:?}");
    }
}

#[tokio::test]
async fn a_query_is_asked_once_for_all_that_share_it() {
    let body = r#"{"status":"success","data":{"resultType":"vector","result":[
        {"metric":{"pod":"gw-1"},"value":[1,"2"]},{"metric":{"pod":"gw-2"},"value":[1,"1"]}]}}"#;
    let server = Server::start(Act::Answer(ok("application/json", body))).await;
    let yaml = "{name: gw, kind: gauge, prometheus: main, query: 'q{m=\"{model}\"}'}";
    let source = source(yaml, &server);
    let unnamed = Subject { model: None, ..LLM };
    let read = source.read(&[LLM, unnamed, OTHER]).await;
    assert_eq!(queued(&source, &read[0]), held(3.0));
    assert_eq!(queued(&source, &read[1]), WakeReading::Unknown { why: Why::AmbiguousTenant });
    assert_eq!(queued(&source, &read[2]), held(3.0));
    let requests = server.requests();
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    assert!(request.contains("query=q%7Bm%3D%22m%22%7D&"), "{request}");
}

#[tokio::test]
async fn f11_no_series_is_no_zero_and_a_scalar_is_a_value() {
    for (result_type, result, expected) in [
        ("vector", "[]", WakeReading::Unknown { why: Why::NoKnownSeries }),
        ("scalar", r#"[1,"0"]"#, held(0.0)),
        (
            "vector",
            r#"[{"metric":{},"value":[1,"NaN"]}]"#,
            WakeReading::Unknown { why: Why::Impossible },
        ),
    ] {
        let body = format!(
            r#"{{"status":"success","data":{{"resultType":"{result_type}","result":{result}}}}}"#
        );
        let server = Server::start(Act::Answer(ok("application/json", &body))).await;
        let source = source("{name: gw, kind: gauge, prometheus: main, query: q}", &server);
        let read = source.read(&[LLM]).await;
        assert_eq!(queued(&source, &read[0]), expected, "{result}");
    }
}

#[tokio::test]
async fn more_series_than_a_gateway_has_are_refused() {
    let body: String = (0..=MAX_SERIES).map(|n| format!("queue{{n=\"{n}\"}} 0\n")).collect();
    let server = Server::page(&body).await;
    let source = source("{name: gw, kind: gauge, url: SERVER/metrics, metric: queue}", &server);
    let read = source.read(&[LLM]).await;
    assert_eq!(read[0].as_ref().unwrap_err().why(), Why::TooLarge);
}

#[test]
fn a_query_without_its_prometheus_is_refused() {
    let yaml = "{name: gw, kind: gauge, prometheus: main, query: q}";
    let config = configured(yaml);
    let scraper = Scraper::new(Options::default()).unwrap();
    assert!(matches!(WakeSource::new(&config, None, &scraper), Err(Error::BadAddress)));
}
