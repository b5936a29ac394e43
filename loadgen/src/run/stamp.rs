//! A socket that notes when bytes were handed to the kernel: the actual start of a request.
//!
//! Must not change what is read or written.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// When the first bytes since [`Written::begin`] were handed to the kernel.
#[derive(Debug, Clone, Default)]
pub(super) struct Written(Arc<Mutex<Option<Instant>>>);

impl Written {
    /// What is written from here on is another request's.
    pub(super) fn begin(&self) {
        *self.lock() = None;
    }

    /// The moment, if it has come.
    pub(super) fn at(&self) -> Option<Instant> {
        *self.lock()
    }

    fn note(&self) {
        self.lock().get_or_insert_with(Instant::now);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket with its note; TLS lies above it.
#[derive(Debug)]
pub(super) struct Stamped {
    stream: TcpStream,
    written: Written,
}

impl Stamped {
    pub(super) fn new(stream: TcpStream, written: Written) -> Stamped {
        Stamped { stream, written }
    }

    fn noted(&self, wrote: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(wrote, Poll::Ready(Ok(1..))) {
            self.written.note();
        }
        wrote
    }
}

impl AsyncRead for Stamped {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stamped {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.noted(wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.noted(wrote)
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
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_first_bytes_of_each_request_are_noted_and_what_is_read_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut other, _) = listener.accept().await.unwrap();
        let written = Written::default();
        let mut stamped = Stamped::new(stream, written.clone());
        other.write_all(b"x").await.unwrap();
        stamped.read_exact(&mut [0]).await.unwrap();
        assert_eq!(written.at(), None);
        let before = Instant::now();
        stamped.write_all(b"a").await.unwrap();
        let first = written.at().unwrap();
        assert!(first >= before);
        stamped.write_all(b"b").await.unwrap();
        assert_eq!(written.at(), Some(first));
        written.begin();
        assert_eq!(written.at(), None);
        stamped.write_all(b"c").await.unwrap();
        assert!(written.at().unwrap() >= first);
    }
}
