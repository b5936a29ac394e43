//! `ghostscaler replay`: runs a recorded decision log through the decision again and compares.
//!
//! Must not take a line on trust: each one is checked for length, shape and version, and a line
//! that cannot be read never counts as the same.

use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::decision::decide;
use crate::declog::{MAX_LINE_BYTES, Record, VERSION};
use crate::files;

/// Replays a decision log.
///
/// Every line is decided again from its own spec, state and observation, and the result compared
/// byte for byte. Exits with 0 if all are the same, 1 if some differ, 2 if the file or a line
/// cannot be read.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The decision log (`-` is standard input).
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How to print the result.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// One line of text for each line of the log.
    Text,
    /// One JSON object.
    Json,
}

/// How the replay ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Lines that were decided the same.
    pub same: u64,
    /// Lines that were decided differently.
    pub different: u64,
    /// Lines that could not be read.
    pub unreadable: u64,
}

impl Summary {
    /// The exit code.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Summary { unreadable: 1.., .. } => 2,
            Summary { different: 1.., .. } => 1,
            Summary { .. } => 0,
        }
    }
}

/// Why the replay could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log cannot be opened or read.
    #[error("decision log `{}` cannot be read", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The log has no line, which proves nothing.
    #[error("decision log `{}` holds no decision", path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// The result cannot be written.
    #[error("the result cannot be written")]
    Write(#[source] io::Error),
}

/// Replays a log and prints the verdict of each line to `out`.
///
/// # Errors
///
/// When the log cannot be read or has no line, or the result cannot be written; bad lines are no
/// error but part of the result.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Summary, Error> {
    let failed = |source| Error::Read { path: args.file.clone(), source };
    let mut log: Box<dyn BufRead> = if args.file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(files::open(&args.file).map_err(failed)?))
    };
    let mut printer = Printer { out, format: args.format, n_printed: 0 };
    let mut summary = Summary::default();
    let mut line = Vec::new();
    for number in 1_u64.. {
        let Some(read) = read_line(&mut log, &mut line).map_err(failed)? else {
            break;
        };
        let replayed = match read {
            LineRead::Whole => replay_line(&line),
            LineRead::TooLong => Replayed::unreadable(format!(
                "line is longer than {MAX_LINE_BYTES} bytes, which no decision log holds"
            )),
        };
        match replayed.verdict {
            Verdict::Same => summary.same += 1,
            Verdict::Different { .. } => summary.different += 1,
            Verdict::Unreadable { .. } => summary.unreadable += 1,
        }
        printer.line(number, &replayed).map_err(Error::Write)?;
    }
    printer.end(summary).map_err(Error::Write)?;
    if summary == Summary::default() {
        return Err(Error::Empty { path: args.file.clone() });
    }
    Ok(summary)
}

enum LineRead {
    Whole,
    TooLong,
}

