//! Signals of the operating system as things to await: end on SIGTERM or SIGINT, reload on SIGHUP.
//!
//! Must not know what is shut down or reloaded, nor in which order.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Cancels the returned token at the first SIGTERM or SIGINT.
///
/// Call it before anything that has to be ended in order is started.
///
/// # Errors
///
/// When the handlers cannot be installed.
pub fn on_terminate() -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "shutting down");
        cancelled.cancel();
    });
    Ok(token)
}

/// Requests to reload, one for each SIGHUP; several that come while nobody waits are one.
#[derive(Debug)]
pub struct Reloads(Signal);

impl Reloads {
    /// Takes SIGHUP over from its default, which would end the process.
    ///
    /// # Errors
    ///
    /// When the handler cannot be installed.
    pub fn listen() -> std::io::Result<Reloads> {
        signal(SignalKind::hangup()).map(Reloads)
    }

    /// Waits for the next request. Never returns if no more can come.
    pub async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn send(name: &str) {
        let status = std::process::Command::new("kill")
            .args([&format!("-{name}"), &std::process::id().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    // One test, since signals reach the whole test process: each handler must be in place before
    // the signal is sent.
    #[tokio::test]
    async fn hangup_reloads_and_terminate_ends() {
        let mut reloads = Reloads::listen().unwrap();
        let token = on_terminate().unwrap();
        send("HUP");
        timeout(Duration::from_secs(10), reloads.next()).await.unwrap();
        assert!(!token.is_cancelled());
        send("TERM");
        timeout(Duration::from_secs(10), token.cancelled()).await.unwrap();
    }
}
