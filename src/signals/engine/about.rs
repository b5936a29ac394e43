//! What is known of each engine's series, for people: whose names are read, whether pages of
//! running servers bear them out, and what the engine does not tell.
//!
//! Must not decide anything: the names themselves are the profiles'.

use std::fmt;

use super::profile::{Field, PROFILES, Profile, Row};
use crate::trigger::EngineFamily;

/// How the names of an engine's series are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Evidence {
    /// Checked against pages of running servers: of which versions.
    Captured(&'static str),
    /// Uncaptured, but its names are those that the engine's own metrics code wrote without an
    /// engine: of which version.
    Written(&'static str),
    /// Uncaptured: from the engine's own source or documentation alone.
    Uncaptured,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Evidence::Captured(versions) => write!(f, "captured pages of {versions}"),
            Evidence::Written(version) => {
                write!(f, "uncaptured: pages of {version} without an engine")
            }
            Evidence::Uncaptured => f.write_str("uncaptured: its source alone"),
        }
    }
}

/// What is known of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// The family, as `engine` names it.
    pub family: EngineFamily,
    /// The engine and the versions whose names are read.
    pub engine: &'static str,
    /// How they are known.
    pub evidence: Evidence,
    /// Where the page is, and what switches it on.
    pub page: &'static str,
    /// What the engine does not tell, and what the scaler does without it.
    pub without: &'static str,
}

impl About {
    /// Every engine, in the order of recognition.
    pub const ALL: [About; 8] = [
        About {
            family: EngineFamily::Vllm,
            engine: "vLLM 0.6 to 0.33, Ray's names too",
            evidence: Evidence::Captured(
                "0.9.1 (V0, V1) and 0.32.0; uncaptured: 0.11.0 and 0.20.2, of which there are pages \
                 without an engine, 0.6 to 0.8, 0.33 and Ray's names, from the source alone",
            ),
            page: "`/metrics`, port 8000",
            without: "nothing; its limit of running requests is taken from what was seen",
        },
        About {
            family: EngineFamily::Sglang,
            engine: "SGLang 0.4 to 0.5.23",
            evidence: Evidence::Written("0.5.23"),
            page: "`/metrics`, port 30000, with --enable-metrics",
            without: "steps: the level comes from the throughput at saturation; its count at \
                      arrival (`sglang:http_requests_total`) is not read",
        },
        About {
            family: EngineFamily::Tgi,
            engine: "Text Generation Inference 2.0 to 3.3",
            evidence: Evidence::Uncaptured,
            page: "`/metrics`, port 80",
            without: "anything before the first request (missing, so it holds); tokens while they \
                      are made: the level comes from the throughput at saturation; time to first \
                      token: only the time of a token is watched; its count at arrival \
                      (`tgi_request_count`) is not read",
        },
        About {
            family: EngineFamily::Trtllm,
            engine: "trtllm-serve of 2026",
            evidence: Evidence::Uncaptured,
            page: "`/prometheus/metrics`, port 8000, with `enable_iter_perf_stats` and \
                   `return_perf_metrics`; `/metrics` is JSON and unreadable",
            without: "load before the first request (unknown, so it holds); steps, and tokens \
                      while they are made: the level comes from the throughput at saturation, and \
                      a hang shows in nothing",
        },
        About {
            family: EngineFamily::Triton,
            engine: "Triton with the TensorRT-LLM backend, 24.05 on",
            evidence: Evidence::Uncaptured,
            page: "`/metrics`, port 8002",
            without: "tokens while they are made: the level comes from the throughput at \
                      saturation; time between tokens: only the first response is watched; \
                      failures",
        },
        About {
            family: EngineFamily::LlamaCpp,
            engine: "llama.cpp, `llama-server`",
            evidence: Evidence::Captured("builds 10434 and 11549"),
            page: "`/metrics`, port 8080, with --metrics",
            without: "ended requests, KV cache, time to first token: the level comes from the \
                      tokens made at saturation",
        },
        About {
            family: EngineFamily::LmDeploy,
            engine: "LMDeploy 0.9 to 0.18",
            evidence: Evidence::Written("0.18.0"),
            page: "`/metrics`, port 23333, with --enable-metrics",
            without: "steps and the size of the KV cache: the level comes from the throughput at \
                      saturation",
        },
        About {
            family: EngineFamily::Nim,
            engine: "NVIDIA NIM for LLMs 1.0 to 1.14",
            evidence: Evidence::Uncaptured,
            page: "`/v1/metrics`, port 8000",
            without: "steps and the size of the KV cache: the level comes from the throughput at \
                      saturation",
        },
    ];

