//! What the integration tests share: real servers on free ports, and bounded waits.
//!
//! Must not stand in for anything that can be run for real.

pub(crate) mod exporter;
pub(crate) mod prometheus;

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Tries until `attempt` gives something, for thirty seconds at most.
pub(crate) async fn eventually<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        assert!(Instant::now() < end, "{what} has not come within thirty seconds");
        sleep(Duration::from_millis(100)).await;
    }
}
