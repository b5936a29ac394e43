//! The process's configuration of what it reads: Prometheus servers and wake sources.
//!
//! Opens nothing: shape and values only. Addresses and credentials stand here and nowhere else.

use std::collections::BTreeMap;
use std::path::PathBuf;

use reqwest::Url;

use super::Error;
use super::selector::LabelName;
use super::wake::{Subject, Template, WakeKind};
use crate::duration;

const FASTEST_TIMEOUT_MS: u64 = 100;
const SLOWEST_TIMEOUT_MS: u64 = 60_000;
/// A third of the tick on which Prometheus is read (15 s).
pub(crate) const DEFAULT_TIMEOUT_MS: u64 = 5_000;
pub(crate) const TIMEOUT_EXPECTED: &str = "a duration from 100ms to 60s";

/// One Prometheus server, or whatever speaks its API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrometheusConfig {
    /// `name`: what the rest of the configuration calls it.
    pub name: String,
    /// `url`: its base, below which `/api/v1/` stands; http or https, without credentials.
    pub url: String,
    /// `bearerTokenFile`: a file with the token to show, read again for each query. Default none.
    pub bearer_token_file: Option<PathBuf>,
    /// `caFile`: the only authority (PEM) that its certificate may come from. Default those of the
    /// system.
    pub ca_file: Option<PathBuf>,
    /// `timeout`: deadline of one query, from 100 ms to 60 s. Default 5 s. In milliseconds.
    pub timeout_ms: u64,
    /// `matchers`: label values that every engine and GPU series must have beside its namespace,
    /// such as a cluster's name. Default none.
    pub matchers: BTreeMap<LabelName, String>,
}

impl PrometheusConfig {
    /// The server at this URL, with the defaults.
    #[must_use]
    pub fn at(url: &str) -> PrometheusConfig {
        PrometheusConfig {
            name: url.to_owned(),
            url: url.to_owned(),
            bearer_token_file: None,
            ca_file: None,
            timeout_ms: DEFAULT_TIMEOUT_MS,
            matchers: BTreeMap::new(),
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    ///
    /// The first [`Fault`].
    pub fn validate(&self) -> Result<(), Fault> {
        self.faults().into_iter().next().map_or(Ok(()), Err)
    }

    /// Every wrong value.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::from_iter(check_url("url", &self.url).err());
        if !(FASTEST_TIMEOUT_MS..=SLOWEST_TIMEOUT_MS).contains(&self.timeout_ms) {
            let value = duration::format_millis(self.timeout_ms);
            faults.push(Fault::new("timeout", &value, TIMEOUT_EXPECTED));
        }
        faults
    }
}

/// A place where demand can be seen while a workload has no replica: either a query to a
/// configured Prometheus, or a metric on a gateway's own page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WakeSourceConfig {
    /// `name`: what a trigger's `wakeSource` calls it.
    pub name: String,
    /// `kind`: what its number means.
    pub kind: WakeKind,
    /// `prometheus`: the name of a configured Prometheus.
    pub prometheus: Option<String>,
    /// `query`: PromQL for it. `{namespace}`, `{name}` and `{model}` inside a quoted matcher value
    /// stand for the workload's own. An empty answer is no answer, so a series that exists only
    /// while something waits needs its zero in the query, as in
    /// `sum(queue{ns="{namespace}"}) or 0 * max(up{job="gateway"})`. A counter's series are best
    /// left apart: in a sum, a gateway's pod that is gone looks like a restart.
    pub query: Option<String>,
    /// `url`: a gateway's metrics page.
    pub url: Option<String>,
    /// `metric`: the name of the series on it; those that match are summed.
    pub metric: Option<String>,
    /// `matchers`: label values that the series must have, with the same placeholders as `query`.
    pub matchers: BTreeMap<LabelName, String>,
}

