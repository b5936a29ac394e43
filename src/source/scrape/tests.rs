//! The scraper against real sockets that behave and misbehave.

use std::convert::Infallible;

use futures_util::future::join_all;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::*;
use crate::decision::Why;
use crate::source::tests::{
    Act, BlackHole, FLOODS, Flood, MAX_BLOCKS, Nobody, Server, answer, everything_said, ok,
    tls_file, tls_server,
};

const PAGE: &str = "vllm:num_requests_waiting{engine=\"0\"} 3.0\n";

fn options() -> Options {
    Options { timeout_ms: 2_000, max_body_bytes: 64 * 1024, ..Options::default() }
}

fn target(url: &str) -> Target {
    Target::new(&Endpoint::Url(url.into()), None, None).unwrap()
}

async fn read(scraper: &Scraper, url: &str) -> Result<(Format, String), Error> {
    let page = scraper.open(&target(url)).await?;
    let format = page.format();
    let mut body = Vec::new();
    let read = page.read::<Infallible>(|chunk| {
        body.extend_from_slice(chunk);
        ControlFlow::Continue(())
    });
    let ControlFlow::Continue(bytes) = read.await?;
    assert_eq!(bytes, body.len() as u64);
    Ok((format, String::from_utf8(body).unwrap()))
}

async fn read_from(act: Act) -> Result<(Format, String), Error> {
    let server = Server::start(act).await;
    read(&Scraper::new(options()).unwrap(), &server.url()).await
}

#[tokio::test]
async fn a_page_arrives_whole_and_the_request_asks_for_plain_text() {
    let server = Server::page(PAGE).await;
    let page = read(&Scraper::new(options()).unwrap(), &server.url()).await.unwrap();
    assert_eq!(page, (Format::Text, PAGE.to_owned()));
    let request = server.requests().remove(0).to_ascii_lowercase();
    assert!(request.starts_with("get /metrics http/1.1\r\n"), "{request}");
    assert!(request.contains("\r\naccept: text/plain;version=0.0.4\r\n"), "{request}");
    assert!(request.contains("\r\naccept-encoding: identity\r\n"), "{request}");
    assert!(!request.contains("cookie") && !request.contains("referer"), "{request}");
}