    /// What is known of a family.
    #[must_use]
    pub fn of(family: EngineFamily) -> Option<&'static About> {
        About::ALL.iter().find(|about| about.family == family)
    }

    /// What is read, with the names of its series in their first spelling: the alternatives in their
    /// order, and of each what is added up or otherwise put together.
    #[must_use]
    pub fn reads(&self) -> Vec<(&'static str, Vec<Vec<String>>)> {
        let mut reads: Vec<(&'static str, Vec<Vec<String>>)> = Vec::new();
        let Some(profile) = PROFILES.iter().find(|profile| profile.family == self.family) else {
            return reads;
        };
        for (field, signal) in SIGNALS {
            let names = names_of(profile, field);
            match reads.iter_mut().find(|(known, _)| *known == signal) {
                Some((_, known)) => known.extend(names),
                None if names.is_empty() => {}
                None => reads.push((signal, names)),
            }
        }
        reads
    }
}

/// What each field is to a person; parts of one signal have one name.
const SIGNALS: [(Field, &str); 23] = [
    (Field::Waiting, "waiting"),
    (Field::WaitingDeferred, "waiting for what replicas do not cure"),
    (Field::Running, "running"),
    (Field::MaxRunning, "limit of running"),
    (Field::KvUsage, "KV use"),
    (Field::KvUsedTokens, "KV use"),
    (Field::KvTokens, "KV size"),
    (Field::KvBlocks, "KV size"),
    (Field::KvBlockTokens, "KV size"),
    (Field::PromptTokens, "prompt tokens"),
    (Field::CachedPromptTokens, "prompt tokens"),
    (Field::GeneratedTokens, "generated tokens"),
    (Field::Finished, "ended requests"),
    (Field::FinishedGeneratedTokens, "generated tokens of ended requests"),
    (Field::Rejected, "refused requests"),
    (Field::Preemptions, "preemptions"),
    (Field::Steps, "steps"),
    (Field::TtftSum, "time to first token"),
    (Field::TtftCount, "time to first token"),
    (Field::ItlSum, "time between tokens"),
    (Field::ItlCount, "time between tokens"),
    (Field::Awake, "sleep"),
    (Field::StartedAt, "start"),
];

fn names_of(profile: &Profile, field: Field) -> Vec<Vec<String>> {
    let mut rows: Vec<_> = profile.rows.iter().filter(|row| row.field == field).collect();
    rows.sort_by_key(|row| row.preference);
    let prefix = profile.prefixes.first().copied().unwrap_or_default();
    let name = |row: &&Row| match row.only {
        None => format!("{prefix}{}", row.name),
        Some((label, value)) => format!("{prefix}{}{{{label}=\"{value}\"}}", row.name),
    };
    let alternatives = rows.chunk_by(|a, b| a.preference == b.preference);
    alternatives.map(|rows| rows.iter().map(name).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_is_known_and_can_be_named() {
        for (profile, about) in PROFILES.iter().zip(About::ALL) {
            assert_eq!(profile.family, about.family);
            assert!(EngineFamily::NAMED.iter().any(|(_, family)| *family == about.family));
            let json = serde_json::to_value(about).unwrap();
            let named = EngineFamily::NAMED.iter().find(|(_, family)| *family == about.family);
            assert_eq!(json["family"], named.unwrap().0);
        }
        assert_eq!(EngineFamily::NAMED.len(), About::ALL.len());
    }

    #[test]
    fn every_row_of_a_profile_is_told() {
        for (profile, about) in PROFILES.iter().zip(About::ALL) {
            let reads = about.reads();
            let told: usize = reads.iter().flat_map(|(_, names)| names).map(Vec::len).sum();
            assert_eq!(told, profile.rows.len(), "{:?}", about.family);
        }
    }

    #[test]
    fn names_stand_in_their_order_of_preference() {
        let reads = About::of(EngineFamily::Vllm).unwrap().reads();
        let waiting = &reads.iter().find(|(signal, _)| *signal == "waiting").unwrap().1;
        let expected = [
            [r#"vllm:num_requests_waiting_by_reason{reason="capacity"}"#],
            ["vllm:num_requests_waiting"],
        ];
        assert_eq!(waiting, &expected);
    }
}
