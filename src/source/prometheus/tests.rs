//! The Prometheus client against real sockets that behave and misbehave.

use std::fs;

use super::*;
use crate::decision::Why;
use crate::source::QueryFault;
use crate::source::tests::{
    Act, FLOODS, Flood, MAX_BLOCKS, Server, answer, everything_said, ok, tls_file, tls_server,
};

const EMPTY: &str = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;

fn config(url: &str) -> PrometheusConfig {
    PrometheusConfig {
        name: "main".to_owned(),
        url: url.to_owned(),
        bearer_token_file: None,
        ca_file: None,
        timeout_ms: 2_000,
        matchers: BTreeMap::new(),
    }
}

fn base(server: &Server) -> String {
    format!("http://{}", server.address)
}

fn query() -> Query {
    let namespaces = Namespaces::batches(["team-a"]).unwrap().remove(0);
    Selector::within(&namespaces, NamespaceLabel::Namespace).newest()
}

async fn ask(act: Act) -> Result<Answer, Error> {
    let server = Server::start(act).await;
    let client = PrometheusClient::new(&config(&base(&server))).unwrap();
    client.instant(&query()).await
}

fn json(body: &str) -> Act {
    Act::Answer(ok("application/json", body))
}

#[tokio::test]
async fn a_query_is_posted_as_a_form_below_the_servers_prefix() {
    let server = Server::start(json(EMPTY)).await;
    for base in [format!("{}/prom", base(&server)), format!("{}/prom/", base(&server))] {
        let client = PrometheusClient::new(&config(&base)).unwrap();
        assert_eq!(client.instant(&query()).await.unwrap(), Answer::default());
    }
    for request in server.requests() {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /prom/api/v1/query HTTP/1.1\r\n"), "{head}");
        assert!(!head.to_ascii_lowercase().contains("authorization"), "{head}");
        assert_eq!(body, "query=%7Bnamespace%3D%22team-a%22%7D&timeout=2000ms");
    }
}

#[tokio::test]
async fn a_range_has_its_span_and_step_in_seconds() {
    let matrix = r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#;
    let server = Server::start(json(matrix)).await;
    let client = PrometheusClient::new(&config(&base(&server))).unwrap();
    client
        .range(&query(), Moment(1_700_000_000_250), Moment(1_700_000_060_000), 15_000)
        .await
        .unwrap();
    let request = server.requests().remove(0);
    assert!(request.starts_with("POST /api/v1/query_range "), "{request}");
    let span = "&start=1700000000.250&end=1700000060.000&step=15.000&";
    assert!(request.contains(span), "{request}");
}

