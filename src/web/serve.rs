//! The HTTP listener with its bounds: connections, header time, connection age.
//!
//! Must not know what is served.

use std::net::SocketAddr;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutWriter;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::listen::{Place, Places};

/// Connections served at once. A further one, such as a probe, is served all the same, in the place
/// of the one that has asked for nothing for longest. Prometheus and a hundred people with the
/// dashboard open fit; each costs about 20 KiB while it answers.
pub const MAX_CONNECTIONS: usize = 128;

/// Time for a whole request head, and for the next one to come on a kept connection, so that
/// neither slow nor idle peers hold a place for long.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time in which a peer has to take something of its answer, which is kept for it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

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
    let places = Places::new(MAX_CONNECTIONS);
    let connections = TaskTracker::new();
    loop {
        let (stream, peer, place) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = places.accept(&listener) => accepted,
        };
        let (router, shutdown) = (router.clone(), shutdown.clone());
        connections.spawn(connection(stream, peer, place, router, shutdown));
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
    place: Place,
    router: Router,
    shutdown: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let routes = TowerToHyperService::new(router.layer(Extension(Peer(peer))));
    let asking = place.asking();
    let service = service_fn(move |request: Request<Incoming>| {
        asking.note();
        routes.call(request)
    });
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(WRITE_TIMEOUT));
    let serving = builder.serve_connection(TokioIo::new(Box::pin(stream)), service);
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => Some(ended),
        () = shutdown.cancelled() => None,
        () = sleep(MAX_CONNECTION_AGE) => None,
        () = place.lost() => Some(Ok(())),
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
