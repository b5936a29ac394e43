//! Where requests go: a server's address, and connections to it with or without TLS.
//!
//! Must not know what is asked there.

use std::error::Error as StdError;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::failure::{Failure, Fault};
use super::named::Named;
use super::stamp::{Stamped, Written};
use crate::files::{self, MAX_PEM_BYTES};

/// A server that takes no connection in this time is down for its users too.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// What one connection may hold of an answer that is not read yet: streams come in small pieces,
/// and ten thousand of them are open at once.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// The longest page that is read: forty times that of a vLLM.
const MOST_PAGE_BYTES: usize = 2 << 20;

/// Why an address or its certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is no address of a server.
    #[error("URL \"{url}\": expected http://HOST[:PORT] or https://HOST[:PORT], without /v1")]
    Url {
        /// As given.
        url: String,
    },
    /// Its port is none.
    #[error("URL \"{url}\": expected a port of 1 to 65535")]
    Port {
        /// As given.
        url: String,
    },
    /// A file with certificates cannot be used.
    #[error("cannot use the certificates in {}", path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// TLS is asked for, and there is no certificate to trust.
    #[error("no certificate to trust on this machine: name a file with --tls-ca")]
    NoRoots,
    /// The TLS library refuses its own set-up.
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
}

/// The connection to one server, idle or in use.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) http: http1::SendRequest<Full<Bytes>>,
    pub(super) driver: Driver,
    /// When bytes were handed to the kernel.
    pub(super) written: Written,
}

impl Connection {
    /// Whether it can be used, as far as it has come to this machine.
    pub(super) async fn is_open(&mut self) -> bool {
        poll_fn(|context| {
            self.driver.drive(context);
            Poll::Ready(())
        })
        .await;
        !self.http.is_closed()
    }
}

/// Moves the bytes of a connection, but only while something is awaited of it: in the task that asks
/// rather than in one of its own, as these would wake each other for every piece of an answer.
pub(super) struct Driver {
    moving: Option<Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>,
    /// What it ended by, if that was told to no request.
    ended: Option<hyper::Error>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.moving.is_some() { "Driver(open)" } else { "Driver(ended)" })
    }
}

impl Driver {
    /// Waits for what is asked of the connection.
    pub(super) async fn until<T>(&mut self, done: impl Future<Output = T>) -> T {
        let mut done = pin!(done);
        poll_fn(|context| {
            if let Poll::Ready(done) = done.as_mut().poll(context) {
                return Poll::Ready(done);
            }
            self.drive(context);
            // What has just come goes on at once, without a turn of the runtime.
            done.as_mut().poll(context)
        })
        .await
    }

    fn drive(&mut self, context: &mut Context<'_>) {
        let moving = self.moving.as_mut();
        if let Some(Poll::Ready(ended)) = moving.map(|moving| moving.as_mut().poll(context)) {
            self.moving = None;
            self.ended = ended.err();
        }
    }

    /// Why a request on a new connection has no answer, of which the request was told `error`.
    pub(super) fn no_answer(&self, error: &hyper::Error) -> Fault {
        match &self.ended {
            // Neither a failure of the socket nor an early end: it spoke before it was asked.
            Some(ended) if ended.source().is_none() && !ended.is_incomplete_message() => {
                Failure::Malformed.because(ended)
            }
            Some(ended) => broken(ended, Failure::Closed),
            None => broken(error, Failure::Closed),
        }
    }
}

/// One server.
#[derive(Clone)]
pub struct Target {
    host: String,
    port: u16,
    /// What is in front of every path.
    prefix: String,
    authority: http::HeaderValue,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url())
    }
}

