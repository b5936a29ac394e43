//! Requests in time: traces in their publishers' formats, and generated arrivals.
//!
//! Reads the one file it is given, line by line and never more than a line at a time; reads no
//! clock. The same file, options and seed give the same arrivals.
//!
//! | [`Format`] | columns, found by header name | times |
//! |---|---|---|
//! | `azure` | `TIMESTAMP,ContextTokens,GeneratedTokens` | date and time, from the first row on |
//! | `mooncake` | JSON lines: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` | as written |
//! | `burstgpt` | `Timestamp` (s), `Request tokens`, `Response tokens` | from the first row on |
//! | `counts` | `count`: requests in each [`Options::bin_s`] | uniform in the bin |
//! | `csv` | `t_s,input_tokens,output_tokens[,cached_tokens]` | as written |
//!
//! Names are compared without case; other columns, empty lines and lines with `#` in front are
//! skipped. Fields may be quoted. What no request can be is refused: more fields than the header
//! has names, more cached tokens than the prompt has, more hashes than its segments. A length of 0,
//! as BurstGPT's failed requests have it, counts as 1, and [`Trace::empty`] tells in how many rows.
//! A time later than 213 days is an error ([`MOST_S`]).
//!
//! ```
//! use loadgen::traces::{Curve, Lengths, Process, generate};
//!
//! let curve: Curve = "2@10s,1-9@1m".parse()?;
//! let lengths = Lengths::fixed(500, 100);
//! let arrivals: Vec<_> = generate(&curve, Process::Poisson, &lengths, 42).collect();
//! // 2 × 10 + (1 + 9) / 2 × 60 are expected.
//! assert!((280..=360).contains(&arrivals.len()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arrivals;
mod counts;
mod lengths;
mod lines;
mod mooncake;
mod process;
mod requests;
mod scale;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::Prefix;

pub use arrivals::{Arrivals, Curve, CurveError, generate};
pub use lengths::{Length, Lengths, Size, SizeError};
pub use process::{Bursts, Process, ProcessError};

/// The tokens of a segment whose hash a `mooncake` trace carries (Mooncake, FAST'25).
pub const MOONCAKE_SEGMENT_TOKENS: u32 = 512;
/// The latest time that a row may have, in seconds: 213 days, where the simulation's clock ends
/// ([`crate::engine::Time`]). Published traces last four months at most (BurstGPT).
pub const MOST_S: f64 = 213.0 * 86_400.0;

/// The form of a trace file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Azure's LLM inference traces: one request a row, date and time.
    Azure,
    /// Mooncake's traces: JSON lines with hashes of the prompt's 512-token segments.
    Mooncake,
    /// BurstGPT: one request a row, seconds.
    Burstgpt,
    /// Requests per bin of time; lengths come from elsewhere.
    Counts,
    /// `t_s,input_tokens,output_tokens[,cached_tokens]`.
    Csv,
}

impl Format {
    /// Whether its rows say how long the requests are.
    #[must_use]
    pub fn has_lengths(self) -> bool {
        match self {
            Format::Azure | Format::Mooncake | Format::Burstgpt | Format::Csv => true,
            Format::Counts => false,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Azure => "azure",
            Format::Mooncake => "mooncake",
            Format::Burstgpt => "burstgpt",
            Format::Counts => "counts",
            Format::Csv => "csv",
        })
    }
}

/// One request of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// Seconds since the trace's start; never less than those of the one before.
    pub t_s: f64,
    /// Tokens of the prompt, at least 1.
    pub input_tokens: u32,
    /// Tokens generated, at least 1.
    pub output_tokens: u32,
    /// What the prompt shares with those before it.
    pub prefix: Prefix,
}

impl Arrival {
    /// A request of that length.
    fn new(t_s: f64, length: Length) -> Arrival {
        let prefix = match length.cached_tokens {
            0 => Prefix::Unknown,
            cached => Prefix::Cached(cached),
        };
        let Length { input_tokens, output_tokens, .. } = length;
        Arrival { t_s, input_tokens, output_tokens, prefix }
    }
}

/// How a trace is read.
#[derive(Debug, Clone)]
pub struct Options {
    /// Multiplies the rate, 0.000001 to 10,000. Below 1 each request is kept with this
    /// probability; above 1 the trace is laid over itself that often, each copy up to 20 s later
    /// (bursts stay together), the last one thinned. Copies share no prefix with each other.
    pub scale: f64,
    /// Settles what is drawn: what is kept, shifts, times in a bin, lengths.
    pub seed: u64,
    /// For `counts` only: how long a bin is, in seconds.
    pub bin_s: f64,
    /// For `counts` only: how long the requests are.
    pub lengths: Lengths,
}

