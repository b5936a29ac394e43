//! The HTTP listener with its bounds: connections, header time, connection age.
//!
//! Must not know what is served.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections served at once; more wait in the accept queue. Probes, Prometheus and a hundred
/// people with the dashboard open fit; each costs about 20 KiB while it answers.
pub const MAX_CONNECTIONS: usize = 256;

/// Time for a whole request head, and for the next one to come on a kept connection, so that
/// neither slow nor idle peers hold a place for long.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Age at which a connection is ended after its present answer; one that does not take its answer
/// within [`END_TIMEOUT`] is cut.
pub const MAX_CONNECTION_AGE: Duration = Duration::from_secs(600);

/// Time for the answers that are under way when the server or a connection ends.
pub const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Serves until `shutdown`, then lets answers under way end for [`END_TIMEOUT`].
pub async fn serve(listener: TcpListener, router: Router, shutdown: CancellationToken) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let connections = TaskTracker::new();
    loop {
        let slot = tokio::select! {
            () = shutdown.cancelled() => break,
            slot = Arc::clone(&slots).acquire_owned() => slot,
        };
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (router, shutdown) = (router.clone(), shutdown.clone());
                connections.spawn(async move {
                    connection(stream, peer, router, shutdown).await;
                    drop(slot);
                });
            }
            Err(error) => {
                // Out of descriptors, or the peer gave up: the next accept may do better, but not
                // in a loop that eats the processor.
                tracing::warn!(%error, "http accept failed");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    connections.close();
    if timeout(END_TIMEOUT, connections.wait()).await.is_err() {
        tracing::warn!(connections = connections.len(), "http connections cut at shutdown");
    }
}

/// Serves one connection as if it came from `peer`.
pub(crate) async fn connection<S>(
    stream: S,
    peer: SocketAddr,
    router: Router,
    shutdown: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = TowerToHyperService::new(router.layer(Extension(Peer(peer))));
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => Some(ended),
        () = shutdown.cancelled() => None,
        () = sleep(MAX_CONNECTION_AGE) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            serving.as_mut().graceful_shutdown();
            timeout(END_TIMEOUT, serving).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, error, "http connection ended early");
    }
}
