//! What each pod costs to take away, and when that is worth a write.
//!
//! Pure: time is an argument, and nothing is written here.

use std::collections::HashMap;
use std::sync::Arc;

use crate::decision::{Engine, Mode, Moment, Observation, Phase, Reading};
use crate::registry::Published;

/// A step is near when its evidence is whole within this time: the HPA asks every 15 s, and between its
/// answer and the ReplicaSet's choice nothing can be written any more.
const SOON_MS: u64 = 20_000;
/// Least time between two writes to one pod: requests come and go, and one HPA sync sees one of them.
const AGAIN_MS: u64 = 15_000;
/// The cost of a pod whose load is not known, above any load that is: unknown is not idle.
const UNKNOWN: u32 = 1_000_000;

/// What was written to the pods of one workload, and when.
pub(super) type Written = HashMap<Arc<str>, (u32, Moment)>;

/// Whether the count is to fall, or could within a moment.
pub(super) fn is_step_near(published: &Published) -> bool {
    let Some(decision) = &published.decision else { return false };
    let acts = published.spec.as_ref().is_some_and(|spec| spec.mode == Mode::Act);
    let falls = decision.inputs.spec.is_some_and(|spec| decision.want < spec);
    acts && (falls || decision.next.down_in_ms.is_some_and(|ms| ms <= SOON_MS))
}

/// The costs to write now, the largest first: what is busy is to be safe first.
pub(super) fn wanted(
    observation: &Observation,
    written: &mut Written,
    now: Moment,
) -> Vec<(Arc<str>, u32)> {
    let ready: HashMap<&str, u32> = observation
        .engines
        .iter()
        .filter(|engine| engine.phase == Phase::Ready)
        .map(|engine| (&*engine.id, cost(engine)))
        .collect();
    written.retain(|pod, _| ready.contains_key(&**pod));
    let mut wanted = Vec::new();
    for (pod, cost) in ready {
        let is_due = written
            .get(pod)
            .is_none_or(|(last, at)| *last != cost && now.millis_since(*at) >= AGAIN_MS);
        if is_due {
            let pod = Arc::from(pod);
            written.insert(Arc::clone(&pod), (cost, now));
            wanted.push((pod, cost));
        }
    }
    wanted.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    wanted
}

/// Requests at an engine, rounded.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped, and whole after rounding"
)]
fn cost(engine: &Engine) -> u32 {
    let Reading::Fresh { value, .. } = &engine.reading else { return UNKNOWN };
    let Some(running) = value.running else { return UNKNOWN };
    let requests = running + value.waiting.unwrap_or(0.0);
    requests.round().clamp(0.0, f64::from(UNKNOWN)) as u32
}
