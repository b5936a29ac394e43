//! The API over a wire: what each route answers, to whom, and within which bounds.

use std::io::Write as _;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::fixtures::{
    Answered, FAR, NEAR, api, ask, decision, exchange, place, publish, registry, replicas, tracker,
    wanting, workload,
};
use super::serve::connection;
use super::{Access, MAX_CONNECTIONS, WakeState, router, serve};
use crate::clock::Clock;
use crate::decision::{Answer, Phase, Reason, Rule, Unavailable};
use crate::inventory::{Counted, Member, WorkloadKey};

const LIST: &str = "GET /api/v1/workloads";
const SNAPSHOT: &str = "GET /api/v1/workloads/prod/llm";
const WAKE: &str = "POST /api/v1/wake/prod/llm";

#[tokio::test]
async fn the_list_shows_each_workload_with_its_numbers_and_reasons() {
    let registry = registry([workload("prod", "llm")]);
    let mut wanted = wanting(5);
    wanted.binding = Rule::Queue;
    wanted.inputs.waiting = Some(12.0);
    wanted.inputs.ready = 3;
    let n_said = wanted.votes.iter().filter(|vote| vote.reason != Reason::Silent).count();
    publish(&tracker(&registry, "prod", "llm"), Clock::start(), 7, wanted);
    let router = router(api(&registry, Access::default()));

    let answer = ask(&router, NEAR, LIST, "").await;

    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: application/json"), "{}", answer.head);
    let page = answer.json();
    assert_eq!(page["workloads"].as_array().unwrap().len(), 1);
    assert_eq!(page.get("next"), None);
    let shown = &page["workloads"][0];
    for (field, expected) in [
        ("namespace", json!("prod")),
        ("name", json!("llm")),
        ("want", json!(5)),
        ("active", json!(true)),
        ("spec", json!(3)),
        ("ready", json!(3)),
        ("min", json!(1)),
        ("max", json!(8)),
        ("binding", json!("queue")),
        ("mode", json!("act")),
        ("version", json!(7)),
        ("waiting", json!(12.0)),
        ("answer", json!({"kind": "value", "want": 5, "active": true})),
    ] {
        assert_eq!(shown[field], expected, "{field}");
    }
    assert_eq!(shown["reasons"].as_array().unwrap().len(), n_said);
    assert!(n_said > 0);
    let summary = shown["summary"].as_str().unwrap();
    assert!(
        summary.starts_with("5 replicas = room to clear the queue; 12 waiting over 3 replicas"),
        "{summary}"
    );
}

