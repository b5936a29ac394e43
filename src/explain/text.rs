//! A snapshot as text for a person: 80 columns, no colour, the answer first.
//!
//! Must not compute anything that the snapshot does not say.

use std::io::{self, Write};

use crate::decision::{Answer, Decision, Phase};
use crate::duration::format_millis;
use crate::text;
use crate::web::{Member, Snapshot, Workload, words};

/// Prints one snapshot.
///
/// # Errors
///
/// When `out` is closed.
pub fn print(snapshot: &Snapshot, out: &mut dyn Write) -> io::Result<()> {
    let workload = &snapshot.workload;
    writeln!(out, "{}/{}: {}", workload.namespace, workload.name, verdict(workload))?;
    wrapped(out, "  ", "  ", &workload.summary)?;
    writeln!(out)?;
    field(out, "Replicas", &replicas(workload))?;
    let hpa = snapshot.hpa.as_ref().map_or("no count to compare", |hpa| hpa.text.as_str());
    field(out, "HPA", hpa)?;
    field(out, "KEDA asked", &asked(snapshot))?;
    if let Some(decision) = &snapshot.decision {
        field(out, "Decided", &decided(workload, decision))?;
        inputs(out, decision, snapshot)?;
    }
    votes(out, snapshot)?;
    if !snapshot.next.is_empty() {
        writeln!(out, "\nWhat would change it")?;
        for sentence in &snapshot.next {
            wrapped(out, "  ", "    ", sentence)?;
        }
    }
    if !snapshot.remarks.is_empty() {
        writeln!(out, "\nKeys without effect")?;
        for sentence in &snapshot.remarks {
            wrapped(out, "  ", "    ", sentence)?;
        }
    }
    if !snapshot.refused.is_empty() {
        writeln!(out, "\nTrigger metadata that is refused")?;
        for faults in &snapshot.refused {
            wrapped(out, "  ", "    ", faults)?;
        }
    }
    let said = snapshot.cluster.iter().flat_map(|cluster| &cluster.said);
    for (index, sentence) in said.enumerate() {
        if index == 0 {
            writeln!(out, "\nIn the cluster")?;
        }
        wrapped(out, "  ", "    ", sentence)?;
    }
    members(out, &snapshot.members)?;
    if snapshot.triggers.len() > 1 {
        let others = format!(
            "this is trigger {} of {}; --trigger picks another",
            workload.trigger,
            snapshot.triggers.join(", ")
        );
        writeln!(out)?;
        wrapped(out, "", "  ", &others)?;
    }
    Ok(())
}

fn verdict(workload: &Workload) -> String {
    match workload.answer {
        Answer::Unavailable { .. } => "no value, KEDA is answered UNAVAILABLE".to_owned(),
        Answer::Value { want, active } => {
            let activity = if active { "active" } else { "not active" };
            format!("{}, {activity}", words::replicas(want))
        }
    }
}

fn replicas(workload: &Workload) -> String {
    let count = |count: Option<u32>| count.map_or_else(unknown, |count| count.to_string());
    let bounds = match (workload.min, workload.max) {
        (Some(min), Some(max)) => format!(", bounds {min} to {max}"),
        (_, _) => String::new(),
    };
    format!(
        "{} ordered, {} ready, {} starting{bounds}",
        count(workload.spec),
        count(workload.ready),
        count(workload.starting)
    )
}

fn asked(snapshot: &Snapshot) -> String {
    if snapshot.workload.paused {
        return "not while the ScaledObject is paused".to_owned();
    }
    if snapshot.asked.is_empty() {
        return "never: no ScaledObject points here yet".to_owned();
    }
    let calls = snapshot.asked.iter().map(|asked| {
        let caller = if asked.caller == "hpa" { "HPA" } else { "poll" };
        format!("{} ({caller}) {} ago", asked.rpc, format_millis(asked.age_ms))
    });
    calls.collect::<Vec<_>>().join(", ")
}

fn decided(workload: &Workload, decision: &Decision) -> String {
    let inputs = match decision.inputs.age_ms {
        Some(age_ms) => format!("on inputs at most {} older", format_millis(age_ms)),
        None => "without fresh inputs".to_owned(),
    };
    format!("{} ago {inputs}, by rule {}", format_millis(workload.age_ms), decision.binding.label())
}