#[tokio::test]
async fn the_next_scrape_uses_the_same_connection() {
    let server = Server::page(PAGE).await;
    let scraper = Scraper::new(options()).unwrap();
    for _ in 0..3 {
        read(&scraper.clone(), &server.url()).await.unwrap();
    }
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn beyond_the_cap_connections_are_not_kept() {
    let (kept, other) = (Server::page(PAGE).await, Server::page(PAGE).await);
    let scraper = Scraper::new(Options { max_kept_connections: 1, ..options() }).unwrap();
    for _ in 0..2 {
        read(&scraper, &kept.url()).await.unwrap();
        read(&scraper, &other.url()).await.unwrap();
    }
    assert_eq!((kept.accepted(), other.accepted()), (1, 2));
    other.open_falls_to(0).await;
}

#[tokio::test]
async fn open_metrics_is_told_apart_and_a_missing_type_is_text() {
    let open = ok("application/openmetrics-text; version=1.0.0", "# EOF\n");
    let page = read_from(Act::Answer(open)).await.unwrap();
    assert_eq!(page.0, Format::OpenMetrics);
    let page = read_from(Act::Answer(answer("200 OK", "", PAGE))).await.unwrap();
    assert_eq!(page, (Format::Text, PAGE.to_owned()));
}

#[tokio::test]
async fn another_content_type_is_a_bad_body() {
    for content_type in ["text/html", "application/json", "text/plainest", "", "\u{e9}"] {
        let error = read_from(Act::Answer(ok(content_type, PAGE))).await.unwrap_err();
        assert!(matches!(error, Error::BadBody { .. }), "{content_type}: {error:?}");
        assert_eq!(error.why(), Why::BadBody);
    }
}

#[tokio::test]
async fn a_compressed_body_is_refused_unread() {
    let head = "Content-Type: text/plain\r\nContent-Encoding: gzip\r\n";
    let error = read_from(Act::Answer(answer("200 OK", head, "\x1f bomb"))).await.unwrap_err();
    assert!(matches!(error, Error::BadBody { what: "compressed", .. }), "{error:?}");
}

#[tokio::test]
async fn f16_statuses_are_told_apart() {
    for (status, why) in [
        ("401 Unauthorized", Why::Unauthorized),
        ("403 Forbidden", Why::Unauthorized),
        ("404 Not Found", Why::HttpStatus),
        ("204 No Content", Why::HttpStatus),
        ("206 Partial Content", Why::HttpStatus),
        ("503 Service Unavailable", Why::HttpStatus),
    ] {
        let error = read_from(Act::Answer(answer(status, "", PAGE))).await.unwrap_err();
        assert_eq!(error.why(), why, "{status}: {error:?}");
    }
}

#[tokio::test]
async fn nothing_listening_is_refused() {
    let nobody = Nobody::new();
    let error = read(&Scraper::new(options()).unwrap(), &nobody.url()).await.unwrap_err();
    assert!(matches!(error, Error::Refused), "{error:?}");
}

#[tokio::test]
async fn slow_answers_of_every_kind_end_at_the_deadline() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n".to_vec();
    let mut body = head.clone();
    body.extend_from_slice(b"Content-Length: 60000\r\n\r\n");
    let pause = Duration::from_millis(10);
    for act in [
        Act::Hang,
        Act::Late(Duration::from_secs(30), ok("text/plain", PAGE)),
        Act::Endless(Vec::new(), b"H".to_vec(), Duration::from_secs(30)),
        Act::Endless(head, b"x: y\r\n".to_vec(), pause),
        Act::Endless(body, b"#".to_vec(), pause),
    ] {
        let hangs = Duration::from_secs(60);
        let read = tokio::time::timeout(hangs, read_from(act.clone())).await.expect("it ends");
        let error = read.unwrap_err();
        assert!(matches!(error, Error::Timeout { deadline_ms: 2_000 }), "{act:?}: {error:?}");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_whether_announced_or_not() {
    let announced = b"HTTP/1.1 200 OK\r\nContent-Length: 52428800\r\n\r\n".to_vec();
    let endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let mut chunk = b"1000\r\n".to_vec();
    chunk.extend(std::iter::repeat_n(b'#', 0x1000));
    chunk.extend_from_slice(b"\r\n");
    for act in [Act::Answer(announced), Act::Endless(endless, chunk, Duration::ZERO)] {
        let error = read_from(act).await.unwrap_err();
        assert!(matches!(error, Error::TooLarge { limit: 65_536, unit: "bytes" }), "{error:?}");
    }
    let whole = "#".repeat(64 * 1024);
    let page = read_from(Act::Answer(ok("text/plain", &whole))).await.unwrap();
    assert_eq!(page.1, whole);
}

#[tokio::test]
async fn what_is_sent_for_ever_is_given_up_after_little_of_it() {
    for (first, then, why) in FLOODS {
        let flood = Flood::start(first, then);
        let url = format!("http://{}/metrics", flood.address);
        // How far it comes within a deadline is the machine's.
        let scraper = Scraper::new(Options { timeout_ms: 60_000, ..options() }).unwrap();
        let read = read(&scraper, &url).await;
        assert_eq!(read.unwrap_err().why(), why, "{first:?} {then:?}");
        assert!(flood.n_blocks() <= MAX_BLOCKS, "{first:?} {then:?}: {}", flood.n_blocks());
    }
}

#[tokio::test]
async fn a_large_head_is_refused_and_interim_answers_are_passed_over() {
    let large = format!("X: {}\r\n", "y".repeat(1_000_000));
    let error = read_from(Act::Answer(answer("200 OK", &large, PAGE))).await.unwrap_err();
    let unit = "bytes before its body";
    assert!(matches!(error, Error::TooLarge { limit: 8_192, unit: at } if at == unit), "{error:?}");
    let mut interim = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(3);
    interim.extend(answer("200 OK", &format!("X: {}\r\n", "y".repeat(7_000)), PAGE));
    assert_eq!(read_from(Act::Answer(interim)).await.unwrap().1, PAGE);
}

#[tokio::test]
async fn a_connection_that_the_server_has_closed_meanwhile_is_made_anew() {
    let server = Server::start(Act::AnswerAndClose(ok("text/plain", PAGE))).await;
    let scraper = Scraper::new(options()).unwrap();
    for n in 1..=3 {
        assert_eq!(read(&scraper, &server.url()).await.unwrap().1, PAGE);
        assert_eq!(server.accepted(), n);
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_no_shorter_page() {
    let mut short = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n".to_vec();
    short.extend_from_slice(PAGE.as_bytes());
    let mut chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    chunked.extend_from_slice(format!("{:x}\r\n{PAGE}\r\n", PAGE.len()).as_bytes());
    for act in [
        Act::AnswerAndClose(short.clone()),
        Act::AnswerAndReset(short),
        Act::AnswerAndClose(chunked),
    ] {
        let error = read_from(act).await.unwrap_err();
        let Error::Incomplete { received_bytes, .. } = error else { panic!("{error:?}") };
        assert_eq!(received_bytes, PAGE.len() as u64);
    }
}

#[tokio::test]
async fn what_is_no_http_is_a_transport_fault() {
    for bytes in ["SSH-2.0-OpenSSH_9.2\r\n", ""] {
        let error = read_from(Act::AnswerAndClose(bytes.into())).await.unwrap_err();
        assert!(matches!(error, Error::Transport(_)), "{error:?}");
    }
}

#[tokio::test]
async fn one_redirect_on_the_same_server_is_followed() {
    let loops = Server::start(Act::Answer(redirect("/metrics/"))).await;
    let error = read(&Scraper::new(options()).unwrap(), &loops.url()).await.unwrap_err();
    assert!(matches!(error, Error::HttpStatus { status: 307 }), "{error:?}");
    let requests = loops.requests();
    let paths: Vec<_> = requests.iter().map(|request| request.split(' ').nth(1)).collect();
    assert_eq!(paths, [Some("/metrics"), Some("/metrics/")]);
}

#[tokio::test]
async fn f109_a_redirect_to_another_server_sends_it_nothing() {
    let other = Server::page(PAGE).await;
    let server = Server::start(Act::Answer(redirect(&other.url()))).await;
    let error = read(&Scraper::new(options()).unwrap(), &server.url()).await.unwrap_err();
    assert!(matches!(error, Error::HttpStatus { status: 307 }), "{error:?}");
    assert_eq!(other.accepted(), 0);
}

fn redirect(location: &str) -> Vec<u8> {
    answer("307 Temporary Redirect", &format!("Location: {location}\r\n"), "")
}

#[tokio::test]
async fn the_sink_can_break_off_with_a_value() {
    let server = Server::page(PAGE).await;
    let scraper = Scraper::new(options()).unwrap();
    let page = scraper.open(&target(&server.url())).await.unwrap();
    let broken = page.read(|_| ControlFlow::Break("seen")).await;
    assert!(matches!(broken, Ok(ControlFlow::Break("seen"))), "{broken:?}");
}

#[tokio::test]
async fn scrapes_at_once_are_bounded_and_waiting_for_a_turn_costs_no_deadline() {
    let server = Server::start(Act::Late(Duration::from_millis(700), ok("text/plain", PAGE))).await;
    let scraper = Scraper::new(Options { max_concurrent: 2, ..options() }).unwrap();
    let url = server.url();
    // Four rounds of 700 ms: the last waits for longer than the deadline of 2 s.
    let answers = join_all((0..8).map(|_| read(&scraper, &url))).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(server.most_pausing(), 2);
}

#[tokio::test]
async fn the_wait_for_a_turn_ends_and_own_turns_wait_for_nobody() {
    let (hangs, answers) = (Server::start(Act::Hang).await, Server::page(PAGE).await);
    let bounds = Options { max_concurrent: 1, max_wait_ms: 100, ..options() };
    let scraper = Scraper::new(bounds).unwrap();
    let other = scraper.with_own_turns(1);
    let (hangs_url, answers_url) = (hangs.url(), answers.url());
    let mut hung = std::pin::pin!(read(&scraper, &hangs_url));
    tokio::select! {
        biased;
        error = &mut hung => panic!("{error:?}"),
        page = read(&other, &answers_url) => assert_eq!(page.unwrap().1, PAGE),
    }
    tokio::select! {
        biased;
        error = &mut hung => panic!("{error:?}"),
        late = read(&scraper, &answers_url) => {
            let error = late.unwrap_err();
            assert!(matches!(error, Error::NoTurn { waited_ms: 100 }), "{error:?}");
        }
    }
    assert!(matches!(hung.await, Err(Error::Timeout { .. })));
}

#[tokio::test]
async fn f15_one_endpoint_that_hangs_holds_up_no_other() {
    let (hangs, answers) = (Server::start(Act::Hang).await, Server::page(PAGE).await);
    let scraper = Scraper::new(options()).unwrap();
    let (hangs_url, answers_url) = (hangs.url(), answers.url());
    let mut hung = std::pin::pin!(read(&scraper, &hangs_url));
    tokio::select! {
        biased;
        error = &mut hung => panic!("{error:?}"),
        page = read(&scraper, &answers_url) => assert_eq!(page.unwrap().1, PAGE),
    }
    assert!(matches!(hung.await, Err(Error::Timeout { .. })));
}

#[tokio::test]
async fn f45_a_target_that_keeps_failing_holds_no_sockets() {
    let mut unfinished = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n".to_vec();
    unfinished.extend_from_slice(PAGE.as_bytes());
    for act in [
        Act::Hang,
        Act::Answer(unfinished),
        Act::Answer(answer("500 Internal Server Error", "", &"x".repeat(20_000))),
        Act::Answer(ok("text/html", &"x".repeat(20_000))),
    ] {
        let server = Server::start(act.clone()).await;
        let scraper = Scraper::new(Options { timeout_ms: 20, ..options() }).unwrap();
        let url = server.url();
        for _ in 0..20 {
            let failed = join_all((0..5).map(|_| read(&scraper, &url))).await;
            assert!(failed.iter().all(Result::is_err), "{act:?}");
        }
        // One idle connection may stay with the pool.
        server.open_falls_to(1).await;
    }
}

/// Sockets of this machine that lead to an address of 127.0.45.0/24, in whatever state.
fn sockets_to_refusing() -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let remote = |line: &str| line.split_whitespace().nth(2).map(str::to_owned);
    table.lines().filter_map(remote).filter(|remote| remote.contains("2D007F:")).count()
}

#[tokio::test]
async fn f45_a_hundred_targets_that_refuse_again_and_again_hold_few_sockets() {
    let scraper = Scraper::new(options()).unwrap();
    // Nobody listens there: an address of loopback that nothing else uses.
    let urls: Vec<String> = (1..=100).map(|n| format!("http://127.0.45.{n}:9/metrics")).collect();
    let mut most = 0;
    for _ in 0..24 {
        let refused = join_all(urls.iter().map(|url| read(&scraper, url))).await;
        assert!(refused.iter().all(|read| matches!(read, Err(Error::Refused))), "{refused:?}");
        most = most.max(sockets_to_refusing());
    }
    assert!(most <= urls.len(), "{most} sockets after 24 rounds of {} targets", urls.len());
}

#[tokio::test]
async fn f28_a_long_deadline_is_no_back_off() {
    let scraper = Scraper::new(Options { timeout_ms: 20_000, ..options() }).unwrap();
    let listener = TcpListener::bind("127.0.28.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("http://{address}/metrics");
    for _ in 0..5 {
        let error = read(&scraper, &url).await.unwrap_err();
        assert!(matches!(error, Error::Refused), "told at once, not at the deadline: {error:?}");
    }
    // It is up: the very next read finds it, however often it was not.
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, &ok("text/plain", PAGE)).await.unwrap();
        // Until the reader has all of it.
        let mut asked = Vec::new();
        drop(tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut asked).await);
    });
    assert_eq!(read(&scraper, &url).await.unwrap().1, PAGE);
}

