//! Where servers listen and when they end: addresses on the command line, ports that follow each
//! other, the system's signals and its limit of open sockets.
//!
//! Must not know what is served.

use std::net::SocketAddr;

use anyhow::Context as _;
use futures_util::future::select_all;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Reads HOST:PORT, where HOST is an IP address or `localhost`.
pub(crate) fn address(text: &str) -> Result<SocketAddr, &'static str> {
    let spelled = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    let read = spelled.parse();
    read.map_err(|_not_an_address| "expected HOST:PORT with an IP address, such as 127.0.0.1:8000")
}

/// Listens so many ports above an address, or on any free port if its port is 0.
pub(crate) async fn bind(first: SocketAddr, higher: usize) -> anyhow::Result<TcpListener> {
    let mut address = first;
    if first.port() != 0 {
        let port = u16::try_from(higher).ok().and_then(|higher| first.port().checked_add(higher));
        address.set_port(port.with_context(|| format!("no port {higher} above {first}"))?);
    }
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("failed to listen on {address}"))
}

/// What ends a program: SIGTERM, SIGINT, and SIGHUP, which comes when its terminal has gone, unless
/// it was started to outlive that (`nohup`).
#[derive(Debug)]
pub(crate) struct Signals(Vec<Signal>);

impl Signals {
    /// Takes them over from their defaults.
    pub(crate) fn watch() -> anyhow::Result<Signals> {
        let hangup = (!ignores_hangup()).then_some(("SIGHUP", SignalKind::hangup()));
        let ends = [("SIGTERM", SignalKind::terminate()), ("SIGINT", SignalKind::interrupt())];
        let watch = |(name, kind)| signal(kind).with_context(|| format!("failed to watch {name}"));
        Ok(Signals(ends.into_iter().chain(hangup).map(watch).collect::<anyhow::Result<_>>()?))
    }

    /// Ends at the first of them since the last call, or since all are watched.
    pub(crate) async fn next(&mut self) {
        let each = self.0.iter_mut().map(|signal| Box::pin(signal.recv()));
        let _which = select_all(each).await;
    }
}

/// Whether whoever started this process had it ignore SIGHUP. Where the system does not tell, not.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // A bit for each signal, from 1 on; SIGHUP is the first.
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|m| m & 1 == 1)
}

/// Lets this process open as many files as the machine allows it, and tells how many.
pub(crate) fn raise_file_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current;
    limit.current = limit.maximum;
    let now = if setrlimit(Resource::Nofile, limit).is_ok() { limit.maximum } else { before };
    now.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for (text, read) in [
            ("localhost:8000", "127.0.0.1:8000"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(address(text), Ok(read.parse().unwrap()));
        }
        for text in ["", "9400", "localhost", "localhost:", "host:80", "127.0.0.1:65536"] {
            assert!(address(text).is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn ports_follow_each_other_up_to_the_last() {
        let first = bind(address("127.0.0.1:0").unwrap(), 7).await.unwrap();
        let taken = first.local_addr().unwrap();
        let error = bind(taken, 0).await.unwrap_err().to_string();
        assert_eq!(error, format!("failed to listen on {taken}"));
        let error = bind(address("127.0.0.1:65535").unwrap(), 1).await.unwrap_err().to_string();
        assert_eq!(error, "no port 1 above 127.0.0.1:65535");
    }
}
