//! The requests that decode, counted instead of stepped one by one.
//!
//! Must not admit or preempt anybody.

use crate::engine::scheduler::{CATCHING_UP, Scheduler};

impl Scheduler {
    /// Ends a step: everything that was decoding has one more token.
    pub(crate) fn advance(&mut self, steps: usize) {
        self.steps += steps;
        self.resident_tokens += self.decoding() * steps;
    }

    /// How many more steps, up to `limit`, all can decode with the free blocks, and the blocks
    /// that these take.
    pub(crate) fn steps_with_blocks(&self, limit: usize) -> (usize, usize) {
        let mut free = self.kv.free();
        let decoding = self.decoding().max(1);
        let rounds = (free / decoding).min(limit / self.block_tokens);
        let mut steps = rounds * self.block_tokens;
        let mut blocks = rounds * decoding;
        free -= blocks;
        while steps < limit {
            let due = self.due_blocks(steps);
            if due > free {
                break;
            }
            free -= due;
            blocks += due;
            steps += 1;
        }
        (steps, blocks)
    }

    /// Steps until one of the decoding requests finishes.
    pub(crate) fn steps_to_finish(&self) -> usize {
        self.next_finish - self.steps
    }

    /// Lets those that have caught up decode; returns them, oldest first.
    pub(crate) fn promote(&mut self, promoted: &mut Vec<usize>) {
        promoted.clear();
        if self.catching_up == 0 {
            return;
        }
        for index in 0..self.running.len() {
            if self.finish_at[index] != CATCHING_UP {
                continue;
            }
            let slot = &mut self.slots[self.running[index]];
            if slot.computed < slot.tokens() {
                continue;
            }
            slot.served.generated_tokens += 1;
            let remaining = slot.request.output_tokens - slot.served.generated_tokens;
            let computed = slot.computed;
            self.finish_at[index] = self.steps + remaining as usize;
            let offset = self.offset(computed);
            self.by_offset[offset] += 1;
            self.catching_up -= 1;
            promoted.push(self.running[index]);
        }
        self.refresh_next_finish();
    }

    /// Takes a request that has just generated its last token out of the engine, the oldest first.
    pub(crate) fn pop_finished(&mut self) -> Option<usize> {
        if self.next_finish != self.steps {
            return None;
        }
        let index = self.finish_at.iter().position(|&step| step == self.steps)?;
        Some(self.remove_running(index))
    }

    /// The requests that decode, in order.
    pub(crate) fn decoding_ids(&self) -> impl Iterator<Item = u64> {
        let running = self.running.iter().zip(&self.finish_at);
        let decoding = running.filter(|&(_, &finish_at)| finish_at != CATCHING_UP);
        decoding.map(|(&slot, _)| self.slots[slot].request.id)
    }

    /// Turns a decoding request into one that catches up, with its state written out.
    pub(super) fn stop_decoding(&mut self, index: usize) {
        let offset = self.offset_of_decoding(index);
        self.by_offset[offset] -= 1;
        let (generated, computed) = self.progress_of_decoding(index);
        let slot = &mut self.slots[self.running[index]];
        slot.served.generated_tokens = generated;
        slot.served.last_token = self.last_step_end;
        slot.computed = computed;
        self.finish_at[index] = CATCHING_UP;
        self.catching_up += 1;
        self.refresh_next_finish();
    }

    /// Tokens that a decoding request has generated, and those whose KV is computed: all but the
    /// last of them.
    fn progress_of_decoding(&self, index: usize) -> (u32, usize) {
        let request = &self.slots[self.running[index]].request;
        // At most `output_tokens`, which fits.
        let remaining = u32::try_from(self.finish_at[index] - self.steps).unwrap_or(u32::MAX);
        let generated = request.output_tokens - remaining;
        (generated, request.prompt_tokens as usize + generated as usize - 1)
    }

    pub(super) fn offset_of_decoding(&self, index: usize) -> usize {
        self.offset(self.progress_of_decoding(index).1)
    }

    /// The place of a request with so many computed tokens in `by_offset`.
    fn offset(&self, computed: usize) -> usize {
        let block = self.block_tokens;
        (computed % block + block - self.steps % block) % block
    }

    /// The place in `by_offset` of those that fill their last block before the step that follows
    /// `steps_ahead` more steps: `offset + steps ≡ 0`.
    pub(super) fn due_offset(&self, steps_ahead: usize) -> usize {
        let block = self.block_tokens;
        (block - (self.steps + steps_ahead) % block) % block
    }

    pub(super) fn due_blocks(&self, steps_ahead: usize) -> usize {
        self.by_offset[self.due_offset(steps_ahead)]
    }

    fn refresh_next_finish(&mut self) {
        self.next_finish = self.finish_at.iter().copied().min().unwrap_or(CATCHING_UP);
    }
}
