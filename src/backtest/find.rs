//! Which series are the workload's: how its engines are called, and by which label.
//!
//! Must not fetch the history, and never takes another workload's series for lack of its own: what
//! is near is named in the error instead.

use std::collections::BTreeSet;

use super::Error;
use super::fetch::Fetcher;
use super::span::{Span, shown};
use crate::signals::engine::prometheus_names;
use crate::simulate::progress::Progress;
use crate::source::prometheus::{Labels, Series};
use crate::source::selector::{LabelName, NamespaceLabel, Namespaces, Selector};

/// Moments of the span at which it is looked.
const LOOKS: u64 = 200;
/// How the names end that tell what runs, in each family that `signals` knows.
const RUNNING: [&str; 5] = [
    "num_requests_running",
    "num_running_reqs",
    "batch_current_size",
    "requests_processing",
    "trt_llm_request_metrics",
];
/// Labels that name the pod, best first.
const POD_LABELS: [&str; 2] = ["pod", "exported_pod"];
/// Labels whose value may be the workload's name where no series names a pod.
const NAME_LABELS: [&str; 4] = ["job", "service", "app", "model_name"];
/// Near misses that are named.
const MOST_NAMED: usize = 6;
/// What Kubernetes makes the random parts of names of.
const SAFE_ALPHABET: &str = "bcdfghjklmnpqrstvwxz2456789";

/// How the workload's series are told from others.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// The matchers that all of them have.
    pub(super) selector: Selector,
    /// The running gauges that they have.
    pub(super) running: BTreeSet<String>,
    /// What tells that a series is the workload's.
    pub(super) by: By,
}

/// What tells that a series is the workload's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum By {
    /// The pod in this label is one of its own.
    Pod { label: &'static str, workload: String },
    /// This label has its name.
    Name { label: &'static str, workload: String },
}

impl By {
    /// The replica that a series is of; `None` if it is not the workload's.
    pub(super) fn target<'a>(&self, labels: &'a Labels) -> Option<&'a str> {
        match self {
            By::Pod { label, workload } => labels.get(label).filter(|pod| is_pod_of(pod, workload)),
            By::Name { label, workload } => {
                let is_named = labels.get(label) == Some(workload);
                is_named.then(|| labels.get("instance")).flatten()
            }
        }
    }

    /// A sentence for the report.
    pub(super) fn words(&self) -> String {
        match self {
            By::Pod { label, workload } => format!("{label} of {workload}"),
            By::Name { label, workload } => format!("{label}=\"{workload}\""),
        }
    }
}

/// Whether a pod's name is one that a Deployment, StatefulSet or LeaderWorkerSet of this name gives.
/// `llm` has `llm-6d4cf56db-x7k2p`, `llm-0` and `llm-0-1`, and not `llm-large-6d4cf56db-x7k2p`.
pub(super) fn is_pod_of(pod: &str, workload: &str) -> bool {
    let Some(rest) = pod.strip_prefix(workload).and_then(|rest| rest.strip_prefix('-')) else {
        return false;
    };
    // A router may add the rank of the process.
    let rest = rest.split_once("-rank-").map_or(rest, |(pod, _)| pod);
    let parts: Vec<&str> = rest.split('-').collect();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let is_random =
        |part: &str| !part.is_empty() && part.chars().all(|c| SAFE_ALPHABET.contains(c));
    match parts.as_slice() {
        [ordinal] => is_number(ordinal) || (ordinal.len() == 5 && is_random(ordinal)),
        [a, b] => {
            (is_number(a) && is_number(b))
                || (a.len() <= 10 && b.len() == 5 && is_random(a) && is_random(b))
        }
        _ => false,
    }
}

/// Looks for the workload's engines.
///
/// # Errors
///
/// [`Error::NoSeries`] with what there is instead, [`Error::NoSamples`] if the server has nothing of
/// that time, and what the queries fail with.
pub(super) async fn find(
    fetcher: &Fetcher,
    namespace: &str,
    workload: &str,
    span: &Span,
    progress: &Progress,
) -> Result<Found, Error> {
    let looks = span.coarse(LOOKS);
    let namespaces = Namespaces::batches([namespace])?.remove(0);
    let within = || fetcher.client.selector(&namespaces, NamespaceLabel::Namespace);
    let names = running_names();
    let labels = known_labels(&[&["__name__"], &POD_LABELS, &["instance"], &NAME_LABELS]);
    let query = within().named(names.iter().map(String::as_str)).counted_by(&labels);
    let seen = fetcher.all(&query, &looks, "looking for engines", progress).await?;

    let ways = POD_LABELS
        .map(|label| By::Pod { label, workload: workload.to_owned() })
        .into_iter()
        .chain(NAME_LABELS.map(|label| By::Name { label, workload: workload.to_owned() }));
    for by in ways {
        let own = seen.iter().filter(|series| by.target(&series.labels).is_some());
        let running: BTreeSet<String> =
            own.filter_map(|series| series.labels.get("__name__")).map(str::to_owned).collect();
        if running.is_empty() {
            continue;
        }
        let selector = match &by {
            By::Pod { label, .. } => {
                within().beginning(&label_name(label), &format!("{workload}-"))
            }
            By::Name { label, .. } => within().with(&label_name(label), workload),
        };
        return Ok(Found { selector, running, by });
    }
    Err(near_miss(fetcher, namespace, workload, &looks, &seen, progress).await?)
}

