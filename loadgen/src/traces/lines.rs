//! Lines and comma-separated fields of a trace file, with the place of each for errors.
//!
//! Must not know a format. Holds one line at a time, of at most [`MOST_BYTES`].

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use super::{Error, Length};
use crate::files;
use crate::text::shortened;

/// The longest line: a Mooncake row with the hashes of a million tokens has some 20 KB.
const MOST_BYTES: u64 = 1 << 20;
/// How much of a bad value an error repeats.
const SHOWN_CHARS: usize = 60;
/// No model has a longer context.
pub(super) const MOST_TOKENS: u32 = 100_000_000;
/// The words for a length; see [`MOST_TOKENS`].
const TOKENS: &str = "a whole number of tokens, at most 100000000";
/// The most columns that a format asks for.
const MOST_COLUMNS: usize = 4;

/// The lines of a file that say something: neither empty nor marked with `#`.
pub(super) struct Lines {
    path: PathBuf,
    input: BufReader<File>,
    line: u64,
    buffer: Vec<u8>,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Lines, Error> {
        let file =
            files::open(path).map_err(|source| Error::Open { path: path.to_owned(), source })?;
        let input = BufReader::with_capacity(1 << 16, file);
        Ok(Lines { path: path.to_owned(), input, line: 0, buffer: Vec::new() })
    }

    /// Moves to the next line; false at the end.
    pub(super) fn advance(&mut self) -> Result<bool, Error> {
        loop {
            self.buffer.clear();
            self.line += 1;
            let (path, line) = (|| self.path.clone(), self.line);
            let mut limited = (&mut self.input).take(MOST_BYTES + 1);
            let n_bytes = limited
                .read_until(b'\n', &mut self.buffer)
                .map_err(|source| Error::Read { path: path(), line, source })?;
            if n_bytes == 0 {
                return Ok(false);
            }
            if n_bytes as u64 > MOST_BYTES {
                return Err(Error::LongLine { path: path(), line, most: MOST_BYTES });
            }
            if std::str::from_utf8(&self.buffer).is_err() {
                let value = String::from_utf8_lossy(&self.buffer).into_owned();
                return Err(self.fault("line", value.trim(), "text in UTF-8"));
            }
            if !matches!(self.text().bytes().next(), None | Some(b'#')) {
                return Ok(true);
            }
        }
    }

    /// The present line, trimmed.
    pub(super) fn text(&self) -> &str {
        let text = std::str::from_utf8(&self.buffer).unwrap_or_default();
        text.trim_start_matches('\u{feff}').trim()
    }

    /// A length in tokens, as a line of JSON has it.
    pub(super) fn whole_tokens(&self, column: &'static str, tokens: u64) -> Result<u32, Error> {
        let whole = u32::try_from(tokens).ok().filter(|tokens| *tokens <= MOST_TOKENS);
        whole.ok_or_else(|| self.fault(column, &tokens.to_string(), TOKENS))
    }

    /// An error about a value of the present line.
    pub(super) fn fault(&self, column: &'static str, value: &str, expected: &'static str) -> Error {
        let value = shortened(value, SHOWN_CHARS);
        Error::Value { path: self.path.clone(), line: self.line, column, value, expected }
    }

    /// An error about a file that ended before its first row.
    pub(super) fn empty(&self, expected: &'static str) -> Error {
        Error::Empty { path: self.path.clone(), expected }
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// A column that a format asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) name: &'static str,
    /// Other names for the same.
    pub(super) aliases: &'static [&'static str],
    pub(super) required: bool,
}

impl Column {
    pub(super) const fn required(name: &'static str) -> Column {
        Column { name, aliases: &[], required: true }
    }

    fn is_called(&self, name: &str) -> bool {
        std::iter::once(&self.name).chain(self.aliases).any(|own| own.eq_ignore_ascii_case(name))
    }
}

/// Rows of named fields.
pub(super) struct Table {
    lines: Lines,
    columns: &'static [Column],
    /// For each wanted column its number in the file.
    positions: [Option<usize>; MOST_COLUMNS],
    /// Columns of the file.
    width: usize,
}

