//! The results for people and for programs: a table, JSON, and `simulate`'s page with the history.
//!
//! Must not compute demand or replay anything; what is not known is said to be so.

use std::io::{self, Write};

use serde::Serialize;

use super::Args;
use super::demand::{Amounts, Bin, Demand, Known};
use super::fetch::Fetched;
use super::history::History;
use super::replay::{HISTORY, Range, Replay, Setting, rows};
use super::span::{Span, shown};
use crate::decision::LearnedCost;
use crate::simulate;
use crate::simulate::outcome::Times;
use crate::simulate::row::Row;
use crate::simulate::study::{Scene, Study};
use crate::text::wrapped;

/// Everything, ready to be shown.
#[derive(Debug)]
pub(super) struct Report {
    head: Head,
    study: Study,
    lines: Vec<Line>,
    n_results: usize,
}

#[derive(Debug, Serialize)]
struct Head {
    namespace: String,
    workload: String,
    prometheus: String,
    from: String,
    to: String,
    step_s: f64,
    /// Money for a GPU and hour, if it was given.
    gpu_price: Option<f64>,
    history: Past,
    coverage: Coverage,
    uncertainty: Uncertainty,
    model: Replica,
}

/// What really happened in the part that counts.
#[derive(Debug, Serialize)]
struct Past {
    requests: f64,
    prompt_tokens: f64,
    cached_tokens: f64,
    generated_tokens: f64,
    rejected_requests: f64,
    mean_replicas: f64,
    max_replicas: u32,
    replicas_from: &'static str,
    gpus_per_replica: u32,
    gpus_from: &'static str,
    gpu_hours: f64,
    money: Option<f64>,
    /// Mean share of time that the GPUs were busy, 0..1, by DCGM.
    gpu_busy: Option<f64>,
    mean_ttft_s: Option<f64>,
    /// The engine's own bound next to the target, and the share of first tokens within it: as it
    /// was, and as the replay has it, which tells how far the replay can be trusted.
    ttft_bound_s: Option<f64>,
    ttft_share: Option<f64>,
    ttft_share_replayed: Option<f64>,
    cold_start_s: f64,
    cold_start_from: &'static str,
}

/// How much of the span is known.
#[derive(Debug, Serialize)]
struct Coverage {
    span_hours: f64,
    known_hours: f64,
    known_share: f64,
    /// Of the known ones: between two scrapes further apart than usual.
    bridged_hours: f64,
    missing_hours: f64,
    /// After the warm-up.
    counted_hours: f64,
    replicas_seen: usize,
    restarts: usize,
    scrape_interval_s: f64,
    unreadable_scrapes: usize,
    selected_by: String,
    #[serde(flatten)]
    fetched: Fetched,
}

/// How far the demand is known.
#[derive(Debug, Serialize)]
struct Uncertainty {
    requests_low: f64,
    requests_high: f64,
    /// Requests of gaps that are too long to place them; in none of the figures.
    unplaced_requests: f64,
    /// Hours in which requests waited on most replicas: clients may have held more back.
    queued_hours: f64,
    arrivals_from: &'static str,
    lengths_from: &'static str,
    /// Mean relative error of the learned costs: the replay runs with steps that much longer in the
    /// most demand, and shorter in the least.
    step_error: f64,
    notes: Vec<String>,
}

