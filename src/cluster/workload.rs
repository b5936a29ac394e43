//! One workload, from everything that was read of it.
//!
//! Pure. What is missing stays unknown; what was learned of starts outlives the pods that taught it.

use std::borrow::Cow;
use std::sync::Arc;

use super::devices;
use super::hpa::Autoscaler;
use super::pod::{LONGEST_START_MS, Obstacle, Pod};
use super::scaled_object::ScaledObject;
use super::target::Target;
use crate::decision::{Moment, Phase, Replicas};
use crate::inventory::{Counted, Devices, Hpa, Kubernetes, Start, Workload, WorkloadKey};

/// Labels by which a LeaderWorkerSet and an Argo Rollout tell the revisions of their template.
const REVISIONS: [&str; 2] =
    ["leaderworkerset.sigs.k8s.io/template-revision-hash", "rollouts-pod-template-hash"];
/// How long two revisions that stand beside each other count as a rollout after the last pod came or
/// turned ready: what a Deployment's rollout is given to get on (`progressDeadlineSeconds`, by default
/// 600). A partition or a paused canary has no end of its own, and would hold its GPUs for good.
const ROLLOUT_REST_MS: u64 = 600_000;

/// What was read of one workload.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    pub(super) object: &'a ScaledObject,
    pub(super) target: Option<&'a Target>,
    /// Its replicas.
    pub(super) pods: &'a [Cow<'a, Pod>],
    /// Whatever scales its target, itself included.
    pub(super) scalers: &'a [Scaler<'a>],
    /// How a replica started, as published before.
    pub(super) start: Option<Start>,
    /// Ready replicas on nodes that are told to go.
    pub(super) n_leaving: usize,
    /// Pods of its namespace were left out.
    pub(super) is_cut: bool,
}

/// Something that scales a target.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scaler<'a> {
    /// A ScaledObject, by its name.
    ScaledObject(&'a Arc<str>),
    /// An HPA.
    Hpa(&'a Autoscaler),
}

/// Builds it; `claim` gives the devices of a resource claim.
pub(super) fn build<'a>(
    key: WorkloadKey,
    parts: &Parts<'_>,
    claim: impl Fn(&str) -> Option<&'a Arc<Devices>>,
) -> Workload {
    let Parts { object, target, pods, scalers, start, n_leaving, is_cut } = *parts;
    let devices = devices(target, pods, claim);
    let (hpa, rivals) = scaled_by(&key.name, scalers);
    Workload {
        min: object.min,
        max: object.max,
        fallback_replicas: object.fallback_replicas,
        triggers: object.triggers.clone(),
        // Where pods are left out, fewer than are there would be counted within what is ordered.
        replicas: replicas(target.filter(|_| !is_cut), pods, n_leaving),
        members: pods.iter().map(|pod| pod.member.clone()).collect(),
        counted: Counted::ByKubernetes,
        gpus_per_replica: devices::whole(&devices),
        paused: object.paused,
        kubernetes: Kubernetes {
            hpa,
            rivals,
            devices,
            start: typical(pods).or(start),
            pauses: object.pauses,
            writer: target.and_then(|target| target.writer.clone()),
            refusal: target.and_then(|target| target.refusal.clone()),
            ranks_pods: pods.iter().any(|pod| pod.is_ranked),
            rollout_until: rollout_until(pods),
            is_cut,
        },
        key,
    }
}

