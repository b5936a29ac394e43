//! Everything that was read from the cluster, and the inventory that it makes.
//!
//! Does no IO and reads no clock. A step costs what the changed namespaces hold, and a copy of the map of all
//! workloads where one of them is different.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use tracing::warn;

use super::devices::{self, Node};
use super::group::Groups;
use super::hpa::Autoscaler;
use super::pod::Pod;
use super::scale::Read;
use super::scaled_object::{Chosen, ScaledObject, TargetKind, TargetRef};
use super::selector::{Labels, PodSelector};
use super::target::Target;
use super::watch::{Change, ObjectKey, Step, Update};
use super::watched::{MAX_OBJECTS, Watched};
use super::workload::{self, Parts, Scaler};
use crate::decision::Moment;
use crate::inventory::{Devices, Inventory, Names, Room, Workload, WorkloadKey};

/// How long a namespace that may not be read is waited for, in milliseconds: a role that is bound beside
/// the start takes seconds.
const GIVEN_UP_MS: u64 = 30_000;

/// What was read, by watched namespace, and what was made of it.
#[derive(Debug)]
pub(super) struct World {
    scopes: Vec<Scope>,
    nodes: Watched<Node>,
    /// Those that are told to go.
    leaving: BTreeSet<Arc<str>>,
    /// Whether all namespaces are watched, so that every pod on a node is known.
    is_whole: bool,
    /// Nodes or pods have changed since the devices were counted.
    room_is_old: bool,
    published: Arc<Inventory>,
}

/// What a rebuild made.
#[derive(Debug)]
pub(super) struct Rebuilt {
    /// The new inventory, where anything in it is different.
    pub(super) inventory: Option<Arc<Inventory>>,
    /// The scale subresources that the rebuilt namespaces need.
    pub(super) scales: Vec<WantedScales>,
}

/// The scale subresources that the workloads of one namespace need.
#[derive(Debug, PartialEq)]
pub(super) struct WantedScales {
    /// The index of the watched namespace.
    pub(super) scope: usize,
    /// The namespace.
    pub(super) namespace: Arc<str>,
    /// The targets, none of them a Deployment or StatefulSet.
    pub(super) targets: BTreeSet<TargetRef>,
}

impl World {
    /// Nothing read yet, from these namespaces; with none all are watched as one.
    pub(super) fn new(namespaces: &[Arc<str>]) -> World {
        let all = [Arc::from("")];
        let names = if namespaces.is_empty() { &all } else { namespaces };
        World {
            scopes: names.iter().map(Scope::new).collect(),
            nodes: Watched::new("nodes", MAX_OBJECTS),
            leaving: BTreeSet::new(),
            is_whole: namespaces.is_empty(),
            room_is_old: false,
            published: Arc::default(),
        }
    }

    /// Takes one step of a watch.
    pub(super) fn apply(&mut self, update: Update, now: Moment) {
        let Update { scope, change } = update;
        if let Change::Node(step) = change {
            self.apply_node(step, now);
        } else if let Some(scope) = self.scopes.get_mut(scope) {
            // Most pods have no device, and most changes of one move none.
            self.room_is_old |=
                self.is_whole && matches!(&change, Change::Pod(step) if scope.moves_devices(step));
            let was_whole = scope.pods.is_whole();
            scope.apply(change, now);
            self.room_is_old |= self.is_whole && scope.pods.is_whole() != was_whole;
        }
    }

    fn apply_node(&mut self, step: Step<Node>, now: Moment) {
        let touched: Vec<Arc<str>> = match &step {
            Step::Put((_, name), _) | Step::Remove((_, name)) => vec![Arc::clone(name)],
            // A list may leave nodes out.
            Step::Done => self.leaving.iter().cloned().collect(),
            Step::Keep(_) | Step::Begin | Step::Failed(_) | Step::Resumed => Vec::new(),
        };
        let room_is_old = &mut self.room_is_old;
        self.nodes.apply(step, now, |_no_namespace| *room_is_old = true);
        for name in touched {
            let leaves = self.nodes.get("", &name).is_some_and(|node| node.leaves);
            if leaves == self.leaving.contains(&name) {
                continue;
            }
            self.scopes.iter_mut().for_each(|scope| scope.change_those_on(&name));
            if leaves {
                self.leaving.insert(name);
            } else {
                self.leaving.remove(&name);
            }
        }
    }

