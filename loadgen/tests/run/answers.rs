//! Every way in which an answer can be right or wrong is counted as what it is.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use serde_json::{Value, json};

use super::server::{
    Act, Asked, Server, event, finish, nobody, piece, plain, stream, stream_end, stream_head, token,
};
use super::{at, loadgen, report};

const HUNDRED: &str =
    "--rate 50 --duration 2s --arrival constant --input-tokens 20 --output-tokens 3";

/// Ten kinds of answers in turn.
fn in_turn(asked: &Asked) -> Vec<Act> {
    let mut acts = vec![stream_head()];
    match asked.number % 10 {
        0 => return stream(asked, 3, Duration::ZERO),
        1 => return vec![Act::Close],
        // A right end of the body without the stream's own.
        2 => acts.extend([token("m"), token("m"), Act::Write(b"0\r\n\r\n".to_vec())]),
        3 => acts.extend([token("m"), Act::Write(b"ff\r\ndata: {".to_vec()), Act::Close]),
        4 => return vec![plain("500 Internal Server Error", "text/plain", "boom")],
        5 => {
            let body = r#"{"error":{"message":"too many requests","code":429}}"#;
            return vec![plain("429 Too Many Requests", "application/json", body)];
        }
        6 => acts.extend([piece("data: {\"choices\": [oops]}\n\n"), Act::Close]),
        7 => {
            acts.push(token("another"));
            acts.extend(stream_end(20, 1));
        }
        8 => acts.extend([
            token("m"),
            event(&json!({"error": {"message": "out of memory"}})),
            Act::Close,
        ]),
        _ => {
            acts.push(finish("stop"));
            acts.extend(stream_end(20, 0));
        }
    }
    acts
}

#[test]
fn what_is_dropped_cut_short_or_wrong_is_counted_as_that() {
    let server = Server::start(in_turn);
    let report = report(&server.url(), HUNDRED);
    assert_eq!((at(&report, "/scheduled"), at(&report, "/sent")), (100.0, 100.0));
    assert_eq!(at(&report, "/completed"), 10.0);
    let expected = json!({
        "closed": 10, "cut_short": 20, "http_500": 10, "http_429": 10, "malformed": 10,
        "wrong_model": 10, "server_error": 10, "empty": 10
    });
    assert_eq!(report["errors_by_class"], expected);
    for (class, words) in [
        ("http_500", "boom"),
        ("http_429", "too many requests"),
        ("wrong_model", "the answer is from \"another\", expected \"m\""),
        ("server_error", "out of memory"),
    ] {
        assert_eq!(report["error_examples"][class], words);
    }
    assert_eq!(at(&report, "/good"), 10.0);
    assert_eq!(at(&report, "/attainment"), 0.1);
    assert_eq!(server.asked().len(), 100, "nothing is sent twice");
}

/// Streams that end as they should but for what they say: given up as vLLM does at a SIGTERM, by an
/// error, for a reason that nobody knows, and what had not begun, with and without its count.
#[test]
fn an_answer_that_was_given_up_is_cut_short_whatever_its_form() {
    let server = Server::start(|asked| {
        let mut acts = vec![stream_head()];
        let (reason, n) = match asked.number % 6 {
            0 => ("abort", 2),
            1 => ("error", 2),
            2 => ("shutdown", 2),
            3 => ("length", 2),
            4 => ("", 0),
            _ => {
                acts.extend([piece("data: [DONE]\n\n"), Act::Write(b"0\r\n\r\n".to_vec())]);
                return acts;
            }
        };
        acts.extend((0..n).map(|_| token("m")));
        if !reason.is_empty() {
            acts.push(finish(reason));
        }
        acts.extend(stream_end(20, n));
        acts
    });
    let load = "--rate 60 --duration 1s --arrival constant --output-tokens 2";
    let streams = report(&server.url(), load);
    assert_eq!(at(&streams, "/completed"), 10.0);
    assert_eq!(streams["errors_by_class"], json!({"cut_short": 50}));
    assert_eq!((at(&streams, "/good"), at(&streams, "/elasticity/cut")), (10.0, 50.0));

    let plain_one = Server::start(|asked| {
        let reason = if asked.number % 2 == 0 { "abort" } else { "stop" };
        let answer = json!({
            "model": "m", "choices": [{"index": 0, "text": "a b", "finish_reason": reason}],
            "usage": {"prompt_tokens": 20, "completion_tokens": 2}
        });
        vec![plain("200 OK", "application/json", &answer.to_string())]
    });
    let whole = report(&plain_one.url(), &format!("{load} --plain --endpoint completions"));
    assert_eq!(whole["errors_by_class"], json!({"cut_short": 30}));
    assert_eq!(whole["error_examples"]["cut_short"], "finish_reason \"abort\"");
    assert_eq!(at(&whole, "/completed"), 30.0);
}

