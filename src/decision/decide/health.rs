//! Rule 10: whether the inputs are whole, and since when they are not.
//!
//! Must not change a count: it only tells a lost source from replicas that start.

use crate::decision::members::Seen;
use crate::decision::supply::Supply;
use crate::decision::{Health, Moment, Observation, Phase, State, Why};

/// The health of this tick, and whether every expected input is fresh.
pub(super) fn of(
    state: &mut State,
    observation: &Observation,
    seen: &Seen,
    supply: &Supply,
    now: Moment,
) -> (Health, bool) {
    let degraded = |why| Some((why, seen.answered, seen.expected.max(supply.ready)));
    let starting = seen.expected == 0 && seen.answered == 0;
    let fault = if observation.replicas.spec.is_none() {
        degraded(Why::NotYetRead)
    } else if supply.ordered == 0 {
        None
    } else if starting && supply.ready > 0 && no_ready_engine(observation) {
        degraded(Why::NoEndpoint)
    } else if starting && gone(observation) {
        degraded(Why::PodGone)
    } else if starting {
        None
    } else if seen.answered < seen.expected {
        degraded(seen.why().unwrap_or(Why::NotYetRead))
    } else {
        None
    };
    let lost = fault.is_some() && seen.answered == 0;
    state.lost_since = lost.then(|| state.lost_since.unwrap_or(now));
    state.degraded_since = fault.map(|_| state.degraded_since.unwrap_or(now));
    let health = match (fault, state.degraded_since) {
        (Some((Why::NotYetRead, 0, _)), _) if !state.observed => Health::NotYetObserved,
        (Some((why, answered, expected)), Some(since)) => {
            Health::Degraded { since, why, answered, expected }
        }
        (None, _) | (Some(_), None) if starting && supply.ordered > 0 => Health::Starting,
        (None, _) | (Some(_), None) => Health::Ok,
    };
    let complete =
        supply.ordered == 0 || (seen.answered > 0 && seen.whole && seen.expected >= supply.ready);
    (health, fault.is_none() && complete)
}

fn no_ready_engine(observation: &Observation) -> bool {
    !observation.engines.iter().any(|engine| engine.phase == Phase::Ready)
}

/// Replicas that were ready are not any more, and none is on its way.
fn gone(observation: &Observation) -> bool {
    observation.replicas.starting == 0
        && observation.engines.iter().any(|engine| engine.phase == Phase::NotReady)
        && !observation.engines.iter().any(|engine| engine.phase == Phase::Starting)
}
