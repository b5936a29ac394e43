//! Every tracked trigger: found by what a call carries, decided by the tick, answered from memory.
//!
//! Must do no IO, and a look-up must never wait: readers load immutable tables, and what is rebuilt
//! is rebuilt beside them. The lock here is taken by writers of the inventory and by readers of
//! the list of all trackers, never by a look-up of a known trigger.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::decision::{Answer, Moment, Spec};
use crate::inventory::{Inventory, Workload, WorkloadKey};
use crate::trigger::{self, Faults, Policy};

mod common;
mod key;
mod rpc;
#[cfg(test)]
mod tests;
mod tracker;
mod variants;

pub use key::TrackerKey;
pub use rpc::{Caller, Rpc};
pub use tracker::{OpenStream, Published, Tracker};

pub use variants::Untracked;

use common::InCommon;
use variants::Variants;

/// What the registry may hold.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Trackers in all. Default 50,000: five times the workloads that the process is built for.
    pub trackers: usize,
    /// Trackers of one workload. Default [`trigger::MAX_TRIGGERS`].
    pub trackers_per_workload: usize,
    /// Milliseconds without a call after which a trigger that the inventory does not list is
    /// dropped. Default ten minutes.
    pub idle_ms: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { trackers: 50_000, trackers_per_workload: trigger::MAX_TRIGGERS, idle_ms: 600_000 }
    }
}

/// Why a call has no tracker.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The inventory has not been read whole yet.
    #[error("the workloads have not been listed yet")]
    NotSynced,
    /// The inventory has no such workload.
    #[error("no such workload")]
    NotFound,
    /// The workload is known, and this trigger of it is not taken.
    #[error("{why}")]
    Refused {
        /// Why.
        why: Refusal,
        /// The workload's fewest replicas.
        min: u32,
        /// The workload's present replicas, where known.
        spec: Option<u32>,
    },
}

/// Why a trigger of a known workload is not taken.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The metadata has more than [`trigger::MAX_BYTES`] bytes or [`trigger::MAX_KEYS`] keys.
    #[error("metadata: expected at most {} keys and {} KiB", trigger::MAX_KEYS, trigger::MAX_BYTES / 1024)]
    TooLarge,
    /// The metadata is wrong, in all these ways.
    #[error("{0}")]
    BadMetadata(Faults),
    /// There are as many trackers as [`Limits`] allows.
    #[error("too many different triggers at once: expected at most {limit}")]
    Full {
        /// The limit that is reached.
        limit: usize,
    },
}

impl Refusal {
    fn of(self, workload: &Workload) -> Error {
        Error::Refused { why: self, min: workload.min, spec: workload.replicas.spec }
    }
}

/// All tracked triggers. Cheap to clone; all clones are one registry.
#[derive(Debug, Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limits: Limits,
    clock: Clock,
    index: ArcSwap<Index>,
    // Exact after each change of the inventory, raised by each new tracker in between.
    n_trackers: AtomicUsize,
    generation: watch::Sender<u64>,
    listing: Mutex<Listing>,
    policies: InCommon<Policy>,
    specs: InCommon<Spec>,
}

/// The workloads by namespace and name; replaced whole with each inventory.
#[derive(Debug, Default)]
struct Index {
    inventory: Arc<Inventory>,
    slots: HashMap<Arc<str>, HashMap<Arc<str>, Slot>>,
}

/// One workload and its triggers.
#[derive(Debug, Clone)]
struct Slot {
    workload: Arc<Workload>,
    variants: Arc<Variants>,
    // The tracker of the only trigger that the inventory lists, if it lists one.
    sole: Option<Arc<Tracker>>,
}

/// The list of all trackers as of one generation.
#[derive(Debug, Default)]
struct Listing {
    generation: Option<u64>,
    trackers: Arc<Vec<Arc<Tracker>>>,
}

impl Registry {
    /// An empty registry; every look-up answers [`Error::NotSynced`] until an inventory is set.
    #[must_use]
    pub fn new(limits: Limits, clock: Clock) -> Registry {
        let shared = Shared {
            limits,
            clock,
            index: ArcSwap::default(),
            n_trackers: AtomicUsize::new(0),
            generation: watch::Sender::new(0),
            listing: Mutex::default(),
            policies: InCommon::default(),
            specs: InCommon::default(),
        };
        Registry { shared: Arc::new(shared) }
    }

    /// The inventory in force.
    #[must_use]
    pub fn inventory(&self) -> Arc<Inventory> {
        Arc::clone(&self.shared.index.load().inventory)
    }

