//! The report as comma-separated values: a row for all requests, then one for each class, or one for
//! each step of a search for the knee. Empty fields were not measured.

use super::{ClassReport, Report, Summary};

pub(super) fn render(report: &Report) -> String {
    match &report.knee {
        Some(knee) => {
            let mut text =
                "rate,scheduled,completed,errors,attainment,achieved_rate,ttft_p99,tpot_p99,holds\n"
                    .to_owned();
            for step in &knee.steps {
                text.push_str(&format!(
                    "{},{},{},{},{},{},{},{},{}\n",
                    step.rate,
                    step.scheduled,
                    step.completed,
                    step.errors,
                    number(step.attainment),
                    number(step.achieved_rate),
                    number(step.ttft_p99),
                    number(step.tpot_p99),
                    step.holds,
                ));
            }
            text
        }
        None => {
            let mut text = "class,scheduled,sent,completed,errors,unfinished,retries,offered_rate,\
                            achieved_rate,goodput,attainment,output_tokens_rate"
                .to_owned();
            for name in ["ttft", "tpot", "itl", "e2e", "schedule_lag"] {
                for part in ["p50", "p90", "p99", "max"] {
                    text.push_str(&format!(",{name}_{part}"));
                }
            }
            text.push('\n');
            std::iter::once(&report.total)
                .chain(&report.classes)
                .for_each(|class| row(&mut text, class));
            text
        }
    }
}

fn row(text: &mut String, class: &ClassReport) {
    // Names come from the command line, where a comma ends them.
    text.push_str(&format!(
        "{},{},{},{},{},{},{}",
        class.class,
        class.scheduled,
        class.sent,
        class.completed,
        class.errors,
        class.unfinished,
        class.retries
    ));
    let rates = [
        class.offered_rate,
        class.achieved_rate,
        class.goodput,
        class.attainment,
        class.output_tokens_rate,
    ];
    let times = [&class.ttft, &class.tpot, &class.itl, &class.e2e, &class.schedule_lag];
    let times =
        times.into_iter().flat_map(|Summary { p50, p90, p99, max, .. }| [*p50, *p90, *p99, *max]);
    for value in rates.into_iter().chain(times) {
        text.push(',');
        text.push_str(&number(value));
    }
    text.push('\n');
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
