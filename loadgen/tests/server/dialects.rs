//! `--dialect`: each engine's page where that engine has it, from the running program.

use loadgen::exposition::Dialect;

use super::client::{Engine, eventually};

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
        let version = engine.get("/version").body;
        assert_eq!(version, format!(r#"{{"version":"{}"}}"#, dialect.version));
    }
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
