//! Which HTTP exchanges a server counts, and when: at their end, a stream's too.
//!
//! Must not change what is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;

use super::backend::{Backend, InFlight};
use crate::exposition::Exchange;

/// Paths that load an engine; `/load` counts them.
pub(super) const GENERATION: [&str; 2] = ["/v1/completions", "/v1/chat/completions"];
/// Other paths that are counted.
const COUNTED: [&str; 4] = ["/v1/models", "/sleep", "/wake_up", "/is_sleeping"];
/// Paths that are not. Whatever else is asked for is counted as `none`.
const EXCLUDED: [&str; 10] = [
    "/metrics",
    "/v1/metrics",
    "/prometheus/metrics",
    "/health",
    "/health_generate",
    "/slots",
    "/load",
    "/ping",
    "/version",
    super::api::PATHOLOGY,
];

/// An exchange under way.
#[derive(Debug)]
pub(super) struct Counting {
    backend: Arc<Backend>,
    handler: &'static str,
    method: &'static str,
    request_bytes: u64,
    response_bytes: AtomicU64,
    status: AtomicU16,
    start: Instant,
    _in_flight: Option<InFlight>,
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.backend.end_exchange(&Exchange {
            handler: self.handler,
            method: self.method,
            status: self.status.load(Ordering::Relaxed),
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes.load(Ordering::Relaxed),
            duration_s: self.start.elapsed().as_secs_f64(),
            ended_unix_s: self.backend.clock.unix_now_s(),
        });
    }
}

/// Counts an exchange. Its handler gets the count as an extension, and keeps it if it streams.
pub(super) async fn count(
    State(backend): State<Arc<Backend>>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let mut all = GENERATION.iter().chain(&COUNTED).chain(&EXCLUDED);
    if let Some(known) = all.find(|known| **known == path) {
        backend.arrive(known, method_name(request.method().as_str()));
    }
    if EXCLUDED.contains(&path.trim_end_matches('/')) {
        return next.run(request).await;
    }
    let loads = GENERATION.contains(&path);
    let known = GENERATION.iter().chain(&COUNTED).copied().find(|known| *known == path);
    let counting = Arc::new(Counting {
        handler: known.unwrap_or("none"),
        method: method_name(request.method().as_str()),
        request_bytes: content_length(request.headers()),
        response_bytes: AtomicU64::new(0),
        // What a client that goes away before the answer is counted as.
        status: AtomicU16::new(500),
        start: Instant::now(),
        _in_flight: loads.then(|| backend.begin_exchange()),
        backend,
    });
    request.extensions_mut().insert(Arc::clone(&counting));
    let response = next.run(request).await;
    counting.status.store(response.status().as_u16(), Ordering::Relaxed);
    let known = axum::body::HttpBody::size_hint(response.body()).exact().unwrap_or(0);
    counting.response_bytes.store(known, Ordering::Relaxed);
    response
}

fn content_length(headers: &HeaderMap) -> u64 {
    let text = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn method_name(method: &str) -> &'static str {
    let known = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"];
    known.into_iter().find(|known| *known == method).unwrap_or("OTHER")
}