    /// Takes what a scale subresource says.
    pub(super) fn apply_scale(
        &mut self,
        scope: usize,
        namespace: &Arc<str>,
        key: TargetRef,
        read: Read,
    ) {
        let Some(scope) = self.scopes.get_mut(scope) else {
            return;
        };
        let Some(scales) = scope.scales.get_mut(namespace) else {
            return;
        };
        let known = scales.get(&key);
        let target = match read {
            Read::There(target) => Some(target),
            Read::Absent => None,
            Read::Lost => known.map(|known| Target { spec: None, ..known.clone() }),
        };
        if known == target.as_ref() {
            return;
        }
        match target {
            Some(target) => scales.insert(key, target),
            None => scales.remove(&key),
        };
        scope.changed.insert(Arc::clone(namespace));
    }

    /// Whether a rebuild could make a different inventory.
    pub(super) fn is_changed(&self) -> bool {
        self.scopes.iter().any(|scope| scope.was_listed() && !scope.changed.is_empty())
            || (self.room_is_old && self.nodes.was_listed())
            || self.is_synced() != self.published.synced
            || self.unread() != self.published.unread
            || self.stale() != self.published.stale
    }

    /// Builds the workloads of every changed namespace anew.
    ///
    /// A watched namespace counts once all its lists were read: before that, a workload without
    /// pods would look like one that has none.
    pub(super) fn rebuild(&mut self) -> Rebuilt {
        let (synced, unread, stale) = (self.is_synced(), self.unread(), self.stale());
        let room = std::mem::take(&mut self.room_is_old).then(|| self.room());
        let published = &mut self.published;
        let mut is_different = false;
        let mut wanted = Vec::new();
        for (index, scope) in self.scopes.iter_mut().enumerate() {
            if !scope.was_listed() {
                continue;
            }
            for namespace in std::mem::take(&mut scope.changed) {
                let targets = scope.keep_scales(&namespace);
                let built = scope.workloads(&namespace, &published.workloads, &self.leaving);
                is_different |= replace(published, &namespace, built);
                wanted.push(WantedScales { scope: index, namespace, targets });
            }
            scope.forget_unused();
        }
        if let Some(room) = room.filter(|room| *room != published.room) {
            Arc::make_mut(published).room = room;
            is_different = true;
        }
        if (synced, &unread, &stale) != (published.synced, &published.unread, &published.stale) {
            let inventory = Arc::make_mut(published);
            (inventory.synced, inventory.unread, inventory.stale) = (synced, unread, stale);
            is_different = true;
        }
        Rebuilt { inventory: is_different.then(|| Arc::clone(published)), scales: wanted }
    }

    fn room(&self) -> BTreeMap<Arc<str>, Room> {
        let is_whole = self.is_whole && self.scopes.iter().all(|scope| scope.pods.is_whole());
        let pods = is_whole.then(|| self.scopes.iter().flat_map(|scope| scope.pods.all()));
        devices::room(self.nodes.of(""), pods)
    }

    /// A namespace that may not be read keeps no other waiting.
    fn is_synced(&self) -> bool {
        self.scopes.iter().any(Scope::was_listed)
            && self.scopes.iter().all(|scope| scope.was_listed() || scope.is_given_up)
    }

    fn unread(&self) -> BTreeSet<Arc<str>> {
        let unread = self.scopes.iter().filter(|scope| scope.is_given_up && !scope.was_listed());
        unread.map(|scope| Arc::clone(&scope.name)).collect()
    }

    fn stale(&self) -> BTreeMap<Arc<str>, Moment> {
        let since = |scope: &Scope| Some((Arc::clone(&scope.name), scope.failing_since().min()?));
        self.scopes.iter().filter_map(since).collect()
    }
}