#[tokio::test]
async fn pages_follow_each_other_without_gap_or_repetition() {
    let names: Vec<String> = (0..7).map(|index| format!("llm-{index}")).collect();
    let registry = registry(names.iter().map(|name| workload("prod", name)));
    let router = router(api(&registry, Access::default()));
    let mut seen = Vec::new();
    let mut after = String::new();
    for n_expected in [3, 3, 1] {
        let page = ask(&router, NEAR, &format!("{LIST}?limit=3{after}"), "").await.json();
        let workloads = page["workloads"].as_array().unwrap();
        assert_eq!(workloads.len(), n_expected);
        seen.extend(workloads.iter().map(|shown| shown["name"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => after.clear(),
        }
    }
    assert_eq!(after, "");
    assert_eq!(seen, names);
}

#[tokio::test]
async fn the_list_can_be_kept_to_a_namespace() {
    let registry = registry([workload("dev", "llm"), workload("prod", "llm")]);
    let router = router(api(&registry, Access::default()));
    let page = ask(&router, NEAR, &format!("{LIST}?namespace=dev"), "").await.json();
    assert_eq!(page["workloads"].as_array().unwrap().len(), 1);
    assert_eq!(page["workloads"][0]["namespace"], "dev");
    let none = ask(&router, NEAR, &format!("{LIST}?namespace=de"), "").await.json();
    assert_eq!(none, json!({"workloads": []}));
}

#[tokio::test]
async fn whoever_misspells_a_workload_is_told_the_first_ten() {
    let message = async |names: &[&str]| {
        let registry = registry(names.iter().map(|name| workload("prod", name)));
        let router = router(api(&registry, Access::default()));
        let answer = ask(&router, NEAR, "GET /api/v1/workloads/prod/lm", "").await.json();
        answer["error"]["message"].as_str().unwrap().to_owned()
    };
    let is = "workload prod/lm is not known;";
    assert_eq!(message(&[]).await, format!("{is} none is known yet"));
    assert_eq!(message(&["b", "a"]).await, format!("{is} known are prod/a, prod/b"));
    let many: Vec<String> = (10..22).map(|number| format!("llm-{number}")).collect();
    let many = message(&many.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert!(many.contains("prod/llm-18, prod/llm-19 and 2 more"), "{many}");
}

#[tokio::test]
async fn what_is_asked_wrongly_is_answered_with_a_remedy() {
    let registry = registry([workload("prod", "llm")]);
    let router = router(api(&registry, Access::default()));
    for (line, status, code, in_message) in [
        ("GET /", 404, "no_such_path", "/"),
        ("GET /api/v1/workload", 404, "no_such_path", "/api/v1/workload"),
        ("POST /api/v1/workloads", 405, "method_not_allowed", "POST"),
        ("GET /api/v1/wake/prod/llm", 405, "method_not_allowed", "GET"),
        ("GET /api/v1/workloads/prod/none", 404, "unknown_workload", "prod/none"),
        ("POST /api/v1/wake/none/llm", 404, "unknown_workload", "none/llm"),
        ("GET /api/v1/workloads?limit=0", 400, "bad_query", "`limit` is \"0\""),
        ("GET /api/v1/workloads?limit=5001", 400, "bad_query", "1 to 5000"),
        ("GET /api/v1/workloads?limit=-1", 400, "bad_query", "\"-1\""),
        ("GET /api/v1/workloads?limit=NaN", 400, "bad_query", "\"NaN\""),
        ("GET /api/v1/workloads?limit=inf", 400, "bad_query", "\"inf\""),
        ("GET /api/v1/workloads?limit=1e308", 400, "bad_query", "\"1e308\""),
        ("GET /api/v1/workloads?limit=", 400, "bad_query", "`limit` is \"\""),
        ("GET /api/v1/workloads?after=%00%22%7B%7D%0A/a/0", 200, "", ""),
        ("GET /api/v1/workloads/%7Ba=%22b%22,%7D/%00", 404, "unknown_workload", "{a="),
        ("GET /api/v1/workloads?limit=1&limit=2", 400, "bad_query", "each parameter once"),
        ("GET /api/v1/workloads/%ff/llm", 404, "no_such_path", "not UTF-8"),
        ("POST /api/v1/wake/prod/%c3%28", 404, "no_such_path", "not UTF-8"),
        ("GET /api/v1/workloads?after=x", 400, "bad_query", "`after` is \"x\""),
        ("GET /api/v1/workloads?after=a/b/xyz", 400, "bad_query", "a/b/xyz"),
        ("GET /api/v1/workloads/prod/llm?trigger=1", 400, "bad_query", "`trigger` is \"1\""),
    ] {
        let answer = ask(&router, NEAR, line, "").await;
        assert_eq!(answer.status, status, "{line}: {}", answer.body);
        if status == 200 {
            continue;
        }
        let error = &answer.json()["error"];
        assert_eq!(error["code"], code, "{line}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(in_message), "{line}: {message}");
        assert!(error["remedy"].as_str().unwrap().len() > 10, "{line}");
    }
}

#[tokio::test]
async fn a_trigger_that_is_refused_is_told_with_every_fault() {
    let triggered = |name: &str, triggers: &[&[(&str, &str)]]| {
        let mut workload = workload("prod", name);
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        workload.triggers = triggers.iter().map(|it| it.iter().map(owned).collect()).collect();
        workload
    };
    let wrong: &[(&str, &str)] = &[
        ("engine", "vlm"),
        ("mode", "on"),
        ("profile", "x"),
        ("sloTtft", "soon"),
        ("warmSchedules", "x"),
    ];
    let registry = registry([
        triggered("wrong", &[wrong]),
        triggered("env", &[&[("sloTtftFromEnv", "VARIABLE")]]),
        triggered("half", &[&[], wrong]),
    ]);
    let router = router(api(&registry, Access::default()));
    for method in ["GET /api/v1/workloads", "POST /api/v1/wake"] {
        let answer = ask(&router, NEAR, &format!("{method}/prod/wrong"), "").await;
        assert_eq!(answer.status, 409, "{}", answer.body);
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "trigger_refused");
        let message = error["message"].as_str().unwrap();
        for part in ["engine=\"vlm\"", "mode=\"on\"", "profile=\"x\"", "sloTtft=\"soon\"", "10ms"] {
            assert!(message.contains(part), "{part} is not in {message}");
        }
        assert!(message.contains("nearest is warmSchedule"), "{message}");
        let answer = ask(&router, NEAR, &format!("{method}/prod/env"), "").await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (409, &json!("not_asked_yet"))
        );
    }
    // Beside one that is right it is in the snapshot of that one.
    let shown = ask(&router, NEAR, "GET /api/v1/workloads/prod/half", "").await.json();
    let refused = shown["refused"].as_array().unwrap();
    assert_eq!(refused.len(), 1);
    assert!(refused[0].as_str().unwrap().contains("profile=\"x\""), "{refused:?}");

    // In the list each has an entry on the page where it would stand, and there alone.
    let list = async |query: &str| ask(&router, NEAR, &format!("{LIST}{query}"), "").await.json();
    let named = |page: &serde_json::Value| -> Vec<String> {
        let refused = page["refused"].as_array().map_or(&[][..], Vec::as_slice);
        refused.iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    };
    let all = list("").await;
    assert_eq!(named(&all), ["half", "wrong"], "env waits for a value, and is not refused");
    let faults = all["refused"][1]["faults"].as_array().unwrap();
    for part in ["engine=\"vlm\"", "mode=\"on\"", "sloTtft=\"soon\"", "nearest is warmSchedule"] {
        assert!(faults[0].as_str().unwrap().contains(part), "{part} is not in {faults:?}");
    }
    assert_eq!(named(&list("?namespace=dev").await), [""; 0]);
    let resolved = [("sloTtftFromEnv".to_owned(), "2s".to_owned())].into();
    let (caller, rpc) = (crate::registry::Caller::Poll, crate::registry::Rpc::GetMetrics);
    registry.lookup("prod", "env", &resolved, caller, rpc).unwrap();
    let first = list("?limit=1").await;
    assert_eq!((named(&first), &first["workloads"][0]["name"]), (vec![], &json!("env")));
    let rest = list(&format!("?limit=1&after={}", first["next"].as_str().unwrap())).await;
    assert_eq!((named(&rest), rest["next"].is_null()), (named(&all), true));
}

#[tokio::test]
async fn the_snapshot_holds_decision_policy_members_and_what_the_hpa_does() {
    let registry = registry([workload("prod", "llm")]);
    let tracker = tracker(&registry, "prod", "llm");
    let mut wanted = wanting(4);
    wanted.next.up_at_waiting = Some(20.0);
    publish(&tracker, Clock::start(), 1, wanted.clone());
    let metadata = std::collections::HashMap::new();
    let (caller, rpc) = (crate::registry::Caller::Hpa, crate::registry::Rpc::GetMetrics);
    registry.lookup("prod", "llm", &metadata, caller, rpc).unwrap();
    let router = router(api(&registry, Access::default()));

    let shown = ask(&router, NEAR, SNAPSHOT, "").await.json();

    assert_eq!(shown["want"], 4);
    assert_eq!(shown["decision"], serde_json::to_value(&wanted).unwrap());
    assert_eq!(shown["policy"]["slo_ttft_ms"], 2_000);
    assert_eq!(shown["hpa"]["default_tolerance"], json!({"effect": "goes", "to": 4}));
    assert_eq!(shown["asked"][0]["rpc"], "GetMetrics");
    assert_eq!(shown["asked"][0]["caller"], "hpa");
    assert_eq!(shown["asked"].as_array().unwrap().len(), 1);
    assert_eq!(shown["next"][0], "up: one more replica at 20 waiting");
    assert_eq!(shown["members"][2]["phase"], "starting");
    assert!(shown["votes"].as_array().unwrap().iter().all(|vote| vote["text"] != ""));
    let members = shown["members"].as_array().unwrap();
    let readings: Vec<_> = members
        .iter()
        .map(|member| (&member["reading"], &member["age_ms"], &member["why"], &member["waiting"]))
        .collect();
    assert_eq!(
        readings,
        [
            (&json!("fresh"), &json!(1_200), &json!(null), &json!(12.0)),
            (&json!("stale"), &json!(61_000), &json!("timeout"), &json!(0.0)),
            (&json!("missing"), &json!(null), &json!("refused"), &json!(null)),
        ]
    );
}

#[tokio::test]
async fn a_workload_before_its_first_decision_shows_what_is_known() {
    let by_answers = workload("prod", "llm");
    let registry = registry([crate::inventory::Workload {
        counted: Counted::ByAnswers,
        replicas: replicas(Some(2), 0),
        members: vec![Member {
            id: "http://127.0.0.1:8000/metrics".into(),
            phase: Phase::Ready,
            created_at: None,
            ready_at: None,
            endpoint: None,
            node: None,
        }],
        ..by_answers
    }]);
    let router = router(api(&registry, Access::default()));
    let shown = ask(&router, NEAR, SNAPSHOT, "").await.json();
    assert_eq!(shown["want"], 2);
    assert_eq!(shown["spec"], 2);
    assert_eq!(shown["ready"], json!(null));
    assert_eq!(
        shown["members"][0],
        json!({
            "id": "http://127.0.0.1:8000/metrics", "phase": null, "reading": "missing",
            "age_ms": null, "why": "not_yet_read",
            "waiting": null, "running": null, "kv_usage": null, "asleep": null,
        })
    );
    assert_eq!(shown["health"], "not_yet_observed");
    assert_eq!(shown["binding"], json!(null));
    assert_eq!(shown["summary"], "not observed yet: 2 replicas = the present count");
}

#[tokio::test]
async fn an_error_answer_is_shown_as_one_and_never_as_a_number() {
    let registry = registry([workload("prod", "llm")]);
    let mut lost = decision();
    lost.answer = Answer::Unavailable { why: Unavailable::SourceLost };
    publish(&tracker(&registry, "prod", "llm"), Clock::start(), 1, lost);
    let router = router(api(&registry, Access::default()));
    let shown = ask(&router, NEAR, SNAPSHOT, "").await.json();
    assert_eq!(shown["active"], json!(null));
    assert_eq!(shown["hpa"], json!(null));
    assert!(shown["summary"].as_str().unwrap().contains("fallback shall count"));
}

#[tokio::test]
async fn reads_are_open_elsewhere_until_a_token_is_configured() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"0123456789abcdef").unwrap();
    let registry = registry([workload("prod", "llm")]);
    let open = router(api(&registry, Access::default()));
    let closed = router(api(&registry, Access::new(Some(file.path().to_owned()))));
    let token = "authorization: Bearer 0123456789abcdef\r\n";
    for line in [LIST, SNAPSHOT] {
        assert_eq!(ask(&open, FAR, line, "").await.status, 200, "{line}");
        let refused = ask(&closed, FAR, line, "").await;
        assert_eq!(refused.status, 401, "{line}");
        assert!(refused.head.contains("www-authenticate: bearer"), "{}", refused.head);
        assert!(!refused.body.contains("0123456789abcdef"));
        assert_eq!(ask(&closed, FAR, line, token).await.status, 200, "{line}");
        assert_eq!(ask(&closed, NEAR, line, "").await.status, 200, "{line}");
    }
    for line in ["GET /metrics", "GET /livez"] {
        assert_eq!(ask(&closed, FAR, line, "").await.status, 200, "{line}");
    }
}

