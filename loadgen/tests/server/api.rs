//! The OpenAI API and vLLM's own paths.

use serde_json::{Value, json};

use super::client::{Engine, Exchange, eventually};

const RUNNING: &str = "vllm:num_requests_running{";
const WAITING: &str = "vllm:num_requests_waiting{";

fn json_of(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// The events of a stream, the last of which must be the end.
fn events(body: &str) -> Vec<Value> {
    let events = body.strip_suffix("data: [DONE]\n\n").unwrap_or_else(|| panic!("{body}"));
    events
        .split_terminator("\n\n")
        .map(|event| json_of(event.strip_prefix("data: ").unwrap()))
        .collect()
}

#[test]
fn it_answers_on_the_paths_of_the_real_server() {
    let engine = Engine::start(1, &["--dialect", "vllm-0.9.1-v1"]);
    for (path, status, body) in [
        ("/health", 200, ""),
        ("/ping", 200, ""),
        ("/load", 200, r#"{"server_load":0}"#),
        ("/version", 200, r#"{"version":"0.9.1"}"#),
        ("/is_sleeping", 200, r#"{"is_sleeping":false}"#),
        ("/nothing", 404, r#"{"detail":"Not Found"}"#),
        ("/v1/completions", 405, r#"{"detail":"Method Not Allowed"}"#),
    ] {
        let reply = engine.get(path);
        assert_eq!((reply.status, reply.body.as_str()), (status, body), "{path}");
    }
    let models = json_of(&engine.get("/v1/models").body);
    assert_eq!(models["data"][0]["id"], "m");
    assert_eq!(models["data"][0]["max_model_len"], 2048);
    let page = engine.get("/metrics");
    assert!(page.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"));
    assert!(!page.head.contains("chunked"), "the page has a length: {}", page.head);
    let models = "http_requests_total{handler=\"/v1/models\",method=\"GET\",status=\"2xx\"}";
    engine.wait_for(models, 1.0);
    engine.wait_for("http_requests_total{handler=\"none\",method=\"GET\",status=\"4xx\"}", 1.0);
    assert_eq!(engine.metric("http_requests_total{handler=\"/health\""), None, "not counted");
}

#[test]
fn a_completion_has_the_tokens_that_were_asked_for() {
    let engine = Engine::start(1, &[]);
    let body = json!({"model": "m", "prompt": [1, 2, 3], "max_tokens": 20, "ignore_eos": true});
    let reply = engine.post("/v1/completions", &body.to_string());
    assert_eq!(reply.status, 200);
    let answer = json_of(&reply.body);
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["choices"][0]["text"].as_str().unwrap().len(), 80, "four bytes a token");
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
    assert_eq!(answer["usage"]["completion_tokens"], 20);
    assert!(reply.body.ends_with(
        "\"completion_tokens_details\":null},\"kv_transfer_params\":null,\
         \"ec_transfer_params\":null,\"metrics\":null}"
    ));
    assert_eq!(engine.metric("vllm:generation_tokens_total{"), Some(20.0));
    assert_eq!(engine.metric("vllm:prompt_tokens_total{"), Some(3.0));
    let length = "vllm:request_success_total{engine=\"0\",finished_reason=\"length\"";
    assert_eq!(engine.metric(length), Some(1.0));
}

#[test]
fn a_stream_has_an_event_for_each_token_and_then_the_usage() {
    let engine = Engine::start(1, &[]);
    let body = json!({
        "prompt": "12345678", "max_tokens": 12, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true},
    });
    let reply = engine.post("/v1/completions", &body.to_string());
    assert!(reply.head.contains("content-type: text/event-stream; charset=utf-8"));
    let events = events(&reply.body);
    assert_eq!(events.len(), 13);
    let (usage, tokens) = events.split_last().unwrap();
    assert_eq!(
        usage["usage"],
        json!({"prompt_tokens": 2, "total_tokens": 14, "completion_tokens": 12})
    );
    assert_eq!(usage["choices"], json!([]));
    for (index, event) in tokens.iter().enumerate() {
        let expected = if index == 11 { json!("length") } else { Value::Null };
        assert_eq!(event["choices"][0]["finish_reason"], expected, "event {index}");
        assert_eq!(event["choices"][0]["text"].as_str().unwrap().len(), 4);
    }
}

#[test]
fn with_continuous_usage_every_event_says_how_many_tokens_there_are() {
    let engine = Engine::start(1, &[]);
    let asked = |path: &str, prompt: (&str, Value), options: Value| {
        let mut body = json!({
            "max_tokens": 5, "ignore_eos": true, "stream": true, "stream_options": options,
        });
        body[prompt.0] = prompt.1;
        let counts = events(&engine.post(path, &body.to_string()).body);
        counts.iter().map(|event| event["usage"]["completion_tokens"].as_u64()).collect::<Vec<_>>()
    };
    let (completions, prompt) = ("/v1/completions", || ("prompt", json!("12345678")));
    let both = json!({"include_usage": true, "continuous_usage_stats": true});
    let counts = asked(completions, prompt(), both.clone());
    assert_eq!(counts, [1, 2, 3, 4, 5, 5].map(Some));
    let chat = ("messages", json!([{"role": "user", "content": "a"}]));
    let counts = asked("/v1/chat/completions", chat, both);
    assert_eq!(counts, [0, 1, 2, 3, 4, 5, 5].map(Some), "the role comes first");
    // Nothing without `include_usage`, as in vLLM.
    let alone = json!({"continuous_usage_stats": true});
    assert_eq!(asked(completions, prompt(), alone), [None; 5]);
}

#[test]
fn the_bytes_of_a_stream_are_those_of_the_real_server() {
    let engine = Engine::start(1, &[]);
    let body = engine.complete(2, true).reply().unwrap().body;
    let (first, last) = body.split_once("\n\n").unwrap();
    // As captured, but for a build's hash behind the version.
    assert!(
        first.ends_with(",\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}]}")
    );
    assert!(last.ends_with(
        ",\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}],\
         \"system_fingerprint\":\"vllm-0.32.0\"}\n\ndata: [DONE]\n\n"
    ));
}

#[test]
fn a_chat_begins_with_the_role() {
    let engine = Engine::start(1, &[]);
    let mut body = json!({
        "messages": [{"role": "user", "content": "hello"}],
        "max_completion_tokens": 3, "ignore_eos": true, "stream": true,
    });
    let events = events(&engine.post("/v1/chat/completions", &body.to_string()).body);
    let choices: Vec<&Value> = events.iter().map(|event| &event["choices"][0]).collect();
    assert_eq!(choices.len(), 4);
    assert_eq!(choices[0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(choices[1]["delta"], json!({"content": " one"}));
    assert_eq!(choices[3]["finish_reason"], "length");

    body["stream"] = json!(false);
    let answer = json_of(&engine.post("/v1/chat/completions", &body.to_string()).body);
    assert_eq!(answer["choices"][0]["message"]["content"], " one two six");
    assert_eq!(answer["usage"]["prompt_tokens"], 4, "<|user|>hello is 13 bytes");
}

#[test]
fn without_ignore_eos_the_model_ends_by_itself() {
    let engine = Engine::start(1, &["--seed", "7"]);
    let lengths: Vec<u64> = (0..4)
        .map(|_| {
            let body = json!({"prompt": [1], "max_tokens": 2_000, "min_tokens": 5}).to_string();
            let answer = json_of(&engine.post("/v1/completions", &body).body);
            assert_eq!(answer["choices"][0]["finish_reason"], "stop");
            answer["usage"]["completion_tokens"].as_u64().unwrap()
        })
        .collect();
    assert!(lengths.iter().all(|length| (5..2_000).contains(length)), "{lengths:?}");
    assert!(lengths.windows(2).any(|pair| pair[0] != pair[1]), "{lengths:?}");
}

#[test]
fn tokens_go_out_as_they_are_made() {
    let engine = Engine::start(1, &[]);
    let mut stream = engine.complete(1_000, true);
    stream.read_to("data: {");
    assert_eq!(engine.metric(RUNNING), Some(1.0), "it has barely begun");
    assert_eq!(engine.load(), r#"{"server_load":1}"#);
}

#[test]
fn a_client_that_goes_away_ends_its_request() {
    let engine = Engine::start(1, &[]);
    let streaming = engine.complete(2_000, true);
    let plain = engine.complete(2_000, false);
    engine.wait_for(RUNNING, 2.0);
    drop(streaming);
    engine.wait_for(RUNNING, 1.0);
    drop(plain);
    engine.wait_for(RUNNING, 0.0);
    eventually("no load", || Some(()).filter(|()| engine.load() == r#"{"server_load":0}"#));
    let aborted = "vllm:request_success_total{engine=\"0\",finished_reason=\"abort\"";
    assert_eq!(engine.metric(aborted), Some(0.0), "as on the real server");
    assert_eq!(engine.complete(5, false).reply().unwrap().status, 200, "and all is well");
}

#[test]
fn a_prompt_that_was_served_before_is_found_in_the_prefix_cache() {
    let engine = Engine::start(1, &[]);
    let ids: Vec<u32> = (0..300).collect();
    let body = json!({"prompt": ids, "max_tokens": 2, "ignore_eos": true}).to_string();
    engine.post("/v1/completions", &body);
    assert_eq!(engine.metric("vllm:prefix_cache_hits_total{"), Some(0.0));
    engine.post("/v1/completions", &body);
    assert_eq!(engine.metric("vllm:prefix_cache_hits_total{"), Some(256.0), "two blocks of 128");
}

#[test]
fn errors_have_the_form_of_the_real_server() {
    let engine = Engine::start(1, &[]);
    for (body, status, message) in [
        (r#"{"prompt":"a","model":"x"}"#, 404, "The model `x` does not exist."),
        (r#"{"prompt":"a","max_tokens":2048}"#, 400, "maximum context length is 2048 tokens"),
        (r#"{"prompt":"a""#, 400, "EOF while parsing"),
    ] {
        let reply = engine.post("/v1/completions", body);
        assert_eq!(reply.status, status, "{body}: {}", reply.body);
        let error = &json_of(&reply.body)["error"];
        assert_eq!(error["code"], status, "{body}");
        assert!(error["message"].as_str().unwrap().contains(message), "{body}: {error}");
    }
    engine.wait_for(
        "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"4xx\"}",
        3.0,
    );
}

#[test]
fn the_key_guards_the_paths_below_v1() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    std::fs::write(&file, "secret\n").unwrap();
    let engine = Engine::start(1, &["--api-key-file", file.to_str().unwrap()]);
    let ask = |headers: &str| {
        Exchange::open(engine.address(), "GET", "/v1/models", headers, "").reply().unwrap().status
    };
    assert_eq!(ask(""), 401);
    assert_eq!(ask("authorization: Bearer wrong\r\n"), 401);
    assert_eq!(ask("authorization: Bearer secret\r\n"), 200);
    assert_eq!(engine.get("/metrics").status, 200, "open, as on the real server");
}

#[test]
fn a_sleeping_engine_takes_requests_and_serves_them_awake() {
    let engine = Engine::start(1, &[]);
    assert_eq!(engine.post("/sleep?level=7", "").status, 400);
    assert_eq!(engine.post("/sleep?level=1", "").status, 200);
    assert_eq!(engine.get("/is_sleeping").body, r#"{"is_sleeping":true}"#);
    let state = |name: &str| {
        let series = format!(
            "vllm:engine_sleep_state{{engine=\"0\",model_name=\"m\",sleep_state=\"{name}\"}}"
        );
        engine.metric(&series)
    };
    assert_eq!((state("awake"), state("weights_offloaded")), (Some(0.0), Some(1.0)));
    let held = engine.complete(2, false);
    eventually("the load", || Some(()).filter(|()| engine.load() == r#"{"server_load":1}"#));
    assert_eq!(engine.post("/wake_up", "").status, 200);
    assert_eq!(engine.get("/is_sleeping").body, r#"{"is_sleeping":false}"#);
    assert_eq!(held.reply().unwrap().status, 200);
    assert_eq!((state("awake"), state("weights_offloaded")), (Some(1.0), Some(0.0)));
}

#[test]
fn replicas_are_servers_of_their_own() {
    let engine = Engine::start(3, &[]);
    assert_eq!(engine.complete(4, false).reply().unwrap().status, 200);
    let tokens: Vec<f64> = engine
        .addresses
        .iter()
        .map(|address| {
            let page = Exchange::open(*address, "GET", "/metrics", "", "").reply().unwrap().body;
            super::client::metric(&page, "vllm:generation_tokens_total{").unwrap()
        })
        .collect();
    assert_eq!(tokens, [4.0, 0.0, 0.0]);
}

#[test]
fn data_parallel_engines_share_a_page_and_the_load() {
    let engine = Engine::start(1, &["--data-parallel", "2"]);
    assert_eq!(engine.metric(RUNNING), None, "no sample before the first step");
    let streams: Vec<Exchange> = (0..4).map(|_| engine.complete(2_000, true)).collect();
    engine.wait_for("vllm:num_requests_running{engine=\"0\"", 2.0);
    engine.wait_for("vllm:num_requests_running{engine=\"1\"", 2.0);
    assert_eq!(engine.load(), r#"{"server_load":2}"#, "one API server's half");
    assert_eq!(engine.metric(WAITING), Some(0.0));
    drop(streams);
}
