//! A wire to Prometheus that counts what goes over it, and misbehaves when it is told to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use tokio::net::TcpListener;

/// What the wire does to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// It passes all on.
    Pass,
    /// It wants the token `secret`.
    WantToken,
    /// It answers the first so many with 503.
    FailFirst(usize),
    /// It never answers the first so many.
    HangFirst(usize),
    /// It refuses spans of more than so many seconds, as Prometheus does with too many samples.
    RefuseLonger(u64),
    /// It adds a warning to each answer.
    Warn,
}

/// The wire.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) url: String,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    requests: AtomicUsize,
    open: AtomicUsize,
    most_open: AtomicUsize,
    most_steps: AtomicUsize,
}

impl Wire {
    /// A wire to `upstream`.
    pub(super) async fn start(upstream: &str, act: Act) -> Wire {
        let counts = Arc::new(Counts::default());
        let seen = Arc::clone(&counts);
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let upstream = upstream.to_owned();
        let pass = async move |uri: Uri, headers: HeaderMap, body: Bytes| -> Response {
            let n = seen.requests.fetch_add(1, Ordering::SeqCst);
            let open = seen.open.fetch_add(1, Ordering::SeqCst) + 1;
            seen.most_open.fetch_max(open, Ordering::SeqCst);
            let form = String::from_utf8_lossy(&body).into_owned();
            let span_s = seconds(&form, "end") - seconds(&form, "start");
            let steps = span_s / seconds(&form, "step") + 1;
            seen.most_steps.fetch_max(usize::try_from(steps).unwrap(), Ordering::SeqCst);
            if matches!(act, Act::HangFirst(first) if n < first) {
                seen.open.fetch_sub(1, Ordering::SeqCst);
                return std::future::pending().await;
            }
            let url = format!("{upstream}{}", uri.path());
            let answer = http.post(url).header(CONTENT_TYPE, &headers[CONTENT_TYPE]).body(body);
            let refused = match act {
                Act::WantToken => {
                    headers.get(AUTHORIZATION).is_none_or(|t| t != "Bearer secret").then_some(401)
                }
                Act::FailFirst(first) => (n < first).then_some(503),
                Act::RefuseLonger(most_s) => (span_s > most_s).then_some(422),
                Act::Pass | Act::Warn | Act::HangFirst(_) => None,
            };
            let response = match refused {
                Some(status) => StatusCode::from_u16(status).unwrap().into_response(),
                None => {
                    let answer = answer.send().await.unwrap();
                    let (status, kind) = (answer.status(), answer.headers()[CONTENT_TYPE].clone());
                    let mut text = answer.text().await.unwrap();
                    if act == Act::Warn {
                        text = text.replacen('{', r#"{"warnings":["a store is gone"],"#, 1);
                    }
                    (status, [(CONTENT_TYPE, kind)], text).into_response()
                }
            };
            seen.open.fetch_sub(1, Ordering::SeqCst);
            response
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let router = Router::new().fallback(pass);
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Wire { url: format!("http://{address}"), counts }
    }

    pub(super) fn requests(&self) -> usize {
        self.counts.requests.load(Ordering::SeqCst)
    }

    /// Most requests that were under way at once.
    pub(super) fn most_open(&self) -> usize {
        self.counts.most_open.load(Ordering::SeqCst)
    }

    /// Most steps of one query.
    pub(super) fn most_steps(&self) -> usize {
        self.counts.most_steps.load(Ordering::SeqCst)
    }
}

/// The whole seconds of a value of a form.
fn seconds(form: &str, key: &str) -> u64 {
    let mut pairs = form.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(known, _)| *known == key).unwrap();
    value.split('.').next().unwrap().parse().unwrap()
}
