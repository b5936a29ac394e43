//! What an engine on a GPU is: its limits, step times, cold start and manners at shutdown, as data.
//!
//! Must not hold numbers of its own: each preset is a file in `profiles/`, with its sources.

mod check;

use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub use check::{Fault, Faults};

use crate::engine::step_time::{Curve, StepTime};
use crate::engine::time::ps_from_secs;
use crate::files::{self, MAX_DOCUMENT_BYTES};
use crate::yaml;

/// A served model on its GPUs.
#[derive(Debug, Clone, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The name people use, such as `8b-a100`.
    pub name: String,
    /// One line: model, precision, GPUs.
    pub about: String,
    /// GPUs of one replica, at least 1.
    pub gpus: usize,
    /// The KV cache.
    pub kv: Kv,
    /// The scheduler's limits.
    pub limits: Limits,
    /// How long a step takes.
    pub step: Step,
    /// What the API server does. Default: nothing that takes time.
    #[serde(default)]
    pub frontend: Frontend,
    /// The stages of a cold start.
    pub start: Start,
    /// How long a sleeping engine takes to wake.
    pub wake: Wake,
    /// What happens on SIGTERM.
    pub shutdown: Shutdown,
}

/// A KV cache.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Kv {
    /// Tokens in a block; vLLM: 16 on GPUs, 128 on CPUs.
    pub block_tokens: usize,
    /// Blocks (`num_gpu_blocks`), of which one is never used.
    pub blocks: usize,
    /// Whether blocks of finished requests can be hit again. Default: true, as in `vllm serve`.
    #[serde(default = "yes")]
    pub prefix_caching: bool,
}

/// A scheduler's limits; the names are vLLM's.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Requests that run at once.
    pub max_num_seqs: usize,
    /// Tokens of one step.
    pub max_num_batched_tokens: usize,
    /// Prompt and output of one request together (`max_model_len`).
    pub max_model_tokens: usize,
    /// Prompt tokens of one request in one step while others are there. Default: 0, no limit.
    #[serde(default)]
    pub long_prefill_token_threshold: usize,
    /// Blocks that an admission leaves free while others run. Default: 0.
    #[serde(default)]
    pub watermark_blocks: usize,
}

/// Points of a piecewise linear curve: (count, milliseconds), flat before the first, straight
/// between them, extended along the last two. `[[0, 0], [1000, 67]]` is 67 µs for each one.
pub type Points = Vec<(usize, f64)>;

/// The time of a step: the sum of four terms.
#[derive(Debug, Clone, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Milliseconds of every step: reading the weights, launching.
    pub base_ms: f64,
    /// By prompt tokens computed in the step.
    pub prefill_ms: Points,
    /// By requests that decode.
    pub decode_ms: Points,
    /// By tokens that lie in the KV cache.
    pub resident_ms: Points,
    /// Nanoseconds for each pair of a computed prompt token and a token before it: attention, which
    /// makes long prompts grow with their square. Default: 0.
    #[serde(default)]
    pub attention_ns: f64,
}

/// The work of the API server's one thread; requests and tokens wait for each other there.
#[derive(Debug, Clone, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Frontend {
    /// By prompt tokens, before the scheduler sees the request.
    pub request_ms: Points,
    /// Milliseconds for each token that is streamed.
    pub token_ms: f64,
}

impl Default for Frontend {
    fn default() -> Frontend {
        Frontend { request_ms: vec![(0, 0.0)], token_ms: 0.0 }
    }
}

/// The stages of a cold start, in their order.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// From the pod's creation to its node.
    pub schedule: Spread,
    /// Image and container.
    pub pull: Spread,
    /// Imports and weights.
    pub load: Spread,
    /// Compilation and graph capture; ready afterwards.
    pub warm: Spread,
}

/// A log-normal duration.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// Seconds that half of them do not exceed.
    pub median_s: f64,
    /// Seconds that 95 % of them do not exceed.
    pub p95_s: f64,
}

/// Wake times by sleep level; level 0 only pauses and wakes at once.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Wake {
    /// Seconds from level 1: weights in host memory.
    pub level_1_s: f64,
    /// Seconds from level 2: weights discarded, their loading included.
    pub level_2_s: f64,
}