#[test]
fn a_pod_is_addressed_by_its_ip_and_nothing_in_a_path_changes_that() {
    let pod = |ip: &str, port| Endpoint::Pod { ip: ip.parse().unwrap(), port };
    for (endpoint, port, path, url) in [
        (pod("10.0.0.7", None), None, None, "http://10.0.0.7:8000/metrics"),
        (pod("10.0.0.7", Some(9000)), None, None, "http://10.0.0.7:9000/metrics"),
        (pod("10.0.0.7", Some(9000)), Some(30000), Some("/m"), "http://10.0.0.7:30000/m"),
        (pod("fd00::7", None), None, None, "http://[fd00::7]:8000/metrics"),
        (pod("10.0.0.7", None), None, Some("//evil/x"), "http://10.0.0.7:8000//evil/x"),
        (pod("10.0.0.7", None), None, Some("@evil/?q#f"), "http://10.0.0.7:8000/@evil/%3Fq%23f"),
        (Endpoint::Url("https://h/m?a=b".into()), Some(1), Some("/x"), "https://h/m?a=b"),
    ] {
        assert_eq!(Target::new(&endpoint, port, path).unwrap().url(), url);
    }
}

#[test]
fn an_address_with_credentials_or_another_scheme_is_refused() {
    for url in
        ["ftp://h/", "file:///etc/passwd", "http://u:p@h/", "http://u@h/", "h:80", "", "http://"]
    {
        let error = Target::new(&Endpoint::Url(url.into()), None, None).unwrap_err();
        assert!(matches!(error, Error::BadAddress), "{url}");
    }
}