#[test]
fn where_every_answer_is_cut_nothing_was_measured() {
    let server = Server::start(|_| vec![stream_head(), token("m"), Act::Close]);
    let url = server.url();
    let args = ["run", "--url", &url, "--model", "m", "--rate", "50", "--duration", "1s"];
    let output = loadgen(&[&args[..], &["--require", "ttft.p99<1h"]].concat());
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(2), "{table}");
    assert!(table.contains("WARNING: no answer was whole: the server, or what is"), "{table}");
}

#[test]
fn answers_that_end_early_without_a_count_are_told() {
    let server = Server::start(|_| {
        vec![
            stream_head(),
            token("m"),
            piece("data: [DONE]\n\n"),
            Act::Write(b"0\r\n\r\n".to_vec()),
        ]
    });
    let short = report(&server.url(), "--rate 50 --duration 1s --output-tokens 20");
    let told = "in 0.05 pieces for each token that was asked for: they ended early, or";
    assert!(short["warnings"].to_string().contains(told), "{}", short["warnings"]);
}

#[test]
fn the_model_is_looked_at_in_all_of_an_answer_and_an_alias_has_its_remedy() {
    let swapping = Server::start(|asked| {
        let mut acts = vec![stream_head(), token("m"), token("other")];
        acts.extend(stream_end(asked.prompt_tokens(), 2));
        acts
    });
    let swapped = report(&swapping.url(), HUNDRED);
    assert_eq!(swapped["errors_by_class"], json!({"wrong_model": 100}));
    let dated = |asked: &Asked| {
        let mut acts = vec![stream_head(), token("m-2026-08-06")];
        acts.extend(stream_end(asked.prompt_tokens(), 1).into_iter().skip(1));
        acts
    };
    let alias = report(&Server::start(dated).url(), HUNDRED);
    assert!(alias["warnings"][0].as_str().unwrap().contains("--any-model takes it"), "{alias:#}");
    let taken = report(&Server::start(dated).url(), &format!("{HUNDRED} --any-model"));
    assert_eq!(at(&taken, "/completed"), 100.0);
}

/// Types are compared without case, and a line of a stream may end with a CR.
#[test]
fn a_stream_is_known_in_every_form_that_the_standards_allow() {
    let server = Server::start(|asked| {
        let bytes: Vec<u8> = stream(asked, 3, Duration::ZERO)
            .into_iter()
            .filter_map(|act| if let Act::Write(bytes) = act { Some(bytes) } else { None })
            .flatten()
            .collect();
        let text = String::from_utf8(bytes).unwrap();
        let text = text.replace("text/event-stream", "Text/Event-Stream").replace("\n\n", "\r\r");
        vec![Act::Write(text.into_bytes())]
    });
    let report = report(&server.url(), HUNDRED);
    assert_eq!(at(&report, "/completed"), 100.0, "{}", report["error_examples"]);
    assert_eq!(at(&report, "/itl/count"), 200.0);
}

