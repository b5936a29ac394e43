//! The triggers of one workload: those that the inventory lists, and those that only calls bring.
//!
//! Readers load an immutable list; writers replace it. Must not wait for anybody.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};

use super::key::{self, TrackerKey};
use super::tracker::Tracker;
use crate::clock::Clock;
use crate::decision::Moment;
use crate::inventory::Workload;
use crate::trigger::{self, Faults, Policy};

/// The trackers of one workload.
#[derive(Debug, Default)]
pub(super) struct Variants {
    list: ArcSwap<Vec<Arc<Tracker>>>,
    // What calls have brought and was refused since the inventory last changed the triggers, the
    // newest last; `None` where nothing was, as nearly everywhere.
    refused: ArcSwapOption<Vec<(u64, Faults)>>,
}

/// How many refusals of one workload are remembered: each is logged once while it is among them.
const MAX_REFUSED: usize = 4;

/// What a known workload has of triggers that are not tracked.
#[derive(Debug, Default)]
pub struct Untracked {
    /// The faults of each that is refused.
    pub refused: Vec<Faults>,
    /// Whether one has a `FromEnv` key, whose value comes with KEDA's calls alone.
    pub has_unresolved: bool,
}

/// A trigger to track.
pub(super) struct New<'a> {
    pub(super) workload: &'a Arc<Workload>,
    pub(super) trigger: u64,
    pub(super) policy: Arc<Policy>,
    /// The metadata, where a call brings it and the inventory does not list it.
    pub(super) brought_by: Option<Arc<Vec<(String, String)>>>,
}

/// The triggers that the inventory lists, by fingerprint; the policy is there only if it can be
/// known without a call, which resolves `FromEnv` keys.
pub(super) fn listed(workload: &Workload) -> Vec<(u64, Option<Policy>)> {
    let policy = |metadata: &BTreeMap<String, String>| {
        if is_unresolved(metadata) { None } else { trigger::parse(entries(metadata)).ok() }
    };
    workload
        .triggers
        .iter()
        .filter_map(|metadata| Some((key::fingerprint(entries(metadata))?, policy(metadata))))
        .collect()
}

/// Whether a value is in the environment of the scale target, so that only a call brings it.
fn is_unresolved(metadata: &BTreeMap<String, String>) -> bool {
    metadata.keys().any(|key| key.ends_with(trigger::FROM_ENV) && !trigger::is_keda_key(key))
}

fn entries(metadata: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    metadata.iter().map(|(key, value)| (key.as_str(), value.as_str()))
}

impl Variants {
    pub(super) fn all(&self) -> Guard<Arc<Vec<Arc<Tracker>>>> {
        self.list.load()
    }

    pub(super) fn get(&self, trigger: u64) -> Option<Arc<Tracker>> {
        find(&self.list.load(), trigger)
    }

    /// Adds a trigger, or returns the tracker that it already has, and whether it is new; `None` if
    /// there are `limit` others. One that the inventory lists takes the place of the one that has not been used for
    /// longest among those that only calls have brought.
    pub(super) fn add(
        &self,
        new: New<'_>,
        clock: Clock,
        limit: usize,
    ) -> Option<(Arc<Tracker>, bool)> {
        let (mut added, mut displaced) = (None, None);
        self.list.rcu(|list| {
            added = find(list, new.trigger).map(|known| (known, false));
            displaced = None;
            if added.is_some() {
                return Arc::clone(list);
            }
            if list.len() >= limit {
                let is_listed = new.brought_by.is_none();
                displaced = longest_unused(list).filter(|_| is_listed).map(Arc::clone);
                if displaced.is_none() {
                    return Arc::clone(list);
                }
            }
            let key = TrackerKey { workload: new.workload.key.clone(), trigger: new.trigger };
            let predecessor = predecessor(list, new.workload);
            let predecessor = predecessor.map(|tracker| Box::new(tracker.key.clone()));
            let (policy, brought_by) = (Arc::clone(&new.policy), new.brought_by.clone());
            let tracker = Arc::new(Tracker::new(key, policy, brought_by, predecessor, clock));
            tracker.set_listed(new.brought_by.is_none(), clock.now());
            tracker.follow(new.workload, clock.now());
            let mut longer = Vec::with_capacity(list.len() + 1);
            let goes =
                |old: &&Arc<Tracker>| displaced.as_ref().is_some_and(|it| Arc::ptr_eq(it, old));
            longer.extend(list.iter().filter(|old| !goes(old)).map(Arc::clone));
            longer.push(Arc::clone(&tracker));
            added = Some((tracker, true));
            Arc::new(longer)
        });
        if let Some(displaced) = displaced {
            displaced.retire();
        }
        added
    }

    /// Marks which triggers the inventory lists now.
    pub(super) fn set_listed(&self, listed: &[(u64, Option<Policy>)], now: Moment) {
        for tracker in self.list.load().iter() {
            let is_listed = listed.iter().any(|(trigger, _)| *trigger == tracker.key.trigger);
            tracker.set_listed(is_listed, now);
        }
    }

    /// Tells every trigger that is edited away which of the listed ones has replaced it: the one
    /// that took over its state, or else the only one.
    pub(super) fn hand_over(&self, listed: &[Arc<Tracker>]) {
        let sole = || if let [sole] = listed { Some(sole) } else { None };
        for old in self.list.load().iter().filter(|tracker| tracker.is_edited_away()) {
            let took_over = |new: &&Arc<Tracker>| new.predecessor.as_deref() == Some(&old.key);
            old.set_successor(listed.iter().find(took_over).or_else(sole));
        }
    }