impl Target {
    /// Reads an address. `tls` gives the certificates to trust, and is asked only for https.
    ///
    /// # Errors
    ///
    /// When the text is no address, or TLS cannot be had.
    pub fn parse(url: &str, tls: &Tls) -> Result<Target, Error> {
        let error = || Error::Url { url: url.to_owned() };
        let uri: http::Uri = url.parse().map_err(|_no_uri| error())?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) | None => return Err(error()),
        };
        let authority = uri.authority().ok_or_else(error)?;
        let is_endpoint = uri.path().trim_end_matches('/').ends_with("/completions");
        if uri.query().is_some() || is_endpoint || authority.as_str().contains('@') {
            return Err(error());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let tls = if is_tls {
            let name = ServerName::try_from(host.clone()).map_err(|_no_name| error())?;
            Some((tls.connector()?, name))
        } else {
            None
        };
        let path = uri.path().trim_end_matches('/');
        // What cannot be read as a port must not become another one, of another server.
        let port = match authority.as_str().strip_prefix(authority.host()).unwrap_or_default() {
            "" | ":" => Some(if tls.is_some() { 443 } else { 80 }),
            text if text.contains('+') => None,
            _ => authority.port_u16().filter(|port| *port > 0),
        };
        Ok(Target {
            port: port.ok_or_else(|| Error::Port { url: url.to_owned() })?,
            host,
            prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
            authority: http::HeaderValue::from_str(authority.as_str())
                .map_err(|_no_header| error())?,
            tls,
        })
    }

    /// The address as a person would write it.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let authority = self.authority.to_str().unwrap_or_default();
        format!("{scheme}://{authority}{}", self.prefix)
    }

    /// The value of the `Host` header.
    pub(super) fn authority(&self) -> http::HeaderValue {
        self.authority.clone()
    }

    /// A path on this server.
    pub(super) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    /// Opens a connection.
    pub(super) async fn connect(&self) -> Result<Connection, Fault> {
        self.connect_within(CONNECT_LIMIT).await
    }

    async fn connect_within(&self, limit: Duration) -> Result<Connection, Fault> {
        let (deadline, limit_s) = (Instant::now() + limit, limit.as_secs_f64());
        let connecting = TcpStream::connect((self.host.as_str(), self.port));
        let connected = timeout_at(deadline, connecting).await.map_err(|_late| {
            Failure::Connect.because(format_args!("no connection within {limit_s} s"))
        })?;
        let stream = connected.map_err(|error| connect_failure(&error).because(&error))?;
        stream.set_nodelay(true).map_err(|error| Failure::Connect.because(&error))?;
        let written = Written::default();
        let stream = Stamped::new(stream, written.clone());
        match &self.tls {
            None => handshake(stream, written).await,
            Some((connector, name)) => {
                let agreeing = connector.connect(name.clone(), stream);
                let agreed = timeout_at(deadline, agreeing).await.map_err(|_late| {
                    Failure::Tls.because(format_args!("no TLS session within {limit_s} s"))
                })?;
                handshake(agreed.map_err(|error| Failure::Tls.because(&error))?, written).await
            }
        }
    }

    /// Asks for a page on a connection of its own; its status and body.
    pub(super) async fn get(&self, path: &str) -> Result<(u16, Bytes), Fault> {
        let Connection { mut http, mut driver, .. } = self.connect().await?;
        let request = http::Request::get(path)
            .header(http::header::HOST, self.authority())
            .body(Full::new(Bytes::new()))
            .map_err(|error| Failure::Malformed.because(error))?;
        let sent = driver.until(http.send_request(request)).await;
        let response = sent.map_err(|error| driver.no_answer(&error))?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), MOST_PAGE_BYTES);
        let body = driver.until(body.collect()).await;
        let body = body.map_err(|error| Failure::CutShort.because(error))?;
        Ok((status, body.to_bytes()))
    }
}

/// A page on a server.
#[derive(Debug, Clone)]
pub struct Page {
    target: Target,
    path: String,
}

impl Page {
    /// Reads the address of a page, with path and query.
    ///
    /// # Errors
    ///
    /// As [`Target::parse`].
    pub fn parse(url: &str, tls: &Tls) -> Result<Page, Error> {
        let error = || Error::Url { url: url.to_owned() };
        let uri: http::Uri = url.parse().map_err(|_no_uri| error())?;
        let (scheme, authority) = uri.scheme_str().zip(uri.authority()).ok_or_else(error)?;
        let target = Target::parse(&format!("{scheme}://{authority}"), tls);
        let target = target.map_err(|error| match error {
            Error::Url { .. } => Error::Url { url: url.to_owned() },
            Error::Port { .. } => Error::Port { url: url.to_owned() },
            Error::Certificates { .. } | Error::NoRoots | Error::Tls(_) => error,
        })?;
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        Ok(Page { target, path: path.to_owned() })
    }

    /// Its status and body.
    pub(crate) async fn get(&self) -> Result<(u16, Bytes), Fault> {
        self.target.get(&self.path).await
    }
}

async fn handshake<S>(stream: S, written: Written) -> Result<Connection, Fault>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (http, connection) = http1::Builder::new()
        .max_buf_size(READ_BUFFER_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| Failure::Connect.because(error))?;
    let driver = Driver { moving: Some(Box::pin(connection)), ended: None };
    Ok(Connection { http, driver, written })
}

