//! Events on ScaledObjects: the decisions that matter to whoever runs `kubectl describe`.
//!
//! Must not follow ticks: what is told is the difference from what was told last, at most once in
//! 15 s a workload, so that a ramp is one event with its whole step. Writes nothing else.

mod told;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::watch::scaled_objects;
use super::watched::describe;
use crate::clock::Clock;
use crate::registry::{Registry, TrackerKey};

use told::{Occurrence, Told};

/// How often decisions are looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// Least time between two writes: ten a second over all workloads, however many change at once.
const PACE: Duration = Duration::from_millis(100);
/// How long one write may take, its look-up included.
const DEADLINE: Duration = Duration::from_secs(5);
/// Who says so, in the event.
const REPORTER: &str = "ghostscaler";

/// Writes events until cancelled. One that cannot be written is logged once and not tried again:
/// the status, the log and the metrics say the same.
pub async fn run(
    client: kube::Client,
    registry: Registry,
    clock: Clock,
    cancel: CancellationToken,
) {
    let mut writer = Writer::new(client);
    let mut told: HashMap<TrackerKey, Told> = HashMap::new();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let (trackers, inventory) = (registry.trackers(), registry.inventory());
        told.retain(|key, _| trackers.binary_search_by(|tracker| tracker.key.cmp(key)).is_ok());
        for tracker in trackers.iter().filter(|tracker| tracker.is_listed()) {
            let published = tracker.published.load_full();
            let Some(decision) = &published.decision else { continue };
            let told = told.entry(tracker.key.clone()).or_default();
            let workload = inventory.workloads.get(&tracker.key.workload).map(Arc::as_ref);
            for occurrence in told.news(&published, decision, workload, clock.now()) {
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = writer.write(&tracker.key, occurrence) => {}
                }
            }
        }
    }
}

struct Writer {
    client: kube::Client,
    recorder: Recorder,
    next: Instant,
    /// The failure as logged, so that the same one is not logged at each event.
    failing: Option<Arc<str>>,
}

impl Writer {
    fn new(client: kube::Client) -> Writer {
        let reporter = Reporter { controller: REPORTER.to_owned(), instance: None };
        let recorder = Recorder::new(client.clone(), reporter);
        Writer { client, recorder, next: Instant::now(), failing: None }
    }

    async fn write(&mut self, key: &TrackerKey, occurrence: Occurrence) {
        sleep_until(self.next).await;
        self.next = Instant::now() + PACE;
        let failure = match tokio::time::timeout(DEADLINE, self.publish(key, occurrence)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(describe(&error)),
            Err(_elapsed) => Some(format!("no answer within {} s", DEADLINE.as_secs())),
        };
        if let Some(error) = failure.as_deref().filter(|text| self.failing.as_deref() != Some(text))
        {
            warn!(error, "cannot write an event to the Kubernetes API");
        }
        self.failing = failure.map(Arc::from);
    }

    async fn publish(&self, key: &TrackerKey, occurrence: Occurrence) -> Result<(), kube::Error> {
        let (namespace, name) = (&*key.workload.namespace, &*key.workload.name);
        // `kubectl describe` looks for events by the object's uid.
        let object = scaled_objects(&self.client, Some(namespace)).get_metadata_opt(name).await?;
        // Deleted meanwhile: nobody would look.
        let Some(object) = object else { return Ok(()) };
        let reference = ObjectReference {
            api_version: Some("keda.sh/v1alpha1".to_owned()),
            kind: Some("ScaledObject".to_owned()),
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            uid: object.metadata.uid,
            ..ObjectReference::default()
        };
        let event = Event {
            type_: if occurrence.is_warning { EventType::Warning } else { EventType::Normal },
            reason: occurrence.reason.to_owned(),
            // Events are one series by reason and action, which keeps its first text: steps to
            // different counts are not the same event.
            action: occurrence.action,
            note: Some(occurrence.note),
            secondary: None,
        };
        self.recorder.publish(&event, &reference).await
    }
}

#[cfg(test)]
mod tests;
