//! Waiting for what must come.
//!
//! Must not wait for ever.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Tries until `attempt` gives something, for a minute at most: long enough for a machine under load,
/// short enough to see a hang.
pub(crate) async fn eventually<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        assert!(Instant::now() < end, "{what} has not come within a minute");
        sleep(Duration::from_millis(20)).await;
    }
}