#[tokio::test]
async fn configured_matchers_are_in_every_selector() {
    let mut config = config("http://prometheus.invalid");
    config.matchers = BTreeMap::from([(LabelName::new("cluster").unwrap(), "a\"b".to_owned())]);
    let client = PrometheusClient::new(&config).unwrap();
    let selector = client
        .selector(&Namespaces::batches(["team-a"]).unwrap().remove(0), NamespaceLabel::Namespace);
    assert_eq!(selector.newest().as_str(), r#"{namespace="team-a",cluster="a\"b"}"#);
}

#[tokio::test]
async fn the_token_is_read_anew_for_each_query() {
    let server = Server::start(json(EMPTY)).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let mut config = config(&base(&server));
    config.bearer_token_file = Some(path.clone());
    let client = PrometheusClient::new(&config).unwrap();
    for token in ["first.token", "second.token\n"] {
        fs::write(&path, token).unwrap();
        client.instant(&query()).await.unwrap();
        let request = server.requests().pop().unwrap();
        let header = format!("authorization: Bearer {}\r\n", token.trim());
        assert!(request.contains(&header), "{request}");
    }
    assert!(!format!("{client:?}").contains(".token"));
}

#[tokio::test]
async fn without_a_usable_token_nothing_is_sent() {
    let server = Server::start(json(EMPTY)).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let mut config = config(&base(&server));
    config.bearer_token_file = Some(path.clone());
    let client = PrometheusClient::new(&config).unwrap();
    let absent = client.instant(&query()).await.unwrap_err();
    assert!(matches!(absent, Error::File { what: FileRole::Token, source: Some(_), .. }));
    for text in ["", " \n", "SECRET\r\nX-Other: 1", "SECRET\u{1}"] {
        fs::write(&path, text).unwrap();
        let error = client.instant(&query()).await.unwrap_err();
        assert_eq!(error.why(), Why::Unauthorized);
        assert!(!everything_said(&error).contains("SECRET"), "{error:?}");
    }
    assert_eq!(server.accepted(), 0);
}

#[tokio::test]
async fn a_token_file_that_hangs_ends_at_the_deadline_and_holds_no_turn() {
    let server = Server::start(json(EMPTY)).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    // A writer that is there and writes nothing.
    let writer = fs::File::options().read(true).write(true).open(&path).unwrap();
    let config = PrometheusConfig {
        bearer_token_file: Some(path.clone()),
        timeout_ms: 100,
        ..config(&base(&server))
    };
    let client = PrometheusClient::new(&config).unwrap();
    let query = query();
    let all =
        futures_util::future::join_all((0..2 * MAX_CONCURRENT).map(|_| client.instant(&query)));
    for error in timeout(Duration::from_secs(30), all).await.expect("none waits for the disk") {
        assert!(matches!(error, Err(Error::Timeout { deadline_ms: 100 })), "{error:?}");
    }
    assert_eq!(server.accepted(), 0);
    drop(writer);
}

#[tokio::test]
async fn an_answer_tells_when_it_was_sent() {
    let date = "Content-Type: application/json\r\nDate: Mon, 30 Nov 2026 10:31:33 GMT\r\n";
    let told = ask(Act::Answer(answer("200 OK", date, EMPTY))).await.unwrap().told_at;
    assert_eq!(told, Some(Moment(1_796_034_693_000)));
    for date in ["", "Date: yesterday\r\n", "Date: \u{fffd}\r\n"] {
        let head = format!("Content-Type: application/json\r\n{date}");
        assert_eq!(ask(Act::Answer(answer("200 OK", &head, EMPTY))).await.unwrap().told_at, None);
    }
}

#[tokio::test]
async fn f16_faults_are_told_apart() {
    let fault =
        |kind: &str| format!(r#"{{"status":"error","errorType":"{kind}","error":"SECRET"}}"#);
    for (status, body, expected, why) in [
        ("400 Bad Request", fault("bad_data"), QueryFault::BadQuery, Why::HttpStatus),
        ("422 Unprocessable", fault("execution"), QueryFault::Execution, Why::HttpStatus),
        ("503 Unavailable", fault("timeout"), QueryFault::Timeout, Why::Timeout),
        ("503 Unavailable", fault("canceled"), QueryFault::Timeout, Why::Timeout),
        ("503 Unavailable", fault("unavailable"), QueryFault::Unavailable, Why::HttpStatus),
        ("500 Error", fault("internal"), QueryFault::Other, Why::HttpStatus),
        ("400 Bad Request", "SECRET".to_owned(), QueryFault::BadQuery, Why::HttpStatus),
        ("422 Unprocessable", String::new(), QueryFault::Execution, Why::HttpStatus),
        (
            "503 Unavailable",
            "Service Unavailable".to_owned(),
            QueryFault::Unavailable,
            Why::HttpStatus,
        ),
        ("504 Gateway Timeout", "<html>".to_owned(), QueryFault::Timeout, Why::Timeout),
        ("404 Not Found", "x".repeat(100_000), QueryFault::Other, Why::HttpStatus),
        ("200 OK", fault("execution"), QueryFault::Execution, Why::HttpStatus),
    ] {
        let head = "Content-Type: application/json\r\n";
        let error = ask(Act::Answer(answer(status, head, &body))).await.unwrap_err();
        assert!(
            matches!(&error, Error::Query { fault, .. } if *fault == expected),
            "{status} {error:?}"
        );
        assert_eq!(error.why(), why, "{status}");
        assert!(!everything_said(&error).contains("SECRET"), "{error:?}");
    }
    for status in ["401 Unauthorized", "403 Forbidden"] {
        let error = ask(Act::Answer(answer(status, "", "SECRET"))).await.unwrap_err();
        assert_eq!(error.why(), Why::Unauthorized, "{status}");
        assert!(!everything_said(&error).contains("SECRET"), "{error:?}");
    }
}

#[tokio::test]
async fn what_is_no_answer_of_prometheus_is_a_bad_body() {
    for act in [
        Act::Answer(ok("text/html", "<html>Sign in</html>")),
        Act::Answer(ok("application/json", "")),
        Act::Answer(ok("application/json", "\u{1f}\u{8b}\u{8}")),
        Act::Answer(ok("application/json; charset=utf-8", "{")),
        Act::Answer(answer("200 OK", "", EMPTY)),
        Act::Answer(answer(
            "200 OK",
            "Content-Type: application/json\r\nContent-Encoding: gzip\r\n",
            EMPTY,
        )),
    ] {
        let error = ask(act.clone()).await.unwrap_err();
        assert_eq!(error.why(), Why::BadBody, "{act:?} {error:?}");
    }
    assert!(ask(Act::Answer(ok("application/json; charset=utf-8", EMPTY))).await.is_ok());
}

#[tokio::test]
async fn slow_large_and_broken_answers_have_their_own_faults() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
    let large = format!("{head}Content-Length: 52428800\r\n\r\n").into_bytes();
    let short = format!("{head}Content-Length: 1000\r\n\r\n{EMPTY}").into_bytes();
    let drip = format!("{head}Content-Length: 1000\r\n\r\n").into_bytes();
    let slow_head = head.as_bytes().to_vec();
    let endless = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    let chunk = format!("100000\r\n{}\r\n", " ".repeat(0x0010_0000)).into_bytes();
    for (act, why) in [
        (Act::Hang, Why::Timeout),
        (Act::Endless(drip, b" ".to_vec(), Duration::from_millis(10)), Why::Timeout),
        (Act::Endless(slow_head, b"x: y\r\n".to_vec(), Duration::from_millis(10)), Why::Timeout),
        (Act::Answer(large), Why::TooLarge),
        (Act::Endless(endless, chunk, Duration::ZERO), Why::TooLarge),
        (Act::AnswerAndClose(short), Why::Transport),
        (Act::AnswerAndClose(Vec::new()), Why::Transport),
    ] {
        let error = ask(act.clone()).await.unwrap_err();
        assert_eq!(error.why(), why, "{act:?} {error:?}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed_because_it_could_carry_the_token_away() {
    let other = Server::start(json(EMPTY)).await;
    let location = format!("Location: {}/\r\n", base(&other));
    let error = ask(Act::Answer(answer("302 Found", &location, ""))).await.unwrap_err();
    assert!(matches!(error, Error::Query { status: 302, fault: QueryFault::Other }), "{error:?}");
    assert_eq!(other.accepted(), 0);
}

#[tokio::test]
async fn what_is_sent_for_ever_is_given_up_after_little_of_it() {
    for (first, then, _why) in FLOODS {
        let flood = Flood::start(first, then);
        let client = PrometheusClient::new(&config(&format!("http://{}", flood.address))).unwrap();
        client.instant(&query()).await.unwrap_err();
        assert!(flood.n_blocks() <= MAX_BLOCKS, "{first:?} {then:?}: {}", flood.n_blocks());
    }
}

#[tokio::test]
async fn queries_at_once_are_bounded() {
    let act = Act::Late(Duration::from_millis(50), ok("application/json", EMPTY));
    let server = Server::start(act).await;
    let client = PrometheusClient::new(&config(&base(&server))).unwrap();
    let query = query();
    let answers =
        futures_util::future::join_all((0..3 * MAX_CONCURRENT).map(|_| client.instant(&query)))
            .await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(server.most_pausing(), MAX_CONCURRENT);
}

#[tokio::test]
async fn the_last_of_many_questions_has_its_turn_however_long_the_others_take() {
    let act = Act::Late(Duration::from_millis(1_800), ok("application/json", EMPTY));
    let server = Server::start(act).await;
    let config = PrometheusConfig { timeout_ms: 30_000, ..config(&base(&server)) };
    let client = PrometheusClient::new(&config).unwrap();
    let query = query();
    // Three rounds of others before the last: longer than who asks for a single workload would wait.
    let all = (0..4 * MAX_CONCURRENT).map(|_| client.instant(&query));
    let answers = futures_util::future::join_all(all).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let own = client.with_own_turns(1);
    let all = (0..5).map(|_| own.instant(&query));
    let answers = futures_util::future::join_all(all).await;
    assert!(matches!(answers.last(), Some(Err(Error::NoTurn { waited_ms: 5_000 }))), "{answers:?}");
}

#[tokio::test]
async fn https_is_read_with_the_configured_authority_only() {
    let address = tls_server(ok("application/json", EMPTY)).await;
    let url = format!("https://localhost:{}", address.port());
    let ask = async |ca: Option<&str>| {
        let config = PrometheusConfig { ca_file: ca.map(tls_file), ..config(&url) };
        PrometheusClient::new(&config)?.instant(&query()).await
    };
    assert!(ask(Some("ca.pem")).await.is_ok());
    assert_eq!(ask(Some("other-ca.pem")).await.unwrap_err().why(), Why::Tls);
    assert!(matches!(ask(Some("absent.pem")).await, Err(Error::File { what: FileRole::Ca, .. })));
}