/// What a server does after SIGTERM.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Shutdown {
    /// `--shutdown-timeout`: seconds in which requests may finish. 0 aborts them at once.
    pub timeout_s: f64,
    /// Seconds that the listener stays open after the last request; only with a timeout.
    pub linger_s: f64,
    /// Seconds from closing the listener to the end of the process.
    pub exit_s: f64,
}

fn yes() -> bool {
    true
}

/// The profiles that come with the program.
const PRESETS: [(&str, &str); 7] = [
    ("8b-a100", include_str!("../../profiles/8b-a100.yaml")),
    ("8b-h100", include_str!("../../profiles/8b-h100.yaml")),
    ("70b-4xh100", include_str!("../../profiles/70b-4xh100.yaml")),
    ("nim-8b", include_str!("../../profiles/nim-8b.yaml")),
    ("nim-70b-2xh100", include_str!("../../profiles/nim-70b-2xh100.yaml")),
    ("qwen3-32b-2xh100", include_str!("../../profiles/qwen3-32b-2xh100.yaml")),
    ("tiny-cpu", include_str!("../../profiles/tiny-cpu.yaml")),
];

impl Profile {
    /// The names of the presets.
    pub fn preset_names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|&(name, _)| name)
    }

    /// The file behind a preset, comments and all.
    #[must_use]
    pub fn preset_text(name: &str) -> Option<&'static str> {
        PRESETS.iter().find(|&&(known, _)| known == name).map(|&(_, text)| text)
    }

    /// The preset of that name, or else the profile in the file of that name.
    ///
    /// # Errors
    ///
    /// When it is neither, or the file is no profile.
    pub fn load(name_or_path: &str) -> Result<Profile, Error> {
        if let Some(text) = Profile::preset_text(name_or_path) {
            return Profile::parse(name_or_path, text);
        }
        match files::read_text(Path::new(name_or_path), MAX_DOCUMENT_BYTES) {
            Ok(text) => Profile::parse(name_or_path, &text),
            Err(source) if source.kind() == NotFound && !name_or_path.contains(['/', '.']) => {
                Err(Error::Unknown { name: name_or_path.to_owned() })
            }
            Err(source) => Err(Error::Read { path: name_or_path.into(), source }),
        }
    }

    /// Reads a profile from YAML. `origin` names the text in errors.
    ///
    /// # Errors
    ///
    /// When the text is no profile, or some of its values make no engine; all of them are named.
    pub fn parse(origin: &str, text: &str) -> Result<Profile, Error> {
        let profile: Profile = serde_saphyr::from_str(text)
            .map_err(|source| Error::Parse { origin: origin.to_owned(), source: source.into() })?;
        let faults = Faults::of(&profile);
        if faults.0.is_empty() {
            return Ok(profile);
        }
        Err(Error::Invalid { origin: origin.to_owned(), faults })
    }

    /// Tokens that fit into the KV cache.
    #[must_use]
    pub fn kv_tokens(&self) -> usize {
        self.kv.blocks.saturating_sub(1).saturating_mul(self.kv.block_tokens)
    }

    pub(crate) fn step_time(&self) -> StepTime {
        StepTime {
            base_ps: ps_from_secs(self.step.base_ms / 1e3),
            prefill: Curve::through(&self.step.prefill_ms),
            decode: Curve::through(&self.step.decode_ms),
            resident: Curve::through(&self.step.resident_ms),
            attention_ps: ps_from_secs(self.step.attention_ns / 1e9),
        }
    }
}

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is neither a preset nor a file.
    #[error(
        "profile `{name}` is not known: expected a file or one of {}",
        Profile::preset_names().collect::<Vec<_>>().join(", ")
    )]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The file cannot be read.
    #[error("failed to read profile `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The text is not the YAML of a profile.
    #[error("profile `{origin}` cannot be parsed")]
    Parse {
        /// The preset or file.
        origin: String,
        /// Where and why; an unknown field is named here.
        source: yaml::Error,
    },
    /// Some values make no engine.
    #[error("profile `{origin}`: {faults}")]
    Invalid {
        /// The preset or file.
        origin: String,
        /// Which values, and what was expected.
        faults: Faults,
    },
}

#[cfg(test)]
mod tests;
