//! What carries a policy's answers to the scale target: KEDA and the HPA, or the policy itself.
//!
//! Must not know the policy.

use loadgen::engine::{PS_PER_MS, Time, ps_from_secs};

use super::policy::{Action, Actuation, Counts, Metric, Target};
use super::random::Random;
use crate::decision::Moment;
use crate::hpa::{Keda, ScaledObject, Turn};

/// The HPA's first sync comes within its period.
const SYNC_S: f64 = 15.0;

/// The way from an answer to the scale target.
#[derive(Debug)]
pub(super) struct Actuator {
    keda: Option<Keda>,
    push: bool,
    tolerance: (f64, f64),
    metrics: Vec<Metric>,
    /// The last answer's activity; `None` before the first.
    active: Option<bool>,
}

impl Actuator {
    pub(super) fn new(
        actuation: Actuation,
        bounds: (u32, u32),
        start: Time,
        phases: &mut Random,
    ) -> Actuator {
        let first_sync = start.plus_ps(ps_from_secs(SYNC_S * phases.uniform()));
        let (keda, push, tolerance) = match actuation {
            Actuation::Direct => (None, false, (0.0, 0.0)),
            Actuation::Keda { behavior, push } => {
                let tolerance =
                    behavior.as_ref().map_or((0.1, 0.1), |b| (b.down.tolerance, b.up.tolerance));
                let (min, max) = bounds;
                let object = ScaledObject { min, max, behavior, ..ScaledObject::default() };
                let keda = Keda::new(object, moment(start), moment(first_sync));
                (Some(keda), push, tolerance)
            }
        };
        Actuator { keda, push, tolerance, metrics: Vec::new(), active: None }
    }

    /// When KEDA polls or the HPA synchronises next; [`Time::MAX`] without them.
    pub(super) fn next_turn(&self) -> Time {
        self.keda.as_ref().map_or(Time::MAX, |keda| {
            Time::from_millis(u64::try_from(keda.next().0.0).unwrap_or(0))
        })
    }

    /// Takes an answer; returns a count that is to be written at once.
    pub(super) fn take(&mut self, action: Action, counts: Counts, now: Time) -> Option<u32> {
        match action {
            Action::Keep => None,
            Action::Replicas(replicas) => self.keda.is_none().then_some(replicas),
            Action::Metrics { metrics, active } => {
                self.metrics = metrics;
                self.active = Some(active);
                let pushes = self.push && active && counts.spec == 0;
                self.keda.as_mut().filter(|_| pushes).map(|keda| keda.push(moment(now), 0))
            }
        }
    }

    /// The poll or sync that is due; returns the count from now on.
    pub(super) fn turn(&mut self, counts: Counts) -> Option<u32> {
        let usage = self.usage(counts);
        let keda = self.keda.as_mut()?;
        let (at, turn) = keda.next();
        Some(match turn {
            Turn::Poll if keda.polls_ask() => keda.poll(at, counts.spec, self.active),
            Turn::Poll => keda.poll(at, counts.spec, None),
            Turn::Sync => keda.sync(at, counts.spec, counts.spec, usage),
        })
    }

    /// The metrics as one with a target of 1: of several the HPA takes the largest result.
    fn usage(&self, counts: Counts) -> Option<f64> {
        let shares = self.metrics.iter().map(|metric| match metric.target {
            Target::AverageValue(target) => metric.value / target,
            // The ratio decides about the dead band, and scales what is ready outside of it.
            Target::Value(target) => {
                let ratio = metric.value / target;
                let (down, up) = self.tolerance;
                if (1.0 - down..=1.0 + up).contains(&ratio) {
                    f64::from(counts.spec)
                } else {
                    (ratio * f64::from(counts.ready)).ceil()
                }
            }
        });
        shares.filter(|share| share.is_finite()).reduce(f64::max)
    }
}

fn moment(at: Time) -> Moment {
    Moment(i64::try_from(at.0 / PS_PER_MS).unwrap_or(i64::MAX))
}
