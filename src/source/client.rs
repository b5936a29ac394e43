//! The HTTP client under both sources: how it connects, how its faults are named, how a body is read.
//!
//! Must not know what is asked or what an answer means, and must run nothing by itself: an exchange
//! goes on only while its asker waits, so that who gives up leaves nothing behind.

mod connect;
mod exchange;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, HOST, HeaderValue,
};
use hyper::{Request, StatusCode, Uri};
use reqwest::Url;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Error;
use connect::{Connector, Kept};
use exchange::exchange;

pub(super) use exchange::Response;

/// How long an idle connection is kept: two rounds of the slowest tick (15 s).
const KEEP_IDLE: Duration = Duration::from_secs(30);

/// Most bytes before the body of an answer, whatever they are: a head, or any number of interim
/// answers. Servers themselves send some hundred. It is also what an exchange reads into, so that
/// each that is under way holds no more than this of its answer.
const MAX_HEAD_BYTES: usize = 8 * 1024;

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

/// Asks servers over HTTP/1.1, directly: no proxy, no redirect followed, no cookie.
#[derive(Debug)]
pub(super) struct Client {
    connector: Connector,
    kept: Arc<Kept>,
}

impl Client {
    /// A client that keeps at most `max_kept` idle connections, to all servers together.
    pub(super) fn new(
        trust: Trust<'_>,
        max_kept: usize,
        connect_timeout_ms: u64,
    ) -> Result<Client, Error> {
        let connector = Connector::new(trust, connect_timeout_ms)?;
        Ok(Client { connector, kept: Arc::new(Kept::new(max_kept)) })
    }

    /// Sends a request, whose own URI is not looked at, to this URL and waits for the answer's head.
    pub(super) async fn send(
        &self,
        url: &Url,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response, Error> {
        address(&mut request, url)?;
        if let Some(kept) = self.kept.take(url.authority()) {
            match exchange(kept, request.clone(), url, &self.kept).await {
                // The server has closed it meanwhile. What is asked here may be asked twice.
                Err(Error::Transport(_)) => {}
                answered => return answered,
            }
        }
        if self.kept.is_full() {
            // It will not be kept, and who closes first has the socket for another minute.
            request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let stream = self.connector.connect(url).await?;
        exchange(stream, request, url, &self.kept).await
    }
}

/// Gives a request the target and the headers that every one has.
fn address(request: &mut Request<Full<Bytes>>, url: &Url) -> Result<(), Error> {
    let target = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    *request.uri_mut() = Uri::try_from(target).map_err(|_invalid| Error::BadAddress)?;
    let host = match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(host), None) => host.to_owned(),
        (None, _) => return Err(Error::BadAddress),
    };
    let host = HeaderValue::try_from(host).map_err(|_invalid| Error::BadAddress)?;
    request.headers_mut().insert(HOST, host);
    request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    Ok(())
}

/// Waits for a turn, where a longest wait is given no longer: behind a fleet that hangs, who waits is
/// told so.
pub(super) async fn turn(
    turns: &Arc<Semaphore>,
    max_wait_ms: Option<u64>,
) -> Result<OwnedSemaphorePermit, Error> {
    let turn = Arc::clone(turns).acquire_owned();
    let turn = match max_wait_ms {
        None => turn.await,
        Some(waited_ms) => timeout(Duration::from_millis(waited_ms), turn)
            .await
            .map_err(|_elapsed| Error::NoTurn { waited_ms })?,
    };
    Ok(turn.expect("it is never closed"))
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
    let announced = response.headers().get(CONTENT_LENGTH).and_then(|text| text.to_str().ok());
    if announced.and_then(|text| text.parse::<u64>().ok()).is_some_and(|bytes| bytes > max_bytes) {
        return Err(too_large);
    }
    response.allow(max_bytes);
    let mut received_bytes: u64 = 0;
    loop {
        let chunk = match response.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Ok(ControlFlow::Continue(received_bytes)),
            Err(error) if exchange::is_too_much(&error) => return Err(too_large),
            Err(error) => {
                return Err(Error::Incomplete { received_bytes, source: Box::new(error) });
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
