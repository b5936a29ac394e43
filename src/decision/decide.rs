//! One tick: what was seen becomes a wanted count and its reasons.
//!
//! Asks each rule, composes their votes and clamps last. Must not hold a rule's own arithmetic.
//!
//! ```
//! use ghostscaler::decision::{Answer, Moment, Observation, Replicas, Spec, State, decide};
//!
//! // Two replicas are ordered and nothing has been read yet: the present count is the answer.
//! let replicas = Replicas { spec: Some(2), ready: 2, ..Replicas::default() };
//! let observation = Observation { replicas, ..Observation::default() };
//! let (decision, _state) = decide(&Spec::default(), State::default(), &observation, Moment(0));
//! assert_eq!(decision.answer, Answer::Value { want: 2, active: true });
//! ```

mod compose;
mod health;
mod report;

use super::evidence::Tick;
use super::gpu::Ceiling;
use super::level::{Ask, Level};
use super::members::{Seen, Slo};
use super::number::seconds;
use super::queue::Queue;
use super::supply::Supply;
use super::wake::Doorstep;
use super::window::{RECENT_MS, WINDOW_MS};
use super::{
    Answer, Decision, Gpu, Health, Mode, Moment, Observation, Part, Rule, Spec, State, Unavailable,
    Vote,
};
use super::{hpa, kv, level};

/// With a fallback declared, a source that is lost for this long is answered by an error.
const FALLBACK_AFTER_MS: u64 = 900_000;

/// What each rule said in one tick.
struct Said {
    seen: Seen,
    supply: Supply,
    /// What the rules were asked with: the supply without those that sleep. Their votes are counts of the
    /// others, too.
    awake: Supply,
    level: Level,
    queue: Queue,
    queue_vote: Vote,
    kv_vote: Vote,
    kv_need: f64,
    ceiling: Ceiling,
    wake_vote: Vote,
    door: Doorstep,
    /// What must be ordered while replicas leave; 0 without such.
    leaving_floor: u32,
    health: Health,
    /// Every expected input is fresh.
    fresh: bool,
}

impl Said {
    /// Ready replicas that sleep: in every count, and nobody's capacity.
    fn asleep(&self) -> u32 {
        self.supply.ready - self.awake.ready
    }

    /// The replicas ordered do not carry what is there: something waits for more than them, or the
    /// work alone, without headroom, is above what they are trusted with.
    fn cannot_wait(&self) -> bool {
        let ordered = self.awake.ordered;
        let short = [&self.queue_vote, &self.kv_vote, &self.ceiling.vote, &self.wake_vote]
            .iter()
            .any(|vote| vote.want.is_some_and(|want| want > ordered));
        let overloaded = self.level.work.zip(self.level.rho);
        short || overloaded.is_some_and(|(work, rho)| work > rho * f64::from(ordered))
    }
}

/// Decides how many replicas one workload should have now.
///
/// Pure: the same arguments always give the same result, and deciding again at the same moment
/// on the same observation wants the same count.
pub fn decide(
    spec: &Spec,
    mut state: State,
    observation: &Observation,
    now: Moment,
) -> (Decision, State) {
    let Some(ordered) = observation.replicas.spec.or(state.spec) else {
        return (report::nothing_known(spec, now), state);
    };
    let step_ms = state.last_tick.map_or(0, |last| now.millis_since(last));
    let said = ask_rules(spec, &mut state, observation, ordered, step_ms, now);
    note_evidence(spec, &mut state, &said, step_ms, now);
    let mut outcome = compose::compose(spec, &state, observation, &said);
    let decision = report::report(spec, &mut state, observation, &said, &mut outcome, now);
    remember(&mut state, observation, &said, &outcome, step_ms, now);
    (decision, state)
}

