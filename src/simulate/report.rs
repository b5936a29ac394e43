//! The results for people and for programs: a table, JSON, a page.
//!
//! Must not compute what a [`Study`] does not say.

mod page;
mod plot;

use std::io::{self, Write};

use serde::Serialize;

use super::study::{Row, Scene, Study};

pub use page::html;

/// Everything as one JSON object.
#[derive(Serialize)]
struct Report<'a> {
    trace: &'a str,
    #[serde(flatten)]
    scene: &'a Scene,
    /// The product, documented settings and the best of each sweep.
    results: &'a [Row],
    /// The other points of the sweeps.
    sweep: &'a [Row],
    /// The clairvoyant and the static fleet.
    references: &'a [Row],
}

/// Writes everything as JSON.
///
/// # Errors
///
/// When it cannot be written.
pub fn json(study: &Study, title: &str, out: &mut dyn Write) -> io::Result<()> {
    let (results, sweep) = study.rows();
    let report = Report {
        trace: title,
        scene: &study.scene,
        results: &results,
        sweep: &sweep,
        references: &study.reference_rows(),
    };
    serde_json::to_writer_pretty(&mut *out, &report)?;
    writeln!(out)
}

/// Writes a table of at most 80 columns.
///
/// # Errors
///
/// When it cannot be written.
pub fn table(study: &Study, title: &str, out: &mut dyn Write) -> io::Result<()> {
    let scene = &study.scene;
    writeln!(
        out,
        "{title}: {} requests in {:.1} h on {}, cold start {:.0} s, {} to {} replicas",
        scene.requests, scene.hours, scene.profile, scene.cold_start_s, scene.min, scene.max
    )?;
    if let Some(fluid) = study.bounds.as_ref().map(|bounds| bounds.fluid_hours) {
        writeln!(out, "fluid bound {:.1} GPU-h", fluid * scene.gpus as f64)?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "{:<34} {:>8} {:>9} {:>6} {:>6} {:>5} {:>6}",
        "policy", "attains", "GPU-h", "ratio", "starts", "flaps", "at max"
    )?;
    let (results, _) = study.rows();
    for row in results.iter().chain(&study.reference_rows()) {
        let below = if row.attainment < scene.bar { " " } else { "*" };
        let ratio = row.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
        writeln!(
            out,
            "{:<34} {:>6.2}%{below} {:>9.2} {ratio:>6} {:>6.0} {:>5.0} {:>5.1}h",
            shortened(&name(row), 34),
            100.0 * row.attainment,
            row.gpu_hours,
            row.cold_starts,
            row.flaps,
            row.time_at_max / 3_600.0,
        )?;
    }
    writeln!(out)?;
    writeln!(out, "* attains {:.1} %; ratio: GPU-hours over the clairvoyant's", 100.0 * scene.bar)?;
    for row in &results {
        if let Some(model) = &row.learned {
            writeln!(
                out,
                "{} learned: {:.1} ms a step, {:.4} ms a prompt token, {:.4} ms a generated one, \
                 {:.1} ms at full cache, error {:.1} %",
                row.policy,
                model.step_ms,
                model.prompt_ms,
                model.generated_ms,
                model.kv_ms,
                100.0 * model.error
            )?;
        }
    }
    Ok(())
}

fn name(row: &Row) -> String {
    if row.setting.is_empty() {
        row.policy.clone()
    } else {
        format!("{} ({})", row.policy, row.setting)
    }
}

fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width - 1).collect();
    format!("{kept}…")
}
