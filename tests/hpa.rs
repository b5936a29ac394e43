//! The model of KEDA and the HPA beside what a real cluster made of the same values.
//!
//! The recordings are made by `tests/record/record.py`. A busy cluster skips and delays syncs, so
//! the model syncs when the recorded HPA did.

use std::fs;
use std::path::Path;

use ghostscaler::decision::Moment;
use ghostscaler::hpa::{Behavior, Change, Keda, Limit, Rules, ScaledObject, Select};
use serde::Deserialize;

/// How much later or earlier than the model the cluster may be: a poll of KEDA's, whose phase is not
/// recorded.
const SLACK_S: f64 = 5.5;
const SYNC_S: f64 = 15.0;

#[derive(Debug, Deserialize)]
struct Recording {
    object: Object,
    start: u32,
    seconds: f64,
    /// When the HPA asked for the value.
    syncs: Vec<f64>,
    values: Vec<Step>,
    replicas: Vec<(f64, u32)>,
}

#[derive(Debug, Deserialize)]
struct Step {
    at: f64,
    want: u32,
    active: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Object {
    min_replica_count: u32,
    max_replica_count: u32,
    polling_interval: u64,
    cooldown_period: Option<u64>,
    initial_cooldown_period: Option<u64>,
    behavior: Option<RawBehavior>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawBehavior {
    scale_up: Option<RawRules>,
    scale_down: Option<RawRules>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawRules {
    tolerance: Option<String>,
    stabilization_window_seconds: Option<u64>,
    select_policy: Option<String>,
    policies: Option<Vec<RawPolicy>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawPolicy {
    r#type: String,
    value: u32,
    period_seconds: u64,
}

impl RawRules {
    fn over(&self, defaults: Rules) -> Rules {
        let limits = self.policies.as_ref().map(|policies| {
            let limit = |policy: &RawPolicy| Limit {
                change: match policy.r#type.as_str() {
                    "Pods" => Change::Pods(policy.value),
                    "Percent" => Change::Percent(policy.value),
                    other => panic!("a policy of type {other}"),
                },
                period_ms: policy.period_seconds * 1_000,
            };
            policies.iter().map(limit).collect()
        });
        Rules {
            tolerance: self
                .tolerance
                .as_ref()
                .map_or(defaults.tolerance, |text| text.parse().unwrap()),
            window_ms: self.stabilization_window_seconds.map_or(defaults.window_ms, |s| s * 1_000),
            select: match self.select_policy.as_deref() {
                None | Some("Max") => Select::Largest,
                Some("Min") => Select::Smallest,
                Some(other) => panic!("selectPolicy {other}"),
            },
            limits: limits.unwrap_or(defaults.limits),
        }
    }
}

impl Object {
    fn scaled_object(&self) -> ScaledObject {
        let behavior = self.behavior.as_ref().map(|raw| {
            let Behavior { up, down } = Behavior::default();
            let over = |raw: &Option<RawRules>, rules: Rules| match raw {
                Some(raw) => raw.over(rules),
                None => rules,
            };
            Behavior { up: over(&raw.scale_up, up), down: over(&raw.scale_down, down) }
        });
        let defaults = ScaledObject::default();
        ScaledObject {
            min: self.min_replica_count,
            max: self.max_replica_count,
            polling_ms: self.polling_interval * 1_000,
            cooldown_ms: self.cooldown_period.map_or(defaults.cooldown_ms, |s| s * 1_000),
            initial_cooldown_ms: self.initial_cooldown_period.unwrap_or(0) * 1_000,
            target: 1.0,
            behavior,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Turn {
    Push,
    Poll,
    Sync,
}

/// The recorded syncs, and those before them that asked for nothing: a count outside the bounds is
/// corrected first.
fn syncs(recorded: &[f64]) -> Vec<f64> {
    let first = recorded.first().copied().unwrap_or(f64::INFINITY);
    let before = (1..100_u8).map(|n| first - f64::from(n) * SYNC_S).take_while(|at| *at > SYNC_S);
    let mut syncs: Vec<f64> = before.collect();
    syncs.reverse();
    syncs.extend(recorded);
    syncs
}

/// The counts that the model gives, each with its time.
fn modelled(recording: &Recording) -> Vec<(f64, u32)> {
    let object = recording.object.scaled_object();
    let step_at = |at: f64| recording.values.iter().rfind(|step| step.at <= at).unwrap();
    let mut turns: Vec<(f64, Turn)> = Vec::new();
    turns.extend(syncs(&recording.syncs).into_iter().map(|at| (at, Turn::Sync)));
    let polling_s = object.polling_ms as f64 / 1_000.0;
    turns.extend((0..500_u32).map(|n| (f64::from(n) * polling_s, Turn::Poll)));
    let rises = recording.values.windows(2).filter(|pair| pair[1].active && !pair[0].active);
    turns.extend(rises.map(|pair| (pair[1].at, Turn::Push)));
    turns.retain(|(at, _)| *at <= recording.seconds);
    turns.sort_by(|a, b| a.0.total_cmp(&b.0));

    let moment = |at: f64| Moment(format!("{:.0}", at * 1_000.0).parse().unwrap());
    let mut keda = Keda::new(object, moment(0.0), moment(0.0));
    let mut replicas = recording.start;
    let mut counts = Vec::new();
    for (at, turn) in turns {
        let (now, step) = (moment(at), step_at(at));
        let after = match turn {
            Turn::Push => keda.push(now, replicas),
            Turn::Poll => keda.poll(now, replicas, Some(step.active)),
            Turn::Sync => keda.sync(now, replicas, replicas, Some(f64::from(step.want))),
        };
        if after != replicas {
            counts.push((at, after));
            replicas = after;
        }
    }
    counts
}

#[test]
fn the_model_gives_the_counts_that_a_real_cluster_gave() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hpa");
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 9, "{files:?}");
    let mut faults = Vec::new();
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&file).unwrap();
        let recording: Recording = serde_saphyr::from_str(&text).unwrap();
        let modelled = modelled(&recording);
        let same = modelled.len() == recording.replicas.len()
            && modelled
                .iter()
                .zip(&recording.replicas)
                .all(|(model, real)| model.1 == real.1 && (model.0 - real.0).abs() <= SLACK_S);
        if !same {
            faults.push(format!("{name}\n  model {modelled:?}\n  real  {:?}", recording.replicas));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
