//! The report for a person at a terminal: at most 80 columns.

use std::fmt;

use super::{ClassReport, Client, Phase, Report, Summary};
use crate::run::elasticity::Elasticity;
use crate::run::engines::Look;
use crate::run::knee::Knee;
use crate::run::seeds::Seeds;
use crate::run::slo::Unit;
use crate::spread::Spread;
use crate::text;

pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    head(&mut text, report);
    if report.is_unanswered() {
        errors(&mut text, report);
        verdicts(&mut text, report);
        return text;
    }
    push(&mut text, format_args!(""));
    times(&mut text, &report.total);
    for class in &report.classes {
        push(&mut text, format_args!(""));
        wrapped(
            &mut text,
            "",
            &format!(
                "class {}: {} due, {} whole, {} errors, {} within SLO",
                class.class,
                class.scheduled,
                class.completed,
                class.errors,
                percent(class.attainment)
            ),
        );
        times(&mut text, class);
    }
    phases(&mut text, &report.phases);
    errors(&mut text, report);
    elasticity(&mut text, &report.elasticity);
    engines(&mut text, &report.engines);
    client(&mut text, &report.client);
    if let Some(knee) = &report.knee {
        steps(&mut text, knee);
    }
    if let Some(seeds) = &report.seeds {
        over_seeds(&mut text, seeds);
    }
    verdicts(&mut text, report);
    push(&mut text, format_args!(""));
    for unknown in &report.unknown {
        wrapped(&mut text, "  ", unknown);
    }
    text
}

/// What a search found, and its steps from the lowest rate to the highest.
fn steps(text: &mut String, knee: &Knee) {
    push(text, format_args!(""));
    wrapped(text, "", &knee.verdict());
    push(text, format_args!("  rate/s       carried  within SLO   TTFT p99   TPOT p99  errors"));
    let mut steps: Vec<_> = knee.steps.iter().collect();
    steps.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    for step in steps {
        push(
            text,
            format_args!(
                "{} {:<10} {:>9} {:>11} {:>10} {:>10} {:>7}",
                match (step.interrupted, step.holds) {
                    (true, _) => '…',
                    (false, true) => ' ',
                    (false, false) => '✗',
                },
                significant(step.rate),
                step.carried_rate.map_or_else(none, significant),
                percent(step.attainment),
                seconds(step.ttft_p99),
                seconds(step.tpot_p99),
                step.errors
            ),
        );
    }
}

/// How far the runs agree.
fn over_seeds(text: &mut String, seeds: &Seeds) {
    push(text, format_args!(""));
    let (first, last) = (seeds.seeds.first(), seeds.seeds.last());
    if let (Some(first), Some(last)) = (first, last) {
        let n = seeds.seeds.len();
        say(
            text,
            format_args!("{n} runs, seeds {first} to {last}: mean ± 95 % (above: all of them)"),
        );
    }
    for (metric, Spread { mean, half_width, .. }) in &seeds.metrics {
        let shown = |value: f64| match metric.contains('.') {
            true => seconds(Some(value)),
            false => significant(value),
        };
        let half_width = half_width.map_or_else(none, shown);
        push(text, format_args!("  {metric:<20}{:>10} ± {half_width}", shown(*mean)));
    }
}

/// What was required, and what makes the figures doubtful.
fn verdicts(text: &mut String, report: &Report) {
    for verdict in &report.requirements {
        let measured = match (verdict.measured, verdict.unit, verdict.without_time) {
            (None, _, 0) => "not measured".to_owned(),
            (None, _, n) => format!("not reached: {n} never came"),
            (Some(share), Unit::Share, _) => format!("measured {}", percent(Some(share))),
            (Some(time_s), Unit::Seconds, _) => format!("measured {}", seconds(Some(time_s))),
        };
        let word = if verdict.holds { "holds" } else { "FAILS" };
        say(text, format_args!("required {}: {word}, {measured}", verdict.requirement));
    }
    for warning in &report.warnings {
        wrapped(text, "WARNING: ", warning);
    }
}

