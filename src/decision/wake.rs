//! Rule 8: waking by a signal that exists at zero.
//!
//! Must not let go of anything: it asks for replicas while demand stands before closed doors.

use serde::{Deserialize, Serialize};

use super::level::{Figures, preset};
use super::number::{ceil_count, seconds, usable};
use super::supply::Supply;
use super::{Moment, Observation, Reason, Rule, Spec, Vote, WakeReading};

/// Replicas ordered at most on a preset's guess of what one carries: the one that wakes and one
/// more, for a preset raises by one a cold start (DESIGN 4, rule 1).
const MOST_BY_GUESS: u32 = 2;

/// The wake that is under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct WakeState {
    woke_at: Option<Moment>,
}

/// Demand in front of the engines.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Doorstep {
    /// Requests held by the gateway; `None` when that is not known.
    pub(super) queued: Option<f64>,
    /// When demand was last seen there.
    pub(super) at: Option<Moment>,
}

impl Doorstep {
    pub(super) fn of(observation: &Observation, now: Moment) -> Doorstep {
        let wake = &observation.wake;
        let (queued, arrival_at) = match wake.source {
            Some(WakeReading::Fresh { queued, last_arrival_at }) => {
                (usable(Some(queued)), last_arrival_at)
            }
            Some(WakeReading::Unknown { .. }) | None => (None, None),
        };
        let standing = queued.is_some_and(|queued| queued > 0.0).then_some(now);
        Doorstep { queued, at: standing.max(arrival_at).max(wake.requested_at) }
    }
}

impl WakeState {
    /// When the wake under way began.
    pub(super) fn woke_at(&self) -> Option<Moment> {
        self.woke_at
    }

    /// The vote while no engine answers.
    #[expect(clippy::too_many_arguments, reason = "a rule reads what it needs and no more")]
    pub(super) fn ask(
        &mut self,
        door: &Doorstep,
        spec: &Spec,
        supply: &Supply,
        figures: &Figures,
        patience_ms: u64,
        slept_at: Option<Moment>,
        now: Moment,
    ) -> Vote {
        let silent = Vote { rule: Rule::Wake, want: None, reason: Reason::Silent };
        if supply.ready > 0 {
            self.woke_at = None;
            return silent;
        }
        // What came before the decision to sleep was known to it.
        let standing = door.at.filter(|at| {
            slept_at.is_none_or(|slept_at| *at > slept_at) && now.millis_since(*at) <= patience_ms
        });
        if standing.is_none() {
            if supply.ordered == 0 {
                self.woke_at = None;
            }
            return silent;
        }
        let woke_at = *self.woke_at.get_or_insert(now);
        let queued = door.queued.unwrap_or(0.0);
        let seen = figures.most_in_flight.unwrap_or(0.0);
        let guess = preset(spec.profile);
        let (per_replica, most) = match (spec.target_in_flight, figures.request_s) {
            (Some(target), _) => (target, u32::MAX),
            // The remembered price.
            (None, Some(request_s)) => (seconds(supply.horizon_ms()) / request_s, u32::MAX),
            (None, None) if seen > guess => (seen, u32::MAX),
            (None, None) => (guess, MOST_BY_GUESS),
        };
        let want = ceil_count(queued / per_replica.max(1.0)).clamp(1, most);
        let reason = Reason::Woken {
            queued,
            for_ms: now.millis_since(woke_at),
            expected_ms: supply.cold_start_ms,
        };
        Vote { rule: Rule::Wake, want: Some(supply.orderable(want).max(1)), reason }
    }
}
