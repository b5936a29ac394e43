//! What the ScaledObject of a target has to say, and what is doubtful about it.
//!
//! Pure: decides from what was read and asked for, writes no text of the object.

use std::collections::BTreeMap;

use super::Args;
use crate::cluster::PodFacts;
use crate::cluster::survey::{Keda, Survey};
use crate::decision::{DEFAULT_TOLERANCE, HpaEffect, hpa_effect};
use crate::source::scrape::DEFAULT_PORT;

/// From this minor version on the HPA has a tolerance of its own (alpha, off).
const TOLERANCE_SINCE: u32 = 33;
/// From this minor version on it is there without a feature gate.
const TOLERANCE_ALWAYS: u32 = 35;
/// Most replicas where nothing says: room to double, and enough to see it work.
const LEAST_MAX: u32 = 4;
/// Where SGLang serves, unless told otherwise.
const SGLANG_PORT: u16 = 30_000;

/// A ScaledObject to be, with its doubts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) target: Target,
    pub(super) min: u32,
    pub(super) max: u32,
    /// The bound was not given but chosen here.
    pub(super) max_is_chosen: bool,
    pub(super) present: Option<u32>,
    pub(super) tolerance: Tolerance,
    pub(super) scaler_address: String,
    pub(super) metadata: BTreeMap<String, String>,
    doubts: Vec<Doubt>,
}

/// What is scaled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    /// Pods of one replica.
    pub(super) pods: u32,
}

/// Whether the HPA of this cluster takes a tolerance of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tolerance {
    /// It does.
    Taken,
    /// Only with the feature gate `HPAConfigurableTolerance`.
    Gated,
    /// It does not, or KEDA does not pass it on: the field may not be written.
    Refused,
}

/// Where in the object a doubt belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Top,
    Target,
    Min,
    Max,
    Behavior,
    Metadata,
}

/// What the reader should look at before it is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Doubt {
    place: Place,
    text: String,
}

impl Plan {
    /// All doubts, in the order of the object.
    pub(super) fn doubts(&self) -> impl Iterator<Item = &str> {
        self.doubts.iter().map(|doubt| doubt.text.as_str())
    }

    /// The doubts about one part of the object.
    pub(super) fn doubts_at(&self, place: Place) -> impl Iterator<Item = &str> {
        let here = self.doubts.iter().filter(move |doubt| doubt.place == place);
        here.map(|doubt| doubt.text.as_str())
    }
}

/// Decides what to write. The bounds and the metadata have been checked.
pub(super) fn plan(survey: &Survey, args: &Args, metadata: BTreeMap<String, String>) -> Plan {
    let chosen_max = survey.replicas.unwrap_or(0).saturating_mul(2).max(LEAST_MAX).max(args.min);
    let name = args.name.as_ref().unwrap_or(&survey.name).clone();
    let no_pods = PodFacts { pods: 1, ..PodFacts::default() };
    let pods = survey.pods.as_ref().unwrap_or(&no_pods);
    let mut plan = Plan {
        name,
        namespace: survey.namespace.clone(),
        target: Target {
            api_version: survey.api_version.clone(),
            kind: survey.kind.clone(),
            name: survey.name.clone(),
            pods: pods.pods,
        },
        min: args.min,
        max: args.max.unwrap_or(chosen_max),
        max_is_chosen: args.max.is_none(),
        present: survey.replicas,
        tolerance: tolerance(survey),
        scaler_address: args.scaler_address.clone(),
        metadata,
        doubts: Vec::new(),
    };
    add_what_pods_say(&mut plan, pods);
    let doubts = [
        keda_doubt(survey),
        controller_doubt(survey),
        rival_doubt(survey, &plan),
        zero_doubt(&plan),
        above_doubt(&plan),
        room_doubt(survey, &plan, pods),
        tolerance_doubt(survey, &plan),
        gpu_doubt(&plan, pods),
        port_doubt(&plan, pods),
    ];
    plan.doubts = doubts.into_iter().flatten().collect();
    plan
}

fn tolerance(survey: &Survey) -> Tolerance {
    let passed_on = survey.keda != Keda::Installed { takes_tolerance: false };
    match survey.kubernetes_minor {
        Some(minor) if minor < TOLERANCE_SINCE => Tolerance::Refused,
        Some(_) | None if !passed_on => Tolerance::Refused,
        Some(minor) if minor < TOLERANCE_ALWAYS => Tolerance::Gated,
        Some(_) | None => Tolerance::Taken,
    }
}

/// What the scaler would not find by itself, unless the metadata says it already.
fn add_what_pods_say(plan: &mut Plan, pods: &PodFacts) {
    if pods.declared_port.is_none() {
        let default = (pods.engine == Some("sglang")).then_some(SGLANG_PORT);
        let port = pods.likely_port.or(default).filter(|port| *port != DEFAULT_PORT);
        if let Some(port) = port {
            let known = plan.metadata.contains_key("metricsPort");
            if !known {
                plan.metadata.insert("metricsPort".to_owned(), port.to_string());
            }
        }
    }
    // Of a group the scaler sees the leader's pods alone.
    if let Some(gpus) = pods.gpus.filter(|_| pods.pods > 1)
        && !plan.metadata.contains_key("gpusPerReplica")
    {
        plan.metadata.insert("gpusPerReplica".to_owned(), gpus.to_string());
    }
}

fn doubt(place: Place, text: String) -> Option<Doubt> {
    Some(Doubt { place, text })
}

