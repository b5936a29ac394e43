//! Rule 2: queue depth leads.
//!
//! Gives an absolute target, so that the same shortage is never ordered twice. Must not hold
//! anything: a queue that is gone has no say.

use serde::{Deserialize, Serialize};

use super::gpu::IdleGpu;
use super::level::{Ask, Figures, Level};
use super::members::Seen;
use super::number::{ceil_count, seconds};
use super::supply::Supply;
use super::wake::Doorstep;
use super::{Moment, Reason, Rule, Vote};

/// A queue that has stood for this long, while GPUs idle, is not cured by replicas.
const STOOD_MS: u64 = 60_000;

/// A replica that runs this much more than a tick ago is still being filled.
const FILLS: f64 = 1.1;

/// Since when something has been waiting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct QueueState {
    since: Option<Moment>,
    /// Ready replicas then.
    ready: u32,
    /// When the next two were brought up to date.
    noted_at: Option<Moment>,
    /// Requests that ran on a replica then, and at the tick before.
    per_replica: f64,
    before: f64,
}

/// What waits, and where.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queue {
    /// Requests waiting that replicas would cure, the gateway's included.
    pub(super) waiting: f64,
    /// Of these, the ones held by a gateway beyond what the engines have.
    pub(super) at_gateway: f64,
}

impl Queue {
    /// What waits at the engines, and at a gateway beyond what the engines have: a gateway may
    /// count what it passed on, so only the surplus is surely held there.
    pub(super) fn of(seen: &Seen, door: &Doorstep) -> Queue {
        let in_flight = seen.in_flight().or(seen.waiting);
        let at_gateway = match (door.queued, in_flight) {
            (Some(queued), Some(in_flight)) => (queued - in_flight).max(0.0),
            (None, _) | (_, None) => 0.0,
        };
        Queue { waiting: seen.waiting.unwrap_or(0.0) + at_gateway, at_gateway }
    }
}

impl QueueState {
    /// Whether a queue has stood for a minute.
    fn stood(&self, now: Moment) -> bool {
        self.since.is_some_and(|since| now.millis_since(since) >= STOOD_MS)
    }

    /// Moves on by one tick.
    pub(super) fn note(&mut self, queue: &Queue, ask: &Ask<'_>, now: Moment) {
        let waits = queue.waiting + ask.seen.stuck_waiting > 0.0;
        if !waits {
            self.since = None;
        } else if self.since.is_none() {
            self.since = Some(now);
            self.ready = ask.supply.ready;
        }
        if self.noted_at.is_none_or(|at| at < now) {
            let now_per_replica = per_replica(ask);
            let before = self.noted_at.map_or(now_per_replica, |_| self.per_replica);
            (self.noted_at, self.before, self.per_replica) = (Some(now), before, now_per_replica);
        }
    }

    /// Whether fewer ran a tick ago: then what runs does not say yet how many a replica takes.
    fn fills(&self, per_replica: f64, now: Moment) -> bool {
        let before = match self.noted_at {
            None => return false,
            Some(at) if at < now => self.per_replica,
            Some(_decided_before) => self.before,
        };
        per_replica > FILLS * before
    }

    /// A single request a replica that waits in a single sample is the scheduler between two
    /// steps, not a queue.
    fn is_blip(&self, queue: &Queue, ask: &Ask<'_>, now: Moment) -> bool {
        self.since.is_none_or(|since| since == now) && queue.waiting <= f64::from(ask.seen.live)
    }

    /// The most that a queue may ask for while others idle beside it.
    fn one_more(&self, queue: &Queue, seen: &Seen, supply: &Supply) -> Option<u32> {
        if seen.idle_beside_queue == 0 || queue.at_gateway > 0.0 {
            return None;
        }
        // One more in all, not one more each time that the last one has started.
        let from = self.since.map_or(supply.ready, |_| self.ready);
        Some(from.saturating_add(1))
    }

