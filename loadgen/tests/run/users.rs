//! What users do besides waiting: they leave, and they try again.

use std::collections::HashSet;
use std::io::Write as _;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use super::server::{Act, Asked, Server, nobody, plain, stream, stream_head, token};
use super::{at, loadgen, report};

fn refusal(retry_after: &str) -> Act {
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\n\
         retry-after: {retry_after}\r\ncontent-length: 4\r\n\r\nbusy"
    );
    Act::Write(head.into_bytes())
}

#[test]
fn what_is_refused_is_sent_again_and_timed_from_its_intended_start() {
    let seen: Mutex<HashSet<String>> = Mutex::default();
    let server = Server::start(move |asked: &Asked| {
        if seen.lock().unwrap().insert(asked.body.to_string()) {
            vec![refusal("1")]
        } else {
            stream(asked, 2, Duration::ZERO)
        }
    });
    let load = "--rate 20 --duration 1s --arrival constant --retries 1";
    let report = report(&server.url(), load);
    assert_eq!((at(&report, "/sent"), at(&report, "/completed")), (20.0, 20.0));
    assert_eq!((at(&report, "/errors"), at(&report, "/retries")), (0.0, 20.0));
    assert_eq!(server.asked().len(), 40);
    assert!(at(&report, "/ttft/p50") >= 1.0, "{}", report["ttft"]);
    assert!(!report["unknown"].to_string().contains("sent twice"));
}

/// Refused or closed without an answer, a request waits for its next try: that is not the client's
/// lateness. Without a server for the first two seconds, and with one that closes on each first try.
#[test]
fn a_wait_between_two_tries_is_no_lag() {
    let late = |report: &Value| {
        let mean = |metric: &str| at(report, &format!("/{metric}/mean"));
        assert!(at(report, "/retries") >= 20.0, "{}", report["retries"]);
        assert!(mean("ttft") >= 0.3, "{}", report["ttft"]);
        assert!(mean("schedule_lag") < mean("ttft") / 2.0, "{}", report["schedule_lag"]);
    };
    let load = "--rate 20 --duration 3s --arrival constant --retries 8";
    let nobody = nobody();
    let url = nobody.url();
    let waking = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { tokio::time::sleep(Duration::from_secs(2)).await });
        nobody.serves(|asked| stream(asked, 2, Duration::ZERO))
    });
    let woken = report(&url, load);
    drop(waking.join().unwrap());
    assert_eq!((at(&woken, "/sent"), at(&woken, "/completed")), (60.0, 60.0));
    late(&woken);

    let seen: Mutex<HashSet<String>> = Mutex::default();
    let closing = Server::start(move |asked: &Asked| {
        if seen.lock().unwrap().insert(asked.body.to_string()) {
            vec![Act::Wait(Duration::from_secs(1)), Act::Close]
        } else {
            stream(asked, 2, Duration::ZERO)
        }
    });
    let closed = report(&closing.url(), load);
    assert_eq!((at(&closed, "/completed"), at(&closed, "/retries")), (60.0, 60.0));
    late(&closed);
}

#[test]
fn a_request_that_is_refused_to_the_end_is_one_failure() {
    let server = Server::start(|_| vec![refusal("0")]);
    let load = "--rate 20 --duration 1s --arrival constant --retries 2";
    let report = report(&server.url(), load);
    assert_eq!(report["errors_by_class"], json!({"http_503": 20}));
    assert_eq!((at(&report, "/sent"), at(&report, "/retries")), (20.0, 40.0));
    assert_eq!(server.asked().len(), 60);
}

#[test]
fn a_budget_bounds_what_is_sent_again() {
    let server = Server::start(|_| vec![refusal("0")]);
    let load = "--rate 100 --duration 1s --arrival constant --retries 5 --threads 1";
    let report = report(&server.url(), &format!("{load} --retry-budget 0.2"));
    assert_eq!((at(&report, "/sent"), at(&report, "/errors")), (100.0, 100.0));
    // One for each five that were sent by then, and the last one is refused after all were.
    assert_eq!(at(&report, "/retries"), 20.0);
    assert_eq!(server.asked().len(), 120);
}

