//! How a planned ScaledObject looks: YAML with the reasons as comments.
//!
//! Pure. A text that YAML could take for something else is written as a JSON string, which YAML
//! reads as it stands.

use std::io::{self, Write};

use serde_json::json;

use super::plan::{Place, Plan, Tolerance};
use super::{COOLDOWN_S, INITIAL_COOLDOWN_S};
use crate::text::wrapped;

/// Seconds between KEDA's own polls.
const POLLING_S: u32 = 5;

/// Words that YAML 1.1, which kubectl reads, takes for a truth value or for nothing.
const YAML_WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"];

/// Writes the object.
pub(super) fn write(plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "apiVersion: keda.sh/v1alpha1")?;
    writeln!(out, "kind: ScaledObject")?;
    doubts(plan, Place::Top, out, 0)?;
    writeln!(out, "metadata:")?;
    writeln!(out, "  name: {}", scalar(&plan.name))?;
    writeln!(out, "  namespace: {}", scalar(&plan.namespace))?;
    writeln!(out, "spec:")?;
    target(plan, out)?;
    bounds(plan, out)?;
    times(plan, out)?;
    behavior(plan, out)?;
    trigger(plan, out)
}

fn target(plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
    if plan.target.pods > 1 {
        let text = format!(
            "One replica is a group of {} pods: counts below are groups, and the leader speaks for \
             its group.",
            plan.target.pods
        );
        comment(out, 2, &text)?;
    }
    doubts(plan, Place::Target, out, 2)?;
    writeln!(out, "  scaleTargetRef:")?;
    writeln!(out, "    apiVersion: {}", scalar(&plan.target.api_version))?;
    writeln!(out, "    kind: {}", scalar(&plan.target.kind))?;
    writeln!(out, "    name: {}", scalar(&plan.target.name))
}

fn bounds(plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
    if plan.min == 0 {
        comment(
            out,
            2,
            "Zero after a long idle time (zeroAfter, 1h by default), and only if that is \
            worth a cold start on this workload's own history.",
        )?;
    }
    doubts(plan, Place::Min, out, 2)?;
    writeln!(out, "  minReplicaCount: {}", plan.min)?;
    if plan.max_is_chosen {
        let present = plan.present.map_or_else(String::new, |n| format!(" ({n} at present)"));
        let text = format!("Chosen, not given{present}: the most that you are willing to pay for.");
        comment(out, 2, &text)?;
    }
    doubts(plan, Place::Max, out, 2)?;
    writeln!(out, "  maxReplicaCount: {}", plan.max)
}

fn times(plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
    let polling = if plan.min == 0 {
        "How soon KEDA wakes it should the push stream be down, in seconds."
    } else {
        "Seconds between KEDA's polls. With minReplicaCount of 1 or more it scales nothing: the HPA \
         asks every 15 s by itself."
    };
    comment(out, 2, polling)?;
    writeln!(out, "  pollingInterval: {POLLING_S}")?;
    let cooldown = if plan.min == 0 {
        "Acts on the step from one to zero alone. Never shorter: it is what stands between a hung \
         scaler and zero."
    } else {
        "Without effect while minReplicaCount is 1 or more; right should it become 0."
    };
    comment(out, 2, cooldown)?;
    writeln!(out, "  cooldownPeriod: {COOLDOWN_S}")?;
    comment(out, 2, "The same for a new object, whose scaler has seen nothing yet.")?;
    writeln!(out, "  initialCooldownPeriod: {INITIAL_COOLDOWN_S}")?;
    comment(
        out,
        2,
        "No fallback: the scaler itself holds the last count when it cannot see. One of 1 \
        or more replicas would take over after 15 min without data.",
    )
}

fn behavior(plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "  advanced:")?;
    writeln!(out, "    horizontalPodAutoscalerConfig:")?;
    comment(out, 6, "The HPA passes the scaler's count on as it is: one owner of hysteresis.")?;
    doubts(plan, Place::Behavior, out, 6)?;
    writeln!(out, "      behavior:")?;
    writeln!(out, "        scaleUp:")?;
    if plan.tolerance != Tolerance::Refused {
        comment(
            out,
            10,
            "Else every change within 10 % is ignored: from 10 replicas on each step of \
            one.",
        )?;
        writeln!(out, "          tolerance: \"0\"")?;
    }
    writeln!(out, "          stabilizationWindowSeconds: 0")?;
    comment(
        out,
        10,
        "As many at once as maxReplicaCount allows; the API's default would stop at 4 or \
        at twice the count.",
    )?;
    writeln!(out, "          policies:")?;
    writeln!(out, "            - {{type: Pods, value: {}, periodSeconds: 15}}", plan.max)?;
    writeln!(out, "        scaleDown:")?;
    if plan.tolerance != Tolerance::Refused {
        writeln!(out, "          tolerance: \"0\"")?;
    }
    comment(
        out,
        10,
        "The scaler lets go only after a whole hold of evidence; a second window would \
        add to it.",
    )?;
    writeln!(out, "          stabilizationWindowSeconds: 0")?;
    writeln!(out, "          policies:")?;
    writeln!(out, "            - {{type: Percent, value: 100, periodSeconds: 15}}")
}

fn trigger(plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "  triggers:")?;
    writeln!(out, "    - type: external-push")?;
    writeln!(out, "      name: ghostscaler")?;
    comment(out, 6, "Never Value: with slow starts it scales down under load.")?;
    writeln!(out, "      metricType: AverageValue")?;
    writeln!(out, "      metadata:")?;
    writeln!(out, "        scalerAddress: {}", scalar(&plan.scaler_address))?;
    doubts(plan, Place::Metadata, out, 8)?;
    for (key, value) in &plan.metadata {
        writeln!(out, "        {key}: {}", scalar(value))?;
    }
    Ok(())
}

fn doubts(plan: &Plan, place: Place, out: &mut dyn Write, indent: usize) -> io::Result<()> {
    for doubt in plan.doubts_at(place) {
        comment(out, indent, &format!("CHECK: {doubt}."))?;
    }
    Ok(())
}

/// A text as YAML. Numbers start with a digit, the words below are its truth values and its null.
fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-./:_".contains(c))
        && !text.ends_with(':')
        && !YAML_WORDS.contains(&text.to_ascii_lowercase().as_str());
    if is_plain { text.to_owned() } else { json!(text).to_string() }
}

fn comment(out: &mut dyn Write, indent: usize, text: &str) -> io::Result<()> {
    let start = format!("{}# ", " ".repeat(indent));
    out.write_all(wrapped(&start, &start, text).as_bytes())
}
