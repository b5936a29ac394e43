//! Metadata as people write it, and as they get it wrong.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::decision::{Mode, Phase, Profile, Replicas, ZeroAfter};
use crate::inventory::{Counted, Endpoint, Kubernetes, Member, WorkloadKey};

fn parsed(metadata: &[(&str, &str)]) -> Policy {
    parse(metadata.iter().copied()).unwrap()
}

fn refused(metadata: &[(&str, &str)]) -> String {
    parse(metadata.iter().copied()).unwrap_err().to_string()
}

#[test]
fn empty_metadata_is_the_default_policy() {
    assert_eq!(parsed(&[]), Policy::default());
}

#[test]
fn every_key_is_read() {
    let schedule = "start=0 8 * * *; end=0 18 * * *; replicas=3";
    let policy = parsed(&[
        ("engine", "sglang"),
        ("source", "prometheus"),
        ("podSelector", "app in (a,b),tier!=x"),
        ("metricsPort", "8000"),
        ("metricsPath", "/metrics"),
        ("modelName", "meta/llama-3 8b"),
        ("sloTtft", " 1500ms "),
        ("sloTpot", "50ms"),
        ("targetInFlight", "12.5"),
        ("gpuCeilingPercent", "75"),
        ("ghostHold", "5m"),
        ("zeroAfter", "2h"),
        ("wakeSource", "gateway-1"),
        ("warmSchedule", schedule),
        ("override", "replicas=2; until=2026-12-01T08:00:00Z"),
        ("profile", "long-context"),
        ("gpusPerReplica", "8"),
        ("mode", "shadow"),
    ]);
    let expected = Policy {
        engine: Some(EngineFamily::Sglang),
        source: Some(SourceKind::Prometheus),
        pod_selector: Some("app in (a,b),tier!=x".to_owned()),
        metrics_port: Some(8_000),
        metrics_path: Some("/metrics".to_owned()),
        model_name: Some("meta/llama-3 8b".to_owned()),
        wake_source: Some("gateway-1".to_owned()),
        warm_schedule: Some(WarmSchedule::parse(schedule).unwrap()),
        by_hand: ByHand::parse("replicas=2; until=2026-12-01T08:00:00Z"),
        spec: Spec {
            slo_ttft_ms: 1_500,
            slo_tpot_ms: 50,
            target_in_flight: Some(12.5),
            gpu_ceiling: 0.75,
            ghost_hold_ms: Some(300_000),
            zero_after: ZeroAfter::After { millis: 7_200_000 },
            profile: Profile::LongContext,
            gpus_per_replica: Some(8),
            mode: Mode::Shadow,
            ..Spec::default()
        },
    };
    assert_eq!(policy, expected);
}

#[test]
fn the_words_of_the_table_are_the_words_that_are_read() {
    for field in FIELDS.iter().filter(|field| field.kind == "one of") {
        for word in field.range.split(", ") {
            assert!(parse([(field.key, word)]).is_ok(), "{}={word}", field.key);
            assert!(parse([(field.key, word.to_uppercase().as_str())]).is_err());
        }
    }
    assert_eq!(parsed(&[("engine", "auto")]).engine, None);
    assert_eq!(parsed(&[("engine", "vllm")]).engine, Some(EngineFamily::Vllm));
    assert_eq!(parsed(&[("zeroAfter", "never")]).spec.zero_after, ZeroAfter::Never);
    assert_eq!(parsed(&[("profile", "batch")]).spec.profile, Profile::Batch);
}

#[test]
fn the_ranges_of_the_table_are_the_ranges_that_are_checked() {
    for (key, inside, outside) in [
        ("metricsPort", ["1", "65535"], ["0", "65536"]),
        ("gpusPerReplica", ["1", "1024"], ["0", "1025"]),
        ("targetInFlight", ["0.1", "100000"], ["0.09", "100000.1"]),
        ("gpuCeilingPercent", ["10", "100"], ["9.9", "100.1"]),
        ("sloTtft", ["10ms", "10m"], ["9ms", "600.1s"]),
        ("sloTpot", ["1ms", "10s"], ["0", "10001ms"]),
        ("ghostHold", ["10s", "1d"], ["9s", "24h1s"]),
        ("zeroAfter", ["1m", "30d"], ["59s", "31d"]),
    ] {
        for value in inside {
            assert!(parse([(key, value)]).is_ok(), "{key}={value}");
        }
        for value in outside {
            assert!(parse([(key, value)]).is_err(), "{key}={value}");
        }
        let field = FIELDS.iter().find(|field| field.key == key).unwrap();
        let (low, high) = field.range.split_once("..").unwrap();
        assert!(parse([(key, low)]).is_ok() && parse([(key, high)]).is_ok(), "{}", field.range);
    }
}

