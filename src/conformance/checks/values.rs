//! Rules A1-A8: what the specs and values look like. Judged on the rehearsal's transcript.
//!
//! Makes no calls, but for one with no metadata at all.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Context, Finding, How, Rule, Shortfall, SpecStream, as_keda_reads, not_refused_to_the_hpa,
    target_as_keda_reads,
};
use crate::conformance::client::{Failure, Role};
use crate::conformance::rehearsal::MetricsCall;
use crate::proto::{MetricSpec, MetricValue};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "A1",
        title: "GetMetricSpec always answers",
        why: "KEDA asks for the spec before each poll and each HPA query. Without it no metric is \
              asked for, the HPA is not written, the user sees only \"got empty metric spec\", \
              and a fallback never fires.",
        how: How::Check(|context| Box::pin(a1_spec_always_answers(context))),
    },
    Rule {
        id: "A2",
        title: "GetMetricSpec never returns an empty list",
        why: "KEDA treats an empty list as an error without a reason. Before KEDA 2.20 it wrote an \
              HPA without metrics, which Kubernetes turns into 80 % CPU.",
        how: How::Check(|context| Box::pin(a2_specs_not_empty(context))),
    },
    Rule {
        id: "A3",
        title: "metric names are valid, unique and stable",
        why: "The name becomes part of an API path and of the HPA's metric sN-NAME. A name that \
              the API server refuses or that moves leaves the HPA without a matching metric; two \
              alike (case is ignored) fail the whole ScaledObject.",
        how: How::Check(|context| Box::pin(a3_names(context))),
    },
    Rule {
        id: "A4",
        title: "both target fields are set and above 0",
        why: "KEDA 2.16 and older read only the integer, newer ones read it when the float is not \
              above 0. The API server rejects an HPA with a target of 0, and whatever is below \
              0.001 is rounded away.",
        how: How::Check(|context| Box::pin(a4_targets(context))),
    },
    Rule {
        id: "A5",
        title: "the target is constant",
        why: "KEDA writes the target into the HPA only when it reconciles. A target that moves \
              without StreamMetricSpec divides new values by an old target, perhaps for ever.",
        how: How::Check(|context| Box::pin(a5_target_constant(context))),
    },
    Rule {
        id: "A6",
        title: "GetMetrics returns exactly one value, in both fields",
        why: "The HPA sums several values under the one name that was asked for, and without one \
              keeps the count as it is. KEDA reads the float only if it is above 0, else the \
              integer, so that a field left behind wins or is lost.",
        how: How::Check(|context| Box::pin(a6_one_value(context))),
    },
    Rule {
        id: "A7",
        title: "values are finite and from 0 to 1e9",
        why: "NaN, infinite and negative values become 0 or the other field in KEDA, which scales \
              down; large ones overflow the HPA's thousandths. What is not known is an error.",
        how: How::Check(|context| Box::pin(a7_range(context))),
    },
    Rule {
        id: "A8",
        title: "a value that is a replica count is whole",
        why: "The HPA rounds up: a count of 3.001 at target 1 makes 4 replicas.",
        how: How::Check(|context| Box::pin(a8_whole_count(context))),
    },
];

/// Longest metric name that leaves room for the HPA's prefix.
const NAME_MAX: usize = 50;
/// The HPA and KEDA count in thousandths.
const THOUSANDTH: f64 = 0.001;
/// int64 thousandths end at 9.2e15; a million times less leaves room for sums.
const VALUE_MAX: f64 = 1e9;

async fn a1_spec_always_answers(context: &Context) -> Finding {
    let replies = &context.transcript.specs;
    let failures: Vec<_> = replies.iter().filter_map(|reply| reply.result.as_ref().err()).collect();
    match failures.as_slice() {
        [] => Ok(format!("{} calls, all answered", replies.len())),
        [Failure::Late, ..] => Err(Shortfall::unseen("no answer in time; see D2")),
        [first, ..] => Err(Shortfall::Fail(format!(
            "{} of {} calls failed, the first with {first}",
            failures.len(),
            replies.len()
        ))),
    }
}

