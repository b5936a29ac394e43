//! The results as one page that needs nothing else: who wins, and where we lose.
//!
//! Must not load anything: styles and drawings are in it.

use super::super::row::{Row, Rows, best};
use super::super::study::{Scene, Study};
use super::{charts, empty_rows, tables};
use crate::text::escaped;

/// The product's name among the policies.
pub(super) const OURS: &str = "ghostscaler";
pub(super) const OUR_COLOR: &str = "#d1495b";
pub(super) const CLAIRVOYANT_COLOR: &str = "#777777";
/// Colours of the peers, in order, told apart by most who cannot tell red from green.
const COLORS: [&str; 10] = [
    "#30638e", "#edae49", "#00798c", "#7d5ba6", "#8a6d3b", "#5b8e7d", "#bc6c25", "#4f772d",
    "#577590", "#9c89b8",
];

const STYLE: &str = include_str!("style.css");

/// A study and its lines.
pub(super) struct Part<'a> {
    pub(super) study: &'a Study,
    pub(super) rows: Rows,
    pub(super) colors: Colors,
}

impl Part<'_> {
    fn of(study: &Study) -> Part<'_> {
        let rows = study.rows();
        let colors = Colors::of(&rows.results);
        Part { study, rows, colors }
    }

    pub(super) fn ours(&self) -> Option<&Row> {
        self.rows.results.iter().find(|row| row.policy == OURS)
    }

    /// The cheapest peer that attains the bar, else the nearest to it.
    pub(super) fn best_peer(&self) -> Option<&Row> {
        best(peers(&self.rows.results), self.study.scene.bar)
    }
}

/// Those that somebody could run instead of ours.
pub(super) fn peers(rows: &[Row]) -> impl Iterator<Item = &Row> + Clone {
    rows.iter().filter(|row| row.policy != OURS && row.policy != "static")
}

/// The page.
#[must_use]
pub fn html(studies: &[Study]) -> String {
    let parts: Vec<Part<'_>> = studies.iter().map(Part::of).collect();
    let traces: Vec<&str> = studies.iter().map(|study| study.scene.trace.as_str()).collect();
    let title = escaped(&traces.join(", "));
    let mut page = format!(
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' \
         content='width=device-width'><title>simulate: {title}</title><style>{STYLE}</style></head>\
         <body><h1>{title}</h1>"
    );
    if let [part] = parts.as_slice() {
        page.push_str(&sub(&about(&part.study.scene)));
        page.push_str(&of_one(part));
    } else {
        page.push_str(&of_several(&parts));
    }
    page.push_str("</body></html>\n");
    page
}

