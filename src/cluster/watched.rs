//! The objects of one kind, kept by namespace and name through lists, watches and interruptions.
//!
//! Does no IO; an interruption removes nothing.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use kube::runtime::watcher;
use tracing::{info, warn};

use super::watch::{ObjectKey, Step};
use crate::decision::Moment;

/// Most objects that are kept of one kind: twice the 50,000 pods that the memory is made for. With
/// its share of the inventory a pod takes some 1.3 KiB, so the limit is 130 MiB.
pub(super) const MAX_OBJECTS: usize = 100_000;

/// The objects of one kind in one watched namespace, or in all.
#[derive(Debug)]
pub(super) struct Watched<T> {
    what: &'static str,
    /// Most objects that are kept.
    limit: usize,
    by_namespace: BTreeMap<Arc<str>, BTreeMap<Arc<str>, T>>,
    n_objects: usize,
    /// What is there and not kept. Beyond the limit of this too a namespace stands for its objects, with
    /// an empty name, until the next list.
    left_out: BTreeSet<ObjectKey>,
    /// Said that something is left out.
    is_told: bool,
    /// While a list runs: what the last one had and this one has not named yet.
    unnamed: Option<HashSet<ObjectKey>>,
    was_listed: bool,
    failing: Option<Failing>,
}

#[derive(Debug)]
struct Failing {
    since: Moment,
    /// Since when the API server answers, and does not allow it.
    refused_since: Option<Moment>,
    /// The failure as logged, so that the same one is not logged at each try.
    message: String,
}

impl<T: PartialEq> Watched<T> {
    /// Nothing known yet. `what` names the kind in the log.
    pub(super) fn new(what: &'static str, limit: usize) -> Watched<T> {
        Watched {
            what,
            limit,
            by_namespace: BTreeMap::new(),
            n_objects: 0,
            left_out: BTreeSet::new(),
            is_told: false,
            unnamed: None,
            was_listed: false,
            failing: None,
        }
    }

    /// Takes one step; the namespace in which something changed goes to `changed`.
    pub(super) fn apply(&mut self, step: Step<T>, now: Moment, mut changed: impl FnMut(Arc<str>)) {
        match step {
            Step::Begin => {
                self.unnamed = Some(self.keys().chain(self.left_out.iter().cloned()).collect())
            }
            Step::Put(key, object) => {
                if let Some(unnamed) = &mut self.unnamed {
                    unnamed.remove(&key);
                }
                if self.put(&key, object) {
                    changed(key.0);
                }
            }
            Step::Remove(key) => {
                if self.remove(&key) {
                    changed(key.0);
                }
            }
            Step::Keep(key) => {
                if let Some(unnamed) = &mut self.unnamed {
                    unnamed.remove(&key);
                }
            }
            Step::Done => {
                for key in self.unnamed.take().unwrap_or_default() {
                    if self.remove(&key) {
                        changed(key.0);
                    }
                }
                self.was_listed = true;
                self.stands_again();
            }
            Step::Failed(error) => self.fails(describe(&error), is_refusal(&error), now),
            Step::Resumed => self.stands_again(),
        }
    }

    /// Whether a whole list has been read at least once.
    pub(super) fn was_listed(&self) -> bool {
        self.was_listed
    }

    /// Since when the watch has been interrupted.
    pub(super) fn failing_since(&self) -> Option<Moment> {
        self.failing.as_ref().map(|failing| failing.since)
    }

    /// Since when the API server has not allowed it.
    pub(super) fn refused_since(&self) -> Option<Moment> {
        self.failing.as_ref()?.refused_since
    }

    /// Whether no more objects are kept.
    pub(super) fn is_full(&self) -> bool {
        self.n_objects >= self.limit
    }

    /// Whether all that was named is kept.
    pub(super) fn is_whole(&self) -> bool {
        self.left_out.is_empty()
    }

    /// Whether all that was named of this namespace is kept.
    pub(super) fn has_all_of(&self, namespace: &Arc<str>) -> bool {
        let first = (Arc::clone(namespace), Arc::from(""));
        self.left_out.range(first..).next().is_none_or(|(other, _)| other != namespace)
    }