impl WakeSourceConfig {
    /// Every wrong value.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        self.plan().err().unwrap_or_default()
    }

    /// The Prometheus that it asks, if it asks one.
    #[must_use]
    pub fn prometheus_name(&self) -> Option<&str> {
        self.prometheus.as_deref()
    }

    /// The query for one workload; `None` of a source that reads a page.
    ///
    /// # Errors
    ///
    /// When a value is wrong, or the query names the model and the workload has none.
    pub fn query_of(&self, subject: &Subject<'_>) -> Result<Option<String>, Error> {
        match self.sound_plan()? {
            WakePlan::Query(template) => template.render(subject).map(Some),
            WakePlan::Page { .. } => Ok(None),
        }
    }

    /// What it comes to, or the first fault.
    pub(super) fn sound_plan(&self) -> Result<WakePlan, Fault> {
        self.plan().map_err(|mut faults| faults.swap_remove(0))
    }

    /// What it comes to, or every fault of it: at least one.
    fn plan(&self) -> Result<WakePlan, Vec<Fault>> {
        match (&self.prometheus, &self.query, &self.url, &self.metric) {
            (Some(_), Some(query), None, None) => {
                let template = Template::of_query(query)
                    .map_err(|expected| Fault::new("query", query, expected));
                let no_matchers = if self.matchers.is_empty() {
                    Ok(())
                } else {
                    let expected = "none beside `query`, which has its own";
                    Err(Fault::new("matchers", "", expected))
                };
                match (template, no_matchers) {
                    (Ok(template), Ok(())) => Ok(WakePlan::Query(template)),
                    (template, no_matchers) => {
                        Err(template.err().into_iter().chain(no_matchers.err()).collect())
                    }
                }
            }
            (None, None, Some(url), Some(metric)) => {
                let mut faults = Vec::from_iter(check_url("url", url).err());
                if !is_metric_name(metric) {
                    faults.push(Fault::new("metric", metric, "a metric's name"));
                }
                if !faults.is_empty() {
                    return Err(faults);
                }
                let matchers = self
                    .matchers
                    .iter()
                    .map(|(label, value)| (label.clone(), Template::of_value(value)))
                    .collect();
                Ok(WakePlan::Page { url: url.clone(), metric: metric.clone(), matchers })
            }
            _ => {
                let expected = "either `prometheus` and `query`, or `url` and `metric`";
                let value = self.prometheus.as_deref().unwrap_or("");
                Err(vec![Fault::new("prometheus", value, expected)])
            }
        }
    }
}

/// What a wake source's configuration comes to.
#[derive(Debug)]
pub(super) enum WakePlan {
    /// A query.
    Query(Template),
    /// Series of a page.
    Page { url: String, metric: String, matchers: Vec<(LabelName, Template)> },
}

/// A wrong value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` is {value:?}: expected {expected}")]
pub struct Fault {
    /// The key.
    pub field: String,
    /// What stands there; credentials left out.
    pub value: String,
    /// What was expected.
    pub expected: &'static str,
}

impl Fault {
    fn new(field: &str, value: &str, expected: &'static str) -> Fault {
        Fault { field: field.to_owned(), value: value.to_owned(), expected }
    }
}

pub(crate) const URL_EXPECTED: &str = "an http or https URL without credentials";

fn check_url(field: &str, text: &str) -> Result<(), Fault> {
    match parse_url(text) {
        Some(_) => Ok(()),
        None => Err(Fault::new(field, shown_url(text), URL_EXPECTED)),
    }
}

/// A URL that this process may ask: http or https, and no credentials in it, since URLs are shown.
pub(crate) fn parse_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let may_be_asked = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none();
    may_be_asked.then_some(url)
}

/// What may be shown of a URL that is refused: what stands before an @ may be a password.
pub(crate) fn shown_url(text: &str) -> &str {
    if text.contains('@') { "(credentials not shown)" } else { text }
}

fn is_metric_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':';
    !text.is_empty() && text.bytes().all(plain) && !text.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests;
