//! What a load generator has written down: ours, vLLM's or GuideLLM's, under the same names.
//!
//! Must not fill in what is not there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::files;
use crate::spread::Spread;

/// The metrics that are compared, by their path in a report's JSON: rates a second, shares, counts,
/// times in seconds.
pub const METRICS: [&str; 18] = [
    "achieved_rate",
    "output_tokens_rate",
    "attainment",
    "errors",
    "ttft.mean",
    "ttft.p50",
    "ttft.p90",
    "ttft.p99",
    "tpot.mean",
    "tpot.p50",
    "tpot.p99",
    "itl.mean",
    "itl.p50",
    "itl.p99",
    "e2e.mean",
    "e2e.p50",
    "e2e.p99",
    "schedule_lag.p99",
];

/// Most bytes of a result: GuideLLM writes every request into it.
const MAX_RESULT_BYTES: u64 = 256 << 20;

/// Who has measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Tool {
    /// This program.
    #[serde(rename = "loadgen")]
    Loadgen,
    /// `vllm bench serve`.
    #[serde(rename = "vllm bench serve")]
    Vllm,
    /// GuideLLM.
    #[serde(rename = "GuideLLM")]
    Guidellm,
}

/// What was measured, in one run or in several.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// The file.
    pub path: PathBuf,
    /// Who has measured.
    pub tool: Tool,
    /// What was asked, in the tool's words.
    pub load: String,
    /// What was asked in full, by its path in the result, where the tool says it.
    #[serde(skip)]
    pub asked: BTreeMap<String, String>,
    /// By name, in seconds, shares or a second.
    pub metrics: BTreeMap<&'static str, Spread>,
    /// Whether the client was the bottleneck, where the tool says it.
    pub is_bottleneck: bool,
    /// Whether somebody stopped it, where the tool says it.
    pub interrupted: bool,
}

/// Why a file is no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It is no JSON.
    #[error("{} is no JSON: expected a result written with --format json", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where it is none.
        source: serde_json::Error,
    },
    /// It is JSON of something else.
    #[error(
        "{} is no result: expected the JSON of `loadgen run`, `vllm bench serve` or GuideLLM",
        path.display()
    )]
    Unknown {
        /// The file.
        path: PathBuf,
    },
    /// It has several results.
    #[error("{} has {n} benchmarks: expected one, of a run at a single rate", path.display())]
    Several {
        /// The file.
        path: PathBuf,
        /// How many.
        n: usize,
    },
}

impl Measured {
    /// Reads a result.
    ///
    /// # Errors
    ///
    /// When it is none that is known, or holds several.
    pub fn load(path: &Path) -> Result<Measured, Error> {
        let path = path.to_owned();
        let text = match files::read(&path, MAX_RESULT_BYTES) {
            Ok(text) => text,
            Err(source) => return Err(Error::Read { path, source }),
        };
        let json: Value = match serde_json::from_slice(&text) {
            Ok(json) => json,
            Err(source) => return Err(Error::Json { path, source }),
        };
        let has = |key: &str| json.get(key).is_some();
        let (tool, load, metrics) = if has("loadgen") && has("schedule_lag") {
            (Tool::Loadgen, text_of(&json, "/load"), ours(&json))
        } else if has("mean_ttft_ms") && has("request_throughput") {
            let rate = text_of(&json, "/request_rate");
            (Tool::Vllm, format!("{rate} requests/s"), vllms(&json))
        } else {
            match json.get("benchmarks").and_then(Value::as_array).map(Vec::as_slice) {
                Some([one]) => (Tool::Guidellm, guidellms_load(one), guidellms(one)),
                Some(several) if several.len() > 1 => {
                    return Err(Error::Several { path, n: several.len() });
                }
                Some(_) | None => return Err(Error::Unknown { path }),
            }
        };
        if metrics.is_empty() {
            return Err(Error::Unknown { path });
        }
        let is = |path: &str| json.pointer(path).and_then(Value::as_bool) == Some(true);
        let (is_bottleneck, interrupted) = (is("/client/is_bottleneck"), is("/interrupted"));
        let mut asked = BTreeMap::new();
        for key in ["load", "settings", "slo"] {
            flatten(key, json.get(key).unwrap_or(&Value::Null), &mut asked);
        }
        Ok(Measured { path, tool, load, asked, metrics, is_bottleneck, interrupted })
    }