#[test]
fn the_defaults_of_the_table_are_the_policys() {
    let policy = Policy::default();
    for key in ["engine", "sloTtft", "sloTpot", "gpuCeilingPercent", "zeroAfter", "profile", "mode"]
    {
        let field = FIELDS.iter().find(|field| field.key == key).unwrap();
        assert_eq!(parsed(&[(key, field.default)]), policy, "{key}");
    }
}

#[test]
fn b8_numbers_are_read_strictly() {
    for value in ["", "1,5", "NaN", "inf", "-1", "+1", "0x10", "1e3", ".5", "5.", "1 0", "١"] {
        for key in ["targetInFlight", "gpuCeilingPercent", "metricsPort", "gpusPerReplica"] {
            assert!(parse([(key, value)]).is_err(), "{key}={value:?}");
        }
    }
}

#[test]
fn f109_addresses_and_namespaces_are_no_keys() {
    for key in ["metricsUrl", "prometheusAddress", "serverAddress", "namespace", "url", "query"] {
        let text = refused(&[(key, "http://169.254.169.254/latest")]);
        assert!(text.starts_with(&format!("bad metadata: {key}: expected a known key")), "{text}");
        assert!(!text.contains("169.254"), "{text}");
    }
    for path in ["//host/x", "/x@host", "http://host", "/a?b", "/a#b", "metrics", "/a b", ""] {
        let slashes_only = path == "//host/x";
        assert_eq!(parse([("metricsPath", path)]).is_ok(), slashes_only, "{path}");
    }
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    for (key, nearest) in [
        ("sloTTFT", "sloTtft"),
        ("slo_ttft", "sloTtft"),
        ("gpuCeiling", "gpuCeilingPercent"),
        ("warmSchedul", "warmSchedule"),
        ("wakesource", "wakeSource"),
        ("modle", "mode"),
        ("targetInflight", "targetInFlight"),
        ("sloTptoFromEnv", "sloTpot"),
    ] {
        let text = refused(&[(key, "1")]);
        assert!(text.contains(&format!("nearest is {nearest}")), "{key}: {text}");
    }
}

#[test]
fn all_faults_are_told_at_once_in_a_stable_order() {
    let text =
        refused(&[("sloTtft", "abc"), ("mode", "on"), ("scalerAddress", "x"), ("modle", "1")]);
    assert_eq!(
        text,
        "bad metadata: mode=\"on\": expected one of act, shadow; modle: expected a known key, \
         nearest is mode; sloTtft=\"abc\": expected duration 10ms..10m"
    );
}

#[test]
fn b2_a_key_comes_as_itself_or_from_the_environment_but_not_both() {
    assert_eq!(parsed(&[("sloTtftFromEnv", "3s")]).spec.slo_ttft_ms, 3_000);
    let text = refused(&[("sloTtft", "3s"), ("sloTtftFromEnv", "3s")]);
    assert_eq!(text, "bad metadata: sloTtft: expected it once, as itself or as FromEnv");
}

#[test]
fn c3_a_value_from_the_environment_is_never_shown() {
    let text = refused(&[("sloTtftFromEnv", "hunter2")]);
    assert_eq!(text, "bad metadata: sloTtftFromEnv: expected duration 10ms..10m");
}

#[test]
fn kedas_own_keys_are_allowed_in_both_forms_and_mean_nothing() {
    for key in KEDA_KEYS {
        assert_eq!(parsed(&[(key, "anything")]), Policy::default());
        let from_env = format!("{key}FromEnv");
        assert_eq!(parsed(&[(&from_env, "anything")]), Policy::default());
        assert_eq!(parsed(&[(key, "a"), (&from_env, "b")]), Policy::default());
    }
    assert!(parse([("scaleraddress", "x")]).is_err());
}

