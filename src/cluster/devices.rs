//! The GPUs that pods ask for and nodes have: whole ones, MIG slices, claimed ones.
//!
//! Pure. Counts what is asked for, never what is used.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Node as ApiNode, PodSpec};
use k8s_openapi::api::resource::v1::{DeviceRequest, ResourceClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::pod::Pod;
use crate::inventory::{Devices, Room};

/// A whole GPU, by the device plugin.
pub(super) const GPU_RESOURCE: &str = "nvidia.com/gpu";
/// A slice of one (`nvidia.com/mig-1g.10gb`, strategy "mixed" of NVIDIA's device plugin).
const MIG_PREFIX: &str = "nvidia.com/mig-";
/// A whole GPU, by the device class of NVIDIA's DRA driver; its slices are of `mig.nvidia.com`.
const GPU_CLASS: &str = "gpu.nvidia.com";
/// Taints of nodes that are about to be taken away: by the cluster autoscaler, by Karpenter (its name
/// for it before 1.0 and since), on Google Cloud, and by AWS's node termination handler. Other taints
/// say who may use a node, not that it goes: GPU nodes have one for good.
const LEAVING: [&str; 7] = [
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disruption",
    "karpenter.sh/disrupted",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
];
/// More devices than any node has; a larger request is a mistake and stays unknown.
const MOST: u32 = 1_024;

/// Devices that a pod asks for, but for those that it claims.
///
/// Init containers run before the others on the same devices, so the larger of the two counts;
/// those that keep running beside the others are summed with them.
pub(super) fn of_pod(spec: &PodSpec) -> Devices {
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let stays = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let mut together = Devices::new();
    for container in spec.containers.iter().chain(init.iter().filter(stays)) {
        add(&mut together, &of_container(container));
    }
    for container in init.iter().filter(|container| !stays(container)) {
        for (name, count) in of_container(container) {
            let known = together.entry(name).or_default();
            *known = (*known).max(count);
        }
    }
    together.retain(|_, count| (1..=MOST).contains(count));
    together
}

/// A pod template may name the limit alone; the API server takes it for the request.
fn of_container(container: &Container) -> Devices {
    let Some(resources) = container.resources.as_ref() else { return Devices::new() };
    let requests = resources.requests.iter();
    let mut all = Devices::new();
    for quantities in resources.limits.iter().chain(requests) {
        all.extend(counted(quantities));
    }
    all
}

fn counted(quantities: &BTreeMap<String, Quantity>) -> impl Iterator<Item = (Arc<str>, u32)> {
    let is_gpu = |name: &str| name == GPU_RESOURCE || is_slice(name);
    quantities
        .iter()
        .filter(move |(name, _)| is_gpu(name))
        .filter_map(|(name, quantity)| Some((name.as_str().into(), quantity.0.parse().ok()?)))
}

/// Whether a resource is a slice of a GPU.
pub(super) fn is_slice(name: &str) -> bool {
    name.starts_with(MIG_PREFIX)
}

/// Adds counts to counts.
pub(super) fn add(to: &mut Devices, more: &Devices) {
    for (name, count) in more {
        let known = to.entry(Arc::clone(name)).or_default();
        *known = known.saturating_add(*count);
    }
}

/// Whole GPUs among devices; `None` where there is none.
pub(super) fn whole(devices: &Devices) -> Option<u32> {
    let count = |name| devices.get(name).copied().unwrap_or(0);
    Some(count(GPU_RESOURCE).saturating_add(count(GPU_CLASS))).filter(|count| *count > 0)
}

/// Devices of a resource claim, by device class: as many as were allocated to each request, before
/// that as many as it asks for.
pub(super) fn of_claim(claim: &ResourceClaim) -> Option<Arc<Devices>> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let results = allocation.and_then(|it| it.devices.as_ref()?.results.as_ref());
    // What was given is called after its request, or `request/alternative`.
    let given: Option<Vec<&str>> =
        results.map(|results| results.iter().map(|result| result.request.as_str()).collect());
    let mut devices = Devices::new();
    for request in claim.spec.devices.iter().flat_map(|it| it.requests.iter().flatten()) {
        if let Some((class, count)) = of_request(request, given.as_deref())
            && (1..=MOST).contains(&count)
        {
            add(&mut devices, &Devices::from([(class.into(), count)]));
        }
    }
    (!devices.is_empty()).then(|| Arc::new(devices))
}

