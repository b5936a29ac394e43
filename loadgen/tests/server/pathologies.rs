//! Each fault, ordered at the start or while the server runs, and seen over HTTP.

use super::client::{Engine, Exchange, eventually, is_refused, metric};

const RUNNING: &str = "vllm:num_requests_running{";
const WAITING: &str = "vllm:num_requests_waiting{";
const TOKENS: &str = "vllm:generation_tokens_total{";
const ORDERS: &str = "/_loadgen/pathology";

const BUSY: &str = "The engine is currently busy and cannot accept new requests. Please try again \
    later or on a different instance.";
const DEAD: &str = "EngineCore encountered an issue. See stack trace (above) for the root cause.";

/// An error as the captured answers have it.
fn plain_error(message: &str, kind: &str, code: u16) -> String {
    format!(
        "{{\"error\":{{\"message\":\"{message}\",\"type\":\"{kind}\",\"param\":null,\
         \"code\":{code}}}}}"
    )
}

/// The same within a stream.
fn streamed_error(message: &str, kind: &str, code: u16) -> String {
    format!(
        "data: {{\"error\": {{\"message\": \"{message}\", \"type\": \"{kind}\", \"param\": null, \
         \"code\": {code}}}}}\n\ndata: [DONE]\n\n"
    )
}

fn call_off(engine: &Engine) {
    let reply = Exchange::open(engine.address(), "DELETE", ORDERS, "", "").reply().unwrap();
    assert_eq!(reply.status, 200);
}

#[test]
fn orders_are_listed_and_called_off() {
    let engine = Engine::start(1, &["--pathology", "hang@1h", "--pathology", "stats-off"]);
    let list = engine.get(ORDERS).body;
    assert!(list.starts_with("hang: in ") && list.ends_with("stats-off: in force\n"), "{list}");
    let reply = engine.post(ORDERS, "slow-scrape=1m+1h\nadmission-limit=3");
    assert!(reply.body.contains("admission-limit=3: in force"), "{}", reply.body);
    let reply = engine.post(ORDERS, "counter-reset");
    assert!(reply.body.contains("counter-reset: now\n"), "{}", reply.body);
    let reply = engine.post(ORDERS, "hagn");
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("did you mean `hang`?"), "{}", reply.body);
    call_off(&engine);
    assert_eq!(engine.get(ORDERS).body, "");
}