#[tokio::test]
async fn https_is_read_with_the_configured_authority_only() {
    let address = tls_server(ok("text/plain", PAGE)).await;
    let url = format!("https://localhost:{}/metrics", address.port());
    let with_ca = |name| Scraper::new(Options { ca_file: Some(tls_file(name)), ..options() });
    let (_, body) = read(&with_ca("ca.pem").unwrap(), &url).await.unwrap();
    assert_eq!(body, PAGE);
    for scraper in [with_ca("other-ca.pem").unwrap(), Scraper::new(options()).unwrap()] {
        let error = read(&scraper, &url).await.unwrap_err();
        assert_eq!(error.why(), Why::Tls, "{error:?}");
    }
}

#[tokio::test]
async fn a_ca_file_without_a_certificate_is_refused_at_the_start() {
    for name in ["server.key", "absent.pem"] {
        let options = Options { ca_file: Some(tls_file(name)), ..options() };
        let error = Scraper::new(options).unwrap_err();
        assert!(matches!(error, Error::File { what: FileRole::Ca, .. }), "{name}: {error:?}");
    }
}

#[tokio::test]
async fn https_to_a_plain_port_is_a_tls_fault() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    let options = Options { ca_file: Some(tls_file("ca.pem")), ..options() };
    let error = read(&Scraper::new(options).unwrap(), &url).await.unwrap_err();
    assert!(matches!(error, Error::Tls(_)), "{error:?}");
}

