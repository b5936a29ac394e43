//! The shape of an engine profile: which series of an engine mean which number of a sample.
//!
//! Data and its look-up only; adding an engine is one table and one line here.

use super::{sglang, vllm};
use crate::trigger::EngineFamily;

/// A number of [`EngineSample`](crate::decision::EngineSample), as the fold knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    Waiting,
    WaitingDeferred,
    Running,
    KvUsage,
    KvTokens,
    PromptTokens,
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
    /// It is the product of these labels; a series without one of them, or with a word in it, has
    /// none. Such series are told apart by rank alone, since their labels change as they fill.
    Labels(&'static [&'static str]),
}

/// One series' meaning.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// The name behind the family's prefix.
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

    /// Second, third … choice.
    pub(super) const fn else_at(self, preference: u8) -> Row {
        Row { preference, ..self }
    }
}

/// One engine family.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) family: EngineFamily,
    /// The word before `:` or `_` in every name.
    pub(super) prefix: &'static str,
    /// Whether Ray re-exports the names with `ray_` before them.
    pub(super) ray: bool,
    /// Sorted by name, for the look-up.
    pub(super) rows: &'static [Row],
    /// Series with another value in one of these labels repeat what other series say; an empty
    /// label is an absent one.
    pub(super) keep: &'static [(&'static str, &'static str)],
}

/// In the order in which families are recognised.
pub(super) const PROFILES: [&Profile; 2] = [&vllm::PROFILE, &sglang::PROFILE];

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
pub(super) fn lookup(name: &[u8]) -> Option<Meaning> {
    // Nine of ten lines of an engine's page are buckets, and no profile reads one.
    if name.ends_with(b"_bucket") {
        return None;
    }
    let (ray, name) = match name.strip_prefix(b"ray_") {
        Some(name) => (true, name),
        None => (false, name),
    };
    let (profile, name) = PROFILES.iter().enumerate().find_map(|(i, profile)| {
        let (separator, name) = name.strip_prefix(profile.prefix.as_bytes())?.split_first()?;
        (matches!(separator, b':' | b'_') && (profile.ray || !ray)).then_some((i, name))
    })?;
    let rows = PROFILES[profile].rows;
    let rows = &rows[rows.partition_point(|row| row.name.as_bytes() < name)..];
    let n_rows = rows.iter().take_while(|row| row.name.as_bytes() == name).count();
    (n_rows > 0).then(|| Meaning { profile, rows: &rows[..n_rows] })
}
