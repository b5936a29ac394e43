//! The replicas' memory between ticks, and what the fresh ones say together.
//!
//! Turns counters into rates and gauges into live, frozen or stuck. Must not weigh demand.

mod rates;

use std::cmp::Reverse;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::cost::CostModel;
use super::number::{count_of, seconds};
use super::{Engine, EngineSample, Interval, KeptSample, Moment, Phase, Reading, Why};
pub(super) use rates::Rates;

/// A replica that turned ready less than this ago warms up: it is not silent if it has not answered
/// yet, and neither its idleness nor its devices say anything, milliseconds.
pub const WARM_UP_MS: u64 = 60_000;
/// Work in flight and no counter that moved for this long: no engine step takes 30 s, so the engine
/// hangs or its gauges are stuck.
const FROZEN_MS: u64 = 30_000;
/// After this long, frozen gauges no longer speak for users who still wait: the default hold.
const STUCK_MS: u64 = 600_000;
/// Replicas that are remembered; KEDA's default maximum is 100.
const MAX_MEMBERS: usize = 1_024;
/// A sample that is older than the one before by this much was timed by another clock, or by one that
/// was set back: less than that, as between two leaders, is over before it matters.
const NEW_TIME_MS: u64 = 60_000;
/// Shortest interval from which a rate is taken.
const MIN_INTERVAL_MS: u64 = 100;

/// What is remembered of each replica, in the observation's order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Members {
    list: Vec<Member>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Member {
    id: Arc<str>,
    /// When it was first seen starting, until it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    starting_since: Option<Moment>,
    /// The newest sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<KeptSample>,
    /// Rates of the newest sample interval; `None` before there is one, and after a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rates: Option<Rates>,
    /// How long work has been in flight with no counter moving.
    #[serde(default)]
    flat_ms: u64,
    /// What the cost model is not told yet: too short to be a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    row: Option<Box<Interval>>,
}

/// What the fresh, ready replicas say together.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// Replicas that should answer: ready, and not in their warm-up.
    pub(super) expected: u32,
    /// Of these, the ones with a fresh reading.
    pub(super) answered: u32,
    /// Why each of the others is silent.
    pub(super) silences: Vec<Why>,
    /// Every ready replica is fresh and has rates.
    pub(super) whole: bool,
    /// Replicas that answer, are awake and not frozen.
    pub(super) live: u32,
    /// Replicas whose gauges say busy while nothing moved from the last sample to this one, and not
    /// for so long that they count as idle.
    pub(super) still: u32,
    /// Of these, the ones for which that has been so for longer than any step takes.
    pub(super) frozen: u32,
    /// The same for so long that their gauges count as stuck.
    pub(super) stuck: u32,
    /// Both, by id.
    pub(super) stuck_ids: Vec<Box<str>>,
    /// Replicas that sleep.
    pub(super) asleep: u32,
    /// Requests waiting on live replicas.
    pub(super) waiting: Option<f64>,
    /// Requests waiting on frozen and stuck replicas.
    pub(super) stuck_waiting: f64,
    /// Requests running on live replicas.
    pub(super) running: Option<f64>,
    /// Sum and maximum of KV use over live replicas.
    pub(super) kv_used: Option<f64>,
    pub(super) kv_max: Option<f64>,
    /// Sum of the engines' own limits of running requests, if all export one.
    pub(super) running_limit: Option<f64>,
    /// Largest in-flight count of one live replica.
    pub(super) most_in_flight: Option<f64>,
    /// Live replicas past their warm-up that have work below half of the waiting ones' mean.
    pub(super) idle_beside_queue: u32,
    /// Some rank of a data-parallel engine waits while another does not.
    pub(super) rank_spread: bool,
    /// Sums of the live replicas' rates.
    pub(super) rates: Rates,
    /// Every live replica exposes what the cost model is learned from.
    pub(super) learnable: bool,
    /// Sample time of the oldest fresh reading.
    pub(super) oldest_at: Option<Moment>,
    /// Age of the oldest fresh reading.
    pub(super) age_ms: Option<u64>,
    /// Tokens per second that came too slowly in the newest samples: the time that replicas slower
    /// than the target spent on them, in tokens of the target's pace.
    pub(super) slow: f64,
    /// Over all live replicas, the mean times to the first token and between tokens were within the
    /// SLO, where known; that of long prompts as [`Rates::keep`] has it.
    pub(super) slo_kept: bool,
    /// A start that was seen to end: creation to ready, milliseconds.
    pub(super) start_took_ms: Option<u64>,
}