/// One watched namespace, or all of them as one.
#[derive(Debug)]
struct Scope {
    /// The namespace; empty for all.
    name: Arc<str>,
    /// It has been refused for so long that nobody waits for it.
    is_given_up: bool,
    scaled_objects: Watched<ScaledObject>,
    deployments: Watched<Target>,
    stateful_sets: Watched<Target>,
    pods: Watched<Pod>,
    /// HPAs and resource claims tell more of a workload, and none waits for them: a role may not allow
    /// them, and a cluster need not have claims.
    hpas: Watched<Autoscaler>,
    claims: Watched<Arc<Devices>>,
    /// Targets of other kinds as last read, by namespace; only those that are needed.
    scales: HashMap<Arc<str>, HashMap<TargetRef, Target>>,
    /// The label sets, device counts and node names in use, so that all pods of one template or node
    /// share one.
    labels: HashSet<Arc<Labels>>,
    devices: HashSet<Arc<Devices>>,
    nodes: HashSet<Arc<str>>,
    /// Namespaces whose workloads have to be built anew.
    changed: BTreeSet<Arc<str>>,
}

impl Scope {
    fn new(name: &Arc<str>) -> Scope {
        Scope {
            name: Arc::clone(name),
            is_given_up: false,
            scaled_objects: Watched::new("ScaledObjects", MAX_OBJECTS),
            deployments: Watched::new("Deployments", MAX_OBJECTS),
            stateful_sets: Watched::new("StatefulSets", MAX_OBJECTS),
            pods: Watched::new("pods", MAX_OBJECTS),
            hpas: Watched::new("HPAs", MAX_OBJECTS),
            claims: Watched::new("resource claims", MAX_OBJECTS),
            scales: HashMap::new(),
            labels: HashSet::new(),
            devices: HashSet::new(),
            nodes: HashSet::new(),
            changed: BTreeSet::new(),
        }
    }

    fn apply(&mut self, change: Change, now: Moment) {
        if let Change::Pod(Step::Put(key, _)) = &change {
            self.make_room(key);
        }
        let changed = |namespace: Arc<str>| {
            self.changed.insert(namespace);
        };
        match change {
            Change::ScaledObject(step) => self.scaled_objects.apply(step, now, changed),
            Change::Deployment(step) => self.deployments.apply(step, now, changed),
            Change::StatefulSet(step) => self.stateful_sets.apply(step, now, changed),
            Change::Pod(mut step) => {
                if let Step::Put(_, pod) = &mut step {
                    share(&mut self.labels, &mut pod.labels);
                    share(&mut self.devices, &mut pod.devices);
                    if let Some(node) = &mut pod.member.node {
                        share(&mut self.nodes, node);
                    }
                }
                self.pods.apply(step, now, changed);
            }
            Change::Hpa(step) => self.hpas.apply(step, now, changed),
            Change::Claim(step) => self.claims.apply(step, now, changed),
            // Nodes are of no scope.
            Change::Node(_) => {}
        }
        let refused_since = [
            self.scaled_objects.refused_since(),
            self.deployments.refused_since(),
            self.stateful_sets.refused_since(),
            self.pods.refused_since(),
        ];
        let refused_ms =
            refused_since.into_iter().flatten().map(|since| now.millis_since(since)).max();
        if !self.is_given_up && refused_ms.is_some_and(|ms| ms >= GIVEN_UP_MS) && !self.was_listed()
        {
            self.is_given_up = true;
            warn!(namespace = %self.name, "its workloads are unknown: they may not be read");
        }
    }

    /// For a pod of a namespace with ScaledObjects those of one without any give way.
    fn make_room(&mut self, (namespace, name): &ObjectKey) {
        let scales = |namespace: &str| self.scaled_objects.of(namespace).next().is_some();
        let fits = !self.pods.is_full() || self.pods.get(namespace, name).is_some();
        if fits || !scales(namespace) {
            return;
        }
        let foreign = self.pods.namespaces().find(|other| !scales(other)).cloned();
        if let Some(foreign) = foreign {
            self.pods.leave_out(&foreign);
        }
    }