fn ask_rules(
    spec: &Spec,
    state: &mut State,
    observation: &Observation,
    ordered: u32,
    step_ms: u64,
    now: Moment,
) -> Said {
    let slo = Slo { ttft_s: seconds(spec.slo_ttft_ms), tpot_s: seconds(spec.slo_tpot_ms) };
    let seen = state.members.absorb(&observation.engines, slo, &mut state.cost, now);
    if let Some(took_ms) = seen.start_took_ms {
        state.supply.started(took_ms);
    }
    let supply = state.supply.look(spec, &observation.replicas, ordered, now);
    let awake = supply.awake(seen.asleep);
    if step_ms > 0 || state.last_tick.is_none() {
        state.figures = state.learned.figures(&mut state.cost, supply.cold_start_ms, now);
        state.ghost.begin(spec, state.figures.hold_ms, supply.cold_start_ms, now);
        state.gpu.begin();
    }
    state.window.push(&seen, step_ms, now);
    let (minute, recent) = (state.window.means(WINDOW_MS), state.window.means(RECENT_MS));
    let ask =
        Ask { spec, seen: &seen, supply: &awake, minute: minute.as_ref(), recent: recent.as_ref() };
    let level = level::ask(&ask, &state.figures, &state.learned.band);
    let door = Doorstep::of(observation, now);
    let queue = Queue::of(&seen, &door);
    let gpu = if spec.has(Part::GpuCeiling) { &observation.gpu } else { &Gpu::Absent };
    let ceiling = state.gpu.ask(gpu, &ask, &level, now);
    let queue_vote = state.queue.ask(&queue, &ask, &level, &state.figures, ceiling.idle, now);
    let (kv_vote, kv_need) = kv::ask(&seen, &awake);
    let patience_ms = supply.cold_start_ms + state.ghost.hold_ms();
    let slept_at = state.zero.slept_at();
    let wake_vote = state.wake.ask(&door, spec, &awake, &state.figures, patience_ms, slept_at, now);
    let leaving_floor = state.leaving.floor(observation.replicas.leaving, &supply, now);
    let (health, fresh) = health::of(state, observation, &seen, &supply, now);

    // Learned after the votes: it takes effect at the next tick.
    state.queue.note(&queue, &ask, now);
    let raised = ceiling.vote.want.is_some_and(|want| want > awake.base);
    state.gpu.note(gpu, &ask, &level, step_ms, raised, now);
    if step_ms > 0 {
        state.learned.note(&ask, &level, step_ms, now);
    }
    let silenced =
        |vote: Vote, part| if spec.has(part) { vote } else { Vote { want: None, ..vote } };
    Said {
        level,
        queue,
        queue_vote: silenced(queue_vote, Part::Queue),
        kv_vote: silenced(kv_vote, Part::Kv),
        kv_need: if spec.has(Part::Kv) { kv_need } else { 0.0 },
        ceiling,
        wake_vote,
        door,
        leaving_floor,
        health,
        fresh,
        seen,
        supply,
        awake,
    }
}

