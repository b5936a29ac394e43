//! Collects the series of one target: which count, which are copies, which rank they belong to.
//!
//! One fold is for one target (a pod or an endpoint); it must never be fed with two.
//!
//! Copies of a series are those that differ only by labels of the target: two Prometheus of one job, two
//! jobs of one pod, the processes of one server. Such labels have any name, but whoever puts them on puts
//! them on all series, and so on the gauges of the load; what these have is no part of a series, except
//! what tells engines apart. A label that only other series have is the engine's own, as the reasons for
//! which requests end: those are summed.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use super::profile::{self, Field, From, Meaning, PROCESS_START, PROFILES, Profile, Row};
use super::totals::Totals;
use super::{EnginePage, Filter, PageError};
use crate::decision::Moment;

/// Labels that tell engines of one target apart: data-parallel ranks, Ray's replicas and workers, and
/// behind Prometheus the pod or port. Values of different ranks are summed.
const RANK_LABELS: [&str; 8] = [
    "engine",
    "dp_rank",
    "ReplicaId",
    "WorkerId",
    "pod",
    "exported_pod",
    "instance",
    "exported_instance",
];

/// The label of the processes of one server (vLLM 0.9.2 to 0.11.0): their copies are nobody's fault.
const PROCESS_LABEL: &str = "pid";

/// Further labels by which series of one page are told apart. A pod has some twenty labels that a scrape
/// may copy; what is beyond these counts as the target's.
const MAX_FURTHER: usize = 64;

/// Labels by which routers and gateways mark the engines' names that they repeat: the
/// production-stack router and SGLang's model gateway.
const ROUTER_LABELS: [&str; 2] = profile::ROUTER_LABELS;

/// A series that only the production-stack router has, under vLLM's prefix.
const ROUTER_NAMES: [&[u8]; 2] = profile::ROUTER_NAMES;

/// The series of one target, from a page or from Prometheus.
#[derive(Debug)]
pub struct SeriesFold<'f> {
    filter: &'f Filter,
    /// What was added, until it is known which labels are the target's.
    taken: Vec<Taken>,
    /// The further labels of all of them: hashes of name and label.
    further: Vec<(u32, u32)>,
    /// Names of labels that gauges of the load have.
    of_target: BTreeSet<u32>,
    cells: BTreeMap<Key, Cell>,
    /// Copies were left out.
    copied: bool,
    /// Fields, with their profile, that the target knows, with or without a sample.
    declared: BTreeSet<(usize, Field)>,
    pub(super) process_start: Option<f64>,
    /// The target's name for itself is a router's.
    router_name: bool,
    /// Series that repeat another target's were left out.
    n_repeated: usize,
    /// Series of the wanted model, or of any.
    n_of_model: usize,
    other_model: Option<Box<str>>,
    /// The cache's configuration came without a rank's label: V0.
    pub(super) unranked_info: bool,
}

/// What a name is wanted for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted {
    /// A number of an engine.
    Engine(Meaning),
    ProcessStart,
    /// Only a router has it.
    Router,
}

/// Ordered so that the cells of one field are neighbours, its preferred names first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    profile: usize,
    field: Field,
    preference: u8,
    rank: u64,
    series: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    pub(super) rank: u64,
    /// Which of its target's copies it is.
    target: u64,
    pub(super) value: f64,
    /// `None` for a page without timestamps: the page's own time.
    pub(super) at: Option<Moment>,
    pub(super) row: &'static Row,
}

#[derive(Debug)]
struct Taken {
    key: Key,
    cell: Cell,
    /// Its further labels, of those of all.
    further: Range<usize>,
}

#[derive(Debug, Default)]
struct Identity {
    rank: u64,
    /// What tells it from others of its rank, without the further labels.
    series: u64,
    further: Range<usize>,
    has_engine: bool,
}