    /// How many runs the figures are of.
    #[must_use]
    pub fn n_runs(&self) -> usize {
        self.metrics.values().map(|spread| spread.values.len()).max().unwrap_or(0)
    }

    pub(super) fn described(&self) -> String {
        let tool = match self.tool {
            Tool::Loadgen => "loadgen",
            Tool::Vllm => "vllm bench serve",
            Tool::Guidellm => "GuideLLM",
        };
        let runs = match self.n_runs() {
            1 => "one run".to_owned(),
            n => format!("{n} runs"),
        };
        format!("{tool}, {}, {runs} ({})", self.load, self.path.display())
    }
}

/// Every value of a tree by its path.
fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    let below = |key: &str| format!("{path}.{key}");
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| flatten(&below(key), value, into));
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(index, item)| flatten(&below(&index.to_string()), item, into));
        }
        Value::String(text) => drop(into.insert(path.to_owned(), text.clone())),
        Value::Null => {}
        Value::Bool(_) | Value::Number(_) => drop(into.insert(path.to_owned(), value.to_string())),
    }
}

/// A report of this program: all its runs, or the one that it is of.
fn ours(json: &Value) -> BTreeMap<&'static str, Spread> {
    let runs = json.pointer("/seeds/metrics").filter(|runs| runs.is_object());
    collected(|metric| match runs {
        Some(runs) => {
            let values = runs.get(metric)?.get("values")?.as_array()?;
            Spread::of(values.iter().filter_map(Value::as_f64).collect())
        }
        None => Spread::of(vec![value_of(json, metric)?]),
    })
}

/// A value of a report's JSON, by its name there.
pub(crate) fn value_of(report: &Value, metric: &str) -> Option<f64> {
    report.pointer(&format!("/{}", metric.replace('.', "/")))?.as_f64()
}

/// What `vllm bench serve --save-result` writes: times in milliseconds, `e2el` and percentiles only
/// where they were asked for.
fn vllms(json: &Value) -> BTreeMap<&'static str, Spread> {
    collected(|metric| {
        let number = |key: &str| json.get(key)?.as_f64();
        let value = match metric.split_once('.') {
            Some((time, part)) => {
                let time = if time == "e2e" { "e2el" } else { time };
                let part = if part == "p50" { "median" } else { part };
                number(&format!("{part}_{time}_ms"))? / 1e3
            }
            None => number(match metric {
                "achieved_rate" => "request_throughput",
                "output_tokens_rate" => "output_throughput",
                "errors" => "failed",
                _ => return None,
            })?,
        };
        Spread::of(vec![value])
    })
}

/// What GuideLLM writes of a benchmark: the distributions of successful requests, all times but
/// that of the whole request in milliseconds. Its inter-token latency is the mean of a request's
/// tokens after the first, which is TPOT elsewhere; its time per output token has the first in it.
fn guidellms(json: &Value) -> BTreeMap<&'static str, Spread> {
    collected(|metric| {
        let value = match metric.split_once('.') {
            Some((time, part)) => {
                let (key, unit_s) = match time {
                    "ttft" => ("time_to_first_token_ms", 1e-3),
                    "tpot" => ("inter_token_latency_ms", 1e-3),
                    "e2e" => ("request_latency", 1.0),
                    _ => return None,
                };
                let part = if part == "mean" { "mean" } else { &format!("percentiles/{part}") };
                let path = format!("/metrics/{key}/successful/{part}");
                json.pointer(&path)?.as_f64()? * unit_s
            }
            None => {
                let path = match metric {
                    "achieved_rate" => "/metrics/requests_per_second/successful/mean",
                    "output_tokens_rate" => "/metrics/output_tokens_per_second/successful/mean",
                    "errors" => "/metrics/request_totals/errored",
                    _ => return None,
                };
                json.pointer(path)?.as_f64()?
            }
        };
        Spread::of(vec![value])
    })
}

fn guidellms_load(json: &Value) -> String {
    let kind = text_of(json, "/config/strategy/type_");
    match json.pointer("/config/strategy/rate").and_then(Value::as_f64) {
        Some(rate) => format!("{rate} requests/s, {kind}"),
        None => kind,
    }
}

fn collected(of: impl Fn(&str) -> Option<Spread>) -> BTreeMap<&'static str, Spread> {
    METRICS.iter().filter_map(|metric| Some((*metric, of(metric)?))).collect()
}

/// A text or a number of a result, as it is written there.
fn text_of(json: &Value, path: &str) -> String {
    match json.pointer(path) {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "unknown load".to_owned(),
    }
}