fn head(text: &mut String, report: &Report) {
    let total = &report.total;
    let targets = match report.targets.as_slice() {
        [first] => first.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
        [] => String::new(),
    };
    wrapped(text, "", &format!("{targets}: {}, seed {}", report.load, report.seed));
    say(
        text,
        format_args!(
            "{:.1} s: {} due, {} sent, {} whole, {} errors, {} unfinished",
            report.duration_s,
            total.scheduled,
            total.sent,
            total.completed,
            total.errors,
            total.unfinished
        ),
    );
    if total.retries > 0 {
        say(text, format_args!("sent again after a refusal: {} times", total.retries));
    }
    say(
        text,
        format_args!(
            "offered {}/s, achieved {}/s, within SLO {}/s ({}); {} tokens/s",
            total.offered_rate.map_or_else(none, significant),
            total.achieved_rate.map_or_else(none, significant),
            total.goodput.map_or_else(none, significant),
            percent(total.attainment),
            total.output_tokens_rate.map_or_else(none, significant),
        ),
    );
    for (name, slo) in &report.slo {
        let e2e =
            slo.e2e_s.map_or_else(String::new, |e2e_s| format!(", all {}", seconds(Some(e2e_s))));
        let whose = if report.slo.len() > 1 { format!(" of {name}") } else { String::new() };
        wrapped(
            text,
            "",
            &format!(
                "SLO{whose}: first token {}, each further {}{e2e}",
                seconds(Some(slo.ttft_s)),
                seconds(Some(slo.tpot_s))
            ),
        );
    }
}

fn times(text: &mut String, class: &ClassReport) {
    push(
        text,
        format_args!("{:<22}{:>9}{:>10}{:>10}{:>10}{:>10}", "", "mean", "p50", "p90", "p99", "max"),
    );
    for (name, summary) in [
        ("time to first token", &class.ttft),
        ("  from the send", &class.ttft_from_send),
        ("time per token", &class.tpot),
        ("between pieces", &class.itl),
        ("between tokens", &class.token_itl),
        ("whole answer", &class.e2e),
        ("schedule lag", &class.schedule_lag),
    ] {
        let Summary { mean, p50, p90, p99, max, .. } = summary;
        push(
            text,
            format_args!(
                "{name:<22}{:>9}{:>10}{:>10}{:>10}{:>10}",
                seconds(*mean),
                seconds(*p50),
                seconds(*p90),
                seconds(*p99),
                seconds(*max)
            ),
        );
    }
}

/// The steps of a rate that changes.
fn phases(text: &mut String, phases: &[Phase]) {
    if phases.is_empty() {
        return;
    }
    push(text, format_args!(""));
    push(
        text,
        format_args!(
            "{:<22}{:>7}{:>9}{:>8}{:>12}{:>10}{:>10}",
            "rate", "due", "carried", "failed", "within SLO", "TTFT p50", "p99"
        ),
    );
    for phase in phases {
        push(
            text,
            format_args!(
                "{:<22}{:>7}{:>9}{:>8}{:>12}{:>10}{:>10}",
                text::shortened(&phase.rate, 21),
                phase.scheduled,
                significant(phase.carried_rate),
                phase.failed,
                percent(phase.good_share),
                seconds(phase.ttft_p50),
                seconds(phase.ttft_p99),
            ),
        );
    }
}

fn errors(text: &mut String, report: &Report) {
    if report.total.errors_by_class.is_empty() {
        return;
    }
    push(text, format_args!(""));
    for (class, n) in &report.total.errors_by_class {
        let example = report.error_examples.get(class).map_or("", String::as_str);
        wrapped(text, &format!("  {n:>8} {class:<13} "), example);
    }
    for target in &report.by_target {
        let classes: Vec<String> =
            target.errors_by_class.iter().map(|(class, n)| format!("{n} {class}")).collect();
        let classes = match classes.as_slice() {
            [] => "no errors".to_owned(),
            several => several.join(", "),
        };
        let words =
            format!("{}: {} sent, {} whole, {classes}", target.url, target.sent, target.completed);
        wrapped(text, "  ", &words);
    }
}

fn elasticity(text: &mut String, elasticity: &Elasticity) {
    push(text, format_args!(""));
    say(
        text,
        format_args!(
            "first token of all after {}{}; longest silence {}",
            seconds(elasticity.time_to_first_token_s),
            if elasticity.from_zero == Some(true) { ", from zero replicas" } else { "" },
            seconds(Some(elasticity.longest_silence_s))
        ),
    );
    say(
        text,
        format_args!(
            "lost {} ({} cut short), held {}; {} request-s beyond the SLO, in {} of the time",
            elasticity.lost,
            elasticity.cut,
            elasticity.held,
            significant(elasticity.slo_violation_area_s),
            percent(elasticity.slo_violation_time_share)
        ),
    );
    const SHOWN: usize = 20;
    for event in elasticity.scale_events.iter().take(SHOWN) {
        wrapped(
            text,
            &format!("  at {:>7.1} s: ", event.at_s),
            &format!(
                "{} → {} replicas, {} lost, {} cut, {} held, worst TTFT {}",
                event.from,
                event.to,
                event.lost,
                event.cut,
                event.held,
                seconds(event.worst_ttft_s)
            ),
        );
    }
    if elasticity.scale_events.len() > SHOWN {
        let more = elasticity.scale_events.len() - SHOWN;
        push(text, format_args!("  and {more} more changes, see --format json"));
    }
    if let (Some(replica_s), cost) =
        (elasticity.replica_seconds, elasticity.gpu_seconds_per_good_token)
    {
        say(
            text,
            format_args!(
                "{} replica-seconds, {} GPU-seconds a good token",
                significant(replica_s),
                cost.map_or_else(none, significant)
            ),
        );
    }
}

