//! The report as one page: its table, and the plots that a table cannot show. Loads nothing.

use super::plot::{Line, Plot};
use super::{Quantile, Report, table};
use crate::run::engines::Look;
use crate::run::timeline::Point;
use crate::text::escaped;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:760px;margin:2em auto;\
    padding:0 1em;color:#222;background:#fff}pre{font:13px/1.4 ui-monospace,monospace;\
    overflow-x:auto;background:#f6f6f6;padding:1em}figure{margin:2em 0}figcaption{font-weight:600}\
    svg{width:100%;height:auto}svg text{font-size:11px;fill:#555}svg path{fill:none;\
    stroke-width:1.6;stroke-linecap:round}svg .grid{stroke:#ddd}\
    .warning{border-left:4px solid #d55e00;padding-left:1em}\
    @media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre{background:#222}\
    svg .grid{stroke:#333}svg text{fill:#aaa}}";

pub(super) fn render(report: &Report) -> String {
    let heading = escaped(&heading(report));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>loadgen: {heading}</title>\
         <style>{STYLE}</style></head><body>\n<h1>{heading}</h1>\n"
    );
    let targets = report.targets.join(", ");
    page.push_str(&format!("<p>{}: {}</p>\n", escaped(&targets), escaped(&report.load)));
    for warning in &report.warnings {
        page.push_str(&format!("<p class=\"warning\">{}</p>\n", escaped(warning)));
    }
    page.push_str(&rates(report).render());
    page.push_str(&first_tokens(report).render());
    page.push_str(&open(report).render());
    page.push_str(&distributions(report).render());
    if let Some(knee) = &report.knee {
        let mut steps: Vec<_> = knee.steps.iter().collect();
        steps.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        let points = steps.iter().map(|step| (step.rate, step.attainment)).collect();
        let plot = Plot {
            title: "Share within SLO at each rate",
            x_label: "requests/s",
            lines: vec![Line { name: "share", points, is_step: false, is_dashed: false }],
            is_log: false,
        };
        page.push_str(&plot.render());
    }
    page.push_str(&format!("<pre>{}</pre>\n", escaped(&table::render(report))));
    page.push_str("</body></html>\n");
    page
}

/// The one thing that a run has shown, and first whether it is one.
fn heading(report: &Report) -> String {
    let total = &report.total;
    let shown = match (&report.knee, total.attainment) {
        _ if report.is_unanswered() && total.ttft.count > 0 => "No answer was whole".to_owned(),
        _ if report.is_unanswered() => "Nothing was answered".to_owned(),
        (Some(knee), _) => knee.verdict(),
        (None, Some(share)) => {
            let times = match (total.ttft.p99, total.e2e.p99) {
                (Some(ttft_s), _) => format!(", TTFT p99 {}", table::seconds(Some(ttft_s))),
                (None, Some(e2e_s)) => {
                    format!(", whole answer p99 {}", table::seconds(Some(e2e_s)))
                }
                (None, None) => String::new(),
            };
            format!("{} of the requests within their SLO{times}", table::percent(Some(share)))
        }
        (None, None) => "No request could be judged".to_owned(),
    };
    let is_invalid = report.client.is_bottleneck && !report.is_unanswered();
    if is_invalid { format!("INVALID: {shown}") } else { shown }
}

/// Requests of a bin of the rates, in the mean: a rate of fewer is more chance than rate.
const BIN_REQUESTS: usize = 5;

/// How many points make a bin.
fn together(points: &[Point]) -> usize {
    let n_due: u64 = points.iter().map(|point| point.scheduled).sum();
    let n_until = points.iter().rposition(|point| point.scheduled > 0).map_or(0, |last| last + 1);
    let n_due = usize::try_from(n_due).unwrap_or(usize::MAX).max(1);
    (n_until * BIN_REQUESTS).div_ceil(n_due).max(1)
}

/// A count of each bin as a rate, so many of the points together.
fn per_second(
    points: &[Point],
    n_together: usize,
    of: impl Fn(&Point) -> u64,
) -> Vec<(f64, Option<f64>)> {
    let width_s = match points {
        [first, second, ..] => second.t_s - first.t_s,
        _ => 1.0,
    };
    let rate = |bin: &[Point]| {
        let n: u64 = bin.iter().map(&of).sum();
        (bin[0].t_s, Some(n as f64 / (width_s * bin.len() as f64)))
    };
    let mut rates: Vec<(f64, Option<f64>)> = points.chunks(n_together).map(rate).collect();
    if let (Some((_, rate)), Some(last)) = (rates.last().copied(), points.last()) {
        rates.push((last.t_s + width_s, rate));
    }
    rates
}

fn rates(report: &Report) -> Plot<'_> {
    let points = &report.timeline;
    let n_together = together(points);
    let line = |name, is_dashed, of: fn(&Point) -> u64| Line {
        name,
        points: per_second(points, n_together, of),
        is_step: true,
        is_dashed,
    };
    Plot {
        title: "Requests a second, by when they were due",
        x_label: "seconds",
        lines: vec![
            line("due", false, |point| point.scheduled),
            line("failed", false, |point| point.failed),
            line("within SLO", true, |point| point.good),
        ],
        is_log: false,
    }
}

fn first_tokens(report: &Report) -> Plot<'_> {
    let points = &report.timeline;
    let line = |name, of: fn(&Point) -> Option<f64>| Line {
        name,
        points: points.iter().map(|point| (point.t_s, of(point))).collect(),
        is_step: false,
        is_dashed: false,
    };
    let mut lines = vec![line("p50", |point| point.ttft_p50), line("p99", |point| point.ttft_p99)];
    let end_s = points.last().map_or(0.0, |point| point.t_s);
    let slo_s = report.slo.values().map(|slo| slo.ttft_s).fold(f64::INFINITY, f64::min);
    lines.push(Line {
        name: "SLO",
        points: vec![(0.0, Some(slo_s)), (end_s, Some(slo_s))],
        is_step: false,
        is_dashed: false,
    });
    Plot {
        title: "Seconds to the first token, by when the request was due",
        x_label: "seconds",
        lines,
        is_log: false,
    }
}

fn open(report: &Report) -> Plot<'_> {
    let points = report.timeline.iter().map(|point| (point.t_s, Some(point.in_flight as f64)));
    let mut replicas: Vec<(f64, Option<f64>)> =
        report.replicas.iter().map(|(t_s, count)| (*t_s, count.map(f64::from))).collect();
    if let Some((_, last)) = replicas.last().copied() {
        replicas.push((report.elapsed_s, last));
    }
    let looks = |name, of: fn(&Look) -> Option<f64>| Line {
        name,
        points: report.engines.iter().map(|look| (look.t_s, of(look))).collect(),
        is_step: true,
        is_dashed: false,
    };
    Plot {
        title: "Open requests, and replicas and engines where they were seen",
        x_label: "seconds",
        lines: vec![
            Line {
                name: "open requests",
                points: points.collect(),
                is_step: true,
                is_dashed: false,
            },
            Line { name: "replicas", points: replicas, is_step: true, is_dashed: false },
            looks("running in the engines", |look| look.running),
            looks("waiting in them", |look| look.waiting),
        ],
        is_log: false,
    }
}