impl Seen {
    /// Requests in flight on live replicas.
    pub(super) fn in_flight(&self) -> Option<f64> {
        Some(self.running? + self.waiting.unwrap_or(0.0))
    }

    /// The most frequent cause of a silence, of equally frequent ones the first in the order of
    /// [`Why`].
    pub(super) fn why(&self) -> Option<Why> {
        let count = |why: &Why| self.silences.iter().filter(|other| *other == why).count();
        self.silences.iter().copied().min_by_key(|why| (Reverse(count(why)), *why))
    }

    /// A counter moved, or live replicas have work in flight; `None` if neither can be read.
    pub(super) fn worked(&self) -> Option<bool> {
        let in_flight = self.in_flight().map(|count| count > 0.0);
        let moved = self.rates.moved();
        match (in_flight, moved) {
            (None, None) => None,
            (in_flight, moved) => Some(in_flight == Some(true) || moved == Some(true)),
        }
    }
}

impl Members {
    /// Takes in one tick's engines: updates the memory, feeds the cost model, adds up.
    pub(super) fn absorb(
        &mut self,
        engines: &[Engine],
        slo: Slo,
        cost: &mut CostModel,
        now: Moment,
    ) -> Seen {
        self.align(engines);
        let mut seen = Seen { whole: true, learnable: true, ..Seen::default() };
        let serves = |engine: &&Engine| {
            let asleep = engine.reading.last().is_some_and(KeptSample::is_asleep);
            engine.phase == Phase::Ready && !asleep
        };
        let ready = count_of(engines.iter().filter(serves).count());
        for (member, engine) in self.list.iter_mut().zip(engines) {
            match engine.phase {
                Phase::Starting => {
                    member.starting_since.get_or_insert(now);
                }
                Phase::NotReady | Phase::Terminating => {}
                Phase::Ready => {
                    if let Some(since) = member.starting_since.take() {
                        let ready_at = now.minus_millis(engine.ready_ms.unwrap_or(0));
                        seen.start_took_ms = Some(ready_at.millis_since(since));
                    }
                    member.read(engine, ready, slo, cost, &mut seen);
                }
            }
        }
        if seen.waiting.is_some_and(|waiting| waiting > 0.0) {
            self.look_for_idle(engines, &mut seen);
        }
        seen.learnable &= seen.live > 0;
        seen.slo_kept = seen.rates.keep(slo, cost.is_usable().then(|| cost.costs()));
        seen
    }

    /// Gives each engine its memory: in place when the same replicas are listed as before.
    fn align(&mut self, engines: &[Engine]) {
        let engines = engines.get(..MAX_MEMBERS).unwrap_or(engines);
        let same = self.list.len() == engines.len()
            && self.list.iter().zip(engines).all(|(member, engine)| member.id == engine.id);
        if same {
            return;
        }
        let mut old = std::mem::take(&mut self.list);
        self.list = engines
            .iter()
            .map(|engine| match old.iter().position(|member| member.id == engine.id) {
                Some(index) => old.swap_remove(index),
                None => Member::new(Arc::clone(&engine.id)),
            })
            .collect();
    }