/// The error, with what is near.
async fn near_miss(
    fetcher: &Fetcher,
    namespace: &str,
    workload: &str,
    looks: &Span,
    seen: &[Series],
    progress: &Progress,
) -> Result<Error, Error> {
    let error = |near: String| Error::NoSeries {
        namespace: namespace.to_owned(),
        workload: workload.to_owned(),
        names: "vllm:num_requests_running and what other engines call it",
        near,
    };
    let words = "looking for near misses";
    if !seen.is_empty() {
        let workloads = seen.iter().filter_map(|series| workload_of(&series.labels));
        return Ok(error(format!(
            "that namespace has engines of {}",
            nearest(workloads, workload)
        )));
    }
    let anywhere = |label: &str| {
        let names = running_names();
        let query = Selector::anywhere().named(names.iter().map(String::as_str));
        query.counted_by(&[label_name(label)])
    };
    let elsewhere = fetcher.all(&anywhere("namespace"), looks, words, progress).await?;
    let namespaces: Vec<String> = values(&elsewhere, "namespace");
    if !namespaces.is_empty() {
        let words = format!("there are engines in {}", nearest(namespaces, namespace));
        return Ok(error(words));
    }
    if !elsewhere.is_empty() {
        let words = "there are engines whose series have no `namespace` label: add it where they are scraped";
        return Ok(error(words.to_owned()));
    }
    let prefixed = Selector::anywhere().beginning(&label_name("__name__"), "vllm");
    let query = prefixed.counted_by(&known_labels(&[&["__name__", "namespace"]]));
    let similar = fetcher.all(&query, looks, words, progress).await?;
    if !similar.is_empty() {
        let names = nearest(values(&similar, "__name__"), "vllm:num_requests_running");
        return Ok(error(format!("there are other series of vLLM: {names}")));
    }
    let up = Selector::anywhere().named(["up"]).counted_by(&[label_name("job")]);
    let up = fetcher.all(&up, looks, words, progress).await?;
    if up.is_empty() {
        return Ok(Error::NoSamples { from: shown(looks.from), to: shown(looks.to) });
    }
    let jobs = nearest(values(&up, "job"), workload);
    Ok(error(format!("nothing scrapes an engine; the jobs are {jobs}")))
}

/// The workload that a pod's name stands for, or else what names the series.
fn workload_of(labels: &Labels) -> Option<String> {
    let pod = POD_LABELS.iter().find_map(|label| labels.get(label));
    let Some(pod) = pod else {
        let named = NAME_LABELS.iter().find_map(|label| labels.get(label))?;
        return Some(named.to_owned());
    };
    let prefixes = pod.match_indices('-').filter_map(|(end, _)| pod.get(..end));
    let shortest = prefixes.into_iter().find(|name| is_pod_of(pod, name));
    Some(shortest.unwrap_or(pod).to_owned())
}

/// Some of the names, the most alike first.
fn nearest(names: impl IntoIterator<Item = String>, wanted: &str) -> String {
    let names: BTreeSet<String> = names.into_iter().collect();
    let mut names: Vec<String> = names.into_iter().collect();
    let likeness = |name: &String| strsim::jaro_winkler(name, wanted);
    names.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
    let more = names.len().saturating_sub(MOST_NAMED);
    names.truncate(MOST_NAMED);
    let listed: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", listed.join(", "))
}

fn values(series: &[Series], label: &str) -> Vec<String> {
    series.iter().filter_map(|series| series.labels.get(label)).map(str::to_owned).collect()
}

/// Every spelling of the running gauges.
fn running_names() -> Vec<String> {
    let mut names = prometheus_names();
    names.retain(|name| RUNNING.iter().any(|running| name.ends_with(running)));
    names
}

fn known_labels(lists: &[&[&str]]) -> Vec<LabelName> {
    lists.iter().flat_map(|list| list.iter()).filter_map(|name| LabelName::new(name)).collect()
}

/// A label's name that stands in this file.
pub(super) fn label_name(name: &str) -> LabelName {
    LabelName::new(name).expect("only names of labels are written here")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_told_from_those_of_a_longer_name() {
        for pod in ["llm-6d4cf56db-x7k2p", "llm-0", "llm-0-1", "llm-x7k2p", "llm-0-rank-1"] {
            assert!(is_pod_of(pod, "llm"), "{pod}");
        }
        for pod in
            ["llm", "llm-", "llm-large-6d4cf56db-x7k2p", "llm-large-0", "llm-large-abcde", "llmx-0"]
        {
            assert!(!is_pod_of(pod, "llm"), "{pod}");
        }
        assert!(is_pod_of("llm-large-6d4cf56db-x7k2p", "llm-large"));
    }

    #[test]
    fn a_near_miss_is_named_as_the_workload_that_it_is_of() {
        let labels: Labels =
            serde_json::from_str(r#"{"pod":"llm-large-6d4cf56db-x7k2p"}"#).unwrap();
        assert_eq!(workload_of(&labels).as_deref(), Some("llm-large"));
        let labels: Labels = serde_json::from_str(r#"{"pod":"llm-0"}"#).unwrap();
        assert_eq!(workload_of(&labels).as_deref(), Some("llm"));
        let labels: Labels = serde_json::from_str(r#"{"job":"vllm"}"#).unwrap();
        assert_eq!(workload_of(&labels).as_deref(), Some("vllm"));
    }

    #[test]
    fn the_most_alike_names_come_first_and_the_rest_is_counted() {
        let names = ["other", "llm-large", "a", "b", "c", "d", "e", "f"].map(str::to_owned);
        let words = nearest(names, "llm");
        assert!(words.starts_with("`llm-large`"), "{words}");
        assert!(words.ends_with(" and 2 more"), "{words}");
    }
}
