//! Makes one count out of the votes: up at once, down by evidence, clamped last.
//!
//! The rules know nothing of replicas that sleep: these are put back into every count here. Nothing
//! wakes them, and whoever deletes a replica may take one that is awake.
//!
//! Must not ask a rule twice or read the observation beyond the rollout, the schedule and what
//! somebody has set by hand.

use super::Said;
use crate::decision::ghost::Surplus;
use crate::decision::{Health, Observation, Reason, Rule, Spec, State, Vote};

/// The count of one tick and how it came about.
pub(super) struct Outcome {
    /// The count, after the clamp.
    pub(super) want: u32,
    /// What the rules asked for, within the bounds.
    pub(super) asked: u32,
    pub(super) binding: Rule,
    /// The release that was taken, in replicas that are awake.
    pub(super) surplus: Option<Surplus>,
    pub(super) votes: Vec<Vote>,
}

/// Composes the votes.
pub(super) fn compose(
    spec: &Spec,
    state: &State,
    observation: &Observation,
    said: &Said,
) -> Outcome {
    let (supply, asleep) = (&said.supply, said.asleep());
    let whole =
        |vote: Vote| Vote { want: vote.want.map(|want| want.saturating_add(asleep)), ..vote };
    let mut votes = Vec::with_capacity(Rule::ALL.len());
    let mut demand = said.level.vote();
    demand.want = demand.want.map(|want| said.awake.orderable(want));
    let raising = [demand, said.queue_vote, said.kv_vote, said.ceiling.vote, said.wake_vote];
    let raising = raising.map(whole);
    let asked = raising.iter().filter_map(|vote| vote.want).max().unwrap_or(0);
    votes.extend(raising.iter().take(4).filter(|vote| vote.reason != Reason::Silent));

    let (floor, floor_votes) =
        state.zero.floor(spec, observation, supply, &said.awake, &state.evidence);
    let may_release = said.fresh
        && asked <= supply.base
        && !observation.replicas.rollout
        && !said.ceiling.refuses_down;
    let surplus = state
        .ghost
        .surplus(&state.evidence, &said.level, &state.learned.band, &said.awake)
        .filter(|_| may_release && observation.by_hand.is_none());
    // What has not moved since the last sample may hang: evidence from before does not outvote that.
    let (still, frozen) = (said.seen.still, said.seen.frozen);
    let in_doubt = frozen > 0 || (still > 0 && surplus.is_some());
    let surplus = surplus.filter(|_| still == 0);
    votes.push(if in_doubt {
        let reason = Reason::InDoubt { replicas: still };
        Vote { rule: Rule::Ghost, want: Some(supply.ordered), reason }
    } else {
        whole(state.ghost.vote(surplus.as_ref(), &state.evidence, &said.awake))
    });
    // What sleeps is warm, and calls for no other; but what is let go leaves as many awake.
    let warm = |floor: u32| match floor {
        0 => 0,
        _ => floor.max(floor.saturating_add(asleep).min(supply.ordered)),
    };
    let floor_votes = floor_votes.map(|vote| Vote { want: vote.want.map(warm), ..vote });
    votes.extend(floor_votes.iter().filter(|vote| vote.reason != Reason::Silent));
    votes.extend(raising.iter().skip(4).filter(|vote| vote.reason != Reason::Silent));

    let pending = pending(state, said, &raising).filter(|_| may_release);

    // Without whole inputs the last wanted count goes on; a start never begins below the spec.
    let held = match state.want {
        Some(want) if !said.fresh && !state.just_started => want,
        Some(want) if !said.fresh => want.max(supply.ordered),
        Some(_) | None => supply.base,
    };
    let mut want = if asked > supply.base { asked.max(held) } else { held };
    let released = surplus.map(|surplus| surplus.to + asleep).or(pending);
    want = released.unwrap_or(want);
    if floor == 0 && may_release && supply.ordered > 0 {
        want = 0;
    } else {
        // A running target never gets 0 for lack of data.
        want = want.max(warm(floor)).max(said.leaving_floor).max(supply.ordered.min(1));
    }
    if observation.replicas.rollout {
        want = want.max(supply.ordered);
    }
    holding_votes(state, observation, said, &mut votes);
    if let Some(count) = observation.by_hand {
        // At its end something has to be able to wake it.
        want = if spec.has_wake_source { count } else { count.max(1) };
        votes.push(Vote { rule: Rule::ByHand, want: Some(want), reason: Reason::ByHand });
    }
    let clamped = spec.clamp(want);
    if clamped != want {
        let rule = if clamped < want { Rule::Max } else { Rule::Min };
        votes.push(Vote { rule, want: Some(clamped), reason: Reason::Clamped { wanted: want } });
    }
    // Also where the order is placed already and the target does not show it yet.
    let raised = asked > supply.ordered;
    let binding = binding(&votes, clamped, raised, released == Some(clamped));
    Outcome { want: clamped, asked: asked.min(clamped), binding, surplus, votes }
}

