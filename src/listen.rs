//! The connections of a listener: bounded, and always with room for the next one.
//!
//! Must not know what is served. When all places are taken, the newcomer gets the place of whoever
//! has asked for nothing for longest: peers that only connect, or dawdle, shut nobody out.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep};

/// Time between two attempts to accept while there is no descriptor for a connection.
const PAUSE: Duration = Duration::from_millis(50);

/// The places of one listener; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    cap: usize,
    opened: Instant,
    // Invariant: at most `cap`.
    taken: Mutex<Vec<Arc<Seat>>>,
}

#[derive(Debug)]
struct Seat {
    opened: Instant,
    /// When its peer asked last, above any time at which one came that has not asked yet.
    rank: AtomicU64,
    is_lost: AtomicBool,
    waker: AtomicWaker,
}

/// Added to a rank once its peer has asked.
const HAS_ASKED: u64 = 1 << 63;

/// The place of one connection, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    seat: Arc<Seat>,
    places: Places,
}

/// Notes that the peer of one connection has asked for something.
#[derive(Debug, Clone)]
pub(crate) struct Asking(Arc<Seat>);

impl Places {
    pub(crate) fn new(cap: usize) -> Places {
        Places(Arc::new(Shared { cap, opened: Instant::now(), taken: Mutex::default() }))
    }

