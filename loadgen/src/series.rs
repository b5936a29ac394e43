//! Which series of an engine mean which number of its load: the one table of names, which the
//! scaler reads engines by, and `run --watch-engines` too.
//!
//! Data and its look-up only; adding an engine is one table and one line here.

pub(crate) mod lines;
mod llama_cpp;
mod lmdeploy;
mod nim;
mod sglang;
mod tgi;
mod triton;
mod trtllm;
mod vllm;

/// An engine family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineFamily {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// Text Generation Inference.
    Tgi,
    /// trtllm-serve, TensorRT-LLM's own server.
    Trtllm,
    /// Triton with the TensorRT-LLM backend.
    Triton,
    /// llama.cpp's server.
    LlamaCpp,
    /// LMDeploy.
    LmDeploy,
    /// NVIDIA NIM for LLMs.
    Nim,
}

impl EngineFamily {
    /// Every family with the name that a trigger's `engine` has for it.
    pub const NAMED: [(&'static str, EngineFamily); 8] = [
        ("vllm", EngineFamily::Vllm),
        ("sglang", EngineFamily::Sglang),
        ("tgi", EngineFamily::Tgi),
        ("trtllm", EngineFamily::Trtllm),
        ("triton", EngineFamily::Triton),
        ("llamacpp", EngineFamily::LlamaCpp),
        ("lmdeploy", EngineFamily::LmDeploy),
        ("nim", EngineFamily::Nim),
    ];
}

/// A number of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// Requests without a place in the batch, for want of room.
    Waiting,
    /// Requests that wait for what replicas do not cure.
    WaitingDeferred,
    /// Requests in the batch.
    Running,
    /// Most requests in the batch.
    MaxRunning,
    /// The used share of the KV cache, 0 to 1.
    KvUsage,
    /// Tokens that fit into the KV cache.
    KvTokens,
    /// Tokens in use, for engines without [`Field::KvUsage`].
    KvUsedTokens,
    /// With [`Field::KvBlockTokens`], for engines without [`Field::KvTokens`].
    KvBlocks,
    /// Tokens of a block.
    KvBlockTokens,
    /// Prompt tokens read.
    PromptTokens,
    /// The part of [`Field::PromptTokens`] that the cache held, where that one includes it.
    CachedPromptTokens,
    /// Prompt tokens read or held by the cache, where [`Field::PromptTokens`] does not include these.
    AllPromptTokens,
    /// Tokens made.
    GeneratedTokens,
    /// Requests that ended, well or not.
    Finished,
    /// Tokens of requests that ended.
    FinishedGeneratedTokens,
    /// Requests turned away.
    Rejected,
    /// Requests that lost their place.
    Preemptions,
    /// Steps of the engine.
    Steps,
    /// Seconds to the first token, of all requests.
    TtftSum,
    /// Requests in it.
    TtftCount,
    /// Seconds between tokens, of all tokens.
    ItlSum,
    /// Tokens in it.
    ItlCount,
    /// 1 where an engine is awake, 0 where it sleeps.
    Awake,
    /// Seconds since the epoch.
    StartedAt,
}

/// How the series of one field become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combine {
    /// They are added up.
    Sum,
    /// The largest counts.
    Max,
}

/// Where a row's number stands.
#[derive(Debug, Clone, Copy)]
pub enum From {
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
pub struct Row {
    /// The name behind the profile's prefix.
    pub name: &'static str,
    /// What it means.
    pub field: Field,
    /// Of a field's rows only those of the lowest preference that is present count.
    pub preference: u8,
    /// Only series whose label has this value.
    pub only: Option<(&'static str, &'static str)>,
    /// How several series become one number.
    pub combine: Combine,
    /// Where the number stands.
    pub from: From,
}

impl Row {
    /// A series that is summed.
    #[must_use]
    pub const fn sum(name: &'static str, field: Field) -> Row {
        Row { name, field, preference: 0, only: None, combine: Combine::Sum, from: From::Value }
    }

    /// A series of which the largest counts.
    #[must_use]
    pub const fn max(name: &'static str, field: Field) -> Row {
        Row { combine: Combine::Max, ..Row::sum(name, field) }
    }

    /// Only where the label has this value.
    #[must_use]
    pub const fn only(self, label: &'static str, value: &'static str) -> Row {
        Row { only: Some((label, value)), ..self }
    }

    /// The product of labels instead of the value.
    #[must_use]
    pub const fn labels(self, labels: &'static [&'static str]) -> Row {
        Row { from: From::Labels(labels), ..self }
    }

    /// In milliseconds, where the field is in seconds.
    #[must_use]
    pub const fn millis(self) -> Row {
        Row { from: From::Millis, ..self }
    }

    /// Second, third … choice.
    #[must_use]
    pub const fn else_at(self, preference: u8) -> Row {
        Row { preference, ..self }
    }
}

/// One engine family.
#[derive(Debug)]
pub struct Profile {
    /// Which.
    pub family: EngineFamily,
    /// What stands before every name: each spelling of it.
    pub prefixes: &'static [&'static str],
    /// Sorted by name, for the look-up.
    pub rows: &'static [Row],
    /// Series with another value in one of these labels repeat what other series say; an empty
    /// label is an absent one.
    pub keep: &'static [(&'static str, &'static str)],
    /// Other programs have some of the names too: only with a gauge of waiting or running requests
    /// is it this engine.
    pub needs_load: bool,
}

impl Profile {
    /// Every name that is read, without prefix, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        // Rows are sorted: one name's rows are neighbours.
        self.rows.chunk_by(|a, b| a.name == b.name).filter_map(|rows| Some(rows.first()?.name))
    }
}

/// In the order in which families are recognised: NIM's names have no prefix, and a NIM that shows
/// vLLM's as well is read as vLLM.
pub const PROFILES: [&Profile; 8] = [
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
pub const PROCESS_START: &str = "process_start_time_seconds";

/// Labels by which routers and gateways mark the engines' names that they repeat: the
/// production-stack router and SGLang's model gateway.
pub const ROUTER_LABELS: [&str; 2] = ["server", "worker_addr"];

/// A series that only the production-stack router has, under vLLM's prefix.
pub const ROUTER_NAMES: [&[u8]; 2] =
    [b"vllm:num_incoming_requests_total", b"vllm_num_incoming_requests_total"];

/// What a metric's name stands for.
#[derive(Debug, Clone, Copy)]
pub struct Meaning {
    /// Index into [`PROFILES`].
    pub profile: usize,
    /// The rows of that name, at least one.
    pub rows: &'static [Row],
}

/// What a name means, whatever its spelling; `None` for a name that no profile reads.
#[must_use]
pub fn look_up(name: &[u8]) -> Option<Meaning> {
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
