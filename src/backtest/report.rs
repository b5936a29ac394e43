//! The results for people and for programs: a table, JSON, and `simulate`'s page with the history.
//!
//! Must not compute demand or replay anything.

mod head;

use std::io::{self, Write};

use serde::Serialize;

use head::Head;

use super::Args;
use super::demand::Demand;
use super::history::History;
use super::replay::{HISTORY, Range, Replay, Setting, rows};
use super::span::Span;
use crate::simulate;
use crate::simulate::row::Row;
use crate::simulate::study::{Scene, Study};
use crate::text::{escaped, shortened, wrapped};

/// Everything, ready to be shown.
#[derive(Debug)]
pub(super) struct Report {
    head: Head,
    study: Study,
    lines: Vec<Line>,
    n_results: usize,
}

/// One policy.
#[derive(Debug, Serialize)]
struct Line {
    #[serde(flatten)]
    row: Row,
    #[serde(flatten)]
    range: Range,
    /// Against the history's replay; negative where it costs more.
    saved_gpu_hours: Option<f64>,
    saved_share: Option<f64>,
    saved_money: Option<f64>,
}

#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    head: &'a Head,
    #[serde(flatten)]
    scene: &'a Scene,
    results: &'a [Line],
    references: &'a [Line],
}

impl Report {
    pub(super) fn new(
        args: &Args,
        span: &Span,
        history: &History,
        demand: &Demand,
        setting: &Setting<'_>,
        replay: Replay,
    ) -> Report {
        let head = Head::new(args, span, history, demand, setting, &replay.study);
        let all = rows(&replay.study);
        let n_references = replay.study.rows().references.len();
        let past = all.iter().find(|row| row.policy == HISTORY).map(|row| row.gpu_hours);
        let n_results = all.len() - n_references;
        let lines = all.into_iter().zip(replay.ranges).map(|(row, range)| {
            let saved = past.map(|past| past - row.gpu_hours);
            Line {
                saved_gpu_hours: saved,
                saved_share: saved.zip(past.filter(|past| *past > 0.0)).map(|(s, past)| s / past),
                saved_money: saved.zip(args.gpu_price).map(|(saved, price)| saved * price),
                row,
                range,
            }
        });
        Report { head, lines: lines.collect(), study: replay.study, n_results }
    }

