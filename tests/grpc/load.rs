//! Checklist D: many objects, many streams, large and broken requests.

use ghostscaler::registry::{Caller, Rpc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use tonic::codegen::Service as _;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

use super::support::{
    Client, Scaler, is_active, metrics_of, open_stream, publish, pushed, scaled_object, soon,
    wanted, workload,
};
use crate::support::eventually;

/// Nothing more comes after this long without a message.
const QUIET: std::time::Duration = std::time::Duration::from_millis(500);

fn fleet(n: usize) -> Vec<std::sync::Arc<ghostscaler::inventory::Workload>> {
    (0..n).map(|index| workload(&format!("w{index}"), 0, Some(1))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_ten_thousand_objects_are_each_answered_their_own() {
    let scaler = Scaler::start(&fleet(10_000));
    let trackers = scaler.registry.trackers();
    assert_eq!(trackers.len(), 10_000);
    for tracker in trackers.iter() {
        let number: u32 = tracker.key.workload.name.trim_start_matches('w').parse().unwrap();
        publish(tracker, 1, number);
    }
    let client = scaler.client().await;
    let calls = (0..10_000).step_by(7).map(|index| {
        let mut client = client.clone();
        async move {
            let want = wanted(&mut client, &format!("w{index}")).await.unwrap();
            assert_eq!(want, index);
        }
    });
    futures_util::future::join_all(calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d3_a_herd_on_one_connection_gets_no_error() {
    let scaler = Scaler::start(&fleet(1_000));
    let client = scaler.client().await;
    let calls = (0..1_000).map(|index| {
        let mut client = client.clone();
        async move {
            let name = format!("w{index}");
            soon(client.get_metric_spec(scaled_object(&name, &[]))).await.unwrap();
            assert_eq!(wanted(&mut client, &name).await.unwrap(), 1);
            assert!(is_active(&mut client, &name).await.unwrap());
        }
    });
    futures_util::future::join_all(calls).await;
    assert_eq!(scaler.metrics.count(Rpc::IsActive, Code::Ok, Caller::Poll), 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d4_two_thousand_streams_leave_one_connection_free_for_calls() {
    let scaler = Scaler::start(&fleet(2_000));
    let mut client = scaler.client().await;
    let mut streams = Vec::new();
    for index in 0..2_000 {
        let name = format!("w{index}");
        streams.push(open_stream(&mut client, &name).await);
        let status = soon(client.stream_metric_spec(scaled_object(&name, &[]))).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
    }
    assert_eq!(scaler.metrics.open_streams(), 2_000);
    for stream in &mut streams {
        assert_eq!(pushed(stream).await, Some(true));
    }
    assert_eq!(wanted(&mut client, "w7").await.unwrap(), 1);
    // One edge reaches one stream, over the same connection.
    let tracker = scaler.tracker("w1234", &[]);
    publish(&tracker, 1, 0);
    publish(&tracker, 2, 3);
    assert_eq!(pushed(&mut streams[1_234]).await, Some(true));
}

#[tokio::test]
async fn d5_a_consumer_that_never_reads_holds_up_nobody_and_gets_the_latest_only() {
    let scaler = Scaler::start(&[workload("a", 0, Some(0))]);
    let mut client = scaler.client().await;
    // Room for two messages on the wire: what comes beyond them was kept by the server.
    let endpoint = Channel::from_shared(format!("http://{}", scaler.address)).unwrap();
    let narrow = soon(endpoint.initial_stream_window_size(16).connect()).await.unwrap();
    let mut dead = open_stream(&mut Client::new(narrow), "a").await;
    let mut live = open_stream(&mut client, "a").await;
    let tracker = scaler.tracker("a", &[]);
    for round in 0..5_000 {
        publish(&tracker, 2 * round + 1, 1);
        publish(&tracker, 2 * round + 2, 0);
    }
    publish(&tracker, 10_001, 2);
    assert_eq!(pushed(&mut live).await, Some(true));
    assert_eq!(wanted(&mut client, "a").await.unwrap(), 2);
    // What it finds when it reads at last is bounded by what was on the wire, not by a queue.
    assert_eq!(pushed(&mut dead).await, Some(true));
    let mut n_found = 1;
    while let Ok(message) = tokio::time::timeout(QUIET, dead.message()).await {
        assert!(message.unwrap().unwrap().result);
        n_found += 1;
    }
    assert!(n_found <= 8, "{n_found} messages");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d6_cancelled_streams_free_everything_and_the_connection_lives_on() {
    let scaler = Scaler::start(&fleet(500));
    let mut client = scaler.client().await;
    for _round in 0..4 {
        let mut streams = Vec::new();
        for index in 0..500 {
            streams.push(open_stream(&mut client, &format!("w{index}")).await);
        }
        drop(streams);
        eventually("the streams' end", async || (scaler.metrics.open_streams() == 0).then_some(()))
            .await;
        assert!(scaler.registry.trackers().iter().all(|tracker| tracker.n_streams() == 0));
        assert_eq!(wanted(&mut client, "w0").await.unwrap(), 1);
    }
    let cancelled = scaler.metrics.count(Rpc::StreamIsActive, Code::Cancelled, Caller::Poll);
    assert_eq!(cancelled, 2_000);
    assert_eq!(scaler.metrics.count(Rpc::StreamIsActive, Code::Ok, Caller::Poll), 0);
}

#[tokio::test]
async fn d8_a_large_request_is_refused_cleanly_and_the_connection_lives_on() {
    let scaler = Scaler::start(&[workload("a", 0, Some(2))]);
    let mut client = scaler.client().await;
    for (size, code) in [
        (15 * 1024, Code::InvalidArgument),
        (17 * 1024, Code::ResourceExhausted),
        (1024 * 1024, Code::ResourceExhausted),
        (3 * 1024 * 1024, Code::OutOfRange),
        (50 * 1024 * 1024, Code::OutOfRange),
    ] {
        let metadata = [("modelName", &*"x".repeat(size))];
        let status = soon(client.get_metrics(metrics_of("a", &metadata))).await.unwrap_err();
        assert_eq!(status.code(), code, "{size}: {}", status.message());
        assert_eq!(wanted(&mut client, "a").await.unwrap(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d9_connections_that_come_and_go_leave_nothing_behind() {
    let scaler = Scaler::start(&[workload("a", 0, Some(2))]);
    for _ in 0..200 {
        let mut client = scaler.client().await;
        let stream = open_stream(&mut client, "a").await;
        soon(client.get_metric_spec(scaled_object("a", &[]))).await.unwrap();
        assert_eq!(wanted(&mut client, "a").await.unwrap(), 2);
        drop((stream, client));
    }
    eventually("the streams' end", async || (scaler.metrics.open_streams() == 0).then_some(()))
        .await;
    assert_eq!(scaler.tracker("a", &[]).n_streams(), 0);
}

#[tokio::test]
async fn bytes_that_are_no_grpc_end_their_connection_only() {
    let scaler = Scaler::start(&[workload("a", 0, Some(2))]);
    let mut client = scaler.client().await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let garbage: Vec<u8> = (0_u32..4_096).map(|i| i.wrapping_mul(97).to_le_bytes()[0]).collect();
    let after_preface = [&preface[..], &garbage].concat();
    let bombs: [&[u8]; 4] =
        [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &garbage, &after_preface, b"\x16\x03\x01\x02\x00"];
    for bytes in bombs {
        let mut stream = soon(TcpStream::connect(scaler.address)).await.unwrap();
        soon(stream.write_all(bytes)).await.unwrap();
        soon(stream.shutdown()).await.unwrap();
        let mut answer = Vec::new();
        // Whether it is closed or reset, it ends.
        drop(soon(stream.read_to_end(&mut answer)).await);
        assert_eq!(wanted(&mut client, "a").await.unwrap(), 2);
    }
}

#[tokio::test]
async fn a_message_that_is_no_proto_is_an_error_of_that_call_only() {
    let scaler = Scaler::start(&[workload("a", 0, Some(2))]);
    let channel = scaler.channel().await;
    for bytes in [&b"\xff\xff\xff\xff"[..], b"\x0a\x7f", b"\x1a\x02\x0a\x05", b"\x08\x01"] {
        let mut raw = tonic::client::Grpc::new(channel.clone());
        soon(raw.ready()).await.unwrap();
        let path = PathAndQuery::from_static("/externalscaler.ExternalScaler/GetMetrics");
        let request = tonic::Request::new(bytes.to_vec());
        let answer: Result<tonic::Response<Vec<u8>>, _> =
            soon(raw.unary(request, path, super::support::RawCodec)).await;
        assert!(answer.is_err(), "{bytes:?}");
    }
    let mut client = scaler.client().await;
    assert_eq!(wanted(&mut client, "a").await.unwrap(), 2);
}

#[tokio::test]
async fn a_request_in_another_form_is_refused_alone() {
    let scaler = Scaler::start(&[workload("a", 0, Some(2))]);
    let channel = scaler.channel().await;
    // A compressed message is not unpacked, whatever is in it.
    let bomb = b"\x01\x00\x00\x00\x04\x1f\x8b\x08\x00";
    for (content_type, encoding, body, expected) in [
        ("application/grpc", "gzip", &bomb[..], Some("12")),
        ("application/grpc", "identity", bomb, None),
        ("text/plain", "identity", b"", None),
        ("application/json", "identity", b"{}", None),
        ("", "identity", b"", None),
    ] {
        let request = tonic::codegen::http::Request::post(format!(
            "http://{}/externalscaler.ExternalScaler/GetMetrics",
            scaler.address
        ));
        let request =
            request.header("content-type", content_type).header("grpc-encoding", encoding);
        let body = tonic::body::Body::new(axum::body::Body::from(body));
        let request = request.body(body).unwrap();
        let mut channel = channel.clone();
        let response = soon(async {
            std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
            channel.call(request).await
        });
        let response = response.await.unwrap();
        let code = response.headers().get("grpc-status").map(|code| code.to_str().unwrap());
        assert!(response.status() != 200 || code.is_some_and(|code| code != "0"), "{response:?}");
        assert!(expected.is_none() || code == expected, "{response:?}");
    }
    let mut client = scaler.client().await;
    assert_eq!(wanted(&mut client, "a").await.unwrap(), 2);
}

#[tokio::test]
async fn metadata_of_any_kind_is_refused_by_name_or_has_no_effect() {
    let scaler = Scaler::start(&[workload("a", 0, Some(2))]);
    let mut client = scaler.client().await;
    for (key, value) in [
        ("targetInFlight", "NaN"),
        ("targetInFlight", "inf"),
        ("targetInFlight", "-1"),
        ("targetInFlight", "1e308"),
        ("targetInFlight", ""),
        ("sloTtft", "99999999999999999999h"),
        ("metricsPath", "/m{a=\"b\"}"),
        ("podSelector", "a in (\u{0})"),
        ("wakeSource", "../gateway"),
        ("modelName", "a\nb"),
        ("warmSchedule", "start=* * * * *; end=* * * * *; replicas=99999999999"),
        ("", ""),
        ("\u{0}", "\u{0}"),
        ("__name__", "{}=,\"\\"),
        ("\u{202e}sloTtft", "2s"),
    ] {
        let request = metrics_of("a", &[(key, value)]);
        let status = soon(client.get_metrics(request)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{key:?}={value:?}: {status}");
        let text = status.message();
        assert!(text.is_ascii() && text.len() <= 200 && !text.contains('\n'), "{text:?}");
    }
    // The same key twice on the wire is one key of the map, the last.
    let twice =
        b"\x0a\x1e\x0a\x01a\x12\x02ns\x1a\x09\x0a\x04mode\x12\x01x\x1a\x0a\x0a\x04mode\x12\x02ac";
    let mut raw = tonic::client::Grpc::new(scaler.channel().await);
    soon(raw.ready()).await.unwrap();
    let path = PathAndQuery::from_static("/externalscaler.ExternalScaler/GetMetrics");
    let named = [&twice[..], b"\x12\x0fwanted-replicas"].concat();
    let answer: Result<tonic::Response<Vec<u8>>, _> =
        soon(raw.unary(tonic::Request::new(named), path, super::support::RawCodec)).await;
    let status = answer.unwrap_err();
    assert!(status.message().contains("mode=\"ac\""), "{status}");
    assert_eq!(wanted(&mut client, "a").await.unwrap(), 2);
}

#[tokio::test]
async fn a_request_that_stops_halfway_is_given_up() {
    // A body that never ends: the headers are sent, then nothing.
    let scaler = Scaler::start(&[workload("a", 0, Some(2))]);
    let mut raw = tonic::client::Grpc::new(scaler.channel().await);
    soon(raw.ready()).await.unwrap();
    let path = PathAndQuery::from_static("/externalscaler.ExternalScaler/GetMetrics");
    let endless = tonic::Request::new(tokio_stream::pending::<Vec<u8>>());
    let answer: Result<tonic::Response<Vec<u8>>, _> =
        soon(raw.client_streaming(endless, path, super::support::RawCodec)).await;
    assert_eq!(answer.unwrap_err().code(), Code::Cancelled);
}