fn distributions(report: &Report) -> Plot<'_> {
    let line = |name, quantiles: &[Quantile]| Line {
        name,
        points: quantiles.iter().map(|quantile| (quantile.s, Some(quantile.q))).collect(),
        is_step: false,
        is_dashed: false,
    };
    Plot {
        title: "Share of requests (of pieces of text) that took at most so long",
        x_label: "seconds",
        lines: vec![
            line("first token", &report.ttft_distribution),
            line("between pieces", &report.itl_distribution),
            line("whole answer", &report.e2e_distribution),
        ],
        is_log: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::timeline::Timeline;

    #[test]
    fn a_rate_is_of_several_requests_and_lasts_to_the_end_of_its_bin() {
        let mut timeline = Timeline::default();
        for index in 0..50 {
            timeline.at(f64::from(index) * 0.2).scheduled += 1;
        }
        let points = timeline.points();
        let n_together = together(&points);
        assert_eq!(n_together, 4, "bins of 0.25 s, five requests a second");
        let rates = per_second(&points, n_together, |point| point.scheduled);
        assert!(
            rates.iter().all(|(_, rate)| rate.is_some_and(|r| (4.0..=6.0).contains(&r))),
            "{rates:?}"
        );
        assert_eq!((rates[0].0, rates[1].0, rates.last().unwrap().0), (0.0, 1.0, 10.0));
        assert_eq!(together(&[]), 1);
    }
}
