//! The tables of the page.
//!
//! Must not draw.

use super::super::outcome::{LENGTH_BOUNDS, Outcome, Point};
use super::super::row::Row;
use super::super::transfer::{Transfer, matrix};
use super::page::{OURS, Part, peers};
use crate::text::escaped;

/// Bars end at so many times the clairvoyant's.
const BAR_MOST: f64 = 3.0;
/// Stretches that are shown of each kind.
const SHOWN: usize = 5;
/// What a point of our timeline served is bad below this.
const BAD_BELOW: f64 = 0.95;

/// How good a ratio to the clairvoyant is.
pub(super) fn grade(ratio: f64) -> &'static str {
    match ratio {
        ratio if ratio <= 1.10 => "good",
        ratio if ratio <= 1.5 => "fair",
        _ => "bad",
    }
}

fn optional(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}{unit}"))
}

/// Every policy and reference, with bars.
pub(super) fn policies(part: &Part<'_>) -> String {
    let bar = part.study.scene.bar;
    let mut rows: Vec<&Row> = part.rows.results.iter().chain(&part.rows.references).collect();
    rows.sort_by(|a, b| {
        let misses = |row: &Row| row.attainment < bar;
        let by_cost = a.gpu_hours.total_cmp(&b.gpu_hours);
        let by_attainment = b.attainment.total_cmp(&a.attainment);
        misses(a).cmp(&misses(b)).then(if misses(a) { by_attainment } else { by_cost })
    });
    let unit = rows.iter().find_map(|row| row.clairvoyant_gpu_hours);
    let dearest = rows.iter().map(|row| row.gpu_hours).fold(0.0, f64::max);
    let most = unit.map_or(dearest, |hours| dearest.min(BAR_MOST * hours)).max(f64::MIN_POSITIVE);
    let mark = unit.map_or(0.0, |hours| 100.0 * hours / most);
    let mut table = String::from(
        "<table><tr><th>policy</th><th></th><th>attains</th><th>raw</th><th>GPU-h</th><th></th>\
         <th>ratio</th><th>p99 TTFT</th><th>starts</th><th>flaps</th><th>h at max</th></tr>",
    );
    let mut cut = false;
    for row in rows {
        if row.attainment < bar && !cut {
            cut = true;
            table.push_str(&format!(
                "<tr class='cut'><td colspan='11'>misses {:.1} %</td></tr>",
                100.0 * bar
            ));
        }
        let class = match row {
            row if row.policy == OURS => "ours",
            row if row.why == "reference" => "ref",
            row if row.attainment < bar => "miss",
            _ => "",
        };
        let width = (100.0 * row.gpu_hours / most).min(100.0);
        table.push_str(&format!(
            "<tr class='{class}'><td>{}{}</td><td class='setting'>{}</td><td>{:.2} %</td>\
             <td>{:.2} %</td><td>{:.1}</td><td class='bar' style='background:linear-gradient(90deg,\
             transparent {mark:.2}%,var(--ink) {mark:.2}%,var(--ink) calc({mark:.2}% + 2px),transparent 0)'>\
             <i style='width:{width:.1}%;background:{}'></i></td><td>{}</td><td>{}</td><td>{:.0}</td>\
             <td>{:.0}</td><td>{:.1}</td></tr>",
            part.colors.dot(&row.policy),
            escaped(&row.policy),
            escaped(&setting(row)),
            100.0 * row.attainment,
            100.0 * row.attainment_raw,
            row.gpu_hours,
            part.colors.get(&row.policy),
            optional(row.ratio, ""),
            optional(row.ttft_p99_s, " s"),
            row.cold_starts,
            row.flaps,
            row.time_at_max / 3_600.0,
        ));
    }
    table.push_str("</table>");
    table
}

fn setting(row: &Row) -> String {
    let why = match row.why {
        "default" => "defaults",
        "best_of_sweep" => "tuned",
        other => other,
    };
    if row.setting.is_empty() { why.to_owned() } else { format!("{why}: {}", row.setting) }
}

/// Ours with one rule off at a time; empty if that was not run.
pub(super) fn ablations(part: &Part<'_>) -> String {
    let Some(ours) = part.ours().filter(|_| !part.rows.ablations.is_empty()) else {
        return String::new();
    };
    let mut table = String::from(
        "<table><tr><th>without</th><th>attains</th><th>GPU-h</th><th>cost</th><th>starts</th>\
         <th>flaps</th></tr>",
    );
    for row in std::iter::once(ours).chain(&part.rows.ablations) {
        table.push_str(&format!(
            "<tr{}><td>{}</td><td>{:.2} %</td><td>{:.1}</td><td>{:+.1} %</td><td>{:.0}</td>\
             <td>{:.0}</td></tr>",
            if row.setting.is_empty() { " class='ours'" } else { "" },
            if row.setting.is_empty() { "nothing".to_owned() } else { escaped(&row.setting) },
            100.0 * row.attainment,
            row.gpu_hours,
            100.0 * (row.gpu_hours / ours.gpu_hours - 1.0),
            row.cold_starts,
            row.flaps,
        ));
    }
    table.push_str("</table>");
    table
}