    /// Marks the namespaces of the pods on a node.
    fn change_those_on(&mut self, node: &str) {
        let on_it =
            self.pods.with_namespaces().filter(|(_, pod)| pod.member.node.as_deref() == Some(node));
        self.changed.extend(on_it.map(|(namespace, _)| Arc::clone(namespace)));
    }

    /// Whether a step of the pods' watch changes which devices are taken on which node.
    fn moves_devices(&self, step: &Step<Pod>) -> bool {
        let known = |(namespace, name): &(Arc<str>, Arc<str>)| self.pods.get(namespace, name);
        match step {
            Step::Put(key, pod) => known(key).and_then(taken) != taken(pod),
            Step::Remove(key) => known(key).and_then(taken).is_some(),
            Step::Done => true,
            Step::Keep(_) | Step::Begin | Step::Failed(_) | Step::Resumed => false,
        }
    }

    fn was_listed(&self) -> bool {
        self.scaled_objects.was_listed()
            && self.deployments.was_listed()
            && self.stateful_sets.was_listed()
            && self.pods.was_listed()
    }

    fn failing_since(&self) -> impl Iterator<Item = Moment> {
        [
            self.scaled_objects.failing_since(),
            self.deployments.failing_since(),
            self.stateful_sets.failing_since(),
            self.pods.failing_since(),
        ]
        .into_iter()
        .flatten()
    }

    fn forget_unused(&mut self) {
        self.labels.retain(|labels| Arc::strong_count(labels) > 1);
        self.devices.retain(|devices| Arc::strong_count(devices) > 1);
        self.nodes.retain(|node| Arc::strong_count(node) > 1);
    }

    /// The scale subresources that a namespace needs; forgets the others.
    fn keep_scales(&mut self, namespace: &Arc<str>) -> BTreeSet<TargetRef> {
        let needed: BTreeSet<TargetRef> = self
            .scaled_objects
            .of(namespace)
            .map(|(_, object)| &object.target)
            .filter(|target| matches!(target.kind, TargetKind::Other { .. }))
            .cloned()
            .collect();
        if needed.is_empty() {
            self.scales.remove(namespace);
        } else {
            let scales = self.scales.entry(Arc::clone(namespace)).or_default();
            scales.retain(|key, _| needed.contains(key));
        }
        needed
    }

    /// The workloads of a namespace, ordered by name; `known` are the published ones, `leaving` the
    /// nodes that are told to go.
    fn workloads(
        &self,
        namespace: &Arc<str>,
        known: &BTreeMap<WorkloadKey, Arc<Workload>>,
        leaving: &BTreeSet<Arc<str>>,
    ) -> Vec<Workload> {
        let objects: Vec<_> = self.scaled_objects.of(namespace).collect();
        let targets: Vec<_> =
            objects.iter().map(|(_, object)| self.target(namespace, &object.target)).collect();
        let selectors: Vec<_> = objects
            .iter()
            .zip(&targets)
            .map(|((_, object), target)| match &object.pod_selector {
                Chosen::Target => target.and_then(|target| target.selector.as_ref()),
                Chosen::Pods(selector) => selector.as_ref(),
            })
            .collect();
        let all = || self.pods.of(namespace).map(|(_, pod)| pod);
        let groups = Groups::among(all());
        let pods = assign(&selectors, all()).into_iter().map(|chosen| groups.replicas(chosen));
        let scalers = self.scalers(namespace);
        let is_cut = !self.pods.has_all_of(namespace);
        let leaves = |pod: &Pod| groups.nodes(pod).any(|node| leaving.contains(node));
        objects
            .iter()
            .zip(targets)
            .zip(pods)
            .map(|(((name, object), target), pods)| {
                let name = Arc::clone(name);
                let key = Names { namespace: Arc::clone(namespace), name }.into();
                let start = known.get(&key).and_then(|known| known.kubernetes.start);
                let scalers = scalers.get(&object.target).map_or(&[][..], Vec::as_slice);
                let claim = |name: &str| self.claims.get(namespace, name);
                let n_leaving = pods.iter().filter(|pod| pod.is_ready() && leaves(pod)).count();
                let parts =
                    Parts { object, target, pods: &pods, scalers, start, n_leaving, is_cut };
                workload::build(key, &parts, claim)
            })
            .collect()
    }

