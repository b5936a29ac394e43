//! What the next step of the lean engine holds: the scheduler's rules once more.
//!
//! Must not end a step. See [`crate::engine::scheduler`] for the rules and their source.

use crate::engine::lean::{CATCHING_UP, Lean, Run, Slot};
use crate::engine::step_time::{Progression, pairs};
use crate::engine::time::Time;

impl Lean {
    /// Starts the next run if its first step starts before `to`.
    pub(super) fn plan(&mut self, to: Time) -> bool {
        let at_once = self.running.len() + self.waiting.len() > 0;
        let ready = if at_once { Some(Time::ZERO) } else { self.next_ready() };
        let Some(ready) = ready else { return false };
        let start = self.last_end.max(ready);
        if start >= to {
            return false;
        }
        while let Some(&(ready, slot)) = self.inbox.front()
            && ready <= start
        {
            self.inbox.pop_front();
            self.waiting.push_back(slot);
        }
        let resident = self.resident_tokens;
        self.pairs = 0;
        let mut budget = self.limits.max_num_batched_tokens;
        let whole = self.serve_running(&mut budget);
        let full = whole && self.admit(start, &mut budget);
        let prefill = self.limits.max_num_batched_tokens - budget - self.decoding;
        let work = self.step_time.of(prefill, self.decoding, resident);
        let first_ps = self.step_time.with_attention(work, self.pairs).total_ps();
        let steady = full && prefill == 0 && self.decoding > 0;
        let (mut growth_ps, mut steps) = (0, 1);
        if steady {
            let piece = self.step_time.resident.piece(resident);
            growth_ps = piece.slope_ps.saturating_mul(self.decoding as u64);
            let on_piece = (piece.end - resident) / self.decoding + 1;
            let left = (self.next_finish - self.steps) as usize;
            steps = self.steps_with_blocks(left.min(on_piece));
        }
        self.run = Some(Run { start, times: Progression { first_ps, growth_ps }, steps });
        self.cut(self.next_ready());
        true
    }

    /// Gives each running request its tokens, the oldest first; false if one lost its blocks.
    fn serve_running(&mut self, budget: &mut usize) -> bool {
        let due = self.due_blocks(0);
        if due > self.kv.free() && !self.serve_in_need() {
            *budget -= self.decoding;
            return false;
        }
        if due <= self.kv.free() {
            self.kv.take(due);
        }
        *budget -= self.decoding;
        let Some(&last) = self.running.get(self.decoding) else { return true };
        let slot = &self.slots[last as usize];
        let computed = slot.computed as usize;
        let tokens = (slot.tokens() - computed).min(*budget);
        let held = computed.div_ceil(self.block_tokens);
        let blocks = (computed + tokens).div_ceil(self.block_tokens) - held;
        if blocks > self.kv.free() {
            self.preempt();
            return false;
        }
        self.kv.take(blocks);
        *budget -= tokens;
        self.compute(last, tokens);
        true
    }

    /// Gives those who decode their blocks one by one, taking them from the last when none is
    /// free; always false, for at least one loses its own.
    fn serve_in_need(&mut self) -> bool {
        let mut index = 0;
        while index < self.decoding {
            if self.offset_of(index) == self.due_offset(0) {
                while self.kv.free() == 0 {
                    self.preempt();
                    if self.running.len() == index {
                        return false;
                    }
                }
                self.kv.take(1);
            }
            index += 1;
        }
        // Who catches up has been the first to lose its blocks.
        false
    }

    /// Admits from the head of the queue; false if only the token budget ended it.
    fn admit(&mut self, now: Time, budget: &mut usize) -> bool {
        while let Some(&head) = self.waiting.front() {
            if self.running.len() >= self.limits.max_num_seqs {
                return true;
            }
            if *budget == 0 {
                return false;
            }
            if !self.admit_head(head, now, budget) {
                return true;
            }
        }
        true
    }

