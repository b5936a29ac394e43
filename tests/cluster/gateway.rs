//! What stands in front of the engines: it spreads requests over the ready pods, the least busy first,
//! and holds them while there is none.
//!
//! Must not read what is asked or answered: it passes both on as they come.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use futures_util::StreamExt as _;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// How long a request waits for a backend.
const LONGEST_HOLD: Duration = Duration::from_secs(300);
/// How soon a backend that does not listen yet is tried again.
const RETRY: Duration = Duration::from_millis(50);

/// A running gateway; it ends with the runtime.
#[derive(Debug, Clone)]
pub(crate) struct Gateway {
    /// Where clients ask, and where its metrics are.
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    backends: watch::Sender<Vec<SocketAddr>>,
    client: reqwest::Client,
    accepted: AtomicU64,
    held: AtomicU64,
    /// Requests that no engine answered.
    lost: AtomicU64,
    /// Requests at each engine.
    at: Mutex<BTreeMap<SocketAddr, u64>>,
}

impl Gateway {
    /// Starts it without backends.
    pub(crate) async fn start() -> Gateway {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            backends: watch::Sender::new(Vec::new()),
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            accepted: AtomicU64::new(0),
            held: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            at: Mutex::default(),
        });
        let (shown, serving) = (Arc::clone(&shared), Arc::clone(&shared));
        let pass = move |uri: Uri, headers: HeaderMap, body: Bytes| {
            pass_on(Arc::clone(&serving), uri, headers, body)
        };
        let routes = Router::new()
            .route("/metrics", get(move || async move { shown.page() }))
            .route("/v1/{*path}", post(pass));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Gateway { address, shared }
    }

    /// The engines that take requests from now on.
    pub(crate) fn set_backends(&self, backends: Vec<SocketAddr>) {
        self.shared.backends.send_if_modified(|present| {
            let differs = *present != backends;
            *present = backends;
            differs
        });
    }

    /// Requests at engines or held.
    pub(crate) fn in_flight(&self) -> u64 {
        self.shared.at().values().sum::<u64>() + self.shared.held.load(Ordering::Relaxed)
    }

    /// Requests since the start.
    pub(crate) fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Requests that no engine answered.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn at(&self) -> std::sync::MutexGuard<'_, BTreeMap<SocketAddr, u64>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn page(&self) -> String {
        format!(
            "# TYPE gateway_held gauge\ngateway_held {}\n\
             # TYPE gateway_requests_total counter\ngateway_requests_total {}\n",
            self.held.load(Ordering::Relaxed),
            self.accepted.load(Ordering::Relaxed)
        )
    }
}

async fn pass_on(shared: Arc<Shared>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    shared.accepted.fetch_add(1, Ordering::Relaxed);
    let answered = tokio::time::timeout(LONGEST_HOLD, answer(&shared, &uri, &headers, body));
    match answered.await {
        Ok(Ok((answer, busy))) => {
            let (status, kind) = (answer.status(), answer.headers().get("content-type").cloned());
            // The engine counts as busy until its last byte, or until the client has gone.
            let chunks = answer.bytes_stream().map(move |chunk| {
                let _busy = &busy;
                chunk
            });
            let mut response = (status, Body::from_stream(chunks)).into_response();
            if let Some(kind) = kind {
                response.headers_mut().insert("content-type", kind);
            }
            response
        }
        Ok(Err(_)) | Err(_) => {
            shared.lost.fetch_add(1, Ordering::Relaxed);
            StatusCode::BAD_GATEWAY.into_response()
        }
    }
}

/// An engine's answer, once there is one that takes the request.
async fn answer(
    shared: &Arc<Shared>,
    uri: &Uri,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<(reqwest::Response, Busy), reqwest::Error> {
    let mut backends = shared.backends.subscribe();
    let mut held = Some(Held::new(&shared.held));
    loop {
        let busy = Busy::take(shared, &backends.borrow_and_update());
        let Some(busy) = busy else {
            held.get_or_insert_with(|| Held::new(&shared.held));
            backends.changed().await.ok();
            continue;
        };
        let url = format!("http://{}{}", busy.backend, uri.path());
        let request = shared.client.post(url).headers(passed(headers)).body(body.clone());
        drop(held.take());
        match request.send().await {
            // Ready and not listening yet, or gone and still listed: nothing has been taken.
            Err(error) if error.is_connect() => {
                drop(busy);
                held = Some(Held::new(&shared.held));
                tokio::time::sleep(RETRY).await;
            }
            other => return other.map(|answer| (answer, busy)),
        }
    }
}

fn passed(headers: &HeaderMap) -> HeaderMap {
    let kept = ["content-type", "accept", "authorization"];
    let of = |name| headers.get(name).map(|value| (name, value.clone()));
    kept.into_iter()
        .filter_map(of)
        .map(|(name, value)| (axum::http::HeaderName::from_static(name), value))
        .collect()
}

/// One request at an engine, as long as it lives.
#[derive(Debug)]
struct Busy {
    shared: Arc<Shared>,
    backend: SocketAddr,
}

impl Busy {
    /// At the engine with the fewest; none without engines.
    fn take(shared: &Arc<Shared>, backends: &[SocketAddr]) -> Option<Busy> {
        let mut at = shared.at();
        let backend = *backends.iter().min_by_key(|it| at.get(it).copied().unwrap_or(0))?;
        *at.entry(backend).or_default() += 1;
        Some(Busy { shared: Arc::clone(shared), backend })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(count) = self.shared.at().get_mut(&self.backend) {
            *count = count.saturating_sub(1);
        }
    }
}

/// One request without an engine, as long as it lives.
struct Held<'a>(&'a AtomicU64);

impl Held<'_> {
    fn new(count: &AtomicU64) -> Held<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        Held(count)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