    /// Counts replicas that have little to do while others make requests wait.
    fn look_for_idle(&self, engines: &[Engine], seen: &mut Seen) {
        let live = || {
            self.list.iter().zip(engines).filter(|(member, engine)| {
                engine.phase == Phase::Ready
                    && engine.ready_ms.is_none_or(|ready_ms| ready_ms >= WARM_UP_MS)
                    && engine.reading.fresh().is_some()
                    && !member.frozen()
                    && !member.asleep()
            })
        };
        let (mut n_waiting, mut in_flight) = (0.0, 0.0);
        for (member, _) in live() {
            if member.waiting() > 0.0 {
                n_waiting += 1.0;
                in_flight += member.running();
            }
        }
        if n_waiting > 0.0 {
            let half = 0.5 * (in_flight / n_waiting).max(1.0);
            let idle = live().filter(|(m, _)| m.waiting() <= 0.0 && m.running() < half);
            seen.idle_beside_queue = count_of(idle.count());
        }
    }
}

/// The latency targets that tell a healthy interval.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slo {
    pub(super) ttft_s: f64,
    pub(super) tpot_s: f64,
}

impl Member {
    fn new(id: Arc<str>) -> Member {
        Member { id, starting_since: None, last: None, rates: None, flat_ms: 0, row: None }
    }

    fn waiting(&self) -> f64 {
        self.last.as_ref().and_then(|last| last.get().waiting).unwrap_or(0.0)
    }

    fn running(&self) -> f64 {
        self.last.as_ref().and_then(|last| last.get().running).unwrap_or(0.0)
    }

    fn read(
        &mut self,
        engine: &Engine,
        n_ready: u32,
        slo: Slo,
        cost: &mut CostModel,
        seen: &mut Seen,
    ) {
        let (kept, age_ms) = match &engine.reading {
            Reading::Fresh { value, age_ms } => (value, *age_ms),
            Reading::Stale { why, .. } | Reading::Missing { why } => {
                seen.whole = false;
                let warming = self.last.is_none()
                    && engine.ready_ms.is_some_and(|ready_ms| ready_ms < WARM_UP_MS);
                if !warming {
                    seen.expected += 1;
                    seen.silences.push(*why);
                }
                return;
            }
        };
        seen.expected += 1;
        seen.answered += 1;
        let (kept, given) = (kept.clone(), kept.get());
        let sample = given.cleaned();
        let kept = if sample == given { kept } else { sample.into() };
        self.take(kept, &sample, n_ready, slo, cost);
        self.add_to(&sample, age_ms, slo, seen);
    }

    /// Moves on to a newer sample; the same sample again changes nothing.
    fn take(
        &mut self,
        kept: KeptSample,
        sample: &EngineSample,
        n_ready: u32,
        slo: Slo,
        cost: &mut CostModel,
    ) {
        let Some(before) = self.last.as_ref().map(KeptSample::get) else {
            self.last = Some(kept);
            return;
        };
        if before.at.millis_since(sample.at) >= NEW_TIME_MS {
            // Its source counts from another time; no rate can be told across that.
            (self.last, self.rates, self.flat_ms) = (Some(kept), None, 0);
            self.row = None;
            return;
        }
        let elapsed_ms = sample.at.millis_since(before.at);
        if elapsed_ms < MIN_INTERVAL_MS {
            return;
        }
        let known_rates = self.rates;
        self.rates = Rates::between(&before, sample, elapsed_ms);
        self.last = Some(kept);
        let Some(rates) = &mut self.rates else {
            (self.flat_ms, self.row) = (0, None);
            return;
        };
        let costs = cost.is_usable().then(|| cost.costs());
        let elapsed_s = seconds(elapsed_ms);
        let all_prompts = sample
            .all_prompt_tokens
            .zip(before.all_prompt_tokens)
            .map(|(after, before)| (after - before) / elapsed_s);
        rates.late = rates.late(elapsed_s, all_prompts, slo, costs).into();
        let busy = |sample: &EngineSample| {
            sample.running.unwrap_or(0.0) + sample.waiting.unwrap_or(0.0) > 0.0
        };
        let is_flat = busy(&before) && busy(sample) && rates.stand_still();
        self.flat_ms = if is_flat { self.flat_ms.saturating_add(elapsed_ms) } else { 0 };
        // The first interval of a replica holds its warm-up (compilation, first graphs), and one of
        // an engine that hangs would have no end.
        let part =
            known_rates.filter(|_| !self.frozen()).and_then(|_| Interval::part(&before, sample));
        let row = match part {
            Some(part) => {
                let row = self.row.take().map_or(part, |row| row.then(part));
                self.row = (!row.is_whole()).then(|| Box::new(row));
                self.row.is_none().then_some(row)
            }
            None => {
                let rests = sample.running.is_some_and(|running| running < 1.0);
                self.row.take().map(|row| *row).filter(|row| rests && row.is_enough())
            }
        };
        if let Some(row) = row {
            cost.observe(&row, f64::from(n_ready.max(1)));
        }
        // No two replicas tell of the same request.
        let alone = known_rates.and_then(|_| Interval::alone(&before, sample));
        for row in alone.iter().flatten() {
            cost.observe(row, 1.0);
        }
    }