async fn a2_specs_not_empty(context: &Context) -> Finding {
    if context.transcript.answered_specs().any(<[_]>::is_empty) {
        return Err(Shortfall::fail("an empty list with status OK"));
    }
    let n_lists = context.transcript.answered_specs().count();
    if n_lists == 0 {
        return Err(Shortfall::unseen("GetMetricSpec gave no answer; see A1 and D2"));
    }
    let mut bare = context.scaled_object().clone();
    bare.scaler_metadata.clear();
    let reply = context.dial().await?.metric_spec(Role::Poll, &bare).await;
    match reply.result {
        Ok(specs) if specs.is_empty() => Err(Shortfall::fail(
            "without metadata an empty list with status OK; an error would say what is missing",
        )),
        Ok(_) | Err(_) => Ok(format!("{n_lists} lists, none empty")),
    }
}

async fn a3_names(context: &Context) -> Finding {
    let mut lists = context.transcript.answered_specs().filter(|specs| !specs.is_empty());
    let first = names(lists.next().ok_or_else(no_specs)?);
    for name in &first {
        if let Some(fault) = name_fault(name) {
            return Err(Shortfall::Fail(format!("the name \"{}\" {fault}", name.escape_debug())));
        }
    }
    let distinct: BTreeSet<String> = first.iter().map(|name| name.to_ascii_lowercase()).collect();
    if distinct.len() < first.len() {
        return Err(Shortfall::Fail(format!("a name is given twice: {first:?}")));
    }
    if let Some(other) = lists.map(names).find(|other| *other != first) {
        return Err(Shortfall::Fail(format!("the names were {first:?} and then {other:?}")));
    }
    Ok(format!("{first:?}"))
}

/// What is wrong with a metric name, if anything.
pub(super) fn name_fault(name: &str) -> Option<&'static str> {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if name.is_empty() {
        Some("is empty")
    } else if name.len() > NAME_MAX {
        Some("is longer than 50 characters")
    } else if !name.chars().all(|c| is_alphanumeric(c) || c == '-') {
        Some("has characters other than a-z, 0-9 and -")
    } else if !name.starts_with(is_alphanumeric) || !name.ends_with(is_alphanumeric) {
        Some("does not begin and end with a letter or digit")
    } else {
        None
    }
}

async fn a4_targets(context: &Context) -> Finding {
    let mut seen = None;
    for spec in context.transcript.answered_specs().flatten() {
        if let Some(fault) = target_fault(spec) {
            return Err(Shortfall::Fail(fault));
        }
        seen = Some(spec);
    }
    let spec = seen.ok_or_else(no_specs)?;
    Ok(format!("targetSizeFloat {}, targetSize {}", spec.target_size_float, spec.target_size))
}

/// What is wrong with a spec's target, if anything.
pub(super) fn target_fault(spec: &MetricSpec) -> Option<String> {
    let MetricSpec { target_size, target_size_float, .. } = spec;
    if *target_size < 1 {
        return Some(format!("targetSize is {target_size}, expected 1 or more"));
    }
    let in_thousandths = target_size_float / THOUSANDTH;
    let is_exact = (in_thousandths - in_thousandths.round()).abs() < 1e-6 * in_thousandths.max(1.0);
    if !target_size_float.is_finite() || *target_size_float < THOUSANDTH || !is_exact {
        return Some(format!(
            "targetSizeFloat is {target_size_float}, expected a multiple of 0.001 above 0"
        ));
    }
    None
}

async fn a5_target_constant(context: &Context) -> Finding {
    let mut targets: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for spec in context.transcript.answered_specs().flatten() {
        let target = target_as_keda_reads(spec);
        let seen = targets.entry(&spec.metric_name).or_default();
        if !seen.iter().any(|other| other.to_bits() == target.to_bits()) {
            seen.push(target);
        }
    }
    if targets.is_empty() {
        return Err(no_specs());
    }
    match targets.iter().find(|(_name, seen)| seen.len() > 1) {
        None => Ok("one target for each metric".to_owned()),
        Some((name, seen)) if matches!(context.spec_stream, SpecStream::Offered) => {
            Ok(format!("{name} had the targets {seen:?}, which StreamMetricSpec can tell KEDA"))
        }
        Some((name, seen)) => {
            Err(Shortfall::Fail(format!("{name} had the targets {seen:?} in turn")))
        }
    }
}

