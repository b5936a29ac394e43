//! Costs as an API server gets them, on a real socket.

use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

use axum::http::{Method, StatusCode, Uri};
use axum::{Json, Router};
use serde_json::Value;
use tokio::task::JoinHandle;

use super::*;
use crate::decision::{
    Decision, Engine, EngineSample, KeptSample, Mode, Moment, Observation, Phase, Reading, Spec,
    Why,
};
use crate::registry::{Published, Tracker};
use crate::web::fixtures;

/// What was written: the pod and its cost.
type Seen = Arc<Mutex<Vec<(String, String)>>>;

async fn api_server(status: StatusCode) -> (kube::Client, Seen) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Seen::default();
    let shared = Arc::clone(&seen);
    let answer = move |method: Method, uri: Uri, body: String| {
        let shared = Arc::clone(&shared);
        async move {
            assert_eq!(method, Method::PATCH, "nothing but patches: {uri}");
            let pod = uri.path().strip_prefix("/api/v1/namespaces/ns/pods/").unwrap().to_owned();
            let body: Value = serde_json::from_str(&body).unwrap();
            let cost = body["metadata"]["annotations"][COST].as_str().unwrap().to_owned();
            shared.lock().unwrap_or_else(PoisonError::into_inner).push((pod, cost));
            let answer = if status.is_success() {
                json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                    "metadata": {"name": "x"}})
            } else {
                // As the real one does, with the pod's name in its words.
                json!({"apiVersion": "v1", "kind": "Status", "status": "Failure",
                    "code": status.as_u16(), "reason": "", "message": uri.path()})
            };
            (status, Json(answer))
        }
    };
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    (kube::Client::try_from(config).unwrap(), seen)
}

struct Running {
    seen: Seen,
    tracker: Arc<Tracker>,
    clock: Clock,
    version: u64,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn start(ranks_pods: bool) -> Running {
        Running::at(StatusCode::OK, ranks_pods).await
    }

    /// At an API server that answers every write with this status.
    async fn at(status: StatusCode, ranks_pods: bool) -> Running {
        let (client, seen) = api_server(status).await;
        let mut workload = fixtures::workload("ns", "llm");
        workload.kubernetes.ranks_pods = ranks_pods;
        let registry = fixtures::registry([workload]);
        let (clock, cancel) = (Clock::start(), CancellationToken::new());
        let tracker = fixtures::tracker(&registry, "ns", "llm");
        let task = tokio::spawn(run(client, registry, clock, cancel.clone()));
        Running { seen, tracker, clock, version: 0, cancel, task }
    }

    /// Publishes a count over what these engines do, and waits until it has been looked at.
    async fn publish(&mut self, want: u32, mode: Mode, engines: Vec<Engine>) {
        let mut decision = fixtures::wanting(want);
        decision.next.down_in_ms = None;
        self.publish_decision(decision, mode, engines).await;
    }

    async fn publish_decision(&mut self, decision: Decision, mode: Mode, engines: Vec<Engine>) {
        self.tracker.observed.store(Some(Arc::new(observed(engines))));
        self.version += 1;
        self.tracker.publish(Published {
            version: self.version,
            at: self.clock.now(),
            answer: decision.answer,
            decision: Some(Arc::new(decision)),
            spec: Some(Arc::new(Spec { mode, ..Spec::default() })),
        });
        sleep(2 * INTERVAL).await;
    }

