//! Checklist A: what each method answers.

use ghostscaler::proto::{GetMetricsRequest, ScaledObjectRef};
use proptest::prelude::*;
use tonic::Code;

use super::support::{
    Scaler, from_hpa, inventory, is_active, metrics_of, options, publish, publish_outage,
    scaled_object, soon, wanted, workload,
};

#[tokio::test]
async fn a1_a_metric_spec_needs_no_data_and_no_good_metadata() {
    let scaler = Scaler::unsynced(options());
    let mut client = scaler.client().await;
    let bad = [("sloTtft", "abc"), ("foo", "bar")];
    let huge = "x".repeat(100_000);
    let requests = [
        scaled_object("unknown", &[]),
        scaled_object("unknown", &bad),
        scaled_object("unknown", &[("modelName", &huge)]),
        ScaledObjectRef::default(),
    ];
    for synced in [false, true] {
        if synced {
            scaler.registry.set_inventory(inventory(&[workload("a", 0, None)]));
        }
        for request in requests.iter().cloned().chain([scaled_object("a", &bad)]) {
            let response = soon(client.get_metric_spec(request)).await.unwrap().into_inner();
            assert_eq!(response.metric_specs.len(), 1);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn a2_a_metric_spec_is_never_empty(
        metadata in proptest::collection::vec((".{0,20}", ".{0,40}"), 0..8),
        name in ".{0,20}",
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let scaler = Scaler::start(&[workload("a", 0, Some(1))]);
            let mut client = scaler.client().await;
            let entries: Vec<_> =
                metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            for name in [name.as_str(), "a"] {
                let request = scaled_object(name, &entries);
                let specs = soon(client.get_metric_spec(request)).await.unwrap().into_inner();
                assert_eq!(specs.metric_specs.len(), 1);
            }
        });
    }
}

#[tokio::test]
async fn a3_the_metric_name_is_a_valid_name_and_always_the_same() {
    for _restart in 0..2 {
        let scaler = Scaler::start(&[workload("a", 0, Some(1)), workload("b", 1, None)]);
        let mut client = scaler.client().await;
        for (name, metadata) in [("a", [("sloTtft", "1s")]), ("b", [("sloTtft", "9s")])] {
            let request = scaled_object(name, &metadata);
            let spec = soon(client.get_metric_spec(request)).await.unwrap().into_inner();
            assert_eq!(spec.metric_specs[0].metric_name, "wanted-replicas");
        }
    }
}

#[tokio::test]
async fn a4_a5_the_target_is_one_in_both_fields_whatever_is_published() {
    let scaler = Scaler::start(&[workload("a", 0, Some(1))]);
    let mut client = scaler.client().await;
    let tracker = scaler.tracker("a", &[]);
    for (version, want) in [(1, 7), (2, 0), (3, 3)] {
        publish(&tracker, version, want);
        let response = soon(client.get_metric_spec(scaled_object("a", &[]))).await.unwrap();
        let spec = &response.get_ref().metric_specs[0];
        assert_eq!(spec.target_size, 1);
        assert_eq!(spec.target_size_float.to_bits(), 1.0_f64.to_bits());
    }
}

#[tokio::test]
async fn a6_a8_a13_one_whole_value_with_its_name_and_both_fields_equal() {
    let scaler = Scaler::start(&[workload("a", 0, Some(1))]);
    let mut client = scaler.client().await;
    let tracker = scaler.tracker("a", &[]);
    for (version, want) in [(1, 7_u32), (2, 0), (3, 1_000)] {
        publish(&tracker, version, want);
        let response = soon(client.get_metrics(metrics_of("a", &[]))).await.unwrap().into_inner();
        assert_eq!(response.metric_values.len(), 1);
        let value = &response.metric_values[0];
        assert_eq!(value.metric_name, "wanted-replicas");
        assert_eq!(value.metric_value, i64::from(want));
        assert_eq!(value.metric_value_float.to_bits(), f64::from(want).to_bits());
    }
}

