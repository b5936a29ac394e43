//! Whose turn it is: endpoints that hang wait for each other and for nobody else.
//!
//! Must not ask anybody; it is told who was late.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

/// Endpoints that are known to be late. At more than that all are forgotten, those that are gone
/// among them; who still hangs is known again after one scrape.
const MAX_LATE: usize = 16_384;

/// The turns of all, and those of endpoints that did not answer in time when last asked.
#[derive(Debug)]
pub(super) struct Lanes {
    all: Arc<Semaphore>,
    late: Arc<Semaphore>,
    who_is_late: Mutex<HashSet<Box<str>>>,
}

impl Lanes {
    pub(super) fn new(turns: usize) -> Lanes {
        let late = Arc::new(Semaphore::new((turns / 4).max(1)));
        Lanes { all: Arc::new(Semaphore::new(turns)), late, who_is_late: Mutex::default() }
    }

    /// The lane of an endpoint.
    pub(super) fn of(&self, authority: &str) -> &Arc<Semaphore> {
        if self.lock().contains(authority) { &self.late } else { &self.all }
    }

    /// Whether an endpoint was late this time.
    pub(super) fn note(&self, authority: &str, is_late: bool) {
        let mut late = self.lock();
        if !is_late {
            late.remove(authority);
            return;
        }
        if late.len() >= MAX_LATE {
            late.clear();
        }
        late.insert(authority.into());
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Box<str>>> {
        // A panic while it was held would have left it whole: each change is one call.
        self.who_is_late.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