    /// Requests waiting from which one more replica would be wanted now; `None` where more waiting
    /// would not bring one.
    pub(super) fn up_at(
        &self,
        queue: &Queue,
        ask: &Ask<'_>,
        level: &Level,
        idle_gpu: Option<IdleGpu>,
        now: Moment,
    ) -> Option<f64> {
        let (seen, supply) = (ask.seen, ask.supply);
        let most = self.one_more(queue, seen, supply);
        let capped = most.is_some_and(|most| supply.base >= most)
            || idle_gpu.is_some() && self.stood(now)
            || supply.hopeless > 0;
        if capped || seen.live == 0 {
            return None;
        }
        let (Some(need), Some(request_s), Some(rho)) = (level.need, level.request_s, level.rho)
        else {
            return self.up_at_unlearned(ask, now);
        };
        let horizon_s = seconds(supply.horizon_ms());
        let spare = (f64::from(supply.base) - need).max(0.0) * horizon_s;
        let work = level.work.unwrap_or(0.0);
        let cleared_s = (f64::from(supply.ready) * rho - work) * seconds(supply.cold_start_ms)
            + rho * supply.head_start_s();
        Some(((spare + cleared_s) / request_s).max(1.0).ceil())
    }

    /// The same where nothing is learned: more than what is on its way has room for.
    fn up_at_unlearned(&self, ask: &Ask<'_>, now: Moment) -> Option<f64> {
        let (seen, supply) = (ask.seen, ask.supply);
        let runs = per_replica(ask);
        let room = match ask.spec.target_in_flight {
            Some(target) => {
                let n_serving = f64::from(supply.base.saturating_sub(seen.frozen));
                target * n_serving - seen.running.unwrap_or(0.0)
            }
            None if supply.base <= supply.ready => 0.0,
            // A replica's size is not known, and one more is on its way.
            None if runs <= 0.0 || self.fills(runs, now) => return None,
            None => runs.max(1.0) * f64::from(supply.base - supply.ready),
        };
        // As many as one a replica may be the scheduler between two steps.
        Some(room.floor().max(f64::from(seen.live)) + 1.0)
    }

    /// The vote for what waits.
    pub(super) fn ask(
        &self,
        queue: &Queue,
        ask: &Ask<'_>,
        level: &Level,
        figures: &Figures,
        idle_gpu: Option<IdleGpu>,
        now: Moment,
    ) -> Vote {
        let (seen, supply) = (ask.seen, ask.supply);
        let vote = |want, reason| Vote { rule: Rule::Queue, want, reason };
        let waiting = queue.waiting;
        if waiting <= 0.0 {
            let reason = if seen.stuck_waiting > 0.0 {
                let replicas = seen.frozen + seen.stuck;
                Reason::StuckQueue { waiting: seen.stuck_waiting, replicas }
            } else {
                Reason::Silent
            };
            return vote(None, reason);
        }
        let (target, reason) = match (level.need, level.request_s, level.rho) {
            (Some(need), Some(request_s), Some(rho)) => {
                backlog(ask, level, figures, waiting, (need, request_s, rho))
            }
            (None, _, _) | (_, None, _) | (_, _, None) => {
                if self.is_blip(queue, ask, now) {
                    return vote(None, Reason::Clears { waiting });
                }
                match ask.spec.target_in_flight {
                    Some(target) => by_target(ask, target, waiting),
                    None => measured(ask, level, figures, waiting)
                        .unwrap_or_else(|| self.unlearned(ask, figures, waiting, now)),
                }
            }
        };
        let Some(target) = target else {
            return vote(None, reason);
        };
        if let Some(IdleGpu { busy }) = idle_gpu.filter(|_| self.stood(now)) {
            return vote(Some(supply.ordered), Reason::NotServing { waiting, busy });
        }
        // Frozen replicas are in the count, but they serve nobody.
        let target = target.saturating_add(seen.frozen);
        if let Some(one_more) = self.one_more(queue, seen, supply).filter(|most| target > *most) {
            let idle = seen.idle_beside_queue;
            return vote(Some(one_more), Reason::Imbalance { waiting, idle });
        }
        vote(Some(supply.orderable(supply.replace_lost(target))), reason)
    }

