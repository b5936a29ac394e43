//! The KV cache as a count of blocks, and the prefix cache that lives in its free part.
//!
//! Must not know who holds a block: the scheduler does.

use std::collections::{BTreeMap, HashMap};

/// The KV blocks of an engine.
#[derive(Debug, Clone)]
pub(crate) struct KvBlocks {
    total: usize,
    used: usize,
    // Segments are looked up by hash and never iterated, so the map's order cannot reach a result.
    segments: HashMap<u64, Segment>,
    // Invariant: the hashes of segments without users, by the order in which they are given up.
    idle: BTreeMap<u64, u64>,
    // Invariant: blocks of idle segments; `settle` keeps it at most `free()`.
    idle_blocks: usize,
    releases: u64,
}

/// A cached piece of a prompt, all blocks of it.
#[derive(Debug, Clone)]
struct Segment {
    blocks: usize,
    users: usize,
    // The key in `idle` while there are no users.
    released: u64,
}

impl KvBlocks {
    /// `total` blocks, all free.
    pub(crate) fn new(total: usize) -> KvBlocks {
        KvBlocks {
            total,
            used: 0,
            segments: HashMap::new(),
            idle: BTreeMap::new(),
            idle_blocks: 0,
            releases: 0,
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Blocks that can be taken, those of idle segments included.
    pub(crate) fn free(&self) -> usize {
        self.total - self.used
    }

    /// Takes free blocks; the caller has checked that there are enough.
    pub(crate) fn take(&mut self, blocks: usize) {
        self.used += blocks;
        debug_assert!(self.used <= self.total, "took {blocks} blocks too many");
        self.settle();
    }

    /// Gives blocks back.
    pub(crate) fn give(&mut self, blocks: usize) {
        self.used -= blocks;
    }

    /// Takes note that nobody holds a block any more.
    pub(crate) fn give_all(&mut self) {
        self.used = 0;
    }

    /// How many of the leading `hashes` are cached, and how many free blocks using them takes.
    pub(crate) fn hit(&self, hashes: &[u64]) -> (usize, usize) {
        let hits = hashes.iter().map_while(|hash| self.segments.get(hash));
        hits.fold((0, 0), |(count, idle), segment| {
            (
                count + 1,
                idle + if segment.users == 0 {
                    segment.blocks
                } else {
                    0
                },
            )
        })
    }

    /// Uses a cached segment, which [`KvBlocks::hit`] has found.
    pub(crate) fn share(&mut self, hash: u64) {
        if let Some(segment) = self.segments.get_mut(&hash) {
            segment.users += 1;
            if segment.users == 1 {
                self.idle.remove(&segment.released);
                self.idle_blocks -= segment.blocks;
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
        self.segments.insert(
            hash,
            Segment {
                blocks,
                users: 1,
                released: 0,
            },
        );
        true
    }

    /// Ends one use of each segment of a prompt. The last of them is given up first, since it is
    /// of no use without those before it.
    pub(crate) fn release(&mut self, hashes: &[u64]) {
        for &hash in hashes.iter().rev() {
            let Some(segment) = self.segments.get_mut(&hash) else {
                continue;
            };
            segment.users -= 1;
            if segment.users == 0 {
                segment.released = self.releases;
                self.idle.insert(self.releases, hash);
                self.releases += 1;
                self.idle_blocks += segment.blocks;
                self.used -= segment.blocks;
            }
        }
    }

    /// Forgets every idle segment.
    pub(crate) fn clear_idle(&mut self) {
        for hash in std::mem::take(&mut self.idle).into_values() {
            self.segments.remove(&hash);
        }
        self.idle_blocks = 0;
    }

    /// Gives up idle segments until the rest fits into the free blocks.
    fn settle(&mut self) {
        while self.idle_blocks > self.free() {
            let Some((_, hash)) = self.idle.pop_first() else {
                return;
            };
            if let Some(segment) = self.segments.remove(&hash) {
                self.idle_blocks -= segment.blocks;
            }
        }
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
}