#[test]
fn b7_an_oversized_map_is_one_fault() {
    let keys: Vec<_> = (0..=MAX_KEYS).map(|i| format!("key{i}")).collect();
    let too_many = parse(keys.iter().map(|key| (key.as_str(), ""))).unwrap_err();
    let huge = "x".repeat(MAX_BYTES);
    let too_large = parse([("modelName", huge.as_str())]).unwrap_err();
    for faults in [too_many, too_large] {
        assert_eq!(
            faults.to_string(),
            "bad metadata: metadata: expected at most 64 keys and 16 KiB"
        );
    }
}

#[test]
fn b3_the_longest_single_fault_still_fits() {
    for field in &FIELDS {
        let text = refused(&[(field.key, &"\u{7f}".repeat(600))]);
        assert!(text.len() <= 200, "{} {text}", text.len());
        assert!(text.contains(&field.expected()), "{text}");
    }
}

fn workload() -> Workload {
    Workload {
        key: WorkloadKey::new("ns", "llm"),
        min: 0,
        max: 0,
        fallback_replicas: Some(0),
        triggers: Vec::new(),
        replicas: Replicas::default(),
        members: Vec::new(),
        counted: Counted::ByKubernetes,
        gpus_per_replica: Some(4),
        paused: false,
        kubernetes: Kubernetes::default(),
    }
}

/// A workload of a file, with this endpoint.
fn of_file(endpoint: Option<&str>) -> Workload {
    let member = Member {
        id: "e".into(),
        phase: Phase::Ready,
        created_at: None,
        ready_at: None,
        endpoint: endpoint.map(|url| Endpoint::Url(url.into())),
        node: None,
    };
    let members = endpoint.map(|_| member).into_iter().collect();
    Workload { counted: Counted::ByAnswers, members, ..workload() }
}

#[test]
fn engines_are_read_directly_where_their_addresses_are_known() {
    let url = Some("http://127.0.0.1:8000/metrics");
    for (workload, source) in [
        (workload(), SourceKind::Pods),
        (of_file(url), SourceKind::Pods),
        (of_file(None), SourceKind::Prometheus),
    ] {
        assert_eq!(parsed(&[]).source(&workload), source);
        for (name, asked) in [("pods", SourceKind::Pods), ("prometheus", SourceKind::Prometheus)] {
            assert_eq!(parsed(&[("source", name)]).source(&workload), asked);
        }
    }
}

/// The remarks on a trigger, as `key: text`.
fn remarks(workload: &Workload, metadata: &[(&str, &str)], has_prometheus: bool) -> Vec<String> {
    let wake_sources = BTreeSet::from(["gateway".to_owned(), "queue".to_owned()]);
    let context = Context { wake_sources: &wake_sources, has_prometheus };
    let remarks = parsed(metadata).remarks(workload, context);
    remarks.into_iter().map(|remark| format!("{}: {}", remark.key, remark.text)).collect()
}

#[test]
fn an_unknown_wake_source_is_remarked_on_with_the_nearest_one_and_is_no_fault() {
    assert_eq!(remarks(&workload(), &[("wakeSource", "gateway")], false), [""; 0]);
    assert_eq!(
        remarks(&workload(), &[("wakeSource", "gatway")], false),
        ["wakeSource: no wake source of the configuration is called \"gatway\", nearest is \
          gateway: until one is, zero is never reached"]
    );
    let none = Context { wake_sources: &BTreeSet::new(), has_prometheus: false };
    let remarks = parsed(&[("wakeSource", "gateway")]).remarks(&workload(), none);
    assert!(remarks[0].text.contains("there is none at all"), "{remarks:?}");
}