    /// One JSON object.
    pub(super) fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        let (results, references) = self.lines.split_at(self.n_results);
        let whole = Whole { head: &self.head, scene: &self.study.scene, results, references };
        serde_json::to_writer_pretty(&mut *out, &whole)?;
        writeln!(out)
    }

    /// A table of at most 80 columns.
    pub(super) fn table(&self, out: &mut dyn Write) -> io::Result<()> {
        for words in self.words() {
            write!(out, "{}", wrapped("", "  ", &words))?;
        }
        let money = if self.head.gpu_price.is_some() { "money" } else { "" };
        writeln!(
            out,
            "\n{:<27} {:>8} {:>13} {:>9} {:>8} {money:>9}",
            "policy", "attains", "range", "GPU-h", "saved"
        )?;
        for line in &self.lines {
            let (row, range) = (&line.row, &line.range);
            let mark = if row.attainment < self.study.scene.bar { " " } else { "*" };
            let saved = match line.saved_share {
                Some(share) if row.policy != HISTORY => format!("{:.1} %", 100.0 * share),
                Some(_) | None => "-".to_owned(),
            };
            let money = line.saved_money.filter(|_| row.policy != HISTORY);
            let money = money.map_or_else(String::new, |money| format!("{money:.2}"));
            writeln!(
                out,
                "{:<27} {:>6.2}%{mark} {:>13} {:>9.2} {saved:>8} {money:>9}",
                shortened(&row.name(), 27),
                100.0 * row.attainment,
                format!("{:.2}-{:.2}", 100.0 * range.attainment_low, 100.0 * range.attainment_high),
                row.gpu_hours,
            )?;
        }
        let bar = 100.0 * self.study.scene.bar;
        let legend = format!(
            "* attains {bar:.1} %. Range: over the least and the most demand that the history \
             allows. Saved: against the history, replayed."
        );
        write!(out, "\n{}", wrapped("", "  ", &legend))?;
        for note in &self.head.uncertainty.notes {
            write!(out, "{}", wrapped("note: ", "  ", note))?;
        }
        Ok(())
    }

    /// `simulate`'s page, with the history before everything else.
    pub(super) fn html(&self) -> String {
        let mut page = simulate::report::html(std::slice::from_ref(&self.study));
        let paragraph = |words: &String| format!("<p>{}</p>", escaped(words));
        let words: String = self.words().iter().map(paragraph).collect();
        let notes: String = self.head.uncertainty.notes.iter().map(paragraph).collect();
        let section = format!(
            "<h2>The history</h2>{words}{}<h2>How far it is known</h2>{notes}",
            self.savings()
        );
        // Before the page's first section.
        let at = page.find("<h2>").unwrap_or(page.len());
        page.insert_str(at, &section);
        page
    }

    fn savings(&self) -> String {
        let mut table = String::from(
            "<table><tr><th>policy</th><th>attains</th><th>range</th><th>GPU-hours</th>\
             <th>saved GPU-hours</th><th>saved</th><th>money</th></tr>",
        );
        for line in &self.lines {
            let number = |value: Option<f64>| {
                value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"))
            };
            table.push_str(&format!(
                "<tr><td>{}</td><td>{:.2} %</td><td>{:.2} – {:.2} %</td><td>{:.2}</td><td>{}</td>\
                 <td>{} %</td><td>{}</td></tr>",
                escaped(&if line.row.why == "reference" {
                    line.row.policy.clone()
                } else {
                    line.row.name()
                }),
                100.0 * line.row.attainment,
                100.0 * line.range.attainment_low,
                100.0 * line.range.attainment_high,
                line.row.gpu_hours,
                number(line.saved_gpu_hours),
                number(line.saved_share.map(|share| 100.0 * share)),
                number(line.saved_money),
            ));
        }
        table.push_str("</table>");
        table
    }

    /// The history, the demand and the replica, a paragraph each.
    fn words(&self) -> Vec<String> {
        let Head { history, coverage, uncertainty, model, .. } = &self.head;
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let busy = history
            .gpu_busy
            .map_or_else(String::new, |busy| format!(", GPUs busy {} of the time", percent(busy)));
        let first = format!(
            "{}/{} from {} to {}: {:.2} of {:.2} h known, {:.2} h of it counted.",
            self.head.namespace,
            self.head.workload,
            self.head.from,
            self.head.to,
            coverage.known_hours,
            coverage.span_hours,
            coverage.counted_hours
        );
        let had = format!(
            "It had {:.2} replicas in the mean, {} at most ({}), {} GPU{} each ({}): {:.2} \
             GPU-hours{busy}.",
            history.mean_replicas,
            history.max_replicas,
            history.replicas_from,
            history.gpus_per_replica,
            if history.gpus_per_replica == 1 { "" } else { "s" },
            history.gpus_from,
            history.gpu_hours,
        );
        let per_request = |tokens: f64| tokens / history.requests.max(1.0);
        let came = format!(
            "{:.0} requests came ({:.0} to {:.0}), with {:.0} prompt tokens, {} of them cached, and \
             {:.0} generated ones in the mean. Requests waited in {:.2} h.",
            history.requests,
            uncertainty.requests_low,
            uncertainty.requests_high,
            per_request(history.prompt_tokens),
            percent(history.cached_tokens / history.prompt_tokens.max(1.0)),
            per_request(history.generated_tokens),
            uncertainty.queued_hours,
        );
        let costs = model.learned.map_or_else(
            || format!("the profile {}", model.profile),
            |learned| {
                format!(
                    "learned from the history: {:.1} ms a step, {:.4} ms a prompt token, {:.4} ms a \
                     generated one, {:.1} ms at full cache, error {:.0} %",
                    learned.step_ms,
                    learned.prompt_ms,
                    learned.generated_ms,
                    learned.kv_ms,
                    100.0 * learned.error
                )
            },
        );
        let replica = format!(
            "The replica is {costs}. A cold start takes {:.0} s ({}).",
            history.cold_start_s, history.cold_start_from
        );
        let mut words = vec![first, had, came, replica];
        if let (Some(bound), Some(was), Some(replayed)) =
            (history.ttft_bound_s, history.ttft_share, history.ttft_share_replayed)
        {
            words.push(format!(
                "First tokens within {bound} s: {:.2} % as it was, {:.2} % as the replay has it.",
                100.0 * was,
                100.0 * replayed
            ));
        }
        words
    }
}