impl Default for Options {
    /// The trace as it is; bins of 10 s; prompts of 500 tokens and outputs of 150.
    fn default() -> Options {
        Options { scale: 1.0, seed: 0, bin_s: 10.0, lengths: Lengths::fixed(500, 150) }
    }
}

/// The arrivals of a trace, in order. Ends after the first error.
pub struct Trace {
    rows: Rows,
    empty: Empty,
    ended: bool,
}

/// The rows read so far with a length of 0, which counts as 1; shared with who reads.
#[derive(Debug, Clone, Default)]
pub struct Empty(Arc<AtomicU64>);

impl Empty {
    /// How many.
    #[must_use]
    pub fn n(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// A length that can be asked for.
    fn raised(&self, length: Length) -> Length {
        let raised = length.raised();
        if raised != length {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        raised
    }
}

/// What the rows of a trace are.
enum Rows {
    Requests(Box<dyn Iterator<Item = Result<Arrival, Error>> + Send>),
    Bins(Box<counts::Counts>),
}

impl Trace {
    /// Rows with a length of 0, to be asked for their number while the trace is read.
    #[must_use]
    pub fn empty(&self) -> Empty {
        self.empty.clone()
    }

    /// Seconds that the bins read so far last, those without a request too; `None` where rows are
    /// requests, whose trace ends with the last.
    #[must_use]
    pub fn span_s(&self) -> Option<f64> {
        match &self.rows {
            Rows::Requests(_) => None,
            Rows::Bins(counts) => Some(counts.span_s()),
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Iterator for Trace {
    type Item = Result<Arrival, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = match &mut self.rows {
            Rows::Requests(requests) => requests.next(),
            Rows::Bins(counts) => counts.next(),
        };
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Opens a trace.
///
/// # Errors
///
/// When the file cannot be opened, has no header with the format's columns, or an option is out of
/// its range. Errors of later rows come from the iterator.
pub fn read(path: &Path, format: Format, options: &Options) -> Result<Trace, Error> {
    for (option, value, least, most) in
        [("scale", options.scale, 1e-6, 1e4), ("bin", options.bin_s, 1e-3, 1e6)]
    {
        if !(least..=most).contains(&value) {
            return Err(Error::Option { option, value, least, most });
        }
    }
    let empty = Empty::default();
    let seen = empty.clone();
    let rows = match format {
        Format::Azure | Format::Burstgpt | Format::Csv => {
            Rows::Requests(scale::scaled(requests::Requests::open(path, format, seen)?, options))
        }
        Format::Mooncake => {
            Rows::Requests(scale::scaled(mooncake::Mooncake::open(path, seen)?, options))
        }
        Format::Counts => Rows::Bins(Box::new(counts::Counts::open(path, options)?)),
    };
    Ok(Trace { rows, empty, ended: false })
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file cannot be read further.
    #[error("{}, line {line}: cannot read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What the system says.
        source: io::Error,
    },
    /// A line that is longer than any of these formats has.
    #[error("{}, line {line}: longer than {most} bytes, expected one request a line", path.display())]
    LongLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The limit.
        most: u64,
    },
    /// A file without a row.
    #[error("{}: no rows, expected {expected}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What a row would have been.
        expected: &'static str,
    },
    /// The header lacks a column.
    #[error(
        "{}, line {line}: no column `{column}` in the header \"{header}\"; is the format right?",
        path.display()
    )]
    Column {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The column.
        column: &'static str,
        /// The header, shortened.
        header: String,
    },
    /// A field that is not what its column holds.
    #[error("{}, line {line}: `{column}` is \"{value}\": expected {expected}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The column.
        column: &'static str,
        /// The field, shortened.
        value: String,
        /// What it should have been.
        expected: &'static str,
    },
    /// More rows than are held in memory.
    #[error("{}: more than {most} rows of lengths; take a sample of them", path.display())]
    TooMany {
        /// The file.
        path: PathBuf,
        /// The limit.
        most: usize,
    },
    /// An option out of its range.
    #[error("`{option}` is {value}: expected {least} to {most}")]
    Option {
        /// The option.
        option: &'static str,
        /// As given.
        value: f64,
        /// The least allowed.
        least: f64,
        /// The most allowed.
        most: f64,
    },
}

#[cfg(test)]
mod tests;