    /// Replaces the inventory: tracks the triggers that it lists, drops the workloads that it no
    /// longer has (unless it does not know the namespace, when one is unknown and not gone), and
    /// lets every trigger without a decision follow the present counts.
    pub fn set_inventory(&self, inventory: Arc<Inventory>) {
        // Held throughout, so that two inventories never interleave.
        let mut listing = self.listing();
        let old = self.shared.index.load_full();
        let mut changed = false;
        let mut index = Index { inventory: Arc::clone(&inventory), slots: HashMap::new() };
        for (key, workload) in &inventory.workloads {
            let slot = self.slot_for(old.get(&key.namespace, &key.name), workload, &mut changed);
            index.insert(key, slot);
        }
        for slot in old.iter() {
            let key = &slot.workload.key;
            if index.get(&key.namespace, &key.name).is_some() {
                continue;
            }
            if inventory.knows(&key.namespace) {
                changed |= slot.variants.retire_all();
            } else {
                index.insert(key, slot.clone());
            }
        }
        self.shared.n_trackers.store(index.n_trackers(), Ordering::Relaxed);
        self.shared.index.store(Arc::new(index));
        if changed {
            listing.generation = None;
            self.shared.generation.send_modify(|generation| *generation += 1);
        }
    }

    /// Finds the tracker of a call, and makes one for a trigger seen for the first time.
    ///
    /// A known trigger costs one pass over the metadata and two hash look-ups, no allocation.
    /// Metadata with none but KEDA's own keys means the workload's only trigger, where the
    /// inventory lists exactly one.
    ///
    /// # Errors
    ///
    /// When the workload is not known, the metadata is wrong, or a limit is reached.
    pub fn lookup(
        &self,
        namespace: &str,
        name: &str,
        metadata: &HashMap<String, String>,
        caller: Caller,
        rpc: Rpc,
    ) -> Result<Arc<Tracker>, Error> {
        let index = self.shared.index.load();
        let Some(slot) = index.get(namespace, name) else {
            let is_known = index.inventory.knows(namespace);
            return Err(if is_known { Error::NotFound } else { Error::NotSynced });
        };
        let entries = || metadata.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let trigger =
            key::fingerprint(entries()).ok_or_else(|| Refusal::TooLarge.of(&slot.workload))?;
        // Nearly every call is for it, and it is found without the list.
        let is_meant =
            |sole: &&Arc<Tracker>| trigger == key::NO_KEYS || trigger == sole.key.trigger;
        let sole = slot.sole.as_ref().filter(is_meant).map(Arc::clone);
        let tracker = match sole.or_else(|| slot.variants.get(trigger)) {
            Some(tracker) => tracker,
            None => self.track(slot, trigger, entries())?,
        };
        tracker.note_call(rpc, caller);
        Ok(tracker)
    }

    /// All trackers, ordered by key. The same list is returned until the set changes.
    #[must_use]
    pub fn trackers(&self) -> Arc<Vec<Arc<Tracker>>> {
        let mut listing = self.listing();
        // Read before the tables, so that a tracker added meanwhile is found by the next call.
        let generation = *self.shared.generation.borrow();
        if listing.generation != Some(generation) {
            let index = self.shared.index.load();
            let mut trackers: Vec<_> =
                index.iter().flat_map(|slot| slot.variants.all().to_vec()).collect();
            trackers.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            *listing = Listing { generation: Some(generation), trackers: Arc::new(trackers) };
        }
        Arc::clone(&listing.trackers)
    }

    /// The trackers of one workload, that which counts for it first.
    #[must_use]
    pub fn trackers_of(&self, key: &WorkloadKey) -> Vec<Arc<Tracker>> {
        let index = self.shared.index.load();
        let Some(slot) = index.get(&key.namespace, &key.name) else { return Vec::new() };
        let mut trackers = slot.variants.all().to_vec();
        trackers
            .sort_by_cached_key(|tracker| Reverse(precedence(tracker, &tracker.published.load())));
        trackers
    }

    /// What one workload has of triggers that are not tracked; `None` where the workload is not known.
    #[must_use]
    pub fn untracked_of(&self, key: &WorkloadKey) -> Option<Untracked> {
        let index = self.shared.index.load();
        let slot = index.get(&key.namespace, &key.name)?;
        Some(slot.variants.refused(&slot.workload))
    }

    /// A decision's input, held once for all triggers that are decided under an equal one.
    #[must_use]
    pub fn share_spec(&self, spec: Spec) -> Arc<Spec> {
        self.shared.specs.share(spec)
    }

    /// The workloads that have triggers, or values of one that a call brought, which are refused:
    /// ordered, each with the faults of all of them.
    #[must_use]
    pub fn refused(&self) -> Vec<(WorkloadKey, Vec<Faults>)> {
        let index = self.shared.index.load();
        let mut refused: Vec<_> = index
            .iter()
            .filter(|slot| slot.variants.lacks_some(&slot.workload))
            .map(|slot| (slot.workload.key.clone(), slot.variants.refused(&slot.workload).refused))
            .filter(|(_, faults)| !faults.is_empty())
            .collect();
        refused.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        refused
    }

