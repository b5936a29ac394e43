//! The KV cache: how many blocks are in use, and what the free ones still hold.
//!
//! Must not know who holds a block: the scheduler does.
//!
//! Free blocks form a queue, as in vLLM: freed ones join at its end and keep their content until
//! they are taken from its front. So a preempted request finds most of itself again, and a shared
//! prefix outlives its users for as long as there is room.

use std::collections::{BTreeMap, HashMap};

/// The KV blocks of an engine.
#[derive(Debug, Clone)]
pub(crate) struct KvBlocks {
    total: usize,
    used: usize,
    // Invariant: all free blocks, by the order in which they will be taken; no run is empty.
    queue: BTreeMap<u64, Run>,
    freed: u64,
    // Looked up by hash and never iterated, so the map's order cannot reach a result.
    segments: HashMap<u64, Segment>,
}

/// Free blocks that were freed together.
#[derive(Debug, Clone, Copy)]
struct Run {
    blocks: usize,
    holds: Content,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Nothing that anybody will ask for.
    Nothing,
    /// The leading blocks of a preempted request.
    Request,
    /// The segment of that hash, whole.
    Segment(u64),
}

/// A cached piece of a prompt.
#[derive(Debug, Clone, Copy)]
struct Segment {
    blocks: usize,
    users: usize,
    // Its run in the queue while there are no users.
    run: u64,
}

/// Blocks of a preempted request in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept(u64);

impl KvBlocks {
    /// `total` blocks, all free.
    pub(crate) fn new(total: usize) -> KvBlocks {
        let segments = HashMap::new();
        let mut kv = KvBlocks { total, used: total, queue: BTreeMap::new(), freed: 0, segments };
        kv.give(total);
        kv
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn free(&self) -> usize {
        self.total - self.used
    }

    /// Takes the first free blocks; the caller has checked that there are enough.
    pub(crate) fn take(&mut self, blocks: usize) {
        debug_assert!(blocks <= self.free(), "{blocks} blocks of {}", self.free());
        self.used += blocks;
        let mut missing = blocks;
        while missing > 0 {
            let Some(mut first) = self.queue.first_entry() else {
                return;
            };
            let run = first.get_mut();
            if let Content::Segment(hash) = run.holds {
                // A part of it is of no use to anybody.
                self.segments.remove(&hash);
                run.holds = Content::Nothing;
            }
            let taken = missing.min(run.blocks);
            missing -= taken;
            run.blocks -= taken;
            if run.blocks == 0 {
                first.remove();
            }
        }
    }

    /// Frees blocks whose content nobody will ask for.
    pub(crate) fn give(&mut self, blocks: usize) {
        if blocks == 0 {
            return;
        }
        if let Some(mut last) = self.queue.last_entry()
            && last.get().holds == Content::Nothing
        {
            last.get_mut().blocks += blocks;
            self.used -= blocks;
            return;
        }
        self.push(Run { blocks, holds: Content::Nothing });
    }

    /// Frees the leading blocks of a preempted request, which may want them again.
    pub(crate) fn keep(&mut self, blocks: usize) -> Option<Kept> {
        (blocks > 0).then(|| Kept(self.push(Run { blocks, holds: Content::Request })))
    }

    /// How many of the kept blocks are still there.
    pub(crate) fn kept(&self, kept: Kept) -> usize {
        self.queue.get(&kept.0).map_or(0, |run| run.blocks)
    }

    /// Takes kept blocks back.
    pub(crate) fn take_kept(&mut self, kept: Kept) {
        self.used += self.queue.remove(&kept.0).map_or(0, |run| run.blocks);
    }

    /// How many of the leading `hashes` are cached, and how many free blocks using them takes.
    pub(crate) fn hit(&self, hashes: &[u64]) -> (usize, usize) {
        let hits = hashes.iter().map_while(|hash| self.segments.get(hash));
        hits.fold((0, 0), |(count, idle), segment| {
            (count + 1, idle + if segment.users == 0 { segment.blocks } else { 0 })
        })
    }

    /// Uses a cached segment, which [`KvBlocks::hit`] has found.
    pub(crate) fn share(&mut self, hash: u64) {
        if let Some(segment) = self.segments.get_mut(&hash) {
            segment.users += 1;
            if segment.users == 1 {
                self.queue.remove(&segment.run);
                self.used += segment.blocks;
            }
        }
    }

    /// Makes blocks that their holder has computed a segment that others can share. False if the
    /// segment is cached already; then the blocks stay the holder's own.
    pub(crate) fn publish(&mut self, hash: u64, blocks: usize) -> bool {
        if self.segments.contains_key(&hash) {
            return false;
        }
        self.segments.insert(hash, Segment { blocks, users: 1, run: 0 });
        true
    }

    /// Ends one use of each segment of a prompt. The last of them will be taken first, since it
    /// is of no use without those before it.
    pub(crate) fn release(&mut self, hashes: &[u64]) {
        for &hash in hashes.iter().rev() {
            let Some(segment) = self.segments.get_mut(&hash) else {
                continue;
            };
            segment.users -= 1;
            if segment.users == 0 {
                let blocks = segment.blocks;
                let run = self.push(Run { blocks, holds: Content::Segment(hash) });
                self.segments.insert(hash, Segment { blocks, users: 0, run });
            }
        }
    }

    /// Frees everything and forgets all content.
    pub(crate) fn reset(&mut self) {
        *self = KvBlocks::new(self.total);
    }

    /// Adds a run of blocks in use to the end of the queue.
    fn push(&mut self, run: Run) -> u64 {
        self.used -= run.blocks;
        self.freed += 1;
        self.queue.insert(self.freed, run);
        self.freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_segment_is_free_and_still_hit_until_its_room_is_needed() {
        let mut kv = KvBlocks::new(10);
        kv.take(6);
        assert!(kv.publish(1, 3));
        assert!(kv.publish(2, 3));
        kv.release(&[1, 2]);
        assert_eq!((kv.free(), kv.hit(&[1, 2, 3])), (10, (2, 6)));

        kv.take(5);
        assert_eq!(kv.hit(&[1, 2]), (1, 3), "the end of the prefix goes first");
        kv.take(3);
        assert_eq!(kv.hit(&[1]), (0, 0));
        kv.take(2);
        assert_eq!(kv.free(), 0);
    }

    #[test]
    fn a_segment_in_use_is_counted_once_and_never_given_up() {
        let mut kv = KvBlocks::new(4);
        kv.take(2);
        assert!(kv.publish(7, 2));
        assert!(!kv.publish(7, 2), "cached already");
        kv.share(7);
        assert_eq!(kv.used(), 2);
        kv.release(&[7]);
        assert_eq!(kv.used(), 2, "its first user is still there");
        kv.take(2);
        assert_eq!(kv.hit(&[7]), (1, 0));
    }

    #[test]
    fn kept_blocks_are_lost_from_their_end_after_those_freed_before() {
        let mut kv = KvBlocks::new(10);
        kv.take(8);
        let kept = kv.keep(5).unwrap();
        kv.give(1);
        assert_eq!((kv.free(), kv.kept(kept)), (8, 5));
        kv.take(3);
        assert_eq!(kv.kept(kept), 4, "two free blocks stood before them");
        kv.take_kept(kept);
        assert_eq!((kv.used(), kv.kept(kept)), (9, 0));
    }
}