#[tokio::test]
async fn a_wake_is_accepted_from_here_and_refused_from_elsewhere() {
    let registry = registry([workload("prod", "llm")]);
    let api = api(&registry, Access::default());
    let wakes = api.wakes.clone();
    let router = router(api);
    let key = WorkloadKey::new("prod", "llm");

    let refused = ask(&router, FAR, WAKE, "").await;
    assert_eq!((refused.status, wakes.last(&key)), (403, None));
    assert_eq!(refused.json()["error"]["code"], "writes_are_local");
    let foreign = ask(&router, NEAR, WAKE, "origin: https://evil.example\r\n").await;
    assert_eq!((foreign.status, wakes.last(&key)), (403, None));

    let accepted = ask(&router, NEAR, WAKE, "").await;
    assert_eq!(accepted.status, 202);
    assert!(wakes.last(&key).is_some());
}

#[tokio::test]
async fn a_wake_among_replicas_is_answered_by_the_leader_or_refused_for_now() {
    let registry = registry([workload("prod", "llm")]);
    let (writes, mut queue) = crate::lead::Writes::channel(1);
    let api = super::Api { writes: Some(writes), ..api(&registry, Access::default()) };
    let wakes = api.wakes.clone();
    let router = router(api);
    let leader = async {
        let first = queue.recv().await.unwrap();
        let wake = json!({"namespace": "prod", "name": "llm", "state": "waking", "elapsed_ms": 5,
            "expected_ms": 4_000});
        first.answer.send(wake.to_string().into_bytes()).unwrap();
        // There is none any more.
        drop(queue.recv().await.unwrap());
    };
    let asker = async {
        let taken = ask(&router, NEAR, WAKE, "").await;
        assert_eq!((taken.status, &taken.json()["elapsed_ms"]), (202, &json!(5)));
        assert!(taken.head.contains("retry-after: 4"), "{}", taken.head);
        let refused = ask(&router, NEAR, WAKE, "").await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("no_leader")));
        assert!(refused.head.contains("retry-after: 2"), "{}", refused.head);
        let unknown = ask(&router, NEAR, "POST /api/v1/wake/prod/other", "").await;
        assert_eq!(unknown.status, 404);
    };
    tokio::join!(leader, asker);
    assert_eq!(wakes.last(&WorkloadKey::new("prod", "llm")), None, "the leader keeps it, not this");
}