/// The replica that was replayed.
#[derive(Debug, Serialize)]
struct Replica {
    from: &'static str,
    profile: String,
    learned: Option<LearnedCost>,
    assumed: Vec<String>,
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
        let model = setting.model;
        let head = Head {
            namespace: args.namespace.clone(),
            workload: args.workload.clone(),
            prometheus: args.prometheus.clone(),
            from: shown(span.from),
            to: shown(span.to),
            step_s: span.step_s(),
            gpu_price: args.gpu_price,
            history: past(args, history, setting, &replay.study),
            coverage: coverage(span, history, demand, setting),
            uncertainty: uncertainty(span, history, demand, setting),
            model: Replica {
                from: if model.learned.is_some() { "learned" } else { "profile" },
                profile: model.profile.name.clone(),
                learned: model.learned,
                assumed: model.assumed.clone(),
            },
        };
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
                shortened(&name(row)),
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
                    name(&line.row)
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

fn past(args: &Args, history: &History, setting: &Setting<'_>, study: &Study) -> Past {
    let Setting { gpus, cold_start, .. } = *setting;
    let (bins, replicas) = setting.stretch.counted();
    let total = sum(bins);
    let replica_s: f64 = replicas.iter().map(|&n| f64::from(n) * setting.stretch.bin_s).sum();
    let gpu_hours = replica_s / 3_600.0 * f64::from(gpus.value);
    let ttft = history.ttfts.share_within(setting.slo.ttft_s);
    let replayed = study.entries.iter().find(|entry| entry.candidate.policy == HISTORY);
    let replayed = replayed.and_then(|entry| entry.outcomes.first());
    let share = |(bound, _): (f64, f64)| replayed.map(|o| share_within(&o.ttft, bound));
    Past {
        requests: total.arrivals,
        prompt_tokens: total.prompt,
        cached_tokens: (total.prompt - total.computed).max(0.0),
        generated_tokens: total.generated,
        rejected_requests: total.rejected,
        mean_replicas: replica_s / (bins.len() as f64 * setting.stretch.bin_s).max(1.0),
        max_replicas: replicas.iter().copied().max().unwrap_or(0),
        replicas_from: history.counts_from.unwrap_or("as many as were scraped"),
        gpus_per_replica: gpus.value,
        gpus_from: gpus.from,
        gpu_hours,
        money: args.gpu_price.map(|price| price * gpu_hours),
        gpu_busy: history.gpus.busy,
        mean_ttft_s: (total.first_tokens > 0.0).then(|| total.ttft_s / total.first_tokens),
        ttft_bound_s: ttft.map(|(bound, _)| bound),
        ttft_share: ttft.map(|(_, share)| share),
        ttft_share_replayed: ttft.and_then(share),
        cold_start_s: cold_start.value,
        cold_start_from: cold_start.from,
    }
}

fn coverage(span: &Span, history: &History, demand: &Demand, setting: &Setting<'_>) -> Coverage {
    let step_h = span.step_s() / 3_600.0;
    let hours =
        |known: Known| demand.bins.iter().filter(|bin| bin.known == known).count() as f64 * step_h;
    let (bridged, missing) = (hours(Known::Bridged), hours(Known::Missing));
    let known = hours(Known::Seen) + bridged;
    Coverage {
        span_hours: known + missing,
        known_hours: known,
        known_share: known / (known + missing).max(1e-9),
        bridged_hours: bridged,
        missing_hours: missing,
        counted_hours: setting.stretch.counted().0.len() as f64 * step_h,
        replicas_seen: history.timelines.by_target.len(),
        restarts: demand.restarts,
        scrape_interval_s: demand.interval_ms as f64 / 1e3,
        unreadable_scrapes: history.timelines.unreadable,
        selected_by: history.found.by.words(),
        fetched: history.fetched,
    }
}

fn uncertainty(
    span: &Span,
    history: &History,
    demand: &Demand,
    setting: &Setting<'_>,
) -> Uncertainty {
    let (bins, _) = setting.stretch.counted();
    let total = sum(bins);
    let is_queued = |bin: &&Bin| bin.scraped > 0.0 && bin.queued > bin.scraped / 2.0;
    let queued_hours = bins.iter().filter(is_queued).count() as f64 * span.step_s() / 3_600.0;
    let has_shapes = setting.shapes.prompt.is_known() && setting.shapes.output.is_known();
    let missing = demand.bins.iter().filter(|bin| bin.known == Known::Missing).count();
    let mut notes = Vec::new();
    let mut note = |is_so: bool, words: String| {
        if is_so {
            notes.push(words);
        }
    };
    let missing_h = missing as f64 * span.step_s() / 3_600.0;
    note(
        missing_h >= 0.01,
        format!("{missing_h:.2} h have no scrape and are cut out: every figure is about the rest"),
    );
    note(
        demand.unplaced >= 0.5,
        format!(
            "{:.0} requests came in gaps too long to place them, and are in no figure",
            demand.unplaced
        ),
    );
    note(
        history.fetched.partial_answers > 0,
        format!(
            "{} answers came with a warning: series may be missing in them",
            history.fetched.partial_answers
        ),
    );
    note(
        history.timelines.unreadable > 0,
        format!("{} scrapes could not be read and were left out", history.timelines.unreadable),
    );
    note(
        !demand.has_in_flight,
        "requests in flight are not told, so that arrivals are completions: a duration late"
            .to_owned(),
    );
    note(
        queued_hours > 0.0,
        format!("requests waited in {queued_hours:.2} h: what clients held back then is not known"),
    );
    note(
        !has_shapes,
        "the engine has no histogram of lengths: they are spread exponentially".to_owned(),
    );
    note(
        history.counts_from.is_none(),
        "kube-state-metrics has no counts: replicas are those that were scraped, without the time \
         in which they loaded"
            .to_owned(),
    );
    let assumed = &setting.model.assumed;
    note(!assumed.is_empty(), format!("taken for granted: {}", assumed.join(", ")));
    note(
        true,
        format!(
            "within {:.0} s requests come at random; long prompts have no longer answers than others",
            span.step_s()
        ),
    );
    Uncertainty {
        requests_low: (total.arrivals - total.fewer).max(0.0),
        requests_high: total.arrivals + total.more,
        unplaced_requests: demand.unplaced,
        queued_hours,
        arrivals_from: if demand.has_in_flight {
            "completions and in-flight"
        } else {
            "completions"
        },
        lengths_from: if has_shapes { "histograms" } else { "assumed" },
        step_error: setting.model.error(),
        notes,
    }
}

fn sum(bins: &[Bin]) -> Amounts {
    bins.iter().fold(Amounts::default(), |mut sum, bin| {
        sum += bin.amounts;
        sum
    })
}

/// The share of durations within a bound.
fn share_within(times: &Times, bound_s: f64) -> f64 {
    // 2^-20 is finer than the share of one of a million requests.
    (1..=20).fold(0.0, |share, halving| {
        let next = share + 0.5_f64.powi(halving);
        if times.quantile(next).is_none_or(|quantile| quantile <= bound_s) { next } else { share }
    })
}

fn name(row: &Row) -> String {
    if row.setting.is_empty() {
        row.policy.clone()
    } else {
        format!("{} ({})", row.policy, row.setting)
    }
}

/// At most 27 columns of a name.
fn shortened(text: &str) -> String {
    const COLUMNS: usize = 27;
    if text.chars().count() <= COLUMNS {
        return text.to_owned();
    }
    let kept: String = text.chars().take(COLUMNS - 1).collect();
    format!("{kept}…")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_is_no_markup() {
        assert_eq!(escaped("<a & b>"), "&lt;a &amp; b&gt;");
    }
}
