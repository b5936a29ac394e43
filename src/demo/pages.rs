//! The metrics pages of the simulated cluster, over real HTTP: one a pod, the gateway's and that of
//! the GPUs.
//!
//! Must not move the cluster: it answers for the moment at which the cluster stands.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use loadgen::engine::Replica;
use loadgen::exposition::{Dialect, Http, Rank, Server, render};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::NAME;
use super::cluster::Cluster;
use super::gpus::Gpus;

/// The gateway's own metric.
pub(super) const GATEWAY_METRIC: &str = "gateway_requests_held";

/// The cluster, as the pages and the loop share it.
pub(super) type Shared = Arc<Mutex<Site>>;

/// What the pages show.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) cluster: Cluster,
    pub(super) gpus: Gpus,
}

/// The running server; ends with its value.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) address: SocketAddr,
    _server: AbortOnDropHandle<()>,
}

impl Pages {
    /// Serves the pages of `site` on a free port of the loopback.
    pub(super) async fn serve(site: Shared) -> std::io::Result<Pages> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let router = Router::new()
            .route("/pods/{name}/metrics", get(pod))
            .route("/gateway/metrics", get(gateway))
            .route("/dcgm/metrics", get(dcgm))
            .with_state(site);
        let server = tokio::spawn(async move { drop(axum::serve(listener, router).await) });
        Ok(Pages { address, _server: AbortOnDropHandle::new(server) })
    }
}

/// The lock of it; a panic elsewhere has ended the run already.
pub(super) fn lock(site: &Shared) -> MutexGuard<'_, Site> {
    site.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pod that does not listen yet answers 503, where a real one refuses the connection.
async fn pod(State(site): State<Shared>, Path(name): Path<String>) -> (StatusCode, String) {
    let site = lock(&site);
    let pod = site.cluster.pods().iter().find(|pod| *pod.name == *name);
    match pod.filter(|pod| pod.replica.is_listening()) {
        Some(pod) => (StatusCode::OK, page(&pod.replica)),
        None => (StatusCode::SERVICE_UNAVAILABLE, String::new()),
    }
}

async fn dcgm(State(site): State<Shared>) -> String {
    lock(&site).gpus.page()
}

async fn gateway(State(site): State<Shared>) -> String {
    let held = lock(&site).cluster.gauges().held;
    format!("# TYPE {GATEWAY_METRIC} gauge\n{GATEWAY_METRIC} {held}\n")
}

/// The page that vLLM would show.
fn page(replica: &Replica) -> String {
    let (http, mut page) = (Http::default(), String::new());
    let ranks = [Rank::of(replica)];
    let server = Server::new(NAME, &ranks, &http);
    render(&Dialect::VLLM_0_32, &server, &mut page);
    page
}
