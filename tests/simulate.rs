//! `simulate` as its users call it: the forms it takes, what it prints, what it refuses; and small
//! slices of decision quality with bounds on attainment and cost.
//!
//! Must not need a trace from outside: all are written here or generated.

mod forms;
mod quality;
mod refusals;

use std::error::Error as _;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use ghostscaler::simulate;
use serde_json::Value;
use tempfile::TempDir;

#[derive(clap::Parser)]
struct Command {
    #[command(flatten)]
    args: simulate::Args,
}

/// What the command prints for these flags, or why it does not.
fn simulated(flags: &str) -> Result<String, String> {
    let words = std::iter::once("simulate").chain(flags.split_whitespace());
    let command = Command::try_parse_from(words).map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    match simulate::run(&command.args, &mut out) {
        Ok(()) => Ok(String::from_utf8(out).unwrap()),
        Err(error) => {
            let cause = error.source().map_or_else(String::new, |source| format!(": {source}"));
            Err(format!("{error}{cause}"))
        }
    }
}

/// The same as JSON.
fn results(flags: &str) -> Value {
    let text = simulated(&format!("{flags} --format json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The lines of a policy.
fn rows<'a>(results: &'a Value, policy: &str) -> Vec<&'a Value> {
    let rows = results["results"].as_array().unwrap();
    rows.iter().filter(|row| row["policy"] == policy).collect()
}

/// A directory with a file in it.
fn file(name: &str, text: &str) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

/// Rows at equal distances, under a header.
fn rows_of(header: &str, n: u32, row: impl Fn(u32) -> String) -> String {
    let mut text = format!("# where this comes from, and its licence\n{header}\n");
    for index in 0..n {
        text.push_str(&row(index));
        text.push('\n');
    }
    text
}

/// `csv` with a request of 500 and 50 tokens each half second.
fn plain(n: u32) -> String {
    rows_of("t_s,input_tokens,output_tokens", n, |i| format!("{},500,50", f64::from(i) / 2.0))
}

fn shown(path: &Path) -> std::path::Display<'_> {
    path.display()
}

#[test]
fn a_change_after_the_end_of_the_trace_is_refused() {
    let (_dir, path) = file("short.csv", &plain(60));
    let run = |at: &str| {
        let trace = shown(&path);
        simulated(&format!(
            "--trace {trace} --trace-format csv --profile 8b-a100 --no-references --change {at}=8b-h100"
        ))
    };
    let error = run("1h").unwrap_err();
    assert!(error.contains("`--change` at 3600 s"), "{error}");
    assert!(error.contains("ends at 30 s"), "{error}");
    run("20s").unwrap();
}

#[test]
fn rows_of_a_trace_without_tokens_are_told() {
    let text = "t_s,input_tokens,output_tokens\n0,500,50\n1,0,50\n2,500,0\n3,500,50\n";
    let (_dir, path) = file("failed.csv", text);
    let run = |more: &str| {
        let trace = shown(&path);
        format!("--trace {trace} --trace-format csv --profile 8b-a100 --no-references {more}")
    };
    let table = simulated(&run("")).unwrap();
    assert!(table.contains("2 of its rows have 0 tokens"), "{table}");
    assert_eq!(results(&run(""))["empty_rows"], 2);
    let (_dir, path) = file("served.csv", &plain(4));
    let run =
        format!("--trace {} --trace-format csv --profile 8b-a100 --no-references", shown(&path));
    assert!(!simulated(&run).unwrap().contains("0 tokens"));
}
