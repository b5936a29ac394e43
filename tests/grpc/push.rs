//! Checklist E: StreamIsActive.

use std::time::Duration;

use ghostscaler::grpc::Options;
use ghostscaler::registry::{Caller, Rpc};
use tonic::Code;

use super::support::{
    Scaler, inventory, is_active, open_stream, options, publish, publish_outage, pushed,
    scaled_object, soon, wanted, workload,
};

/// Sees that nothing comes: everything published so far has been pushed once a call that follows
/// it on the same connection has been answered, so a short wait after that suffices.
async fn nothing_is_pushed(
    client: &mut super::support::Client,
    stream: &mut tonic::Streaming<ghostscaler::proto::IsActiveResponse>,
) {
    wanted(client, "a").await.ok();
    let silence = tokio::time::timeout(Duration::from_millis(50), stream.message()).await;
    assert!(silence.is_err(), "{silence:?}");
}

#[tokio::test]
async fn e1_true_comes_on_each_opening_while_active_and_nothing_while_not() {
    let scaler = Scaler::start(&[workload("a", 0, Some(1))]);
    let mut client = scaler.client().await;
    for _ in 0..3 {
        let mut stream = open_stream(&mut client, "a").await;
        assert_eq!(pushed(&mut stream).await, Some(true));
        nothing_is_pushed(&mut client, &mut stream).await;
    }
    publish(&scaler.tracker("a", &[]), 1, 0);
    let mut stream = open_stream(&mut client, "a").await;
    nothing_is_pushed(&mut client, &mut stream).await;
}

#[tokio::test]
async fn e2_true_comes_once_for_each_rising_edge_and_false_never() {
    let scaler = Scaler::start(&[workload("a", 0, Some(0))]);
    let mut client = scaler.client().await;
    let tracker = scaler.tracker("a", &[]);
    let mut stream = open_stream(&mut client, "a").await;
    for edge in 0..3 {
        publish(&tracker, 10 * edge + 1, 1);
        assert_eq!(pushed(&mut stream).await, Some(true));
        publish(&tracker, 10 * edge + 2, 4);
        nothing_is_pushed(&mut client, &mut stream).await;
        publish(&tracker, 10 * edge + 3, 0);
        nothing_is_pushed(&mut client, &mut stream).await;
    }
}

#[tokio::test]
async fn e3_parallel_streams_of_one_object_are_all_served() {
    let scaler = Scaler::start(&[workload("a", 0, Some(0))]);
    let mut first = scaler.client().await;
    let mut second = scaler.client().await;
    let mut streams = vec![
        open_stream(&mut first, "a").await,
        open_stream(&mut first, "a").await,
        open_stream(&mut second, "a").await,
    ];
    let tracker = scaler.tracker("a", &[]);
    publish(&tracker, 1, 1);
    for stream in &mut streams {
        assert_eq!(pushed(stream).await, Some(true));
    }
    // An edit closes one and opens another; the rest are not disturbed.
    drop(streams.swap_remove(0));
    publish(&tracker, 2, 0);
    publish(&tracker, 3, 1);
    for stream in &mut streams {
        assert_eq!(pushed(stream).await, Some(true));
    }
}

#[tokio::test]
async fn e4_an_outage_neither_ends_a_stream_nor_is_an_edge() {
    let scaler = Scaler::start(&[workload("a", 0, Some(1))]);
    let mut client = scaler.client().await;
    let tracker = scaler.tracker("a", &[]);
    let mut stream = open_stream(&mut client, "a").await;
    assert_eq!(pushed(&mut stream).await, Some(true));
    publish_outage(&tracker, 1);
    publish(&tracker, 2, 1);
    nothing_is_pushed(&mut client, &mut stream).await;
    publish(&tracker, 3, 0);
    publish_outage(&tracker, 4);
    publish(&tracker, 5, 1);
    assert_eq!(pushed(&mut stream).await, Some(true));
}

#[tokio::test]
async fn e5_a_shutdown_ends_streams_with_ok() {
    let mut scaler = Scaler::start(&[workload("a", 0, Some(1)), workload("b", 0, Some(0))]);
    let mut client = scaler.client().await;
    let mut active = open_stream(&mut client, "a").await;
    let mut idle = open_stream(&mut client, "b").await;
    assert_eq!(pushed(&mut active).await, Some(true));
    scaler.stop();
    assert_eq!(pushed(&mut active).await, None);
    assert_eq!(pushed(&mut idle).await, None);
    scaler.finished().await.unwrap();
    assert_eq!(scaler.metrics.count(Rpc::StreamIsActive, Code::Ok, Caller::Poll), 2);
}

#[tokio::test]
async fn e5_a_stream_ends_with_ok_at_its_age() {
    let short = Options { max_age: Duration::from_millis(300), ..options() };
    let scaler = Scaler::start_with(&[workload("a", 0, Some(1))], short);
    let mut client = scaler.client().await;
    for _ in 0..2 {
        let mut stream = open_stream(&mut client, "a").await;
        assert_eq!(pushed(&mut stream).await, Some(true));
        assert_eq!(pushed(&mut stream).await, None);
    }
}

#[tokio::test]
async fn e6_a_poll_after_an_edge_says_active() {
    let scaler = Scaler::start(&[workload("a", 0, Some(0))]);
    let mut client = scaler.client().await;
    assert!(!is_active(&mut client, "a").await.unwrap());
    publish(&scaler.tracker("a", &[]), 1, 1);
    assert!(is_active(&mut client, "a").await.unwrap());
}

#[tokio::test]
async fn e7_an_edge_between_two_streams_is_told_by_the_second() {
    let scaler = Scaler::start(&[workload("a", 0, Some(0))]);
    let mut client = scaler.client().await;
    drop(open_stream(&mut client, "a").await);
    publish(&scaler.tracker("a", &[]), 1, 1);
    let mut stream = open_stream(&mut client, "a").await;
    assert_eq!(pushed(&mut stream).await, Some(true));
}

#[tokio::test]
async fn e8_stream_metric_spec_is_unimplemented_at_once() {
    let scaler = Scaler::start(&[workload("a", 0, Some(1))]);
    let mut client = scaler.client().await;
    for name in ["a", "unknown"] {
        let status = soon(client.stream_metric_spec(scaled_object(name, &[]))).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
    }
}

#[tokio::test]
async fn a_stream_of_a_trigger_that_is_gone_ends_with_ok() {
    let scaler = Scaler::start(&[workload("a", 0, Some(0)), workload("b", 0, Some(0))]);
    let mut client = scaler.client().await;
    let mut stream = open_stream(&mut client, "a").await;
    scaler.registry.set_inventory(inventory(&[workload("b", 0, Some(0))]));
    assert_eq!(pushed(&mut stream).await, None);
    let status = soon(client.stream_is_active(scaled_object("a", &[]))).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}
