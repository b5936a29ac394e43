//! What a pod says: where in its life it is, where its metrics are, what it asks for.
//!
//! Pure; what a pod does not say, or says in no known form, stays unknown.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ContainerStatus, Pod as ApiPod, PodCondition, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::devices;
use super::group;
use super::selector::Labels;
use crate::decision::{Moment, Phase};
use crate::inventory::{Devices, Endpoint, Member, Start};

/// Restarts before the first readiness from which a pod counts as starting again and again.
const CRASH_LOOP_RESTARTS: i32 = 3;
/// A Ready condition that turned false this long after the kubelet took the pod was true before:
/// the kubelet writes the first one, false, with the start time (kubelet/status).
const FIRST_CONDITION_MS: u64 = 5_000;
/// A start that took longer is no start: a pod that lost its readiness has got it back.
pub(super) const LONGEST_START_MS: u64 = 4 * 3_600_000;

/// A pod, reduced to what matters here.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pod {
    /// Its labels.
    pub(super) labels: Arc<Labels>,
    /// As a member of its workload.
    pub(super) member: Member,
    /// Why it is no capacity and will not be soon.
    pub(super) obstacle: Option<Obstacle>,
    /// Devices that it asks for, but for those that it claims.
    pub(super) devices: Arc<Devices>,
    /// The resource claims that it has.
    pub(super) claims: Box<[Arc<str>]>,
    /// How its start went, once it is over.
    pub(super) start: Option<Start>,
    /// Pods of the group that it belongs to; 1 where it belongs to none.
    pub(super) group_size: u32,
    /// A ReplicaSet controls it, and chooses among its pods by what they cost.
    pub(super) is_ranked: bool,
}

/// Why a pod that is not ready will not be soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The scheduler finds no room.
    Unschedulable,
    /// It starts again and again.
    CrashLooping,
}

impl Pod {
    /// Reads a pod; `None` for one that has ended for good and for one without a name.
    pub(super) fn from_object(pod: &ApiPod) -> Option<Pod> {
        let no_status = PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&no_status);
        // An evicted or completed pod stays listed until something deletes it.
        if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return None;
        }
        let ready = condition(status, "Ready");
        let phase = phase(pod, status, ready);
        Some(Pod {
            labels: Arc::new(pod.metadata.labels.clone().unwrap_or_default()),
            member: Member {
                id: pod.metadata.name.as_deref()?.into(),
                phase,
                created_at: pod.metadata.creation_timestamp.as_ref().map(moment),
                ready_at: match phase {
                    Phase::Ready => ready
                        .and_then(|condition| condition.last_transition_time.as_ref())
                        .map(moment),
                    Phase::Starting | Phase::NotReady | Phase::Terminating => None,
                },
                endpoint: endpoint(pod, status),
                node: pod.spec.as_ref().and_then(|spec| Some(spec.node_name.as_deref()?.into())),
            },
            obstacle: match phase {
                Phase::Starting | Phase::NotReady => obstacle(status, phase),
                Phase::Ready | Phase::Terminating => None,
            },
            devices: Arc::new(pod.spec.as_ref().map(devices::of_pod).unwrap_or_default()),
            claims: claims(pod, status),
            start: ready.filter(|_| phase == Phase::Ready).and_then(|at| start(pod, status, at)),
            group_size: annotation(pod, group::SIZE).and_then(|n| n.parse().ok()).unwrap_or(1),
            is_ranked: pod
                .metadata
                .owner_references
                .iter()
                .flatten()
                .any(|owner| owner.kind == "ReplicaSet" && owner.controller == Some(true)),
        })
    }

    /// Whether it serves.
    pub(super) fn is_ready(&self) -> bool {
        self.member.phase == Phase::Ready
    }
}

/// The names of its claims: given in its spec, or made of a template and named in its status.
fn claims(pod: &ApiPod, status: &PodStatus) -> Box<[Arc<str>]> {
    let given = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let given = given.filter_map(|claim| claim.resource_claim_name.as_deref());
    let made = status.resource_claim_statuses.iter().flatten();
    let made = made.filter_map(|claim| claim.resource_claim_name.as_deref());
    given.chain(made).map(Arc::from).collect()
}

