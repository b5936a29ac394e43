//! A client of Prometheus's query API: instant and range queries, bounded and strictly decoded.
//!
//! Must not build queries from text of tenants (see `selector`) or give meaning to series.

mod decode;

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, DATE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use reqwest::Url;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::client::{self, Client, Response, Trust};
use super::config::{PrometheusConfig, parse_url};
use super::selector::{LabelName, NamespaceLabel, Namespaces, Query, Selector};
use super::{Error, FileRole};
use crate::decision::Moment;
use crate::token::TokenFile;

pub use decode::{Answer, Labels, Sample, Series};

/// Most bytes of one answer: at about 500 bytes a series (eight labels, eight samples), one
/// namespace of 1,700 pods with 40 series each. A sample takes at least 14 bytes, so that at most
/// 2.4 million of 16 bytes each are held at once.
pub const MAX_ANSWER_BYTES: u64 = 32 * 1024 * 1024;
/// Most bytes that are read of an answer that reports a fault.
const MAX_FAULT_BYTES: u64 = 64 * 1024;
/// Most queries to one server at once, of the 20 that Prometheus runs for all its users.
const MAX_CONCURRENT: usize = 8;
/// Longest wait for one of them, for who asks on behalf of single workloads: the tick of those.
const MAX_WAIT_MS: u64 = 5_000;
const EXPECTED: &str = "an answer of the Prometheus query API";

/// Asks one Prometheus; clones share connections and bounds.
#[derive(Debug, Clone)]
pub struct PrometheusClient {
    shared: Arc<Shared>,
    turns: Arc<Semaphore>,
    /// Longest wait for a turn; `None` where all who wait are one reader's questions.
    max_wait_ms: Option<u64>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    instant: Url,
    range: Url,
    token_file: Option<TokenFile>,
    timeout_ms: u64,
    matchers: BTreeMap<LabelName, String>,
}

impl PrometheusClient {
    /// A client for a configured server. Who asks more at once than it lets waits for a turn, which
    /// comes, since each query ends at its deadline: with a longest wait the same ones would be
    /// turned away each time.
    ///
    /// # Errors
    ///
    /// [`Error::BadAddress`] when its URL cannot be asked, [`Error::File`] when its CA file cannot
    /// be used, [`Error::Setup`] when TLS cannot be set up.
    pub fn new(config: &PrometheusConfig) -> Result<PrometheusClient, Error> {
        let base = parse_url(&config.url).ok_or(Error::BadAddress)?;
        let trust = match &config.ca_file {
            Some(path) => Trust::File(path),
            None if base.scheme() == "https" => Trust::System,
            None => Trust::Nobody,
        };
        Ok(PrometheusClient {
            turns: Arc::new(Semaphore::new(MAX_CONCURRENT)),
            max_wait_ms: None,
            shared: Arc::new(Shared {
                client: Client::new(trust, MAX_CONCURRENT, config.timeout_ms)?,
                instant: below(&base, "api/v1/query"),
                range: below(&base, "api/v1/query_range"),
                token_file: config.bearer_token_file.clone().map(TokenFile::new),
                timeout_ms: config.timeout_ms,
                matchers: config.matchers.clone(),
            }),
        })
    }

    /// The same client for another purpose: it shares connections, and has `max_concurrent` turns
    /// of its own, so that it never waits for who uses this one, and for no turn longer than 5 s.
    #[must_use]
    pub fn with_own_turns(&self, max_concurrent: usize) -> PrometheusClient {
        let turns = Arc::new(Semaphore::new(max_concurrent));
        let max_wait_ms = Some(MAX_WAIT_MS);
        PrometheusClient { shared: Arc::clone(&self.shared), turns, max_wait_ms }
    }

    /// A selector within these namespaces and the server's configured matchers.
    #[must_use]
    pub fn selector(&self, namespaces: &Namespaces, label: NamespaceLabel) -> Selector {
        let matchers = self.shared.matchers.iter();
        matchers.fold(Selector::within(namespaces, label), |selector, (label, value)| {
            selector.with(label, value)
        })
    }

    /// Evaluates a query now: a vector or a scalar, or the matrix of a range selector, whose
    /// samples keep their own timestamps.
    ///
    /// # Errors
    ///
    /// Any fault on the way, or of the query.
    pub async fn instant(&self, query: &Query) -> Result<Answer, Error> {
        self.ask(&self.shared.instant, &[("query", query.as_str())]).await
    }

