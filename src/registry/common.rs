//! What many workloads have alike, held once.
//!
//! Must not keep a value alive: whoever was given it does.

use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Different values that are known at once. A value is asked for only when it is new to a workload, and
/// most of a fleet have one of a few.
const MOST: usize = 16;

/// The values that were last asked for, the newest last.
#[derive(Debug)]
pub(super) struct InCommon<T>(Mutex<Vec<Weak<T>>>);

impl<T> Default for InCommon<T> {
    fn default() -> InCommon<T> {
        InCommon(Mutex::default())
    }
}

impl<T: PartialEq> InCommon<T> {
    /// The value, shared with whoever has an equal one.
    pub(super) fn share(&self, value: T) -> Arc<T> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(equal) = known.iter().filter_map(Weak::upgrade).find(|known| **known == value) {
            return equal;
        }
        known.retain(|known| known.strong_count() > 0);
        if known.len() == MOST {
            known.remove(0);
        }
        let value = Arc::new(value);
        known.push(Arc::downgrade(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_while_anybody_has_it() {
        let common = InCommon::default();
        let first = common.share("a".to_owned());
        let other = common.share("b".to_owned());
        assert!(Arc::ptr_eq(&first, &common.share("a".to_owned())));
        assert!(!Arc::ptr_eq(&first, &other));
        drop(first);
        assert!(common.0.lock().unwrap()[0].upgrade().is_none(), "it is not kept alive");
    }

    #[test]
    fn however_many_differ_only_the_newest_are_known() {
        let common = InCommon::default();
        let all: Vec<_> = (0..=MOST).map(|n| common.share(n)).collect();
        assert_eq!(common.0.lock().unwrap().len(), MOST);
        assert!(Arc::ptr_eq(&all[MOST], &common.share(MOST)));
        assert!(!Arc::ptr_eq(&all[0], &common.share(0)));
    }
}