#[test]
fn a_budget_is_for_what_does_not_count_too_and_nothing_is_lent() {
    let refusing = || Server::start(|_| vec![refusal("0")]);
    let flags = "--arrival constant --retries 5 --threads 1 --retry-budget 0.2";
    let server = refusing();
    let spans = "--rate 100 --duration 2s --warmup 500ms --cooldown 500ms";
    let counted = report(&server.url(), &format!("{spans} {flags}"));
    assert_eq!(at(&counted, "/sent"), 100.0);
    assert_eq!(server.asked().len(), 240);
    // Four requests are too few for one retry.
    let server = refusing();
    report(&server.url(), &format!("--rate 4 --duration 1s {flags}"));
    assert_eq!(server.asked().len(), 4);
}

#[test]
fn what_would_have_been_sent_again_after_the_end_was_not() {
    let server = Server::start(|_| vec![refusal("50")]);
    let load = "--rate 20 --duration 1s --arrival constant --retries 1 --grace 1s";
    let report = report(&server.url(), load);
    assert_eq!((at(&report, "/sent"), at(&report, "/unfinished")), (20.0, 20.0));
    assert_eq!(at(&report, "/retries"), 0.0);
    assert_eq!(server.asked().len(), 20);
}

#[test]
fn what_is_wrong_is_not_sent_again() {
    let server = Server::start(|_| vec![plain("400 Bad Request", "text/plain", "no")]);
    let load = "--rate 20 --duration 1s --arrival constant --retries 5";
    let report = report(&server.url(), load);
    assert_eq!(report["errors_by_class"], json!({"http_400": 20}));
    assert_eq!(server.asked().len(), 20);
}

#[test]
fn users_without_a_first_token_leave_and_those_with_one_stay() {
    let silent = Server::start(|_| vec![stream_head(), Act::Wait(Duration::from_secs(60))]);
    let load = "--rate 20 --duration 1s --arrival constant";
    let left = report(&silent.url(), &format!("{load} --patience 200ms"));
    assert_eq!(left["errors_by_class"], json!({"abandoned": 20}));
    assert!(at(&left, "/elapsed_s") < 30.0);
    // Answers that begin at once and take longer than a third of the users would have waited.
    let slow = Server::start(|asked| {
        let mut acts = vec![stream_head(), token("m"), Act::Wait(Duration::from_secs(10))];
        acts.extend(super::server::stream_end(asked.prompt_tokens(), 1));
        acts
    });
    let stayed = report(&slow.url(), &format!("{load} --patience 30s"));
    assert_eq!(at(&stayed, "/completed"), 20.0, "{}", stayed["errors_by_class"]);
}

#[test]
fn a_printed_schedule_is_a_trace_of_the_same_requests() {
    let print = |flags: &[&str]| {
        let url = ["run", "--url", "http://localhost:1", "--model", "m", "--print-schedule"];
        let output = loadgen(&[&url[..], flags].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), errors)
    };
    let rate = ["--rate", "40", "--duration", "10s", "--input-tokens", "300:0.8", "--seed", "4"];
    let (code, schedule, errors) = print(&rate);
    assert_eq!(code, Some(0), "{errors}");
    assert!((300..500).contains(&schedule.lines().count()), "{schedule}");
    let mut trace = tempfile::NamedTempFile::new().unwrap();
    trace.write_all(schedule.as_bytes()).unwrap();
    let trace = trace.path().to_str().unwrap();
    assert_eq!(print(&["--trace", trace, "--trace-format", "csv"]).1, schedule);

    let mut shared = tempfile::NamedTempFile::new().unwrap();
    let row = r#"{"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[1,2]}"#;
    writeln!(shared, "{row}").unwrap();
    let shared = shared.path().to_str().unwrap();
    let (code, printed, errors) = print(&["--trace", shared, "--trace-format", "mooncake"]);
    assert_eq!((code, printed.as_str()), (Some(2), ""));
    assert!(errors.contains("no place in a csv trace"), "{errors}");
}