/// Class and count of one request; of alternatives the one that was given, else the preferred one.
fn of_request<'a>(request: &'a DeviceRequest, given: Option<&[&str]>) -> Option<(&'a str, u32)> {
    let n_given =
        |name: &str| given.map(|given| given.iter().filter(|given| **given == name).count());
    let (class, asked, n_given) = match (&request.exactly, &request.first_available) {
        (Some(exactly), _) => (&exactly.device_class_name, exactly.count, n_given(&request.name)),
        (None, Some(alternatives)) => {
            let named = |name: &str| n_given(&format!("{}/{name}", request.name));
            let was_given = alternatives.iter().find(|it| named(&it.name) > Some(0));
            let chosen = was_given.or_else(|| alternatives.first())?;
            (&chosen.device_class_name, chosen.count, named(&chosen.name))
        }
        (None, None) => return None,
    };
    let count = match n_given {
        Some(n_given) => u32::try_from(n_given).ok()?,
        None => u32::try_from(asked.unwrap_or(1)).ok()?,
    };
    Some((class, count))
}

/// A node, reduced to what it can give and whether it stays.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    /// Devices that pods can have; none where it takes no pods.
    devices: Devices,
    /// It is told to go, with the pods on it.
    pub(super) leaves: bool,
}

impl Node {
    /// Reads a node; `None` for one that stays and has nothing to give: without devices, or not Ready.
    pub(super) fn from_object(node: &ApiNode) -> Option<Node> {
        let leaves = leaves(node);
        let status = node.status.as_ref()?;
        let mut conditions = status.conditions.iter().flatten();
        let is_ready =
            conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let given = status.allocatable.iter().filter(|_| is_ready && !leaves);
        let devices: Devices = given.flat_map(counted).collect();
        (leaves || !devices.is_empty()).then_some(Node { devices, leaves })
    }
}

/// Whether a node is told to go: cordoned (a drain begins so), or tainted by who takes it away.
fn leaves(node: &ApiNode) -> bool {
    let Some(spec) = &node.spec else { return false };
    let is_told = |key: &str| LEAVING.contains(&key);
    spec.unschedulable == Some(true)
        || spec.taints.iter().flatten().any(|taint| is_told(&taint.key))
}