    /// All writes, once there are so many.
    async fn end(self, at_least: usize) -> Vec<(String, String)> {
        let n_written = || self.seen.lock().unwrap_or_else(PoisonError::into_inner).len();
        let written = async {
            while n_written() < at_least {
                sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), written).await.expect("they are written");
        self.cancel.cancel();
        self.task.await.unwrap();
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn engine(id: &str, reading: Reading<KeptSample>) -> Engine {
    Engine { id: id.into(), phase: Phase::Ready, ready_ms: None, reading }
}

fn running(id: &str, running: f64) -> Engine {
    let value =
        EngineSample { running: Some(running), waiting: Some(0.0), ..EngineSample::default() };
    engine(id, Reading::Fresh { value: KeptSample::from(value), age_ms: 0 })
}

fn three() -> Vec<Engine> {
    vec![running("a", 12.0), running("b", 0.0), running("c", 7.0)]
}

fn observed(engines: Vec<Engine>) -> Observation {
    Observation { engines: engines.into(), ..Observation::default() }
}

fn costs(written: &[(String, String)]) -> Vec<(&str, &str)> {
    written.iter().map(|(pod, cost)| (pod.as_str(), cost.as_str())).collect()
}

#[tokio::test]
async fn f75_before_a_step_down_each_pod_costs_its_requests_so_that_the_idle_one_goes() {
    let mut api = Running::start(true).await;
    api.publish(3, Mode::Act, three()).await;
    assert!(api.seen.lock().unwrap().is_empty(), "no step is near: nothing is written");
    api.publish(2, Mode::Act, three()).await;
    // The same load again, and one that has changed within the same sync of the HPA.
    api.publish(2, Mode::Act, vec![running("a", 11.0), running("b", 0.0), running("c", 7.0)]).await;
    assert_eq!(costs(&api.end(3).await), [("a", "12"), ("c", "7"), ("b", "0")]);
}

#[tokio::test]
async fn f73_a_pod_whose_load_is_not_known_is_none_of_the_idle() {
    let mut api = Running::start(true).await;
    let silent = engine("b", Reading::Missing { why: Why::Timeout });
    api.publish(2, Mode::Act, vec![running("a", 3.0), silent, running("c", 0.0)]).await;
    assert_eq!(costs(&api.end(3).await), [("b", "1000000"), ("a", "3"), ("c", "0")]);
}

#[tokio::test]
async fn costs_are_written_before_the_evidence_for_a_step_is_whole() {
    let mut api = Running::start(true).await;
    let mut decision = fixtures::wanting(3);
    decision.next.down_in_ms = Some(60_000);
    api.publish_decision(decision.clone(), Mode::Act, three()).await;
    assert!(api.seen.lock().unwrap().is_empty(), "a minute is not near");
    decision.next.down_in_ms = Some(15_000);
    api.publish_decision(decision, Mode::Act, three()).await;
    assert_eq!(api.end(3).await.len(), 3);
}

#[tokio::test]
async fn nothing_is_written_in_shadow_or_to_pods_that_nobody_ranks() {
    let mut shadow = Running::start(true).await;
    shadow.publish(2, Mode::Shadow, three()).await;
    assert!(shadow.end(0).await.is_empty());
    let mut of_a_set = Running::start(false).await;
    of_a_set.publish(2, Mode::Act, three()).await;
    assert!(of_a_set.end(0).await.is_empty());
}

#[tokio::test]
async fn a_namespace_whose_pods_may_not_be_written_is_asked_once() {
    let mut api = Running::at(StatusCode::FORBIDDEN, true).await;
    api.publish(2, Mode::Act, three()).await;
    api.publish(2, Mode::Act, three()).await;
    assert_eq!(costs(&api.end(1).await), [("a", "12")]);
}

#[test]
fn a_step_that_does_not_come_is_written_for_less_and_less() {
    let mut written = Written::default();
    let mut writes = Vec::new();
    for second in 0..1_800_i64 {
        // A load that changes each second.
        let load = observed(vec![running("a", if second % 2 == 0 { 1.0 } else { 2.0 })]);
        if !wanted(&load, &mut written, Moment(second * 1_000)).is_empty() {
            writes.push(second);
        }
    }
    let gaps: Vec<i64> = writes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // Odd: in every other second the load is the written one again.
    assert_eq!(gaps, [15, 31, 61, 121, 241, 301, 301, 301, 301]);
    let later = wanted(&observed(vec![running("a", 3.0)]), &mut written, Moment(3_000_000));
    assert_eq!(later, [("a".into(), 3)]);
    let soon = wanted(&observed(vec![running("a", 4.0)]), &mut written, Moment(3_015_000));
    assert_eq!(soon, [("a".into(), 4)], "after a long pause it begins anew");
}

#[test]
fn a_cost_is_written_anew_when_it_has_changed_and_no_sooner_than_a_sync() {
    let mut written = Written::default();
    let first = wanted(&observed(vec![running("a", 1.0)]), &mut written, Moment(0));
    assert_eq!(first, [("a".into(), 1)]);
    let two = observed(vec![running("a", 2.0)]);
    assert_eq!(wanted(&two, &mut written, Moment(14_999)), []);
    assert_eq!(wanted(&two, &mut written, Moment(15_000)), [("a".into(), 2)]);
    assert_eq!(wanted(&two, &mut written, Moment(60_000)), []);
    wanted(&observed(Vec::new()), &mut written, Moment(60_000));
    assert!(written.is_empty(), "pods that are gone are forgotten");
}
