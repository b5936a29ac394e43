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
            lines: vec![Line { name: "share", points, is_step: false }],
            is_log: false,
        };
        page.push_str(&plot.render());
    }
    page.push_str(&format!("<pre>{}</pre>\n", escaped(&table::render(report))));
    page.push_str("</body></html>\n");
    page
}

/// The one thing that a run has shown.
fn heading(report: &Report) -> String {
    match (&report.knee, report.total.attainment) {
        _ if report.is_unanswered() && report.total.ttft.count > 0 => {
            "No answer was whole".to_owned()
        }
        _ if report.is_unanswered() => "Nothing was answered".to_owned(),
        (Some(knee), _) => knee.verdict(),
        (None, Some(_)) => {
            let share = table::percent(report.total.attainment);
            format!("{share} of the requests within their SLO")
        }
        (None, None) => "No request could be judged".to_owned(),
    }
}

/// A count of each bin as a rate.
fn per_second(points: &[Point], of: impl Fn(&Point) -> u64) -> Vec<(f64, Option<f64>)> {
    let width_s = match points {
        [first, second, ..] => second.t_s - first.t_s,
        _ => 1.0,
    };
    points.iter().map(|point| (point.t_s, Some(of(point) as f64 / width_s))).collect()
}

fn rates(report: &Report) -> Plot<'_> {
    let points = &report.timeline;
    let line = |name, points| Line { name, points, is_step: true };
    Plot {
        title: "Requests a second, by when they were due",
        x_label: "seconds",
        lines: vec![
            line("due", per_second(points, |point| point.scheduled)),
            line("failed", per_second(points, |point| point.failed)),
            line("within SLO", per_second(points, |point| point.good)),
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
    };
    let mut lines = vec![line("p50", |point| point.ttft_p50), line("p99", |point| point.ttft_p99)];
    let end_s = points.last().map_or(0.0, |point| point.t_s);
    let slo_s = report.slo.values().map(|slo| slo.ttft_s).fold(f64::INFINITY, f64::min);
    lines.push(Line {
        name: "SLO",
        points: vec![(0.0, Some(slo_s)), (end_s, Some(slo_s))],
        is_step: false,
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
    };
    Plot {
        title: "Open requests, and replicas and engines where they were seen",
        x_label: "seconds",
        lines: vec![
            Line { name: "open requests", points: points.collect(), is_step: true },
            Line { name: "replicas", points: replicas, is_step: true },
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