/// What nodes have and what the pods on them ask for; the latter only where all pods are known.
pub(super) fn room<'a>(
    nodes: impl Iterator<Item = (&'a Arc<str>, &'a Node)>,
    pods: Option<impl Iterator<Item = &'a Pod>>,
) -> BTreeMap<Arc<str>, Room> {
    let mut room: BTreeMap<Arc<str>, Room> = BTreeMap::new();
    let giving = nodes.filter(|(_, node)| !node.devices.is_empty());
    let nodes: HashMap<&str, &Node> = giving.map(|(name, node)| (&**name, node)).collect();
    for (name, count) in nodes.values().flat_map(|node| &node.devices) {
        let of_kind = room.entry(Arc::clone(name)).or_default();
        of_kind.allocatable = of_kind.allocatable.saturating_add(*count);
        of_kind.requested = pods.is_some().then_some(0);
    }
    for pod in pods.into_iter().flatten() {
        if !pod.member.node.as_deref().is_some_and(|node| nodes.contains_key(node)) {
            continue;
        }
        for (name, count) in &*pod.devices {
            if let Some(requested) = room.get_mut(name).and_then(|it| it.requested.as_mut()) {
                *requested = requested.saturating_add(*count);
            }
        }
    }
    room
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn devices(spec: Value) -> Vec<(String, u32)> {
        let devices = of_pod(&serde_json::from_value(spec).unwrap());
        devices.into_iter().map(|(name, count)| (name.to_string(), count)).collect()
    }

    fn asking(resources: Value) -> Value {
        json!({"name": "a", "resources": {"limits": resources}})
    }

    #[test]
    fn whole_gpus_and_slices_are_counted_apart_and_everything_else_is_not() {
        let vllm = asking(json!({"nvidia.com/gpu": "2", "cpu": "8", "memory": "1Gi"}));
        let sliced = asking(json!({"nvidia.com/mig-1g.10gb": "1", "nvidia.com/gpu": "1"}));
        assert_eq!(
            devices(json!({"containers": [vllm, sliced]})),
            [("nvidia.com/gpu".to_owned(), 3), ("nvidia.com/mig-1g.10gb".to_owned(), 1)]
        );
        assert_eq!(devices(json!({"containers": [asking(json!({"cpu": "1"}))]})), []);
        let absurd = asking(json!({"nvidia.com/gpu": "100000"}));
        assert_eq!(devices(json!({"containers": [absurd]})), []);
    }

    #[test]
    fn gpus_are_summed_over_the_containers_that_run_together() {
        let wants =
            |gpus: &str| json!({"name": "x", "resources": {"requests": {"nvidia.com/gpu": gpus}}});
        let sidecar = |gpus: &str| {
            let mut container = wants(gpus);
            container["restartPolicy"] = json!("Always");
            container
        };
        let limit = json!({"name": "x", "resources": {"limits": {"nvidia.com/gpu": "2"}}});
        let cpu = json!({"name": "x", "resources": {"requests": {"cpu": "4"}}});
        for (containers, init, expected) in [
            (json!([wants("1")]), json!([]), Some(1)),
            (json!([wants("4"), wants("4")]), json!([]), Some(8)),
            (json!([limit]), json!([]), Some(2)),
            (json!([cpu]), json!([]), None),
            (json!([wants("0")]), json!([]), None),
            (json!([wants("1")]), json!([wants("8")]), Some(8)),
            (json!([wants("4")]), json!([wants("1")]), Some(4)),
            (json!([wants("4")]), json!([sidecar("1")]), Some(5)),
            (json!([wants("half")]), json!([]), None),
            (json!([wants("-1")]), json!([]), None),
            (json!([wants("4294967295"), wants("1")]), json!([]), None),
            (json!([wants("1024")]), json!([]), Some(1_024)),
            (json!([wants("1025")]), json!([]), None),
        ] {
            let case = format!("{containers} {init}");
            let spec = json!({"containers": containers, "initContainers": init});
            let devices = of_pod(&serde_json::from_value(spec).unwrap());
            assert_eq!(whole(&devices), expected, "{case}");
        }
    }

    fn claim(spec: Value, status: Value) -> Option<Vec<(String, u32)>> {
        let claim = json!({"metadata": {"name": "c"}, "spec": spec, "status": status});
        let devices = of_claim(&serde_json::from_value(claim).unwrap())?;
        Some(devices.iter().map(|(name, count)| (name.to_string(), *count)).collect())
    }

    #[test]
    fn a_claim_counts_what_was_allocated_and_before_that_what_it_asks_for() {
        let request = |count: Value| {
            json!({"devices": {"requests": [{"name": "gpu",
                "exactly": {"deviceClassName": "gpu.nvidia.com", "count": count}}]}})
        };
        let gpus = |count: u32| Some(vec![("gpu.nvidia.com".to_owned(), count)]);
        assert_eq!(claim(request(json!(4)), json!({})), gpus(4));
        assert_eq!(claim(request(json!(null)), json!({})), gpus(1));
        let result = |request: &str, device: &str| json!({"request": request, "driver": "gpu.nvidia.com", "pool": "n", "device": device});
        // Mode `All` asks for no number.
        let all = json!({"devices": {"requests": [{"name": "gpu",
            "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}}]}});
        let results = json!([result("gpu", "0"), result("gpu", "1"), result("nic", "0")]);
        assert_eq!(claim(all, json!({"allocation": {"devices": {"results": results}}})), gpus(2));
        let either = json!({"devices": {"requests": [{"name": "gpu", "firstAvailable": [
            {"name": "slice", "deviceClassName": "mig.nvidia.com"},
            {"name": "whole", "deviceClassName": "gpu.nvidia.com"}]}]}});
        let given = |request: &str| {
            let results = json!([result(request, "0")]);
            claim(either.clone(), json!({"allocation": {"devices": {"results": results}}}))
        };
        assert_eq!(given("gpu/slice"), Some(vec![("mig.nvidia.com".to_owned(), 1)]));
        assert_eq!(given("gpu/whole"), gpus(1));
        assert_eq!(claim(json!({}), json!({})), None);
    }

    #[test]
    fn a_node_gives_its_devices_while_it_takes_pods() {
        let node = |ready: &str, spec: Value| {
            let node = json!({"metadata": {"name": "n"}, "spec": spec,
                "status": {"conditions": [{"type": "Ready", "status": ready}],
                    "allocatable": {"nvidia.com/gpu": "8", "cpu": "96"}}});
            Node::from_object(&serde_json::from_value(node).unwrap())
        };
        let tainted = |key: &str| json!({"taints": [{"key": key, "effect": "NoSchedule"}]});
        let gives = Node { devices: [(GPU_RESOURCE.into(), 8)].into(), leaves: false };
        let goes = Node { devices: Devices::new(), leaves: true };
        assert_eq!(node("True", json!({})).as_ref(), Some(&gives));
        assert_eq!(
            node("True", tainted("nvidia.com/gpu")),
            Some(gives),
            "for those who tolerate it"
        );
        assert_eq!(node("Unknown", json!({})), None);
        assert_eq!(node("True", json!({"unschedulable": true})).as_ref(), Some(&goes));
        for key in LEAVING {
            assert_eq!(node("True", tainted(key)).as_ref(), Some(&goes), "{key}");
        }
    }
}
