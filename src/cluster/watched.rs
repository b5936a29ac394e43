//! The objects of one kind, kept by namespace and name through lists, watches and interruptions.
//!
//! Does no IO; an interruption removes nothing.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use kube::runtime::watcher;
use tracing::{info, warn};

use super::watch::{ObjectKey, Step};
use crate::decision::Moment;

/// Most objects that are kept of one kind: twice the 50,000 pods that the memory is made for. With
/// its share of the inventory a pod takes some 1.3 KiB, so the limit is 130 MiB.
const MAX_OBJECTS: usize = 100_000;

/// The objects of one kind in one watched namespace, or in all.
#[derive(Debug)]
pub(super) struct Watched<T> {
    what: &'static str,
    by_namespace: BTreeMap<Arc<str>, BTreeMap<Arc<str>, T>>,
    n_objects: usize,
    /// Said that the limit is reached: what is left out comes again with each of its changes.
    is_full: bool,
    /// While a list runs: what the last one had and this one has not named yet.
    unnamed: Option<HashSet<ObjectKey>>,
    was_listed: bool,
    failing: Option<Failing>,
}

#[derive(Debug)]
struct Failing {
    since: Moment,
    /// The API server answers, and does not allow it.
    is_refused: bool,
    /// The failure as logged, so that the same one is not logged at each try.
    message: String,
}

impl<T: PartialEq> Watched<T> {
    /// Nothing known yet. `what` names the kind in the log.
    pub(super) fn new(what: &'static str) -> Watched<T> {
        Watched {
            what,
            by_namespace: BTreeMap::new(),
            n_objects: 0,
            is_full: false,
            unnamed: None,
            was_listed: false,
            failing: None,
        }
    }

    /// Takes one step; the namespace in which something changed goes to `changed`.
    pub(super) fn apply(&mut self, step: Step<T>, now: Moment, mut changed: impl FnMut(Arc<str>)) {
        match step {
            Step::Begin => self.unnamed = Some(self.keys().collect()),
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
        self.failing.as_ref().filter(|failing| failing.is_refused).map(|failing| failing.since)
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
    fn put(&mut self, (namespace, name): &ObjectKey, object: T) -> bool {
        let objects = self.by_namespace.entry(Arc::clone(namespace)).or_default();
        if let Some(known) = objects.get_mut(name) {
            let is_changed = *known != object;
            *known = object;
            return is_changed;
        }
        if self.n_objects >= MAX_OBJECTS {
            if !std::mem::replace(&mut self.is_full, true) {
                let what = self.what;
                warn!(what, %namespace, %name, "left out, and more: {MAX_OBJECTS} are kept already");
            }
            return false;
        }
        self.n_objects += 1;
        objects.insert(Arc::clone(name), object);
        true
    }

    /// Whether this changed anything.
    fn remove(&mut self, (namespace, name): &ObjectKey) -> bool {
        let Some(objects) = self.by_namespace.get_mut(namespace) else {
            return false;
        };
        let is_removed = objects.remove(name).is_some();
        if objects.is_empty() {
            self.by_namespace.remove(namespace);
        }
        self.n_objects -= usize::from(is_removed);
        is_removed
    }

    fn fails(&mut self, message: String, is_refused: bool, now: Moment) {
        let since = self.failing_since().unwrap_or(now);
        if self.failing.as_ref().is_none_or(|failing| failing.message != message) {
            warn!(what = self.what, error = message, "cannot read from the Kubernetes API");
        }
        self.failing = Some(Failing { since, is_refused, message });
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
