//! What a dialect is, and which there are; each lists its families in its order.
//!
//! Must not define a family.

mod others;
mod vllm;

use super::families::Family;

/// An engine's, or a version's, way to show its metrics.
#[derive(Debug)]
pub struct Dialect {
    /// What `--dialect` calls it.
    pub name: &'static str,
    /// What `/version` answers.
    pub version: &'static str,
    /// How its names and texts are known. What is not captured has the families of load, tokens and
    /// latency only, but for vLLM.
    pub evidence: Evidence,
    /// The content type of the page.
    pub content_type: &'static str,
    /// Where the page is.
    pub paths: &'static [&'static str],
    /// Whether `/metrics` is JSON instead, as trtllm-serve has it.
    pub has_json: bool,
    /// Whether a scraper that prefers OpenMetrics, and does not say that it takes every name, gets
    /// underscores for colons, as the ASGI mount of Python's client since 0.23 does it.
    pub has_underscores: bool,
    /// How the server behaves beside its page.
    pub manners: Manners,
    pub(super) families: &'static [Family],
    /// What stands before the name of each engine series.
    pub(super) namespace: &'static str,
    /// Labels of every engine series.
    pub(super) labels: &'static [Label],
    /// What the names of counters end in.
    pub(super) counter_suffix: &'static str,
    pub(super) numbers: Numbers,
    /// Whether each counter and histogram says since when it has counted.
    pub(super) has_created: bool,
    /// Whether the page begins with what Python's client shows of the process.
    pub(super) has_process: bool,
    /// Engine and API server are processes of their own, so every page is in multiprocess mode.
    pub(super) always_multiprocess: bool,
    pub(super) before_first: BeforeFirst,
    pub(super) counts_http: bool,
}

/// How the names and texts of a page are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// Pages of a running server bear them out.
    Captured,
    /// Uncaptured, but the engine's own metrics code has written them, without an engine.
    Written,
    /// Uncaptured: from the engine's own source or documentation alone.
    Uncaptured,
}

impl Evidence {
    /// In a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Evidence::Captured => "captured",
            Evidence::Written => "written",
            Evidence::Uncaptured => "uncaptured",
        }
    }
}

/// How a server behaves beside its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manners {
    /// After its last client has gone away, an engine's gauges stay as they were until it makes a
    /// token again.
    pub gauges_stick_after_abort: bool,
    /// On SIGTERM with requests in flight, the engine dies and leaves their connections open
    /// without an answer.
    pub hangs_on_sigterm: bool,
    /// vLLM's own paths: `/load`, `/version`, `/ping`, `/sleep`, `/wake_up`, `/is_sleeping`.
    pub has_vllm_paths: bool,
    /// What its health paths do.
    pub health: Health,
    /// It listens while it loads its weights, and answers 503 "Loading model" to everything.
    pub listens_while_loading: bool,
    /// Requests that run at once unless the command line says otherwise; `None` for the profile's.
    pub slots: Option<usize>,
}

impl Manners {
    /// vLLM's, and those of whatever nothing better is known of.
    pub(super) const VLLM: Manners = Manners {
        gauges_stick_after_abort: false,
        hangs_on_sigterm: false,
        has_vllm_paths: true,
        health: Health::Empty(&["/health"]),
        listens_while_loading: false,
        slots: None,
    };

    /// Another engine's: without vLLM's paths.
    pub(super) const OTHER: Manners = Manners { has_vllm_paths: false, ..Manners::VLLM };
}

/// What a server's health paths do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// They answer 200 without a body, whatever the engine does.
    Empty(&'static [&'static str]),
    /// They answer 200 with this JSON.
    Says(&'static [&'static str], &'static str),
    /// They answer 200 when the engine makes a token: one of its own if it is idle. Otherwise 503
    /// with this body, after 20 s, which is SGLang's time.
    Generates(&'static [&'static str], &'static str),
}

impl Health {
    /// Its paths.
    #[must_use]
    pub fn paths(self) -> &'static [&'static str] {
        match self {
            Health::Empty(paths) | Health::Says(paths, _) | Health::Generates(paths, _) => paths,
        }
    }
}

/// A label of every engine series.
#[derive(Debug, Clone, Copy)]
pub(super) enum Label {
    /// Which rank it belongs to.
    Rank(&'static str),
    /// The served model.
    Model(&'static str),
    Fixed(&'static str, &'static str),
}

/// How numbers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    /// As Python's client does.
    Python,
    /// As few digits as name the number.
    Shortest,
    /// As C++ streams do by themselves: six digits.
    SixDigits,
}

/// What of the engine's families is there before its first step.
#[derive(Debug, Clone, Copy)]
pub(super) enum BeforeFirst {
    Everything,
    /// The heads of all, without samples.
    Heads,
    /// These families, whole.
    Only(&'static [&'static str]),
}

/// What dialects of Python's client have in common, and where others begin from.
const PYTHON: Dialect = Dialect {
    name: "",
    version: "",
    evidence: Evidence::Uncaptured,
    content_type: "text/plain; version=0.0.4; charset=utf-8",
    paths: &["/metrics"],
    has_json: false,
    has_underscores: false,
    manners: Manners::VLLM,
    families: &[],
    namespace: "",
    labels: &[],
    counter_suffix: "_total",
    numbers: Numbers::Python,
    has_created: false,
    has_process: false,
    always_multiprocess: false,
    before_first: BeforeFirst::Everything,
    counts_http: false,
};

/// No dialect has that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("dialect `{name}` is not known: expected one of {}", known.join(", "))]
pub struct UnknownDialect {
    /// What was asked for.
    pub name: String,
    /// What there is.
    pub known: Vec<&'static str>,
}

impl Dialect {
    /// Every dialect, the default first.
    pub const ALL: [&'static Dialect; 17] = [
        &Dialect::VLLM_0_32,
        &Dialect::VLLM_0_33,
        &Dialect::VLLM_0_20,
        &Dialect::VLLM_0_11,
        &Dialect::VLLM_0_9_2,
        &Dialect::VLLM_0_9_1_V1,
        &Dialect::VLLM_0_9_1_V0,
        &Dialect::VLLM_0_8,
        &Dialect::VLLM_0_6,
        &Dialect::VLLM_RAY,
        &Dialect::SGLANG,
        &Dialect::TGI,
        &Dialect::TRTLLM,
        &Dialect::TRITON,
        &Dialect::LLAMA_CPP,
        &Dialect::LMDEPLOY,
        &Dialect::NIM,
    ];

    /// The dialect of that name.
    ///
    /// # Errors
    ///
    /// When there is none; the error lists those that there are.
    pub fn named(name: &str) -> Result<&'static Dialect, UnknownDialect> {
        Dialect::ALL.into_iter().find(|dialect| dialect.name == name).ok_or_else(|| {
            let known = Dialect::ALL.iter().map(|dialect| dialect.name).collect();
            UnknownDialect { name: name.to_owned(), known }
        })
    }

    /// Whether its page can tell several engines of one server apart.
    #[must_use]
    pub fn tells_ranks_apart(&self) -> bool {
        self.labels.iter().any(|label| matches!(label, Label::Rank(_)))
    }

    /// The engine's name, as it stands before a version.
    #[must_use]
    pub fn engine(&self) -> &'static str {
        self.name.split('-').next().unwrap_or_default()
    }
}