/// The most that the engines said of themselves.
fn engines(text: &mut String, looks: &[Look]) {
    let most = |of: fn(&Look) -> Option<f64>| looks.iter().filter_map(of).reduce(f64::max);
    if let (Some(running), Some(waiting)) = (most(|look| look.running), most(|look| look.waiting)) {
        let usage = most(|look| look.kv_usage)
            .map_or_else(String::new, |usage| format!(", KV cache {} used", percent(Some(usage))));
        say(text, format_args!("engines at most: {running} running, {waiting} waiting{usage}"));
    }
}

/// What the load generator could have sent.
fn client(text: &mut String, client: &Client) {
    if let (Some(cpu_s), Some(rate)) = (client.cpu_s_per_request, client.ceiling_rate) {
        say(
            text,
            format_args!(
                "this client: {} of processor time a request, {}/s at most ({} threads)",
                seconds(Some(cpu_s)),
                significant(rate),
                client.threads
            ),
        );
    }
}

fn push(text: &mut String, arguments: fmt::Arguments<'_>) {
    text.push_str(&arguments.to_string());
    text.push('\n');
}

/// A sentence in lines.
fn say(text: &mut String, arguments: fmt::Arguments<'_>) {
    wrapped(text, "", &arguments.to_string());
}

/// Words in lines, the further ones indented as far as the first word.
fn wrapped(text: &mut String, before: &str, words: &str) {
    text.push_str(&text::wrapped(before, &" ".repeat(before.chars().count()), words));
}

fn none() -> String {
    "–".to_owned()
}

/// Seconds as people read them.
pub(crate) fn seconds(seconds: Option<f64>) -> String {
    match seconds {
        None => none(),
        Some(seconds) if seconds <= 0.0 => "0 s".to_owned(),
        Some(seconds) if seconds < 0.000_995 => format!("{:.0} µs", seconds * 1e6),
        Some(seconds) if seconds < 0.009_95 => format!("{:.2} ms", seconds * 1e3),
        Some(seconds) if seconds < 0.995 => format!("{:.0} ms", seconds * 1e3),
        Some(seconds) if seconds < 99.5 => format!("{seconds:.2} s"),
        Some(seconds) => format!("{seconds:.0} s"),
    }
}

pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(none, |share| format!("{:.2} %", share * 100.0))
}

/// Three digits, or all of a whole number's.
pub(crate) fn significant(number: f64) -> String {
    let decimals = match number.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.1 => 3,
        size if size >= 0.001 => 4,
        size if size > 0.0 => 7,
        _ => 0,
    };
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::knee::{Limit, Step};

    #[test]
    fn the_steps_of_a_search_stand_in_the_order_of_their_rates() {
        let step = |rate: f64| Step {
            rate,
            scheduled: 10,
            completed: 10,
            errors: 0,
            attainment: None,
            attainment_interval: None,
            achieved_rate: None,
            carried_rate: None,
            queue_grows: None,
            ttft_p99: None,
            tpot_p99: None,
            holds: rate < 3.0,
            fails: Vec::new(),
            interrupted: false,
        };
        let knee = Knee {
            rate: Some(2.0),
            fails_at: Some(2.83),
            limit: Limit::Service,
            required: Vec::new(),
            attainment: None,
            steps: [1.0, 2.0, 4.0, 2.83].map(step).into(),
        };
        let mut text = String::new();
        steps(&mut text, &knee);
        let rates = text.lines().skip_while(|line| !line.contains("rate/s")).skip(1);
        let rates: Vec<&str> = rates.map(|line| line.get(..8).unwrap().trim()).collect();
        assert_eq!(rates, ["1.00", "2.00", "2.83", "✗ 4.00"]);
    }
}
