//! Every check, one file a family.
//!
//! Pure: a check sees facts and says what is wrong with them, in one finding at most.

mod address;
mod behavior;
mod capacity;
mod fallback;
mod hpa;
mod owners;
mod prometheus;
mod rights;
mod start;
mod stop;
mod triggers;
mod zero;

use super::examine::Check;

pub(super) use prometheus::load_names;
pub(super) use start::seen_starts_ms;

/// Every check, in the order in which findings are told.
pub const CHECKS: [Check; 53] = [
    Check { id: "bad-metadata", look: triggers::bad_metadata },
    Check { id: "no-such-service", look: address::no_such_service },
    Check { id: "headless-service", look: address::headless_service },
    Check { id: "two-scalers", look: address::two_scalers },
    Check { id: "tls-mismatch", look: address::tls_mismatch },
    Check { id: "namespace-not-watched", look: address::not_watched },
    Check { id: "missing-permission", look: rights::missing_permission },
    Check { id: "missing-own-permission", look: rights::missing_own_permission },
    Check { id: "lease-held-by-stranger", look: rights::strangers_lease },
    Check { id: "foreign-metrics-api", look: hpa::foreign_metrics_api },
    Check { id: "no-external-metric", look: hpa::no_external_metric },
    Check { id: "second-autoscaler", look: owners::second_autoscaler },
    Check { id: "replicas-owned-elsewhere", look: owners::replicas_owned_elsewhere },
    Check { id: "target-is-controlled", look: owners::target_is_controlled },
    Check { id: "no-selector", look: owners::no_selector },
    Check { id: "pods-differ", look: owners::pods_differ },
    Check { id: "pause-disputed", look: owners::pause_disputed },
    Check { id: "value-metric", look: triggers::value_metric },
    Check { id: "percent-as-average", look: triggers::percent_as_average },
    Check { id: "memory-as-load", look: triggers::memory_as_load },
    Check { id: "target-beyond-engine", look: triggers::target_beyond_engine },
    Check { id: "double-damping", look: behavior::double_damping },
    Check { id: "limited-steps", look: behavior::limited_steps },
    Check { id: "no-tolerance", look: behavior::no_tolerance },
    Check { id: "tolerance-unsupported", look: behavior::tolerance_unsupported },
    Check { id: "no-wake-source", look: zero::no_wake_source },
    Check { id: "unknown-wake-source", look: zero::unknown_wake_source },
    Check { id: "polled-wake", look: zero::polled_wake },
    Check { id: "short-cooldown", look: zero::short_cooldown },
    Check { id: "idle-cooldown", look: zero::idle_cooldown },
    Check { id: "idle-count-without-effect", look: zero::idle_count },
    Check { id: "no-initial-cooldown", look: zero::no_initial_cooldown },
    Check { id: "cold-start-above-slo", look: zero::cold_start_above_slo },
    Check { id: "fallback-of-zero", look: fallback::of_zero },
    Check { id: "fallback-never-fires", look: fallback::never_fires },
    Check { id: "fallback-below-usual", look: fallback::below_usual },
    Check { id: "max-beyond-gpus", look: capacity::beyond_gpus },
    Check { id: "max-beyond-quota", look: capacity::beyond_quota },
    Check { id: "weights-in-image", look: start::weights_in_image },
    Check { id: "start-outlasts-deadline", look: start::outlasts_deadline },
    Check { id: "start-outlasts-probe", look: start::outlasts_probe },
    Check { id: "nodes-taken-away", look: start::nodes_taken_away },
    Check { id: "answers-cut", look: stop::answers_cut },
    Check { id: "no-pre-stop", look: stop::no_pre_stop },
    Check { id: "grace-too-short", look: stop::grace_too_short },
    Check { id: "prometheus-unreadable", look: prometheus::unreadable },
    Check { id: "no-engine-series", look: prometheus::no_engine_series },
    Check { id: "engine-series-renamed", look: prometheus::renamed },
    Check { id: "engine-series-deprecated", look: prometheus::deprecated },
    Check { id: "engine-series-elsewhere", look: prometheus::elsewhere },
    Check { id: "other-model-name", look: prometheus::other_model },
    Check { id: "wake-query-unmatched", look: prometheus::wake_unmatched },
    Check { id: "unserved-model", look: prometheus::unserved_model },
];