/// The parts of a start, from the times that scheduler and kubelet have written; `None` where one
/// is missing, or a container has started again, so that its first time is gone.
fn start(pod: &ApiPod, status: &PodStatus, ready: &PodCondition) -> Option<Start> {
    let created = moment(pod.metadata.creation_timestamp.as_ref()?);
    let placed = moment(condition(status, "PodScheduled")?.last_transition_time.as_ref()?);
    let mut running = None;
    for container in status.container_statuses.iter().flatten() {
        if container.restart_count > 0 {
            return None;
        }
        let state = container.state.as_ref()?.running.as_ref()?;
        running = running.max(Some(moment(state.started_at.as_ref()?)));
    }
    let running = running?;
    let start = Start {
        schedule_ms: placed.millis_since(created),
        pull_ms: running.millis_since(placed),
        load_ms: moment(ready.last_transition_time.as_ref()?).millis_since(running),
    };
    (start.total_ms() <= LONGEST_START_MS).then_some(start)
}

fn phase(pod: &ApiPod, status: &PodStatus, ready: Option<&PodCondition>) -> Phase {
    if pod.metadata.deletion_timestamp.is_some() {
        return Phase::Terminating;
    }
    let Some(ready) = ready else {
        return Phase::Starting;
    };
    if ready.status == "True" {
        return Phase::Ready;
    }
    match (&status.start_time, &ready.last_transition_time) {
        (Some(start), Some(turned))
            if moment(turned).millis_since(moment(start)) > FIRST_CONDITION_MS =>
        {
            Phase::NotReady
        }
        _ => Phase::Starting,
    }
}

fn obstacle(status: &PodStatus, phase: Phase) -> Option<Obstacle> {
    let is_unschedulable = condition(status, "PodScheduled").is_some_and(|scheduled| {
        scheduled.status == "False" && scheduled.reason.as_deref() == Some("Unschedulable")
    });
    if is_unschedulable {
        return Some(Obstacle::Unschedulable);
    }
    let containers = || {
        let init = status.init_container_statuses.iter().flatten();
        init.chain(status.container_statuses.iter().flatten())
    };
    // Restarts are counted over a pod's whole life: after its first readiness they say nothing
    // of the present, only the kubelet's back-off does.
    let loops = containers().any(backs_off)
        || (phase == Phase::Starting
            && containers().any(|container| container.restart_count >= CRASH_LOOP_RESTARTS));
    loops.then_some(Obstacle::CrashLooping)
}

fn backs_off(container: &ContainerStatus) -> bool {
    let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
    waiting.and_then(|waiting| waiting.reason.as_deref()) == Some("CrashLoopBackOff")
}

fn endpoint(pod: &ApiPod, status: &PodStatus) -> Option<Endpoint> {
    let ip = status.pod_ip.as_deref()?.parse().ok()?;
    let port = declared_port(pod.metadata.annotations.as_ref(), pod.spec.as_ref());
    Some(Endpoint::Pod { ip, port })
}

/// The metrics port that a pod or a pod template declares: annotation, else a port's name.
pub(super) fn declared_port(annotations: Option<&Labels>, spec: Option<&PodSpec>) -> Option<u16> {
    let annotated =
        annotations.and_then(|all| all.get("prometheus.io/port")?.trim().parse::<u16>().ok());
    let named = |name: &str| {
        let containers = spec?.containers.iter();
        let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
        let port = ports.find(|port| port.name.as_deref() == Some(name))?;
        u16::try_from(port.container_port).ok()
    };
    annotated
        .filter(|port| *port > 0)
        .or_else(|| named("metrics"))
        .or_else(|| named("http"))
        .filter(|port| *port > 0)
}

fn annotation<'a>(pod: &'a ApiPod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

fn moment(time: &Time) -> Moment {
    Moment(time.0.as_millisecond())
}

#[cfg(test)]
mod tests;
