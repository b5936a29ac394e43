//! The engine once more, for simulations of days: the same steps to the picosecond, with nothing
//! kept that such a simulation does not look at.
//!
//! Must not differ from [`Engine`](super::Engine) in what a request gets, nor in what is counted
//! here; tests hold the two against each other.
//!
//! It is faster for three reasons. The steps of one batch are planned as one [`Run`] whose end is
//! known, so that the caller is not asked in between; a request that arrives cuts the run short at
//! the end of the step that it falls into. Requests are 64 bytes, and what leaves is not counted
//! into eleven histograms. And it leaves out what would need more state: cached segments by hash,
//! deferred requests, sleep and faults.

use std::collections::VecDeque;

use crate::engine::frontend::Frontend;
use crate::engine::kv::{Kept, KvBlocks};
use crate::engine::profile::{Limits, Profile};
use crate::engine::step_time::{Progression, StepTime};
use crate::engine::time::{Time, secs_from_ps};

mod plan;
mod sums;

pub use sums::{LeanEvent, LeanRequest, LeanSample};

use sums::Sums;

/// Stands in `finish_at` for a request that computes its prompt.
const CATCHING_UP: u32 = u32::MAX;

/// A serving engine without its histograms.
#[derive(Debug)]
pub struct Lean {
    step_time: StepTime,
    frontend: Frontend,
    limits: Limits,
    block_tokens: usize,
    prefix_caching: bool,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    // Slots on their way to the scheduler, by the moment they get there.
    inbox: VecDeque<(Time, u32)>,
    waiting: VecDeque<u32>,
    // Invariant: parallel; the order of admission. Who catches up comes last.
    running: Vec<u32>,
    finish_at: Vec<u32>,
    // Invariant: the least of `finish_at`.
    next_finish: u32,
    // Invariant: how many of the running decode; they are the first.
    decoding: usize,
    // Invariant: decoding requests by (tokens computed − steps done) modulo the block.
    by_offset: Vec<usize>,
    steps: u32,
    resident_tokens: usize,
    // Of the step being planned: see `pairs`.
    pairs: u64,
    kv: KvBlocks,
    run: Option<Run>,
    last_end: Time,
    // Preemptions of the running step: counted when it ends.
    preempted: u64,
    // Prompt tokens of those that wait.
    queued_tokens: u64,
    // As the last step left them.
    gauges: (usize, usize, usize),
    sums: Sums,
}

/// One request in the engine.
#[derive(Debug, Clone, Copy)]
struct Slot {
    request: LeanRequest,
    generated: u32,
    /// Tokens whose KV is computed; kept up to date while the request is not decoding.
    computed: u32,
    cached: u32,
    arrival: Time,
    first_token: Option<Time>,
    last_token: Time,
    scheduled: bool,
    kept: Option<Kept>,
}

impl Slot {
    fn tokens(&self) -> usize {
        self.request.prompt_tokens as usize + self.generated as usize
    }
}

/// Steps of one batch; the first of them has begun and holds its blocks.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: Time,
    times: Progression,
    /// At least 1; more only if nothing but decoding is in them.
    steps: usize,
}

impl Run {
    fn end_after(&self, steps: usize) -> Time {
        self.start.plus_ps(u64::try_from(self.times.sum_ps(steps)).unwrap_or(u64::MAX))
    }

    fn end(&self) -> Time {
        self.end_after(self.steps)
    }
}

impl Lean {
    /// Whether engines of this profile can be simulated so: all that decode fit into one step, and
    /// a prompt takes all that is left of it.
    #[must_use]
    pub fn can(profile: &Profile) -> bool {
        let limits = &profile.limits;
        limits.max_num_seqs <= limits.max_num_batched_tokens
            && limits.long_prefill_token_threshold == 0
    }

    /// An idle engine of a profile that [`Lean::can`] simulate.
    #[must_use]
    pub fn new(profile: &Profile) -> Lean {
        // One block of vLLM's pool is never used: the null block.
        let kv = KvBlocks::new(profile.kv.blocks - 1);
        Lean {
            step_time: profile.step_time(),
            frontend: Frontend::new(&profile.frontend),
            limits: profile.limits,
            block_tokens: profile.kv.block_tokens,
            prefix_caching: profile.kv.prefix_caching,
            slots: Vec::new(),
            vacant: Vec::new(),
            inbox: VecDeque::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            finish_at: Vec::new(),
            next_finish: CATCHING_UP,
            decoding: 0,
            by_offset: vec![0; profile.kv.block_tokens],
            steps: 0,
            resident_tokens: 0,
            pairs: 0,
            kv,
            run: None,
            last_end: Time::ZERO,
            preempted: 0,
            queued_tokens: 0,
            gauges: (0, 0, 0),
            sums: Sums::default(),
        }
    }