    /// Not learned: what the ready replicas do not finish in time needs others like them.
    fn unlearned(
        &self,
        ask: &Ask<'_>,
        figures: &Figures,
        waiting: f64,
        now: Moment,
    ) -> (Option<u32>, Reason) {
        let ready = serving(ask);
        let per_replica = per_replica(ask);
        if per_replica <= 0.0 || self.fills(per_replica, now) {
            // Nothing runs yet, or more with each tick, or it cannot be read: a replica's size is not
            // known, so one more.
            let reason = Reason::Waiting { waiting, cleared: 0.0, per_replica: 0.0 };
            return (Some(ready.saturating_add(1)), reason);
        }
        let horizon_s = seconds(ask.supply.horizon_ms());
        let rate = figures.saturation.and_then(|saturation| saturation.finished).unwrap_or(0.0);
        let cleared = (rate * f64::from(ready) * horizon_s).min(waiting);
        let target = ready.saturating_add(ceil_count((waiting - cleared) / per_replica.max(1.0)));
        (Some(target), Reason::Waiting { waiting, cleared, per_replica })
    }
}

/// Learned: the level and what clears, within the horizon, the work that will be waiting when an
/// order placed now could serve.
fn backlog(
    ask: &Ask<'_>,
    level: &Level,
    figures: &Figures,
    waiting: f64,
    (need, request_s, rho): (f64, f64, f64),
) -> (Option<u32>, Reason) {
    let supply = ask.supply;
    let cold_start_s = seconds(supply.cold_start_ms);
    // While a queue stands, the last seconds tell a step sooner than the last minute. A request or
    // two between two steps are no queue, and those seconds then tell chance.
    let stands = waiting >= f64::from(ask.seen.live);
    let work = level.work.unwrap_or(0.0).max(if stands { level.recent_work } else { 0.0 });
    let ready = f64::from(serving(ask));
    let waiting_s = waiting * request_s;
    // Under a queue a replica does more than it should be planned for; measured where it can be.
    let saturated = figures.saturation.and_then(|saturation| saturation.finished).unwrap_or(0.0);
    let each = rho.max(level.cap).max((saturated * request_s).min(1.0));
    let cleared = (ready * each).max(level.recent_served);
    let growth_s = (work - cleared) * cold_start_s;
    let work_s = waiting_s + growth_s - each * supply.head_start_s();
    if work_s <= 0.0 {
        return (None, Reason::Clears { waiting });
    }
    let horizon_ms = supply.horizon_ms();
    let need = need.max((work + level.headroom) / rho);
    let target = ceil_count(need + work_s / seconds(horizon_ms));
    (Some(target), Reason::Backlog { waiting, work_s, horizon_ms })
}

/// As many as carry what is in flight, by the user's own target.
fn by_target(ask: &Ask<'_>, target: f64, waiting: f64) -> (Option<u32>, Reason) {
    let count = ceil_count((ask.seen.running.unwrap_or(0.0) + waiting) / target);
    (Some(count), Reason::Waiting { waiting, cleared: 0.0, per_replica: target })
}

/// Not learned, but measured: what a replica finishes while requests wait for it is the price of
/// one. What comes meanwhile wants to be served too, so a queue that stands or grows is not cleared.
fn measured(
    ask: &Ask<'_>,
    level: &Level,
    figures: &Figures,
    waiting: f64,
) -> Option<(Option<u32>, Reason)> {
    let request_s = figures.saturation?.request_s()?;
    let work = ask.minute.or(ask.recent)?.arrived * request_s;
    let level = Level { work: Some(work), recent_work: work, ..level.clone() };
    Some(backlog(ask, &level, figures, waiting, (work, request_s, 1.0)))
}

/// Ready replicas that serve.
fn serving(ask: &Ask<'_>) -> u32 {
    ask.supply.ready.saturating_sub(ask.seen.frozen)
}

/// Requests running on a replica that serves; 0 with none.
fn per_replica(ask: &Ask<'_>) -> f64 {
    ask.seen.running.unwrap_or(0.0) / f64::from(serving(ask).max(1))
}
