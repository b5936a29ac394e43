//! Which pods go at a step down: those with the least to do.
//!
//! A ReplicaSet takes away the pods with the lowest `controller.kubernetes.io/pod-deletion-cost`, 0 where
//! none is written, and knows nothing of load (Kubernetes, ReplicaSet, pod deletion cost). Where a step
//! down is planned or near, each ready pod is given its requests as that cost. A count that falls without
//! notice, by an edit or the end of a schedule, can be carried out within the second, before a word is
//! written. Must write nothing else, nothing while no step is near, and nothing to pods of other
//! controllers, which do not read it.

mod costs;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Permission;
use super::watched::describe;
use crate::clock::Clock;
use crate::inventory::WorkloadKey;
use crate::registry::Registry;

use costs::{Written, is_step_near, wanted};

/// The annotation that a ReplicaSet ranks its pods by, lowest first.
const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// How often decisions are looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// Least time between two writes: ten a second over all workloads.
const PACE: Duration = Duration::from_millis(100);
/// How long one write may take.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long a namespace whose pods may not be patched is left alone.
const FORBIDDEN: Duration = Duration::from_secs(600);

/// What [`run`] needs beyond [`RBAC`](super::RBAC), for the role of its overlay.
pub const RBAC: &[Permission] =
    &[Permission { api_group: "", resource: "pods", verbs: &["patch"] }];

/// Writes costs until cancelled. One that cannot be written is logged once, and written when the load
/// has changed; a namespace in which nothing may be written is left alone for a while.
pub async fn run(
    client: kube::Client,
    registry: Registry,
    clock: Clock,
    cancel: CancellationToken,
) {
    let mut written: HashMap<WorkloadKey, Written> = HashMap::new();
    let mut failing: Option<Arc<str>> = None;
    let mut forbidden: HashMap<Arc<str>, Instant> = HashMap::new();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let (trackers, inventory) = (registry.trackers(), registry.inventory());
        written.retain(|key, _| inventory.workloads.contains_key(key));
        forbidden.retain(|_, since| since.elapsed() < FORBIDDEN);
        for tracker in trackers.iter().filter(|tracker| tracker.is_listed()) {
            let key = &tracker.key.workload;
            if forbidden.contains_key(&key.namespace) {
                continue;
            }
            let Some(workload) = inventory.workloads.get(key) else { continue };
            let Some(observation) = tracker.observed.load_full() else { continue };
            if !workload.kubernetes.ranks_pods || !is_step_near(&tracker.published.load()) {
                continue;
            }
            let written = written.entry(key.clone()).or_default();
            for (pod, cost) in wanted(&observation, written, clock.now()) {
                let api: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
                let outcome = tokio::select! {
                    () = cancel.cancelled() => return,
                    outcome = write(&api, &pod, cost) => outcome,
                };
                match outcome {
                    Ok(()) => failing = None,
                    Err(Failure::Forbidden) => {
                        warn!(namespace = %key.namespace, "may not write which pod goes first there");
                        forbidden.insert(key.namespace.clone(), Instant::now());
                        break;
                    }
                    Err(Failure::Other(error)) => {
                        if failing.as_deref() != Some(&*error) {
                            warn!(error, "cannot write which pod goes first");
                        }
                        failing = Some(error.into());
                    }
                }
                sleep(PACE).await;
            }
        }
    }
}

/// Why a cost was not written.
enum Failure {
    /// The role does not allow it in this namespace.
    Forbidden,
    /// Anything else, in words.
    Other(String),
}

/// Writes one cost; a pod that is gone needs none.
async fn write(api: &Api<Pod>, pod: &str, cost: u32) -> Result<(), Failure> {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {COST: cost.to_string()}}}));
    let params = PatchParams::default();
    match tokio::time::timeout(DEADLINE, api.patch_metadata(pod, &params, &patch)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Err(Failure::Forbidden),
        Ok(Err(error)) => Err(Failure::Other(describe(&error))),
        Err(_elapsed) => Err(Failure::Other(format!("no answer within {} s", DEADLINE.as_secs()))),
    }
}

#[cfg(test)]
mod tests;