fn inputs(out: &mut dyn Write, decision: &Decision, snapshot: &Snapshot) -> io::Result<()> {
    let inputs = &decision.inputs;
    let requests = |value: Option<f64>| value.map_or_else(unknown, words::number);
    let percent = |value: f64| format!("{:.0} %", value * 100.0);
    writeln!(out, "\nInputs")?;
    item(out, "waiting requests", &requests(inputs.waiting))?;
    item(out, "running requests", &requests(inputs.running))?;
    if let Some(queued) = inputs.gateway_queued {
        item(out, "held by the gateway", &words::number(queued))?;
    }
    if let Some(usage) = inputs.kv_usage {
        item(out, "KV cache, fullest", &percent(usage))?;
    }
    if let Some(busy) = inputs.gpu_busy {
        item(out, "GPU time busy", &percent(busy))?;
    }
    if let Some(work) = inputs.work {
        let mut level = format!("{work:.2} replicas' worth");
        if let Some(rho) = inputs.rho {
            level.push_str(&format!(", a replica carries {}", percent(rho)));
        }
        if let Some(headroom) = inputs.headroom {
            level.push_str(&format!(", headroom {headroom:.2}"));
        }
        item(out, "work", &level)?;
    }
    item(out, "level from", words::level_source(inputs.level_source))?;
    let start = snapshot.cluster.as_ref().and_then(|cluster| cluster.start);
    let parts =
        start.map_or_else(String::new, |start| format!("; the last took {}", words::start(&start)));
    item(out, "cold start", &format!("{}{parts}", format_millis(inputs.cold_start_ms)))?;
    let score = inputs
        .ghost_score
        .map_or_else(|| "none below two replicas".to_owned(), |score| format!("{score:.0} of 100"));
    item(out, "ghost score", &format!("{score}, hold {}", format_millis(inputs.hold_ms)))?;
    if let Some(policy) = &snapshot.policy {
        let slo = format!(
            "first token {}, then {} a token",
            format_millis(policy.slo_ttft_ms),
            format_millis(policy.slo_tpot_ms)
        );
        item(out, "SLO", &slo)?;
    }
    Ok(())
}

fn votes(out: &mut dyn Write, snapshot: &Snapshot) -> io::Result<()> {
    if snapshot.votes.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n  {:<12}{:>5}  why", "rule", "wants")?;
    for vote in &snapshot.votes {
        let want = vote.want.map_or_else(none, |want| want.to_string());
        let mark = if snapshot.workload.binding == Some(vote.rule) { '*' } else { ' ' };
        let first = format!("{mark} {:<12}{want:>5}  ", vote.rule.label());
        wrapped(out, &first, &" ".repeat(21), &vote.text)?;
    }
    Ok(())
}

fn members(out: &mut dyn Write, members: &[Member]) -> io::Result<()> {
    if members.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n  {:<30}{:<12}{:>9}{:>9}  reading", "engine", "phase", "waiting", "running")?;
    for member in members {
        let number = |value: Option<f64>| value.map_or_else(none, words::number);
        let age =
            member.age_ms.map_or(String::new(), |age_ms| format!(" {}", format_millis(age_ms)));
        let row = format!(
            "  {:<30}{:<12}{:>9}{:>9}  {}{age}",
            shortened(&member.id, 29),
            phase(member),
            number(member.waiting),
            number(member.running),
            member.reading
        );
        writeln!(out, "{row}")?;
        if let Some(why) = member.why {
            wrapped(out, "    ", "    ", why.sentence())?;
        }
    }
    Ok(())
}

fn phase(member: &Member) -> &'static str {
    if member.asleep == Some(true) {
        return "asleep";
    }
    match member.phase {
        None => "-",
        Some(Phase::Starting) => "starting",
        Some(Phase::Ready) => "ready",
        Some(Phase::NotReady) => "not ready",
        Some(Phase::Terminating) => "terminating",
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// In a column of numbers.
fn none() -> String {
    "-".to_owned()
}

/// Keeps the end, where pod names differ.
fn shortened(text: &str, width: usize) -> String {
    let n_chars = text.chars().count();
    if n_chars <= width {
        return text.to_owned();
    }
    let tail: String = text.chars().skip(n_chars - (width - 2)).collect();
    format!("..{tail}")
}

fn field(out: &mut dyn Write, name: &str, text: &str) -> io::Result<()> {
    wrapped(out, &format!("{name:<12}"), &" ".repeat(12), text)
}

fn item(out: &mut dyn Write, name: &str, text: &str) -> io::Result<()> {
    wrapped(out, &format!("  {name:<21}"), &" ".repeat(23), text)
}

/// Writes words after `first`, and further lines after `rest`.
fn wrapped(out: &mut dyn Write, first: &str, rest: &str, words: &str) -> io::Result<()> {
    out.write_all(text::wrapped(first, rest, words).as_bytes())
}

#[cfg(test)]
mod tests;
