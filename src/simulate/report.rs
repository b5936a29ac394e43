//! The results for people and for programs: a table, JSON, a page.
//!
//! Must not compute what a [`Study`] does not say.

mod charts;
mod page;
mod plot;
mod tables;

use std::io::{self, Write};

use serde::Serialize;

use super::row::{Row, Rows};
use super::study::{Scene, Study};
use super::transfer::{Transfer, matrix};
use crate::text::shortened;

pub use page::html;

/// One trace as JSON.
#[derive(Serialize)]
struct OfOne<'a> {
    #[serde(flatten)]
    scene: &'a Scene,
    /// The product, documented settings and the best of each sweep.
    results: &'a [Row],
    /// The other points of the sweeps.
    sweep: &'a [Row],
    /// The product with one rule off at a time.
    ablations: &'a [Row],
    /// The clairvoyant and the static fleet.
    references: &'a [Row],
}

/// Several traces as JSON.
#[derive(Serialize)]
struct OfSeveral<'a> {
    /// The results of all traces.
    results: Vec<&'a Row>,
    /// What a setting that is best on one trace does on another.
    transfer: Vec<Transfer>,
    /// Each trace.
    traces: Vec<OfOne<'a>>,
}

/// Writes everything as one JSON object.
///
/// # Errors
///
/// When it cannot be written.
pub fn json(studies: &[Study], out: &mut dyn Write) -> io::Result<()> {
    let rows: Vec<Rows> = studies.iter().map(Study::rows).collect();
    let of_one = |(study, rows)| of_one(study, rows);
    let traces: Vec<OfOne<'_>> = studies.iter().zip(&rows).map(of_one).collect();
    if let [only] = traces.as_slice() {
        serde_json::to_writer_pretty(&mut *out, only)?;
    } else {
        let results = rows.iter().flat_map(|rows| &rows.results).collect();
        let all = OfSeveral { results, transfer: matrix(&rows), traces };
        serde_json::to_writer_pretty(&mut *out, &all)?;
    }
    writeln!(out)
}

fn of_one<'a>(study: &'a Study, rows: &'a Rows) -> OfOne<'a> {
    OfOne {
        scene: &study.scene,
        results: &rows.results,
        sweep: &rows.sweep,
        ablations: &rows.ablations,
        references: &rows.references,
    }
}

/// Writes tables of at most 80 columns.
///
/// # Errors
///
/// When it cannot be written.
pub fn table(studies: &[Study], out: &mut dyn Write) -> io::Result<()> {
    for study in studies {
        table_of(study, out)?;
    }
    if studies.len() > 1 {
        let rows: Vec<Rows> = studies.iter().map(Study::rows).collect();
        transfers(studies, &matrix(&rows), out)?;
    }
    Ok(())
}

fn table_of(study: &Study, out: &mut dyn Write) -> io::Result<()> {
    let scene = &study.scene;
    writeln!(
        out,
        "{}: {} requests in {:.1} h on {},\n{:.0} prompt and {:.0} output tokens in the mean,\ncold start {:.0} s, {} to {} replicas, {} seed{}",
        scene.trace,
        scene.requests,
        scene.hours,
        scene.profile,
        scene.mean_prompt_tokens,
        scene.mean_output_tokens,
        scene.cold_start_s,
        scene.min,
        scene.max,
        scene.seeds.len(),
        if scene.seeds.len() == 1 { "" } else { "s" }
    )?;
    if let Some(empty) = empty_rows(scene) {
        writeln!(out, "{empty}")?;
    }
    if let Some(fluid) = study.bounds.as_ref().map(|bounds| bounds.fluid_hours) {
        writeln!(out, "fluid bound {:.1} GPU-h", fluid * scene.gpus as f64)?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "{:<34} {:>8} {:>9} {:>6} {:>6} {:>5} {:>6}",
        "policy", "attains", "GPU-h", "ratio", "starts", "flaps", "at max"
    )?;
    let rows = study.rows();
    for row in rows.results.iter().chain(&rows.ablations).chain(&rows.references) {
        let below = if row.attainment < scene.bar { " " } else { "*" };
        let ratio = row.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
        writeln!(
            out,
            "{:<34} {:>6.2}%{below} {:>9.2} {ratio:>6} {:>6.0} {:>5.0} {:>5.1}h",
            shortened(&row.name(), 34),
            100.0 * row.attainment,
            row.gpu_hours,
            row.cold_starts,
            row.flaps,
            row.time_at_max / 3_600.0,
        )?;
    }
    writeln!(out)?;
    writeln!(out, "* attains {:.1} %; ratio: GPU-hours over the clairvoyant's", 100.0 * scene.bar)?;
    for row in &rows.results {
        learned(row, out)?;
    }
    writeln!(out)
}

/// What of a trace was not asked for as it is written there.
pub(super) fn empty_rows(scene: &Scene) -> Option<String> {
    (scene.empty_rows > 0).then(|| {
        format!(
            "{} of its rows have 0 tokens, as failed requests do: each counts as 1",
            scene.empty_rows
        )
    })
}

/// What was learned of the engine, and how soon.
fn learned(row: &Row, out: &mut dyn Write) -> io::Result<()> {
    let Some(model) = &row.learned else { return Ok(()) };
    let minutes = |seconds: Option<f64>| {
        seconds.map_or_else(|| "never".to_owned(), |s| format!("after {:.0} min", s / 60.0))
    };
    writeln!(
        out,
        "{} learned: {:.1} ms a step, {:.4} ms a prompt token,\n  {:.4} ms a generated one, {:.1} ms \
         at full cache, error {:.1} %;\n  in force {}, within 10 % of the truth {}",
        row.policy,
        model.step_ms,
        model.prompt_ms,
        model.generated_ms,
        model.kv_ms,
        100.0 * model.error,
        minutes(row.learned_after_s),
        minutes(row.learned_within_10_percent_after_s),
    )
}

/// Tuned on one trace, run on another.
fn transfers(studies: &[Study], all: &[Transfer], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "Tuned on one trace, run on another: attainment, ratio to the clairvoyant's")?;
    writeln!(out, "{:<30} {:<18} {:<18} {:>8}", "policy", "tuned on", "run on", "")?;
    for transfer in all.iter().filter(|transfer| transfer.tuned_on != transfer.run_on) {
        let ratio = transfer.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let bar = studies.first().map_or(1.0, |study| study.scene.bar);
        let below = if transfer.attainment < bar { " " } else { "*" };
        let name = format!("{} ({})", transfer.policy, transfer.setting);
        let tuned_on = if transfer.tuned_on.is_empty() { "-" } else { &transfer.tuned_on };
        writeln!(
            out,
            "{:<30} {:<18} {:<18} {:>5.1}%{below} {ratio:>4}",
            shortened(name.trim_end_matches(" ()"), 30),
            shortened(tuned_on, 18),
            shortened(&transfer.run_on, 18),
            100.0 * transfer.attainment,
        )?;
    }
    Ok(())
}
