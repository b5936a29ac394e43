//! Asks Prometheus for spans of series: in windows, two at once, patiently, and never twice.
//!
//! Must not give meaning to a series, and never takes a part for the whole: an answer that came
//! with a warning is counted as partial and not kept.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::time::sleep;

use super::cache::{Cache, Key};
use super::span::Span;
use crate::decision::Moment;
use crate::simulate::progress::Progress;
use crate::source::prometheus::{PrometheusClient, Series};
use crate::source::selector::Query;
use crate::source::{Error, QueryFault};

/// Queries at once, of the 20 that Prometheus runs for all its users.
pub const AT_ONCE: usize = 2;
/// How often a query is tried.
const TRIES: u32 = 4;
/// The first pause before it is tried again; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Samples younger than this may still change: what holds them is not kept.
const SETTLED_MS: u64 = 600_000;

/// Fetches series of one Prometheus.
#[derive(Debug)]
pub(super) struct Fetcher {
    pub(super) client: PrometheusClient,
    url: String,
    cache: Option<Cache>,
    now: Moment,
    first_pause: Duration,
    has_answered: AtomicBool,
    asked: AtomicUsize,
    kept: AtomicUsize,
    partial: AtomicUsize,
}

/// What fetching came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Fetched {
    /// Queries that were sent, those that were tried again included.
    pub queries: usize,
    /// Windows that came from the cache.
    pub from_cache: usize,
    /// Answers that came with a warning: series may be missing in them.
    pub partial_answers: usize,
}

impl Fetcher {
    pub(super) fn new(
        client: &PrometheusClient,
        url: &str,
        cache: Option<Cache>,
        now: Moment,
    ) -> Fetcher {
        Fetcher {
            client: client.with_own_turns(AT_ONCE),
            url: url.to_owned(),
            cache,
            now,
            first_pause: FIRST_PAUSE,
            has_answered: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            partial: AtomicUsize::new(0),
        }
    }

    pub(super) fn fetched(&self) -> Fetched {
        Fetched {
            queries: self.asked.load(Ordering::Relaxed),
            from_cache: self.kept.load(Ordering::Relaxed),
            partial_answers: self.partial.load(Ordering::Relaxed),
        }
    }

    /// The series at the steps of the span; a series is there once for each window, in order.
    ///
    /// # Errors
    ///
    /// The fault of the first query that failed for good.
    pub(super) async fn all(
        &self,
        query: &Query,
        span: &Span,
        what: &str,
        progress: &Progress,
    ) -> Result<Vec<Series>, Error> {
        let windows = span.windows();
        let (n, done) = (windows.len(), AtomicUsize::new(0));
        progress.tell(what, 0, n);
        let answers: Vec<Vec<Series>> = stream::iter(windows)
            .map(async |window| {
                let series = self.window(query, window).await?;
                progress.tell(what, done.fetch_add(1, Ordering::Relaxed) + 1, n);
                Ok::<_, Error>(series)
            })
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// The series of one window.
    ///
    /// # Errors
    ///
    /// As [`Fetcher::all`].
    pub(super) async fn window(&self, query: &Query, window: Span) -> Result<Vec<Series>, Error> {
        let key = Key::new(&self.url, &query.to_string(), &window);
        if let Some(series) = self.cache.as_ref().and_then(|cache| cache.read(&key)) {
            self.kept.fetch_add(1, Ordering::Relaxed);
            return Ok(series);
        }
        let mut series = Vec::new();
        let mut is_whole = true;
        // What is too large for one answer is asked for in halves, the earlier one first.
        let mut open = vec![window];
        while let Some(part) = open.pop() {
            match self.ask(query, &part).await {
                Ok((answer, whole)) => {
                    series.extend(answer);
                    is_whole &= whole;
                }
                Err(error) => match part.halves().filter(|_| self.is_too_much(&error)) {
                    Some((earlier, later)) => open.extend([later, earlier]),
                    None => return Err(error),
                },
            }
        }
        let is_settled = window.to.plus_millis(SETTLED_MS) <= self.now;
        if let Some(cache) = self.cache.as_ref().filter(|_| is_whole && is_settled)
            && let Err(error) = cache.write(&key, &series)
        {
            tracing::warn!(%error, "an answer cannot be kept");
        }
        Ok(series)
    }

    /// One answer, and whether it is whole.
    async fn ask(&self, query: &Query, span: &Span) -> Result<(Vec<Series>, bool), Error> {
        let mut pause = self.first_pause;
        let mut tries = 0;
        // The steps of Prometheus include both ends; the last one is the next span's first.
        let last = span.to.minus_millis(span.step_ms);
        loop {
            tries += 1;
            self.asked.fetch_add(1, Ordering::Relaxed);
            match self.client.range(query, span.from, last, span.step_ms).await {
                Ok(answer) => {
                    self.has_answered.store(true, Ordering::Relaxed);
                    let is_whole = answer.warnings == 0;
                    self.partial.fetch_add(usize::from(!is_whole), Ordering::Relaxed);
                    return Ok((answer.series, is_whole));
                }
                Err(error @ Error::Timeout { .. }) if !self.has_answered() => {
                    self.answers_at_all(span).await.map_err(|_nor_that| error)?;
                }
                Err(error) if tries < TRIES && is_passing(&error, self.has_answered()) => {
                    tracing::debug!(%error, "asking again");
                    sleep(pause).await;
                    pause *= 2;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks the least that there is. A server that has answered nothing in time may be slow with what
    /// it was asked, or hang: what is asked in halves of halves of it would be waited for till tomorrow.
    async fn answers_at_all(&self, span: &Span) -> Result<(), Error> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let one = Query::written("vector(1)");
        self.client.range(&one, span.from, span.from, span.step_ms).await?;
        self.has_answered.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    /// Whether half of the span could be answered. Prometheus says "execution" where a query would load
    /// more samples than it may.
    fn is_too_much(&self, error: &Error) -> bool {
        if matches!(error, Error::Timeout { .. }) {
            return self.has_answered();
        }
        matches!(
            error,
            Error::TooLarge { .. }
                | Error::Query { fault: QueryFault::Execution | QueryFault::Timeout, .. }
        )
    }
}

/// Whether the same query may be answered a little later.
fn is_passing(error: &Error, has_answered: bool) -> bool {
    match error {
        // Nobody listening is a wrong address until somebody has answered.
        Error::Refused | Error::Transport(_) => has_answered,
        Error::Timeout { .. } | Error::NoTurn { .. } | Error::Incomplete { .. } => true,
        Error::Query { status, fault } => {
            matches!(fault, QueryFault::Timeout | QueryFault::Unavailable)
                || *status == 429
                || (*status >= 500 && *fault == QueryFault::Other)
        }
        Error::Tls(_)
        | Error::Unauthorized { .. }
        | Error::HttpStatus { .. }
        | Error::BadBody { .. }
        | Error::TooLarge { .. }
        | Error::NoNamespace
        | Error::AmbiguousTenant
        | Error::NoModel
        | Error::Page(_)
        | Error::Config(_)
        | Error::BadAddress
        | Error::File { .. }
        | Error::Setup(_) => false,
    }
}