#[test]
fn a_hung_engine_looks_healthy_and_moves_nothing() {
    let engine = Engine::start(1, &[]);
    assert_eq!(engine.complete(5, false).reply().unwrap().status, 200);
    assert_eq!(engine.post(ORDERS, "hang").status, 200);
    let mut held: Vec<Exchange> = (0..3).map(|_| engine.complete(5, false)).collect();
    eventually("the load", || Some(()).filter(|()| engine.load() == r#"{"server_load":3}"#));
    assert!(held[0].is_silent());
    assert_eq!(engine.get("/health").status, 200);
    let gauges = [engine.metric(RUNNING), engine.metric(WAITING), engine.metric(TOKENS)];
    assert_eq!(gauges, [Some(0.0), Some(0.0), Some(5.0)], "as captured of a hung worker");
    call_off(&engine);
    for exchange in held {
        assert_eq!(exchange.reply().unwrap().status, 200);
    }
    assert_eq!(engine.metric(TOKENS), Some(20.0));
}

#[test]
fn stale_gauges_stay_while_counters_move() {
    let engine = Engine::start(1, &[]);
    let stream = engine.complete(2_000, true);
    engine.wait_for(RUNNING, 1.0);
    engine.post(ORDERS, "stale-gauges");
    drop(stream);
    eventually("no load", || Some(()).filter(|()| engine.load() == r#"{"server_load":0}"#));
    let before = engine.metric(TOKENS).unwrap();
    assert_eq!(engine.complete(5, false).reply().unwrap().status, 200);
    assert!(engine.metric(TOKENS).unwrap() >= before + 5.0);
    assert_eq!(engine.metric(RUNNING), Some(1.0));
    call_off(&engine);
    assert_eq!(engine.metric(RUNNING), Some(0.0));
}

#[test]
fn gauges_stick_after_an_abort_until_the_next_token() {
    let old = ["--dialect", "vllm-0.9.1-v1"];
    let new = ["--pathology", "stuck-after-abort"];
    for args in [&old, &new] {
        let engine = Engine::start(1, args);
        let stream = engine.complete(2_000, true);
        engine.wait_for(RUNNING, 1.0);
        drop(stream);
        eventually("no load", || Some(()).filter(|()| engine.load() == r#"{"server_load":0}"#));
        for _ in 0..50 {
            assert_eq!(engine.metric(RUNNING), Some(1.0), "{args:?}");
        }
        assert_eq!(engine.complete(5, false).reply().unwrap().status, 200);
        assert_eq!(engine.metric(RUNNING), Some(0.0), "{args:?}");
    }
}

#[test]
fn a_slow_scrape_takes_its_time_and_nothing_else_does() {
    let engine = Engine::start(1, &["--pathology", "slow-scrape=700ms"]);
    let mut scrape = Exchange::open(engine.address(), "GET", "/metrics", "", "");
    assert!(scrape.is_silent());
    assert_eq!(engine.get("/health").status, 200);
    assert_eq!(scrape.reply().unwrap().status, 200);
}

#[test]
fn a_counter_reset_cuts_connections_and_starts_from_zero() {
    let engine = Engine::start(1, &[]);
    assert_eq!(engine.complete(5, false).reply().unwrap().status, 200);
    let created = engine.metric("vllm:generation_tokens_created{").unwrap();
    let stream = engine.complete(2_000, true);
    engine.wait_for(RUNNING, 1.0);
    engine.post(ORDERS, "counter-reset");
    assert!(!stream.reply().unwrap().is_whole);
    assert_eq!(engine.metric(TOKENS), Some(0.0));
    assert!(engine.metric("vllm:generation_tokens_created{").unwrap() > created);
    assert_eq!(engine.complete(5, false).reply().unwrap().status, 200);
    assert_eq!(engine.metric(TOKENS), Some(5.0));
}

#[test]
fn an_oom_kill_fails_what_is_under_way_as_captured_and_comes_back() {
    let engine = Engine::start(1, &[]);
    let stream = engine.complete(2_000, true);
    let plain = engine.complete(2_000, false);
    engine.wait_for(RUNNING, 2.0);
    engine.post(ORDERS, "oom-kill=3s");
    let stream = stream.reply().unwrap();
    assert_eq!(stream.status, 200);
    assert!(stream.body.ends_with(&streamed_error(DEAD, "InternalServerError", 500)));
    let plain = plain.reply().unwrap();
    assert_eq!(plain.status, 500);
    assert_eq!(plain.body, plain_error(DEAD, "InternalServerError", 500));
    eventually("the listener to close", || Some(()).filter(|()| is_refused(engine.address())));
    eventually("the listener to open", || Some(()).filter(|()| !is_refused(engine.address())));
    assert_eq!(engine.metric(TOKENS), Some(0.0));
    assert_eq!(engine.complete(5, false).reply().unwrap().status, 200);
}

#[test]
fn with_stats_off_there_is_no_engine_series() {
    let engine = Engine::start(1, &["--pathology", "stats-off"]);
    let page = engine.get("/metrics").body;
    assert!(!page.contains("vllm:") && page.contains("process_start_time_seconds"));
}

#[test]
fn renamed_metrics_have_another_prefix() {
    let engine = Engine::start(1, &[]);
    engine.post(ORDERS, "renamed-metrics");
    let page = engine.get("/metrics").body;
    assert_eq!(metric(&page, "vllm_num_requests_running{"), Some(0.0));
    assert!(!page.contains("\nvllm:"));
    call_off(&engine);
    engine.post(ORDERS, "renamed-metrics=next:");
    assert_eq!(engine.metric("next:num_requests_running{"), Some(0.0));
}

#[test]
fn beyond_the_admission_limit_requests_are_turned_away_as_captured() {
    let engine = Engine::start(1, &["--pathology", "admission-limit=1"]);
    let stream = engine.complete(2_000, true);
    engine.wait_for(RUNNING, 1.0);
    let plain = engine.complete(5, false).reply().unwrap();
    assert_eq!(plain.status, 503);
    assert_eq!(plain.body, plain_error(BUSY, "Service Unavailable", 503));
    let streamed = engine.complete(5, true).reply().unwrap();
    assert_eq!(streamed.status, 200);
    assert_eq!(streamed.body, streamed_error(BUSY, "Service Unavailable", 503));
    let series = "vllm:admission_rejections_total{model_name=\"m\",reason=\"max_num_queued_reqs\"}";
    assert_eq!(engine.metric(series), Some(2.0));
    drop(stream);
    engine.wait_for(RUNNING, 0.0);
    assert_eq!(engine.complete(5, false).reply().unwrap().status, 200);
}

#[test]
fn a_fault_begins_and_ends_by_itself() {
    let engine = Engine::start(1, &["--pathology", "stats-off@3s+3s"]);
    let shows = || engine.get("/metrics").body.contains("vllm:");
    assert!(shows());
    eventually("the fault", || Some(()).filter(|()| !shows()));
    eventually("its end", || Some(()).filter(|()| shows()));
}