#[tokio::test(start_paused = true)]
async fn a_wake_tells_state_elapsed_and_expected_time() {
    let registry = registry([crate::inventory::Workload {
        min: 0,
        replicas: replicas(Some(0), 0),
        ..workload("prod", "llm")
    }]);
    let tracker = tracker(&registry, "prod", "llm");
    let mut asleep = wanting(0);
    asleep.inputs.spec = Some(0);
    asleep.inputs.ready = 0;
    asleep.inputs.cold_start_ms = 90_000;
    publish(&tracker, Clock::start(), 1, asleep.clone());
    let router = router(api(&registry, Access::default()));

    let first = ask(&router, NEAR, WAKE, "").await;
    assert_eq!(first.json()["state"], json!(WakeState::Waking));
    assert_eq!(first.json()["elapsed_ms"], 0);
    assert_eq!(first.json()["expected_ms"], 90_000);
    assert!(first.head.contains("retry-after: 90"), "{}", first.head);

    tokio::time::advance(Duration::from_secs(30)).await;
    asleep.inputs.spec = Some(1);
    asleep.next.wake_eta_ms = Some(55_500);
    publish(&tracker, Clock::start(), 2, asleep.clone());
    let later = ask(&router, NEAR, WAKE, "").await;
    assert_eq!(later.json()["state"], "starting");
    assert_eq!(later.json()["elapsed_ms"], 30_000);
    assert_eq!(later.json()["expected_ms"], 55_500);
    assert!(later.head.contains("retry-after: 56"), "{}", later.head);

    asleep.inputs.ready = 1;
    publish(&tracker, Clock::start(), 3, asleep);
    let ready = ask(&router, NEAR, WAKE, "").await;
    assert_eq!((ready.status, &ready.json()["state"]), (202, &json!("ready")));
    assert!(!ready.head.contains("retry-after"), "{}", ready.head);
}