    fn frozen(&self) -> bool {
        self.flat_ms >= FROZEN_MS
    }

    fn asleep(&self) -> bool {
        self.last.as_ref().is_some_and(KeptSample::is_asleep)
    }

    fn add_to(&self, sample: &EngineSample, age_ms: u64, slo: Slo, seen: &mut Seen) {
        seen.age_ms = seen.age_ms.max(Some(age_ms));
        seen.oldest_at = Some(seen.oldest_at.map_or(sample.at, |oldest| oldest.min(sample.at)));
        if sample.asleep == Some(true) {
            seen.asleep += 1;
            return;
        }
        let (waiting, running) = (sample.waiting, sample.running);
        if (1..STUCK_MS).contains(&self.flat_ms) {
            seen.still += 1;
        }
        if self.frozen() {
            if self.flat_ms < STUCK_MS {
                seen.frozen += 1;
            } else {
                seen.stuck += 1;
            }
            seen.stuck_ids.push((&*self.id).into());
            seen.stuck_waiting += waiting.unwrap_or(0.0);
            // Readable and idle as far as its counters say; its gauges say nothing.
            add(&mut seen.running, running.map(|_| 0.0));
            return;
        }
        seen.live += 1;
        add(&mut seen.waiting, waiting);
        add(&mut seen.running, running);
        if let Some(running) = running {
            let in_flight = running + waiting.unwrap_or(0.0);
            seen.most_in_flight = Some(seen.most_in_flight.unwrap_or(0.0).max(in_flight));
        }
        if let Some(kv) = sample.kv_usage.map(|kv| kv.min(1.0)) {
            add(&mut seen.kv_used, Some(kv));
            seen.kv_max = Some(seen.kv_max.unwrap_or(0.0).max(kv));
        }
        let limit = sample.max_running;
        seen.running_limit = match (seen.live, seen.running_limit, limit) {
            (1, _, limit) => limit,
            (_, Some(sum), Some(limit)) => Some(sum + limit),
            (_, None, _) | (_, _, None) => None,
        };
        seen.rank_spread |= sample.waiting_spread.is_some_and(|spread| spread > 0.0);
        seen.learnable &= Interval::is_exposed(sample);
        match &self.rates {
            None => seen.whole = false,
            Some(rates) => {
                seen.slow += rates.slow(slo);
                seen.rates.add(rates);
            }
        }
    }
}

/// Adds what is known; an unknown part leaves the sum as it is.
fn add(sum: &mut Option<f64>, part: Option<f64>) {
    if let Some(part) = part {
        *sum = Some(sum.unwrap_or(0.0) + part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_one_replica_fits_the_allocators_class_of_192_bytes() {
        assert!(size_of::<Member>() <= 192, "{}", size_of::<Member>());
    }
}
