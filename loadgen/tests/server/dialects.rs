//! `--dialect`: each engine's page where that engine has it, from the running program.

use loadgen::exposition::Dialect;

use super::client::{Engine, Exchange, eventually};

#[test]
fn every_dialect_shows_its_page_at_its_path_and_none_elsewhere() {
    for dialect in Dialect::ALL {
        let engine = Engine::start(1, &["--dialect", dialect.name]);
        assert_eq!(engine.complete(5, false).reply().unwrap().status, 200, "{}", dialect.name);
        for path in ["/metrics", "/v1/metrics", "/prometheus/metrics"] {
            let reply = engine.get(path);
            let is_page = dialect.paths.contains(&path);
            let is_json = dialect.has_json && path == "/metrics";
            let status = if is_page || is_json { 200 } else { 404 };
            assert_eq!(reply.status, status, "{}: {path}", dialect.name);
            if is_page {
                let kind = format!("content-type: {}\r\n", dialect.content_type);
                assert!(reply.head.contains(&kind), "{}: {}", dialect.name, reply.head);
                assert!(reply.body.contains("# TYPE "), "{}: {}", dialect.name, reply.body);
            }
        }
        let is_vllm = dialect.engine() == "vllm";
        for path in ["/version", "/load", "/is_sleeping"] {
            let status = if is_vllm { 200 } else { 404 };
            assert_eq!(engine.get(path).status, status, "{}: {path}", dialect.name);
        }
        let sleep = engine.post("/sleep", "").status;
        assert_eq!(sleep, if is_vllm { 200 } else { 404 }, "{}", dialect.name);
        let version = format!(r#"{{"version":"{}"}}"#, dialect.version);
        assert!(!is_vllm || engine.get("/version").body == version, "{}", dialect.name);
    }
}

#[test]
fn every_dialect_is_healthy_where_its_engine_says_so_and_nowhere_else() {
    for dialect in Dialect::ALL {
        let engine = Engine::start(1, &["--dialect", dialect.name]);
        let own = dialect.manners.health.paths();
        let all = ["/health", "/health_generate", "/v1/health/ready", "/v2/health/ready"];
        for path in all.iter().chain(own) {
            let status = if own.contains(path) { 200 } else { 404 };
            assert_eq!(engine.get(path).status, status, "{}: {path}", dialect.name);
        }
    }
}

#[test]
fn a_health_check_that_generates_waits_for_an_engine_that_hangs() {
    for name in ["tgi", "sglang"] {
        let engine = Engine::start(1, &["--dialect", name]);
        assert_eq!(engine.get("/health").status, 200, "{name}, idle");
        engine.post("/_loadgen/pathology", "hang");
        let mut hung = Exchange::open(engine.address(), "GET", "/health", "", "");
        assert!(hung.is_silent(), "{name}");
        let plain = Engine::start(1, &["--pathology", "hang"]);
        assert_eq!(plain.get("/health").status, 200, "vLLM's says nothing of a hang");
    }
}

#[test]
fn llama_cpp_runs_no_more_than_its_slots_and_shows_them() {
    let engine = Engine::start(1, &["--dialect", "llamacpp", "--profile", "8b-a100"]);
    let slots = |engine: &Engine| {
        let slots: serde_json::Value = serde_json::from_str(&engine.get("/slots").body).unwrap();
        let slots = slots.as_array().unwrap().clone();
        (slots.len(), slots.iter().filter(|slot| slot["is_processing"] == true).count())
    };
    assert_eq!(slots(&engine), (4, 0));
    assert_eq!(engine.get("/health").body, r#"{"status":"ok"}"#);
    let _streams: Vec<_> = (0..6).map(|_| engine.complete(100_000, true)).collect();
    engine.wait_for("llamacpp:requests_deferred ", 2.0);
    assert_eq!(engine.metric("llamacpp:requests_processing "), Some(4.0));
    assert_eq!(slots(&engine), (4, 4));
    let two = Engine::start(1, &["--dialect", "llamacpp", "--parallel", "2"]);
    assert_eq!(slots(&two), (2, 0));
}

#[test]
fn llama_cpp_listens_while_it_loads_and_says_so() {
    let engine = Engine::start(1, &["--dialect", "llamacpp", "--cold-start", "4s"]);
    let loading = eventually("the listener", || {
        let mut exchange = std::net::TcpStream::connect(engine.address()).ok()?;
        std::io::Write::write_all(
            &mut exchange,
            b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        )
        .ok()?;
        let mut said = String::new();
        std::io::Read::read_to_string(&mut exchange, &mut said).ok().map(|_| said)
    });
    assert!(loading.starts_with("HTTP/1.1 503 "), "{loading}");
    assert!(
        loading.ends_with(
            r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#
        ),
        "{loading}"
    );
    let refused = engine.complete(5, false).reply().unwrap();
    assert_eq!(refused.status, 503, "everything");
    eventually("the weights", || Some(()).filter(|()| engine.get("/health").status == 200));
    assert_eq!(engine.complete(5, false).reply().unwrap().status, 200);
}

#[test]
fn a_scraper_that_prefers_open_metrics_gets_underscores_unless_it_takes_all_names() {
    let engine = Engine::start(1, &["--dialect", "sglang"]);
    let page = |accept: &str| {
        let header = format!("Accept: {accept}\r\n");
        Exchange::open(engine.address(), "GET", "/metrics", &header, "").reply().unwrap()
    };
    let prometheus_2 = page("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2");
    assert!(prometheus_2.head.contains("escaping=underscores"), "{}", prometheus_2.head);
    assert!(prometheus_2.body.contains("\nsglang_num_queue_reqs{"), "{}", prometheus_2.body);
    assert!(prometheus_2.body.contains("# TYPE sglang:num_queue_reqs gauge\n"));
    assert!(prometheus_2.body.ends_with("# EOF\n"));
    for accept in [
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5",
        "text/plain;version=0.0.4",
        "*/*",
    ] {
        assert!(page(accept).body.contains("\nsglang:num_queue_reqs{"), "{accept}");
    }
}

#[test]
fn sglang_counts_requests_when_they_come() {
    let engine = Engine::start(1, &["--dialect", "sglang"]);
    let _stream = engine.complete(2_000, true);
    let series = "sglang:http_requests_total{endpoint=\"/v1/completions\",method=\"POST\"} ";
    engine.wait_for(series, 1.0);
    assert_eq!(engine.metric("sglang:num_requests_total{"), Some(0.0), "none has ended");
    let throughput = || engine.metric("sglang:gen_throughput{").filter(|rate| *rate > 0.0);
    eventually("a token", throughput);
}

#[test]
fn a_page_is_empty_until_the_first_request_where_the_engine_begins_so() {
    let engine = Engine::start(1, &["--dialect", "tgi"]);
    let page = engine.get("/metrics");
    assert_eq!((page.status, page.body.as_str()), (200, ""));
    assert_eq!(engine.complete(5, false).reply().unwrap().status, 200);
    engine.wait_for("tgi_queue_size ", 0.0);
    engine.wait_for("tgi_request_success ", 1.0);
    engine.wait_for("tgi_request_generated_tokens_sum ", 5.0);
}

#[test]
fn trtllm_serves_json_beside_its_page() {
    let engine = Engine::start(1, &["--dialect", "trtllm"]);
    let idle = engine.get("/metrics");
    assert!(idle.head.contains("content-type: application/json\r\n"), "{}", idle.head);
    assert_eq!(idle.body, "[]");
    let stream = engine.complete(2_000, true);
    let busy =
        eventually("a step", || Some(engine.get("/metrics").body).filter(|body| body != "[]"));
    let steps: serde_json::Value = serde_json::from_str(&busy).unwrap();
    assert_eq!(steps[0]["numActiveRequests"], 1);
    drop(stream);
    // What one reader has had, the next one has not.
    eventually("the end", || Some(()).filter(|()| engine.get("/metrics").body == "[]"));
    assert_eq!(engine.complete(5, false).reply().unwrap().status, 200);
    assert_eq!(engine.get("/metrics").body, "[]", "idle");
    let _stream = engine.complete(2_000, true);
    engine.post("/_loadgen/pathology", "hang@100ms");
    eventually("the last step", || Some(()).filter(|()| engine.get("/metrics").body != "[]"));
    eventually("the hang", || Some(()).filter(|()| engine.get("/metrics").body == "[]"));
}

#[test]
fn a_dialect_that_cannot_tell_ranks_apart_refuses_them() {
    for dialect in Dialect::ALL {
        let args = ["--profile", "tiny-cpu", "--listen", "127.0.0.1:0", "--data-parallel", "2"];
        let args = [&args[..], &["--dialect", dialect.name]].concat();
        if dialect.tells_ranks_apart() {
            continue;
        }
        let (code, said) = Engine::fail(&args);
        assert_ne!(code, Some(0), "{}", dialect.name);
        assert!(said.contains("does not tell the engines of a server apart"), "{said}");
    }
}
