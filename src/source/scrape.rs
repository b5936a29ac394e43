//! Direct scrapes: one metrics page of one endpoint, handed on while it arrives.
//!
//! Must not parse the page, choose addresses, or schedule: the tick is the caller's.

mod lanes;

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue, LOCATION};
use reqwest::Url;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::client::{self, Client, Response, Trust};
use super::config::parse_url;
use super::{Error, FileRole};
use crate::inventory::Endpoint;
use crate::signals::exposition::Format;
use lanes::Lanes;

/// vLLM's port where neither the trigger nor the pod names one.
pub const DEFAULT_PORT: u16 = 8000;
/// Where every engine and exporter of `signals` has its page.
pub const DEFAULT_PATH: &str = "/metrics";

const EXPECTED: &str = "a metrics page (text/plain or OpenMetrics)";
/// The one format in which every client library leaves `:` in names as it is.
const ACCEPTED: HeaderValue = HeaderValue::from_static("text/plain;version=0.0.4");

/// Bounds of a [`Scraper`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Deadline of one scrape, from connect to the body's last byte, in milliseconds. Default 2,000.
    pub timeout_ms: u64,
    /// Largest body, in bytes. Default 16 MiB: a vLLM page has 0.1 MB, a DCGM page of 16 GPUs 0.2 MB.
    pub max_body_bytes: u64,
    /// Most scrapes at once; others wait without using up their deadline. Default 64: each takes
    /// about 33 KiB, nearly all of it the connection's buffers, and at 20 ms a page 10,000 endpoints
    /// are read in 3 s. Endpoints that did not answer in time when last asked have a quarter as many
    /// turns of their own, so that a lost zone costs the others nothing.
    pub max_concurrent: usize,
    /// Longest wait for a turn, in milliseconds. Default 5,000, the tick of those who scrape: who
    /// waits longer misses the next one too.
    pub max_wait_ms: u64,
    /// Most connections that are kept between scrapes; the other endpoints get a new one each time.
    /// Default 256: with the scrapes at once, and the listeners' own caps, this stays within the
    /// customary 1,024 descriptors.
    pub max_kept_connections: usize,
    /// The only authority (PEM) for https endpoints. Default: those of the system.
    pub ca_file: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            timeout_ms: 2_000,
            max_body_bytes: 16 * 1024 * 1024,
            max_concurrent: 64,
            max_wait_ms: 5_000,
            max_kept_connections: 256,
            ca_file: None,
        }
    }
}

/// The address of one metrics page.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    url: Url,
}

impl Target {
    /// The page of an endpoint. For a pod, `port` and `path` (the trigger's) come before what the
    /// pod declares, and then [`DEFAULT_PORT`] and [`DEFAULT_PATH`]; a URL stands as it is.
    ///
    /// # Errors
    ///
    /// [`Error::BadAddress`] when a URL is none, is not http or https, or holds credentials.
    pub fn new(
        endpoint: &Endpoint,
        port: Option<u16>,
        path: Option<&str>,
    ) -> Result<Target, Error> {
        let parsed = match endpoint {
            Endpoint::Url(text) => parse_url(text),
            Endpoint::Pod { ip, port: declared } => {
                let port = port.or(*declared).unwrap_or(DEFAULT_PORT);
                parse_url(&format!("http://{}", SocketAddr::new(*ip, port)))
            }
        };
        let mut url = parsed.ok_or(Error::BadAddress)?;
        if let Endpoint::Pod { .. } = endpoint {
            // Not `join`: to it a path such as `//host` is another host.
            url.set_path(path.unwrap_or(DEFAULT_PATH));
        }
        Ok(Target { url })
    }

    /// The page's URL, without credentials by construction.
    #[must_use]
    pub fn url(&self) -> &str {
        self.url.as_str()
    }
}

/// A page whose head has come and whose body has not been read. Holds its turn and its deadline.
#[derive(Debug)]
pub struct Page {
    response: Box<Response>,
    format: Format,
    deadline: Instant,
    deadline_ms: u64,
    max_body_bytes: u64,
    lanes: Arc<Lanes>,
    authority: Box<str>,
    _turn: OwnedSemaphorePermit,
}