#[test]
fn a_right_stream_is_timed_and_counted() {
    let pause = Duration::from_millis(30);
    let server = Server::start(move |asked| stream(asked, 5, pause));
    let report = report(&server.url(), HUNDRED);
    assert_eq!((at(&report, "/completed"), at(&report, "/errors")), (100.0, 0.0));
    // The role comes at once, the first token after the first pause, and four pauses follow.
    let (ttft, e2e) = (at(&report, "/ttft/p50"), at(&report, "/e2e/p50"));
    assert!(ttft >= 0.03, "{}", report["ttft"]);
    assert!(e2e >= 0.15, "{}", report["e2e"]);
    assert!(at(&report, "/ttft/mean") <= at(&report, "/e2e/mean") - 0.08, "{report:#}");
    // Between them the five pauses are shared out, four of them between tokens.
    for metric in ["itl", "tpot"] {
        let mean = at(&report, &format!("/{metric}/mean"));
        let expected = (at(&report, "/e2e/mean") - at(&report, "/ttft/mean")) / 4.0;
        assert!((0.02..expected * 1.01).contains(&mean), "{metric}: {mean} {expected}");
    }
    assert_eq!(at(&report, "/itl/count"), 400.0);
    // As many tokens as pieces: each piece was one.
    assert_eq!(report["token_itl"], report["itl"]);
    assert_eq!(at(&report, "/output_tokens"), 500.0);
    assert_eq!(at(&report, "/prompt_tokens_ratio"), 1.0);
    for metric in ["ttft", "tpot", "itl", "e2e", "schedule_lag"] {
        for part in ["p50", "p90", "p99", "max"] {
            assert!(report[metric][part].is_f64(), "{metric}.{part}");
        }
    }
}

/// Three pieces of 1, 3 and 2 tokens, 30 ms apart.
#[test]
fn the_time_between_tokens_is_known_only_where_pieces_say_how_many_they_hold() {
    for counts in [true, false] {
        let server = Server::start(move |asked| {
            let mut acts = vec![stream_head()];
            for counted in [1, 4, 6] {
                let mut text =
                    json!({"model": "m", "choices": [{"index": 0, "delta": {"content": " a"}}]});
                if counts {
                    text["usage"] = json!({"prompt_tokens": 9, "completion_tokens": counted});
                }
                acts.extend([event(&text), Act::Wait(Duration::from_millis(30))]);
            }
            acts.extend(stream_end(asked.prompt_tokens(), 6));
            acts
        });
        let report = report(&server.url(), &format!("{HUNDRED} --count-tokens"));
        let asked = &server.asked()[0].body["stream_options"];
        assert_eq!(asked["continuous_usage_stats"], true);
        assert_eq!((at(&report, "/completed"), at(&report, "/itl/count")), (100.0, 200.0));
        let unknown = report["unknown"].to_string();
        assert_eq!(unknown.contains("between tokens is unknown"), !counts, "{unknown}");
        if counts {
            assert_eq!(at(&report, "/token_itl/count"), 500.0);
            let (tokens, pieces) = (at(&report, "/token_itl/mean"), at(&report, "/itl/mean"));
            assert!((tokens * 5.0 / (pieces * 2.0) - 1.0).abs() < 0.01, "{tokens} {pieces}");
        } else {
            assert_eq!(at(&report, "/token_itl/count"), 0.0);
            assert!(report["token_itl"]["p50"].is_null());
        }
    }
}

#[test]
fn an_answer_in_one_piece_has_no_first_token() {
    let answer = json!({
        "model": "m", "choices": [{"index": 0, "text": "a b", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 3}
    });
    let server = Server::start(move |_| {
        let wait = Act::Wait(Duration::from_millis(20));
        vec![wait, plain("200 OK", "application/json", &answer.to_string())]
    });
    let flags = format!("{HUNDRED} --plain --endpoint completions --slo-e2e 5s");
    let report = report(&server.url(), &flags);
    assert_eq!((at(&report, "/completed"), at(&report, "/good")), (100.0, 100.0));
    assert_eq!(report["ttft"]["p50"], Value::Null);
    assert!(at(&report, "/e2e/p50") >= 0.02);
    let asked = server.asked();
    assert!(asked.iter().all(|asked| asked.path == "/v1/completions"));
    assert!(asked.iter().all(|asked| asked.body.get("stream").is_none()));
}

/// A gateway that does not stream: what its users wait for is the whole answer.
#[test]
fn a_stream_that_comes_in_one_piece_begins_with_its_end() {
    let answer = json!({
        "model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": "a b"}}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 3}
    });
    let server = Server::start(move |_| {
        let wait = Act::Wait(Duration::from_millis(60));
        vec![wait, plain("200 OK", "application/json", &answer.to_string())]
    });
    let report = report(&server.url(), &format!("{HUNDRED} --slo-ttft 50ms"));
    assert_eq!((at(&report, "/completed"), at(&report, "/in_one_piece")), (100.0, 100.0));
    assert_eq!(at(&report, "/good"), 0.0);
    assert!(at(&report, "/ttft/p50") >= 0.06, "{}", report["ttft"]);
    assert_eq!(at(&report, "/tpot/count"), 0.0, "one piece shows no time between its tokens");
    assert!(report["warnings"].to_string().contains("100 answers came in one piece"));
}