    /// From the next run of steps on, steps take what this profile says; limits and cache stay.
    pub fn retime(&mut self, profile: &Profile) {
        self.step_time = profile.step_time();
    }

    /// Requests in the engine, whatever their state.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.inbox.len() + self.waiting.len() + self.running.len()
    }

    /// Takes a request that reaches the server now; the engine has been advanced to `now`.
    pub fn submit(&mut self, request: LeanRequest, now: Time) {
        self.settle(now);
        let ready = self.frontend.read(request.prompt_tokens as usize, now);
        let slot = Slot {
            request,
            generated: 0,
            computed: 0,
            cached: 0,
            arrival: now,
            first_token: None,
            last_token: ready,
            scheduled: false,
            kept: None,
        };
        let place = match self.vacant.pop() {
            Some(place) => {
                self.slots[place as usize] = slot;
                place
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.queued_tokens += u64::from(request.prompt_tokens);
        self.inbox.push_back((ready, place));
        self.cut(self.next_ready());
    }

    /// When something happens next that can be seen from outside: no request begins to answer or
    /// leaves before. `None` if there is nothing to do. A later arrival can bring it forward.
    pub fn next_event(&mut self) -> Option<Time> {
        if self.run.is_none() {
            self.plan(Time::MAX);
        }
        self.run.map(|run| run.end())
    }

    /// Lets time pass until `to`: ends every step that ends by then, and starts every step that
    /// starts before.
    pub fn advance(&mut self, to: Time, sink: &mut impl FnMut(LeanEvent)) {
        loop {
            if let Some(run) = self.run {
                let end = run.end();
                if end > to {
                    return;
                }
                self.run = None;
                self.end_run(&run, end, sink);
            }
            if !self.plan(to) {
                return;
            }
        }
    }

    /// What the engine's metrics page says at `now`, to which it has been advanced.
    pub fn sample(&mut self, now: Time) -> LeanSample {
        self.settle(now);
        let (running, waiting, kv_blocks_used) = self.gauges;
        let kv_usage = kv_blocks_used as f64 / self.kv.total() as f64;
        self.sums.sample(running, waiting, kv_usage)
    }

    /// Seconds in which a step ran, up to `now`.
    #[must_use]
    pub fn busy_s(&self, now: Time) -> f64 {
        let current_ps = self.run.map_or(0, |run| now.since(run.start));
        secs_from_ps(self.sums.busy_ps + current_ps)
    }

    /// Prompt tokens of the requests that wait.
    #[must_use]
    pub fn queued_prompt_tokens(&self) -> u64 {
        self.queued_tokens
    }

    /// Ends the engine at once; returns the requests that it has not finished.
    #[must_use]
    pub fn kill(self) -> Vec<LeanRequest> {
        let inbox = self.inbox.iter().map(|(_, slot)| slot);
        let all = self.running.iter().chain(&self.waiting).chain(inbox);
        all.map(|&slot| self.slots[slot as usize].request).collect()
    }

    fn next_ready(&self) -> Option<Time> {
        self.inbox.front().map(|&(ready, _)| ready)
    }

    /// Lets the run end with the step after which the scheduler sees what is ready by then.
    fn cut(&mut self, ready: Option<Time>) {
        let (Some(run), Some(ready)) = (&mut self.run, ready) else { return };
        let span_ps = ready.since(run.start);
        if run.steps > 1 && run.end() > ready {
            let whole = run.times.fitting(span_ps, run.steps);
            let exact = run.times.sum_ps(whole) == u128::from(span_ps);
            run.steps = if exact { whole.max(1) } else { (whole + 1).min(run.steps) };
        }
    }

    /// Counts the whole steps of the run that have ended by `now`.
    fn settle(&mut self, now: Time) {
        let Some(run) = self.run else { return };
        if run.steps == 1 {
            return;
        }
        let done = run.times.fitting(now.since(run.start), run.steps - 1);
        if done == 0 {
            return;
        }
        let end = run.end_after(done);
        self.count_decodes(&run, done, end);
        self.write_gauges();
        // The next of its steps has begun.
        self.kv.take(self.due_blocks(0));
        let first_ps = run.times.first_ps + done as u64 * run.times.growth_ps;
        let times = Progression { first_ps, growth_ps: run.times.growth_ps };
        self.run = Some(Run { start: end, times, steps: run.steps - done });
    }

    /// Counts steps of a run in which nobody came or left, and takes the blocks of all but the first.
    fn count_decodes(&mut self, run: &Run, steps: usize, end: Time) {
        let blocks = (1..steps).map(|ahead| self.due_blocks(ahead)).sum();
        self.kv.take(blocks);
        self.steps += u32::try_from(steps).unwrap_or(u32::MAX);
        self.resident_tokens += self.decoding * steps;
        self.frontend.stream_steps(self.decoding, run.start, run.times, steps);
        // The first follows on the last step before the run, without a pause while any decode.
        self.sums.decoded(self.decoding, steps, end.since(self.last_end), end.since(run.start));
        self.last_end = end;
    }

    fn write_gauges(&mut self) {
        self.gauges = (self.running.len(), self.waiting.len(), self.kv.used());
    }
}

/// The end of a run.
impl Lean {
    fn end_run(&mut self, run: &Run, end: Time, sink: &mut impl FnMut(LeanEvent)) {
        self.sums.preemptions += std::mem::take(&mut self.preempted);
        let decoding = self.decoding;
        let promoted = self.running.len() - decoding;
        if promoted == 0 && decoding > 0 {
            self.count_decodes(run, run.steps, end);
        } else {
            self.steps += 1;
            self.resident_tokens += decoding;
            let gap_ps = end.since(self.last_end);
            self.last_end = end;
            let promoted = self.promote(end, sink);
            self.frontend.stream(decoding + promoted, end);
            self.sums.stepped(decoding, promoted, gap_ps, end.since(run.start));
        }
        while self.next_finish == self.steps {
            self.finish(end, sink);
        }
        self.write_gauges();
    }

    /// Lets those that have caught up decode; returns how many they are.
    fn promote(&mut self, at: Time, sink: &mut impl FnMut(LeanEvent)) -> usize {
        let mut promoted = 0;
        while let Some(&place) = self.running.get(self.decoding) {
            let slot = &mut self.slots[place as usize];
            if (slot.computed as usize) < slot.tokens() {
                break;
            }
            slot.generated += 1;
            let finish_at = self.steps + (slot.request.output_tokens - slot.generated);
            if slot.first_token.is_none() {
                slot.first_token = Some(at);
                self.sums.first_token(
                    slot.request.prompt_tokens,
                    slot.cached,
                    at.since(slot.arrival),
                );
                sink(LeanEvent::FirstToken { id: slot.request.id, at });
            } else {
                self.sums.resumed(at.since(slot.last_token));
            }
            slot.last_token = at;
            let computed = slot.computed as usize;
            let offset = self.offset(computed);
            self.by_offset[offset] += 1;
            self.finish_at[self.decoding] = finish_at;
            self.next_finish = self.next_finish.min(finish_at);
            self.decoding += 1;
            promoted += 1;
        }
        promoted
    }

    /// Takes out the oldest of those that have just generated their last token.
    fn finish(&mut self, at: Time, sink: &mut impl FnMut(LeanEvent)) {
        let Some(index) = self.finish_at.iter().position(|&step| step == self.steps) else {
            return;
        };
        let (_, computed) = self.progress(index);
        let offset = self.offset(computed);
        self.by_offset[offset] -= 1;
        self.decoding -= 1;
        self.finish_at.remove(index);
        let place = self.running.remove(index);
        self.refresh_next_finish();
        self.resident_tokens -= computed;
        self.kv.give(computed.div_ceil(self.block_tokens));
        let Slot { request, arrival, first_token, .. } = self.slots[place as usize];
        self.vacant.push(place);
        self.sums.finished(&request);
        let first_token = first_token.unwrap_or(at);
        sink(LeanEvent::Finished { id: request.id, arrival, first_token, at });
    }

    fn refresh_next_finish(&mut self) {
        self.next_finish = self.finish_at.iter().copied().min().unwrap_or(CATCHING_UP);
    }
}
