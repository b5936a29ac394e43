//! The shape of an engine profile: which series of an engine mean which number of a sample.
//!
//! Data and its look-up only; adding an engine is one table and one line here.

use super::{llama_cpp, lmdeploy, nim, sglang, tgi, triton, trtllm, vllm};
use crate::trigger::EngineFamily;

/// A number of [`EngineSample`](crate::decision::EngineSample), as the fold knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    Waiting,
    WaitingDeferred,
    Running,
    MaxRunning,
    KvUsage,
    KvTokens,
    /// Tokens in use, for engines without [`Field::KvUsage`].
    KvUsedTokens,
    /// With [`Field::KvBlockTokens`], for engines without [`Field::KvTokens`].
    KvBlocks,
    KvBlockTokens,
    PromptTokens,
    /// The part of [`Field::PromptTokens`] that the cache held, where that one includes it.
    CachedPromptTokens,
    GeneratedTokens,
    Finished,
    FinishedGeneratedTokens,
    Rejected,
    Preemptions,
    Steps,
    TtftSum,
    TtftCount,
    ItlSum,
    ItlCount,
    /// 1 where an engine is awake, 0 where it sleeps.
    Awake,
    /// Seconds since the epoch.
    StartedAt,
}

/// How the series of one field become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Combine {
    Sum,
    Max,
}

/// Where a row's number stands.
#[derive(Debug, Clone, Copy)]
pub(super) enum From {
    /// It is the sample's value.
    Value,
    /// It is a thousandth of the sample's value.
    Millis,
    /// It is the product of these labels; a series without one of them, or with a word in it, has
    /// none. Such series are told apart by rank alone, since their labels change as they fill.
    Labels(&'static [&'static str]),
}

/// One series' meaning.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// The name behind the profile's prefix.
    pub(super) name: &'static str,
    pub(super) field: Field,
    /// Of a field's rows only those of the lowest preference that is present count.
    pub(super) preference: u8,
    /// Only series whose label has this value.
    pub(super) only: Option<(&'static str, &'static str)>,
    pub(super) combine: Combine,
    pub(super) from: From,
}

impl Row {
    /// A series that is summed.
    pub(super) const fn sum(name: &'static str, field: Field) -> Row {
        Row { name, field, preference: 0, only: None, combine: Combine::Sum, from: From::Value }
    }

    /// A series of which the largest counts.
    pub(super) const fn max(name: &'static str, field: Field) -> Row {
        Row { combine: Combine::Max, ..Row::sum(name, field) }
    }

    /// Only where the label has this value.
    pub(super) const fn only(self, label: &'static str, value: &'static str) -> Row {
        Row { only: Some((label, value)), ..self }
    }

    /// The product of labels instead of the value.
    pub(super) const fn labels(self, labels: &'static [&'static str]) -> Row {
        Row { from: From::Labels(labels), ..self }
    }

    /// In milliseconds, where the field is in seconds.
    pub(super) const fn millis(self) -> Row {
        Row { from: From::Millis, ..self }
    }

    /// Second, third … choice.
    pub(super) const fn else_at(self, preference: u8) -> Row {
        Row { preference, ..self }
    }
}

/// One engine family.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) family: EngineFamily,
    /// What stands before every name: each spelling of it.
    pub(super) prefixes: &'static [&'static str],
    /// Sorted by name, for the look-up.
    pub(super) rows: &'static [Row],
    /// Series with another value in one of these labels repeat what other series say; an empty
    /// label is an absent one.
    pub(super) keep: &'static [(&'static str, &'static str)],
    /// Other programs have some of the names too: only with a gauge of waiting or running requests
    /// is it this engine.
    pub(super) needs_load: bool,
}

impl Profile {
    /// Every name that is read, without prefix, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        // Rows are sorted: one name's rows are neighbours.
        self.rows.chunk_by(|a, b| a.name == b.name).filter_map(|rows| Some(rows.first()?.name))
    }
}

/// In the order in which families are recognised: NIM's names have no prefix, and a NIM that shows
/// vLLM's as well is read as vLLM.
pub(super) const PROFILES: [&Profile; 8] = [
    &vllm::PROFILE,
    &sglang::PROFILE,
    &tgi::PROFILE,
    &trtllm::PROFILE,
    &triton::PROFILE,
    &llama_cpp::PROFILE,
    &lmdeploy::PROFILE,
    &nim::PROFILE,
];

/// Start of the process in seconds, the same in every language's client library; the fallback
/// where an engine has no `_created` series.
pub(super) const PROCESS_START: &str = "process_start_time_seconds";

/// What a metric's name stands for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meaning {
    /// Index into [`PROFILES`].
    pub(super) profile: usize,
    /// The rows of that name, at least one.
    pub(super) rows: &'static [Row],
}

/// What a name means, whatever its spelling; `None` for a name that no profile reads.
pub(super) fn look_up(name: &[u8]) -> Option<Meaning> {
    // Nine of ten lines of an engine's page are buckets, and no profile reads one.
    if name.ends_with(b"_bucket") {
        return None;
    }
    let (profile, name) = PROFILES.iter().enumerate().find_map(|(index, profile)| {
        let mut prefixes = profile.prefixes.iter();
        Some((index, prefixes.find_map(|prefix| behind(prefix.as_bytes(), name))?))
    })?;
    let rows = PROFILES[profile].rows;
    let rows = &rows[rows.partition_point(|row| row.name.as_bytes() < name)..];
    let n_rows = rows.iter().take_while(|row| row.name.as_bytes() == name).count();
    (n_rows > 0).then(|| Meaning { profile, rows: &rows[..n_rows] })
}

/// The name behind a prefix. Most lines are of another engine, which their first byte tells.
fn behind<'n>(prefix: &[u8], name: &'n [u8]) -> Option<&'n [u8]> {
    match prefix.first() {
        Some(first) if name.first() != Some(first) => None,
        Some(_) | None => name.strip_prefix(prefix),
    }
}