#[test]
fn answers_that_are_too_short_are_told() {
    let server = Server::start(|asked| stream(asked, 3, Duration::ZERO));
    let flags = "--rate 50 --duration 1s --arrival constant --output-tokens 30";
    let short = report(&server.url(), flags);
    assert_eq!(at(&short, "/output_tokens_ratio"), 0.1);
    let told = "answers have 0.10 tokens for each that was asked for";
    assert!(short["warnings"].to_string().contains(told), "{}", short["warnings"]);
    let natural = report(&server.url(), &format!("{flags} --natural-length"));
    assert!(!natural["warnings"].to_string().contains(told), "their length was the model's to say");
}

#[test]
fn a_body_shorter_than_it_says_is_cut_short() {
    let server = Server::start(|_| {
        let head =
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{";
        vec![Act::Write(head.to_vec()), Act::Close]
    });
    let report = report(&server.url(), &format!("{HUNDRED} --plain"));
    assert_eq!(report["errors_by_class"], json!({"cut_short": 100}));
}

#[test]
fn a_page_that_is_no_answer_is_malformed() {
    let server =
        Server::start(|_| vec![plain("200 OK", "text/html", "<html>please log in</html>")]);
    let report = report(&server.url(), HUNDRED);
    assert_eq!(report["errors_by_class"], json!({"malformed": 100}));
}

/// A head or a body that is no HTTP, a coding that nobody asked for, and a body that is no stream.
#[test]
fn what_is_no_http_or_no_stream_is_malformed_and_says_why() {
    let chunks = |line: &str| vec![stream_head(), Act::Write(line.as_bytes().to_vec())];
    let long = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(1 << 20));
    let coded = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\
                 content-length: 4\r\n\r\n....";
    let json = plain("200 OK", "text/event-stream", r#"{"detail":"no route"}"#);
    let write = |text: &str| vec![Act::Write(text.as_bytes().to_vec()), Act::Close];
    for (acts, cause) in [
        (write("SSH-2.0-OpenSSH_9.2\r\n\r\n"), "invalid HTTP version parsed"),
        (write(&long), "message head is too large"),
        (write(coded), "content-encoding: gzip was not asked for"),
        (chunks("zz\r\ngarbage\r\n"), "Invalid chunk size line: missing size digit"),
        (chunks("-5\r\ngarbage\r\n"), "Invalid chunk size line"),
        (vec![json], r#"no line of a stream: {"detail":"no route"}"#),
    ] {
        let acts = std::sync::Mutex::new(Some(acts));
        let server = Server::start(move |_| acts.lock().unwrap().take().unwrap_or_default());
        let report = report(&server.url(), "--users 1 --duration 100ms --timeout 5s");
        assert_eq!(report["errors_by_class"], json!({"malformed": 1}), "{cause}");
        let example = report["error_examples"]["malformed"].as_str().unwrap();
        assert!(example.contains(cause), "{example}");
        assert!(report["warnings"][0].as_str().unwrap().contains("over HTTP/1.1: check --url"));
    }
}

/// Such as an SSH server, before or after the request has left.
#[test]
fn a_server_that_speaks_first_is_no_http_server() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                // The client may be gone before all is said.
                drop(stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n"));
                drop(stream.read(&mut [0; 1 << 16]));
            });
        }
    });
    let report = report(&url, HUNDRED);
    assert_eq!(
        report["errors_by_class"],
        json!({"malformed": 100}),
        "{}",
        report["error_examples"]
    );
}

