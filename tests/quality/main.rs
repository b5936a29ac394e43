//! Judges the quality of the decision: every trace and engine of the bar, each against a clairvoyant
//! and against every peer at its documented setting, at its best, and tuned elsewhere.
//!
//! Takes hours as a whole, so it runs in slices, each of which adds lines to one file:
//!
//! ```sh
//! cargo run --release --example quality -- list
//! cargo run --release --example quality -- run --traces DIR --out quality.jsonl --slice 1/20
//! cargo run --release --example quality -- table quality.jsonl
//! cargo run --release --example quality -- llm-d
//! ```
//!
//! Must not tune anything: the product runs at its defaults.

mod cases;
mod llmd;
mod measure;
mod record;
mod verdict;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Parser;

use cases::Case;
use record::Record;

/// Judge the decision's quality.
#[derive(Debug, Parser)]
#[command(max_term_width = 80)]
enum Command {
    /// List the cases.
    List,
    /// Measure cases, and add a line for each to a file. Cases that are in it are left out.
    Run(Run),
    /// Judge what has been measured.
    Table {
        /// The file.
        file: PathBuf,
    },
    /// llm-d's published run: its own formula first, then ours.
    LlmD {
        /// Run so many seeds.
        #[arg(long, default_value_t = 10)]
        seeds: u64,
    },
}

#[derive(Debug, clap::Args)]
struct Run {
    /// Where the traces are: azure2023_conv.csv, azure2024_code_10s_counts_d1-4.csv, …
    #[arg(long, value_name = "DIR")]
    traces: PathBuf,
    /// The file that lines are added to.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Only cases whose name has this in it.
    #[arg(long, default_value = "")]
    case: String,
    /// Only every N-th case, beginning with the K-th.
    #[arg(long, value_name = "K/N", value_parser = slice, default_value = "1/1")]
    slice: (usize, usize),
    /// At most so many seeds.
    #[arg(long, default_value_t = 10)]
    seeds: usize,
    /// Leave the peers out.
    #[arg(long)]
    ours_only: bool,
    /// Only these peers.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "all")]
    peers: Vec<String>,
    /// Another clairvoyant's GPU-hours, `case,gpu_hours`; the lower counts.
    #[arg(long, value_name = "FILE")]
    clairvoyant: Option<PathBuf>,
}

fn slice(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    parts
        .filter(|&(k, n): &(usize, usize)| 0 < k && k <= n)
        .ok_or_else(|| "expected K/N with K from 1 to N, such as 2/20".to_owned())
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::List => list(),
        Command::Run(run) => measure_all(&run),
        Command::Table { file } => verdict::print(&read(&file)?, &mut std::io::stdout().lock()),
        Command::LlmD { seeds } => llmd::print(seeds, &mut std::io::stdout().lock()),
    }
}

fn list() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for case in cases::all() {
        writeln!(out, "{:<40} {} seed(s)", case.name(), case.seeds)?;
    }
    Ok(())
}

fn measure_all(run: &Run) -> anyhow::Result<()> {
    let done: Vec<Record> = if run.out.exists() { read(&run.out)? } else { Vec::new() };
    let others = run.clairvoyant.as_deref().map(clairvoyants).transpose()?.unwrap_or_default();
    let (first, step) = run.slice;
    let all = cases::all();
    let wanted = all.iter().filter(|case| case.name().contains(&run.case));
    let wanted: Vec<&Case> = wanted.skip(first - 1).step_by(step).collect();
    if wanted.is_empty() {
        bail!("no case has `{}` in its name: `list` shows them", run.case);
    }
    for case in wanted {
        let name = case.name();
        if done.iter().any(|record| record.case == name) {
            continue;
        }
        writeln!(std::io::stderr(), "{name}")?;
        let peers = if run.ours_only { &[] } else { run.peers.as_slice() };
        let mut record = measure::measure(case, &run.traces, run.seeds, peers)
            .with_context(|| format!("case {name}"))?;
        record.other_clairvoyant = others.iter().find(|other| other.0 == name).map(|o| o.1);
        let mut file = std::fs::File::options().create(true).append(true).open(&run.out)?;
        writeln!(file, "{}", serde_json::to_string(&record)?)?;
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Vec<Record>> {
    let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
    let lines = BufReader::new(file).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

fn clairvoyants(path: &Path) -> anyhow::Result<Vec<(String, f64)>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let row = |line: &str| {
        let (case, hours) = line.rsplit_once(',')?;
        Some((case.to_owned(), hours.trim().parse().ok()?))
    };
    Ok(text.lines().filter_map(row).collect())
}
