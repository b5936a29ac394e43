//! What Prometheus has, and what it has instead.

use std::sync::Arc;

use serde_json::json;

use super::sound::{engine, labels, put, said, sound, with_said};
use super::{Played, in_order, patched, played, says};
use crate::doctor::{Facts, Prometheus, Said, Selected};
use crate::source::Error;

const CURE: Played = |_fix, facts| *facts = sound();

#[test]
fn f16_a_prometheus_that_refuses_is_told_in_words() {
    for (error, seen, remedy) in [
        (Error::Unauthorized { status: 401 }, "status 401", "bearerTokenFile"),
        (Error::Timeout { deadline_ms: 5_000 }, "within 5000 ms", "too slow"),
        (Error::Refused, "connection refused", "nothing listens"),
        (Error::HttpStatus { status: 302 }, "status 302", "login page"),
    ] {
        let url = "http://p:9090".to_owned();
        let prometheus = Prometheus { url, said: Err(Arc::new(error)) };
        let broken = Facts { prometheus: Ok(prometheus), ..sound() };
        let found = super::examine(&broken);
        let [finding] = found.findings.as_slice() else { panic!("{:#?}", found.findings) };
        assert_eq!(finding.id, "prometheus-unreadable");
        says(finding, &["http://p:9090: ", seen]);
        assert!(finding.fix.text.contains(remedy), "{}", finding.fix.text);
        // What depends on its answers is not taken for fine.
        assert_eq!(found.not_looked_at.len(), 7);
        let mut after = broken;
        CURE(&finding.fix, &mut after);
        in_order(&after);
    }
}

#[test]
fn no_series_of_any_engine_is_told() {
    let broken = with_said(Said { engines: Vec::new(), ..said() });
    let finding = played("no-engine-series", &broken, CURE);
    says(&finding, &["vllm:num_requests_running"]);
    assert!(finding.fix.command.unwrap().contains("kind: PodMonitor"));
    // Who reads the engines themselves needs none, which is the default.
    let mut direct = broken;
    for source in [json!("pods"), json!(null)] {
        direct.object["spec"]["triggers"][0]["metadata"]["source"] = source;
        in_order(&direct);
    }
}

#[test]
fn no_monitor_is_made_of_a_target_that_does_not_say_which_its_pods_are() {
    let broken = with_said(Said { engines: Vec::new(), ..said() });
    let group = json!({"kind": "LeaderWorkerSet", "metadata": {"name": "llm"}, "spec":
        {"leaderWorkerTemplate": {"workerTemplate": {"spec": {"containers": [{"name": "vllm"}]}}}}});
    let service = json!({"kind": "InferenceService", "metadata": {"name": "llm"},
        "spec": {"selector": {"matchLabels": {"app": "llm"}}}});
    for target in [group, service] {
        let broken = Facts { target: Ok(target), ..broken.clone() };
        let findings = super::examine(&broken).findings;
        let fix = &findings.iter().find(|finding| finding.id == "no-engine-series").unwrap().fix;
        assert_eq!((&fix.patch, &fix.command), (&None, &None));
    }
}

#[test]
fn a_monitor_of_pods_names_a_port_that_they_have() {
    let port_of = |ports: serde_json::Value| {
        let mut broken = with_said(Said { engines: Vec::new(), ..said() });
        let target = broken.target.as_mut().unwrap();
        put(target, "/spec/template/spec/containers/1/ports", ports);
        let fix = super::only("no-engine-series", &broken).fix;
        let monitor = fix.command.unwrap();
        let endpoint = monitor.split_once("podMetricsEndpoints:").unwrap().1;
        (endpoint.lines().nth(1).unwrap().trim().to_owned(), fix.patch.map(|patch| patch.command()))
    };
    let named = json!([{"containerPort": 1}, {"name": "http", "containerPort": 8000}]);
    assert_eq!(port_of(named), ("- port: http".to_owned(), None));
    let other = json!([{"name": "api", "containerPort": 8000}]);
    assert_eq!(port_of(other), ("- port: api".to_owned(), None));
    let bare = json!([{"containerPort": 8080}]);
    assert_eq!(port_of(bare), ("- portNumber: 8080".to_owned(), None));
    let (port, patch) = port_of(json!([]));
    assert_eq!(port, "- port: http");
    assert!(patch.unwrap().contains("containerPort: 8000"), "one that a pod declares");
}

#[test]
fn f18_series_under_another_name_are_told_with_the_nearest() {
    let renamed = ["llm_num_requests_active", "vllm:prompt_tokens_total"]
        .map(|name| labels(&[("__name__", name), ("namespace", "team-a"), ("model_name", "m1")]));
    let broken = with_said(Said { engines: renamed.to_vec(), ..said() });
    let finding = played("engine-series-renamed", &broken, CURE);
    says(&finding, &["no vllm:num_requests_running", "nearest is"]);
    // Each spelling that the scaler reads is right.
    for name in [
        "vllm_num_requests_running",
        "ray_vllm_num_requests_waiting",
        "sglang:num_queue_reqs",
        "tgi_queue_size",
    ] {
        let engine = labels(&[("__name__", name), ("namespace", "team-a"), ("model_name", "m1")]);
        in_order(&with_said(Said { engines: vec![engine], ..said() }));
    }
}

