//! The decision as others read it: answer, inputs, what comes next, notices.
//!
//! Must not change a count.

use super::compose::Outcome;
use super::{Said, answer};
use crate::decision::level::Ask;
use crate::decision::supply::Supply;
use crate::decision::{
    Answer, Decision, Gpu, Health, Inputs, LearnedCost, Moment, Next, Notice, Observation, Reason,
    Rule, Spec, State, Unavailable, ZeroAfter,
};

/// A condition that has not been seen for this long is over, and is told when it comes back.
const OVER_MS: u64 = 600_000;
/// The tick while something waits or starts.
const FAST_TICK_MS: u64 = 1_000;
/// From this tick on the source cannot be read any faster (Prometheus).
const SLOW_SOURCE_MS: u64 = 15_000;

/// Not even the present count is known.
pub(super) fn nothing_known(spec: &Spec, now: Moment) -> Decision {
    Decision {
        at: now,
        answer: Answer::Unavailable { why: Unavailable::NothingKnown },
        want: 0,
        binding: Rule::Degraded,
        votes: Box::default(),
        health: Health::NotYetObserved,
        inputs: Inputs::default(),
        next: Next::default(),
        notices: Box::default(),
        stuck: Box::default(),
        next_tick_ms: spec.tick_ms,
    }
}

pub(super) fn report(
    spec: &Spec,
    state: &mut State,
    observation: &Observation,
    said: &Said,
    outcome: &mut Outcome,
    now: Moment,
) -> Decision {
    let supply = &said.supply;
    let busy = said.queue.waiting > 0.0 || supply.trusted > 0;
    let notices = notices(state, said, outcome, now);
    let fast = busy && spec.tick_ms < SLOW_SOURCE_MS;
    Decision {
        at: now,
        answer: answer(spec, state, said, outcome.want, now),
        want: outcome.want,
        binding: outcome.binding,
        votes: std::mem::take(&mut outcome.votes).into(),
        health: said.health,
        inputs: inputs(state, observation, said),
        next: next(spec, state, said, outcome.want, now),
        notices: notices.into(),
        stuck: said.seen.stuck_ids.as_slice().into(),
        next_tick_ms: if fast { FAST_TICK_MS.min(spec.tick_ms) } else { spec.tick_ms },
    }
}

fn inputs(state: &State, observation: &Observation, said: &Said) -> Inputs {
    let (seen, supply, level) = (&said.seen, &said.supply, &said.level);
    let one_less = said.awake.ordered.checked_sub(1).filter(|count| *count > 0);
    let (hold_ms, coverage) = (state.ghost.hold_ms(), state.evidence.coverage());
    let cost = &state.cost;
    Inputs {
        spec: observation.replicas.spec,
        ready: supply.ready,
        starting: supply.starting,
        waiting: seen.waiting,
        running: seen.running,
        kv_usage: seen.kv_max,
        gpu_busy: match &observation.gpu {
            Gpu::Fresh(sample) if sample.unread == 0 => sample.busy,
            Gpu::Fresh(_) | Gpu::Absent | Gpu::Unread { .. } | Gpu::Lost { .. } => None,
        },
        gateway_queued: said.door.queued,
        age_ms: seen.age_ms,
        work: level.work,
        rho: level.rho,
        headroom: level.rho.map(|rho| level.headroom / rho),
        level_source: level.source,
        cold_start_ms: supply.cold_start_ms,
        ghost_score: one_less.map(|count| {
            crate::decision::score(state.evidence.for_count(count, hold_ms), hold_ms, coverage)
        }),
        hold_ms,
        coverage,
        model: (cost.rows() > 0.0).then(|| {
            let [step_ms, prompt_ms, generated_ms, kv_ms] = cost.costs().map(|s| s * 1_000.0);
            let (error, rows) = (cost.error(), cost.rows());
            LearnedCost { step_ms, prompt_ms, generated_ms, kv_ms, error, rows }
        }),
    }
}

fn next(spec: &Spec, state: &State, said: &Said, want: u32, now: Moment) -> Next {
    let supply = &said.awake;
    // One more than what is wanted already.
    let base = supply.base.max(want.saturating_sub(said.asleep()));
    let ask = Ask {
        spec,
        seen: &said.seen,
        supply: &Supply { base, ..*supply },
        minute: None,
        recent: None,
    };
    let hold_ms = state.ghost.hold_ms();
    let above_floor = supply.ordered > spec.min.max(1);
    let down_in_ms = above_floor
        .then(|| hold_ms.saturating_sub(state.evidence.for_count(supply.ordered - 1, hold_ms)));
    let zero_in_ms = match spec.zero_after {
        ZeroAfter::After { millis } if spec.min == 0 && spec.has_wake_source => {
            Some(millis.saturating_sub(state.evidence.idle_ms()))
        }
        ZeroAfter::After { .. } | ZeroAfter::Never => None,
    };
    let wake_eta_ms = state
        .wake
        .woke_at()
        .map(|woke_at| woke_at.plus_millis(supply.cold_start_ms).millis_since(now));
    Next {
        up_at_waiting: state.queue.up_at(&said.queue, &ask, &said.level, said.ceiling.idle, now),
        down_in_ms,
        zero_in_ms,
        wake_eta_ms,
    }
}

/// Notable changes; a condition that still stands was told before.
fn notices(state: &mut State, said: &Said, outcome: &Outcome, now: Moment) -> Vec<Notice> {
    let mut notices = Vec::new();
    let before = state.want;
    if let Some(before) = before {
        if outcome.want > before {
            notices.push(Notice::ScaledUp);
        } else if outcome.want < before {
            notices.push(Notice::ScaledDown);
        }
        if outcome.want == 0 && before > 0 {
            notices.push(Notice::Slept);
        }
    }
    if state.wake.woke_at() == Some(now) && before == Some(0) {
        notices.push(Notice::Woke);
    }
    let reasoned = |reason: fn(&Reason) -> bool| outcome.votes.iter().any(|v| reason(&v.reason));
    let seen = &said.seen;
    let told = &mut state.told;
    let degraded = matches!(said.health, Health::Degraded { .. });
    match (told.degraded, degraded) {
        (false, true) => notices.push(Notice::Degraded),
        (true, false) => notices.push(Notice::Recovered),
        (true, true) | (false, false) => {}
    }
    told.degraded = degraded;
    let not_serving = reasoned(|reason| matches!(reason, Reason::NotServing { .. }));
    let imbalance = reasoned(|reason| matches!(reason, Reason::Imbalance { .. }));
    let no_wake_source = reasoned(|reason| matches!(reason, Reason::NoWakeSource));
    for (stands, last, notice) in [
        (no_wake_source, &mut told.no_wake_source, Notice::NoWakeSource),
        (not_serving, &mut told.not_serving, Notice::NotServing),
        (seen.frozen + seen.stuck > 0, &mut told.stuck, Notice::StuckQueue),
        (imbalance || seen.rank_spread, &mut told.imbalance, Notice::Imbalance),
        (said.supply.hopeless > 0, &mut told.exhausted, Notice::CapacityExhausted),
    ] {
        if stands {
            if last.is_none_or(|last| now.millis_since(last) >= OVER_MS) {
                notices.push(notice);
            }
            *last = Some(now);
        }
    }
    notices
}
