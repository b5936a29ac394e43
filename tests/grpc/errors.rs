//! Checklist B and C: metadata faults, and errors as quick as values.

use std::sync::Arc;
use std::sync::mpsc;

use ghostscaler::registry::{Caller, Rpc};
use tonic::Code;

use super::support::{
    Scaler, from_hpa, inventory, is_active, metrics_of, publish_outage, scaled_object, soon,
    wanted, workload,
};

const BAD: [(&str, &str); 2] = [("sloTtft", "abc"), ("targetInflight", "4")];
const TEXT: &str = "bad metadata: sloTtft=\"abc\": expected duration 10ms..10m; targetInflight: \
                    expected a known key, nearest is targetInFlight";

#[tokio::test]
async fn b1_kedas_own_keys_are_never_refused() {
    let scaler = Scaler::start(&[workload("a", 0, Some(2))]);
    let mut client = scaler.client().await;
    let own = [("scalerAddress", "x:1"), ("enableTLS", "true"), ("unsafeSslFromEnv", "false")];
    let response = soon(client.get_metrics(metrics_of("a", &own))).await.unwrap();
    assert_eq!(response.get_ref().metric_values[0].metric_value, 2);
}

#[tokio::test]
async fn b2_a_key_given_in_both_forms_is_refused_and_in_either_taken() {
    let scaler = Scaler::start(&[workload("a", 0, Some(2))]);
    let mut client = scaler.client().await;
    for metadata in [[("sloTtft", "1s")], [("sloTtftFromEnv", "1s")]] {
        soon(client.get_metrics(metrics_of("a", &metadata))).await.unwrap();
    }
    let both = [("sloTtft", "1s"), ("sloTtftFromEnv", "1s")];
    let status = soon(client.get_metrics(metrics_of("a", &both))).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("sloTtft"), "{}", status.message());
}

#[tokio::test]
async fn b3_b4_all_faults_are_told_from_the_first_call_on_where_a_user_sees_them() {
    let scaler = Scaler::start(&[workload("a", 0, Some(2))]);
    let mut client = scaler.client().await;
    for _ in 0..2 {
        let status = soon(client.get_metrics(metrics_of("a", &BAD))).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, TEXT));
        let status = soon(client.is_active(scaled_object("a", &BAD))).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, TEXT));
        soon(client.get_metric_spec(scaled_object("a", &BAD))).await.unwrap();
    }
    let status = soon(client.stream_is_active(scaled_object("a", &BAD))).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, TEXT));
}

#[tokio::test]
async fn b4_the_hpa_keeps_a_running_target_whose_minimum_is_zero() {
    for (min, spec, keeps) in
        [(0, Some(3), true), (0, Some(0), false), (0, None, false), (1, Some(3), false)]
    {
        let scaler = Scaler::start(&[workload("a", min, spec)]);
        let mut client = scaler.client().await;
        let metrics = soon(client.get_metrics(from_hpa(metrics_of("a", &BAD)))).await;
        let active = soon(client.is_active(from_hpa(scaled_object("a", &BAD)))).await;
        if keeps {
            assert_eq!(metrics.unwrap().get_ref().metric_values[0].metric_value, 3);
            assert!(active.unwrap().get_ref().result);
        } else {
            assert_eq!(metrics.unwrap_err().code(), Code::InvalidArgument, "{min} {spec:?}");
            assert_eq!(active.unwrap_err().code(), Code::InvalidArgument, "{min} {spec:?}");
        }
        // The polls tell the user in every case.
        let status = soon(client.get_metrics(metrics_of("a", &BAD))).await.unwrap_err();
        assert_eq!(status.message(), TEXT);
    }
}

