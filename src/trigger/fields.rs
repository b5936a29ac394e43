//! The table of metadata keys: the one place that says what each may be.
//!
//! README, error texts and the parser are made from it; nothing here reads anything but a value.

use super::{ByHand, EngineFamily, Policy, SourceKind};
use crate::decision::{Mode, Profile, ZeroAfter};
use crate::duration;
use crate::schedule::WarmSchedule;

/// One metadata key.
#[derive(Debug)]
pub struct Field {
    /// The key, camelCase.
    pub key: &'static str,
    /// What kind of value it takes.
    pub kind: &'static str,
    /// Its range, or its words.
    pub range: &'static str,
    /// The default, in words where it is no constant.
    pub default: &'static str,
    /// What it does, in one line.
    pub doc: &'static str,
    set: fn(&mut Policy, &str) -> Option<()>,
}

impl Field {
    /// What a value has to be, for an error text.
    #[must_use]
    pub fn expected(&self) -> String {
        format!("{} {}", self.kind, self.range)
    }

    pub(super) fn set(&self, policy: &mut Policy, value: &str) -> bool {
        (self.set)(policy, value).is_some()
    }
}

/// Every key, in the order of the README.
pub const FIELDS: [Field; 18] = [
    Field {
        key: "engine",
        kind: "one of",
        range: "auto, vllm, sglang, tgi, trtllm, triton, llamacpp, lmdeploy, nim",
        default: "auto",
        doc: "The serving engine; auto recognises it by the series present.",
        set: |policy, value| {
            let named = || EngineFamily::NAMED.iter().find(|(name, _)| *name == value);
            policy.engine = match value {
                "auto" => None,
                _ => Some(named()?.1),
            };
            Some(())
        },
    },
    Field {
        key: "source",
        kind: "one of",
        range: "pods, prometheus",
        default: "pods where their addresses are known, else prometheus",
        doc: "Where engine metrics are read.",
        set: |policy, value| {
            policy.source = Some(match value {
                "pods" => SourceKind::Pods,
                "prometheus" => SourceKind::Prometheus,
                _ => return None,
            });
            Some(())
        },
    },
    Field {
        key: "podSelector",
        kind: "label selector",
        range: "of at most 500 characters",
        default: "the scale target's own pods",
        doc: "Which pods of the namespace to read.",
        set: |policy, value| {
            policy.pod_selector = Some(words(value, 500, "-_./=!,() ")?);
            Some(())
        },
    },
    Field {
        key: "metricsPort",
        kind: "integer",
        range: "1..65535",
        default: "the port that the pod declares, else 8000",
        doc: "The port of the pods' metrics.",
        set: |policy, value| {
            policy.metrics_port = Some(u16::try_from(integer(value, 1, 65_535)?).ok()?);
            Some(())
        },
    },
    Field {
        key: "metricsPath",
        kind: "path",
        range: "such as /metrics",
        default: "/metrics",
        doc: "The path of the pods' metrics.",
        set: |policy, value| {
            let path = words(value, 200, "-_./~")?;
            policy.metrics_path = Some(path.starts_with('/').then_some(path)?);
            Some(())
        },
    },
    Field {
        key: "modelName",
        kind: "text",
        range: "of 1..253 printable characters",
        default: "all models of the engine",
        doc: "Count only this model's series.",
        set: |policy, value| {
            let printable = !value.chars().any(char::is_control);
            let fits = !value.is_empty() && value.len() <= 253;
            policy.model_name = Some((printable && fits).then(|| value.to_owned())?);
            Some(())
        },
    },
    Field {
        key: "sloTtft",
        kind: "duration",
        range: "10ms..10m",
        default: "2s",
        doc: "The target for the time to the first token.",
        set: |policy, value| {
            policy.spec.slo_ttft_ms = millis(value, 10, 600_000)?;
            Some(())
        },
    },
    Field {
        key: "sloTpot",
        kind: "duration",
        range: "1ms..10s",
        default: "200ms",
        doc: "The target for the time per further token.",
        set: |policy, value| {
            policy.spec.slo_tpot_ms = millis(value, 1, 10_000)?;
            Some(())
        },
    },
    Field {
        key: "targetInFlight",
        kind: "number",
        range: "0.1..100000",
        default: "learned",
        doc: "Requests in flight that one replica shall carry; overrides what is learned.",
        set: |policy, value| {
            policy.spec.target_in_flight = Some(number(value, 0.1, 100_000.0)?);
            Some(())
        },
    },
    Field {
        key: "gpuCeilingPercent",
        kind: "number",
        range: "10..100",
        default: "80",
        doc: "GPU use above which the survivors of a step down may not run.",
        set: |policy, value| {
            policy.spec.gpu_ceiling = number(value, 10.0, 100.0)? / 100.0;
            Some(())
        },
    },
    Field {
        key: "ghostHold",
        kind: "duration",
        range: "10s..1d",
        default: "learned, 5m..1h, 10m at first",
        doc: "Evidence needed before a replica is released.",
        set: |policy, value| {
            policy.spec.ghost_hold_ms = Some(millis(value, 10_000, 86_400_000)?);
            Some(())
        },
    },
    Field {
        key: "zeroAfter",
        kind: "never, or duration",
        range: "1m..30d",
        default: "1h",
        doc: "Idle time before zero; without a wake source zero is never reached.",
        set: |policy, value| {
            policy.spec.zero_after = if value == "never" {
                ZeroAfter::Never
            } else {
                ZeroAfter::After { millis: millis(value, 60_000, 30 * 86_400_000)? }
            };
            Some(())
        },
    },
    Field {
        key: "wakeSource",
        kind: "name",
        range: "of 1..63 characters a-z, 0-9 and -",
        default: "none",
        doc: "A wake source of the process's configuration.",
        set: |policy, value| {
            let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            let named = !value.is_empty() && value.len() <= 63 && value.chars().all(allowed);
            policy.wake_source = Some(named.then(|| value.to_owned())?);
            Some(())
        },
    },
    Field {
        key: "warmSchedule",
        kind: "windows",
        range: "as start=0 8 * * 1-5; end=0 18 * * 1-5; timezone=Europe/Berlin; replicas=2",
        default: "none",
        doc: "Replicas kept warm between two cron times; several windows are separated by |.",
        set: |policy, value| {
            policy.warm_schedule = Some(WarmSchedule::parse(value).ok()?);
            Some(())
        },
    },
    Field {
        key: "override",
        kind: "count and end",
        range: "as replicas=6; until=2026-12-01T08:00:00+01:00",
        default: "none",
        doc: "A count set by hand, within KEDA's bounds, until its end; 0 needs a wake source.",
        set: |policy, value| {
            policy.by_hand = Some(ByHand::parse(value)?);
            Some(())
        },
    },
    Field {
        key: "profile",
        kind: "one of",
        range: "chat, long-context, batch",
        default: "chat",
        doc: "The traffic assumed until the workload itself has been measured.",
        set: |policy, value| {
            policy.spec.profile = match value {
                "chat" => Profile::Chat,
                "long-context" => Profile::LongContext,
                "batch" => Profile::Batch,
                _ => return None,
            };
            Some(())
        },
    },
    Field {
        key: "gpusPerReplica",
        kind: "integer",
        range: "1..1024",
        default: "from the pod's requests",
        doc: "GPUs of one replica.",
        set: |policy, value| {
            policy.spec.gpus_per_replica = Some(integer(value, 1, 1_024)?);
            Some(())
        },
    },
    Field {
        key: "mode",
        kind: "one of",
        range: "act, shadow",
        default: "act",
        doc: "shadow publishes what it would do and answers the present count.",
        set: |policy, value| {
            policy.spec.mode = match value {
                "act" => Mode::Act,
                "shadow" => Mode::Shadow,
                _ => return None,
            };
            Some(())
        },
    },
];

fn millis(value: &str, min: u64, max: u64) -> Option<u64> {
    duration::parse_millis(value).ok().filter(|millis| (min..=max).contains(millis))
}

fn integer(value: &str, min: u32, max: u32) -> Option<u32> {
    // `parse` alone would take a leading plus.
    let digits = value.bytes().all(|b| b.is_ascii_digit());
    let number = value.parse().ok().filter(|_| digits)?;
    (min..=max).contains(&number).then_some(number)
}

fn number(value: &str, min: f64, max: f64) -> Option<f64> {
    // `parse` alone would take signs, exponents, `inf`, `NaN` and a bare point at either end.
    let plain = value.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let closed = !value.starts_with('.') && !value.ends_with('.');
    let number = value.parse().ok().filter(|_| plain && closed)?;
    (min..=max).contains(&number).then_some(number)
}

fn words(value: &str, max_len: usize, punctuation: &str) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || punctuation.contains(c);
    let fits = !value.is_empty() && value.len() <= max_len;
    (fits && value.chars().all(allowed)).then(|| value.to_owned())
}
