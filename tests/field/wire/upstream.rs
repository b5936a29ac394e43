//! The other end of the scaler's reads: a page, a Prometheus, a refusal or silence, on a free port.
//!
//! Must not know what is read from it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use jiff::Timestamp;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What it does with each request.
#[derive(Debug, Clone)]
pub(super) enum Act {
    /// Answers with a metrics page.
    Page(String),
    /// Answers every query with these series.
    Series(Vec<Series>),
    /// Refuses the credentials.
    Refuse,
    /// Says nothing.
    Hang,
}

/// One series of a Prometheus.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub(super) labels: Vec<(&'static str, String)>,
    /// Seconds ago, and the value as Prometheus writes it.
    pub(super) samples: Vec<(i64, &'static str)>,
}

/// The server; ends with its value.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) address: SocketAddr,
    act: Arc<Mutex<Act>>,
    n_hanging: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Upstream {
    pub(super) async fn start(act: Act) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let act = Arc::new(Mutex::new(act));
        let n_hanging = Arc::<AtomicUsize>::default();
        let does = Arc::clone(&act);
        let hanging = Arc::clone(&n_hanging);
        let router = Router::new().fallback(move || {
            let act = does.lock().unwrap().clone();
            let hanging = Arc::clone(&hanging);
            async move {
                if matches!(act, Act::Hang) {
                    hanging.fetch_add(1, Ordering::SeqCst);
                }
                answer(act).await
            }
        });
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Upstream { address, act, n_hanging, task }
    }

    /// A metrics page.
    pub(super) async fn page(text: impl Into<String>) -> Upstream {
        Upstream::start(Act::Page(text.into())).await
    }

    pub(super) fn act(&self, act: Act) {
        *self.act.lock().unwrap() = act;
    }

    pub(super) fn show(&self, text: impl Into<String>) {
        self.act(Act::Page(text.into()));
    }

    /// Requests that it has left without an answer.
    pub(super) fn n_hanging(&self) -> usize {
        self.n_hanging.load(Ordering::SeqCst)
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(act: Act) -> Response {
    match act {
        Act::Page(text) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
        }
        Act::Series(series) => axum::Json(matrix(&series)).into_response(),
        Act::Refuse => StatusCode::UNAUTHORIZED.into_response(),
        Act::Hang => std::future::pending().await,
    }
}

/// The answer to a query with a range selector: each series with its own samples.
fn matrix(series: &[Series]) -> serde_json::Value {
    let now_s = Timestamp::now().as_second();
    let result: Vec<_> = series
        .iter()
        .map(|series| {
            let metric: serde_json::Map<_, _> = series
                .labels
                .iter()
                .map(|(label, value)| ((*label).to_owned(), json!(value)))
                .collect();
            let values: Vec<_> =
                series.samples.iter().map(|(age_s, value)| json!([now_s - age_s, value])).collect();
            json!({ "metric": metric, "values": values })
        })
        .collect();
    json!({ "status": "success", "data": { "resultType": "matrix", "result": result } })
}
