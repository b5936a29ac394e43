//! The drawings of the page.
//!
//! Must not list numbers; tables do.

use super::super::outcome::{Outcome, Point};
use super::super::row::Row;
use super::page::{CLAIRVOYANT_COLOR, OUR_COLOR, OURS, Part};
use super::plot::{Axis, Plot};
use crate::text::escaped;

/// Hours of learning that are shown.
const LEARNING_H: f64 = 6.0;
/// Errors beyond this are drawn at the edge.
const LEARNING_MOST: f64 = 0.6;
/// The cost axis ends at so many times the clairvoyant's.
const COST_MOST: f64 = 3.0;

/// Attainment as it is drawn: each nine as wide as the one before.
fn nines(attainment: f64) -> f64 {
    -(1.0 - attainment).max(1e-4).log10()
}

/// Attainment against cost: every setting, and the clairvoyant's frontier.
pub(super) fn pareto(part: &Part<'_>) -> String {
    let (study, rows) = (part.study, &part.rows);
    let clairvoyant = rows.results.iter().find_map(|row| row.clairvoyant_gpu_hours);
    let dearest = rows.results.iter().map(|row| row.gpu_hours).fold(0.0, f64::max);
    let most = clairvoyant.map_or(dearest, |hours| dearest.min(COST_MOST * hours));
    let marks = [0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999];
    let y = Axis {
        from: nines(0.5),
        to: nines(0.9999),
        marks: marks.map(|a| (nines(a), format!("{} %", (1e4 * a).round() / 100.0))).to_vec(),
        label: "attainment",
    };
    let mut drawing = Plot::new(1_000.0, 440.0, Axis::up_to(most, "GPU-hours"), y);
    let at = |row: &Row| (row.gpu_hours, nines(row.attainment));
    let bar = nines(study.scene.bar);
    drawing.line(&[(0.0, bar), (f64::MAX, bar)], "#888", "stroke-dasharray='5 4'");
    drawing.line(&frontier(part), CLAIRVOYANT_COLOR, "class='ink' stroke-width='2'");
    for (policy, color) in policies(part) {
        let all = rows.results.iter().chain(&rows.sweep);
        let mut swept: Vec<(f64, f64)> = all
            .filter(|row| row.policy == policy && matches!(row.why, "swept" | "best_of_sweep"))
            .map(at)
            .collect();
        swept.sort_by(|a, b| a.0.total_cmp(&b.0));
        drawing.line(&swept, color, "stroke-opacity='0.35'");
    }
    let title = |row: &Row| {
        format!("{}: {:.2} %, {:.1} GPU-h", row.name(), 100.0 * row.attainment, row.gpu_hours)
    };
    for row in &rows.sweep {
        drawing.point(at(row), 2.5, part.colors.get(&row.policy), &escaped(&title(row)));
    }
    // Ours last, so that nothing lies on it; its name first, so that it is there.
    let mut results: Vec<&Row> = rows.results.iter().collect();
    results.sort_by_key(|row| row.policy == OURS);
    for row in &results {
        let radius = if row.policy == OURS { 8.0 } else { 5.5 };
        drawing.point(at(row), radius, part.colors.get(&row.policy), &escaped(&title(row)));
    }
    results.sort_by_key(|row| (row.policy != OURS, row.attainment < study.scene.bar));
    for row in &results {
        drawing.text(at(row), &row.policy, part.colors.get(&row.policy));
    }
    drawing.svg("Attainment of each policy against its GPU-hours; the table has the numbers")
}

/// Each policy once, with its colour.
fn policies<'a>(part: &'a Part<'_>) -> Vec<(&'a str, &'static str)> {
    let mut all: Vec<(&str, &'static str)> = Vec::new();
    for row in &part.rows.results {
        if all.iter().all(|(policy, _)| *policy != row.policy) {
            all.push((&row.policy, part.colors.get(&row.policy)));
        }
    }
    all
}

/// The plans that no other plan beats.
fn frontier(part: &Part<'_>) -> Vec<(f64, f64)> {
    let gpus = part.study.scene.gpus as f64;
    let plans = part.study.bounds.iter().flat_map(|bounds| &bounds.plans);
    let mut frontier: Vec<(f64, f64)> = plans
        .map(|point| (point.outcome.replica_hours() * gpus, nines(point.outcome.attainment())))
        .collect();
    frontier.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut highest = -1.0;
    frontier.retain(|&(_, attainment)| {
        let rises = attainment > highest;
        highest = f64::max(highest, attainment);
        rises
    });
    frontier
}