#[test]
fn keys_without_effect_are_remarked_on() {
    let pod_keys = [("metricsPort", "9000"), ("metricsPath", "/m"), ("podSelector", "app=a")];
    assert_eq!(remarks(&workload(), &pod_keys, false), [""; 0]);
    let urls = "without effect: the endpoints are whole URLs";
    assert_eq!(
        remarks(&of_file(Some("http://127.0.0.1/m")), &pod_keys, false),
        ["metricsPort", "metricsPath", "podSelector"].map(|key| format!("{key}: {urls}"))
    );
    let asked = [&pod_keys[..], &[("source", "prometheus")]].concat();
    let from_prometheus = "without effect: the engines are read from Prometheus";
    let expected = ["metricsPort", "metricsPath"].map(|key| format!("{key}: {from_prometheus}"));
    assert_eq!(remarks(&workload(), &asked, true), expected);
    assert_eq!(
        remarks(&workload(), &[("source", "prometheus")], false),
        ["source: no Prometheus is configured: no engine is read"]
    );
    let first = [("podSelector".to_owned(), "app=a".to_owned())].into();
    let two = Workload { triggers: vec![first], ..workload() };
    assert_eq!(remarks(&two, &[("podSelector", "app=a")], false), [""; 0]);
    assert_eq!(
        remarks(&two, &[("podSelector", "app=b")], false),
        ["podSelector: another trigger's podSelector, which comes first, counts"]
    );
}

#[test]
fn a_spec_takes_its_bounds_from_the_workload_and_its_tick_from_the_source() {
    let workload = workload();
    let wake_sources = BTreeSet::from(["gateway".to_owned()]);
    let context = Context { wake_sources: &wake_sources, has_prometheus: true };

    let spec = parsed(&[("source", "prometheus")]).spec(&workload, context);
    let expected = Spec {
        min: 0,
        max: 1,
        gpus_per_replica: Some(4),
        fallback_replicas: None,
        tick_ms: 15_000,
        ..Spec::default()
    };
    assert_eq!(spec, expected);

    let policy = parsed(&[("source", "pods"), ("wakeSource", "gateway"), ("gpusPerReplica", "2")]);
    let larger = Workload { min: 3, max: 2, fallback_replicas: Some(5), ..workload };
    let spec = policy.spec(&larger, context);
    assert_eq!((spec.min, spec.max, spec.fallback_replicas), (3, 3, Some(5)));
    assert_eq!((spec.tick_ms, spec.has_wake_source, spec.gpus_per_replica), (5_000, true, Some(2)));
    assert!(!parsed(&[("wakeSource", "other")]).spec(&larger, context).has_wake_source);
}

proptest! {
    #[test]
    fn any_metadata_gives_a_policy_or_one_short_ascii_line(
        metadata in proptest::collection::btree_map(any::<String>(), any::<String>(), 0..20),
        known in proptest::collection::vec((0..FIELDS.len(), any::<String>(), any::<bool>()), 0..8),
    ) {
        let mut metadata: BTreeMap<String, String> = metadata;
        for (index, value, from_env) in known {
            let suffix = if from_env { FROM_ENV } else { "" };
            metadata.insert(format!("{}{suffix}", FIELDS[index].key), value);
        }
        let entries = || metadata.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        if let Err(faults) = parse(entries()) {
            let text = faults.to_string();
            prop_assert!(text.len() <= 200, "{}", text);
            prop_assert!(text.bytes().all(|b| b == b' ' || b.is_ascii_graphic()), "{}", text);
            let mut reversed: Vec<_> = entries().collect();
            reversed.reverse();
            prop_assert_eq!(parse(reversed).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn a_key_given_in_both_forms_is_always_refused(index in 0..FIELDS.len(), a in ".*", b in ".*") {
        let key = FIELDS[index].key;
        let from_env = format!("{key}{FROM_ENV}");
        let faults = parse([(key, a.as_str()), (from_env.as_str(), b.as_str())]).unwrap_err();
        prop_assert!(faults.iter().any(|fault| fault.key == key));
    }

    #[test]
    fn durations_and_numbers_in_range_are_taken_as_they_are(
        ttft_ms in 10_u64..=600_000,
        in_flight in 1_u32..=100_000,
    ) {
        let policy = parse([
            ("sloTtft", format!("{ttft_ms}ms").as_str()),
            ("targetInFlight", in_flight.to_string().as_str()),
        ]).unwrap();
        prop_assert_eq!(policy.spec.slo_ttft_ms, ttft_ms);
        prop_assert_eq!(policy.spec.target_in_flight, Some(f64::from(in_flight)));
    }
}
