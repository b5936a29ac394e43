//! The engine core: one replica of a serving engine, step by step, in simulated time.
//!
//! Must not read a clock, sleep, open a socket or draw a random number: its caller says what time
//! it is, and the same calls give the same events to the picosecond.
//!
//! # Model
//!
//! An engine repeats steps while it has requests. What a step computes is vLLM's scheduler
//! (`engine/scheduler.rs`); how long it takes is the sum of four curves of the [`Profile`]:
//!
//! ```text
//! step = base + prefill(prompt tokens) + decode(decoding requests) + resident(tokens in the KV cache)
//! ```
//!
//! Requests that arrive during a step are seen when it has ended. Tokens appear, gauges are
//! written and requests leave at the end of a step.
//!
//! All times are whole picoseconds. So the steps between two changes of the batch, which differ
//! only by a constant growth of the KV cache, are added up in closed form with the very result of
//! adding them one by one: how often [`Engine::advance`] is called changes nothing.

mod frontend;
mod kv;
mod lean;
mod life;
mod metrics;
mod profile;
mod request;
mod scheduler;
mod step_time;
#[cfg(test)]
mod tests;
mod time;

use std::collections::VecDeque;
use std::sync::Arc;

pub use lean::{Lean, LeanEvent, LeanRequest, LeanSample};
pub use life::{Condition, Refused, Replica, ReplicaEvent, SleepLevel, Stage};
pub use metrics::{Gauges, Histogram, Metrics};
pub use profile::{
    Error as ProfileError, Fault, Faults, Frontend as FrontendCost, Kv, Limits, Points, Profile,
    Shutdown, Spread, Start, Step, Wake,
};
pub use request::{Event, FinishReason, Prefix, Rejected, Request, Served, Watch};
pub use step_time::Work;
pub use time::{PS_PER_MS, PS_PER_S, Time, ps_from_secs, secs_from_ps};

use crate::engine::frontend::Frontend;
use crate::engine::scheduler::{Batch, Scheduler};
use crate::engine::step_time::{Progression, StepTime};

/// A serving engine.
#[derive(Debug)]
pub struct Engine {
    profile: Arc<Profile>,
    step_time: StepTime,
    frontend: Frontend,
    // Slots on their way to the scheduler, by the moment they get there.
    inbox: VecDeque<(Time, usize)>,
    scheduler: Scheduler,
    step: Option<RunningStep>,
    // No step starts before it.
    not_before: Time,
    paused: bool,
    steady: bool,
    // Slots of the running step whose clients have gone.
    abandoned: Vec<usize>,
    promoted: Vec<usize>,
    metrics: Metrics,
    work: Work,
}

/// A step that has started.
#[derive(Debug, Clone, Copy)]
struct RunningStep {
    start: Time,
    end: Time,
    batch: Batch,
    work: Work,
}

impl Engine {
    /// An idle engine.
    #[must_use]
    pub fn new(profile: Arc<Profile>) -> Engine {
        let scheduler = Scheduler::new(&profile.limits, &profile.kv);
        let mut metrics = Metrics::new(profile.limits.max_model_tokens);
        metrics.gauges = gauges(&scheduler);
        Engine {
            step_time: profile.step_time(),
            frontend: Frontend::new(&profile.frontend),
            inbox: VecDeque::new(),
            scheduler,
            step: None,
            not_before: Time::ZERO,
            paused: false,
            steady: false,
            abandoned: Vec::new(),
            promoted: Vec::new(),
            metrics,
            work: Work::default(),
            profile,
        }
    }

    /// The profile that it was made from.
    #[must_use]
    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    /// What it has counted.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// When its last step ended; [`Time::ZERO`] before the first.
    #[must_use]
    pub fn last_step_end(&self) -> Time {
        self.scheduler.last_step_end
    }

    /// What its finished steps have spent their time on.
    #[must_use]
    pub fn work(&self) -> &Work {
        &self.work
    }

