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
/// Least time between two writes to one pod: requests come and go, and one HPA sync sees one of them. It
/// doubles with each while the step does not come, which a paused HPA can keep from coming for ever.
const AGAIN_MS: (u64, u64) = (15_000, 300_000);
/// A write this long after the last begins anew.
const ANEW_MS: u64 = 600_000;
/// The cost of a pod whose load is not known, above any load that is: unknown is not idle.
const UNKNOWN: u32 = 1_000_000;

/// What was written to the pods of one workload.
pub(super) type Written = HashMap<Arc<str>, Write>;

/// One pod's last write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Write {
    cost: u32,
    at: Moment,
    /// Milliseconds until the next is worth it.
    again_ms: u64,
}

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
        let again_ms = match written.get(pod) {
            None => AGAIN_MS.0,
            Some(last) if now.millis_since(last.at) >= ANEW_MS => AGAIN_MS.0,
            Some(last) => (2 * last.again_ms).min(AGAIN_MS.1),
        };
        let is_due = written
            .get(pod)
            .is_none_or(|last| last.cost != cost && now.millis_since(last.at) >= last.again_ms);
        if is_due {
            let pod = Arc::from(pod);
            written.insert(Arc::clone(&pod), Write { cost, at: now, again_ms });
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
    let value = value.get();
    let Some(running) = value.running else { return UNKNOWN };
    let requests = running + value.waiting.unwrap_or(0.0);
    requests.round().clamp(0.0, f64::from(UNKNOWN)) as u32
}
