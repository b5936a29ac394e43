//! Reads a workload's history: its engines' scrapes, and what stands around them.
//!
//! Must not weigh what it reads; [`super::demand`] does.

use futures_util::future::try_join;

use super::Error;
use super::around::{self, Gpus};
use super::demand::Counts;
use super::fetch::{Fetched, Fetcher};
use super::find::{Found, find};
use super::lengths::Histogram;
use super::span::Span;
use super::timeline::Timelines;
use crate::signals::engine::prometheus_names;
use crate::simulate::progress::Progress;
use crate::source::prometheus::Series;
use crate::source::selector::Namespaces;

/// Moments at which histograms are read: their growth over hours is all that is wanted.
const HISTOGRAM_LOOKS: u64 = 48;
/// Histograms, behind the family's prefix.
const PROMPTS: &str = "request_prompt_tokens_bucket";
const OUTPUTS: &str = "request_generation_tokens_bucket";
const TTFTS: &str = "time_to_first_token_seconds_bucket";

/// What was read.
#[derive(Debug)]
pub(super) struct History {
    pub(super) timelines: Timelines,
    pub(super) counts: Counts,
    /// The series that the counts are from.
    pub(super) counts_from: Option<&'static str>,
    pub(super) gpus: Gpus,
    pub(super) prompts: Histogram,
    pub(super) outputs: Histogram,
    pub(super) ttfts: Histogram,
    /// What told the workload's series.
    pub(super) found: Found,
    pub(super) fetched: Fetched,
}

/// Reads all of it.
///
/// # Errors
///
/// When the workload has no series, or a query fails for good.
pub(super) async fn read(
    fetcher: &Fetcher,
    namespace: &str,
    workload: &str,
    span: &Span,
    progress: &Progress,
) -> Result<History, Error> {
    let found = find(fetcher, namespace, workload, span, progress).await?;
    let timelines = engines(fetcher, &found, span, progress).await?;
    let [prompts, outputs, ttfts] = histograms(fetcher, &found, span, progress).await?;
    let namespaces = Namespaces::batches([namespace])?.remove(0);
    let (counts, counts_from) =
        around::counts(fetcher, &namespaces, workload, span, progress).await?;
    let gpus = around::gpus(fetcher, &namespaces, &found.by, span, progress).await?;
    let fetched = fetcher.fetched();
    Ok(History { timelines, counts, counts_from, gpus, prompts, outputs, ttfts, found, fetched })
}

/// The engines' series and the times of their scrapes, two queries at once.
async fn engines(
    fetcher: &Fetcher,
    found: &Found,
    span: &Span,
    progress: &Progress,
) -> Result<Timelines, Error> {
    let names = prometheus_names();
    let query = found.selector.clone().named(names.iter().map(String::as_str)).newest();
    let times = found.running.iter();
    let times = times.map(|name| found.selector.clone().named([name.as_str()]).taken_at());
    let times: Vec<_> = times.collect();
    let windows = span.windows();
    let mut timelines = Timelines::default();
    for (n, window) in windows.iter().enumerate() {
        progress.tell("reading engines", n, windows.len());
        let of_times = async {
            let mut all: Vec<Series> = Vec::new();
            for query in &times {
                all.extend(fetcher.window(query, *window).await?);
            }
            Ok(all)
        };
        let (series, times) = try_join(fetcher.window(&query, *window), of_times).await?;
        timelines.take(window, &found.by, &series, &times);
    }
    progress.tell("reading engines", windows.len(), windows.len());
    Ok(timelines)
}

/// Lengths of prompts and answers, and times to the first token.
async fn histograms(
    fetcher: &Fetcher,
    found: &Found,
    span: &Span,
    progress: &Progress,
) -> Result<[Histogram; 3], Error> {
    // The family's prefix is what stands before the name of its gauge.
    let prefixes =
        found.running.iter().filter_map(|name| name.strip_suffix("num_requests_running"));
    let names: Vec<String> = prefixes
        .flat_map(|prefix| [PROMPTS, OUTPUTS, TTFTS].map(|name| format!("{prefix}{name}")))
        .collect();
    if names.is_empty() {
        return Ok(Default::default());
    }
    let query = found.selector.clone().named(names.iter().map(String::as_str)).newest();
    let looks = span.coarse(HISTOGRAM_LOOKS);
    let series = fetcher.all(&query, &looks, "reading histograms", progress).await?;
    Ok([PROMPTS, OUTPUTS, TTFTS].map(|name| Histogram::of(&series, &found.by, name)))
}
