//! KEDA's side: when it polls, when the HPA asks through it, and the way between zero and one.
//!
//! Must not call anybody: answers are arguments.

use super::{Behavior, Hpa};
use crate::decision::Moment;

/// `--horizontal-pod-autoscaler-sync-period`.
const SYNC_MS: u64 = 15_000;

/// A ScaledObject with one trigger, whose metric has an AverageValue target. The defaults are
/// KEDA's.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaledObject {
    /// `minReplicaCount`. Default 0.
    pub min: u32,
    /// `maxReplicaCount`. Default 100.
    pub max: u32,
    /// `pollingInterval`, in milliseconds. Default 30,000.
    pub polling_ms: u64,
    /// `cooldownPeriod`, in milliseconds. Default 300,000.
    pub cooldown_ms: u64,
    /// `initialCooldownPeriod`, in milliseconds. Default 0.
    pub initial_cooldown_ms: u64,
    /// The target value for each replica, above 0. Default 1.
    pub target: f64,
    /// The HPA's `behavior`. Default none, which is not the same as an empty one.
    pub behavior: Option<Behavior>,
}

impl Default for ScaledObject {
    fn default() -> ScaledObject {
        ScaledObject {
            min: 0,
            max: 100,
            polling_ms: 30_000,
            cooldown_ms: 300_000,
            initial_cooldown_ms: 0,
            target: 1.0,
            behavior: None,
        }
    }
}

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// KEDA's own poll: GetMetricSpec, and with `min` 0 also GetMetrics and IsActive.
    Poll,
    /// A sync of the HPA: GetMetricSpec, GetMetrics and IsActive where [`Keda::reads_metric`].
    Sync,
}

/// KEDA and the HPA around one ScaledObject.
#[derive(Debug, Clone)]
pub struct Keda {
    object: ScaledObject,
    hpa: Hpa,
    created_at: Moment,
    last_active_at: Option<Moment>,
    next_poll_at: Moment,
    next_sync_at: Moment,
}

impl Keda {
    /// From the ScaledObject's creation on: KEDA polls at once, the HPA first syncs within its
    /// period of 15 s.
    #[must_use]
    pub fn new(object: ScaledObject, created_at: Moment, first_sync_at: Moment) -> Keda {
        Keda {
            hpa: Hpa::new(object.min, object.max, object.behavior.clone()),
            object,
            created_at,
            last_active_at: None,
            next_poll_at: created_at,
            next_sync_at: first_sync_at,
        }
    }

    /// What is due next, and when. A poll comes before a sync of the same moment.
    #[must_use]
    pub fn next(&self) -> (Moment, Turn) {
        if self.next_poll_at <= self.next_sync_at {
            (self.next_poll_at, Turn::Poll)
        } else {
            (self.next_sync_at, Turn::Sync)
        }
    }

    /// Whether a poll asks for value and activity. With a minimum of 1 or more KEDA 2.21 takes them
    /// from the HPA's queries.
    #[must_use]
    pub fn polls_ask(&self) -> bool {
        self.object.min == 0
    }

    /// Whether a sync at this count asks for the value.
    #[must_use]
    pub fn reads_metric(&self, spec: u32) -> bool {
        self.hpa.reads_metric(spec)
    }

    /// The poll that is due; gives the replicas from now on. `active` is the scaler's answer, `None`
    /// an error, which changes nothing.
    pub fn poll(&mut self, now: Moment, spec: u32, active: Option<bool>) -> u32 {
        self.next_poll_at = self.next_poll_at.plus_millis(self.object.polling_ms.max(1));
        match active {
            Some(true) => self.activate(now, spec),
            Some(false) if spec > 0 && self.object.min == 0 => {
                if self.is_cool(now) {
                    0
                } else {
                    spec
                }
            }
            Some(false) => spec.max(self.object.min),
            None => spec,
        }
    }

    /// A pushed `true`.
    pub fn push(&mut self, now: Moment, spec: u32) -> u32 {
        self.activate(now, spec)
    }

    /// The HPA's sync that is due; gives the replicas from now on. `value` is the scaler's answer,
    /// `None` an error.
    pub fn sync(&mut self, now: Moment, spec: u32, status: u32, value: Option<f64>) -> u32 {
        self.next_sync_at = self.next_sync_at.plus_millis(SYNC_MS);
        self.hpa.sync(now, spec, status, value, self.object.target)
    }

    fn activate(&mut self, now: Moment, spec: u32) -> u32 {
        self.last_active_at = Some(now);
        if spec == 0 { self.object.min.max(1) } else { spec }
    }

    /// Whether the cooldown is over. An object that never was active has its own.
    fn is_cool(&self, now: Moment) -> bool {
        let (since, span_ms) = match self.last_active_at {
            Some(at) => (at, self.object.cooldown_ms),
            None => (self.created_at, self.object.initial_cooldown_ms),
        };
        now > since.plus_millis(span_ms)
    }
}