    /// Signals each change of the set of trackers.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.generation.subscribe()
    }

    /// Drops the triggers that the inventory does not list and that nobody has asked for, nor
    /// holds a stream of, within [`Limits::idle_ms`]; those that it used to list, after a minute. As
    /// many as it lists with a `FromEnv` key stay: a call's values are all that tells them apart.
    pub fn drop_idle(&self) {
        let mut listing = self.listing();
        let index = self.shared.index.load();
        let now = self.shared.clock.now();
        let mut changed = false;
        for slot in index.iter() {
            let idle_ms = self.shared.limits.idle_ms;
            changed |= slot.variants.retire_idle(&slot.workload, now, idle_ms);
        }
        if changed {
            self.shared.n_trackers.store(index.n_trackers(), Ordering::Relaxed);
            listing.generation = None;
            self.shared.generation.send_modify(|generation| *generation += 1);
        }
    }

    fn listing(&self) -> std::sync::MutexGuard<'_, Listing> {
        // The list is replaced whole, so a panic elsewhere cannot have left it half written.
        self.shared.listing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Moment {
        self.shared.clock.now()
    }

    /// The new slot of a workload, from its old one where it had one.
    fn slot_for(&self, old: Option<&Slot>, workload: &Arc<Workload>, changed: &mut bool) -> Slot {
        let mut slot = match old {
            Some(old) => Slot { workload: Arc::clone(workload), ..old.clone() },
            None => Slot { workload: Arc::clone(workload), variants: Arc::default(), sole: None },
        };
        if old.is_none_or(|old| old.workload.triggers != workload.triggers) {
            *changed = true;
            slot.variants.forget_refused();
            let listed = variants::listed(workload);
            slot.variants.set_listed(&listed, self.now());
            let mut trackers = Vec::new();
            for (trigger, policy) in listed {
                let Some(policy) = policy else { continue };
                let policy = self.shared.policies.share(policy);
                let new = variants::New { workload, trigger, policy, brought_by: None };
                // What calls have brought makes room; the inventory has its own bound.
                if let Ok(tracker) = self.add(&slot.variants, new) {
                    trackers.push(tracker);
                }
            }
            slot.variants.hand_over(&trackers);
            slot.sole = trackers.pop().filter(|_| workload.triggers.len() == 1);
        }
        for tracker in slot.variants.all().iter() {
            tracker.follow(workload, self.now());
        }
        slot
    }

    /// Tracks a trigger that a call brought.
    fn track<'a>(
        &self,
        slot: &Slot,
        trigger: u64,
        metadata: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    ) -> Result<Arc<Tracker>, Error> {
        let workload = &slot.workload;
        let brought_by = metadata.clone().map(|(key, value)| (key.to_owned(), value.to_owned()));
        let policy = trigger::parse(metadata).map_err(|faults| {
            if slot.variants.refuse(trigger, &faults) {
                let keys: Vec<_> = faults.iter().map(|fault| fault.key.as_str()).collect();
                tracing::warn!(workload = %workload.key, ?keys, "trigger metadata refused");
            }
            Refusal::BadMetadata(faults).of(workload)
        })?;
        let brought_by = Some(Arc::new(brought_by.collect()));
        let policy = self.shared.policies.share(policy);
        let new = variants::New { workload, trigger, policy, brought_by };
        let tracker = self.add(&slot.variants, new)?;
        self.shared.generation.send_modify(|generation| *generation += 1);
        Ok(tracker)
    }

    fn add(&self, variants: &Variants, new: variants::New<'_>) -> Result<Arc<Tracker>, Error> {
        let limits = &self.shared.limits;
        let is_full = self.shared.n_trackers.load(Ordering::Relaxed) >= limits.trackers;
        let limit = if is_full { limits.trackers } else { limits.trackers_per_workload };
        // Where all are full, only one in the place of another of its workload.
        let most = if is_full { 0 } else { limit };
        let workload = new.workload;
        let (tracker, is_new) = variants
            .add(new, self.shared.clock, most)
            .ok_or_else(|| Refusal::Full { limit }.of(workload))?;
        if is_new && !is_full {
            self.shared.n_trackers.fetch_add(1, Ordering::Relaxed);
        }
        Ok(tracker)
    }
}

/// Which of a workload's triggers counts for it: that with the largest. KEDA and the HPA follow the
/// largest answer; but none that only a call has brought, be it KEDA's or anybody's, comes before one
/// that the inventory lists. Of equal ones it is the one with the smallest fingerprint.
#[must_use]
pub fn precedence(tracker: &Tracker, published: &Published) -> (bool, Option<u32>, Reverse<u64>) {
    let want = match published.answer {
        Answer::Value { want, .. } => Some(want),
        Answer::Unavailable { .. } => None,
    };
    (tracker.is_listed(), want, Reverse(tracker.key.trigger))
}

impl Index {
    fn get(&self, namespace: &str, name: &str) -> Option<&Slot> {
        self.slots.get(namespace)?.get(name)
    }

    fn insert(&mut self, key: &WorkloadKey, slot: Slot) {
        let names = self.slots.entry(Arc::clone(&key.namespace)).or_default();
        names.insert(Arc::clone(&key.name), slot);
    }

    fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.values().flat_map(HashMap::values)
    }

    fn n_trackers(&self) -> usize {
        self.iter().map(|slot| slot.variants.all().len()).sum()
    }
}