    /// Requests in the server, whatever their state: what `/load` answers. Not delayed as the
    /// gauges are.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let scheduled = self.scheduler.running() + self.scheduler.waiting();
        self.inbox.len() + scheduled + self.scheduler.deferred() - self.abandoned.len()
    }

    /// Takes a request that reaches the server now; the engine has been advanced to `now`.
    ///
    /// # Errors
    ///
    /// When no engine of this profile could ever serve it.
    pub fn submit(&mut self, request: Request, now: Time) -> Result<(), Rejected> {
        request.check(&self.profile)?;
        let queued = self.frontend.read(request.prompt_tokens as usize, now);
        let slot = self.scheduler.register(request, now, queued);
        self.inbox.push_back((queued, slot));
        Ok(())
    }

    /// Forgets a request whose client has gone. It leaves when the running step ends, without
    /// events, and is counted nowhere. False if it is not there (any more).
    pub fn abort(&mut self, id: u64) -> bool {
        let in_inbox = |&(_, slot): &(Time, usize)| self.scheduler.slot(slot).request.id == id;
        if let Some(index) = self.inbox.iter().position(in_inbox) {
            if let Some((_, slot)) = self.inbox.remove(index) {
                self.scheduler.vacate(slot);
            }
            return true;
        }
        let Some(slot) = self.scheduler.find(id) else {
            return false;
        };
        if self.abandoned.contains(&slot) {
            return false;
        }
        self.steady = false;
        if self.step.is_some() {
            self.abandoned.push(slot);
        } else {
            self.scheduler.remove(slot);
            self.scheduler.vacate(slot);
            self.metrics.gauges = gauges(&self.scheduler);
        }
        true
    }

    /// Gives up every request, as a crash, a shutdown or falling asleep does. Each is reported as
    /// finished with [`FinishReason::Abort`]. The prefix cache is lost with them.
    pub fn abort_all(&mut self, now: Time, sink: &mut impl FnMut(Event)) {
        self.step = None;
        self.steady = false;
        for slot in std::mem::take(&mut self.abandoned) {
            self.scheduler.remove(slot);
            self.scheduler.vacate(slot);
        }
        let mut slots = self.scheduler.all();
        slots.extend(self.inbox.drain(..).map(|(_, slot)| slot));
        for slot in slots {
            self.scheduler.remove(slot);
            self.finish(slot, now, FinishReason::Abort, sink);
        }
        // Also the blocks that the unfinished step had taken for its results.
        self.scheduler.kv.reset();
        self.metrics.gauges = gauges(&self.scheduler);
    }

    /// Starts no further step until [`Engine::resume`].
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Steps again, from now on.
    pub fn resume(&mut self, now: Time) {
        self.paused = false;
        self.not_before = self.not_before.max(now);
    }

    /// Makes no progress until then: the running step ends no earlier, and none starts. A hung
    /// engine is one that is stalled until [`Time::MAX`].
    pub fn stall(&mut self, until: Time) {
        self.not_before = self.not_before.max(until);
        if let Some(step) = &mut self.step {
            step.end = step.end.max(until);
        }
        self.steady = false;
    }

    /// When the running step ends; `None` if there is nothing to do. Starts the next step if none
    /// runs: what is submitted from here on is not in it. So submit first what arrives together.
    pub fn next_event(&mut self) -> Option<Time> {
        if self.step.is_none() {
            self.start_step(Time::MAX);
        }
        self.step.map(|step| step.end)
    }

    /// Lets time pass until `to`: ends every step that ends by then, and starts every step that
    /// starts before. `to` must not lie before an earlier call's; `sink` gets the events in order.
    pub fn advance(&mut self, to: Time, watch: Watch, sink: &mut impl FnMut(Event)) {
        loop {
            if let Some(step) = self.step {
                if step.end > to {
                    return;
                }
                self.step = None;
                self.end_step(&step, watch, sink);
            }
            if self.steady && watch == Watch::FirstToken {
                self.decode_on(to);
            }
            if !self.start_step(to) {
                return;
            }
        }
    }

    /// Starts the next step if there is one that starts before `to`.
    fn start_step(&mut self, to: Time) -> bool {
        if self.paused {
            return false;
        }
        loop {
            let at_once = self.scheduler.running() + self.scheduler.waiting() > 0;
            let ready = if at_once { Some(Time::ZERO) } else { self.next_news() };
            let Some(ready) = ready else { return false };
            let start = self.not_before.max(ready);
            if start >= to {
                return false;
            }
            self.collect(start);
            // Else all that came is deferred.
            if self.scheduler.running() + self.scheduler.waiting() > 0 {
                let batch = self.scheduler.schedule(start);
                let Batch { prefill_tokens, decoding, resident_tokens, .. } = batch;
                let work = self.step_time.of(prefill_tokens, decoding, resident_tokens);
                let work = self.step_time.with_attention(work, batch.pairs);
                let end = start.plus_ps(work.total_ps());
                self.step = Some(RunningStep { start, end, batch, work });
                return true;
            }
        }
    }

    /// When the scheduler will next see something new.
    fn next_news(&self) -> Option<Time> {
        let next_arrival = self.inbox.front().map(|&(ready, _)| ready);
        [next_arrival, self.scheduler.next_deferred()].into_iter().flatten().min()
    }

    /// Hands the scheduler what is ready by `now`.
    fn collect(&mut self, now: Time) {
        while let Some(&(ready, slot)) = self.inbox.front() {
            if ready > now {
                break;
            }
            self.inbox.pop_front();
            self.scheduler.enqueue(slot);
        }
        self.scheduler.undefer(now);
    }

    fn end_step(&mut self, step: &RunningStep, watch: Watch, sink: &mut impl FnMut(Event)) {
        let at = step.end;
        self.not_before = self.not_before.max(at);
        self.work.add(&step.work);
        self.steady = step.batch.steady && self.abandoned.is_empty();
        for &id in &self.scheduler.preempted {
            sink(Event::Preempted { id, at: step.start });
        }
        self.metrics.preemptions += self.scheduler.preempted.len() as u64;

        self.scheduler.advance(1);
        for slot in std::mem::take(&mut self.abandoned) {
            self.scheduler.remove(slot);
            self.scheduler.vacate(slot);
        }
        let decoded = self.scheduler.decoding();
        let gap_ps = at.since(self.scheduler.last_step_end);
        self.scheduler.last_step_end = at;
        self.metrics.inter_token_latency.observe(gap_ps, decoded as u64);
        if watch == Watch::EveryToken {
            self.scheduler
                .decoding_ids()
                .for_each(|id| sink(Event::Token { id, at, first: false }));
        }
        let prompt_tokens = self.emit_caught_up(at, watch, sink);
        let generated = decoded + self.promoted.len();
        self.frontend.stream(generated, at);
        let generated = generated as u64;
        self.metrics.generation_tokens += generated;
        if generated > 0 {
            self.metrics.iteration_tokens.observe(generated + prompt_tokens, 1);
        }
        while let Some(slot) = self.scheduler.pop_finished() {
            self.steady = false;
            let request = &self.scheduler.slot(slot).request;
            let reason = match request.max_tokens == request.output_tokens {
                true => FinishReason::Length,
                false => FinishReason::Stop,
            };
            self.finish(slot, at, reason, sink);
        }
        let (queries, hits) = self.scheduler.take_prefix_counts();
        self.metrics.prefix_queries += queries as u64;
        self.metrics.prefix_hits += hits as u64;
        self.metrics.gauges = gauges(&self.scheduler);
    }

    /// Reports a token of each request that has caught up; returns the prompt tokens that vLLM
    /// counts for it.
    fn emit_caught_up(&mut self, at: Time, watch: Watch, sink: &mut impl FnMut(Event)) -> u64 {
        let mut prompt_tokens = 0;
        self.scheduler.promote(&mut self.promoted);
        for &slot in &self.promoted {
            let slot = self.scheduler.slot_mut(slot);
            let served = &mut slot.served;
            let first = served.first_token.is_none();
            if first {
                served.first_token = Some(at);
                self.metrics.time_to_first_token.observe(at.since(served.arrival), 1);
                self.metrics.prompt_tokens_cached += u64::from(served.cached_tokens);
                prompt_tokens += u64::from(served.prompt_tokens);
            } else {
                self.metrics.inter_token_latency.observe(at.since(served.last_token), 1);
            }
            served.last_token = at;
            if first || watch == Watch::EveryToken {
                sink(Event::Token { id: slot.request.id, at, first });
            }
        }
        self.metrics.prompt_tokens += prompt_tokens;
        prompt_tokens
    }

    /// Decodes the same batch for as many whole steps as end by `to` and change nothing else.
    fn decode_on(&mut self, to: Time) {
        let start = self.scheduler.last_step_end;
        if self.paused || self.not_before > start {
            return;
        }
        let until = self.next_news().map_or(to, |news| news.min(to));
        // The step that finishes a request is left to `end_step`.
        let mut left = self.scheduler.steps_to_finish() - 1;
        let decoding = self.scheduler.decoding();
        while left > 0 {
            let resident = self.scheduler.resident_tokens();
            let piece = *self.step_time.resident.piece(resident);
            let on_piece = (piece.end - resident) / decoding + 1;
            let work = self.step_time.of(0, decoding, resident);
            let growth_ps = piece.slope_ps.saturating_mul(decoding as u64);
            let times = Progression { first_ps: work.total_ps(), growth_ps };
            let span_ps = until.since(self.scheduler.last_step_end);
            let fitting = times.fitting(span_ps, left.min(on_piece));
            let (steps, blocks) = self.scheduler.steps_with_blocks(fitting);
            if steps == 0 {
                break;
            }
            self.scheduler.kv.take(blocks);
            self.scheduler.advance(steps);
            self.count_decodes(times, steps, &work);
            left -= steps;
        }
        self.not_before = self.scheduler.last_step_end;
        self.metrics.gauges = gauges(&self.scheduler);
    }

    /// Counts steps that decoded the same batch; `first` is the work of the first of them.
    fn count_decodes(&mut self, times: Progression, steps: usize, first: &Work) {
        let start = self.scheduler.last_step_end;
        self.frontend.stream_steps(self.scheduler.decoding(), start, times, steps);
        let decoding = self.scheduler.decoding() as u64;
        let n = steps as u64;
        // Within what `fitting` was given, which is a span of 64 bits.
        let total_ps = u64::try_from(times.sum_ps(steps)).unwrap_or(u64::MAX);
        let base_ps = first.base_ps * n;
        let decode_ps = first.decode_ps * n;
        let resident_ps = total_ps - base_ps - decode_ps;
        self.work.add(&Work { base_ps, decode_ps, resident_ps, prefill_ps: 0 });
        self.scheduler.last_step_end = start.plus_ps(total_ps);
        self.metrics.generation_tokens += decoding * n;
        self.metrics.iteration_tokens.observe(decoding, n);
        self.metrics.inter_token_latency.observe_progression(times, steps, decoding);
    }

    fn finish(
        &mut self,
        slot: usize,
        at: Time,
        reason: FinishReason,
        sink: &mut impl FnMut(Event),
    ) {
        let Request { id, max_tokens, .. } = self.scheduler.slot(slot).request;
        let served = self.scheduler.slot(slot).served;
        self.metrics.finish(at, reason, &served, max_tokens);
        sink(Event::Finished { id, at, reason, served });
        self.scheduler.vacate(slot);
    }
}

fn gauges(scheduler: &Scheduler) -> Gauges {
    Gauges {
        running: scheduler.running(),
        waiting: scheduler.waiting(),
        deferred: scheduler.deferred(),
        kv_blocks_used: scheduler.kv.used(),
        kv_blocks_total: scheduler.kv.total(),
    }
}