impl<'f> SeriesFold<'f> {
    /// An empty fold for one target.
    #[must_use]
    pub fn new(filter: &'f Filter) -> SeriesFold<'f> {
        SeriesFold {
            filter,
            taken: Vec::new(),
            further: Vec::new(),
            of_target: BTreeSet::new(),
            cells: BTreeMap::new(),
            copied: false,
            declared: BTreeSet::new(),
            process_start: None,
            router_name: false,
            n_repeated: 0,
            n_of_model: 0,
            other_model: None,
            unranked_info: false,
        }
    }

    /// Adds one series with the time of its sample. Series that mean nothing here are passed over.
    pub fn add<K, V>(
        &mut self,
        name: &str,
        labels: impl Iterator<Item = (K, V)> + Clone,
        value: f64,
        at: Moment,
    ) where
        K: AsRef<str>,
        V: AsRef<str>,
    {
        if let Some(wanted) = Self::look_up(name.as_bytes()) {
            self.take(wanted, labels, value, Some(at));
        }
    }

    /// The sample of all series added.
    ///
    /// # Errors
    ///
    /// When no known engine's sample is among them, or its load is impossible.
    pub fn finish(self) -> Result<EnginePage, PageError> {
        // Every series came with its own time, so the page's is never used.
        self.close(Moment::default())
    }

    pub(super) fn look_up(name: &[u8]) -> Option<Wanted> {
        if let Some(meaning) = profile::look_up(name) {
            Some(Wanted::Engine(meaning))
        } else if name == PROCESS_START.as_bytes() {
            Some(Wanted::ProcessStart)
        } else {
            ROUTER_NAMES.contains(&name).then_some(Wanted::Router)
        }
    }

    pub(super) fn declare(&mut self, wanted: Wanted) {
        if let Wanted::Engine(meaning) = wanted {
            self.declared.extend(meaning.rows.iter().map(|row| (meaning.profile, row.field)));
        }
    }

    /// Takes a sample of a wanted name.
    pub(super) fn take<K, V>(
        &mut self,
        wanted: Wanted,
        labels: impl Iterator<Item = (K, V)> + Clone,
        value: f64,
        at: Option<Moment>,
    ) where
        K: AsRef<str>,
        V: AsRef<str>,
    {
        let meaning = match wanted {
            Wanted::Engine(meaning) => meaning,
            Wanted::ProcessStart => {
                self.process_start = Some(self.process_start.map_or(value, |was| was.max(value)));
                return;
            }
            Wanted::Router => {
                self.router_name = true;
                return;
            }
        };
        let Some(identity) = self.identify(PROFILES[meaning.profile], labels.clone()) else {
            return;
        };
        for row in meaning.rows {
            let selected = row.only.is_none_or(|(label, wanted)| {
                labels.clone().any(|(k, v)| k.as_ref() == label && v.as_ref() == wanted)
            });
            if !selected {
                continue;
            }
            self.declared.insert((meaning.profile, row.field));
            if is_load(row.field) {
                let selects = row.only.map(|(label, _)| short_hash_of(label));
                let names = self.further[identity.further.clone()].iter().map(|(name, _)| *name);
                self.of_target.extend(names.filter(|name| Some(*name) != selects));
            }
            let own = identity.series.wrapping_add(hash_of(row.name));
            let (value, series, further) = match row.from {
                From::Value => (Some(value), own, identity.further.clone()),
                From::Millis => (Some(value / 1e3), own, identity.further.clone()),
                From::Labels(names) => {
                    self.unranked_info |= !identity.has_engine;
                    (product(names, labels.clone()), 0, 0..0)
                }
            };
            let Some(value) = value else { continue };
            let key = Key {
                profile: meaning.profile,
                field: row.field,
                preference: row.preference,
                rank: identity.rank,
                series,
            };
            let cell = Cell { rank: identity.rank, target: 0, value, at, row };
            self.taken.push(Taken { key, cell, further });
        }
    }

    /// Tells copies from series, now that the target's labels are known.
    fn settle(&mut self) {
        let process = short_hash_of(PROCESS_LABEL);
        for Taken { mut key, mut cell, further } in std::mem::take(&mut self.taken) {
            for &(name, label) in &self.further[further] {
                if !self.of_target.contains(&name) {
                    key.series = key.series.wrapping_add(label.into());
                } else if name != process {
                    cell.target = cell.target.wrapping_add(label.into());
                }
            }
            match self.cells.entry(key) {
                Entry::Vacant(entry) => {
                    entry.insert(cell);
                }
                Entry::Occupied(mut entry) => {
                    self.copied |= entry.get().target != cell.target;
                    entry.insert(newer(*entry.get(), cell));
                }
            }
        }
    }

    /// Whose series it is; `None` for one that must not be counted.
    fn identify<K, V>(
        &mut self,
        profile: &Profile,
        labels: impl Iterator<Item = (K, V)>,
    ) -> Option<Identity>
    where
        K: AsRef<str>,
        V: AsRef<str>,
    {
        let from = self.further.len();
        let mut identity = Identity { further: from..from, ..Identity::default() };
        for (label, value) in labels {
            let (label, value) = (label.as_ref(), value.as_ref());
            // An empty label is an absent one.
            if value.is_empty() {
                continue;
            }
            let repeats = profile.keep.iter().any(|&(name, kept)| name == label && value != kept);
            if repeats || ROUTER_LABELS.contains(&label) {
                self.n_repeated += 1;
                return None;
            }
            if label == "model_name" {
                let wanted = self.filter.model_name.as_deref();
                if wanted.is_some_and(|wanted| wanted != value) {
                    self.other_model.get_or_insert_with(|| value.into());
                    return None;
                }
                self.n_of_model += 1;
                identity.series = identity.series.wrapping_add(hash_of(value));
                continue;
            }
            // Sums of hashes, so that the order of labels does not matter.
            if RANK_LABELS.contains(&label) {
                identity.rank = identity.rank.wrapping_add(hash_of((label, value)));
                identity.has_engine |= label == "engine";
            } else if identity.further.len() < MAX_FURTHER {
                self.further.push((short_hash_of(label), short_hash_of((label, value))));
                identity.further.end += 1;
            }
        }
        Some(identity)
    }

    /// The sample; `page_at` is the time of series without a timestamp.
    pub(super) fn close(mut self, page_at: Moment) -> Result<EnginePage, PageError> {
        self.settle();
        let wanted = |family| self.filter.family.is_none_or(|wanted| wanted == family);
        let present = |index: usize| {
            let needs_load = PROFILES[index].needs_load;
            let known = |&(known, field): &_| known == index && (!needs_load || is_load(field));
            self.declared.iter().any(known)
        };
        let found =
            PROFILES.iter().enumerate().find(|&(i, profile)| wanted(profile.family) && present(i));
        if let (Some(wanted), Some(found), 0) =
            (&self.filter.model_name, &self.other_model, self.n_of_model)
        {
            return Err(PageError::OtherModel { wanted: wanted.clone(), found: found.clone() });
        }
        match found {
            Some((i, profile)) if !self.router_name => {
                let page = Totals::new(&self, i).page(profile.family, page_at)?;
                Ok(EnginePage { copied: self.copied, ..page })
            }
            None if self.n_repeated == 0 && !self.router_name => Err(PageError::NoKnownSeries),
            _ => Err(PageError::Router),
        }
    }

    /// The cells of a field's preferred names.
    pub(super) fn cells(&self, profile: usize, field: Field) -> impl Iterator<Item = &Cell> {
        let from = Key { profile, field, preference: 0, rank: 0, series: 0 };
        let mut cells = self
            .cells
            .range(from..)
            .take_while(move |(key, _)| (key.profile, key.field) == (profile, field))
            .peekable();
        let preferred = cells.peek().map(|(key, _)| key.preference);
        cells.take_while(move |(key, _)| Some(key.preference) == preferred).map(|(_, cell)| cell)
    }

    pub(super) fn all_cells(&self, profile: usize) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(move |(key, _)| key.profile == profile).map(|(_, cell)| cell)
    }

    pub(super) fn declares(&self, profile: usize, field: Field) -> bool {
        self.declared.contains(&(profile, field))
    }
}

/// A gauge of what an engine has to do.
fn is_load(field: Field) -> bool {
    matches!(field, Field::Waiting | Field::Running)
}

/// Of two copies the newer, of two equally old ones the larger.
fn newer(a: Cell, b: Cell) -> Cell {
    if b.at > a.at || (b.at == a.at && b.value > a.value) { b } else { a }
}

fn product<K, V>(names: &[&str], labels: impl Iterator<Item = (K, V)> + Clone) -> Option<f64>
where
    K: AsRef<str>,
    V: AsRef<str>,
{
    names.iter().try_fold(1.0, |product, name| {
        let (_, value) = labels.clone().find(|(label, _)| label.as_ref() == *name)?;
        Some(product * value.as_ref().parse::<f64>().ok()?)
    })
}

fn short_hash_of(value: impl Hash) -> u32 {
    let [a, b, c, d, ..] = hash_of(value).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
