//! `loadgen compare`: two results beside each other, and whether they differ by more than chance.
//!
//! Must not measure anything. A metric that one of the results does not have is left out.

mod result;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;

pub(crate) use self::result::value_of;
pub use self::result::{Error, METRICS, Measured, Tool};
use crate::spread;
use crate::text;

const AFTER_HELP: &str = "\
Reads the JSON of `loadgen run --format json`, of `vllm bench serve --save-result` and of GuideLLM.
Whether a change is more than chance is known only of results of several runs:

  loadgen run … --seeds 5 --format json --output before.json
  loadgen run … --seeds 5 --format json --output after.json
  loadgen compare before.json after.json";

/// The flags of `compare`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The result to compare with.
    #[arg(value_name = "BEFORE")]
    pub before: PathBuf,
    /// The result that is compared.
    #[arg(value_name = "AFTER")]
    pub after: PathBuf,
    /// How the comparison is written.
    #[arg(long, value_enum, default_value = "table")]
    pub format: Format,
}

/// How a comparison is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For a person, 80 columns.
    Table,
    /// Everything, as one JSON object.
    Json,
}

/// One metric of both results.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Its name, as in a report's JSON.
    pub metric: &'static str,
    /// The mean before; times in seconds, rates a second.
    pub before: f64,
    /// The mean after.
    pub after: f64,
    /// The change as a share of what was before; `null` if that was 0.
    pub change: Option<f64>,
    /// Where the change lies at 95 %, as shares likewise; `null` unless both are of several runs.
    pub interval: Option<(f64, f64)>,
    /// Whether that leaves out 0; `null` where it is unknown.
    pub differs: Option<bool>,
}

/// Two results beside each other.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// What was before.
    pub before: Measured,
    /// What is now.
    pub after: Measured,
    /// Every metric that both have.
    pub rows: Vec<Row>,
    /// What makes the comparison doubtful.
    pub warnings: Vec<String>,
}

impl Args {
    /// Compares, and writes what came of it.
    ///
    /// # Errors
    ///
    /// When a file is no result that is known, or `out` cannot be written.
    pub fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let (before, after) = (Measured::load(&self.before)?, Measured::load(&self.after)?);
        let comparison = Comparison::of(before, after);
        match self.format {
            Format::Table => out.write_all(comparison.table().as_bytes())?,
            Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&comparison)?)?,
        }
        Ok(())
    }
}

impl Comparison {
    /// Puts two results beside each other.
    #[must_use]
    pub fn of(before: Measured, after: Measured) -> Comparison {
        let rows = METRICS
            .iter()
            .filter_map(|metric| {
                let (was, is) = (before.metrics.get(metric)?, after.metrics.get(metric)?);
                let share = |change: f64| change / was.mean;
                let interval = spread::change(&was.values, &is.values);
                Some(Row {
                    metric,
                    before: was.mean,
                    after: is.mean,
                    change: (was.mean > 0.0).then(|| share(is.mean - was.mean)),
                    interval: interval
                        .filter(|_| was.mean > 0.0)
                        .map(|(low, high)| (share(low), share(high))),
                    differs: interval.map(|(low, high)| low > 0.0 || high < 0.0),
                })
            })
            .collect();
        let warnings = warnings(&before, &after);
        Comparison { before, after, rows, warnings }
    }

    fn table(&self) -> String {
        let mut text = String::new();
        for (name, result) in [("before: ", &self.before), ("after:  ", &self.after)] {
            text.push_str(&text::wrapped(name, "        ", &result.described()));
        }
        text.push_str(&format!(
            "\n{:<20}{:>11}{:>11}{:>10}   95 % of the change\n",
            "", "before", "after", "change"
        ));
        for row in &self.rows {
            let shown = |value| number(row.metric, value);
            let change = row.change.map_or_else(|| "–".to_owned(), percent);
            let interval = row.interval.map_or_else(String::new, |(low, high)| {
                let word = if row.differs == Some(true) { "differs" } else { "" };
                format!("{} … {}  {word}", percent(low), percent(high))
            });
            let line = format!(
                "{:<20}{:>11}{:>11}{change:>10}   {interval}",
                row.metric,
                shown(row.before),
                shown(row.after),
            );
            text.push_str(line.trim_end());
            text.push('\n');
        }
        for warning in &self.warnings {
            text.push_str(&text::wrapped("WARNING: ", "         ", warning));
        }
        text
    }
}

/// What a reader must know before the figures are set against each other.
fn warnings(before: &Measured, after: &Measured) -> Vec<String> {
    let mut warnings = Vec::new();
    let is_late = |result: &Measured| result.tool != Tool::Loadgen;
    if is_late(before) != is_late(after) {
        warnings.push(
            "loadgen's times begin when a request was due, those of the other tool when it was \
             sent: what waits in that tool is in none of its times"
                .to_owned(),
        );
    }
    let differences = differences(before, after);
    if before.tool == after.tool && !differences.is_empty() {
        const SHOWN: usize = 6;
        let more = match differences.len().saturating_sub(SHOWN) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let shown: Vec<String> = differences.into_iter().take(SHOWN).collect();
        warnings.push(format!(
            "the loads are not the same, and what differs may be the load's: {}{more}",
            shown.join(", ")
        ));
    }
    for (name, result) in [("before", before), ("after", after)] {
        if result.is_bottleneck {
            warnings.push(format!(
                "{name} is INVALID: the client was the bottleneck, and what differs may be its"
            ));
        }
        if result.interrupted {
            warnings.push(format!("{name} was stopped before its end"));
        }
    }
    if before.n_runs().min(after.n_runs()) < 2 {
        warnings.push(
            "one run each: whether a change is more than chance is unknown; loadgen run --seeds 5 \
             makes five runs of it"
                .to_owned(),
        );
    } else {
        warnings.push(
            "of twenty metrics that have not changed, one is said to differ in the mean".to_owned(),
        );
    }
    warnings
}

/// What was asked otherwise before than after.
fn differences(before: &Measured, after: &Measured) -> Vec<String> {
    let of = |result: &Measured, path: &str| {
        result.asked.get(path).map_or_else(|| "none".to_owned(), String::clone)
    };
    let is_known = |result: &Measured, path: &str| {
        // A result of an older version does not say all of it.
        let (part, _) = path.split_once('.').unwrap_or((path, ""));
        result.asked.keys().any(|key| key.split('.').next() == Some(part))
    };
    let paths: BTreeSet<&String> = before.asked.keys().chain(after.asked.keys()).collect();
    let known = paths.into_iter().filter(|path| is_known(before, path) && is_known(after, path));
    let changed = known.map(|path| (path, of(before, path), of(after, path)));
    let mut differences: Vec<String> = changed
        .filter(|(_, was, is)| was != is)
        .map(|(path, was, is)| format!("{path} {was}, then {is}"))
        .collect();
    if before.asked.is_empty() && before.load != after.load {
        differences.push(format!("{}, then {}", before.load, after.load));
    }
    differences
}

fn percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

/// A value as people read it: times by their name, counts and rates plainly.
fn number(metric: &str, value: f64) -> String {
    match metric {
        "attainment" => format!("{:.2} %", value * 100.0),
        _ if metric.contains('.') => crate::run::report::seconds(Some(value)),
        _ => crate::run::report::significant(value),
    }
}