/// Its own HPA, and what else scales its target.
fn scaled_by(name: &str, scalers: &[Scaler<'_>]) -> (Option<Arc<Hpa>>, Box<[String]>) {
    let mut own = None;
    let mut rivals = Vec::new();
    for scaler in scalers {
        match scaler {
            Scaler::ScaledObject(other) if ***other != *name => {
                rivals.push(format!("ScaledObject/{other}"));
            }
            Scaler::ScaledObject(_) => {}
            Scaler::Hpa(it) if it.made_of.as_deref() == Some(name) => {
                own = Some(Arc::clone(&it.hpa))
            }
            // The HPA of another ScaledObject is told as that.
            Scaler::Hpa(it) if it.made_of.is_some() => {}
            Scaler::Hpa(it) => rivals.push(format!("HorizontalPodAutoscaler/{}", it.hpa.name)),
        }
    }
    (own, rivals.into())
}

/// What one replica asks for: by its template, else by a pod; claims are told by pods alone.
fn devices<'a>(
    target: Option<&Target>,
    pods: &[Cow<'_, Pod>],
    claim: impl Fn(&str) -> Option<&'a Arc<Devices>>,
) -> Arc<Devices> {
    let of_template = target.map(|target| &target.devices).filter(|devices| !devices.is_empty());
    // A group that is not whole yet has fewer.
    let n_devices = |devices: &&Arc<Devices>| devices.values().map(|n| u64::from(*n)).sum::<u64>();
    let of_a_pod = pods.iter().map(|pod| &pod.devices).max_by_key(n_devices);
    let asked = of_template.or(of_a_pod).cloned().unwrap_or_default();
    let Some(claiming) = pods.iter().find(|pod| !pod.claims.is_empty()) else { return asked };
    let mut all = Devices::clone(&asked);
    for name in &claiming.claims {
        if let Some(claimed) = claim(name) {
            devices::add(&mut all, claimed);
        }
    }
    Arc::new(all)
}

/// The start in the middle of those that are known: one slow node says little of the next.
fn typical(pods: &[Cow<'_, Pod>]) -> Option<Start> {
    let mut starts: Vec<Start> = pods.iter().filter_map(|pod| pod.start).collect();
    starts.sort_unstable_by_key(Start::total_ms);
    starts.get(starts.len() / 2).copied()
}

/// Counts a target's pods.
///
/// Ready pods beyond `spec` are surge, or about to go: no capacity. What of `spec` is neither
/// ready nor known to be no capacity is on its way, whether its pod exists yet or not; but for a pod
/// that the API server refuses, which is as good as one that cannot be placed.
fn replicas(target: Option<&Target>, pods: &[Cow<'_, Pod>], n_leaving: usize) -> Replicas {
    let count = |is: fn(&Pod) -> bool| {
        u32::try_from(pods.iter().filter(|pod| is(pod)).count()).unwrap_or(u32::MAX)
    };
    let spec = target.and_then(|target| target.spec);
    let ready_pods = count(Pod::is_ready);
    let ready = spec.map_or(ready_pods, |spec| ready_pods.min(spec));
    let terminating = count(|pod| pod.member.phase == Phase::Terminating);
    let present = count(|pod| pod.member.phase != Phase::Terminating);
    let is_refused = target.is_some_and(|target| target.refusal.is_some());
    let refused = if is_refused { spec.unwrap_or(0).saturating_sub(present) } else { 0 };
    let unschedulable =
        count(|pod| pod.obstacle == Some(Obstacle::Unschedulable)).saturating_add(refused);
    let crash_looping = count(|pod| pod.obstacle == Some(Obstacle::CrashLooping));
    let starting = spec
        .unwrap_or(present)
        .saturating_sub(ready)
        .saturating_sub(unschedulable)
        .saturating_sub(crash_looping);
    Replicas {
        spec,
        ready,
        starting,
        terminating,
        unschedulable,
        crash_looping,
        leaving: u32::try_from(n_leaving).unwrap_or(u32::MAX).min(ready),
        rollout: target.is_some_and(|target| target.rollout),
    }
}

/// Until when pods of two revisions of one template are a rollout, which is how a target rolls out that only
/// its `/scale` is read of; `None` where all are of one. Labels of single controllers: that of a
/// ReplicaSet's template differs among the parts of one target too.
fn rollout_until(pods: &[Cow<'_, Pod>]) -> Option<Moment> {
    let revision = |pod: &Pod| REVISIONS.iter().find_map(|key| pod.labels.get(*key)).cloned();
    let stays = pods.iter().filter(|pod| pod.member.phase != Phase::Terminating);
    let revised: Vec<_> = stays.filter_map(|pod| Some((revision(pod)?, pod))).collect();
    let (newest, _) = revised.iter().max_by_key(|(_, pod)| pod.member.created_at)?;
    if revised.iter().all(|(revision, _)| revision == newest) {
        return None;
    }
    let moves = revised.iter().filter_map(|(revision, pod)| {
        let (created_at, is_newest) = (pod.member.created_at?, revision == newest);
        let comes = pod.member.phase == Phase::Starting && pod.obstacle.is_none();
        Some(if is_newest && comes {
            created_at.plus_millis(LONGEST_START_MS)
        } else {
            let ready_at = pod.member.ready_at.filter(|_| is_newest);
            created_at.max(ready_at.unwrap_or(created_at)).plus_millis(ROLLOUT_REST_MS)
        })
    });
    moves.max()
}
