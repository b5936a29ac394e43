//! The results as one page that needs nothing else: who wins, and where we lose.
//!
//! Must not load anything: styles and drawings are in it.

use super::super::outcome::{LENGTH_BOUNDS, Outcome, Point};
use super::super::study::{Row, Scene, Study, best};
use super::plot::{Axis, Plot};
use super::{name, plot};

/// The product's name among the policies.
const OURS: &str = "ghostscaler";
const OUR_COLOR: &str = "#d1495b";
const CLAIRVOYANT_COLOR: &str = "#222222";
/// Colours of the peers, in order, told apart by most who cannot tell red from green.
const COLORS: [&str; 10] = [
    "#30638e", "#edae49", "#00798c", "#7d5ba6", "#8a6d3b", "#5b8e7d", "#bc4b51", "#4f772d",
    "#577590", "#9c89b8",
];

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;max-width:1060px;padding:24px;color:#1c1c1c;background:#fff}\
h1{font-size:21px;margin:0 0 4px}h2{font-size:16px;margin:28px 0 6px}p{margin:6px 0}.sub{color:#666}\
.verdict{font-size:18px;border-left:5px solid #d1495b;padding:8px 14px;background:#faf6f6;margin:16px 0}\
svg{width:100%;height:auto;display:block}.grid{stroke:#e6e6e6}.mark,.label{font-size:11px;fill:#666}.name{font-size:12px}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{padding:4px 8px;text-align:right;border-bottom:1px solid #e6e6e6}\
th{font-weight:600;color:#444}th:first-child,td:first-child{text-align:left}tr.ours{background:#faf0f1;font-weight:600}tr.miss td{color:#999}\
tr.ref td{font-style:italic}.dot{display:inline-block;width:10px;height:10px;border-radius:5px;margin-right:6px}\
@media(prefers-color-scheme:dark){body{background:#181818;color:#e8e8e8}.verdict{background:#2a2022}.grid{stroke:#333}th,td{border-color:#333}\
th{color:#bbb}tr.ours{background:#33262a}svg .ink{stroke:#e8e8e8}}";

/// The page.
#[must_use]
pub fn html(study: &Study, title: &str) -> String {
    let (results, sweep) = study.rows();
    let references = study.reference_rows();
    let colors = Colors::of(&results);
    let title = escaped(title);
    let mut page = format!(
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' \
         content='width=device-width'><title>simulate: {title}</title><style>{STYLE}</style></head><body>\
         <h1>{title}</h1><p class='sub'>{}</p>",
        escaped(&about(&study.scene))
    );
    let mut add = |part: String| page.push_str(&part);
    add(format!(
        "<p class='verdict'>{}</p>",
        escaped(&verdict(&results, &references, &study.scene))
    ));
    add(section(
        "Attainment against cost",
        "Upper left is better. Large points are defaults, documented settings and each sweep's best; \
         small ones the rest of the sweeps. The dark line is what somebody who knows the future pays.",
        &pareto(study, &results, &sweep, &colors),
    ));
    add(section(
        "All policies",
        &legend(&study.scene),
        &policies(&results, &references, &study.scene, &colors),
    ));
    add(section(
        "Replicas over time",
        "Filled: requests a second. Lines: replicas ordered by each policy (its best setting) and by \
         the clairvoyant.",
        &timelines(study, &colors),
    ));
    add(section(
        "Regret",
        "GPU-hours above the clairvoyant's at the same attainment; a dash where no setting attains it.",
        &regret(&results, &sweep, &colors),
    ));
    add(section(
        "Attainment by length of the prompt",
        "Long prompts have 2 × the time that an empty replica takes, if that is more than the target.",
        &by_length(&results, &colors),
    ));
    page.push_str("</body></html>\n");
    page
}

fn about(scene: &Scene) -> String {
    format!(
        "{} requests in {:.1} h ({:.0} prompt and {:.0} output tokens in the mean), {} on {} GPU{} a \
         replica, cold start {:.0} s, {} to {} replicas, targets {} s to the first token and {} ms a \
         token, bar {:.1} %, {} seed{}",
        scene.requests,
        scene.hours,
        scene.mean_prompt_tokens,
        scene.mean_output_tokens,
        scene.profile,
        scene.gpus,
        if scene.gpus == 1 { "" } else { "s" },
        scene.cold_start_s,
        scene.min,
        scene.max,
        scene.slo_ttft_s,
        scene.slo_tpot_s * 1e3,
        scene.bar * 100.0,
        scene.seeds.len(),
        if scene.seeds.len() == 1 { "" } else { "s" },
    )
}

/// The result in a sentence or two.
fn verdict(results: &[Row], references: &[Row], scene: &Scene) -> String {
    let mut words = String::new();
    let ours = results.iter().find(|row| row.policy == OURS);
    if let Some(ours) = ours {
        let kept = if ours.attainment >= scene.bar { "attains" } else { "misses the bar with" };
        let ratio =
            ours.ratio.map_or_else(String::new, |r| format!(", {r:.3} × the clairvoyant's"));
        words.push_str(&format!(
            "{OURS} {kept} {:.2} % at {:.1} GPU-hours{ratio}. ",
            100.0 * ours.attainment,
            ours.gpu_hours
        ));
    }
    let peers = results.iter().filter(|row| row.policy != OURS && row.policy != "static");
    if let Some(peer) = best(peers, scene.bar) {
        let saved = ours.map(|ours| 1.0 - ours.gpu_hours / peer.gpu_hours);
        let against = match saved {
            Some(saved) if saved >= 0.0 => format!(": we are {:.0} % cheaper", 100.0 * saved),
            Some(saved) => format!(": we are {:.0} % dearer", -100.0 * saved),
            None => String::new(),
        };
        let reaches = if peer.attainment >= scene.bar {
            "The best peer"
        } else {
            "No peer reaches the bar; the nearest"
        };
        words.push_str(&format!(
            "{reaches}, {}, attains {:.2} % at {:.1} GPU-hours{against}. ",
            name(peer),
            100.0 * peer.attainment,
            peer.gpu_hours
        ));
    }
    if let Some(fixed) = references.iter().find(|row| row.policy == "static") {
        words.push_str(&format!("A static fleet needs {:.1} GPU-hours.", fixed.gpu_hours));
    }
    words
}

fn legend(scene: &Scene) -> String {
    format!(
        "Grey rows miss the bar of {:.1} %. Ratio: GPU-hours over the clairvoyant's. Flaps: changes \
         against the one before within ten minutes.",
        100.0 * scene.bar
    )
}

fn section(title: &str, words: &str, content: &str) -> String {
    format!("<h2>{}</h2><p class='sub'>{}</p>{content}", escaped(title), escaped(words))
}

/// Which policy has which colour.
struct Colors(Vec<String>);

impl Colors {
    fn of(results: &[Row]) -> Colors {
        let mut peers: Vec<String> = Vec::new();
        for row in results.iter().filter(|row| row.policy != OURS) {
            if !peers.contains(&row.policy) {
                peers.push(row.policy.clone());
            }
        }
        Colors(peers)
    }

    fn get(&self, policy: &str) -> &'static str {
        match policy {
            OURS => OUR_COLOR,
            "clairvoyant" => CLAIRVOYANT_COLOR,
            _ => {
                let index = self.0.iter().position(|peer| peer == policy).unwrap_or(0);
                COLORS[index % COLORS.len()]
            }
        }
    }

    fn dot(&self, policy: &str) -> String {
        format!("<span class='dot' style='background:{}'></span>", self.get(policy))
    }
}

/// Attainment as it is drawn: each nine as wide as the one before.
fn nines(attainment: f64) -> f64 {
    -(1.0 - attainment).max(1e-4).log10()
}

fn pareto(study: &Study, results: &[Row], sweep: &[Row], colors: &Colors) -> String {
    let gpus = study.scene.gpus as f64;
    let plans = study.bounds.iter().flat_map(|bounds| &bounds.plans);
    let mut frontier: Vec<(f64, f64)> = plans
        .map(|point| (point.outcome.replica_hours() * gpus, point.outcome.attainment()))
        .collect();
    frontier.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut highest = -1.0;
    frontier.retain(|&(_, attainment)| {
        let rises = attainment > highest;
        highest = f64::max(highest, attainment);
        rises
    });
    // Beyond three times the clairvoyant nobody wants to know.
    let clairvoyant = results.iter().find_map(|row| row.clairvoyant_gpu_hours);
    let dearest = results.iter().map(|row| row.gpu_hours).fold(0.0, f64::max);
    let most = clairvoyant.map_or(dearest, |hours| dearest.min(3.0 * hours));
    let marks = [0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999];
    let y = Axis {
        from: nines(0.5),
        to: nines(0.9999),
        marks: marks.map(|a| (nines(a), format!("{} %", plot::number(a * 100.0)))).to_vec(),
        label: "attainment",
    };
    let mut drawing = Plot::new(1_000.0, 440.0, Axis::up_to(most, "GPU-hours"), y);
    let at = |row: &Row| (row.gpu_hours, nines(row.attainment));
    let bar = nines(study.scene.bar);
    drawing.line(&[(0.0, bar), (f64::MAX, bar)], "#888", "stroke-dasharray='5 4'");
    let frontier: Vec<(f64, f64)> = frontier.into_iter().map(|(x, a)| (x, nines(a))).collect();
    drawing.line(&frontier, CLAIRVOYANT_COLOR, "class='ink' stroke-width='2'");
    for row in sweep {
        let title = escaped(&format!(
            "{}: {:.2} %, {:.1} GPU-h",
            name(row),
            100.0 * row.attainment,
            row.gpu_hours
        ));
        drawing.point(at(row), 3.0, colors.get(&row.policy), &title);
    }
    for row in results {
        let color = colors.get(&row.policy);
        let radius = if row.policy == OURS { 8.0 } else { 5.5 };
        let title = escaped(&format!(
            "{}: {:.2} %, {:.1} GPU-h",
            name(row),
            100.0 * row.attainment,
            row.gpu_hours
        ));
        drawing.point(at(row), radius, color, &title);
        if row.why != "documented"
            || !results.iter().any(|r| r.policy == row.policy && r.why == "best_of_sweep")
        {
            drawing.text(at(row), &escaped(&row.policy), color);
        }
    }
    drawing.svg("Attainment of each policy against its GPU-hours; the table below has the numbers")
}

fn policies(results: &[Row], references: &[Row], scene: &Scene, colors: &Colors) -> String {
    let mut rows: Vec<&Row> = results.iter().chain(references).collect();
    rows.sort_by(|a, b| {
        let misses = |row: &Row| row.attainment < scene.bar;
        misses(a).cmp(&misses(b)).then(a.gpu_hours.total_cmp(&b.gpu_hours))
    });
    let mut table = String::from(
        "<table><tr><th>policy</th><th>why</th><th>attains</th><th>2 s flat</th><th>GPU-h</th><th>ratio</th>\
         <th>p99 TTFT</th><th>cold starts</th><th>flaps</th><th>h at max</th></tr>",
    );
    for row in rows {
        let class = match row {
            row if row.policy == OURS => "ours",
            row if row.why == "reference" => "ref",
            row if row.attainment < scene.bar => "miss",
            _ => "",
        };
        let optional = |value: Option<f64>, unit: &str| {
            value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}{unit}"))
        };
        table.push_str(&format!("<tr class='{class}'><td>{}{}</td><td>{}</td><td>{:.2} %</td><td>{:.2} %</td><td>{:.1}</td>\
             <td>{}</td><td>{}</td><td>{:.0}</td><td>{:.0}</td><td>{:.1}</td></tr>",
            colors.dot(&row.policy),
            escaped(&name(row)),
            row.why.replace('_', " "),
            100.0 * row.attainment,
            100.0 * row.attainment_raw,
            row.gpu_hours,
            optional(row.ratio, ""),
            optional(row.ttft_p99_s, " s"),
            row.cold_starts,
            row.flaps,
            row.time_at_max / 3_600.0,));
    }
    table.push_str("</table>");
    table
}

/// Ours, the clairvoyant and the best peer over time, each in a drawing with the load behind it.
fn timelines(study: &Study, colors: &Colors) -> String {
    let (results, _) = study.rows();
    let clairvoyant = study.bounds.as_ref().and_then(|bounds| bounds.clairvoyant(study.scene.bar));
    let ours = study.entries.iter().find(|entry| entry.candidate.policy == OURS);
    let mut shown: Vec<(String, &'static str, &Outcome)> = Vec::new();
    if let Some(outcome) = ours.and_then(|entry| entry.outcomes.first()) {
        shown.push((OURS.to_owned(), OUR_COLOR, outcome));
    }
    let peers = results.iter().filter(|row| row.policy != OURS && row.policy != "static");
    let peer = best(peers, study.scene.bar).and_then(|row| {
        study.entries.iter().find(|entry| {
            entry.candidate.policy == row.policy && entry.candidate.setting == row.setting
        })
    });
    if let Some(entry) = peer
        && let Some(outcome) = entry.outcomes.first()
    {
        let color = colors.get(entry.candidate.policy);
        shown.push((
            format!("{} {}", entry.candidate.policy, entry.candidate.setting),
            color,
            outcome,
        ));
    }
    let mut drawings = String::new();
    for (label, color, outcome) in &shown {
        let beside = clairvoyant.map(|point| &point.outcome);
        drawings.push_str(&format!(
            "<p><b>{}</b></p>{}",
            escaped(label),
            timeline(outcome, beside, color, study)
        ));
    }
    drawings
}

fn timeline(outcome: &Outcome, beside: Option<&Outcome>, color: &str, study: &Study) -> String {
    let points = &outcome.timeline;
    let hours = |point: &Point| point.t_s / 3_600.0;
    let most = study.bounds.iter().flat_map(|b| &b.plans).map(|p| p.outcome.max_replicas).max();
    let most = f64::from(outcome.max_replicas.max(most.unwrap_or(1)));
    let busiest = points.iter().map(|point| point.arrivals).fold(0.0, f64::max);
    let mut x = Axis::up_to(study.scene.hours, "hours");
    x.to = study.scene.hours;
    x.marks.retain(|&(value, _)| value <= study.scene.hours + 1e-9);
    let y = Axis::up_to(most, "replicas");
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
    // Where requests were not served well.
    for point in points.iter().filter(|point| point.good < 0.95) {
        let title = format!("{:.1} h: {:.0} % served well", hours(point), 100.0 * point.good);
        drawing.point((hours(point), 0.0), 2.5, "#e00", &title);
    }
    drawing.svg("Replicas ordered over time; red points mark when fewer than 95 % were served well")
}

fn regret(results: &[Row], sweep: &[Row], colors: &Colors) -> String {
    let mut table = String::from(
        "<table><tr><th>policy</th><th>at 95 %</th><th>at 98 %</th><th>at 99 %</th></tr>",
    );
    let mut seen: Vec<&str> = Vec::new();
    for row in results {
        if seen.contains(&row.policy.as_str()) {
            continue;
        }
        seen.push(&row.policy);
        let same = || results.iter().chain(sweep).filter(|other| other.policy == row.policy);
        let least = |of: fn(&Row) -> Option<f64>| {
            let least = same().filter_map(of).fold(f64::INFINITY, f64::min);
            if least.is_finite() { format!("{:+.1} %", 100.0 * least) } else { "–".to_owned() }
        };
        let class = if row.policy == OURS { "ours" } else { "" };
        table.push_str(&format!(
            "<tr class='{class}'><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            colors.dot(&row.policy),
            escaped(&row.policy),
            least(|row| row.regret_95),
            least(|row| row.regret_98),
            least(|row| row.regret_99)
        ));
    }
    table.push_str("</table>");
    table
}

fn by_length(results: &[Row], colors: &Colors) -> String {
    let mut table = String::from("<table><tr><th>policy</th>");
    for bound in LENGTH_BOUNDS {
        table.push_str(&format!("<th>to {bound}</th>"));
    }
    table.push_str("<th>longer</th></tr>");
    for row in results {
        let class = if row.policy == OURS { "ours" } else { "" };
        table.push_str(&format!(
            "<tr class='{class}'><td>{}{}</td>",
            colors.dot(&row.policy),
            escaped(&name(row))
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

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('\'', "&#39;")
        .replace('"', "&quot;")
}