/// The least regret of each policy over its settings.
pub(super) fn regret(part: &Part<'_>) -> String {
    let rows = &part.rows;
    if rows.results.iter().all(|row| row.clairvoyant_gpu_hours.is_none()) {
        return String::new();
    }
    let mut table = String::from(
        "<table><tr><th>policy</th><th>at 95 %</th><th>at 98 %</th><th>at 99 %</th></tr>",
    );
    let mut seen: Vec<&str> = Vec::new();
    for row in &rows.results {
        if seen.contains(&row.policy.as_str()) {
            continue;
        }
        seen.push(&row.policy);
        let same = || rows.results.iter().chain(&rows.sweep).filter(|r| r.policy == row.policy);
        let least = |of: fn(&Row) -> Option<f64>| {
            let least = same().filter_map(of).fold(f64::INFINITY, f64::min);
            if least.is_finite() { format!("{:+.1} %", 100.0 * least) } else { "–".to_owned() }
        };
        table.push_str(&format!(
            "<tr class='{}'><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            if row.policy == OURS { "ours" } else { "" },
            part.colors.dot(&row.policy),
            escaped(&row.policy),
            least(|row| row.regret_95),
            least(|row| row.regret_98),
            least(|row| row.regret_99)
        ));
    }
    table.push_str("</table>");
    table
}

/// Attainment by prompt length.
pub(super) fn by_length(part: &Part<'_>) -> String {
    let mut table = String::from("<table><tr><th>policy</th>");
    for bound in LENGTH_BOUNDS {
        table.push_str(&format!("<th>to {bound}</th>"));
    }
    table.push_str("<th>longer</th></tr>");
    for row in &part.rows.results {
        table.push_str(&format!(
            "<tr class='{}'><td>{}{}</td>",
            if row.policy == OURS { "ours" } else { "" },
            part.colors.dot(&row.policy),
            escaped(&row.name())
        ));
        for share in &row.attainment_by_prompt {
            let text =
                share.map_or_else(|| "–".to_owned(), |share| format!("{:.2} %", 100.0 * share));
            table.push_str(&format!("<td>{text}</td>"));
        }
        table.push_str("</tr>");
    }
    table.push_str("</table>");
    table
}

/// Consecutive points of a timeline.
struct Stretch {
    from_s: f64,
    to_s: f64,
    /// What it is ranked by: requests not served well, or replica-hours beyond the clairvoyant's.
    weight: f64,
    worst: f64,
    ordered: u32,
    clairvoyant: Option<u32>,
}

/// Where our run was worst: stretches below target, and stretches above the clairvoyant.
pub(super) fn losses(part: &Part<'_>) -> String {
    let ours = part.study.entries.iter().find(|entry| entry.candidate.policy == OURS);
    let Some(outcome) = ours.and_then(|entry| entry.outcomes.first()) else { return String::new() };
    let plan = part.study.bounds.as_ref().and_then(|b| b.clairvoyant(part.study.scene.bar));
    let plan = plan.map(|point| &point.outcome);
    let step_s = outcome.timeline.first().map_or(1.0, |point| point.t_s.max(1.0));
    let missed = |point: &Point, _: Option<&Point>| {
        if point.good < BAD_BELOW { (1.0 - point.good) * point.arrivals * step_s } else { 0.0 }
    };
    let held = |point: &Point, plan: Option<&Point>| {
        let beyond = plan.map_or(0.0, |plan| f64::from(point.ordered) - f64::from(plan.ordered));
        if beyond >= 1.0 { beyond * step_s / 3_600.0 } else { 0.0 }
    };
    let late = stretches(outcome, plan, &missed);
    let dear = stretches(outcome, plan, &held);
    if late.is_empty() && dear.is_empty() {
        return "<p>Nowhere.</p>".to_owned();
    }
    let mut table = String::from(
        "<table><tr><th>from</th><th>for</th><th>served well</th><th>ours</th><th>clairvoyant</th>\
         <th>lost</th></tr>",
    );
    let mut add = |stretch: &Stretch, lost: String| {
        table.push_str(&format!(
            "<tr><td>{}</td><td>{:.0} min</td><td>{:.0} %</td><td>{}</td><td>{}</td><td>{lost}</td></tr>",
            clock(stretch.from_s),
            (stretch.to_s - stretch.from_s) / 60.0,
            100.0 * stretch.worst,
            stretch.ordered,
            stretch.clairvoyant.map_or_else(|| "–".to_owned(), |n| n.to_string()),
        ));
    };
    for stretch in late.iter().take(SHOWN) {
        add(stretch, format!("{:.0} requests late", stretch.weight));
    }
    for stretch in dear.iter().take(SHOWN) {
        add(stretch, format!("{:.1} replica-hours", stretch.weight));
    }
    table.push_str("</table>");
    table
}

