//! Who may use the cluster at the same time: those that need it whole, or those that break a part of it.
//!
//! Must not order anybody: who comes first is served, and whoever is of the same kind goes along.

use std::sync::{Condvar, Mutex, PoisonError};

/// What a scenario needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// Every part works.
    Whole,
    /// A part may be gone for a while.
    Broken,
}

/// The cluster, shared by guests of one kind at a time.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    taken: Mutex<Option<(Room, usize)>>,
    left: Condvar,
}

/// One that is in, until dropped.
#[derive(Debug)]
pub(crate) struct Guest<'a>(&'a Rooms);

impl Rooms {
    /// Waits until no guest of the other kind is in.
    pub(crate) fn enter(&self, room: Room) -> Guest<'_> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_others = |taken: &mut Option<(Room, usize)>| taken.is_some_and(|it| it.0 != room);
        let free = self.left.wait_while(taken, is_others);
        let mut taken = free.unwrap_or_else(PoisonError::into_inner);
        let guests = taken.map_or(0, |(_, guests)| guests);
        *taken = Some((room, guests + 1));
        Guest(self)
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *taken = taken.and_then(|(room, guests)| (guests > 1).then(|| (room, guests - 1)));
        self.0.left.notify_all();
    }
}