#[tokio::test]
async fn a_body_that_nobody_wants_is_not_waited_for() {
    let registry = registry([workload("prod", "llm")]);
    let router = router(api(&registry, Access::default()));
    let answer = ask(&router, NEAR, WAKE, "content-length: 52428800\r\n").await;
    assert_eq!(answer.status, 202);
}

#[tokio::test]
async fn keda_f2_readiness_follows_the_handle_and_liveness_does_not() {
    let api = api(&registry([]), Access::default());
    let health = api.health.clone();
    let router = router(api);
    assert_eq!(ask(&router, FAR, "GET /livez", "").await.status, 200);
    assert_eq!(ask(&router, FAR, "GET /readyz", "").await.status, 503);
    health.set_ready(true);
    assert_eq!(ask(&router, FAR, "GET /readyz", "").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_hangs_fails_liveness_by_name() {
    let api = api(&registry([]), Access::default());
    let pulse = api.health.pulse("tick");
    let router = router(api);
    tokio::time::advance(Duration::from_millis(crate::health::HUNG_AFTER_MS + 1)).await;
    let hung = ask(&router, FAR, "GET /livez", "").await;
    assert_eq!((hung.status, hung.body.as_str()), (503, "tick loop hangs for 45001 ms\n"));
    pulse.beat();
    assert_eq!(ask(&router, FAR, "GET /livez", "").await.status, 200);
}

#[tokio::test]
async fn metrics_come_in_the_format_that_is_asked_for() {
    let router = router(api(&registry([workload("prod", "llm")]), Access::default()));
    let plain = ask(&router, FAR, "GET /metrics", "").await;
    assert!(plain.head.contains("content-type: text/plain; version=0.0.4"), "{}", plain.head);
    let accept = "accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3\r\n";
    let open = ask(&router, FAR, "GET /metrics", accept).await;
    assert!(open.head.contains("content-type: application/openmetrics-text"), "{}", open.head);
    assert!(open.body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn a_body_of_any_kind_is_neither_read_nor_unpacked() {
    let registry = registry([workload("prod", "llm")]);
    let router = router(api(&registry, Access::default()));
    for headers in [
        "content-length: 3\r\ncontent-encoding: gzip\r\n",
        "content-length: 3\r\ncontent-type: application/x-www-form-urlencoded\r\n",
        "content-length: 0\r\n",
        "transfer-encoding: chunked\r\n",
    ] {
        let answer = ask(&router, NEAR, WAKE, headers).await;
        assert_eq!(answer.status, 202, "{headers}: {}", answer.body);
    }
    // A body without an end, sent for as long as somebody takes it.
    let (mut near, far) = tokio::io::duplex(64 * 1024);
    let serving =
        connection(far, NEAR.parse().unwrap(), place(), router.clone(), CancellationToken::new());
    let serving = tokio::spawn(serving);
    let head = format!("{WAKE} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n");
    near.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
    let mut n_taken = 0;
    let endless = async {
        while near.write_all(chunk.as_bytes()).await.is_ok() {
            n_taken += 1
        }
    };
    timeout(Duration::from_secs(30), endless).await.expect("the server ends it");
    assert!(n_taken < 1_000, "{n_taken} chunks of 4 KiB were taken");
    timeout(Duration::from_secs(30), serving).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_head_that_never_ends_is_cut_off() {
    let router = router(api(&registry([]), Access::default()));
    let started = tokio::time::Instant::now();
    let raw = exchange(&router, FAR, b"GET /livez HTTP/1.1\r\nx-slow: ").await;
    assert!(!raw.starts_with("HTTP/1.1 200"), "{raw}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_kept_connection_without_requests_is_ended() {
    let router = router(api(&registry([]), Access::default()));
    let started = tokio::time::Instant::now();
    let raw = exchange(&router, FAR, b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(raw.starts_with("HTTP/1.1 200"), "{raw}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[tokio::test]
async fn garbage_is_refused_and_harms_nobody() {
    let router = router(api(&registry([]), Access::default()));
    let huge = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1_000_000));
    let many: String = (0..200).map(|index| format!("x-{index}: y\r\n")).collect();
    let many = format!("GET /livez HTTP/1.1\r\nhost: x\r\n{many}\r\n");
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET  HTTP/9.9\r\n\r\n",
        &[0_u8; 300],
        many.as_bytes(),
    ] {
        let raw = exchange(&router, FAR, bytes).await;
        assert!(!raw.starts_with("HTTP/1.1 200"), "{raw}");
    }
    // The peer is cut off while it still sends, so the write may fail: only the server counts.
    let (mut near, far) = tokio::io::duplex(1024);
    let serving =
        connection(far, FAR.parse().unwrap(), place(), router.clone(), CancellationToken::new());
    let serving = tokio::spawn(serving);
    near.write_all(huge.as_bytes()).await.ok();
    drop(near);
    timeout(Duration::from_secs(10), serving).await.unwrap().unwrap();
    assert_eq!(ask(&router, FAR, "GET /livez", "").await.status, 200);
}

async fn livez_over_tcp(stream: &mut TcpStream) -> Answered {
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut raw = String::new();
    timeout(Duration::from_secs(10), stream.read_to_string(&mut raw)).await.unwrap().unwrap();
    Answered { status: u16::from(raw.starts_with("HTTP/1.1 200")), head: raw, body: String::new() }
}

#[tokio::test]
async fn a_probe_is_answered_behind_any_number_of_slow_heads() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let router = router(api(&registry([]), Access::default()));
    let serving = tokio::spawn(serve(listener, router, shutdown.clone()));
    // One that has asked keeps its connection, whoever comes.
    let mut kept = TcpStream::connect(address).await.unwrap();
    let asks = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut first = [0_u8; 12];
    kept.write_all(asks).await.unwrap();
    timeout(Duration::from_secs(10), kept.read_exact(&mut first)).await.unwrap().unwrap();

    let mut held = Vec::new();
    for _ in 0..3 * MAX_CONNECTIONS {
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET /livez HTTP/1.1\r\nx-slow: ").await.unwrap();
        held.push(slow);
    }
    let mut probe = TcpStream::connect(address).await.unwrap();
    assert_eq!(livez_over_tcp(&mut probe).await.status, 1);
    // It has waited for the end of none: the last of them goes on.
    let last = held.last().unwrap();
    let nothing = last.try_read(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock, "{nothing}");
    kept.write_all(asks).await.unwrap();
    kept.readable().await.unwrap();
    let mut rest = Vec::new();
    kept.try_read_buf(&mut rest).unwrap();
    assert!(!rest.is_empty());

    shutdown.cancel();
    timeout(Duration::from_secs(10), serving).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_takes_nothing_of_an_answer_is_cut_off() {
    const BYTES: usize = 64 * 1024 * 1024;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = axum::Router::new().route("/", axum::routing::get(async || vec![b'x'; BYTES]));
    tokio::spawn(serve(listener, router, CancellationToken::new()));
    let mut asking = TcpStream::connect(address).await.unwrap();
    asking.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    asking.readable().await.unwrap();
    tokio::time::sleep(Duration::from_secs(31)).await;
    let mut said = Vec::new();
    // A reset ends it as well.
    drop(asking.read_to_end(&mut said).await);
    assert!(said.len() < BYTES, "{} bytes", said.len());
}

#[tokio::test]
async fn shutdown_ends_idle_connections_and_stops_listening() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let router = router(api(&registry([]), Access::default()));
    let serving = tokio::spawn(serve(listener, router, shutdown.clone()));
    let mut idle = TcpStream::connect(address).await.unwrap();
    let mut asking = TcpStream::connect(address).await.unwrap();
    assert_eq!(livez_over_tcp(&mut asking).await.status, 1);

    shutdown.cancel();

    let mut end = Vec::new();
    timeout(Duration::from_secs(10), idle.read_to_end(&mut end)).await.unwrap().unwrap();
    timeout(Duration::from_secs(10), serving).await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}
