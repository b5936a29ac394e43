//! The socket of one server: open while its process listens, and what becomes of connections.
//!
//! Must not know what is served.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

use super::backend::Life;

/// Connections of all servers together; more wait in the accept queues.
pub(super) const MAX_CONNECTIONS: u32 = 16_384;

/// What a peer has for a request head, and how long a kept connection may be silent: uvicorn's
/// time.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Between tries to get the address again.
const RETRY: Duration = Duration::from_millis(100);

/// Listens at `address` whenever the server's life says so, the first time with `bound`.
pub(super) async fn serve(
    address: SocketAddr,
    mut bound: Option<TcpListener>,
    router: Router,
    mut life: watch::Receiver<Life>,
    slots: Arc<Semaphore>,
) {
    while life.wait_for(Life::is_listening).await.is_ok() {
        let listener = match bound.take() {
            Some(listener) => listener,
            None => match TcpListener::bind(address).await {
                Ok(listener) => listener,
                // Connections of the process before may still hold it.
                Err(_in_use) => {
                    sleep(RETRY).await;
                    continue;
                }
            },
        };
        tokio::select! {
            () = accept(&listener, &router, &life, &slots) => {}
            _closed = closed(life.clone()) => {}
        }
    }
}

async fn closed(mut life: watch::Receiver<Life>) {
    let _ended = life.wait_for(|life| !life.is_listening()).await;
}

async fn accept(
    listener: &TcpListener,
    router: &Router,
    life: &watch::Receiver<Life>,
    slots: &Arc<Semaphore>,
) {
    loop {
        let Ok(slot) = Arc::clone(slots).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (router, life) = (router.clone(), life.clone());
                tokio::spawn(async move {
                    connection(stream, router, life).await;
                    drop(slot);
                });
            }
            // Out of descriptors, or the peer gave up: not in a loop that eats the processor.
            Err(_transient) => sleep(RETRY).await,
        }
    }
}

/// Serves a connection until it ends, its process closes the listener and has answered what is
/// under way, or its process is no more.
async fn connection(stream: TcpStream, router: Router, life: watch::Receiver<Life>) {
    let process = life.borrow().process;
    // Without it events of one answer would wait for each other's acknowledgement.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let serving = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(serving);
    let mut replaced = life.clone();
    let replaced = replaced.wait_for(|life| life.process != process);
    tokio::pin!(replaced);
    tokio::select! {
        _ended = serving.as_mut() => return,
        _cut = replaced.as_mut() => return,
        () = closed(life) => serving.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ended = serving => {}
        _cut = replaced => {}
    }
}
