//! Connections to servers: made, and kept while they are idle.
//!
//! Must not speak HTTP.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use reqwest::Url;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tower_service::Service as _;

use super::{KEEP_IDLE, Trust};
use crate::files::{self, MAX_PEM_BYTES};
use crate::source::{BoxError, Error, FileRole};

/// A connection, in plain text or within TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects to servers.
#[derive(Debug)]
pub(super) struct Connector {
    tcp: HttpConnector,
    tls: Arc<ClientConfig>,
    timeout_ms: u64,
}

impl Connector {
    pub(super) fn new(trust: Trust<'_>, timeout_ms: u64) -> Result<Connector, Error> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // Shared among the addresses of a name, so that one that is silent leaves time for the next.
        tcp.set_connect_timeout(Some(Duration::from_millis(timeout_ms)));
        // Named rather than taken from the process, so that no order of start-up matters.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(Error::Setup)?
            .with_root_certificates(authorities(trust)?)
            .with_no_client_auth();
        Ok(Connector { tcp, tls: Arc::new(tls), timeout_ms })
    }

    pub(super) async fn connect(&self, url: &Url) -> Result<Box<dyn Stream>, Error> {
        let uri = Uri::try_from(url.as_str()).map_err(|_invalid| Error::BadAddress)?;
        let tcp = self.tcp.clone().call(uri).await.map_err(|error| {
            let error = BoxError::from(error);
            if is_timeout(&*error) {
                return Error::Timeout { deadline_ms: self.timeout_ms };
            }
            classify(error)
        })?;
        let tcp = tcp.into_inner();
        if url.scheme() != "https" {
            return Ok(Box::new(tcp));
        }
        let host = url.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|_invalid| Error::BadAddress)?;
        let tls = TlsConnector::from(Arc::clone(&self.tls)).connect(name, tcp).await;
        tls.map(|stream| Box::new(stream) as _).map_err(|error| classify(error.into()))
    }
}

fn authorities(trust: Trust<'_>) -> Result<RootCertStore, Error> {
    let mut authorities = RootCertStore::empty();
    match trust {
        Trust::Nobody => {}
        Trust::System => {
            authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if authorities.is_empty() {
                return Err(Error::File {
                    what: FileRole::Ca,
                    expected: "one to be configured, since the system has no authorities",
                    source: None,
                });
            }
        }
        Trust::File(path) => read_authorities(path, &mut authorities)?,
    }
    Ok(authorities)
}

fn read_authorities(path: &Path, authorities: &mut RootCertStore) -> Result<(), Error> {
    let unusable = |source| Error::File {
        what: FileRole::Ca,
        expected: "at least one PEM certificate",
        source,
    };
    let pem = files::read(path, MAX_PEM_BYTES).map_err(|error| unusable(Some(error)))?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|_no_pem| unusable(None))?;
        authorities.add(certificate).map_err(|_no_certificate| unusable(None))?;
    }
    if authorities.is_empty() { Err(unusable(None)) } else { Ok(()) }
}

fn is_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::TimedOut)
}

/// Names a fault on the way to a server or of its head.
pub(super) fn classify(error: BoxError) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&*error);
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

/// Idle connections, each for [`KEEP_IDLE`] at most; looked through whenever one comes back.
pub(super) struct Kept {
    cap: usize,
    // Invariant: at most `cap`, the longest idle first.
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    authority: Box<str>,
    since: Instant,
    stream: Box<dyn Stream>,
}

impl Kept {
    pub(super) fn new(cap: usize) -> Kept {
        Kept { cap, idle: Mutex::default() }
    }

    pub(super) fn take(&self, authority: &str) -> Option<Box<dyn Stream>> {
        let mut idle = self.lock();
        let place = idle.iter().rposition(|idle| *idle.authority == *authority)?;
        let found = idle.remove(place);
        (found.since.elapsed() < KEEP_IDLE).then_some(found.stream)
    }

    pub(super) fn put(&self, authority: &str, stream: Box<dyn Stream>) {
        let mut idle = self.lock();
        idle.retain(|idle| idle.since.elapsed() < KEEP_IDLE);
        if idle.len() < self.cap {
            idle.push(Idle { authority: authority.into(), since: Instant::now(), stream });
        }
    }

    pub(super) fn is_full(&self) -> bool {
        let mut idle = self.lock();
        idle.retain(|idle| idle.since.elapsed() < KEEP_IDLE);
        idle.len() >= self.cap
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Idle>> {
        // A panic while it was held would have left it whole: each change is one call.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("cap", &self.cap).finish_non_exhaustive()
    }
}