impl Page {
    /// The dialect that the server says its body is in.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Reads the body, handing each chunk to `sink` as it arrives; gives its length in bytes.
    /// `sink` can break off, as a parser does that has seen enough; its value is then the answer.
    ///
    /// A body whose length was not announced can end early without an HTTP fault: only the page's
    /// own end (a line feed, `# EOF`) tells, which is the parser's to check.
    ///
    /// # Errors
    ///
    /// Any fault on the way; what `sink` got until then is not a page.
    pub async fn read<B>(
        mut self,
        sink: impl FnMut(&[u8]) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B, u64>, Error> {
        let body = client::read_body(&mut self.response, self.max_body_bytes, sink);
        let read = timeout_at(self.deadline, body).await;
        self.lanes.note(&self.authority, read.is_err());
        read.unwrap_or(Err(Error::Timeout { deadline_ms: self.deadline_ms }))
    }
}

/// Reads metrics pages; clones share connections and bounds.
#[derive(Debug, Clone)]
pub struct Scraper {
    shared: Arc<Shared>,
    lanes: Arc<Lanes>,
}

#[derive(Debug)]
struct Shared {
    plain: Client,
    /// Made when first needed, because it may need the system's authorities.
    secure: OnceLock<Option<Client>>,
    options: Options,
}

impl Scraper {
    /// A scraper with these bounds.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when the CA file cannot be used, [`Error::Setup`] when TLS cannot be set up.
    pub fn new(options: Options) -> Result<Scraper, Error> {
        let client = |trust| Client::new(trust, options.max_kept_connections, options.timeout_ms);
        let secure = OnceLock::new();
        if let Some(path) = &options.ca_file {
            let client = client(Trust::File(path))?;
            secure.get_or_init(|| Some(client));
        }
        let plain = client(Trust::Nobody)?;
        let lanes = Arc::new(Lanes::new(options.max_concurrent));
        Ok(Scraper { lanes, shared: Arc::new(Shared { plain, secure, options }) })
    }

    /// The same scraper for another purpose: it shares connections and bounds, and has
    /// `max_concurrent` turns of its own, so that it never waits for who uses this one.
    #[must_use]
    pub fn with_own_turns(&self, max_concurrent: usize) -> Scraper {
        let lanes = Arc::new(Lanes::new(max_concurrent));
        Scraper { shared: Arc::clone(&self.shared), lanes }
    }

    /// Asks for one page and waits for its head. The deadline runs from here, after the wait for a
    /// turn, to the end of [`Page::read`].
    ///
    /// # Errors
    ///
    /// Any fault until the head has come, a head that does not announce a metrics page included.
    pub async fn open(&self, target: &Target) -> Result<Page, Error> {
        let shared = &*self.shared;
        let client = shared.client(&target.url)?;
        let authority: Box<str> = target.url.authority().into();
        let turn =
            client::turn(self.lanes.of(&authority), Some(shared.options.max_wait_ms)).await?;
        let deadline_ms = shared.options.timeout_ms;
        let deadline = Instant::now() + Duration::from_millis(deadline_ms);
        // Apart from what waits for its turn: that may be thousands.
        let response = timeout_at(deadline, Box::pin(get(client, &target.url))).await;
        // The connector's own deadline ends with this one, and which of them is told is chance.
        let is_late = matches!(response, Err(_) | Ok(Err(Error::Timeout { .. })));
        self.lanes.note(&authority, is_late);
        let response = response.map_err(|_elapsed| Error::Timeout { deadline_ms })??;
        client::check_status(response.status())?;
        client::check_plain(&response, EXPECTED)?;
        let format = format(&response)?;
        let max_body_bytes = shared.options.max_body_bytes;
        let response = Box::new(response);
        let lanes = Arc::clone(&self.lanes);
        Ok(Page {
            response,
            format,
            deadline,
            deadline_ms,
            max_body_bytes,
            lanes,
            authority,
            _turn: turn,
        })
    }
}

impl Shared {
    fn client(&self, url: &Url) -> Result<&Client, Error> {
        if url.scheme() == "http" {
            return Ok(&self.plain);
        }
        let Options { max_kept_connections, timeout_ms, .. } = self.options;
        self.secure
            .get_or_init(|| Client::new(Trust::System, max_kept_connections, timeout_ms).ok())
            .as_ref()
            .ok_or(Error::File {
                what: FileRole::Ca,
                expected: "one to be configured, since the system has no authorities",
                source: None,
            })
    }
}

/// Asks for a page, and follows one redirect to another path of the same server: vLLM sends
/// `/metrics` to `/metrics/`.
async fn get(client: &Client, url: &Url) -> Result<Response, Error> {
    let mut request = Request::new(Full::<Bytes>::default());
    request.headers_mut().insert(ACCEPT, ACCEPTED);
    let response = client.send(url, request.clone()).await?;
    match elsewhere(&response, url) {
        Some(other) => {
            response.skip().await;
            client.send(&other, request).await
        }
        None => Ok(response),
    }
}

/// Where a redirect leads, if it stays on the same server.
fn elsewhere(response: &Response, url: &Url) -> Option<Url> {
    if !response.status().is_redirection() {
        return None;
    }
    let location = response.headers().get(LOCATION)?.to_str().ok()?;
    let other = url.join(location).ok()?;
    (other.origin() == url.origin()).then_some(other)
}

fn format(response: &Response) -> Result<Format, Error> {
    // Without a type Prometheus reads the text format too; some exporters send none.
    let Some(value) = response.headers().get(CONTENT_TYPE) else {
        return Ok(Format::Text);
    };
    let essence = client::media_type(value);
    if essence.eq_ignore_ascii_case("text/plain") {
        Ok(Format::Text)
    } else if essence.eq_ignore_ascii_case("application/openmetrics-text") {
        Ok(Format::OpenMetrics)
    } else {
        Err(Error::BadBody { what: "of another content type", expected: EXPECTED })
    }
}

#[cfg(test)]
mod tests;