    /// Whatever scales each target of a namespace.
    fn scalers(&self, namespace: &str) -> HashMap<&TargetRef, Vec<Scaler<'_>>> {
        let mut scalers: HashMap<&TargetRef, Vec<Scaler<'_>>> = HashMap::new();
        for (name, object) in self.scaled_objects.of(namespace) {
            scalers.entry(&object.target).or_default().push(Scaler::ScaledObject(name));
        }
        for (_, autoscaler) in self.hpas.of(namespace) {
            scalers.entry(&autoscaler.target).or_default().push(Scaler::Hpa(autoscaler));
        }
        scalers
    }

    fn target(&self, namespace: &str, target: &TargetRef) -> Option<&Target> {
        match target.kind {
            TargetKind::Deployment => self.deployments.get(namespace, &target.name),
            TargetKind::StatefulSet => self.stateful_sets.get(namespace, &target.name),
            TargetKind::Other { .. } => self.scales.get(namespace)?.get(target),
        }
    }
}

/// Where a pod is, and the devices that it takes there; `None` where it takes none.
fn taken(pod: &Pod) -> Option<(&Arc<str>, &Devices)> {
    let node = pod.member.node.as_ref().filter(|_| !pod.devices.is_empty());
    node.map(|node| (node, &*pod.devices))
}

/// Puts the set's own copy of a value in the place of the value.
fn share<T: ?Sized + Eq + Hash>(known: &mut HashSet<Arc<T>>, value: &mut Arc<T>) {
    match known.get(&**value) {
        Some(own) => *value = Arc::clone(own),
        None => drop(known.insert(Arc::clone(value))),
    }
}

/// The pods of each selector, in the order in which they come.
///
/// Asking each selector about each pod would take 10^8 questions in a namespace of 10,000
/// targets; a selector that demands a label is asked only about the pods that have it.
fn assign<'a>(
    selectors: &[Option<&PodSelector>],
    pods: impl Iterator<Item = &'a Pod>,
) -> Vec<Vec<&'a Pod>> {
    let mut assigned = vec![Vec::new(); selectors.len()];
    let mut anchored: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
    let mut others = Vec::new();
    for (index, selector) in selectors.iter().enumerate() {
        match selector.map(|selector| selector.anchor()) {
            Some(Some(anchor)) => anchored.entry(anchor).or_default().push(index),
            Some(None) => others.push(index),
            None => {}
        }
    }
    for pod in pods {
        let by_label = pod
            .labels
            .iter()
            .filter_map(|(key, value)| anchored.get(&(key.as_str(), value.as_str())));
        for &index in by_label.flatten().chain(&others) {
            if selectors[index].is_some_and(|selector| selector.matches(&pod.labels)) {
                assigned[index].push(pod);
            }
        }
    }
    assigned
}

/// Puts a namespace's workloads in the place of its former ones, keeping those that are the same;
/// whether any is not. Where none is, the inventory is not copied.
fn replace(published: &mut Arc<Inventory>, namespace: &Arc<str>, built: Vec<Workload>) -> bool {
    let first = WorkloadKey::new(namespace, "");
    let kept: BTreeSet<&Arc<str>> = built.iter().map(|workload| &workload.key.name).collect();
    let known = published.workloads.range(first..).map(|(key, _)| key);
    let gone: Vec<WorkloadKey> = known
        .take_while(|key| key.namespace == *namespace)
        .filter(|key| !kept.contains(&key.name))
        .cloned()
        .collect();
    let is_new = |built: &Workload| {
        published.workloads.get(&built.key).is_none_or(|known| **known != *built)
    };
    let new: Vec<Workload> = built.into_iter().filter(is_new).collect();
    if gone.is_empty() && new.is_empty() {
        return false;
    }
    let workloads = &mut Arc::make_mut(published).workloads;
    for key in gone {
        workloads.remove(&key);
    }
    workloads.extend(new.into_iter().map(|workload| (workload.key.clone(), Arc::new(workload))));
    true
}

#[cfg(test)]
mod tests;
