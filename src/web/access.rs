//! Who may read and write the API.
//!
//! Must not be asked for `/metrics`, `/livez` and `/readyz`, which are open, and must never let the
//! token out, not even by the time a comparison takes.
//!
//! | asked from | reads | writes |
//! |---|---|---|
//! | the scaler's own host | open | open |
//! | elsewhere, token configured | token | token |
//! | elsewhere, no token | open | refused |
//!
//! Reads without a token are open elsewhere too because they show nothing that `/metrics` does not
//! show in numbers; whoever wants them closed configures a token.
//!
//! The own host is a loopback peer that does not speak for somebody else: a service mesh's sidecar
//! and a browser led to `localhost` by a foreign page come from loopback as well, so a request with
//! a forwarding header, a foreign `Origin`, or a `Host` that is neither an IP address nor
//! `localhost` counts as coming from elsewhere.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::{HeaderMap, header};

use tokio::time::timeout;

use super::Error;
use crate::files::{self, MAX_KEY_BYTES};
use crate::token;

/// Tokens are longer than a guess and shorter than a page.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=4_096;

/// Longest time for which a request waits for the token's file.
const MAX_READ: Duration = Duration::from_secs(2);

/// Headers by which proxies, Envoy and Linkerd say that they speak for somebody else.
const FORWARDING: [&str; 5] =
    ["forwarded", "x-forwarded-for", "x-real-ip", "x-envoy-external-address", "l5d-client-id"];

/// What a request wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Look.
    Read,
    /// Change something.
    Write,
}

/// No token can be had from the file.
#[derive(Debug, thiserror::Error)]
#[error(
    "`--api-token-file {}`: expected a file with a token of {} to {} bytes",
    path.display(), TOKEN_BYTES.start(), TOKEN_BYTES.end()
)]
pub struct TokenFile {
    path: PathBuf,
    #[source]
    source: Option<io::Error>,
}

/// The rule of the module's table.
#[derive(Debug, Clone, Default)]
pub struct Access {
    token_file: Option<token::TokenFile>,
}

impl Access {
    /// Access by the token in a file, which is read at each use so that a rotated token counts at
    /// once; without a file, writes only from the own host.
    #[must_use]
    pub fn new(token_file: Option<PathBuf>) -> Access {
        Access { token_file: token_file.map(token::TokenFile::new) }
    }

    /// Reads the token once, so that a file that is of no use is told at the start.
    ///
    /// # Errors
    ///
    /// When there is a file and no token can be had from it.
    pub fn check_file(&self) -> Result<(), TokenFile> {
        let Some(file) = &self.token_file else { return Ok(()) };
        token_of(file.path(), files::read(file.path(), MAX_KEY_BYTES)).map(drop)
    }

    pub(crate) async fn check(
        &self,
        intent: Intent,
        peer: SocketAddr,
        headers: &HeaderMap,
    ) -> Result<(), Error> {
        if is_own_host(peer, headers) {
            return Ok(());
        }
        match (&self.token_file, intent) {
            (None, Intent::Read) => Ok(()),
            (None, Intent::Write) => Err(Error::WritesAreLocal),
            (Some(file), Intent::Read | Intent::Write) => {
                let read =
                    timeout(MAX_READ, file.read()).await.map_err(|_late| Error::TokenFile)?;
                let token = token_of(file.path(), read).map_err(|_unusable| Error::TokenFile)?;
                let given = bearer(headers).ok_or(Error::Token)?;
                if same_bytes(given, &token) { Ok(()) } else { Err(Error::Token) }
            }
        }
    }
}

fn is_own_host(peer: SocketAddr, headers: &HeaderMap) -> bool {
    if !peer.ip().to_canonical().is_loopback() {
        return false;
    }
    if FORWARDING.iter().any(|name| headers.contains_key(*name)) {
        return false;
    }
    let host = match headers.get(header::HOST).map(|host| host.to_str()) {
        Some(Ok(host)) => host,
        Some(Err(_)) => return false,
        // HTTP/1.0; no browser and no proxy speaks it.
        None => return !headers.contains_key(header::ORIGIN),
    };
    if !is_local_name(host) {
        return false;
    }
    match headers.get(header::ORIGIN) {
        None => true,
        Some(origin) => {
            origin.to_str().ok().and_then(|o| o.split_once("://")).map(|o| o.1) == Some(host)
        }
    }
}

fn is_local_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        // The colon of a bare IPv6 address is no port.
        Some((name, port)) if port.chars().all(|c| c.is_ascii_digit()) => name,
        Some(_) | None => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

fn token_of(path: &Path, read: io::Result<Vec<u8>>) -> Result<Vec<u8>, TokenFile> {
    let failed = |source| TokenFile { path: path.to_owned(), source };
    let bytes = read.map_err(|error| failed(Some(error)))?;
    let token = bytes.trim_ascii();
    if TOKEN_BYTES.contains(&token.len()) { Ok(token.to_vec()) } else { Err(failed(None)) }
}