fn stretches(
    outcome: &Outcome,
    plan: Option<&Outcome>,
    weigh: &dyn Fn(&Point, Option<&Point>) -> f64,
) -> Vec<Stretch> {
    let mut all: Vec<Stretch> = Vec::new();
    let mut open = false;
    let mut last_s = 0.0;
    for (index, point) in outcome.timeline.iter().enumerate() {
        let planned = plan.and_then(|plan| plan.timeline.get(index));
        let weight = weigh(point, planned);
        if weight > 0.0 {
            if !open {
                all.push(Stretch {
                    from_s: last_s,
                    to_s: point.t_s,
                    weight: 0.0,
                    worst: 1.0,
                    ordered: point.ordered,
                    clairvoyant: planned.map(|plan| plan.ordered),
                });
            }
            if let Some(stretch) = all.last_mut() {
                stretch.to_s = point.t_s;
                stretch.weight += weight;
                stretch.worst = stretch.worst.min(point.good);
            }
        }
        open = weight > 0.0;
        last_s = point.t_s;
    }
    all.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    all
}

/// Hours and minutes since the counted part began.
fn clock(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round();
    format!("{:.0} h {:02.0}", (minutes / 60.0).floor(), minutes % 60.0)
}

/// Ours and every peer on every trace, tuned and as documented.
pub(super) fn scoreboard(parts: &[Part<'_>]) -> String {
    let mut table = String::from("<table><tr><th>policy</th>");
    for part in parts {
        table.push_str(&format!("<th>{}</th>", escaped(&part.study.scene.trace)));
    }
    table.push_str("<th>mean</th></tr>");
    let Some(first) = parts.first() else { return String::new() };
    let ours = (OURS.to_owned(), "default");
    let mut lines = vec![ours];
    for why in ["best_of_sweep", "documented"] {
        let same = peers(&first.rows.results).filter(|row| row.why == why);
        lines.extend(same.map(|row| (row.policy.clone(), why)));
    }
    for (policy, why) in lines {
        let words = match why {
            "best_of_sweep" => ", tuned on each",
            "documented" => ", as documented",
            _ => "",
        };
        table.push_str(&format!(
            "<tr class='{}'><td>{}{}{words}</td>",
            if policy == OURS { "ours" } else { "" },
            first.colors.dot(&policy),
            escaped(&policy)
        ));
        let mut ratios = Vec::new();
        for part in parts {
            let row = part.rows.results.iter().find(|row| row.policy == policy && row.why == why);
            let bar = part.study.scene.bar;
            ratios.push(row.filter(|row| row.attainment >= bar).and_then(|row| row.ratio));
            table.push_str(&row.map_or_else(
                || "<td class='none'>–</td>".to_owned(),
                |row| score(row.attainment, row.ratio, bar),
            ));
        }
        let all: Option<Vec<f64>> = ratios.into_iter().collect();
        table.push_str(&all.map_or_else(
            || "<td class='none'>–</td></tr>".to_owned(),
            |all| {
                let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
                format!("<td class='{}'>{mean:.2} ×</td></tr>", grade(mean))
            },
        ));
    }
    table.push_str("</table>");
    table
}

fn score(attainment: f64, ratio: Option<f64>, bar: f64) -> String {
    match ratio {
        Some(ratio) if attainment >= bar => {
            format!("<td class='{}'>{ratio:.2} ×</td>", grade(ratio))
        }
        Some(_) | None if attainment < bar => {
            format!("<td class='none'>misses: {:.1} %</td>", 100.0 * attainment)
        }
        Some(_) | None => "<td>attains</td>".to_owned(),
    }
}

/// Each tuned peer on each other trace; empty if none was tuned.
pub(super) fn transfer(parts: &[Part<'_>]) -> String {
    let rows: Vec<_> = parts.iter().map(|part| part.rows.clone()).collect();
    let all: Vec<Transfer> = matrix(&rows).into_iter().filter(|t| !t.tuned_on.is_empty()).collect();
    let (Some(first), false) = (parts.first(), all.is_empty()) else { return String::new() };
    let mut table = String::from("<table><tr><th>policy</th><th>tuned on</th><th>setting</th>");
    for part in parts {
        table.push_str(&format!("<th>{}</th>", escaped(&part.study.scene.trace)));
    }
    table.push_str("</tr>");
    for group in all.chunk_by(|a, b| a.policy == b.policy && a.tuned_on == b.tuned_on) {
        let Some(head) = group.first() else { continue };
        table.push_str(&format!(
            "<tr><td>{}{}</td><td class='setting'>{}</td><td class='setting'>{}</td>",
            first.colors.dot(&head.policy),
            escaped(&head.policy),
            escaped(&head.tuned_on),
            escaped(&head.setting)
        ));
        for part in parts {
            let scene = &part.study.scene;
            let cell = group.iter().find(|transfer| transfer.run_on == scene.trace);
            table.push_str(&cell.map_or_else(
                || "<td class='none'>–</td>".to_owned(),
                |cell| score(cell.attainment, cell.ratio, scene.bar),
            ));
        }
        table.push_str("</tr>");
    }
    table.push_str("</table>");
    table
}
