//! What is known of each engine's series, for people: whose names are read, whether pages of
//! running servers bear them out, and what the engine does not tell.
//!
//! Must not decide anything: the names themselves are the profiles'.

use super::profile::{Field, PROFILES, Profile, Row};
use crate::trigger::EngineFamily;

/// How the names of an engine's series are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Evidence {
    /// Pages of running servers bear them out.
    Captured,
    /// Uncaptured, but the engine's own metrics code wrote them without an engine.
    Written,
    /// Uncaptured: from the engine's own source or documentation alone.
    Uncaptured,
}

/// A version of an engine whose names were checked, exactly that one: names change in patch
/// releases too (vLLM's did in 0.9.2 and 0.11.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Checked {
    /// As the tags of images write it.
    pub version: &'static str,
    /// How.
    pub evidence: Evidence,
}

const fn captured(version: &'static str) -> Checked {
    Checked { version, evidence: Evidence::Captured }
}

const fn written(version: &'static str) -> Checked {
    Checked { version, evidence: Evidence::Written }
}

/// What is known of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// The family, as `engine` names it.
    pub family: EngineFamily,
    /// The engine and the versions whose names are read.
    pub engine: &'static str,
    /// The versions that were checked; of all others the source alone was read.
    pub checked: &'static [Checked],
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
            engine: "vLLM 0.6 to 0.33, Ray's names (uncaptured) too",
            checked: &[
                captured("0.9.1"),
                captured("0.11.0"),
                captured("0.20.2"),
                captured("0.32.0"),
            ],
            page: "`/metrics`, port 8000",
            without: "nothing; its limit of running requests is taken from what was seen",
        },
        About {
            family: EngineFamily::Sglang,
            engine: "SGLang 0.4 to 0.5.23",
            checked: &[written("0.5.23")],
            page: "`/metrics`, port 30000, with --enable-metrics",
            without: "steps: the level comes from the throughput at saturation; its count at \
                      arrival (`sglang:http_requests_total`) is not read",
        },
        About {
            family: EngineFamily::Tgi,
            engine: "Text Generation Inference 2.0 to 3.3",
            checked: &[],
            page: "`/metrics`, port 80",
            without: "anything before the first request (missing, so it holds); tokens while they \
                      are made: the level comes from the throughput at saturation; time to first \
                      token: only the time of a token is watched; its count at arrival \
                      (`tgi_request_count`) is not read",
        },
        About {
            family: EngineFamily::Trtllm,
            engine: "trtllm-serve of 2026",
            checked: &[],
            page: "`/prometheus/metrics`, port 8000, with `enable_iter_perf_stats` and \
                   `return_perf_metrics`; `/metrics` is JSON and unreadable",
            without: "load before the first request (unknown, so it holds); steps, and tokens \
                      while they are made: the level comes from the throughput at saturation, and \
                      a hang shows in nothing",
        },
        About {
            family: EngineFamily::Triton,
            engine: "Triton with the TensorRT-LLM backend, 24.05 on",
            checked: &[],
            page: "`/metrics`, port 8002",
            without: "tokens while they are made: the level comes from the throughput at \
                      saturation; time between tokens: only the first response is watched; \
                      failures",
        },
        About {
            family: EngineFamily::LlamaCpp,
            engine: "llama.cpp, `llama-server`",
            checked: &[captured("b10434"), captured("b11549")],
            page: "`/metrics`, port 8080, with --metrics",
            without: "ended requests, KV cache, time to first token: the level comes from the \
                      tokens made at saturation",
        },
        About {
            family: EngineFamily::LmDeploy,
            engine: "LMDeploy 0.9 to 0.18",
            checked: &[written("0.18.0")],
            page: "`/metrics`, port 23333, with --enable-metrics",
            without: "steps and the size of the KV cache: the level comes from the throughput at \
                      saturation",
        },
        About {
            family: EngineFamily::Nim,
            engine: "NVIDIA NIM for LLMs 1.0 to 1.14",
            checked: &[],
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

    /// How the names of one server are known, of which `version` is what its image's tag says, if it
    /// does, and `by_ray` that Ray spells them; `None` where that depends on a version that nobody
    /// tells.
    #[must_use]
    pub fn evidence(&self, version: Option<&str>, by_ray: bool) -> Option<Evidence> {
        if by_ray {
            return Some(Evidence::Uncaptured);
        }
        let of = |version| self.checked.iter().find(|checked| checked.version == version);
        match version {
            Some(version) => Some(of(version).map_or(Evidence::Uncaptured, |found| found.evidence)),
            None => {
                let depends = self.checked.iter().any(|one| one.evidence == Evidence::Captured);
                (!depends).then_some(Evidence::Uncaptured)
            }
        }
    }

    /// How the names are known, over all versions.
    #[must_use]
    pub fn known(&self) -> String {
        let of = |evidence| {
            let versions = self.checked.iter().filter(|checked| checked.evidence == evidence);
            versions.map(|checked| checked.version).collect::<Vec<_>>().join(", ")
        };
        let (captured, written) = (of(Evidence::Captured), of(Evidence::Written));
        let mut parts = Vec::new();
        if !captured.is_empty() {
            parts.push(format!("captured pages of {captured}"));
        }
        if !written.is_empty() {
            parts.push(format!("uncaptured: pages of {written} without an engine"));
        }
        parts.push(match parts.is_empty() {
            true => "uncaptured: its source alone".to_owned(),
            false => "other versions uncaptured: the source alone".to_owned(),
        });
        parts.join("; ")
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
const SIGNALS: [(Field, &str); 24] = [
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
    (Field::AllPromptTokens, "prompt tokens"),
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
    fn evidence_is_of_one_version_and_one_spelling() {
        let of = |family| About::of(family).unwrap();
        let vllm = of(EngineFamily::Vllm);
        for (version, evidence) in [
            (Some("0.32.0"), Some(Evidence::Captured)),
            (Some("0.9.1"), Some(Evidence::Captured)),
            // The KV gauge has another name there.
            (Some("0.9.2"), Some(Evidence::Uncaptured)),
            (Some("0.33.0"), Some(Evidence::Uncaptured)),
            (None, None),
        ] {
            assert_eq!(vllm.evidence(version, false), evidence, "{version:?}");
            assert_eq!(vllm.evidence(version, true), Some(Evidence::Uncaptured), "Ray's names");
        }
        let lmdeploy = of(EngineFamily::LmDeploy);
        assert_eq!(lmdeploy.evidence(Some("0.18.0"), false), Some(Evidence::Written));
        assert_eq!(lmdeploy.evidence(None, false), Some(Evidence::Uncaptured), "none is captured");
        assert_eq!(of(EngineFamily::Nim).evidence(None, false), Some(Evidence::Uncaptured));
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
