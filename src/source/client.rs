//! The HTTP client under both sources: how it is built, how its faults are named, how a body is read.
//!
//! Must not know what is asked or what an answer means.

use std::error::Error as _;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::{Error, FileRole};

/// How long an idle connection is kept: two rounds of the slowest tick (15 s).
pub(super) const KEEP_IDLE: Duration = Duration::from_secs(30);

/// Which authorities a server's certificate may come from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Trust<'a> {
    /// None: for plain HTTP, which must work in an image without certificates.
    Nobody,
    /// Those of the system.
    System,
    /// Those of a PEM file, and no others.
    File(&'a Path),
}

pub(super) fn build(
    trust: Trust<'_>,
    redirects: Policy,
    max_idle_per_host: usize,
    connect_timeout: Duration,
) -> Result<Client, Error> {
    // Another client of the process may have installed it before; it is the same one.
    rustls::crypto::ring::default_provider().install_default().ok();
    let builder = Client::builder()
        .no_proxy()
        .http1_only()
        .referer(false)
        .redirect(redirects)
        .default_headers(HeaderMap::from_iter([(
            ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        )]))
        // Also bounds connects that outlive their request, which the pool goes on with.
        .connect_timeout(connect_timeout)
        .pool_max_idle_per_host(max_idle_per_host)
        .pool_idle_timeout(KEEP_IDLE);
    let builder = match trust {
        Trust::Nobody => builder.tls_certs_only([]),
        Trust::System => builder,
        Trust::File(path) => builder.tls_certs_only(certificates(path)?),
    };
    builder.build().map_err(Error::Setup)
}

fn certificates(path: &Path) -> Result<Vec<Certificate>, Error> {
    let unusable = |source| Error::File {
        what: FileRole::Ca,
        expected: "at least one PEM certificate",
        source,
    };
    let pem = std::fs::read(path).map_err(|error| unusable(Some(error)))?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) | Err(_) => Err(unusable(None)),
    }
}

/// Waits for a turn, but not for ever: behind a fleet that hangs, who waits is told so.
pub(super) async fn turn(
    turns: &Arc<Semaphore>,
    max_wait_ms: u64,
) -> Result<OwnedSemaphorePermit, Error> {
    timeout(Duration::from_millis(max_wait_ms), Arc::clone(turns).acquire_owned())
        .await
        .map_err(|_elapsed| Error::NoTurn { waited_ms: max_wait_ms })
        .map(|turn| turn.expect("it is never closed"))
}

/// Names a fault before the body.
pub(super) fn classify(error: reqwest::Error, deadline_ms: u64) -> Error {
    let error = error.without_url();
    if error.is_timeout() {
        return Error::Timeout { deadline_ms };
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(inner) = cause {
        if inner.is::<rustls::Error>() {
            return Error::Tls(error);
        }
        cause = match inner.downcast_ref::<io::Error>() {
            Some(io_error) if io_error.kind() == io::ErrorKind::ConnectionRefused => {
                return Error::Refused;
            }
            // An io::Error's `source` skips the error that it wraps.
            Some(io_error) => io_error.get_ref().map(|wrapped| wrapped as _),
            None => inner.source(),
        };
    }
    Error::Transport(error)
}

/// A content type without its parameters; empty if it is not text.
pub(super) fn media_type(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim()
}

/// Refuses a compressed body: it could grow a thousandfold behind the size limit.
pub(super) fn check_plain(response: &Response, expected: &'static str) -> Result<(), Error> {
    match response.headers().get(CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => {
            Err(Error::BadBody { what: "compressed", expected })
        }
        Some(_) | None => Ok(()),
    }
}

pub(super) fn check_status(status: StatusCode) -> Result<(), Error> {
    check_authorized(status)?;
    if status == StatusCode::OK {
        Ok(())
    } else {
        Err(Error::HttpStatus { status: status.as_u16() })
    }
}

pub(super) fn check_authorized(status: StatusCode) -> Result<(), Error> {
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return Err(Error::Unauthorized { status: status.as_u16() });
    }
    Ok(())
}

/// Hands the body to `sink` chunk by chunk; gives its length, or what `sink` broke off with.
pub(super) async fn read_body<B>(
    response: &mut Response,
    max_bytes: u64,
    mut sink: impl FnMut(&[u8]) -> ControlFlow<B>,
) -> Result<ControlFlow<B, u64>, Error> {
    let too_large = Error::TooLarge { limit: max_bytes, unit: "bytes" };
    if response.content_length().is_some_and(|announced| announced > max_bytes) {
        return Err(too_large);
    }
    let mut received_bytes: u64 = 0;
    loop {
        let chunk = match response.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Ok(ControlFlow::Continue(received_bytes)),
            Err(error) => {
                return Err(Error::Incomplete { received_bytes, source: error.without_url() });
            }
        };
        received_bytes = received_bytes.saturating_add(chunk.len() as u64);
        if received_bytes > max_bytes {
            return Err(too_large);
        }
        if let ControlFlow::Break(value) = sink(&chunk) {
            return Ok(ControlFlow::Break(value));
        }
    }
}
