//! Collects the series of one target: which count, which are copies, which rank they belong to.
//!
//! One fold is for one target (a pod or an endpoint); it must never be fed with two.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::profile::{self, Field, From, Meaning, PROCESS_START, PROFILES, Profile, Row};
use super::totals::Totals;
use super::{EnginePage, Filter, PageError};
use crate::decision::Moment;

/// Labels that tell engines of one target apart: data-parallel ranks, Ray's replicas, and behind
/// Prometheus the pod or port. Values of different ranks are summed.
const RANK_LABELS: [&str; 5] = ["engine", "dp_rank", "ReplicaId", "pod", "instance"];

/// Labels that only tell copies of one series apart: the processes of one server (`pid`, vLLM
/// 0.9.2 to 0.11.0), scrape jobs, and the replicas of a Prometheus pair. Of copies one counts.
const COPY_LABELS: [&str; 11] = [
    "pid",
    "job",
    "service",
    "endpoint",
    "container",
    "node",
    "prometheus",
    "prometheus_replica",
    "receive_replica",
    "replica",
    "__replica__",
];

/// Labels by which routers and gateways mark the engines' names that they repeat: the
/// production-stack router and SGLang's model gateway.
const ROUTER_LABELS: [&str; 2] = profile::ROUTER_LABELS;

/// A series that only the production-stack router has, under vLLM's prefix.
const ROUTER_NAMES: [&[u8]; 2] = profile::ROUTER_NAMES;

/// The series of one target, from a page or from Prometheus.
#[derive(Debug)]
pub struct SeriesFold<'f> {
    filter: &'f Filter,
    cells: BTreeMap<Key, Cell>,
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
    pub(super) value: f64,
    /// `None` for a page without timestamps: the page's own time.
    pub(super) at: Option<Moment>,
    pub(super) row: &'static Row,
}

#[derive(Debug, Default)]
struct Identity {
    rank: u64,
    series: u64,
    has_engine: bool,
}

impl<'f> SeriesFold<'f> {
    /// An empty fold for one target.
    #[must_use]
    pub fn new(filter: &'f Filter) -> SeriesFold<'f> {
        SeriesFold {
            filter,
            cells: BTreeMap::new(),
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
            let (value, series) = match row.from {
                From::Value => (Some(value), identity.series.wrapping_add(hash_of(row.name))),
                From::Millis => {
                    (Some(value / 1e3), identity.series.wrapping_add(hash_of(row.name)))
                }
                From::Labels(names) => {
                    self.unranked_info |= !identity.has_engine;
                    (product(names, labels.clone()), 0)
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
            let cell = Cell { rank: identity.rank, value, at, row };
            self.cells.entry(key).and_modify(|was| *was = newer(*was, cell)).or_insert(cell);
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
        let mut identity = Identity::default();
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
            }
            // Sums of hashes, so that the order of labels does not matter.
            let part = hash_of((label, value));
            if RANK_LABELS.contains(&label) {
                identity.rank = identity.rank.wrapping_add(part);
                identity.has_engine |= label == "engine";
            } else if !COPY_LABELS.contains(&label) {
                identity.series = identity.series.wrapping_add(part);
            }
        }
        Some(identity)
    }

    /// The sample; `page_at` is the time of series without a timestamp.
    pub(super) fn close(self, page_at: Moment) -> Result<EnginePage, PageError> {
        let wanted = |family| self.filter.family.is_none_or(|wanted| wanted == family);
        let present = |index: usize| {
            let is_load = |field| matches!(field, Field::Waiting | Field::Running);
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
                Totals::new(&self, i).page(profile.family, page_at)
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

fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
