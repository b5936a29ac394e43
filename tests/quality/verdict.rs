//! Judges what was measured: near the clairvoyant, cheaper than peers.
//!
//! Must not run anything.

use std::collections::BTreeSet;
use std::io::Write;

use crate::record::{Line, Record};

/// What a policy tuned on the same trace may be cheaper by.
const TUNED_MARGIN: f64 = 0.03;
/// What ours saves against documented settings.
const DOCUMENTED_SAVING: f64 = 0.30;

/// Prints every bar with pass or fail.
pub(crate) fn print(records: &[Record], out: &mut dyn Write) -> anyhow::Result<()> {
    cases(records, out)?;
    documented(records, out)?;
    tuned(records, out)?;
    elsewhere(records, out)
}

/// Each case against its clairvoyant.
fn cases(records: &[Record], out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(
        out,
        "{:<33} {:>8} {:>8} {:>7} {:>6} {:>6}  verdict",
        "case", "attains", "worst", "GPU-h", "ratio", "+repl."
    )?;
    let (mut passed, mut judged) = (0, 0);
    for record in records {
        let ours = &record.ours;
        let ratio = record.lowest().map(|lowest| ours.gpu_hours / lowest);
        let more = record.lowest().map(|lowest| {
            (ours.gpu_hours - lowest) / record.gpus as f64 / record.hours.max(f64::MIN_POSITIVE)
        });
        let optional = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let (verdict, passes) = verdict(record);
        judged += 1;
        passed += usize::from(passes);
        writeln!(
            out,
            "{:<33} {:>7.2}% {:>7.2}% {:>7.1} {:>6} {:>6}  {verdict}",
            record.case,
            100.0 * ours.attainment,
            100.0 * record.worst,
            ours.gpu_hours,
            optional(ratio, 3),
            optional(more, 2),
        )?;
    }
    writeln!(out, "{passed} of {judged} pass\n")?;
    Ok(())
}

/// Within reach means: some causal policy, ours included, attains the bar near the clairvoyant.
/// Out of it no causal policy may attain as much as ours for 3 % less.
fn verdict(record: &Record) -> (String, bool) {
    let ours = &record.ours;
    let is_near = |line: &Line| record.attains(line) && record.is_near(line.gpu_hours);
    if is_near(ours) {
        return ("pass".to_owned(), true);
    }
    if let Some(peer) = record.causal().find(|line| is_near(line)) {
        return (format!("FAIL ({} reaches it)", peer.policy), false);
    }
    if record.peers.is_empty() {
        return ("not near; peers not run".to_owned(), false);
    }
    let as_good = record.causal().filter(|line| line.attainment >= ours.attainment);
    let cheapest = as_good.min_by(|a, b| a.gpu_hours.total_cmp(&b.gpu_hours));
    match cheapest {
        Some(peer) if peer.gpu_hours < (1.0 - TUNED_MARGIN) * ours.gpu_hours => {
            let saved = 100.0 * (1.0 - peer.gpu_hours / ours.gpu_hours);
            (format!("FAIL (out of reach; {} {saved:.0}% less)", peer.policy), false)
        }
        Some(_) | None => ("pass (out of reach)".to_owned(), true),
    }
}

/// Every policy's name, once.
fn policies(records: &[Record]) -> BTreeSet<&str> {
    records.iter().flat_map(Record::causal).map(|line| line.policy.as_str()).collect()
}