#[test]
fn a_redirect_says_where_to() {
    let to = "https://elsewhere/v1/chat/completions";
    let server = Server::start(move |_| {
        let head = "HTTP/1.1 307 Temporary Redirect\r\ncontent-length: 0\r\nlocation: ";
        vec![Act::Write(format!("{head}{to}\r\n\r\n").into_bytes())]
    });
    let report = report(&server.url(), HUNDRED);
    assert_eq!(report["errors_by_class"], json!({"http_307": 100}));
    assert_eq!(report["error_examples"]["http_307"], format!("location: {to}"));
    let told = report["warnings"][0].as_str().unwrap();
    assert!(told.contains("--url must be where its location leads"), "{told}");
}

#[test]
fn what_takes_too_long_is_a_timeout() {
    let server =
        Server::start(|_| vec![stream_head(), token("m"), Act::Wait(Duration::from_secs(30))]);
    let report = report(&server.url(), &format!("{HUNDRED} --timeout 2s"));
    assert_eq!(report["errors_by_class"], json!({"timeout": 100}));
    assert_eq!(report["error_examples"]["timeout"], "2 s, the answer had begun");
    // It had a first token, and that is known.
    assert_eq!(at(&report, "/ttft/count"), 100.0);
}

#[test]
fn a_stream_that_falls_silent_has_stalled_and_a_slow_one_has_not() {
    let silent =
        Server::start(|_| vec![stream_head(), token("m"), Act::Wait(Duration::from_secs(30))]);
    let stalled = report(&silent.url(), &format!("{HUNDRED} --stall 2s"));
    assert_eq!(stalled["errors_by_class"], json!({"stalled": 100}));
    assert_eq!(stalled["error_examples"]["stalled"], "2 s of silence, 1 pieces came");
    assert_eq!(at(&stalled, "/ttft/count"), 100.0);
    let slow = Server::start(|asked| stream(asked, 5, Duration::from_millis(20)));
    let whole = report(&slow.url(), &format!("{HUNDRED} --stall 20s"));
    assert_eq!(at(&whole, "/completed"), 100.0, "{}", whole["errors_by_class"]);
}

#[test]
fn a_server_that_is_not_there_is_counted_and_reported() {
    let report = report(&nobody().url(), HUNDRED);
    assert_eq!(report["errors_by_class"], json!({"connect": 100}));
    assert_eq!((at(&report, "/completed"), at(&report, "/attainment")), (0.0, 0.0));
    assert_eq!(report["ttft"]["p99"], Value::Null, "a failure is no time");
    let advice = "nothing was answered: check --url, and whether the server is up";
    assert_eq!(report["warnings"], json!([advice]));
}

#[test]
fn where_nothing_is_answered_no_figure_is_told_and_no_lower_rate_tried() {
    let nobody = nobody();
    let url = nobody.url();
    let rate = ["run", "--url", &url, "--model", "m", "--rate", "50", "--duration", "1s"];
    for flags in [&["--require"][..], &["--find-knee"]] {
        let output = loadgen(&[&rate[..], flags].concat());
        let table = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {table}");
        assert_eq!(table.matches("WARNING: ").count(), 1, "{table}");
        assert!(table.contains("WARNING: nothing was answered: check --url"), "{table}");
        for absent in ["silence", "p99", "bottleneck", "knee"] {
            assert!(!table.contains(absent), "{absent} in\n{table}");
        }
    }
}

#[test]
fn what_refuses_everything_is_said_with_what_to_look_at() {
    for (status, words) in [
        ("413 Content Too Large", "lower --input-tokens"),
        ("429 Too Many Requests", "the server takes no more"),
        ("503 Service Unavailable", "fails or refuses: see its log"),
        ("404 Not Found", "check --url and --model"),
    ] {
        let server = Server::start(move |_| vec![plain(status, "application/json", "{}")]);
        let report = report(&server.url(), "--rate 20 --duration 1s");
        assert!(report["warnings"].to_string().contains(words), "{status}: {}", report["warnings"]);
    }
}