#[test]
fn f18_a_name_that_is_deprecated_is_told_where_the_new_one_is_missing() {
    let named =
        |name: &str| labels(&[("__name__", name), ("namespace", "team-a"), ("model_name", "m1")]);
    let deprecated = named("vllm:gpu_cache_usage_perc");
    let with = |more: [_; 2]| {
        with_said(Said { engines: engine().into_iter().chain(more).collect(), ..said() })
    };
    let running = named("vllm:num_requests_running");
    let finding = super::only("engine-series-deprecated", &with([running, deprecated.clone()]));
    says(&finding, &["vllm:gpu_cache_usage_perc only"]);
    assert!(finding.why.contains("kv_cache_usage_perc since 0.9.2"), "{finding:?}");
    in_order(&with([deprecated.clone(), named("vllm:kv_cache_usage_perc")]));
    // Another namespace's, and other engines' own name of it.
    let mut elsewhere = deprecated;
    elsewhere.insert("namespace".to_owned(), "team-b".to_owned());
    in_order(&with([elsewhere, named("lmdeploy:gpu_cache_usage_perc")]));
}

#[test]
fn f16_series_of_another_namespace_are_told_with_the_nearest() {
    for (given, seen) in [
        (&[("namespace", "team-a-prod")][..], "nearest is namespace=\"team-a-prod\""),
        (
            &[("namespace", "monitoring"), ("exported_namespace", "team-a")],
            "stands in exported_namespace",
        ),
        (&[], "no namespace label"),
    ] {
        let all =
            [&[("__name__", "vllm:num_requests_running"), ("model_name", "m1")], given].concat();
        let broken = with_said(Said { engines: vec![labels(&all)], ..said() });
        let finding = played("engine-series-elsewhere", &broken, CURE);
        says(&finding, &[seen]);
    }
}

#[test]
fn f16_another_models_name_is_told_with_the_value_that_would_match() {
    let mut engines = engine();
    for series in &mut engines {
        series.insert("model_name".to_owned(), "m1-router".to_owned());
    }
    let mut broken = with_said(Said { engines, ..said() });
    broken.object["spec"]["triggers"][0]["metadata"]["wakeSource"] = json!(null);
    broken.object["spec"]["minReplicaCount"] = json!(1);
    let finding = patched("other-model-name", &broken);
    says(&finding, &["modelName is \"m1\"", "nearest is \"m1-router\""]);
}

#[test]
fn f16_a_wake_query_that_matches_nothing_is_told_with_the_value_that_would() {
    let wants = labels(&[("model", "m1")]);
    let found = vec![labels(&[("model", "m1-router-epp")])];
    let metric = "queue_size".to_owned();
    let mut said = said();
    said.wake.as_mut().unwrap().selectors = vec![Selected { metric, wants, found }];
    for series in &mut said.engines {
        series.remove("model_name");
    }
    let broken = with_said(said);
    let finding = super::only("wake-query-unmatched", &broken);
    says(&finding, &["queue_size", "model=\"m1\", nearest is model=\"m1-router-epp\""]);
    // The name is the trigger's own, so that is what is changed; then the query finds its series.
    let mut after = super::cured(&broken, &finding);
    let named = &after.object["spec"]["triggers"][0]["metadata"]["modelName"];
    assert_eq!(named, "m1-router-epp");
    let wake = after.prometheus.as_mut().unwrap().said.as_mut().unwrap().wake.as_mut().unwrap();
    wake.selectors[0].wants = labels(&[("model", "m1-router-epp")]);
    in_order(&after);
}

#[test]
fn f16_a_wake_query_about_what_is_not_there_is_told() {
    let mut said = said();
    let wake = said.wake.as_mut().unwrap();
    wake.is_empty = true;
    wake.selectors[0].found.clear();
    let finding = played("wake-query-unmatched", &with_said(said), CURE);
    says(&finding, &["there is no series queue_size"]);
}

#[test]
fn f97_a_model_that_the_gateway_names_and_nobody_serves_is_told() {
    let series = |model: &str, home: &str| labels(&[("model", model), ("ns", home)]);
    let with = |found: &[(&str, &str)]| {
        let mut said = said();
        let wants = series("m1", "team-a");
        let found = found.iter().map(|(model, home)| series(model, home)).collect();
        let metric = "queue_size".to_owned();
        said.wake.as_mut().unwrap().selectors = vec![Selected { metric, wants, found }];
        with_said(said)
    };
    let broken = with(&[("m1", "team-a"), ("m2", "team-a"), ("theirs", "team-b")]);
    let mut other = sound().object;
    other["metadata"]["name"] = json!("other");
    other["spec"]["scaleTargetRef"]["name"] = json!("other");
    other["spec"]["triggers"][0]["metadata"]["modelName"] = json!("m2");
    let finding = super::only("unserved-model", &broken);
    says(&finding, &["requests for \"m2\","]);
    // Once its ScaledObject is there, or its engine, it is served.
    in_order(&Facts { other_objects: Ok(vec![other]), ..broken.clone() });
    let mut served = broken;
    let said = served.prometheus.as_mut().unwrap().said.as_mut().unwrap();
    said.engines.push(labels(&[("__name__", "vllm:num_requests_running"), ("model_name", "m2")]));
    in_order(&served);
    in_order(&with(&[("m1", "team-a"), ("theirs", "team-b")]));
}