async fn a6_one_value(context: &Context) -> Finding {
    let mut seen = None;
    for (metric_name, values) in context.transcript.answered_metrics() {
        let [value] = values else {
            return Err(Shortfall::Fail(format!("{} values for {metric_name}", values.len())));
        };
        let MetricValue { metric_value, metric_value_float, .. } = value;
        let whole = *metric_value as f64;
        let is_rounded = (metric_value_float.round() - whole).abs() < 0.5
            || (metric_value_float.ceil() - whole).abs() < 0.5;
        // Neither a number that is none nor its integer twin says anything about the pair.
        if metric_value_float.is_finite() && !is_rounded {
            return Err(Shortfall::Fail(format!(
                "metricValueFloat {metric_value_float} beside metricValue {metric_value}"
            )));
        }
        seen = Some(format!("metricValueFloat {metric_value_float}, metricValue {metric_value}"));
    }
    for call in &context.transcript.metrics {
        let same = |other: &&MetricsCall| other.metric_name == call.metric_name;
        let calls = context.transcript.metrics.iter().filter(same);
        not_refused_to_the_hpa(calls.map(|call| (call.role, &call.reply)))?;
    }
    seen.ok_or_else(|| match context.transcript.metrics.first() {
        None => no_specs(),
        Some(call) => match &call.reply.result {
            Err(Failure::Late) => Shortfall::unseen("no answer in time; see D2"),
            Err(failure) => Shortfall::Fail(format!(
                "each call failed, the first with {failure}; check an object that has data"
            )),
            Ok(_) => Shortfall::unseen("no answer was kept"),
        },
    })
}

async fn a7_range(context: &Context) -> Finding {
    context.metric()?;
    for (metric_name, values) in context.transcript.answered_metrics() {
        for value in values {
            if !is_usable(value.metric_value_float) || !is_usable(value.metric_value as f64) {
                return Err(Shortfall::Fail(format!(
                    "{metric_name} has metricValueFloat {} and metricValue {}",
                    value.metric_value_float, value.metric_value
                )));
            }
        }
    }
    Ok("all values within 0 and 1e9".to_owned())
}

/// True if a scaler may send this number.
pub(super) fn is_usable(number: f64) -> bool {
    (0.0..=VALUE_MAX).contains(&number)
}

async fn a8_whole_count(context: &Context) -> Finding {
    /// Farther from a whole number than this it is no count with noise, but a measure of load.
    const NOISE_MAX: f64 = 0.01;
    context.metric()?;
    let is_target_one = |name: &str| {
        let mut specs = context.transcript.answered_specs().flatten();
        specs.any(|spec| {
            spec.metric_name == name && (target_as_keda_reads(spec) - 1.0).abs() < THOUSANDTH
        })
    };
    let counts: Vec<f64> = context
        .transcript
        .answered_metrics()
        .filter(|(name, _values)| is_target_one(name))
        .flat_map(|(_name, values)| values)
        .map(as_keda_reads)
        .filter(|count| count.is_finite())
        .collect();
    let off_by = |count: &f64| (count - count.round()).abs();
    if counts.is_empty() {
        return Err(Shortfall::unseen("the target is not 1, so the value is no replica count"));
    }
    if counts.iter().any(|count| off_by(count) > NOISE_MAX) {
        return Err(Shortfall::unseen("the values look like a load, not like replica counts"));
    }
    // KEDA rounds to thousandths before the HPA rounds up; the rest is the float's own error.
    match counts.iter().find(|count| off_by(count) * 2.0 >= THOUSANDTH) {
        Some(count) => Err(Shortfall::Fail(format!("{count} at target 1"))),
        None => Ok("whole at target 1".to_owned()),
    }
}

fn names(specs: &[MetricSpec]) -> Vec<&str> {
    specs.iter().map(|spec| spec.metric_name.as_str()).collect()
}

fn no_specs() -> Shortfall {
    Shortfall::unseen("GetMetricSpec gave no spec; see A1, A2 and D2")
}
