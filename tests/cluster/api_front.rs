//! The API server as one pair of scalers reaches it: plain HTTP in front of the real one, where it can
//! be made to refuse, and where writes are counted on the wire.
//!
//! Must pass on everything else as it is; the rights are those of the scaler's own ServiceAccount.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

/// Larger than any object that a scaler writes.
const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;

/// The running front.
pub(crate) struct ApiFront {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Shared {
    /// Three of four requests are answered 429.
    refuses: AtomicBool,
    n_requests: AtomicUsize,
    n_refused: AtomicUsize,
    /// Method and path of every write that was passed on.
    writes: Mutex<Vec<String>>,
}

impl ApiFront {
    /// Starts it with these rights.
    pub(crate) async fn start(kubeconfig: &Path) -> ApiFront {
        let client = ghostscaler::cluster::connect(Some(kubeconfig)).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let state = Arc::clone(&shared);
        let app = Router::new()
            .fallback(move |request| answer(client.clone(), Arc::clone(&state), request));
        let serving = async move { axum::serve(listener, app).await.unwrap() };
        ApiFront { address, shared, _task: AbortOnDropHandle::new(tokio::spawn(serving)) }
    }

    /// Has too much to do, or no more.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.shared.refuses.store(refuses, Ordering::SeqCst);
    }

    /// How many requests were refused.
    pub(crate) fn n_refused(&self) -> usize {
        self.shared.n_refused.load(Ordering::SeqCst)
    }

    /// Writes to paths with this in them.
    pub(crate) fn n_writes(&self, part: &str) -> usize {
        let writes = self.shared.writes.lock().unwrap_or_else(PoisonError::into_inner);
        writes.iter().filter(|write| write.contains(part)).count()
    }
}

async fn answer(client: kube::Client, shared: Arc<Shared>, request: Request) -> Response {
    let n_before = shared.n_requests.fetch_add(1, Ordering::SeqCst);
    if shared.refuses.load(Ordering::SeqCst) && !n_before.is_multiple_of(4) {
        shared.n_refused.fetch_add(1, Ordering::SeqCst);
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
            "message": "too many requests", "reason": "TooManyRequests", "code": 429});
        let after = [(header::RETRY_AFTER, "1"), (header::CONTENT_TYPE, "application/json")];
        return (StatusCode::TOO_MANY_REQUESTS, after, status.to_string()).into_response();
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_BODY_BYTES).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    if parts.method != Method::GET {
        // Who creates something names it in the body alone.
        let created = serde_json::from_slice::<serde_json::Value>(&body).unwrap_or_default();
        let name = created["metadata"]["name"].as_str().filter(|_| parts.method == Method::POST);
        let write = format!("{} {}/{}", parts.method, parts.uri.path(), name.unwrap_or_default());
        shared.writes.lock().unwrap_or_else(PoisonError::into_inner).push(write);
    }
    let mut passed = axum::http::Request::builder().method(parts.method).uri(parts.uri);
    for name in [header::ACCEPT, header::CONTENT_TYPE] {
        if let Some(value) = parts.headers.get(&name) {
            passed = passed.header(name, value);
        }
    }
    let passed = passed.body(kube::client::Body::from(body)).unwrap();
    match client.send(passed).await {
        Ok(answer) => answer.map(Body::new),
        Err(_away) => StatusCode::BAD_GATEWAY.into_response(),
    }
}