    fn admit_head(&mut self, head: u32, now: Time, budget: &mut usize) -> bool {
        let slot = self.slots[head as usize];
        let (hit, kept_blocks) = self.cached_prefix(&slot);
        let target = slot.tokens();
        let tokens = (target - hit).min(*budget);
        let watermark = if self.running.is_empty() { 0 } else { self.limits.watermark_blocks };
        if target.div_ceil(self.block_tokens) + watermark > self.kv.free() {
            return false;
        }
        if let Some(kept) = slot.kept.filter(|_| kept_blocks > 0) {
            self.kv.take_kept(kept);
        }
        self.kv.take((hit + tokens).div_ceil(self.block_tokens) - kept_blocks);
        let slot = &mut self.slots[head as usize];
        let hit_tokens = u32::try_from(hit).unwrap_or(u32::MAX);
        if !slot.scheduled {
            slot.scheduled = true;
            slot.cached = hit_tokens;
            self.sums.scheduled(now.since(slot.last_token));
        }
        slot.computed = hit_tokens;
        slot.kept = None;
        self.queued_tokens -= u64::from(slot.request.prompt_tokens);
        self.resident_tokens += hit;
        self.waiting.pop_front();
        self.running.push(head);
        self.finish_at.push(CATCHING_UP);
        *budget -= tokens;
        self.compute(head, tokens);
        true
    }

    /// Tokens of a request that the prefix cache holds, and how many blocks of them are its own
    /// from before a preemption.
    fn cached_prefix(&self, slot: &Slot) -> (usize, usize) {
        if !self.prefix_caching {
            return (0, 0);
        }
        // One token at least is computed, or there would be nothing to sample from.
        let most = (slot.request.prompt_tokens as usize).min(slot.tokens() - 1);
        let cached = most.min(slot.request.cached_tokens as usize) / self.block_tokens;
        let kept = slot.kept.map_or(0, |kept| self.kv.kept(kept));
        if kept == 0 || kept < cached {
            return (cached * self.block_tokens, 0);
        }
        (kept * self.block_tokens, kept)
    }

    fn compute(&mut self, slot: u32, tokens: usize) {
        self.resident_tokens += tokens;
        let slot = &mut self.slots[slot as usize];
        self.pairs = self.pairs.saturating_add(pairs(slot.computed as usize, tokens));
        slot.computed += u32::try_from(tokens).unwrap_or(u32::MAX);
    }

    /// Takes all blocks of the last running request and lets it wait at the front.
    fn preempt(&mut self) {
        let index = self.running.len() - 1;
        let place = self.running[index];
        if index < self.decoding {
            let (generated, computed) = self.progress(index);
            let offset = self.offset(computed);
            self.by_offset[offset] -= 1;
            self.decoding -= 1;
            let slot = &mut self.slots[place as usize];
            slot.generated = generated;
            slot.computed = u32::try_from(computed).unwrap_or(u32::MAX);
            slot.last_token = self.last_end;
        }
        self.running.pop();
        self.finish_at.pop();
        self.refresh_next_finish();
        let slot = &mut self.slots[place as usize];
        let computed = slot.computed as usize;
        self.resident_tokens -= computed;
        let whole = if self.prefix_caching { computed / self.block_tokens } else { 0 };
        self.kv.give(computed.div_ceil(self.block_tokens) - whole);
        slot.kept = self.kv.keep(whole);
        slot.computed = 0;
        self.queued_tokens += u64::from(slot.request.prompt_tokens);
        self.waiting.push_front(place);
        self.preempted += 1;
    }
}

/// Blocks of those that decode, counted instead of stepped one by one.
impl Lean {
    /// Tokens that a decoding request has generated, and those whose KV is computed.
    pub(super) fn progress(&self, index: usize) -> (u32, usize) {
        let request = &self.slots[self.running[index] as usize].request;
        let generated = request.output_tokens - (self.finish_at[index] - self.steps);
        (generated, request.prompt_tokens as usize + generated as usize - 1)
    }

    fn offset_of(&self, index: usize) -> usize {
        self.offset(self.progress(index).1)
    }

    pub(super) fn offset(&self, computed: usize) -> usize {
        let block = self.block_tokens;
        (computed % block + block - self.steps as usize % block) % block
    }

    fn due_offset(&self, steps_ahead: usize) -> usize {
        let block = self.block_tokens;
        (block - (self.steps as usize + steps_ahead) % block) % block
    }

    pub(super) fn due_blocks(&self, steps_ahead: usize) -> usize {
        self.by_offset[self.due_offset(steps_ahead)]
    }

    /// How many steps, up to `limit` and at least the first, which has its blocks, all can decode
    /// with the free blocks.
    fn steps_with_blocks(&self, limit: usize) -> usize {
        let mut free = self.kv.free();
        // Each needs at most one block in so many steps.
        if free / self.decoding >= limit.div_ceil(self.block_tokens) {
            return limit;
        }
        for steps in 1..limit {
            let due = self.due_blocks(steps);
            if due > free {
                return steps;
            }
            free -= due;
        }
        limit
    }
}
