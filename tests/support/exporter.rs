//! A metrics page on a free port, which can be changed and taken away.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The page's server; ends with its value.
#[derive(Debug)]
pub(crate) struct Exporter {
    pub(crate) address: SocketAddr,
    page: Arc<Mutex<String>>,
    task: JoinHandle<()>,
}

impl Exporter {
    pub(crate) async fn start(page: impl Into<String>) -> Exporter {
        let page = Arc::new(Mutex::new(page.into()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shown = Arc::clone(&page);
        let show = move || {
            let text = shown.lock().unwrap().clone();
            // A connection that is kept would outlive the server.
            let head = [(CONTENT_TYPE, "text/plain; version=0.0.4"), (CONNECTION, "close")];
            async move { (head, text) }
        };
        let router = Router::new().route("/metrics", get(show));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Exporter { address, page, task }
    }

    pub(crate) fn show(&self, page: impl Into<String>) {
        *self.page.lock().unwrap() = page.into();
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.task.abort();
    }
}