#[tokio::test]
async fn f114_no_error_text_repeats_what_the_server_sent_or_where_it_is() {
    let secret = "SECRET\n";
    let mut unfinished = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n".to_vec();
    unfinished.extend_from_slice(secret.as_bytes());
    for act in [
        Act::Answer(answer("403 SECRET", "X-Secret: SECRET\r\n", secret)),
        Act::Answer(answer("500 SECRET", "", secret)),
        Act::Answer(ok("text/SECRET", secret)),
        Act::Answer(redirect("http://SECRET.invalid/")),
        Act::AnswerAndClose(unfinished),
        Act::AnswerAndClose(secret.into()),
        Act::Hang,
    ] {
        let server = Server::start(act).await;
        let port = server.address.port().to_string();
        let error = read(&Scraper::new(options()).unwrap(), &server.url()).await.unwrap_err();
        let text = everything_said(&error);
        assert!(!text.contains("SECRET") && !text.contains(&port), "{text}");
    }
}

#[tokio::test]
async fn f15_many_endpoints_that_hang_hold_up_each_other_and_nobody_else() {
    let hangs = join_all((0..12).map(|_| Server::start(Act::Hang))).await;
    let answers = Server::page(PAGE).await;
    let bounds = Options { max_concurrent: 4, timeout_ms: 1_500, max_wait_ms: 3_000, ..options() };
    let scraper = Scraper::new(bounds).unwrap();
    // Once each, in turns that all share: until then nobody can know.
    for some in hangs.chunks(4) {
        let urls: Vec<_> = some.iter().map(Server::url).collect();
        for error in join_all(urls.iter().map(|url| read(&scraper, url))).await {
            assert!(matches!(error, Err(Error::Timeout { .. })), "{error:?}");
        }
    }
    // Twelve of them would take four turns for 4.5 s, and three seconds are the longest wait.
    let urls: Vec<_> = hangs.iter().map(Server::url).collect();
    let mut all_hang = std::pin::pin!(join_all(urls.iter().map(|url| read(&scraper, url))));
    let url = answers.url();
    for _ in 0..20 {
        tokio::select! {
            biased;
            _ = &mut all_hang => panic!("they have each other's turns to wait for"),
            page = read(&scraper, &url) => assert_eq!(page.unwrap().1, PAGE),
        }
    }
    let turned_away =
        all_hang.await.iter().filter(|read| matches!(read, Err(Error::NoTurn { .. }))).count();
    assert!(turned_away >= 8, "one turn of 1.5 s each within three seconds: {turned_away}");
}

#[tokio::test]
async fn endpoints_that_let_nobody_in_are_late_as_those_that_hang() {
    let hole = BlackHole::start().await;
    let url = format!("http://{}/metrics", hole.address);
    for timeout_ms in 100..120 {
        let scraper = Scraper::new(Options { timeout_ms, ..options() }).unwrap();
        let all = scraper.lanes.of("nobody").clone();
        let error = read(&scraper, &url).await.unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        let lane = scraper.lanes.of(&hole.address.to_string()).clone();
        assert!(!Arc::ptr_eq(&lane, &all), "it waits for its like and holds up nobody else");
    }
}

#[tokio::test]
async fn an_endpoint_that_answers_again_shares_the_turns_of_all_again() {
    let scraper = Scraper::new(options()).unwrap();
    let (all, authority) = (scraper.lanes.of("a:1").clone(), "a:1");
    scraper.lanes.note(authority, true);
    assert!(!Arc::ptr_eq(scraper.lanes.of(authority), &all));
    scraper.lanes.note(authority, false);
    assert!(Arc::ptr_eq(scraper.lanes.of(authority), &all));
}