/// What an exchange broke on: bytes that are no HTTP, or, where there were too few of them, what the
/// caller knows.
pub(super) fn broken(error: &hyper::Error, too_few: Failure) -> Fault {
    let source = error.source();
    let is_other = |source: &(dyn StdError + 'static)| {
        let kind = source.downcast_ref().map(io::Error::kind);
        matches!(kind, Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData))
    };
    let failure =
        if error.is_parse() || source.is_some_and(is_other) { Failure::Malformed } else { too_few };
    match source {
        Some(source) => failure.because(format_args!("{error}: {source}")),
        None => failure.because(error),
    }
}

/// Whether the server or this machine refused.
fn connect_failure(error: &io::Error) -> Failure {
    /// Too many open files, in this process and on this machine (POSIX, Linux).
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::AddrNotAvailable, _) | (_, Some(EMFILE | ENFILE)) => Failure::ClientLimit,
        (_, _) => Failure::Connect,
    }
}

/// The certificates to trust.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    authorities: Option<PathBuf>,
}

impl Tls {
    /// Trusts the authorities in a PEM file and the servers whose own certificates are in it, or the
    /// authorities of this machine.
    #[must_use]
    pub fn new(authorities: Option<PathBuf>) -> Tls {
        Tls { authorities }
    }

    fn connector(&self) -> Result<TlsConnector, Error> {
        let mut roots = RootCertStore::empty();
        let mut named = Vec::new();
        match &self.authorities {
            Some(path) => {
                named = certificates(path)?;
                for certificate in &named {
                    roots.add(certificate.clone())?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if roots.is_empty() {
            return Err(Error::NoRoots);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Named::new(roots, named, &provider)?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let error = |source| Error::Certificates { path: path.to_owned(), source };
    let pem = files::read(path, MAX_PEM_BYTES).map_err(|source| error(pem::Error::Io(source)))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.map_err(error)?;
    if found.is_empty() { Err(error(pem::Error::NoItemsFound)) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (url, shown, path) in [
            ("http://localhost:8000", "http://localhost:8000", "/v1/models"),
            ("http://localhost:8000/", "http://localhost:8000", "/v1/models"),
            ("http://localhost:8000/v1", "http://localhost:8000", "/v1/models"),
            ("http://gateway/models/a/v1/", "http://gateway/models/a", "/models/a/v1/models"),
            ("http://[::1]:80", "http://[::1]:80", "/v1/models"),
            ("http://localhost:", "http://localhost:", "/v1/models"),
        ] {
            let target = Target::parse(url, &Tls::default()).unwrap();
            assert_eq!((target.url().as_str(), target.path("/v1/models").as_str()), (shown, path));
        }
        for (url, port) in [("http://a", 80), ("http://a:", 80), ("http://[::1]:1/v1", 1)] {
            assert_eq!(Target::parse(url, &Tls::default()).unwrap().port, port, "{url}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for url in [
            "",
            "localhost:8000",
            "ftp://x",
            "http://",
            "http://u:p@x",
            "http://x?a=b",
            "http://x/v1/chat/completions",
            "http://x/v1/completions/",
            "http://x:0",
            "http://x:99999",
            "http://x:abc",
            "http://x:+80",
            "http://x:8000:9",
            "https://[::1]:99999/v1",
        ] {
            let error = Target::parse(url, &Tls::default()).unwrap_err().to_string();
            assert!(error.contains(&format!("\"{url}\"")), "{url}: {error}");
        }
    }

    #[test]
    fn a_page_has_a_port_too() {
        let error = Page::parse("http://a:99999/x?y=z", &Tls::default()).unwrap_err().to_string();
        assert_eq!(error, "URL \"http://a:99999/x?y=z\": expected a port of 1 to 65535");
    }

    #[tokio::test]
    async fn a_server_that_takes_a_connection_and_says_nothing_has_no_tls() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap();
        let tls =
            Tls::new(Some(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/tls/ca.pem").into()));
        let target = |scheme: &str| Target::parse(&format!("{scheme}://{address}"), &tls).unwrap();
        let limit = Duration::from_millis(500);
        let fault = target("https").connect_within(limit).await.unwrap_err();
        assert_eq!(fault.failure, Failure::Tls);
        assert_eq!(fault.example, "no TLS session within 0.5 s");
        assert!(target("http").connect_within(limit).await.is_ok());
    }

    #[test]
    fn certificates_that_are_none_are_refused_by_name() {
        let tls = Tls::new(Some("no/such/ca.pem".into()));
        let error = Target::parse("https://x", &tls).unwrap_err().to_string();
        assert!(error.contains("no/such/ca.pem"), "{error}");
    }
}
