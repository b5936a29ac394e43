//! llm-d's published run of its SLO-aware autoscaling: its own formula on our engine first, for the
//! error of the calibration, then ours beside it.
//!
//! Must not tune either.

use std::io::Write;

use ghostscaler::simulate::Catalog;
use ghostscaler::simulate::baselines::all;
use ghostscaler::simulate::candidate::{Candidate, Why};
use ghostscaler::simulate::cold::ColdStart;
use ghostscaler::simulate::input::{Origin, Source};
use ghostscaler::simulate::policy::Slo;
use ghostscaler::simulate::process::Process;
use ghostscaler::simulate::row::Row;
use ghostscaler::simulate::scenario::Scenario;
use ghostscaler::simulate::study::{Load, Plan, Study, run_study};
use ghostscaler::simulate::supply::Nodes;
use loadgen::engine::Profile;

/// What was published: the share of requests within TTFT ≤ 3 s and TPOT ≤ 100 ms, at so many
/// replicas in the mean, draining ones included.
const PUBLISHED: (f64, f64) = (0.958, 5.93);
/// What ours is to attain, at so many replicas at most.
const GOAL: (f64, f64) = (0.97, 5.2);

/// Prints both.
pub(crate) fn print(n_seeds: u64, out: &mut dyn Write) -> anyhow::Result<()> {
    let profile = Profile::load("qwen3-32b-2xh100")?;
    let mut candidates = Catalog::new().select(&["ghostscaler".to_owned()])?;
    let formula = all().into_iter().find(|baseline| baseline.policy == "llm-d-slo-aware");
    candidates.extend(formula.map(|baseline| baseline.candidate(0.55, Why::Documented)));
    let seeds: Vec<u64> = (1..=n_seeds.max(1)).collect();
    let first = study(&profile, &candidates, &seeds, 1)?;
    let again = study(&profile, &candidates, &seeds, 2)?;
    let (rows, learned) = (first.rows(), again.rows());
    writeln!(
        out,
        "llm-d's run on {}: 2, 4, 6, 8, 10, 4, 1 requests/s in {:.0} s, {} seeds\n",
        profile.name,
        3_600.0 * first.scene.hours,
        seeds.len()
    )?;
    writeln!(out, "{:<44} {:>9} {:>9} {:>8}", "", "attains", "worst", "replicas")?;
    let (attained, replicas) = PUBLISHED;
    writeln!(out, "{:<44} {:>8.1}% {:>9} {replicas:>8.2}", "published", 100.0 * attained, "")?;
    let of = |rows: &'_ [Row], policy: &str| rows.iter().find(|row| row.policy == policy).cloned();
    let theirs = of(&rows.results, "llm-d-slo-aware");
    let ours = of(&rows.results, "ghostscaler");
    let lines = [
        ("its formula, simulated", theirs.clone()),
        ("ghostscaler, knowing nothing at its start", ours.clone()),
        ("ghostscaler, after one such run before", of(&learned.results, "ghostscaler")),
        ("clairvoyant at 97 %", of(&rows.references, "clairvoyant")),
        ("smallest static fleet at 97 %", of(&rows.references, "static")),
    ];
    for (words, row) in lines {
        let Some(row) = row else { continue };
        writeln!(
            out,
            "{words:<44} {:>8.2}% {:>8.2}% {:>8.2}",
            100.0 * row.attainment_raw,
            100.0 * row.attainment_worst,
            row.mean_replicas
        )?;
    }
    if let Some(theirs) = theirs {
        writeln!(
            out,
            "\nerror of the calibration: {:+.1} points of attainment, {:+.2} replicas ({:+.1} %)",
            100.0 * (theirs.attainment_raw - attained),
            theirs.mean_replicas - replicas,
            100.0 * (theirs.mean_replicas / replicas - 1.0)
        )?;
    }
    if let Some(ours) = ours {
        let passes = ours.attainment_raw >= GOAL.0 && ours.mean_replicas <= GOAL.1;
        let verdict = if passes { "pass" } else { "FAIL" };
        writeln!(
            out,
            "goal for ours: {:.0} % at {:.1} replicas: {verdict}",
            100.0 * GOAL.0,
            GOAL.1
        )?;
    }
    Ok(())
}

/// So many runs one after another, of which the last counts.
fn study(
    profile: &Profile,
    candidates: &[Candidate],
    seeds: &[u64],
    runs: usize,
) -> anyhow::Result<Study> {
    let process = Process::load("llm-d")?;
    let warmup_s = process.span_s() * (runs - 1) as f64;
    let origin = Origin::Process { process, runs };
    let source = Source { origin, scale: 1.0, warmup_s, cached: None };
    let read = |seed| source.read(profile.limits.max_model_tokens, seed);
    let plan = Plan {
        profile,
        cold: ColdStart::of_mean(95.0),
        nodes: Nodes::default(),
        scenario: Scenario::NONE,
        slo: Slo { ttft_s: 3.0, tpot_s: 0.1 },
        min: 3,
        max: Some(8),
        bar: GOAL.0,
        candidates,
        references: true,
    };
    let load = Load { name: source.name(), read: &read };
    Ok(run_study(&plan, seeds, &load, &|_, _, _| {})?)
}
