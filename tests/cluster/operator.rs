//! The part of the LeaderWorkerSet's operator that the loop needs: pods for the groups that are ordered,
//! and a status that counts whole ones.
//!
//! Must name, label and select pods as the operator does (v0.9.0). Its StatefulSets, rollouts and restarts
//! of groups are left out: pods are made at once and stay as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams,
};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::objects::{Kind, NAME};

/// 0 for the leader of a group.
pub(crate) const INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";
/// The set of a pod.
const SET: &str = "leaderworkerset.sigs.k8s.io/name";
/// The number of a group in its set.
const GROUP: &str = "leaderworkerset.sigs.k8s.io/group-index";
/// The same for all pods of a group, and of no other.
const KEY: &str = "leaderworkerset.sigs.k8s.io/group-key";
/// Annotation: pods of a whole group.
const SIZE: &str = "leaderworkerset.sigs.k8s.io/size";
/// How often is looked.
const INTERVAL: Duration = Duration::from_millis(300);

/// Runs until dropped.
#[derive(Debug)]
pub(crate) struct Operator {
    _running: AbortOnDropHandle<()>,
}

impl Operator {
    /// Follows the LeaderWorkerSet of a scenario.
    pub(crate) fn start(client: &kube::Client, namespace: &str) -> Operator {
        let (group, version, kind) = Kind::LeaderWorkerSet.names();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let sets: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let follow = async move {
            loop {
                // What fails now is done at the next look.
                reconcile(&sets, &pods).await.ok();
                tokio::time::sleep(INTERVAL).await;
            }
        };
        Operator { _running: AbortOnDropHandle::new(tokio::spawn(follow)) }
    }
}

async fn reconcile(sets: &Api<DynamicObject>, pods: &Api<Pod>) -> Result<(), kube::Error> {
    let Some(set) = sets.get_opt(NAME).await? else { return Ok(()) };
    let groups = set.data["spec"]["replicas"].as_u64().unwrap_or(1);
    let template = &set.data["spec"]["leaderWorkerTemplate"];
    let size = template["size"].as_u64().unwrap_or(1);
    let list = ListParams::default().labels(&format!("{SET}={NAME}"));
    let present: BTreeMap<String, Pod> = pods
        .list(&list)
        .await?
        .into_iter()
        .filter_map(|pod| Some((pod.metadata.name.clone()?, pod)))
        .collect();
    let mut wanted = BTreeSet::new();
    for (group, index) in (0..groups).flat_map(|group| (0..size).map(move |index| (group, index))) {
        let name =
            if index == 0 { format!("{NAME}-{group}") } else { format!("{NAME}-{group}-{index}") };
        if !present.contains_key(&name) {
            let pod = pod(&name, (group, index, size), &template["workerTemplate"]);
            pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await?;
        }
        wanted.insert(name);
    }
    let gone = present
        .iter()
        .filter(|(name, pod)| !wanted.contains(*name) && pod.metadata.deletion_timestamp.is_none());
    for (name, _) in gone {
        pods.delete(name, &DeleteParams::default()).await?;
    }
    let status = json!({
        "replicas": groups,
        "readyReplicas": whole(&present, size),
        "hpaPodSelector": format!("{SET}={NAME},{INDEX}=0"),
    });
    // A status that is written at each look would be a change at each look.
    if set.data["status"] != status {
        let patch = json!({"status": status});
        sets.patch_status(NAME, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    }
    Ok(())
}

/// Groups of which each pod is ready and stays.
fn whole(present: &BTreeMap<String, Pod>, size: u64) -> usize {
    let mut ready: BTreeMap<&str, u64> = BTreeMap::new();
    for pod in present.values().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let is_ready = conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True");
        let group = pod.metadata.labels.as_ref().and_then(|labels| labels.get(GROUP));
        if let Some(group) = group.filter(|_| is_ready) {
            *ready.entry(group).or_default() += 1;
        }
    }
    ready.values().filter(|ready| **ready == size).count()
}

fn pod(name: &str, (group, index, size): (u64, u64, u64), template: &Value) -> Value {
    let mut metadata = template["metadata"].clone();
    metadata["name"] = json!(name);
    for (label, value) in [
        (SET, NAME.to_owned()),
        (GROUP, group.to_string()),
        (KEY, format!("{NAME}-{group}")),
        (INDEX, index.to_string()),
    ] {
        metadata["labels"][label] = json!(value);
    }
    metadata["annotations"][SIZE] = json!(size.to_string());
    json!({"metadata": metadata, "spec": template["spec"]})
}
