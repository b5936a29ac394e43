//! A way between two programs that can be slowed down and cut.
//!
//! Must not help: what is cut is not closed. Nobody is told, new connections are taken and lead
//! nowhere, and what was on the way arrives once the way is open again, as with packets that vanish.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

/// How the way is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Everything passes, each piece later by this much.
    Open(Duration),
    /// Nothing passes, and nothing ends.
    Cut,
}

/// A running relay; its connections end with it.
pub(crate) struct Relay {
    way: Arc<watch::Sender<Way>>,
    _task: AbortOnDropHandle<()>,
}

impl Relay {
    /// Listens at one address and passes on to the other.
    pub(crate) async fn start(at: SocketAddr, to: SocketAddr) -> Relay {
        let listener = TcpListener::bind(at).await.unwrap();
        let way = Arc::new(watch::Sender::new(Way::Open(Duration::ZERO)));
        let shared = Arc::clone(&way);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let (near, _) = accepted.unwrap();
                        let way = shared.subscribe();
                        connections.spawn(async move { pass(near, to, way).await.ok(); });
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Relay { way, _task: AbortOnDropHandle::new(task) }
    }

    /// Makes the way so from now on.
    pub(crate) fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

async fn pass(near: TcpStream, to: SocketAddr, mut way: watch::Receiver<Way>) -> io::Result<()> {
    open(&mut way).await;
    let far = TcpStream::connect(to).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::try_join!(pump(near_in, far_out, way.clone()), pump(far_in, near_out, way))?;
    Ok(())
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut way: watch::Receiver<Way>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        open(&mut way).await;
        let read = from.read(&mut buffer).await;
        // It may have been cut while this was waited for; an end is no more told than the rest.
        sleep(open(&mut way).await).await;
        match read? {
            0 => return to.shutdown().await,
            n_bytes => to.write_all(&buffer[..n_bytes]).await?,
        }
    }
}

/// Waits until the way is open; by how much what passes is late.
async fn open(way: &mut watch::Receiver<Way>) -> Duration {
    let is_open = way.wait_for(|way| *way != Way::Cut).await;
    match is_open.map(|way| *way) {
        Ok(Way::Open(late)) => late,
        Ok(Way::Cut) | Err(_) => Duration::ZERO,
    }
}