impl Table {
    /// Opens the file and finds the columns in its header.
    pub(super) fn open(path: &Path, columns: &'static [Column]) -> Result<Table, Error> {
        debug_assert!(columns.len() <= MOST_COLUMNS, "{columns:?}");
        let mut lines = Lines::open(path)?;
        if !lines.advance()? {
            return Err(lines.empty("a header with the names of the columns"));
        }
        let mut positions = [None; MOST_COLUMNS];
        for (column, position) in columns.iter().zip(&mut positions) {
            *position = fields(lines.text()).position(|name| column.is_called(name));
            if column.required && position.is_none() {
                return Err(Error::Column {
                    path: path.to_owned(),
                    line: lines.line,
                    column: column.name,
                    header: shortened(lines.text(), SHOWN_CHARS),
                });
            }
        }
        let width = fields(lines.text()).count();
        Ok(Table { lines, columns, positions, width })
    }

    /// Moves to the next row; false at the end.
    pub(super) fn advance(&mut self) -> Result<bool, Error> {
        let is_row = self.lines.advance()?;
        if is_row && fields(self.lines.text()).skip(self.width).any(|field| !field.is_empty()) {
            let expected = "no more fields than the header has names";
            return Err(self.lines.fault("line", self.lines.text(), expected));
        }
        Ok(is_row)
    }

    /// The fields of the present row, in the order of the columns asked for; empty where there is
    /// none.
    pub(super) fn row(&self) -> [&str; MOST_COLUMNS] {
        let mut row = [""; MOST_COLUMNS];
        for (number, field) in fields(self.lines.text()).enumerate() {
            for (position, wanted) in self.positions.iter().zip(&mut row) {
                if *position == Some(number) {
                    *wanted = field;
                }
            }
        }
        row
    }

    /// Reads a length in tokens from column `column` of the row.
    pub(super) fn tokens(&self, row: &[&str], column: usize) -> Result<u32, Error> {
        let text = row.get(column).copied().unwrap_or_default();
        // Some tools write whole numbers as `374.0`.
        let tokens = text.strip_suffix(".0").unwrap_or(text).parse().ok();
        tokens.filter(|n| *n <= MOST_TOKENS).ok_or_else(|| self.fault(row, column, TOKENS))
    }

    /// Reads the lengths of one request from three columns, the last of which may be empty.
    pub(super) fn length(&self, row: &[&str], columns: [usize; 3]) -> Result<Length, Error> {
        let [input, output, cached] = columns;
        let (input_tokens, output_tokens) = (self.tokens(row, input)?, self.tokens(row, output)?);
        let cached_tokens = match row.get(cached).copied().unwrap_or_default() {
            "" => 0,
            _ => self.tokens(row, cached)?,
        };
        if cached_tokens > input_tokens {
            let expected = "no more than the tokens of the prompt, of which they are the first";
            return Err(self.fault(row, cached, expected));
        }
        Ok(Length { input_tokens, output_tokens, cached_tokens })
    }

    /// Reads a finite number that is not negative.
    pub(super) fn number(&self, row: &[&str], column: usize) -> Result<f64, Error> {
        let text = row.get(column).copied().unwrap_or_default();
        text.parse()
            .ok()
            .filter(|number| (0.0..f64::INFINITY).contains(number))
            .ok_or_else(|| self.fault(row, column, "a number, 0 or more"))
    }

    /// An error about a field of the present row.
    pub(super) fn fault(&self, row: &[&str], column: usize, expected: &'static str) -> Error {
        let name = self.columns.get(column).map_or("column", |column| column.name);
        self.lines.fault(name, row.get(column).copied().unwrap_or_default(), expected)
    }

    /// The lines below.
    pub(super) fn lines(&self) -> &Lines {
        &self.lines
    }
}

/// The fields of a line; a comma within quotes is part of its field.
fn fields(line: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let ends = move |c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    };
    line.split(ends).map(|field| field.trim().trim_matches('"'))
}