    /// Waits for the next connection. A fault of one is not the next one's.
    pub(crate) async fn accept(&self, listener: &TcpListener) -> (TcpStream, SocketAddr, Place) {
        let mut is_told = false;
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => return (stream, peer, self.take()),
                Err(error) if is_the_peers(&error) => {}
                Err(error) => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::warn!(%error, "connections wait: none can be accepted now");
                    }
                    // Whatever is short, such as descriptors, this gives some of it back.
                    take_one_away(&mut self.taken());
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Takes a place, another's if none is free.
    pub(crate) fn take(&self) -> Place {
        let mut taken = self.taken();
        if taken.len() >= self.0.cap {
            take_one_away(&mut taken);
        }
        let opened = self.0.opened;
        let seat = Arc::new(Seat {
            opened,
            rank: AtomicU64::new(nanos_since(opened)),
            is_lost: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        taken.push(Arc::clone(&seat));
        Place { seat, places: self.clone() }
    }

    fn taken(&self) -> MutexGuard<'_, Vec<Arc<Seat>>> {
        // A panic while it was held would have left it whole: each change is one call.
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the place of whoever has asked for nothing for longest.
fn take_one_away(taken: &mut Vec<Arc<Seat>>) {
    let ranks = taken.iter().map(|seat| seat.rank.load(Ordering::Relaxed)).enumerate();
    if let Some((place, _rank)) = ranks.min_by_key(|(_, rank)| *rank) {
        let seat = taken.swap_remove(place);
        seat.is_lost.store(true, Ordering::Release);
        seat.waker.wake();
    }
}

/// Whether the connection that was to be accepted had ended meanwhile.
fn is_the_peers(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

fn nanos_since(then: Instant) -> u64 {
    u64::try_from(then.elapsed().as_nanos()).unwrap_or(u64::MAX) & !HAS_ASKED
}

impl Place {
    pub(crate) fn asking(&self) -> Asking {
        Asking(Arc::clone(&self.seat))
    }

    /// Waits until the place has gone to another.
    pub(crate) async fn lost(&self) {
        std::future::poll_fn(|context| self.poll_lost(context)).await;
    }

    fn poll_lost(&self, context: &Context<'_>) -> Poll<()> {
        self.seat.waker.register(context.waker());
        if self.is_lost() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn is_lost(&self) -> bool {
        self.seat.is_lost.load(Ordering::Acquire)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if let Some(place) = taken.iter().position(|seat| Arc::ptr_eq(seat, &self.seat)) {
            taken.swap_remove(place);
        }
    }
}

impl Asking {
    /// The peer asks for something.
    pub(crate) fn note(&self) {
        self.0.rank.store(HAS_ASKED | nanos_since(self.0.opened), Ordering::Relaxed);
    }
}

/// A connection that ends when its place is lost, or when its first bytes do not come in time.
#[derive(Debug)]
pub(crate) struct Guarded<T> {
    stream: T,
    place: Place,
    opening: Option<Opening>,
}

/// What has to come first, and until when.
#[derive(Debug)]
struct Opening {
    n_missing_bytes: usize,
    deadline: Pin<Box<Sleep>>,
}

impl<T> Guarded<T> {
    /// Guards a connection whose first `n_bytes` have to come within `limit`.
    pub(crate) fn new(stream: T, place: Place, n_bytes: usize, limit: Duration) -> Guarded<T> {
        let opening = Opening { n_missing_bytes: n_bytes, deadline: Box::pin(sleep(limit)) };
        Guarded { stream, place, opening: Some(opening) }
    }

    pub(crate) fn asking(&self) -> Asking {
        self.place.asking()
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.place.poll_lost(context).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let opening = self.opening.as_mut();
        if opening.is_some_and(|opening| opening.deadline.as_mut().poll(context).is_ready()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    fn note_read(&mut self, n_bytes: usize) {
        if let Some(opening) = &mut self.opening {
            opening.n_missing_bytes = opening.n_missing_bytes.saturating_sub(n_bytes);
            if opening.n_missing_bytes == 0 {
                self.opening = None;
            }
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Guarded<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.note_read(buffer.filled().len() - before);
        if read.is_pending() || self.place.is_lost() {
            self.check(context)?;
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Guarded<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_pending() {
            self.check(context)?;
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        if written.is_pending() {
            self.check(context)?;
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Also here: with TLS, what was written may wait for the peer in a flush.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_pending() {
            self.check(context)?;
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        if shut.is_pending() {
            self.check(context)?;
        }
        shut
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::timeout;

    use super::*;

    /// A stream whose peer takes nothing: what was written waits in a flush.
    struct Stuck;

    impl AsyncWrite for Stuck {
        fn poll_write(
            self: Pin<&mut Self>,
            _context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    fn lost(places: &[&Place]) -> Vec<bool> {
        places.iter().map(|place| place.is_lost()).collect()
    }

    #[tokio::test]
    async fn who_loses_its_place_in_a_flush_or_at_its_end_is_gone_too() {
        let places = Places::new(2);
        let [mut flushes, mut ends] =
            [(); 2].map(|()| Guarded::new(Stuck, places.take(), 0, Duration::from_secs(3_600)));
        let (_one, _two) = (places.take(), places.take());
        let limit = Duration::from_secs(30);
        for stuck in [
            timeout(limit, flushes.flush()).await.expect("the flush ends"),
            timeout(limit, ends.shutdown()).await.expect("the end ends"),
        ] {
            assert_eq!(stuck.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        }
    }

    #[tokio::test]
    async fn a_newcomer_gets_the_place_of_who_has_asked_for_nothing_for_longest() {
        let places = Places::new(3);
        let [asked, idle, asks_again] = [places.take(), places.take(), places.take()];
        asked.asking().note();
        asks_again.asking().note();
        asked.asking().note();
        let first = places.take();
        assert_eq!(lost(&[&asked, &idle, &asks_again, &first]), [false, true, false, false]);
        first.asking().note();
        let second = places.take();
        assert_eq!(lost(&[&asked, &asks_again, &first, &second]), [false, true, false, false]);
        drop(second);
        let third = places.take();
        assert_eq!(lost(&[&asked, &first, &third]), [false, false, false]);
        assert_eq!(places.taken().len(), 3);
    }

    #[tokio::test]
    async fn who_waits_for_its_peer_learns_that_its_place_is_lost() {
        let places = Places::new(1);
        let (near, _far) = tokio::io::duplex(64);
        let mut held = Guarded::new(near, places.take(), 0, Duration::from_secs(60));
        let reads = tokio::spawn(async move { held.read_u8().await.unwrap_err().kind() });
        tokio::task::yield_now().await;
        let _newcomer = places.take();
        let ended = timeout(Duration::from_secs(10), reads).await.unwrap().unwrap();
        assert_eq!(ended, io::ErrorKind::ConnectionAborted);
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_open_in_time_ends_and_what_has_opened_may_be_silent() {
        let places = Places::new(2);
        for (sent, ends) in [(&b"PR"[..], true), (b"PRI", false)] {
            let (near, mut far) = tokio::io::duplex(64);
            let mut guarded = Guarded::new(near, places.take(), 3, Duration::from_secs(5));
            far.write_all(sent).await.unwrap();
            let mut bytes = [0; 4];
            let read = timeout(Duration::from_secs(60), guarded.read_exact(&mut bytes)).await;
            assert_eq!(read.is_ok(), ends, "{read:?}");
        }
    }
}