/// Reads the next line without its end; memory stays bounded by [`MAX_LINE_BYTES`].
fn read_line(log: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<Option<LineRead>> {
    line.clear();
    let limit = u64::try_from(MAX_LINE_BYTES).unwrap_or(u64::MAX);
    if log.take(limit).read_until(b'\n', line)? == 0 {
        return Ok(None);
    }
    let whole = line.last() == Some(&b'\n');
    if !whole && line.len() == MAX_LINE_BYTES {
        loop {
            let chunk = log.fill_buf()?;
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let n_consumed = end.map_or(chunk.len(), |end| end + 1);
            let done = end.is_some() || chunk.is_empty();
            log.consume(n_consumed);
            if done {
                return Ok(Some(LineRead::TooLong));
            }
        }
    }
    line.truncate(line.trim_ascii_end().len());
    Ok(Some(LineRead::Whole))
}

struct Replayed {
    workload: Option<String>,
    verdict: Verdict,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
enum Verdict {
    Same,
    Different {
        /// The first field that differs, as a path.
        field: String,
        recorded: Value,
        replayed: Value,
    },
    Unreadable {
        error: String,
    },
}

impl Replayed {
    fn unreadable(error: String) -> Replayed {
        Replayed { workload: None, verdict: Verdict::Unreadable { error } }
    }
}

fn replay_line(line: &[u8]) -> Replayed {
    // The version first: a line of another version may have any shape.
    match serde_json::from_slice::<Versioned>(line) {
        Ok(Versioned { version }) if version == VERSION => {}
        Ok(Versioned { version }) => {
            return Replayed::unreadable(format!(
                "version {version}: this ghostscaler reads version {VERSION}; use the one that \
                 wrote the log"
            ));
        }
        Err(error) => return Replayed::unreadable(parse_error(&error)),
    }
    let record: Record = match serde_json::from_slice(line) {
        Ok(record) => record,
        Err(error) => return Replayed::unreadable(parse_error(&error)),
    };
    let (decision, _state) = decide(&record.spec, record.state, &record.observation, record.now);
    let replayed = match serde_json::to_vec(&decision) {
        Ok(replayed) => replayed,
        Err(error) => return Replayed::unreadable(parse_error(&error)),
    };
    let same = line
        .strip_suffix(b"}")
        .and_then(|rest| rest.strip_suffix(replayed.as_slice()))
        .is_some_and(|rest| rest.ends_with(br#""decision":"#));
    let verdict = if same { Verdict::Same } else { difference(line, &replayed) };
    Replayed { workload: Some(record.workload), verdict }
}

#[derive(serde::Deserialize)]
struct Versioned {
    version: u32,
}

/// The error without serde's own line number, which would be 1 on every line.
fn parse_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let message = text.split_once(" at line ").map_or(text.as_str(), |(message, _)| message);
    format!("column {}: {message}", error.column())
}

fn difference(line: &[u8], replayed: &[u8]) -> Verdict {
    let recorded = serde_json::from_slice::<Value>(line)
        .ok()
        .and_then(|mut line| line.get_mut("decision").map(Value::take))
        .unwrap_or(Value::Null);
    let replayed = serde_json::from_slice(replayed).unwrap_or(Value::Null);
    match first_difference("decision".to_owned(), &recorded, &replayed) {
        Some(difference) => difference,
        // The same values in other bytes: somebody has rewritten the file.
        None => Verdict::Different {
            field: "decision (same values, other bytes)".to_owned(),
            recorded: Value::Null,
            replayed: Value::Null,
        },
    }
}

fn first_difference(field: String, recorded: &Value, replayed: &Value) -> Option<Verdict> {
    match (recorded, replayed) {
        (Value::Object(left), Value::Object(right)) => {
            let names = left.keys().chain(right.keys().filter(|name| !left.contains_key(*name)));
            names.into_iter().find_map(|name| {
                let (left, right) = (left.get(name), right.get(name));
                let (left, right) = (left.unwrap_or(&Value::Null), right.unwrap_or(&Value::Null));
                first_difference(format!("{field}.{name}"), left, right)
            })
        }
        (Value::Array(left), Value::Array(right)) => {
            (0..left.len().max(right.len())).find_map(|index| {
                let (left, right) = (left.get(index), right.get(index));
                let (left, right) = (left.unwrap_or(&Value::Null), right.unwrap_or(&Value::Null));
                first_difference(format!("{field}[{index}]"), left, right)
            })
        }
        (_, _) if recorded == replayed => None,
        (_, _) => Some(Verdict::Different {
            field,
            recorded: recorded.clone(),
            replayed: replayed.clone(),
        }),
    }
}

struct Printer<'a> {
    out: &'a mut dyn Write,
    format: Format,
    n_printed: u64,
}

#[derive(Serialize)]
struct JsonLine<'a> {
    line: u64,
    workload: Option<&'a str>,
    #[serde(flatten)]
    verdict: &'a Verdict,
}

impl Printer<'_> {
    fn line(&mut self, number: u64, replayed: &Replayed) -> io::Result<()> {
        let workload = replayed.workload.as_deref();
        match self.format {
            Format::Json => {
                let before = if self.n_printed == 0 { "{\"lines\":[\n" } else { ",\n" };
                self.n_printed += 1;
                self.out.write_all(before.as_bytes())?;
                let line = JsonLine { line: number, workload, verdict: &replayed.verdict };
                serde_json::to_writer(&mut *self.out, &line).map_err(io::Error::from)
            }
            Format::Text => {
                let workload = workload.unwrap_or("?");
                match &replayed.verdict {
                    Verdict::Same => writeln!(self.out, "line {number}: same ({workload})"),
                    Verdict::Different { field, recorded, replayed } => writeln!(
                        self.out,
                        "line {number}: different ({workload}) at {field}: recorded {recorded}, \
                         now {replayed}"
                    ),
                    Verdict::Unreadable { error } => {
                        writeln!(self.out, "line {number}: unreadable: {error}")
                    }
                }
            }
        }
    }

    fn end(&mut self, summary: Summary) -> io::Result<()> {
        let Summary { same, different, unreadable } = summary;
        match self.format {
            Format::Json => {
                let before = if self.n_printed == 0 { "{\"lines\":[" } else { "" };
                writeln!(
                    self.out,
                    "{before}],\"summary\":{{\"same\":{same},\"different\":{different},\
                     \"unreadable\":{unreadable}}}}}"
                )
            }
            Format::Text => {
                writeln!(self.out, "{same} same, {different} different, {unreadable} unreadable")
            }
        }
    }
}

#[cfg(test)]
mod tests;