fn of_several(parts: &[Part<'_>]) -> String {
    let mut page = section(
        "Who wins where",
        "GPU-hours over the clairvoyant's: ours at its defaults, each peer tuned on each trace, then \
         each as its documents ship it. Where the bar is missed stands what is attained instead.",
        &tables::scoreboard(parts),
    );
    let transfer = tables::transfer(parts);
    if !transfer.is_empty() {
        page.push_str(&section(
            "What tuning is worth elsewhere",
            "Each peer at the setting that is its best on the trace of the row, run on the trace of \
             the column.",
            &transfer,
        ));
    }
    for part in parts {
        page.push_str(&format!(
            "<details open><summary>{}</summary>{}{}</details>",
            escaped(&part.study.scene.trace),
            sub(&about(&part.study.scene)),
            of_one(part)
        ));
    }
    page
}

fn of_one(part: &Part<'_>) -> String {
    let scene = &part.study.scene;
    let mut page = tiles(part);
    let mut add = |title: &str, words: &str, content: String| {
        if !content.is_empty() {
            page.push_str(&section(title, words, &content));
        }
    };
    add(
        "All policies",
        &format!(
            "The cheapest that attains {:.1} % first. The line in the bars is what somebody who \
             knows the future pays. Flaps: changes against the one before within ten minutes.",
            100.0 * scene.bar
        ),
        tables::policies(part),
    );
    add(
        "Attainment against cost",
        "Upper left is better. Large points are defaults, documented settings and each sweep's best; \
         small ones, joined, the rest of the sweeps. The dark line is the clairvoyant's.",
        charts::pareto(part),
    );
    add(
        "Replicas over time",
        "Filled: requests a second. Coloured: replicas ordered. Dark: the clairvoyant's. Red at the \
         bottom: fewer than 95 % were served well.",
        charts::timelines(part),
    );
    add(
        "Where we lose",
        "The worst stretches of our run, and those in which most was held beyond the clairvoyant.",
        tables::losses(part),
    );
    add("One rule off at a time", "What each rule of ours is worth.", tables::ablations(part));
    add(
        "Learning the engine",
        "By how much the learned cost of the mean request differs from the true one. Shaded: 10 %.",
        charts::learning(part),
    );
    add(
        "Regret",
        "GPU-hours above the clairvoyant's at the same attainment; a dash where no setting attains it.",
        tables::regret(part),
    );
    add(
        "Attainment by length of the prompt",
        "Long prompts have 2 × the time that an empty replica takes, if that is more than the target.",
        tables::by_length(part),
    );
    page
}

/// The result at a glance.
fn tiles(part: &Part<'_>) -> String {
    let Some(ours) = part.ours() else { return String::new() };
    let bar = part.study.scene.bar;
    let mut tiles = String::new();
    let mut tile = |class: &str, figure: String, words: String| {
        tiles.push_str(&format!(
            "<div class='tile {class}'><b>{}</b>{}</div>",
            escaped(&figure),
            escaped(&words)
        ));
    };
    let attains = ours.attainment >= bar;
    tile(
        if attains { "good" } else { "bad" },
        format!("{:.2} %", 100.0 * ours.attainment),
        format!("served within target by {OURS}; asked for: {:.1} %", 100.0 * bar),
    );
    if let Some(ratio) = ours.ratio {
        tile(
            tables::grade(ratio),
            format!("{ratio:.2} ×"),
            format!("the clairvoyant's cost: {:.1} GPU-hours", ours.gpu_hours),
        );
    }
    let mut against = |peer: &Row, what: String| {
        let saved = 1.0 - ours.gpu_hours / peer.gpu_hours;
        let reaches = peer.attainment >= bar;
        let class = match (attains, reaches) {
            (true, true) if saved >= 0.0 => "good",
            (true, false) => "good",
            (true, true) if saved >= -0.03 => "fair",
            (true | false, _) => "bad",
        };
        let but = caveat(attains, reaches, peer.attainment);
        let word = if saved >= 0.0 { "cheaper" } else { "dearer" };
        tile(
            class,
            format!("{:.0} % {word}", 100.0 * saved.abs()),
            format!("than {what}: {}{but}", peer.name()),
        );
    };
    if let Some(peer) = part.best_peer() {
        against(peer, "the best peer, tuned on this trace".to_owned());
    }
    let documented = peers(&part.rows.results).filter(|row| row.why == "documented");
    if let Some(peer) = best(documented, bar) {
        against(peer, "the best peer as its documents ship it".to_owned());
    }
    if let Some(fixed) = part.rows.references.iter().find(|row| row.policy == "static") {
        against(fixed, "the smallest fleet that never changes".to_owned());
    }
    format!("<div class='tiles'>{tiles}</div>")
}

/// What a difference in cost does not say where one of the two misses the bar.
fn caveat(attains: bool, reaches: bool, attainment: f64) -> String {
    let share = 100.0 * attainment;
    match (attains, reaches) {
        (true, true) => String::new(),
        (false, true) => format!(", which attains the bar with {share:.1} % where ours misses it"),
        (true, false) => format!(", which misses the bar with {share:.1} %"),
        (false, false) => format!(", which misses the bar too with {share:.1} %"),
    }
}

fn about(scene: &Scene) -> String {
    let empty = empty_rows(scene).map_or_else(String::new, |empty| format!("; {empty}"));
    format!(
        "{} requests in {:.1} h ({:.0} prompt and {:.0} output tokens in the mean), {} on {} GPU{} a \
         replica, cold start {:.0} s, {} to {} replicas, targets {} s to the first token and {:.0} ms \
         a token, {} seed{}{empty}",
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
        scene.seeds.len(),
        if scene.seeds.len() == 1 { "" } else { "s" },
    )
}

fn section(title: &str, words: &str, content: &str) -> String {
    format!("<h2>{}</h2>{}<div class='wide'>{content}</div>", escaped(title), sub(words))
}

fn sub(words: &str) -> String {
    format!("<p class='sub'>{}</p>", escaped(words))
}

/// Which policy has which colour.
pub(super) struct Colors(Vec<String>);

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

    pub(super) fn get(&self, policy: &str) -> &'static str {
        match policy {
            OURS => OUR_COLOR,
            "clairvoyant" => CLAIRVOYANT_COLOR,
            _ => {
                let index = self.0.iter().position(|peer| peer == policy).unwrap_or(0);
                COLORS[index % COLORS.len()]
            }
        }
    }

    pub(super) fn dot(&self, policy: &str) -> String {
        format!("<span class='dot' style='background:{}'></span>", self.get(policy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cheaper_than_a_peer_that_attains_the_bar_is_no_win_of_one_that_misses_it() {
        assert_eq!(caveat(true, true, 0.995), "");
        assert_eq!(caveat(true, false, 0.9), ", which misses the bar with 90.0 %");
        let lost = caveat(false, true, 0.9904);
        assert_eq!(lost, ", which attains the bar with 99.0 % where ours misses it");
        assert_eq!(caveat(false, false, 0.9), ", which misses the bar too with 90.0 %");
    }
}