/// Takes the same time wherever the first difference is; only the length may show.
fn same_bytes(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let difference = left.iter().zip(right).fold(0_u8, |all, (l, r)| all | (l ^ r));
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const TOKEN: &str = "0123456789abcdef-secret";

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(header::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        map
    }

    fn token_file(content: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content.as_bytes()).unwrap();
        file
    }

    #[test]
    fn the_own_host_is_a_loopback_peer_that_speaks_for_itself() {
        for (peer, pairs, own) in [
            ("127.0.0.1:1", &[("host", "127.0.0.1:8080")][..], true),
            ("127.0.0.1:1", &[("host", "localhost:8080")], true),
            ("[::1]:1", &[("host", "[::1]:8080")], true),
            ("[::ffff:127.0.0.1]:1", &[("host", "LOCALHOST")], true),
            ("127.0.0.1:1", &[], true),
            ("127.0.0.1:1", &[("host", "localhost:80"), ("origin", "http://localhost:80")], true),
            ("10.0.0.7:1", &[("host", "localhost:8080")], false),
            ("127.0.0.1:1", &[("host", "ghostscaler.keda.svc:8080")], false),
            ("127.0.0.1:1", &[("host", "rebound.example")], false),
            ("127.0.0.1:1", &[("host", "localhost"), ("origin", "https://evil.example")], false),
            ("127.0.0.1:1", &[("host", "localhost"), ("origin", "null")], false),
            ("127.0.0.1:1", &[("host", "localhost"), ("x-forwarded-for", "10.1.1.1")], false),
            ("127.0.0.1:1", &[("host", "localhost"), ("l5d-client-id", "x")], false),
        ] {
            let peer: SocketAddr = peer.parse().unwrap();
            assert_eq!(is_own_host(peer, &headers(pairs)), own, "{peer} {pairs:?}");
        }
    }

    #[tokio::test]
    async fn the_table_of_the_module_holds() {
        let file = token_file(&format!("{TOKEN}\n"));
        let with_token = Access::new(Some(file.path().to_owned()));
        let without = Access::new(None);
        let far: SocketAddr = "10.0.0.7:1".parse().unwrap();
        let near: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let none = headers(&[]);
        let right = headers(&[("authorization", &format!("Bearer {TOKEN}"))]);
        let wrong = headers(&[("authorization", "Bearer 0123456789abcdef-secreT")]);
        let basic = headers(&[("authorization", &format!("Basic {TOKEN}"))]);
        for (access, peer, sent, read, write) in [
            (&without, near, &none, Ok(()), Ok(())),
            (&with_token, near, &none, Ok(()), Ok(())),
            (&without, far, &none, Ok(()), Err(Error::WritesAreLocal)),
            (&without, far, &right, Ok(()), Err(Error::WritesAreLocal)),
            (&with_token, far, &none, Err(Error::Token), Err(Error::Token)),
            (&with_token, far, &wrong, Err(Error::Token), Err(Error::Token)),
            (&with_token, far, &basic, Err(Error::Token), Err(Error::Token)),
            (&with_token, far, &right, Ok(()), Ok(())),
        ] {
            assert_eq!(access.check(Intent::Read, peer, sent).await, read, "{peer} {sent:?}");
            assert_eq!(access.check(Intent::Write, peer, sent).await, write, "{peer} {sent:?}");
        }
    }

    #[tokio::test]
    async fn a_token_file_that_protects_nothing_is_refused() {
        let far: SocketAddr = "10.0.0.7:1".parse().unwrap();
        for content in ["", "\n", "short", &"x".repeat(4_097)] {
            let file = token_file(content);
            let access = Access::new(Some(file.path().to_owned()));
            let sent = headers(&[("authorization", &format!("Bearer {}", content.trim()))]);
            let answer = access.check(Intent::Write, far, &sent).await;
            assert_eq!(answer, Err(Error::TokenFile), "{} bytes", content.len());
        }
        let access = Access::new(Some("/nonexistent/token".into()));
        let answer = access.check(Intent::Read, far, &headers(&[])).await;
        assert_eq!(answer, Err(Error::TokenFile));
    }

    #[tokio::test]
    async fn a_token_file_that_hangs_is_told_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        // A writer that is there and writes nothing.
        let writer = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let access = Access::new(Some(path));
        let far: SocketAddr = "10.0.0.7:1".parse().unwrap();
        let sent = headers(&[("authorization", &format!("Bearer {TOKEN}"))]);
        let answer = timeout(Duration::from_secs(30), access.check(Intent::Write, far, &sent));
        assert_eq!(answer.await.expect("it is not waited for"), Err(Error::TokenFile));
        drop(writer);
    }

    #[tokio::test]
    async fn a_rotated_token_counts_at_once() {
        let file = token_file(TOKEN);
        let access = Access::new(Some(file.path().to_owned()));
        let far: SocketAddr = "10.0.0.7:1".parse().unwrap();
        let old = headers(&[("authorization", &format!("Bearer {TOKEN}"))]);
        assert_eq!(access.check(Intent::Write, far, &old).await, Ok(()));
        std::fs::write(file.path(), "another-token-of-enough-bytes").unwrap();
        assert_eq!(access.check(Intent::Write, far, &old).await, Err(Error::Token));
    }
}