#[tokio::test]
async fn a9_an_unknown_metric_is_not_found_and_a_stray_prefix_is_accepted() {
    let scaler = Scaler::start(&[workload("a", 0, Some(2))]);
    let mut client = scaler.client().await;
    let named = |metric_name: &str| GetMetricsRequest {
        metric_name: metric_name.to_owned(),
        ..metrics_of("a", &[])
    };
    let response = soon(client.get_metrics(named("s0-wanted-replicas"))).await.unwrap();
    assert_eq!(response.get_ref().metric_values[0].metric_value, 2);
    for name in ["queue", "wanted-replicas2", "s0-", "WANTED"] {
        let status = soon(client.get_metrics(named(name))).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a10_answers_of_one_snapshot_never_contradict_under_concurrent_publishing() {
    let scaler = Scaler::start(&[workload("a", 0, Some(0))]);
    let mut client = scaler.client().await;
    let tracker = scaler.tracker("a", &[]);
    let mut background = Vec::new();
    let (over, is_over) = tokio::sync::watch::channel(false);
    // Others ask all the time and must only ever see what was published, whole. No value but zero
    // comes twice, so what lies between two equal ones was answered from the same snapshot.
    for _ in 0..4 {
        let (mut client, is_over) = (client.clone(), is_over.clone());
        background.push(tokio::spawn(async move {
            let mut n_compared = 0;
            while !*is_over.borrow() {
                let before = wanted(&mut client, "a").await.unwrap();
                let active = is_active(&mut client, "a").await.unwrap();
                let after = wanted(&mut client, "a").await.unwrap();
                if before > 0 && before == after {
                    assert!(active, "not active at {before}");
                    n_compared += 1;
                }
            }
            n_compared
        }));
    }
    for version in 1..=400_u32 {
        let want = if version % 2 == 0 { 0 } else { version };
        publish(&tracker, version.into(), want);
        for _ in 0..4 {
            assert_eq!(wanted(&mut client, "a").await.unwrap(), i64::from(want));
            assert_eq!(is_active(&mut client, "a").await.unwrap(), want > 0);
        }
    }
    over.send_replace(true);
    for task in background {
        let n_compared = task.await.unwrap();
        assert!(n_compared > 0, "nothing was compared");
    }
}

#[tokio::test]
async fn a11_what_is_not_known_is_unavailable_and_never_zero_or_false() {
    let scaler = Scaler::unsynced(options());
    let mut client = scaler.client().await;
    let expect_unavailable = async |client: &mut super::support::Client| {
        assert_eq!(wanted(client, "a").await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(is_active(client, "a").await.unwrap_err().code(), Code::Unavailable);
    };
    expect_unavailable(&mut client).await;
    scaler.registry.set_inventory(inventory(&[workload("a", 0, None)]));
    expect_unavailable(&mut client).await;
    publish_outage(&scaler.tracker("a", &[]), 1);
    expect_unavailable(&mut client).await;
}

#[tokio::test]
async fn a11_a_workload_not_yet_observed_answers_its_present_count() {
    let scaler = Scaler::start(&[workload("up", 0, Some(3)), workload("down", 0, Some(0))]);
    let mut client = scaler.client().await;
    assert_eq!(wanted(&mut client, "up").await.unwrap(), 3);
    assert!(is_active(&mut client, "up").await.unwrap());
    assert_eq!(wanted(&mut client, "down").await.unwrap(), 0);
    assert!(!is_active(&mut client, "down").await.unwrap());
}

#[tokio::test]
async fn a12_a_decided_zero_is_ok_zero_and_false() {
    let scaler = Scaler::start(&[workload("a", 0, Some(3))]);
    let mut client = scaler.client().await;
    publish(&scaler.tracker("a", &[]), 1, 0);
    assert_eq!(wanted(&mut client, "a").await.unwrap(), 0);
    assert!(!is_active(&mut client, "a").await.unwrap());
}

#[tokio::test]
async fn a14_a_missing_reference_or_metric_name_is_an_invalid_argument() {
    let scaler = Scaler::start(&[workload("a", 0, Some(1))]);
    let mut client = scaler.client().await;
    let whole = metrics_of("a", &[]);
    let nameless = ScaledObjectRef { name: String::new(), ..scaled_object("a", &[]) };
    let homeless = ScaledObjectRef { namespace: String::new(), ..scaled_object("a", &[]) };
    for request in [
        GetMetricsRequest::default(),
        GetMetricsRequest { metric_name: String::new(), ..whole.clone() },
        GetMetricsRequest { scaled_object_ref: None, ..whole.clone() },
        GetMetricsRequest { scaled_object_ref: Some(nameless.clone()), ..whole.clone() },
        GetMetricsRequest { scaled_object_ref: Some(homeless.clone()), ..whole },
    ] {
        let status = soon(client.get_metrics(request)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
    }
    for request in [nameless, homeless, ScaledObjectRef::default()] {
        let status = soon(client.is_active(request.clone())).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        let status = soon(client.stream_is_active(request)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn a15_repeated_and_overlapping_calls_change_nothing() {
    let scaler = Scaler::start(&[workload("a", 0, Some(1))]);
    let client = scaler.client().await;
    let tracker = scaler.tracker("a", &[]);
    publish(&tracker, 9, 4);
    let before = tracker.published.load_full();
    let calls = (0..100).map(|index| {
        let mut client = client.clone();
        async move {
            if index % 2 == 0 {
                let request = from_hpa(metrics_of("a", &[]));
                let response = soon(client.get_metrics(request)).await.unwrap();
                assert_eq!(response.get_ref().metric_values[0].metric_value, 4);
            } else {
                assert_eq!(wanted(&mut client, "a").await.unwrap(), 4);
            }
            assert!(is_active(&mut client, "a").await.unwrap());
        }
    });
    futures_util::future::join_all(calls).await;
    assert!(std::sync::Arc::ptr_eq(&before, &tracker.published.load_full()));
    assert_eq!(scaler.registry.trackers().len(), 1);
}

#[tokio::test]
async fn a16_no_order_of_calls_is_assumed() {
    for order in [["m", "a", "s"], ["a", "m", "s"], ["a", "s", "m"], ["m", "s", "a"]] {
        let scaler = Scaler::start(&[workload("x", 0, Some(2))]);
        let mut client = scaler.client().await;
        for method in order {
            match method {
                "m" => assert_eq!(wanted(&mut client, "x").await.unwrap(), 2),
                "a" => assert!(is_active(&mut client, "x").await.unwrap()),
                _ => {
                    soon(client.get_metric_spec(scaled_object("x", &[]))).await.unwrap();
                }
            }
        }
    }
}

#[tokio::test]
async fn a17_the_first_spec_has_the_value_that_a_scaled_job_counts() {
    let scaler = Scaler::start(&[workload("job", 0, Some(0))]);
    let mut client = scaler.client().await;
    publish(&scaler.tracker("job", &[]), 1, 3);
    let response = soon(client.get_metric_spec(scaled_object("job", &[]))).await.unwrap();
    let metric_name = response.get_ref().metric_specs[0].metric_name.clone();
    let request = GetMetricsRequest { metric_name: metric_name.clone(), ..metrics_of("job", &[]) };
    let values = soon(client.get_metrics(request)).await.unwrap().into_inner().metric_values;
    assert_eq!(values.len(), 1, "a ScaledJob counts them all");
    assert_eq!((values[0].metric_name.as_str(), values[0].metric_value), (&*metric_name, 3));
}

#[tokio::test]
async fn f43_reconnecting_changes_no_answer() {
    let scaler = Scaler::start(&[workload("a", 0, Some(1))]);
    publish(&scaler.tracker("a", &[]), 1, 6);
    for _ in 0..10 {
        let mut client = scaler.client().await;
        soon(client.get_metric_spec(scaled_object("a", &[]))).await.unwrap();
        assert_eq!(wanted(&mut client, "a").await.unwrap(), 6);
    }
}

#[tokio::test]
async fn two_triggers_of_one_object_are_told_apart_by_their_metadata() {
    let scaler = Scaler::start(&[workload("a", 0, Some(1))]);
    let mut client = scaler.client().await;
    for (model, want) in [("x", 3), ("y", 5)] {
        publish(&scaler.tracker("a", &[("modelName", model)]), 1, want);
    }
    for (model, want) in [("x", 3), ("y", 5)] {
        let request = metrics_of("a", &[("scalerAddress", "s:1"), ("modelName", model)]);
        let response = soon(client.get_metrics(request)).await.unwrap();
        assert_eq!(response.get_ref().metric_values[0].metric_value, want);
    }
}
