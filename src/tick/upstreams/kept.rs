//! A reader that is kept running, as ticks are: a panic of one must not end the reading of all.
//!
//! Must not know what is read.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tracing::error;

/// Time between a panic and the next start, so that one that repeats itself costs little.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs what `start` gives, and again whenever it has panicked; ends with its value.
pub(super) fn kept_running<F>(
    name: &'static str,
    start: impl Fn() -> F + Send + 'static,
) -> AbortOnDropHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    AbortOnDropHandle::new(tokio::spawn(async move {
        // What outlives a panic is behind locks that are taken anew.
        while AssertUnwindSafe(start()).catch_unwind().await.is_err() {
            error!(reader = name, "a reader panicked and is started again");
            sleep(PAUSE).await;
        }
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_panics_is_started_again_after_a_pause() {
        let n_starts = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&n_starts);
        let started = tokio::time::Instant::now();
        let task = kept_running("test", move || {
            let n = counted.fetch_add(1, Ordering::SeqCst);
            async move { assert_eq!(n, 2, "as often as it takes") }
        });
        task.await.unwrap();
        assert_eq!(n_starts.load(Ordering::SeqCst), 3);
        assert_eq!(started.elapsed(), 2 * PAUSE);
    }
}