#[tokio::test]
async fn c1_codes_are_those_of_the_table() {
    let scaler = Scaler::start(&[workload("a", 0, None)]);
    let mut client = scaler.client().await;
    let status = wanted(&mut client, "nowhere").await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    let first = wanted(&mut client, "a").await.unwrap_err();
    assert_eq!(first.code(), Code::Unavailable);
    let second = is_active(&mut client, "a").await.unwrap_err();
    assert_eq!(first.message(), second.message());
    let huge = "x".repeat(100_000);
    let status = soon(client.get_metrics(metrics_of("a", &[("modelName", &huge)]))).await;
    assert_eq!(status.unwrap_err().code(), Code::ResourceExhausted);
    let count = |rpc, code| scaler.metrics.count(rpc, code, Caller::Poll);
    assert_eq!(count(Rpc::GetMetrics, Code::NotFound), 1);
    assert_eq!(count(Rpc::GetMetrics, Code::Unavailable), 1);
    assert_eq!(count(Rpc::GetMetrics, Code::ResourceExhausted), 1);
    assert_eq!(count(Rpc::IsActive, Code::Unavailable), 1);
}

#[test]
fn c5_d2_calls_are_answered_while_everything_else_in_the_process_is_stuck() {
    let scaler = Scaler::start(&[workload("a", 0, Some(2)), workload("lost", 0, Some(2))]);
    publish_outage(&scaler.tracker("lost", &[]), 1);
    // The runtime of decisions, scrapes and API calls: every one of its threads is blocked.
    let stuck = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let (blocked, is_blocked) = mpsc::channel();
    let mut releases = Vec::new();
    for _ in 0..2 {
        let (release, released) = mpsc::channel::<()>();
        let blocked = blocked.clone();
        stuck.spawn(async move {
            blocked.send(()).unwrap();
            released.recv().ok();
        });
        is_blocked.recv().unwrap();
        releases.push(release);
    }
    // And the inventory is rebuilt without a pause, by a thread that holds the writers' lock.
    let workloads: Vec<_> = (0..5_000)
        .map(|index| workload(&format!("w{index}"), 0, Some(1)))
        .chain([workload("a", 0, Some(2)), workload("lost", 0, Some(2))])
        .collect();
    let (stop, stopped) = mpsc::channel::<()>();
    let registry = scaler.registry.clone();
    let writer = std::thread::spawn(move || {
        while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
            registry.set_inventory(inventory(&workloads));
        }
    });

    let client = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    client.block_on(async {
        let mut client = scaler.client().await;
        for index in 0..300 {
            assert_eq!(wanted(&mut client, "a").await.unwrap(), 2);
            assert_eq!(wanted(&mut client, "lost").await.unwrap_err().code(), Code::Unavailable);
            assert_eq!(is_active(&mut client, "gone").await.unwrap_err().code(), Code::NotFound);
            // A trigger seen for the first time needs a write, and does not wait for it either.
            let model = format!("m{}", index % 10);
            let request = metrics_of("a", &[("modelName", &model)]);
            soon(client.get_metrics(request)).await.unwrap();
        }
    });
    drop((stop, releases));
    writer.join().unwrap();
    stuck.shutdown_background();
}

#[tokio::test]
async fn d7_one_bad_object_disturbs_no_other() {
    let scaler = Scaler::start(&[workload("bad", 0, Some(1)), workload("good", 0, Some(4))]);
    let client = scaler.client().await;
    let keys: Vec<_> = (0..60).map(|index| format!("unknownKey{index}")).collect();
    let metadata: Arc<Vec<_>> = Arc::new(keys.iter().map(|key| (key.as_str(), "x")).collect());
    let calls = (0..200).map(|index| {
        let mut client = client.clone();
        let metadata = Arc::clone(&metadata);
        async move {
            if index % 2 == 0 {
                let request = metrics_of("bad", &metadata);
                let status = soon(client.get_metrics(request)).await.unwrap_err();
                assert_eq!(status.code(), Code::InvalidArgument);
                assert!(status.message().len() <= 200, "{}", status.message());
            } else {
                assert_eq!(wanted(&mut client, "good").await.unwrap(), 4);
            }
        }
    });
    futures_util::future::join_all(calls).await;
}
