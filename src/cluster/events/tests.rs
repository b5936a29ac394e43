//! Events as an API server gets them, on a real socket.

use std::sync::{Mutex, PoisonError};

use axum::http::{Method, StatusCode, Uri};
use axum::response::IntoResponse as _;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::decision::{Decision, Health};
use crate::web::fixtures;

/// What was written: method, path, body.
type Written = Arc<Mutex<Vec<(Method, String, Value)>>>;

/// An API server that knows one ScaledObject and takes events.
async fn api_server() -> (kube::Client, Written) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let written = Written::default();
    let shared = Arc::clone(&written);
    let answer = move |method: Method, uri: Uri, body: String| {
        let shared = Arc::clone(&shared);
        async move {
            let body: Value = serde_json::from_str(&body).unwrap_or_default();
            if method == Method::GET {
                let is_known = uri.path().ends_with("/namespaces/ns/scaledobjects/llm");
                let object = json!({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
                    "metadata": {"name": "llm", "namespace": "ns", "uid": "the-uid"}});
                let missing = json!({"kind": "Status", "status": "Failure", "reason": "NotFound",
                    "code": 404});
                return if is_known {
                    Json(object).into_response()
                } else {
                    (StatusCode::NOT_FOUND, Json(missing)).into_response()
                };
            }
            let mut written = shared.lock().unwrap_or_else(PoisonError::into_inner);
            written.push((method, uri.path().to_owned(), body.clone()));
            Json(body).into_response()
        }
    };
    let app = Router::new().fallback(answer);
    tokio::spawn(async move { axum::serve(listener, app).await });
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    (kube::Client::try_from(config).unwrap(), written)
}

struct Running {
    written: Written,
    registry: Registry,
    clock: Clock,
    version: u64,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn start(name: &str) -> Running {
        let (client, written) = api_server().await;
        let registry = fixtures::registry([fixtures::workload("ns", name)]);
        let clock = Clock::start();
        let cancel = CancellationToken::new();
        let task = tokio::spawn(run(client, registry.clone(), clock, cancel.clone()));
        Running { written, registry, clock, version: 0, cancel, task }
    }

    /// Publishes a count, and waits until it has been looked at.
    async fn publish(&mut self, name: &str, want: u32) {
        let decision =
            Decision { health: Health::Ok, notices: Box::default(), ..fixtures::wanting(want) };
        let tracker = fixtures::tracker(&self.registry, "ns", name);
        self.version += 1;
        fixtures::publish(&tracker, self.clock, self.version, decision);
        tokio::time::sleep(2 * INTERVAL).await;
    }

    /// All writes, once there are so many.
    async fn end(self, at_least: usize) -> Vec<(Method, String, Value)> {
        let n_written = || self.written.lock().unwrap_or_else(PoisonError::into_inner).len();
        let written = async {
            while n_written() < at_least {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), written).await.expect("they are written");
        self.cancel.cancel();
        self.task.await.unwrap();
        std::mem::take(&mut *self.written.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[tokio::test]
async fn a_step_is_an_event_of_the_scaled_object_and_its_repetition_a_series() {
    let mut running = Running::start("llm").await;
    for want in [1, 0, 1, 0] {
        running.publish("llm", want).await;
    }
    let written = running.end(3).await;
    let [(create, path, slept), (_, _, woke), (patch, _, again)] = written.as_slice() else {
        panic!("{written:#?}");
    };
    assert_eq!(
        (create, path.as_str()),
        (&Method::POST, "/apis/events.k8s.io/v1/namespaces/ns/events")
    );
    assert_eq!((&slept["reason"], &slept["type"]), (&json!("Slept"), &json!("Normal")));
    assert_eq!(slept["regarding"]["uid"], "the-uid");
    assert_eq!(slept["regarding"]["kind"], "ScaledObject");
    assert!(slept["note"].as_str().unwrap().starts_with("1 to 0: "), "{slept}");
    assert_eq!(woke["reason"], "Woke");
    assert_eq!((patch, &again["series"]["count"]), (&Method::PATCH, &json!(2)));
}

#[tokio::test]
async fn nothing_is_written_for_what_is_adopted_and_for_what_is_gone() {
    let mut running = Running::start("gone").await;
    running.publish("gone", 3).await;
    running.publish("gone", 4).await;
    assert!(running.end(0).await.is_empty());
}