fn keda_doubt(survey: &Survey) -> Option<Doubt> {
    let text = "KEDA is not installed on this cluster: install it first, 2.18 or newer";
    (survey.keda == Keda::Missing).then(|| doubt(Place::Top, text.to_owned()))?
}

fn controller_doubt(survey: &Survey) -> Option<Doubt> {
    let controller = survey.controller.as_ref()?;
    let text = format!(
        "{controller} controls this {} and may set its replicas back: scale {controller} instead if \
         it has a scale subresource, else tell its controller to leave replicas alone",
        survey.kind
    );
    doubt(Place::Target, text)
}

fn rival_doubt(survey: &Survey, plan: &Plan) -> Option<Doubt> {
    let own = format!("ScaledObject/{}", plan.name);
    let rivals: Vec<&str> = survey.rivals.as_ref()?.iter().map(String::as_str).collect();
    let others: Vec<&str> = rivals.iter().copied().filter(|rival| *rival != own).collect();
    if others.is_empty() {
        return None;
    }
    let text = format!(
        "{} scales the same target: delete it first, for two autoscalers fight and KEDA refuses a \
         second ScaledObject",
        others.join(" and ")
    );
    doubt(Place::Target, text)
}

fn zero_doubt(plan: &Plan) -> Option<Doubt> {
    let has_source =
        plan.metadata.keys().any(|key| key == "wakeSource" || key == "wakeSourceFromEnv");
    if plan.min > 0 || has_source {
        return None;
    }
    let text = "minReplicaCount is 0 and no wakeSource is given, so zero is never reached: an engine \
        that is gone cannot say that somebody wants it; add a wake source to the scaler's \
        configuration and --metadata wakeSource=NAME, or take --min 1";
    doubt(Place::Min, text.to_owned())
}

fn above_doubt(plan: &Plan) -> Option<Doubt> {
    let present = plan.present.filter(|present| *present > plan.max)?;
    let text = format!(
        "{present} replicas run at present and the HPA cuts to maxReplicaCount {} as soon as this is \
         applied: give --max {present} or more to keep them",
        plan.max
    );
    doubt(Place::Max, text)
}

fn room_doubt(survey: &Survey, plan: &Plan, pods: &PodFacts) -> Option<Doubt> {
    let (gpus, all) = (pods.gpus?, survey.cluster_gpus?);
    let fits = all / gpus.max(1);
    if fits >= plan.max {
        return None;
    }
    let text = format!(
        "maxReplicaCount {} needs {} GPUs and the nodes have {all}: beyond {fits} replicas pods stay \
         Pending, unless nodes can be added",
        plan.max,
        u64::from(plan.max) * u64::from(gpus),
    );
    doubt(Place::Max, text)
}

fn tolerance_doubt(survey: &Survey, plan: &Plan) -> Option<Doubt> {
    // At fewer replicas the dead band swallows no step.
    let swallows = |count| {
        matches!(hpa_effect(count, count + 1, DEFAULT_TOLERANCE), HpaEffect::Ignored { .. })
    };
    if !(1..plan.max).any(swallows) {
        return None;
    }
    let minor = survey.kubernetes_minor.map_or_else(String::new, |minor| format!(" 1.{minor}"));
    let text = match plan.tolerance {
        Tolerance::Taken if survey.keda != Keda::Unknown && survey.kubernetes_minor.is_some() => {
            return None;
        }
        Tolerance::Taken => "whether this cluster takes an HPA's own tolerance could not be read: \
            Kubernetes from 1.35 and KEDA from 2.18 on do, and older ones refuse it or drop it"
            .to_owned(),
        Tolerance::Gated => format!(
            "Kubernetes{minor} takes the tolerance only with the feature gate \
             HPAConfigurableTolerance: without it every step of one is ignored from 10 replicas on"
        ),
        Tolerance::Refused => format!(
            "this cluster (Kubernetes{minor}{}) takes no tolerance of an HPA's own, so from 10 \
             replicas on every step of one is ignored: Kubernetes 1.35 with KEDA 2.18, or \
             kube-controller-manager's --horizontal-pod-autoscaler-tolerance=0, cures it",
            if survey.keda == (Keda::Installed { takes_tolerance: false }) {
                ", KEDA older than 2.18"
            } else {
                ""
            }
        ),
    };
    doubt(Place::Behavior, text)
}

fn gpu_doubt(plan: &Plan, pods: &PodFacts) -> Option<Doubt> {
    if pods.gpus.is_some() || plan.metadata.keys().any(|key| key.starts_with("gpusPerReplica")) {
        return None;
    }
    let text = if pods.asks_for_slices {
        "the pods ask for slices of GPUs, so what a replica costs in whole ones is unknown: add \
         --metadata gpusPerReplica=N if it shall count as so many"
    } else if pods.claims_devices {
        "the pods claim their devices by resource claims, whose number they do not say: add \
         --metadata gpusPerReplica=N"
    } else {
        "the pods ask for no nvidia.com/gpu, so what a replica costs is unknown: is this the right \
         target? If it is, add --metadata gpusPerReplica=N"
    };
    doubt(Place::Metadata, text.to_owned())
}

fn port_doubt(plan: &Plan, pods: &PodFacts) -> Option<Doubt> {
    let is_known = pods.declared_port.or(pods.likely_port).is_some()
        || pods.engine.is_some()
        || plan.metadata.keys().any(|key| key.starts_with("metricsPort") || key == "source");
    if is_known {
        return None;
    }
    let text = format!(
        "neither port nor image says where the engine's metrics are, so {DEFAULT_PORT} is tried: add \
         --metadata metricsPort=N if that is wrong"
    );
    doubt(Place::Metadata, text)
}
