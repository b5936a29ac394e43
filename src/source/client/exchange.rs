//! One request and its answer over one connection, driven by whoever waits for it.
//!
//! Must not trust the other side to end, to pause, or to keep to any proportion: what it may send
//! before it is heard out is counted, and the thread is given up in between.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use http_body_util::Full;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use reqwest::Url;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::MAX_HEAD_BYTES;
use super::connect::{Kept, Stream, classify};
use crate::source::Error;

/// Bytes that are read in one go before others have their turn on the thread. A byte of a chunk's
/// size or of a trailer costs the parser some 50 ns, so this is 3 ms at the worst.
const BURST_BYTES: usize = 64 * 1024;

/// An answer whose head has come. Its connection goes to the kept ones when the body has been read
/// to its end, and is closed when this is dropped before.
#[derive(Debug)]
pub(in crate::source) struct Response {
    status: StatusCode,
    headers: HeaderMap,
    body: Incoming,
    wire: Option<Box<Wire>>,
    budget: Budget,
    authority: Box<str>,
    kept: Arc<Kept>,
}

/// The connection while an exchange is under way.
#[derive(Debug)]
struct Wire {
    sender: SendRequest<Full<Bytes>>,
    connection: Connection<TokioIo<Metered>, Full<Bytes>>,
    ended: bool,
}

pub(super) async fn exchange(
    stream: Box<dyn Stream>,
    request: Request<Full<Bytes>>,
    url: &Url,
    kept: &Arc<Kept>,
) -> Result<Response, Error> {
    let budget = Budget::default();
    let metered = Metered { stream, budget: budget.clone(), burst_bytes: 0 };
    let mut builder = Builder::new();
    builder.read_buf_exact_size(Some(MAX_HEAD_BYTES));
    let (sender, connection) = builder.handshake(TokioIo::new(metered)).await.map_err(fault)?;
    let mut wire = Box::new(Wire { sender, connection, ended: false });
    let mut answer = pin!(wire.sender.send_request(request));
    let answer = std::future::poll_fn(|context| {
        wire.drive(context);
        answer.as_mut().poll(context)
    });
    let (head, body) = answer.await.map_err(fault)?.into_parts();
    Ok(Response {
        status: head.status,
        headers: head.headers,
        body,
        wire: Some(wire),
        budget,
        authority: url.authority().into(),
        kept: Arc::clone(kept),
    })
}

impl Response {
    pub(in crate::source) fn status(&self) -> StatusCode {
        self.status
    }

    pub(in crate::source) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Lets a body of this size come, with as much again for how it is put into chunks.
    pub(super) fn allow(&self, max_body_bytes: u64) {
        self.budget.set(max_body_bytes.saturating_mul(2).saturating_add(MAX_HEAD_BYTES as u64));
    }

    /// The next part of the body; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, hyper::Error> {
        loop {
            let frame = std::future::poll_fn(|context| {
                if let Some(wire) = &mut self.wire {
                    wire.drive(context);
                }
                Pin::new(&mut self.body).poll_frame(context)
            });
            match frame.await {
                // Trailers are not looked at.
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => return Ok(Some(data)),
                    Err(_trailers) => {}
                },
                Some(Err(error)) => return Err(error),
                None => {
                    self.keep().await;
                    return Ok(None);
                }
            }
        }
    }

    /// Gives the connection to the kept ones if the answer has no body, else closes it.
    pub(in crate::source) async fn skip(mut self) {
        if self.body.is_end_stream() {
            self.keep().await;
        }
    }

    async fn keep(&mut self) {
        let Some(mut wire) = self.wire.take() else { return };
        // The other side's wish to close, and bytes beyond the body, show when it is looked at.
        std::future::poll_fn(|context| {
            wire.drive(context);
            Poll::Ready(())
        })
        .await;
        if wire.ended || !wire.sender.is_ready() {
            return;
        }
        let parts = wire.connection.into_parts();
        if parts.read_buf.is_empty() {
            self.kept.put(&self.authority, parts.io.into_inner().stream);
        }
    }
}

impl Wire {
    fn drive(&mut self, context: &mut Context<'_>) {
        // How it ends is told to whoever waits for the head or for the body.
        self.ended = self.ended || Pin::new(&mut self.connection).poll(context).is_ready();
    }
}

/// Names a fault before the body.
fn fault(error: hyper::Error) -> Error {
    if error.is_parse_too_large() || is_too_much(&error) {
        return Error::TooLarge { limit: MAX_HEAD_BYTES as u64, unit: "bytes before its body" };
    }
    classify(error.into())
}

/// How many bytes the other side may still send; the exchange and its connection share one.
#[derive(Debug, Clone)]
struct Budget(Arc<AtomicU64>);

impl Default for Budget {
    fn default() -> Budget {
        Budget(Arc::new(AtomicU64::new(MAX_HEAD_BYTES as u64)))
    }
}

impl Budget {
    fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    fn is_used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    fn take(&self, bytes: usize) {
        let left = self.0.load(Ordering::Relaxed).saturating_sub(bytes as u64);
        self.0.store(left, Ordering::Relaxed);
    }
}

/// The budget is used up.
#[derive(Debug, thiserror::Error)]
#[error("the answer is longer than it may be")]
struct TooMuch;

/// Whether an exchange ended because its budget did.
pub(super) fn is_too_much(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error);
    let cause = cause.and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.and_then(io::Error::get_ref).is_some_and(|cause| cause.is::<TooMuch>())
}

/// A stream that ends when its budget is used up, and pauses after each burst.
struct Metered {
    stream: Box<dyn Stream>,
    budget: Budget,
    /// Since it last let others have the thread.
    burst_bytes: usize,
}

impl std::fmt::Debug for Metered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metered").field("budget", &self.budget).finish_non_exhaustive()
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.budget.is_used_up() {
            return Poll::Ready(Err(io::Error::other(TooMuch)));
        }
        if self.burst_bytes >= BURST_BYTES {
            self.burst_bytes = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let bytes = buffer.filled().len() - before;
        self.budget.take(bytes);
        self.burst_bytes = if read.is_pending() { 0 } else { self.burst_bytes + bytes };
        read
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
