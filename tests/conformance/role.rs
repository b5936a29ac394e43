//! The client is KEDA on the wire: its calls, their order, deadlines and user agent.

use super::fault::{Fault, Kind};
use super::scaler::{self, Call};
use super::{args, run};

/// The calls of a run that does nothing but play KEDA.
async fn rehearsal(kind: Kind) -> Vec<Call> {
    let running = scaler::start(kind, Fault::None).await;
    let mut args = args(running.address);
    args.only = vec!["A1".to_owned()];
    let (_outcome, _report) = run(&args).await;
    running.calls()
}

fn count(calls: &[Call], method: &str, by_hpa: bool) -> usize {
    calls.iter().filter(|call| call.method == method && call.deadline.is_some() == by_hpa).count()
}

#[tokio::test]
async fn polls_carry_no_deadline_and_queries_of_the_hpa_60_seconds() {
    let calls = rehearsal(Kind::Count).await;
    assert_eq!(calls[0].method, "GetMetricSpec", "the reconcile comes first");
    // Six polls and two reconciles.
    assert_eq!(count(&calls, "GetMetricSpec", false), 8);
    assert_eq!(count(&calls, "GetMetrics", false), 6);
    assert_eq!(count(&calls, "IsActive", false), 6);
    let queries: Vec<&Call> = calls.iter().filter(|call| call.deadline.is_some()).collect();
    let methods: Vec<&str> = queries.iter().map(|call| call.method).collect();
    let one_query = ["GetMetricSpec", "GetMetrics", "IsActive"];
    assert_eq!(methods, [one_query, one_query].concat());
    for query in queries {
        assert_eq!(query.deadline.as_deref(), Some("60000000u"));
    }
}

#[tokio::test]
async fn each_call_looks_like_grpc_go() {
    for call in rehearsal(Kind::Count).await {
        assert!(call.user_agent.starts_with("grpc-go/"), "{call:?}");
    }
}

#[tokio::test]
async fn both_streams_are_open_and_streamed_specs_are_not_asked_for() {
    let calls = rehearsal(Kind::Streamed).await;
    assert_eq!(count(&calls, "StreamIsActive", false), 1);
    // One in the rehearsal and one to see whether it is offered.
    assert_eq!(count(&calls, "StreamMetricSpec", false), 2);
    // Two reconciles and the first poll, which the first message has not overtaken.
    assert!(count(&calls, "GetMetricSpec", false) <= 3);
    assert_eq!(count(&calls, "GetMetricSpec", true), 0);
    assert_eq!(count(&calls, "GetMetrics", true), 2);
}
