//! What a request's answer waits for: how many tokens there are, and whether there will be more.
//!
//! Must not lock: the engine publishes while it holds its own lock.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use slab::Slab;

use crate::engine::{Event, FinishReason, ReplicaEvent, Watch};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// By the engine's own word.
    Finished(FinishReason),
    /// The engine died.
    Crashed,
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Progress {
    /// Tokens made so far; before the end only for a request whose tokens are watched.
    pub(super) tokens: u32,
    pub(super) end: Option<End>,
}

const ENDS: [End; 4] = [
    End::Finished(FinishReason::Stop),
    End::Finished(FinishReason::Length),
    End::Finished(FinishReason::Abort),
    End::Crashed,
];

impl Progress {
    /// In one word, so that the last token is never seen without the end.
    fn pack(self) -> u64 {
        let end = self.end.and_then(|end| ENDS.iter().position(|known| *known == end));
        (u64::from(self.tokens) << 8) | end.map_or(0, |index| index as u64 + 1)
    }

    fn unpack(packed: u64) -> Progress {
        let [end, ..] = packed.to_le_bytes();
        Progress {
            tokens: u32::try_from(packed >> 8).unwrap_or(u32::MAX),
            end: usize::from(end).checked_sub(1).and_then(|index| ENDS.get(index).copied()),
        }
    }
}

/// The progress of one request, with one reader.
#[derive(Debug, Default)]
pub(super) struct Feed {
    progress: AtomicU64,
    reader: AtomicWaker,
}

impl Feed {
    /// Waits for more than `seen` tokens, or the end.
    pub(super) fn poll_beyond(&self, seen: u32, context: &mut Context<'_>) -> Poll<Progress> {
        // Registered first, so that what is published in between wakes.
        self.reader.register(context.waker());
        let progress = Progress::unpack(self.progress.load(Ordering::Acquire));
        if progress.tokens > seen || progress.end.is_some() {
            Poll::Ready(progress)
        } else {
            Poll::Pending
        }
    }

    /// Waits for the end.
    pub(super) async fn ended(&self) -> (u32, End) {
        poll_fn(|context| {
            self.reader.register(context.waker());
            let Progress { tokens, end } = Progress::unpack(self.progress.load(Ordering::Acquire));
            end.map_or(Poll::Pending, |end| Poll::Ready((tokens, end)))
        })
        .await
    }

    fn publish(&self, progress: Progress) {
        self.progress.store(progress.pack(), Ordering::Release);
        self.reader.wake();
    }
}

/// A request in the server.
#[derive(Debug)]
struct Entry {
    id: u64,
    feed: Arc<Feed>,
    rank: usize,
    progress: Progress,
    streams: bool,
    is_dirty: bool,
}

/// Every request of a server, by the engine's id for it.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    entries: Slab<Entry>,
    serial: u32,
    streaming: usize,
    // Keys of entries whose progress has not been published.
    dirty: Vec<usize>,
}

impl Feeds {
    /// The id that the next request gets. Ids are not used again, since an engine keeps a request
    /// that was aborted until its step has ended: the low half is the place here, the high half
    /// a running number.
    pub(super) fn next_id(&self) -> u64 {
        (u64::from(self.serial) << 32) | self.entries.vacant_key() as u64
    }

    /// Adds the request with the id that [`Feeds::next_id`] told.
    pub(super) fn add(&mut self, rank: usize, streams: bool) -> Arc<Feed> {
        let feed = Arc::new(Feed::default());
        let entry = Entry {
            id: self.next_id(),
            feed: Arc::clone(&feed),
            rank,
            progress: Progress::default(),
            streams,
            is_dirty: false,
        };
        self.serial = self.serial.wrapping_add(1);
        self.streaming += usize::from(streams);
        self.entries.insert(entry);
        feed
    }

    /// Which tokens of the engines matter.
    pub(super) fn watch(&self) -> Watch {
        if self.streaming > 0 { Watch::EveryToken } else { Watch::FirstToken }
    }

    /// Takes in what happened in an engine.
    pub(super) fn take(&mut self, event: ReplicaEvent) {
        match event {
            ReplicaEvent::Engine(Event::Token { id, .. }) => {
                let key = key_of(id);
                if let Some(entry) = self.entries.get_mut(key).filter(|entry| entry.id == id) {
                    entry.progress.tokens += 1;
                    if !entry.is_dirty {
                        entry.is_dirty = true;
                        self.dirty.push(key);
                    }
                }
            }
            ReplicaEvent::Engine(Event::Finished { id, reason, served, .. }) => {
                if let Some(mut entry) = self.remove(id) {
                    entry.progress.tokens = served.generated_tokens;
                    entry.progress.end = Some(End::Finished(reason));
                    entry.feed.publish(entry.progress);
                }
            }
            ReplicaEvent::Engine(Event::Preempted { .. }) | ReplicaEvent::Changed { .. } => {}
        }
    }

    /// Lets the readers see what was taken in.
    pub(super) fn publish(&mut self) {
        for key in self.dirty.drain(..) {
            if let Some(entry) = self.entries.get_mut(key).filter(|entry| entry.is_dirty) {
                entry.is_dirty = false;
                entry.feed.publish(entry.progress);
            }
        }
    }

    /// Forgets a request; returns the rank that served it, or `None` if it has ended.
    pub(super) fn forget(&mut self, id: u64) -> Option<usize> {
        self.remove(id).map(|entry| entry.rank)
    }

    /// Ends every request: its engine is dead.
    pub(super) fn crash(&mut self) {
        for mut entry in self.drain() {
            entry.progress.end = Some(End::Crashed);
            entry.feed.publish(entry.progress);
        }
    }

    /// Forgets every request without a word to its reader.
    pub(super) fn abandon(&mut self) {
        drop(self.drain());
    }

    fn drain(&mut self) -> Vec<Entry> {
        self.streaming = 0;
        self.dirty.clear();
        std::mem::take(&mut self.entries).into_iter().map(|(_, entry)| entry).collect()
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let key = key_of(id);
        self.entries.get(key).filter(|entry| entry.id == id)?;
        let entry = self.entries.remove(key);
        self.streaming -= usize::from(entry.streams);
        Some(entry)
    }
}

fn key_of(id: u64) -> usize {
    let [a, b, c, d, ..] = id.to_le_bytes();
    u32::from_le_bytes([a, b, c, d]) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_survives_its_packing() {
        for end in ENDS.into_iter().map(Some).chain([None]) {
            for tokens in [0, 1, 255, u32::MAX] {
                let progress = Progress { tokens, end };
                assert_eq!(Progress::unpack(progress.pack()), progress);
            }
        }
    }

    #[test]
    fn an_id_is_not_used_again_for_another_request() {
        let mut feeds = Feeds::default();
        let first = feeds.next_id();
        feeds.add(0, true);
        assert_eq!(feeds.forget(first), Some(0));
        let second = feeds.next_id();
        feeds.add(0, false);
        assert_ne!(first, second);
        assert_eq!((feeds.forget(first), feeds.watch()), (None, Watch::FirstToken));
    }
}