/// A release that the target does not show yet, while need has not grown by more than noise and
/// no rule but the level asks for more.
fn pending(state: &State, said: &Said, raising: &[Vote]) -> Option<u32> {
    let to = state.want.filter(|_| !state.just_started)?;
    let carry = if state.figures.trial { said.level.carry_trial } else { said.level.carry }?;
    let others = raising.iter().filter(|vote| vote.rule != Rule::Demand);
    let stands = carry < f64::from(said.awake.ordered)
        && others.filter_map(|vote| vote.want).all(|want| want <= to)
        && state.learned.band.stands(to.checked_sub(said.asleep())?, carry);
    stands.then_some(to)
}

/// Rules that keep a count where it is.
fn holding_votes(state: &State, observation: &Observation, said: &Said, votes: &mut Vec<Vote>) {
    let supply = &said.supply;
    let ordered = Some(supply.ordered);
    match said.health {
        Health::Degraded { why, answered, expected, .. } => {
            let reason = Reason::Held { why, answered, expected };
            votes.push(Vote { rule: Rule::Degraded, want: state.want.or(ordered), reason });
        }
        Health::NotYetObserved => {
            let reason = Reason::NotYetObserved;
            votes.push(Vote { rule: Rule::Degraded, want: ordered, reason });
        }
        Health::Ok | Health::Starting => {}
    }
    let (evidence_ms, hold_ms) = (state.evidence.clock_ms(), state.ghost.hold_ms());
    if supply.ordered > 0 && evidence_ms < hold_ms {
        let reason = Reason::Adopting { evidence_ms, hold_ms };
        votes.push(Vote { rule: Rule::Adopt, want: ordered, reason });
    }
    if observation.replicas.rollout {
        votes.push(Vote { rule: Rule::Rollout, want: ordered, reason: Reason::Rollout });
    }
    if said.leaving_floor > 0 {
        let reason = Reason::Leaving { replicas: observation.replicas.leaving };
        votes.push(Vote { rule: Rule::Leaving, want: Some(said.leaving_floor), reason });
    }
    if supply.hopeless > 0 {
        let reason = Reason::CapacityExhausted {
            unschedulable: observation.replicas.unschedulable,
            crash_looping: observation.replicas.crash_looping,
        };
        votes.push(Vote { rule: Rule::Max, want: None, reason });
    }
}

/// The rule that set the count: the first of those that have the last word, else the first that raised to it,
/// else the one that keeps it.
fn binding(votes: &[Vote], want: u32, raised: bool, released: bool) -> Rule {
    let voted = |rule: Rule| votes.iter().any(|v| v.rule == rule && v.want == Some(want));
    let clamping = [Rule::Max, Rule::Min, Rule::ByHand];
    let raising = [Rule::Demand, Rule::Queue, Rule::Kv, Rule::GpuCeiling, Rule::Wake];
    let holding = [
        Rule::Degraded,
        Rule::Rollout,
        Rule::Leaving,
        Rule::Adopt,
        Rule::Demand,
        Rule::Zero,
        Rule::Warm,
    ];
    let first = |rules: &[Rule]| rules.iter().copied().find(|rule| voted(*rule));
    first(&clamping)
        .or_else(|| if raised { first(&raising) } else { None })
        .or_else(|| released.then_some(Rule::Ghost))
        .or_else(|| first(&holding))
        .unwrap_or(Rule::Ghost)
}
