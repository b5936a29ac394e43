//! The report as comma-separated values: a row for all requests, then one for each class, or one for
//! each step of a search for the knee. Empty fields were not measured; what makes the whole report
//! doubtful is in each row.

use super::{ClassReport, Report, Summary};

pub(super) fn render(report: &Report) -> String {
    match &report.knee {
        Some(knee) => {
            let mut text =
                "rate,scheduled,completed,errors,attainment,achieved_rate,carried_rate,ttft_p99,\
                 tpot_p99,holds,fails,interrupted\n"
                    .to_owned();
            for step in &knee.steps {
                text.push_str(&format!(
                    "{},{},{},{},{},{},{},{},{},{},{},{}\n",
                    step.rate,
                    step.scheduled,
                    step.completed,
                    step.errors,
                    number(step.attainment),
                    number(step.achieved_rate),
                    number(step.carried_rate),
                    number(step.ttft_p99),
                    number(step.tpot_p99),
                    step.holds,
                    quoted(&step.fails.join("; ")),
                    step.interrupted,
                ));
            }
            text
        }
        None => {
            let mut text = "class,scheduled,sent,completed,errors,unfinished,retries,offered_rate,\
                            achieved_rate,goodput,attainment,output_tokens_rate"
                .to_owned();
            for name in ["ttft", "tpot", "itl", "token_itl", "e2e", "schedule_lag"] {
                for part in ["p50", "p90", "p99", "max"] {
                    text.push_str(&format!(",{name}_{part}"));
                }
            }
            text.push_str(",is_bottleneck,interrupted,warnings\n");
            let warnings = quoted(&report.warnings.join("; "));
            let (is_bottleneck, interrupted) = (report.client.is_bottleneck, report.interrupted);
            let trust = format!("{is_bottleneck},{interrupted},{warnings}");
            std::iter::once(&report.total)
                .chain(&report.classes)
                .for_each(|class| row(&mut text, class, &trust));
            text
        }
    }
}

fn row(text: &mut String, class: &ClassReport, trust: &str) {
    text.push_str(&format!(
        "{},{},{},{},{},{},{}",
        quoted(&class.class),
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
    let times =
        [&class.ttft, &class.tpot, &class.itl, &class.token_itl, &class.e2e, &class.schedule_lag];
    let times =
        times.into_iter().flat_map(|Summary { p50, p90, p99, max, .. }| [*p50, *p90, *p99, *max]);
    for value in rates.into_iter().chain(times) {
        text.push(',');
        text.push_str(&number(value));
    }
    text.push_str(&format!(",{trust}\n"));
}

/// A text as RFC 4180 has it.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_cannot_break_a_row() {
        assert_eq!(quoted("chat"), "chat");
        assert_eq!(quoted("a\"b, c"), "\"a\"\"b, c\"");
    }
}