    /// Ends all trackers; says whether there were any.
    pub(super) fn retire_all(&self) -> bool {
        self.retire_where(|_| true)
    }

    /// Ends the trackers that nobody needs any more; says whether there were any. Of those that calls
    /// have brought, as many as the inventory lists without their values stay, the last used ones:
    /// they are what it lists, and KEDA may be away for longer than `idle_ms`.
    pub(super) fn retire_idle(&self, workload: &Workload, now: Moment, idle_ms: u64) -> bool {
        let list = self.list.load();
        if !list.iter().any(|tracker| tracker.is_idle(now, idle_ms)) {
            return false;
        }
        let n_kept = workload.triggers.iter().filter(|metadata| is_unresolved(metadata)).count();
        let mut brought: Vec<_> = list.iter().filter(|tracker| is_brought(tracker)).collect();
        brought.sort_by_key(|tracker| Reverse(tracker.last_used()));
        let kept: Vec<u64> = brought.iter().take(n_kept).map(|kept| kept.key.trigger).collect();
        self.retire_where(|tracker| {
            tracker.is_idle(now, idle_ms)
                && !(is_brought(tracker) && kept.contains(&tracker.key.trigger))
        })
    }

    /// Remembers that a call's metadata was refused; says whether that is news.
    pub(super) fn refuse(&self, trigger: u64, faults: &Faults) -> bool {
        let mut is_news = false;
        self.refused.rcu(|refused| {
            let mut refused = refused.as_deref().cloned().unwrap_or_default();
            is_news = refused.iter().all(|(known, _)| *known != trigger);
            if is_news {
                if refused.len() >= MAX_REFUSED {
                    refused.remove(0);
                }
                refused.push((trigger, faults.clone()));
            }
            Some(Arc::new(refused))
        });
        is_news
    }

    /// Whether there is a trigger that is not tracked: found without reading any of them again.
    pub(super) fn lacks_some(&self, workload: &Workload) -> bool {
        let listed = self.list.load().iter().filter(|tracker| tracker.is_listed()).count();
        listed < workload.triggers.len() || self.refused.load().is_some()
    }

    /// What the inventory lists and is refused, and what calls have brought and was refused, each with
    /// its faults; and whether the inventory lists a trigger that only a call can complete.
    pub(super) fn refused(&self, workload: &Workload) -> Untracked {
        let mut untracked = Untracked::default();
        let mut listed = Vec::new();
        for metadata in &workload.triggers {
            if is_unresolved(metadata) {
                untracked.has_unresolved = true;
            } else if let Err(faults) = trigger::parse(entries(metadata)) {
                listed.extend(key::fingerprint(entries(metadata)));
                untracked.refused.push(faults);
            }
        }
        let brought = self.refused.load();
        let brought = brought.iter().flat_map(|refused| refused.iter());
        let brought = brought.filter(|(trigger, _)| !listed.contains(trigger));
        untracked.refused.extend(brought.map(|(_, faults)| faults.clone()));
        untracked
    }

    /// Forgets what calls were refused for: the triggers have been edited.
    pub(super) fn forget_refused(&self) {
        self.refused.store(None);
    }

    fn retire_where(&self, ends: impl Fn(&Tracker) -> bool) -> bool {
        if !self.list.load().iter().any(|tracker| ends(tracker)) {
            return false;
        }
        let mut ended = Vec::new();
        self.list.rcu(|list| {
            let (gone, kept): (Vec<_>, Vec<_>) =
                list.iter().map(Arc::clone).partition(|tracker| ends(tracker));
            ended = gone;
            kept
        });
        for tracker in &ended {
            tracker.retire();
        }
        !ended.is_empty()
    }
}

/// Whether only calls have ever brought it.
fn is_brought(tracker: &Tracker) -> bool {
    !tracker.is_listed() && !tracker.is_edited_away()
}

/// Of those that the inventory does not list, the one that nobody has used for longest.
fn longest_unused(list: &[Arc<Tracker>]) -> Option<&Arc<Tracker>> {
    list.iter().filter(|tracker| !tracker.is_listed()).min_by_key(|tracker| tracker.last_used())
}

fn find(list: &[Arc<Tracker>], trigger: u64) -> Option<Arc<Tracker>> {
    list.iter().find(|tracker| tracker.key.trigger == trigger).map(Arc::clone)
}

/// The tracker whose state a new trigger of the workload takes over: the one that an edit has just
/// replaced. That is the last one used that the inventory no longer lists; or, while the inventory
/// still lists the old text, the only one that there is. `None` where a second trigger looks like
/// an edit, because both of them are known by their calls only.
fn predecessor<'a>(list: &'a [Arc<Tracker>], workload: &Workload) -> Option<&'a Arc<Tracker>> {
    let single = workload.triggers.len() <= 1;
    if !single && workload.triggers.iter().any(is_unresolved) {
        return None;
    }
    let replaced = list.iter().filter(|tracker| !tracker.is_listed());
    replaced.max_by_key(|tracker| tracker.last_used()).or(match list {
        [only] if single => Some(only),
        _ => None,
    })
}