/// The mean saving over the plain traces on which the setting of the documents attains the bar; says on
/// how many of them ours does not.
fn documented(records: &[Record], out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "against each peer as its documents ship it (plain engine)")?;
    for policy in policies(records) {
        let mut savings = Vec::new();
        let (mut n, mut missed) = (0, 0);
        for record in records.iter().filter(|record| record.plain) {
            let same = |line: &&Line| line.policy == policy && line.why == "documented";
            let Some(peer) = record.causal().find(same) else { continue };
            n += 1;
            if record.attains(peer) {
                missed += usize::from(!record.attains(&record.ours));
                savings.push(1.0 - record.ours.gpu_hours / peer.gpu_hours);
            }
        }
        if n == 0 {
            continue;
        }
        let verdict = match mean(&savings) {
            None => format!("misses the bar on all {n}: pass"),
            Some(saving) => {
                let passes = if saving >= DOCUMENTED_SAVING { "pass" } else { "FAIL" };
                let beside =
                    if missed > 0 { format!(", ours below it on {missed}") } else { String::new() };
                let n_as_good = savings.len();
                format!("{:>+6.1} % on {n_as_good} of {n}{beside}: {passes}", -100.0 * saving)
            }
        };
        writeln!(out, "  {policy:<24} {verdict}")?;
    }
    writeln!(out)?;
    Ok(())
}

/// Each peer tuned on the very trace: within 3 % of each at equal attainment, cheaper in the mean.
fn tuned(records: &[Record], out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "against each peer tuned on the same trace")?;
    for policy in policies(records) {
        let mut differences = Vec::new();
        let mut worst: Option<(f64, &str)> = None;
        for record in records {
            let as_good = record
                .causal()
                .filter(|line| line.policy == policy && record.attains_as_much(line));
            let best = as_good.min_by(|a, b| a.gpu_hours.total_cmp(&b.gpu_hours));
            let Some(best) = best else { continue };
            let dearer = record.ours.gpu_hours / best.gpu_hours - 1.0;
            differences.push(dearer);
            if worst.is_none_or(|(most, _)| dearer > most) {
                worst = Some((dearer, &record.case));
            }
        }
        let (Some(mean), Some((most, case))) = (mean(&differences), worst) else {
            writeln!(out, "  {policy:<24} never attains as much: pass")?;
            continue;
        };
        let passes = most <= TUNED_MARGIN && mean < 0.0;
        writeln!(
            out,
            "  {policy:<24} mean {:>+6.1} %, most {:>+6.1} % ({case}), {} cases: {}",
            100.0 * mean,
            100.0 * most,
            differences.len(),
            if passes { "pass" } else { "FAIL" }
        )?;
    }
    writeln!(out)?;
    Ok(())
}

/// Each peer tuned on one trace and run on another: ours is cheaper, or it misses the bar there.
fn elsewhere(records: &[Record], out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "against each peer tuned on another trace (plain engine)")?;
    let plain: Vec<&Record> = records.iter().filter(|record| record.plain).collect();
    for policy in policies(records) {
        let (mut won, mut missed, mut lost) = (0, 0, Vec::new());
        for tuned in &plain {
            let as_good =
                tuned.causal().filter(|line| line.policy == policy && tuned.attains_as_much(line));
            let best = as_good.min_by(|a, b| a.gpu_hours.total_cmp(&b.gpu_hours));
            let Some(best) = best else { continue };
            for run in plain.iter().filter(|run| run.case != tuned.case) {
                let same = |line: &&Line| line.policy == policy && line.setting == best.setting;
                let Some(peer) = run.causal().find(same) else { continue };
                if !run.attains_as_much(peer) {
                    missed += 1;
                } else if run.ours.gpu_hours < peer.gpu_hours {
                    won += 1;
                } else {
                    lost.push(format!("{} on {}", tuned.trace, run.trace));
                }
            }
        }
        if won + missed + lost.len() == 0 {
            writeln!(out, "  {policy:<24} nothing to compare yet")?;
            continue;
        }
        let verdict =
            if lost.is_empty() { "pass".to_owned() } else { format!("FAIL: {}", lost.join(", ")) };
        writeln!(
            out,
            "  {policy:<24} misses {missed}, dearer {won}, cheaper {}: {verdict}",
            lost.len()
        )?;
    }
    Ok(())
}

fn mean(values: &[f64]) -> Option<f64> {
    let n = values.len();
    (n > 0).then(|| values.iter().sum::<f64>() / n as f64)
}
