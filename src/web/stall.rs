//! A stream whose peer has to take what it has asked for.
//!
//! Must not bound how long a whole answer takes: only that something of it is taken now and then.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// Ends with an error once a write has waited for `patience` without a byte taken.
#[derive(Debug)]
pub(super) struct Unstalled<S> {
    stream: S,
    patience: Duration,
    // Made at the first write that has to wait, and set anew for each further one.
    deadline: Option<Pin<Box<Sleep>>>,
    waits: bool,
}

impl<S> Unstalled<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Unstalled<S> {
        Unstalled { stream, patience, deadline: None, waits: false }
    }

    /// Passes on what a write came to, unless it has waited for too long.
    fn judge<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = false;
            return written;
        }
        let until = Instant::now() + self.patience;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if !self.waits {
            deadline.as_mut().reset(until);
            self.waits = true;
        }
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Unstalled<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unstalled<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_cut_and_who_takes_little_is_not() {
        let (near, mut far) = tokio::io::duplex(1_000);
        let mut near = Unstalled::new(near, Duration::from_secs(30));
        let taking = tokio::spawn(async move {
            let mut piece = [0; 100];
            for _ in 0..40 {
                tokio::time::sleep(Duration::from_secs(20)).await;
                far.read_exact(&mut piece).await.unwrap();
            }
            far
        });
        near.write_all(&[1; 5_000]).await.unwrap();
        let far = taking.await.unwrap();
        // Nothing is read from here on.
        let error = near.write_all(&[1; 5_000]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(far);
    }
}
