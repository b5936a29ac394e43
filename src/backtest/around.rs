//! What stands around the engines: replicas as Kubernetes counted them, and GPUs.
//!
//! Must not be needed: each of it may be missing, and then is.

use std::collections::BTreeSet;

use super::Error;
use super::demand::Counts;
use super::fetch::Fetcher;
use super::find::{By, label_name};
use super::span::Span;
use crate::decision::Moment;
use crate::signals::dcgm::{self, DcgmFold, Owned};
use crate::simulate::progress::Progress;
use crate::source::prometheus::{Sample, Series};
use crate::source::selector::{NamespaceLabel, Namespaces, Selector};

/// Moments at which GPUs are looked at: five minutes of a day.
const GPU_LOOKS: u64 = 288;
/// kube-state-metrics's kinds: the label that names the object, replicas ordered, replicas ready.
const KINDS: [(&str, &str, &str); 2] = [
    ("deployment", "kube_deployment_spec_replicas", "kube_deployment_status_replicas_ready"),
    ("statefulset", "kube_statefulset_replicas", "kube_statefulset_status_replicas_ready"),
];
/// Where an exporter's own word for another object's namespace may stand.
const NAMESPACE_LABELS: [NamespaceLabel; 2] =
    [NamespaceLabel::Exported, NamespaceLabel::NotExported];

/// Replicas, if kube-state-metrics kept them, and by which series.
///
/// # Errors
///
/// What the queries fail with.
pub(super) async fn counts(
    fetcher: &Fetcher,
    namespaces: &Namespaces,
    workload: &str,
    span: &Span,
    progress: &Progress,
) -> Result<(Counts, Option<&'static str>), Error> {
    for (kind, spec, ready) in KINDS {
        for label in NAMESPACE_LABELS {
            let selector =
                || fetcher.client.selector(namespaces, label).with(&label_name(kind), workload);
            let looks = selector().named([spec]).counted_by(&[label_name("__name__")]);
            let coarse = span.coarse(GPU_LOOKS);
            let seen = fetcher.all(&looks, &coarse, "looking for replicas", progress).await?;
            if seen.is_empty() {
                continue;
            }
            let query = selector().named([spec, ready]).newest();
            let series = fetcher.all(&query, span, "reading replicas", progress).await?;
            let of = |name: &str| {
                by_step(span, series.iter().filter(|s| s.labels.get("__name__") == Some(name)))
            };
            return Ok((Counts { spec: of(spec), ready: of(ready) }, Some(spec)));
        }
    }
    Ok((Counts::default(), None))
}

/// The largest value at each step: several exporters say the same.
fn by_step<'a>(span: &Span, series: impl Iterator<Item = &'a Series>) -> Vec<Option<f64>> {
    let mut steps = vec![None; span.len()];
    for Sample { at, value } in series.flat_map(|series| &series.samples) {
        let step = at.millis_since(span.from) / span.step_ms;
        if let Some(step) = usize::try_from(step).ok().and_then(|step| steps.get_mut(step))
            && *value >= 0.0
        {
            *step = Some(step.map_or(*value, |was: f64| was.max(*value)));
        }
    }
    steps
}

/// What DCGM said of the workload's GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Gpus {
    /// Mean share of time busy, 0..1.
    pub(super) busy: Option<f64>,
    /// GPUs of one replica.
    pub(super) per_replica: Option<u32>,
}

/// The GPUs of the workload's pods.
///
/// # Errors
///
/// What the queries fail with.
pub(super) async fn gpus(
    fetcher: &Fetcher,
    namespaces: &Namespaces,
    by: &By,
    span: &Span,
    progress: &Progress,
) -> Result<Gpus, Error> {
    let By::Pod { workload, .. } = by else { return Ok(Gpus::default()) };
    let looks = span.coarse(GPU_LOOKS);
    let mut series = Vec::new();
    for label in NAMESPACE_LABELS {
        let selector: Selector = fetcher.client.selector(namespaces, label);
        let query = selector.named(dcgm::prometheus_names()).newest();
        series.extend(fetcher.all(&query, &looks, "reading GPUs", progress).await?);
    }
    let namespace = namespaces.iter().next().unwrap_or_default();
    let moments = series.iter().flat_map(|series| &series.samples).map(|sample| sample.at);
    let moments: BTreeSet<Moment> = moments.collect();
    let (mut busy, mut n_busy, mut devices, mut pods) = (0.0, 0.0, 0.0, 0.0);
    for at in moments {
        let mut fold = DcgmFold::default();
        for series in &series {
            let index = series.samples.binary_search_by_key(&at, |sample| sample.at);
            let Some(sample) = index.ok().and_then(|index| series.samples.get(index)) else {
                continue;
            };
            let name = series.labels.get("__name__").unwrap_or_default();
            fold.add(name, series.labels.iter(), sample.value, at);
        }
        let Ok(found) = fold.finish() else { continue };
        let owned = Owned::of(&found);
        let own = owned.pods(namespace).filter(|pod| super::find::is_pod_of(pod, workload));
        let own: Vec<&str> = own.collect();
        let Some(share) = owned.share_of(namespace, own.iter().copied(), at) else { continue };
        devices += f64::from(share.devices);
        pods += own.len() as f64;
        if let Some(share) = share.busy {
            busy += share;
            n_busy += 1.0;
        }
    }
    let per_replica = (pods > 0.0).then(|| super::requests::whole(devices / pods).max(1));
    Ok(Gpus { busy: (n_busy > 0.0).then(|| busy / n_busy), per_replica })
}

/// Median seconds from an order to the replica that is ready for it, where replicas were added and
/// both counts are known.
pub(super) fn cold_start_s(counts: &Counts, step_s: f64) -> Option<f64> {
    let mut starts = Vec::new();
    for index in 1..counts.spec.len() {
        let at = |counts: &[Option<f64>], index: usize| counts.get(index).copied().flatten();
        let (Some(before), Some(wanted)) = (at(&counts.spec, index - 1), at(&counts.spec, index))
        else {
            continue;
        };
        if wanted <= before {
            continue;
        }
        let still_wanted = (index..counts.spec.len())
            .take_while(|&later| at(&counts.spec, later).is_some_and(|spec| spec >= wanted));
        let ready = still_wanted
            .into_iter()
            .find(|&later| at(&counts.ready, later).is_some_and(|ready| ready >= wanted));
        if let Some(ready) = ready {
            starts.push((ready - index) as f64 * step_s);
        }
    }
    starts.sort_by(f64::total_cmp);
    starts.get(starts.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cold_start_is_the_time_from_the_order_to_the_last_ready_replica() {
        let some = |counts: &[f64]| counts.iter().map(|&count| Some(count)).collect();
        let counts = Counts {
            spec: some(&[1.0, 3.0, 3.0, 3.0, 3.0, 1.0, 2.0, 1.0, 1.0]),
            ready: some(&[1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 1.0, 1.0, 1.0]),
        };
        // Ordered in the second step, ready in the fifth; the later order was taken back.
        assert_eq!(cold_start_s(&counts, 15.0), Some(45.0));
        assert_eq!(cold_start_s(&Counts::default(), 15.0), None);
    }
}