    /// Evaluates a query at each step of a span: a matrix.
    ///
    /// # Errors
    ///
    /// Any fault on the way, or of the query. Prometheus refuses more than 11,000 steps.
    pub async fn range(
        &self,
        query: &Query,
        from: Moment,
        to: Moment,
        step_ms: u64,
    ) -> Result<Answer, Error> {
        let step_ms = i64::try_from(step_ms).unwrap_or(i64::MAX);
        let [from, to, step] = [from.0, to.0, step_ms].map(seconds);
        let form =
            [("query", query.as_str()), ("start", &from), ("end", &to), ("step", step.as_str())];
        self.ask(&self.shared.range, &form).await
    }

    async fn ask(&self, url: &Url, form: &[(&str, &str)]) -> Result<Answer, Error> {
        let shared = &*self.shared;
        let deadline_ms = shared.timeout_ms;
        let _turn = client::turn(&self.turns, self.max_wait_ms).await?;
        // Prometheus should not go on with a query whose answer nobody waits for.
        let give_up = format!("{deadline_ms}ms");
        let form = [form, &[("timeout", &give_up)]].concat();
        let mut encoded = url.clone();
        encoded.query_pairs_mut().extend_pairs(form);
        let mut request = Request::new(Full::from(encoded.query().unwrap_or_default().to_owned()));
        *request.method_mut() = Method::POST;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        let exchange = async {
            if let Some(file) = &shared.token_file {
                request.headers_mut().insert(AUTHORIZATION, bearer(file).await?);
            }
            // A redirect is not followed: it could carry the token to another server.
            read_answer(shared.client.send(url, request).await?).await
        };
        timeout(Duration::from_millis(deadline_ms), exchange)
            .await
            .unwrap_or(Err(Error::Timeout { deadline_ms }))
    }
}

async fn read_answer(mut response: Response) -> Result<Answer, Error> {
    client::check_plain(&response, EXPECTED)?;
    let status = response.status();
    if status != StatusCode::OK {
        // 401 and 403 come from whatever stands before Prometheus; their bodies say nothing typed.
        client::check_authorized(status)?;
        // What cannot be read only leaves the fault's kind to the status.
        let body = read_whole(&mut response, MAX_FAULT_BYTES).await.unwrap_or_default();
        return Err(decode::fault(status.as_u16(), &body));
    }
    let content_type = response.headers().get(CONTENT_TYPE).map(client::media_type);
    if !content_type.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        return Err(Error::BadBody { what: "of another content type", expected: EXPECTED });
    }
    let told_at = response.headers().get(DATE).and_then(moment);
    let body = read_whole(&mut response, MAX_ANSWER_BYTES).await?;
    Ok(Answer { told_at, ..decode::answer(&body)? })
}

fn moment(date: &HeaderValue) -> Option<Moment> {
    let told = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date.as_bytes()).ok()?;
    Some(Moment(told.as_millisecond()))
}

async fn read_whole(response: &mut Response, max_bytes: u64) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    let read = client::read_body(response, max_bytes, |chunk| {
        body.extend_from_slice(chunk);
        ControlFlow::<std::convert::Infallible>::Continue(())
    });
    match read.await? {
        ControlFlow::Continue(_length) => Ok(body),
    }
}

/// The token as it stands in its file now: a rotated one is used at once.
async fn bearer(file: &TokenFile) -> Result<HeaderValue, Error> {
    let unusable = |source: Option<io::Error>| Error::File {
        what: FileRole::Token,
        expected: "one line with a bearer token",
        source,
    };
    let bytes = file.read().await.map_err(|error| unusable(Some(error)))?;
    let token = bytes.trim_ascii();
    if token.is_empty() || token.iter().any(u8::is_ascii_whitespace) {
        return Err(unusable(None));
    }
    let mut value = HeaderValue::from_bytes(&[b"Bearer ", token].concat())
        .map_err(|_invalid| unusable(None))?;
    value.set_sensitive(true);
    Ok(value)
}

fn below(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    url.set_path(&format!("{}/{path}", base.path().trim_end_matches('/')));
    url
}

/// Milliseconds as Prometheus reads times and steps.
fn seconds(millis: i64) -> String {
    format!("{}.{:03}", millis.div_euclid(1_000), millis.rem_euclid(1_000))
}

#[cfg(test)]
mod tests;