    /// Makes room by leaving out all objects of a namespace.
    pub(super) fn leave_out(&mut self, namespace: &Arc<str>) {
        for name in self.by_namespace.remove(namespace).unwrap_or_default().into_keys() {
            self.n_objects -= 1;
            self.note_left_out(&(Arc::clone(namespace), name));
        }
    }

    /// The namespaces in which there are objects.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_namespace.keys()
    }

    /// One object.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<&T> {
        self.by_namespace.get(namespace)?.get(name)
    }

    /// The objects of a namespace, ordered by name.
    pub(super) fn of(&self, namespace: &str) -> impl Iterator<Item = (&Arc<str>, &T)> {
        self.by_namespace.get(namespace).into_iter().flatten()
    }

    /// All objects.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.by_namespace.values().flat_map(BTreeMap::values)
    }

    /// All objects with their namespaces.
    pub(super) fn with_namespaces(&self) -> impl Iterator<Item = (&Arc<str>, &T)> {
        self.by_namespace
            .iter()
            .flat_map(|(namespace, all)| all.values().map(move |object| (namespace, object)))
    }

    fn keys(&self) -> impl Iterator<Item = ObjectKey> {
        self.by_namespace.iter().flat_map(|(namespace, objects)| {
            objects.keys().map(|name| (Arc::clone(namespace), Arc::clone(name)))
        })
    }

    /// Whether this changed anything.
    fn put(&mut self, key: &ObjectKey, object: T) -> bool {
        let (namespace, name) = key;
        let objects = self.by_namespace.entry(Arc::clone(namespace)).or_default();
        if let Some(known) = objects.get_mut(name) {
            let is_changed = *known != object;
            *known = object;
            return is_changed;
        }
        if self.n_objects >= self.limit {
            if objects.is_empty() {
                self.by_namespace.remove(namespace);
            }
            return self.note_left_out(key);
        }
        self.n_objects += 1;
        objects.insert(Arc::clone(name), object);
        self.left_out.remove(key);
        true
    }

    /// Whether it was not left out before.
    fn note_left_out(&mut self, (namespace, name): &ObjectKey) -> bool {
        let (what, limit) = (self.what, self.limit);
        if !std::mem::replace(&mut self.is_told, true) {
            warn!(what, %namespace, %name, "left out, and more: {limit} are kept already");
        }
        let is_listed = self.left_out.len() < limit;
        let key = (Arc::clone(namespace), if is_listed { Arc::clone(name) } else { Arc::from("") });
        if let Some(unnamed) = &mut self.unnamed {
            unnamed.remove(&key);
        }
        self.left_out.insert(key)
    }

    /// Whether this changed anything.
    fn remove(&mut self, key: &ObjectKey) -> bool {
        let (namespace, name) = key;
        let Some(objects) = self.by_namespace.get_mut(namespace) else {
            return self.left_out.remove(key);
        };
        let is_removed = objects.remove(name).is_some();
        if objects.is_empty() {
            self.by_namespace.remove(namespace);
        }
        self.n_objects -= usize::from(is_removed);
        self.left_out.remove(key) || is_removed
    }

    fn fails(&mut self, message: String, is_refused: bool, now: Moment) {
        let since = self.failing_since().unwrap_or(now);
        // A server that has just come back may refuse for a moment.
        let refused_since = is_refused.then(|| self.refused_since().unwrap_or(now));
        if self.failing.as_ref().is_none_or(|failing| failing.message != message) {
            warn!(what = self.what, error = message, "cannot read from the Kubernetes API");
        }
        self.failing = Some(Failing { since, refused_since, message });
    }

    fn stands_again(&mut self) {
        if self.failing.take().is_some() {
            info!(what = self.what, "reading from the Kubernetes API again");
        }
    }
}

/// Whether the account may not read it, or where it would be is gone with its roles.
pub(super) fn is_refusal(error: &watcher::Error) -> bool {
    use watcher::Error::{
        InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed,
    };
    match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => {
            matches!(error, kube::Error::Api(status) if status.is_forbidden())
        }
        WatchError(status) => status.is_forbidden(),
        NoResourceVersion => false,
    }
}

/// An error with its causes. Those of the client library print some of their causes themselves.
pub(super) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}
