//! The scenarios by name, and what each is about.
//!
//! Must say what has to hold, never how long something takes on a given machine: bounds are wide where
//! something must come, and exact where something must not.

mod basics;
mod dead_band;
mod doctor;
mod edits;
mod faults;
mod files;
mod kinds;
mod leaving;
mod pair;
mod pair_cuts;
mod pair_spread;
mod pair_tls;
mod rights;
mod simulated;
mod stage;
mod versus;
mod zero;

use std::future::Future;
use std::pin::Pin;

use crate::scene::Scene;

/// What a scenario does.
pub(crate) type Play = for<'a> fn(&'a mut Scene) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// One scenario.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// It stops a part of the cluster, or has a say in every namespace, so that only such may run beside it.
    pub(crate) breaks: bool,
    /// It takes so long that it runs only when asked for by `--ignored`.
    pub(crate) is_long: bool,
    pub(crate) play: Play,
}

macro_rules! scenario {
    ($name:literal, $about:literal, $play:path $(, $field:ident)?) => {
        Scenario {
            $($field: true,)?
            ..Scenario {
                name: $name,
                about: $about,
                breaks: false,
                is_long: false,
                play: |scene| Box::pin($play(scene)),
            }
        }
    };
}

/// All of them.
pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario!("manifests", "the API server takes every file", files::manifests),
    scenario!("generate", "the API server takes what generate prints", files::generate),
    scenario!("doctor", "what doctor prints cures what it finds", doctor::doctor),
    scenario!("adopt", "a running target is taken over without moving it", basics::adopt),
    scenario!("dips", "1 to N to 1; a dip shorter than the hold moves nothing", basics::dips),
    scenario!("steps_of_one", "each step of one is taken at 10, 12 and 20", basics::steps_of_one),
    scenario!("dead_band", "without tolerance the HPA ignores 10 to 11", basics::dead_band),
    scenario!(
        "past_the_dead_band",
        "at 10, 12 and 20 one fewer is ignored and one more that cannot wait is not",
        dead_band::past
    ),
    scenario!("idle_first", "of three pods the idle one goes, the oldest", leaving::idle_first),
    scenario!(
        "node_notice",
        "what is on a node that is told to go is replaced before",
        leaving::node_notice
    ),
    scenario!(
        "as_simulated",
        "a trace through the loop and through simulate: the same counts",
        simulated::as_simulated,
        is_long
    ),
    scenario!("pending", "pods without a GPU are no reason for more", basics::pending),
    scenario!("stateful_set", "a StatefulSet, 1 to N to 1", kinds::stateful_set),
    scenario!("leader_worker_set", "groups of pods, 1 to N to 1", kinds::leader_worker_set),
    scenario!("kserve", "what KServe makes is scaled in its place", kinds::kserve),
    scenario!(
        "role_bindings",
        "as in a pod with the rights for two namespaces, and no load on the API server",
        rights::role_bindings
    ),
    scenario!(
        "all_namespaces",
        "one scaler of all namespaces scales in two, with nodes and all that is on them",
        rights::all_namespaces,
        breaks
    ),
    scenario!("external", "external works as external-push does", basics::external),
    scenario!(
        "zero_and_wake",
        "1 to 0 after the idle time, one wake for a request",
        zero::and_wake
    ),
    scenario!("fifty_at_zero", "fifty requests at zero are one wake, none is lost", zero::fifty),
    scenario!("cancelled_zero", "new demand cancels a pending zero", zero::cancelled),
    scenario!("install_order", "a ScaledObject before its scaler", edits::install_order),
    scenario!("two_triggers", "the larger of two triggers wins", edits::two_triggers),
    scenario!("edited", "an edit under load moves nothing by itself", edits::edited),
    scenario!("paused", "pause and resume under load", edits::paused),
    scenario!("deleted", "deleted and created again under load", edits::deleted),
    scenario!(
        "rollout",
        "a rollout in the middle of a peak never lowers the count",
        edits::rollout
    ),
    scenario!("surge_drift", "surge pods do not ratchet the count up", edits::surge_drift),
    scenario!("canary", "a canary beside the target does not ratchet it up", edits::canary),
    scenario!(
        "paused_scale_in",
        "what may not go down does not, and is said",
        edits::paused_scale_in
    ),
    scenario!("scaler_restart", "kill and stop the scaler under load", faults::scaler_restart),
    scenario!("engines_hang", "all engines hang under load", faults::engines_hang),
    scenario!(
        "pair_leader_killed",
        "the leader of two scalers dies under load",
        pair::leader_killed
    ),
    scenario!("pair_leader_paused", "it hangs, and comes back", pair::leader_paused),
    scenario!("pair_rolling_update", "both are replaced under load", pair::rolling_update),
    scenario!("pair_lease_stolen", "their lease is stolen and deleted", pair::lease_stolen),
    scenario!("pair_shards", "both go, and a shard is damaged and deleted", pair::shards),
    scenario!(
        "pair_cut_from_api",
        "the leader is cut off from the API server",
        pair_cuts::from_api
    ),
    scenario!("pair_cut_from_keda", "KEDA is cut off from its scaler", pair_cuts::from_keda),
    scenario!("pair_cut_apart", "the two are cut off from each other", pair_cuts::from_each_other),
    scenario!(
        "pair_cut_for_long",
        "KEDA is cut off from its scaler with two ScaledObjects on the connection",
        pair_cuts::from_keda_for_long,
        is_long
    ),
    scenario!(
        "pair_headless",
        "KEDA asks both in turn while the count moves",
        pair_spread::headless
    ),
    scenario!(
        "pair_short_cooldown",
        "what a hang does with the cool-down of generate, and with a short one",
        pair_spread::short_cooldown,
        is_long
    ),
    scenario!("pair_tls", "both sides show certificates, which are replaced", pair_tls::replaced),
    scenario!("pair_slow_api", "the API server is slow and answers 429", pair_cuts::slow_api),
    scenario!("pair_clocks", "their clocks differ by hours and jump", pair_cuts::clocks),
    scenario!("pair_herd", "all connect at once, twice", pair_cuts::herd_comes),
    scenario!(
        "prometheus_outage",
        "the Prometheus that the engines are read from goes and comes",
        faults::prometheus_outage
    ),
    scenario!("pod_loss", "a pod that is gone is replaced, not scaled for", faults::pod_loss),
    scenario!("keda_restart", "KEDA's operator is killed under load", faults::keda_restart, breaks),
    scenario!(
        "adapter_restart",
        "KEDA's adapter is killed under load",
        faults::adapter_restart,
        breaks
    ),
    scenario!(
        "api_server_restart",
        "the API server is killed under load",
        faults::api_restart,
        breaks
    ),
    scenario!(
        "side_by_side",
        "half an hour of load, by the scaler and by KEDA's own Prometheus trigger at two thresholds",
        versus::side_by_side,
        is_long
    ),
    scenario!("etcd_pause", "etcd hangs for half a minute under load", faults::etcd_pause, breaks),
];