/// Ours, the clairvoyant and the best peer over time, each in a drawing with the load behind it.
pub(super) fn timelines(part: &Part<'_>) -> String {
    let study = part.study;
    let bounds = study.bounds.as_ref();
    let clairvoyant = bounds.and_then(|bounds| bounds.clairvoyant(study.scene.bar));
    let entry_of = |row: &Row| {
        study.entries.iter().find(|entry| {
            entry.candidate.policy == row.policy && entry.candidate.setting == row.setting
        })
    };
    let mut drawings = String::new();
    for row in part.ours().into_iter().chain(part.best_peer()) {
        let Some(outcome) = entry_of(row).and_then(|entry| entry.outcomes.first()) else {
            continue;
        };
        let color = part.colors.get(&row.policy);
        let beside = clairvoyant.map(|point| &point.outcome);
        drawings.push_str(&format!(
            "<h3>{}</h3>{}",
            escaped(&row.name()),
            timeline(outcome, beside, color, part)
        ));
    }
    drawings
}

fn timeline(outcome: &Outcome, beside: Option<&Outcome>, color: &str, part: &Part<'_>) -> String {
    let points = &outcome.timeline;
    let scene = &part.study.scene;
    let hours = |point: &Point| point.t_s / 3_600.0;
    let most = [Some(outcome), beside].into_iter().flatten().map(|o| o.max_replicas).max();
    let busiest = points.iter().map(|point| point.arrivals).fold(0.0, f64::max);
    let mut x = Axis::up_to(scene.hours, "hours");
    x.to = scene.hours.max(1e-9);
    x.marks.retain(|&(value, _)| value <= scene.hours + 1e-9);
    let y = Axis::up_to(f64::from(most.unwrap_or(1)), "replicas");
    let load_scale = if busiest > 0.0 { 0.9 * y.to / busiest } else { 0.0 };
    let mut drawing = Plot::new(1_000.0, 210.0, x, y);
    let load: Vec<(f64, f64)> =
        points.iter().map(|point| (hours(point), load_scale * point.arrivals)).collect();
    drawing.area(&load, "#8884");
    let ordered = |outcome: &Outcome| -> Vec<(f64, f64)> {
        outcome.timeline.iter().map(|point| (hours(point), f64::from(point.ordered))).collect()
    };
    if let Some(beside) = beside {
        drawing.steps(&ordered(beside), CLAIRVOYANT_COLOR, "class='ink' stroke-width='1'");
    }
    drawing.steps(&ordered(outcome), color, "stroke-width='2'");
    for point in points.iter().filter(|point| point.good < 0.95) {
        let title = format!("{:.1} h: {:.0} % served well", hours(point), 100.0 * point.good);
        drawing.point((hours(point), 0.0), 2.5, "#e00", &title);
    }
    drawing.svg("Replicas ordered over time; red points mark when fewer than 95 % were served well")
}

/// The error of what was learned, over the first hours; empty if nothing was.
pub(super) fn learning(part: &Part<'_>) -> String {
    let ours = part.study.entries.iter().find(|entry| entry.candidate.policy == OURS);
    let Some(learning) = ours.and_then(|entry| entry.learning.as_ref()) else {
        return String::new();
    };
    let errors = part.study.truth.errors(learning);
    let errors: Vec<(f64, f64)> = errors
        .into_iter()
        .map(|(after_s, error)| {
            (after_s / 3_600.0, 100.0 * error.clamp(-LEARNING_MOST, LEARNING_MOST))
        })
        .filter(|&(hours, _)| hours <= LEARNING_H)
        .collect();
    if errors.len() < 2 {
        return String::new();
    }
    let most = 100.0 * LEARNING_MOST;
    let marks = [-60.0, -40.0, -20.0, -10.0, 0.0, 10.0, 20.0, 40.0, 60.0];
    let y = Axis {
        from: -most,
        to: most,
        marks: marks.map(|value| (value, format!("{value:+.0} %"))).to_vec(),
        label: "error",
    };
    let longest = errors.last().map_or(1.0, |&(hours, _)| hours);
    let mut drawing = Plot::new(1_000.0, 200.0, Axis::up_to(longest, "hours since the start"), y);
    drawing.band((-10.0, 10.0), "#2e7d4f22");
    drawing.line(&errors, OUR_COLOR, "stroke-width='2'");
    drawing.svg("Error of the learned cost of the mean request over the first hours")
}
