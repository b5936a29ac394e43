//! Large answers: built one at a time, away from the runtime, and sent while a common bound of bytes
//! allows it.
//!
//! A page of 10,000 workloads has some 20 MB. Whoever reads one slowly holds that much, so that what
//! is under way at once is bounded and not only how many ask.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Error;

/// Most KiB of large answers that are being sent: three of the largest pages.
const MAX_SENDING_KIB: usize = 64 * 1024;

/// What is handed to the connection in one go; with its own buffer all that it can hold unsent.
const PIECE_BYTES: usize = 64 * 1024;

/// The bounds, shared by all requests.
#[derive(Debug, Clone)]
pub(super) struct Large {
    turn: Arc<Semaphore>,
    sending_kib: Arc<Semaphore>,
}

impl Default for Large {
    fn default() -> Large {
        Large {
            turn: Arc::new(Semaphore::new(1)),
            sending_kib: Arc::new(Semaphore::new(MAX_SENDING_KIB)),
        }
    }
}

impl Large {
    /// Builds an answer and sends it.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] when it cannot be built, [`Error::Busy`] when too much is being sent.
    pub(super) async fn answer(
        &self,
        content_type: HeaderValue,
        build: impl FnOnce() -> Option<Vec<u8>> + Send + 'static,
    ) -> Result<Response, Error> {
        let closed = |_| Error::Internal;
        let turn = Arc::clone(&self.turn).acquire_owned().await.map_err(closed)?;
        if self.sending_kib.available_permits() == 0 {
            return Err(Error::Busy);
        }
        // The turn goes with the work: an asker who leaves does not end it.
        let built = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            build()
        });
        let page = Bytes::from(built.await.ok().flatten().ok_or(Error::Internal)?);
        // One that is larger than all goes alone.
        let kib = page.len().div_ceil(1024).clamp(1, MAX_SENDING_KIB);
        let kib = u32::try_from(kib).map_err(|_never| Error::Internal)?;
        let permit = Arc::clone(&self.sending_kib)
            .try_acquire_many_owned(kib)
            .map_err(|_all_taken| Error::Busy)?;
        let length = HeaderValue::from(page.len());
        let mut response = Response::new(Body::from_stream(pieces(page, permit)));
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        response.headers_mut().insert(header::CONTENT_LENGTH, length);
        Ok(response)
    }
}

/// The page in pieces that are taken as the reader reads; the permit ends with the last.
fn pieces(
    page: Bytes,
    permit: OwnedSemaphorePermit,
) -> impl futures_util::Stream<Item = Result<Bytes, std::convert::Infallible>> {
    futures_util::stream::unfold((page, permit), |(mut page, permit)| async move {
        // A copy: a part of the page itself would keep all of it beyond its permit.
        let piece = Bytes::copy_from_slice(&page.split_to(page.len().min(PIECE_BYTES)));
        (!piece.is_empty()).then_some((Ok(piece), (page, permit)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> HeaderValue {
        HeaderValue::from_static("text/plain")
    }

    #[tokio::test]
    async fn a_large_answer_comes_whole() {
        let page: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
        let expected = page.clone();
        let answer = Large::default().answer(text(), || Some(page)).await.unwrap();
        assert_eq!(answer.headers()[header::CONTENT_LENGTH], "1000000");
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        assert_eq!(body, expected);
    }

    #[tokio::test]
    async fn what_slow_readers_hold_is_bounded_and_free_again_when_they_go() {
        let large = Large::default();
        let page = || Some(vec![b'x'; 30 * 1024 * 1024]);
        let first = large.answer(text(), page).await.unwrap();
        let second = large.answer(text(), page).await.unwrap();
        assert_eq!(large.answer(text(), page).await.unwrap_err(), Error::Busy);
        // A small one still goes.
        assert!(large.answer(text(), || Some(b"ok".to_vec())).await.is_ok());
        drop(first);
        let third = large.answer(text(), page).await.unwrap();
        drop((second, third));
        let larger_than_all = || Some(vec![b'x'; MAX_SENDING_KIB * 1024 + 1]);
        drop(large.answer(text(), larger_than_all).await.unwrap());
        assert_eq!(large.answer(text(), || None).await.unwrap_err(), Error::Internal);
    }
}