#[test]
fn a_model_that_is_not_there_is_named() {
    let server = Server::start(|_| {
        let body =
            r#"{"error":{"message":"The model `m` does not exist.","type":"NotFoundError"}}"#;
        vec![plain("404 Not Found", "application/json", body)]
    });
    let report = report(&server.url(), HUNDRED);
    assert_eq!(report["errors_by_class"], json!({"wrong_model": 100}));
    assert_eq!(report["error_examples"]["wrong_model"], "The model `m` does not exist.");
    assert!(report["warnings"][0].as_str().unwrap().contains("check --model"));
}

#[test]
fn connections_that_the_server_closes_after_each_answer_cost_no_request() {
    let server = Server::start(|asked| {
        let mut acts = stream(asked, 2, Duration::ZERO);
        acts.push(Act::Close);
        acts
    });
    let report = report(&server.url(), HUNDRED);
    assert_eq!(at(&report, "/completed"), 100.0, "{}", report["errors_by_class"]);
}

#[test]
fn tls_is_trusted_only_with_its_authority() {
    let server = Server::with_tls(Some(tls("server")), |asked| stream(asked, 3, Duration::ZERO));
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/tls");
    let url = format!("https://localhost:{}", server.address.port());
    let trusted = report(&url, &format!("{HUNDRED} --tls-ca {root}/ca.pem"));
    assert_eq!(at(&trusted, "/completed"), 100.0, "{}", trusted["errors_by_class"]);
    let untrusted = report(&url, &format!("{HUNDRED} --tls-ca {root}/other-ca.pem"));
    assert_eq!(untrusted["errors_by_class"], json!({"tls": 100}));
    assert!(untrusted["warnings"][0].as_str().unwrap().contains("--tls-ca"));
    // A server that speaks no TLS.
    let plain = Server::start(|asked| stream(asked, 3, Duration::ZERO));
    let url = format!("https://localhost:{}", plain.address.port());
    let refused = report(&url, &format!("{HUNDRED} --tls-ca {root}/ca.pem --timeout 5s"));
    assert_eq!(at(&refused, "/completed"), 0.0);
    assert_eq!(at(&refused, "/errors"), 100.0);
}

/// One that signed itself, of which OpenSSL's `req -x509` says that it is an authority's, and one of
/// an authority that is not known.
#[test]
fn a_server_is_trusted_by_its_own_certificate_under_its_own_name() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/tls");
    let start = |name| Server::with_tls(Some(tls(name)), |asked| stream(asked, 3, Duration::ZERO));
    let (signed, own) = (start("server"), start("self-signed"));
    let asked = |host: &str, server: &Server, named: &str| {
        let url = format!("https://{host}:{}", server.address.port());
        report(&url, &format!("{HUNDRED} --tls-ca {root}/{named}.pem"))
    };
    for (server, name) in [(&own, "self-signed"), (&signed, "server")] {
        let trusted = asked("localhost", server, name);
        assert_eq!(at(&trusted, "/completed"), 100.0, "{name}: {}", trusted["error_examples"]);
    }
    let other_name = asked("127.0.0.1", &own, "self-signed");
    assert_eq!(other_name["errors_by_class"], json!({"tls": 100}));
    let other_server = asked("localhost", &signed, "self-signed");
    assert_eq!(other_server["errors_by_class"], json!({"tls": 100}));
}

#[test]
fn a_key_is_sent_and_shown_nowhere() {
    let server = Server::start(|asked| stream(asked, 1, Duration::ZERO));
    let key = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(key.path(), "sk-secret-7\n").unwrap();
    let url = server.url();
    let output = loadgen(&[
        "run",
        "--url",
        &url,
        "--model",
        "m",
        "--rate",
        "20",
        "--duration",
        "1",
        "--api-key-file",
        key.path().to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(0));
    let asked = server.asked();
    assert!(!asked.is_empty());
    for asked in asked {
        assert!(asked.head.iter().any(|line| line == "authorization: Bearer sk-secret-7"));
    }
    for text in [output.stdout, output.stderr] {
        assert!(!String::from_utf8_lossy(&text).contains("secret"));
    }
}

fn tls(name: &str) -> tokio_rustls::TlsAcceptor {
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/tls");
    let certificate = CertificateDer::from_pem_file(format!("{root}/{name}.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(format!("{root}/{name}.key")).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    std::sync::Arc::new(config).into()
}
