//! Continuous batching as vLLM V1's scheduler does it: who computes how many tokens in a step.
//!
//! Must not know how long a step takes, nor what is counted.
//!
//! A step first serves what runs, in order, then admits from the head of the waiting queue while
//! tokens, sequences and KV blocks last. When a running request finds no block, the last of the
//! running loses all of its blocks and waits at the front; such a step admits nobody
//! [vLLM 0.32, `v1/core/sched/scheduler.py`; the `serve` defaults: chunked prefill on, first come
//! first served, the whole prompt must fit before its first chunk is admitted].
//!
//! Requests that decode differ only in where they stand, and each advances by one token a step.
//! So nothing is stored for them step by step: the step at which each will finish says how much
//! it has generated, and counting them by their place within a block says how many need a new
//! block in any step to come. A step of decodes costs the same for one request as for a thousand.

mod decoding;
mod slot;

use std::collections::VecDeque;

use crate::engine::Time;
use crate::engine::kv::{Kept, KvBlocks};
use crate::engine::profile::{Kv, Limits};
use crate::engine::request::{Prefix, Request};
use crate::engine::scheduler::slot::Slot;
use crate::engine::step_time::pairs;

/// Stands in `finish_at` for a request that is not decoding: it computes its prompt, or was left
/// out of a step.
const CATCHING_UP: usize = usize::MAX;

/// What one step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Batch {
    /// Requests that decode one token.
    pub(crate) decoding: usize,
    /// Prompt tokens, and tokens computed again after a preemption.
    pub(crate) prefill_tokens: usize,
    /// Pairs of a computed prompt token and one before it.
    pub(crate) pairs: u64,
    /// Tokens in the KV cache before the step.
    pub(crate) resident_tokens: usize,
    /// The step after it will hold the same requests, unless one finishes, a block is missing or
    /// something new is queued.
    pub(crate) steady: bool,
}

/// The scheduler's state.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    block_tokens: usize,
    prefix_caching: bool,
    slots: Vec<Slot>,
    vacant: Vec<usize>,
    waiting: VecDeque<usize>,
    deferred: Vec<usize>,
    // Invariant: parallel; the order of admission.
    running: Vec<usize>,
    finish_at: Vec<usize>,
    // Invariant: the least of `finish_at`.
    next_finish: usize,
    // Invariant: how many of `finish_at` are CATCHING_UP.
    catching_up: usize,
    // Invariant: decoding requests by (tokens computed − steps done) modulo the block. The place
    // of each is fixed while it decodes.
    by_offset: Vec<usize>,
    steps: usize,
    resident_tokens: usize,
    /// See [`Batch::pairs`], of the last call of [`Scheduler::schedule`].
    pairs: u64,
    pub(crate) kv: KvBlocks,
    /// Who was preempted by the last call of [`Scheduler::schedule`], in order.
    pub(crate) preempted: Vec<u64>,
    /// Tokens asked of the prefix cache and found in it since the last call of
    /// [`Scheduler::take_prefix_counts`].
    prefix_counts: (usize, usize),
    /// When the last step ended.
    pub(crate) last_step_end: Time,
}

