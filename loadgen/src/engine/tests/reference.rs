//! The scheduler written down a second time, token by token and block by block, to compare with.
//!
//! Must not share code with the engine: it follows the text of vLLM's scheduler as directly as
//! possible, with no regard to speed. Of the prefix cache it has only what a preempted request
//! finds of itself.

use std::collections::VecDeque;

use super::Arrival;
use crate::engine::{Event, Profile, Time};

/// What is compared: request, moment, and whether it lost its blocks.
pub(super) type Brief = (u64, Time, &'static str);

pub(super) fn brief(event: &Event) -> Option<Brief> {
    match *event {
        Event::Token { id, at, .. } => Some((id, at, "token")),
        Event::Preempted { id, at } => Some((id, at, "preempted")),
        Event::Finished { .. } => None,
    }
}

#[derive(Debug, Clone)]
struct Item {
    id: u64,
    prompt: usize,
    output: usize,
    generated: usize,
    computed: usize,
    blocks: Vec<usize>,
    // Whether it decodes: from its first token on, until it is left out of a step or preempted.
    decodes: bool,
}

pub(super) struct Reference<'a> {
    profile: &'a Profile,
    // vLLM's free queue: taken from the front, freed to the back.
    free: VecDeque<usize>,
    // What each block holds: which block of which request.
    content: Vec<Option<(u64, usize)>>,
    running: Vec<Item>,
    waiting: VecDeque<Item>,
}

impl Reference<'_> {
    pub(super) fn new(profile: &Profile) -> Reference<'_> {
        let blocks = profile.kv.blocks - 1;
        Reference {
            profile,
            free: (0..blocks).collect(),
            content: vec![None; blocks],
            running: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    pub(super) fn play(&mut self, arrivals: &[Arrival]) -> Vec<Brief> {
        let most = self.profile.limits.max_model_tokens;
        let mut at_ms = 0;
        let mut coming: VecDeque<(Time, Item)> = VecDeque::new();
        for (id, &(gap_ms, prompt, output)) in (0..).zip(arrivals) {
            at_ms += gap_ms;
            let prompt = prompt as usize;
            let output = (output as usize).min(most - prompt);
            let item = Item {
                id,
                prompt,
                output,
                generated: 0,
                computed: 0,
                blocks: Vec::new(),
                decodes: false,
            };
            coming.push_back((Time::from_millis(at_ms), item));
        }
        let mut events = Vec::new();
        let mut now = Time::ZERO;
        loop {
            if self.running.is_empty() && self.waiting.is_empty() {
                let Some(&(arrival, _)) = coming.front() else {
                    return events;
                };
                now = now.max(arrival);
            }
            while coming.front().is_some_and(|&(arrival, _)| arrival <= now) {
                self.waiting.push_back(coming.pop_front().unwrap().1);
            }
            now = self.step(now, &mut events);
        }
    }

    /// One step; returns its end.
    fn step(&mut self, now: Time, events: &mut Vec<Brief>) -> Time {
        let limits = &self.profile.limits;
        let threshold = match limits.long_prefill_token_threshold {
            0 => usize::MAX,
            _ if self.running.len() + self.waiting.len() == 1 => usize::MAX,
            tokens => tokens,
        };
        let block = self.profile.kv.block_tokens;
        let resident: usize = self.running.iter().map(|item| item.computed).sum();
        let mut budget = limits.max_num_batched_tokens;
        let mut decodes = 0;
        let mut preempted = false;
        let mut scheduled = Vec::new();
        let mut index = 0;
        'running: while index < self.running.len() && budget > 0 {
            let item = self.running[index].clone();
            let wanted = item.prompt + item.generated - item.computed;
            let tokens = wanted.min(threshold).min(budget);
            let blocks = (item.computed + tokens).div_ceil(block) - item.blocks.len();
            while self.free.len() < blocks {
                let mut victim = self.running.pop().unwrap();
                let whole = victim.computed / block;
                for (place, &held) in victim.blocks.iter().enumerate() {
                    self.content[held] = (place < whole).then_some((victim.id, place));
                }
                self.free.extend(victim.blocks.drain(..).rev());
                (victim.computed, victim.decodes) = (0, false);
                events.push((victim.id, now, "preempted"));
                preempted = true;
                let lost_itself = victim.id == item.id;
                self.waiting.push_front(victim);
                if lost_itself {
                    break 'running;
                }
            }
            let taken = self.take(blocks);
            self.running[index].blocks.extend(taken);
            budget -= tokens;
            decodes += usize::from(item.decodes);
            scheduled.push((item.id, tokens));
            index += 1;
        }
        for left_out in index..self.running.len() {
            self.running[left_out].decodes = false;
        }
        while !preempted && budget > 0 && self.running.len() < limits.max_num_seqs {
            let Some(head) = self.waiting.front() else {
                break;
            };
            let wanted = head.prompt + head.generated;
            let watermark = if self.running.is_empty() { 0 } else { limits.watermark_blocks };
            if wanted.div_ceil(block) + watermark > self.free.len() {
                break;
            }
            let mut item = self.waiting.pop_front().unwrap();
            while let Some(at) = self.find(item.id, item.blocks.len()) {
                item.blocks.extend(self.free.remove(at));
            }
            item.computed = item.blocks.len() * block;
            let tokens = (wanted - item.computed).min(threshold).min(budget);
            let blocks = (item.computed + tokens).div_ceil(block) - item.blocks.len();
            item.blocks.extend(self.take(blocks));
            budget -= tokens;
            scheduled.push((item.id, tokens));
            self.running.push(item);
        }
        let all: usize = scheduled.iter().map(|&(_, tokens)| tokens).sum();
        let end =
            now.plus_ps(self.profile.step_time().of(all - decodes, decodes, resident).total_ps());
        self.execute(&scheduled, end, events);
        end
    }

    /// Computes what was scheduled, and frees what has finished.
    fn execute(&mut self, scheduled: &[(u64, usize)], end: Time, events: &mut Vec<Brief>) {
        let mut tokens_made = Vec::new();
        for &(id, tokens) in scheduled {
            let item = self.running.iter_mut().find(|item| item.id == id).unwrap();
            item.computed += tokens;
            if item.computed == item.prompt + item.generated {
                item.generated += 1;
                tokens_made.push((!item.decodes, (id, end, "token")));
                item.decodes = true;
            }
        }
        // The engine reports those that decode before those that have just caught up.
        tokens_made.sort_by_key(|&(caught_up, _)| caught_up);
        events.extend(tokens_made.into_iter().map(|(_, event)| event));
        self.running.retain(|item| {
            let done = item.generated == item.output;
            if done {
                item.blocks.iter().for_each(|&held| self.content[held] = None);
                self.free.extend(&item.blocks);
            }
            !done
        });
    }

    /// Takes blocks from the front of the free queue; what they held is overwritten.
    fn take(&mut self, blocks: usize) -> Vec<usize> {
        let taken: Vec<usize> = self.free.drain(..blocks).collect();
        taken.iter().for_each(|&block| self.content[block] = None);
        taken
    }

    /// Where in the free queue a block of a request lies.
    fn find(&self, id: u64, place: usize) -> Option<usize> {
        self.free.iter().position(|&block| self.content[block] == Some((id, place)))
    }
}