/// Moves the evidence clock on and notes what this tick would have needed.
fn note_evidence(spec: &Spec, state: &mut State, said: &Said, step_ms: u64, now: Moment) {
    let (seen, supply) = (&said.seen, &said.awake);
    let before = state.last_tick;
    state.evidence.advance(&Tick {
        step_ms,
        tick_ms: spec.tick_ms,
        hold_ms: state.ghost.hold_ms(),
        fresh: said.fresh,
        oldest_at: seen.oldest_at,
    });
    let at_door = said.door.queued.is_some_and(|queued| queued > 0.0)
        || said.door.at.is_some_and(|at| before.is_none_or(|before| at > before) && at <= now);
    let worked = if at_door || said.queue.waiting > 0.0 || seen.frozen > 0 {
        Some(true)
    } else if supply.ordered == 0 {
        Some(false)
    } else if seen.answered == 0 {
        None
    } else {
        seen.worked()
    };
    state.zero.note(worked, now);
    if worked != Some(false) {
        state.evidence.worked();
    }
    if seen.answered == 0 && supply.ordered > 0 {
        return;
    }
    let base = f64::from(supply.base);
    // Silent replicas are filled in from the others: to hold, never to raise.
    let awake = |count: u32| f64::from(count.saturating_sub(seen.asleep).max(1));
    let missing = awake(seen.expected) / awake(seen.answered);
    let unknown = if supply.ordered > 0 { base } else { 0.0 };
    let most =
        |votes: &[&Vote]| votes.iter().filter_map(|vote| vote.want).max().map_or(0.0, f64::from);
    // Without a level, a queue is all that says how many are needed.
    let by_queue = most(&[&said.queue_vote]);
    let (backlog, in_place_of_level) =
        if said.level.work.is_some() { (by_queue, 0.0) } else { (0.0, by_queue) };
    let by_rules =
        most(&[&said.kv_vote, &said.ceiling.vote, &said.wake_vote]).max(in_place_of_level);
    // Evidence under another measure of load is none.
    let measure_changed = state.source != said.level.source && state.last_tick.is_some();
    let in_doubt = if seen.frozen > 0 || measure_changed { base } else { 0.0 };
    let others = said.kv_need.max(said.ceiling.carry).max(by_rules).max(in_doubt);
    let strict = said.level.carry.map_or(unknown, |carry| carry * missing).max(others);
    let trial = said.level.carry_trial.map_or(strict, |carry| (carry * missing).max(others));
    let span_ms = if said.level.work.is_some() { WINDOW_MS } else { 0 };
    let hold_ms = state.ghost.hold_ms();
    state.evidence.note(strict, trial, span_ms, hold_ms);
    let backlog_hold_ms = match spec.ghost_hold_ms {
        Some(explicit_ms) => explicit_ms,
        // What goes sooner could be wanted back before it had gone.
        None => supply.cold_start_ms.min(hold_ms),
    };
    state.evidence.note_backlog(backlog, backlog_hold_ms);
}

fn remember(
    state: &mut State,
    observation: &Observation,
    said: &Said,
    outcome: &compose::Outcome,
    step_ms: u64,
    now: Moment,
) {
    let (supply, want) = (&said.supply, outcome.want);
    let last_want = state.want.unwrap_or(supply.ordered);
    if outcome.asked > supply.base {
        let awake = outcome.asked - said.asleep();
        if outcome.binding == Rule::Demand {
            state.learned.stepped(now);
        }
        let need = (outcome.binding == Rule::Demand).then_some(said.level.need).flatten();
        state.learned.band.raised(awake, need);
        state.ghost.raised(awake, supply.cold_start_ms, now);
    }
    state.supply.ordered(outcome.asked, supply, now);
    if let Some(surplus) = outcome.surplus.filter(|_| want < last_want) {
        state.learned.band.released(surplus.to, surplus.largest_need);
        state.learned.trial = surplus.trial;
        state.ghost.released(&surplus, &state.evidence, now);
    }
    state.zero.decided(want, now);
    state.source = said.level.source;
    if said.fresh && step_ms > 0 {
        state.just_started = false;
    }
    state.observed |= said.seen.answered > 0;
    state.spec = observation.replicas.spec.or(state.spec);
    state.want = Some(want);
    state.last_tick = Some(state.last_tick.map_or(now, |last| last.max(now)));
}

/// What the scaler answers for a want, given the health of the inputs.
fn answer(spec: &Spec, state: &State, said: &Said, want: u32, now: Moment) -> Answer {
    let lost = state.lost_since.is_some_and(|since| now.millis_since(since) >= FALLBACK_AFTER_MS);
    let acts = spec.mode == Mode::Act;
    if acts && lost && spec.fallback_replicas.is_some_and(|replicas| replicas > 0) {
        return Answer::Unavailable { why: Unavailable::SourceLost };
    }
    let want = match spec.mode {
        Mode::Act => hpa::past_dead_band(want, said.supply.ordered, spec, said.cannot_wait()),
        Mode::Shadow => spec.clamp(said.supply.ordered),
    };
    Answer::Value { want, active: want > 0 }
}