impl Scheduler {
    pub(crate) fn new(limits: &Limits, kv: &Kv) -> Scheduler {
        Scheduler {
            limits: *limits,
            block_tokens: kv.block_tokens,
            prefix_caching: kv.prefix_caching,
            slots: Vec::new(),
            vacant: Vec::new(),
            waiting: VecDeque::new(),
            deferred: Vec::new(),
            running: Vec::new(),
            finish_at: Vec::new(),
            next_finish: CATCHING_UP,
            catching_up: 0,
            by_offset: vec![0; kv.block_tokens],
            steps: 0,
            resident_tokens: 0,
            pairs: 0,
            // One block of vLLM's pool is never used: the null block.
            kv: KvBlocks::new(kv.blocks - 1),
            preempted: Vec::new(),
            prefix_counts: (0, 0),
            last_step_end: Time::ZERO,
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn deferred(&self) -> usize {
        self.deferred.len()
    }

    pub(crate) fn resident_tokens(&self) -> usize {
        self.resident_tokens
    }

    pub(crate) fn decoding(&self) -> usize {
        self.running.len() - self.catching_up
    }

    /// The earliest moment at which a deferred request can be scheduled.
    pub(crate) fn next_deferred(&self) -> Option<Time> {
        self.deferred.iter().filter_map(|&slot| self.slots[slot].request.deferred_until).min()
    }

    /// Registers a request, without queueing it.
    pub(crate) fn register(&mut self, request: Request, arrival: Time, queued: Time) -> usize {
        let slot = Slot::new(request, arrival, queued);
        if let Some(place) = self.vacant.pop() {
            self.slots[place] = slot;
            return place;
        }
        self.slots.push(slot);
        self.slots.len() - 1
    }

    /// Puts a registered request at the end of the queue.
    pub(crate) fn enqueue(&mut self, slot: usize) {
        if self.slots[slot].request.deferred_until.is_some() {
            self.deferred.push(slot);
        } else {
            self.waiting.push_back(slot);
        }
    }

    /// Moves what need no longer be deferred to the front of the queue, the oldest first.
    pub(crate) fn undefer(&mut self, now: Time) {
        for index in (0..self.deferred.len()).rev() {
            let slot = self.deferred[index];
            if self.slots[slot].request.deferred_until.is_some_and(|until| until <= now) {
                self.slots[slot].request.deferred_until = None;
                self.deferred.remove(index);
                self.waiting.push_front(slot);
            }
        }
    }

    pub(crate) fn slot(&self, slot: usize) -> &Slot {
        &self.slots[slot]
    }

    /// Forgets a request that is in none of the queues (any more).
    pub(crate) fn vacate(&mut self, slot: usize) {
        self.vacant.push(slot);
    }

    /// Decides the next step, which starts now, and takes the blocks that it needs.
    pub(crate) fn schedule(&mut self, now: Time) -> Batch {
        self.preempted.clear();
        self.pairs = 0;
        let resident_tokens = self.resident_tokens;
        let in_scheduler = self.running.len() + self.waiting.len() + self.deferred.len();
        // A long prompt that is alone starves nobody.
        let chunk_limit = match self.limits.long_prefill_token_threshold {
            0 => usize::MAX,
            _ if in_scheduler == 1 => usize::MAX,
            threshold => threshold,
        };
        let mut budget = Budget { tokens: self.limits.max_num_batched_tokens, chunk_limit };
        self.serve_running(&mut budget);
        let decoding = self.decoding();
        let mut full = false;
        if self.preempted.is_empty() {
            full = self.admit(now, &mut budget);
        }
        let spent = self.limits.max_num_batched_tokens - budget.tokens;
        Batch {
            decoding,
            prefill_tokens: spent - decoding,
            pairs: self.pairs,
            resident_tokens,
            steady: self.catching_up == 0 && full && decoding > 0,
        }
    }

    pub(crate) fn slot_mut(&mut self, slot: usize) -> &mut Slot {
        &mut self.slots[slot]
    }

    /// Takes a request out of the engine, wherever it is.
    pub(crate) fn remove(&mut self, slot: usize) {
        if let Some(index) = self.running.iter().position(|&other| other == slot) {
            self.remove_running(index);
            return;
        }
        self.waiting.retain(|&other| other != slot);
        self.deferred.retain(|&other| other != slot);
    }

    /// The slot of a request that is queued or runs.
    pub(crate) fn find(&self, id: u64) -> Option<usize> {
        let mut all = self.running.iter().chain(&self.waiting).chain(&self.deferred).copied();
        all.find(|&slot| self.slots[slot].request.id == id)
    }

    /// Every slot, running ones first.
    pub(crate) fn all(&self) -> Vec<usize> {
        self.running.iter().chain(&self.waiting).chain(&self.deferred).copied().collect()
    }

    /// Tokens asked of the prefix cache and found in it since the last call.
    pub(crate) fn take_prefix_counts(&mut self) -> (usize, usize) {
        std::mem::take(&mut self.prefix_counts)
    }

    /// Gives each running request its tokens, the oldest first.
    fn serve_running(&mut self, budget: &mut Budget) {
        let last = self.running.len().saturating_sub(1);
        let only_last = self.catching_up == 1 && self.finish_at[last] == CATCHING_UP;
        let due = self.due_blocks(0);
        // The common case: nothing stands before a decode, and every block that is due is free.
        let mut index = 0;
        if (self.catching_up == 0 || only_last) && due <= self.kv.free() {
            self.kv.take(due);
            budget.tokens -= self.decoding();
            index = self.decoding();
        }
        while index < self.running.len() && budget.tokens > 0 {
            if !self.serve(index, budget) {
                return;
            }
            index += 1;
        }
        // Who finds the budget spent keeps its place and needs its token in a later step.
        for left_out in index..self.running.len() {
            if self.finish_at[left_out] != CATCHING_UP {
                self.stop_decoding(left_out);
            }
        }
    }

    /// Gives one running request its tokens; false if it lost its own blocks for want of others.
    fn serve(&mut self, index: usize, budget: &mut Budget) -> bool {
        let decodes = self.finish_at[index] != CATCHING_UP;
        let slot = &self.slots[self.running[index]];
        let (tokens, blocks) = if decodes {
            let is_due = self.offset_of_decoding(index) == self.due_offset(0);
            (1, usize::from(is_due))
        } else {
            let tokens = budget.chunk(slot.tokens() - slot.computed);
            let held = slot.computed.div_ceil(self.block_tokens);
            (tokens, (slot.computed + tokens).div_ceil(self.block_tokens) - held)
        };
        while self.kv.free() < blocks {
            let victim = self.running.len() - 1;
            self.preempt(victim);
            if victim == index {
                return false;
            }
        }
        self.kv.take(blocks);
        budget.tokens -= tokens;
        if !decodes {
            self.compute(self.running[index], tokens);
        }
        true
    }

    /// Admits from the head of the queue; false if only the token budget ended it.
    fn admit(&mut self, now: Time, budget: &mut Budget) -> bool {
        while let Some(&head) = self.waiting.front() {
            if self.running.len() >= self.limits.max_num_seqs {
                return true;
            }
            if budget.tokens == 0 {
                return false;
            }
            if !self.admit_head(head, now, budget) {
                // Nobody behind the head is tried.
                return true;
            }
        }
        true
    }

    fn admit_head(&mut self, head: usize, now: Time, budget: &mut Budget) -> bool {
        let slot = &self.slots[head];
        let target = slot.tokens();
        let hit = self.cached_prefix(slot);
        let tokens = budget.chunk(target - hit.tokens);
        let own_blocks = |tokens: usize| tokens.div_ceil(self.block_tokens) - hit.shared_blocks;
        let watermark = match self.running.len() {
            0 => 0,
            _ => self.limits.watermark_blocks,
        };
        if own_blocks(target) + hit.idle_blocks + watermark > self.kv.free() {
            return false;
        }
        let blocks = own_blocks(hit.tokens + tokens);
        let slot = &mut self.slots[head];
        if slot.served.scheduled.is_none() {
            slot.served.scheduled = Some(now);
            slot.served.cached_tokens = u32::try_from(hit.tokens).unwrap_or(u32::MAX);
            if self.prefix_caching {
                self.prefix_counts.0 += target;
                self.prefix_counts.1 += hit.tokens;
            }
        }
        slot.computed = hit.tokens;
        slot.shared_blocks = hit.shared_blocks;
        slot.segments_seen = hit.segments;
        if let Prefix::Segments { hashes, .. } = &slot.request.prefix {
            slot.shared.extend(hashes.iter().take(hit.segments));
            slot.shared.iter().for_each(|&hash| self.kv.share(hash));
        }
        if let Some(kept) = hit.kept {
            self.kv.take_kept(kept);
        }
        slot.kept = None;
        self.kv.take(blocks - hit.kept_blocks);
        self.resident_tokens += hit.tokens;
        self.waiting.pop_front();
        self.running.push(head);
        self.finish_at.push(CATCHING_UP);
        self.catching_up += 1;
        budget.tokens -= tokens;
        self.compute(head, tokens);
        true
    }

    /// What of a request's tokens the prefix cache holds.
    fn cached_prefix(&self, slot: &Slot) -> Hit {
        if !self.prefix_caching {
            return Hit::default();
        }
        // One token at least is computed, or there would be nothing to sample from.
        let most = (slot.request.prompt_tokens as usize).min(slot.tokens() - 1);
        match &slot.request.prefix {
            Prefix::Unknown => self.kept_prefix(slot, 0),
            Prefix::Cached(tokens) => {
                self.kept_prefix(slot, most.min(*tokens as usize) / self.block_tokens)
            }
            Prefix::Segments { tokens, hashes } => {
                let length = *tokens as usize;
                let usable = hashes.len().min(most / length);
                let (segments, idle_blocks) = self.kv.hit(&hashes[..usable]);
                let tokens = segments * length;
                let shared_blocks = tokens / self.block_tokens;
                Hit { tokens, segments, shared_blocks, idle_blocks, ..Hit::default() }
            }
        }
    }

    /// What a request finds of itself after a preemption, or else the blocks known to be cached.
    fn kept_prefix(&self, slot: &Slot, cached_blocks: usize) -> Hit {
        let kept = slot.kept.map_or(0, |kept| self.kv.kept(kept));
        if kept == 0 || kept < cached_blocks {
            return Hit { tokens: cached_blocks * self.block_tokens, ..Hit::default() };
        }
        let tokens = kept * self.block_tokens;
        Hit { tokens, kept: slot.kept, kept_blocks: kept, ..Hit::default() }
    }

    /// Computes tokens of a request that has the blocks for them.
    fn compute(&mut self, slot: usize, tokens: usize) {
        self.resident_tokens += tokens;
        let slot = &mut self.slots[slot];
        self.pairs = self.pairs.saturating_add(pairs(slot.computed, tokens));
        slot.computed += tokens;
        let Prefix::Segments { tokens: length, hashes } = &slot.request.prefix else {
            return;
        };
        if !self.prefix_caching {
            return;
        }
        let length = *length as usize;
        let whole = slot.computed.min(slot.request.prompt_tokens as usize) / length;
        let blocks = length / self.block_tokens;
        for &hash in hashes.iter().take(whole).skip(slot.segments_seen) {
            if self.kv.publish(hash, blocks) {
                slot.shared.push(hash);
                slot.shared_blocks += blocks;
            }
        }
        slot.segments_seen = slot.segments_seen.max(whole);
    }

    /// Takes all blocks of the last running request and lets it wait at the front.
    fn preempt(&mut self, index: usize) {
        let slot = self.running[index];
        self.take_from_running(index, self.prefix_caching);
        self.slots[slot].served.preemptions += 1;
        self.preempted.push(self.slots[slot].request.id);
        self.waiting.push_front(slot);
    }

    fn remove_running(&mut self, index: usize) -> usize {
        let slot = self.running[index];
        self.take_from_running(index, false);
        slot
    }

    /// Takes a request off the running list and frees all that it holds; `keep` if it comes back.
    fn take_from_running(&mut self, index: usize, keep: bool) {
        if self.finish_at[index] != CATCHING_UP {
            self.stop_decoding(index);
        }
        self.finish_at.remove(index);
        self.catching_up -= 1;
        let slot = &mut self.slots[self.running.remove(index)];
        let own_blocks = slot.computed.div_ceil(self.block_tokens) - slot.shared_blocks;
        self.resident_tokens -= slot.computed;
        // What follows a shared prefix could only be found again together with it.
        let whole_blocks = slot.computed / self.block_tokens;
        let kept_blocks = if keep && slot.shared_blocks == 0 { whole_blocks } else { 0 };
        self.kv.give(own_blocks - kept_blocks);
        slot.kept = self.kv.keep(kept_blocks);
        slot.computed = 0;
        slot.shared_blocks = 0;
        self.kv.release(&slot.shared);
        slot.shared.clear();
    }
}

/// What a step may still compute.
struct Budget {
    tokens: usize,
    chunk_limit: usize,
}

impl Budget {
    fn chunk(&self, wanted: usize) -> usize {
        wanted.min(self.chunk_limit).min(self.tokens)
    }
}

/// What the prefix cache holds of a request.
#[derive(Debug, Default)]
struct Hit {
    tokens: usize,
    segments: usize,
    /// Blocks of the segments: shared, not the request's own.
    shared_blocks: usize,
    /// Those of them that nobody uses now.
    idle_blocks: usize,
    /// What is left of the request itself since it was preempted.
    kept: Option<Kept>,
    kept_blocks: usize,
}
