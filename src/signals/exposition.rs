//! Metric pages as a stream of samples: Prometheus text 0.0.4 and 1.0.0, and OpenMetrics.
//!
//! Knows no metric's meaning, and must not allocate or validate for a line whose name nobody wants.

use std::borrow::Cow;

use memchr::{memchr, memchr2, memchr3};

use crate::decision::Why;

/// Longest line, in bytes. The longest real one (vLLM 0.32's `cache_config_info`) has 1,061; lists
/// of LoRA adapters in a label can be some ten times that.
pub const MAX_LINE_BYTES: usize = 64 * 1024;
/// Labels of one series. vLLM's `cache_config_info` has 37; a DCGM row with pod labels about 60.
pub const MAX_LABELS: usize = 128;
/// Wanted series of one page. A node of 8 GPUs with 7 MIG slices, 4 sharers and 12 wanted fields
/// has 2,688; vLLM with 64 data-parallel ranks about 2,600.
pub const MAX_SERIES: usize = 16 * 1024;
/// Bytes of one page. vLLM has 27 kB a data-parallel rank: 64 ranks are 1.7 MB.
pub const MAX_PAGE_BYTES: usize = 16 * 1024 * 1024;

/// The two dialects, which differ in the unit of timestamps and in how a page ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4 or 1.0.0: timestamps in milliseconds, the last line ends in a newline.
    #[default]
    Text,
    /// OpenMetrics: timestamps in seconds, the last line is `# EOF`.
    OpenMetrics,
}

/// Takes what a page says.
pub trait Sink {
    /// What the sink makes of a wanted name; handed back with the name's line, so that a name is
    /// looked up once.
    type Wanted;

    /// What samples of this name are wanted for; `None` where they are not. Asked once a line, with
    /// bytes not validated yet.
    fn wants(&self, name: &[u8]) -> Option<Self::Wanted>;

    /// Takes a sample of a wanted name.
    fn sample(&mut self, wanted: Self::Wanted, sample: Sample<'_>);

    /// Takes the name of a `# TYPE` line, if it is wanted: the page knows the metric, with or
    /// without samples.
    fn declared(&mut self, wanted: Self::Wanted, name: &str);
}

/// One sample.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a> {
    /// The metric's name as written.
    pub name: &'a str,
    /// Its labels.
    pub labels: Labels<'a>,
    /// Its value; NaN also where the page has text instead of a number, as DCGM's blanks.
    pub value: f64,
    /// Its own timestamp in milliseconds since the epoch, where the page gives one.
    pub at_ms: Option<i64>,
}

/// The labels of a sample, read from the line at each pass.
#[derive(Debug, Clone, Copy)]
pub struct Labels<'a> {
    // Invariant: checked whole by `check_labels` before a sample is handed out.
    rest: &'a str,
}

impl<'a> Iterator for Labels<'a> {
    type Item = (&'a str, Cow<'a, str>);

    fn next(&mut self) -> Option<Self::Item> {
        let label = take_label(&mut self.rest).ok().flatten()?;
        Some((label.name, label.value()))
    }
}

/// Reads one page, fed in pieces of any size. Keeps nothing but the line that is not whole yet.
#[derive(Debug, Default)]
pub struct Parser {
    format: Format,
    partial: Vec<u8>,
    n_bytes: usize,
    n_lines: u32,
    n_series: usize,
    ended: bool,
    failed: Option<Error>,
}

impl Parser {
    /// A parser for one page.
    #[must_use]
    pub fn new(format: Format) -> Parser {
        Parser { format, ..Parser::default() }
    }

    /// Reads the next piece of the page.
    ///
    /// # Errors
    ///
    /// When the page is no metrics page or breaks a bound; every later call repeats the error.
    pub fn push<S: Sink>(&mut self, chunk: &[u8], sink: &mut S) -> Result<(), Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let result = self.read(chunk, sink);
        self.failed = result.err();
        result
    }

    /// Ends the page.
    ///
    /// # Errors
    ///
    /// An earlier error again, or [`Error::Truncated`] when the page is cut off.
    pub fn finish(self) -> Result<(), Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let tail = self.partial.trim_ascii();
        if let Some(&first) = tail.first()
            && !starts_a_line(first)
        {
            return Err(Error::NotMetrics { line: self.n_lines + 1 });
        }
        let ended = self.ended || is_eof(tail);
        let whole = match self.format {
            Format::Text => tail.is_empty() || ended,
            Format::OpenMetrics => ended,
        };
        if whole { Ok(()) } else { Err(Error::Truncated) }
    }

    fn read<S: Sink>(&mut self, chunk: &[u8], sink: &mut S) -> Result<(), Error> {
        self.n_bytes = self.n_bytes.saturating_add(chunk.len());
        if self.n_bytes > MAX_PAGE_BYTES {
            return Err(Error::PageTooLong);
        }
        let mut rest = chunk;
        while let Some(end) = memchr(b'\n', rest) {
            let (head, tail) = rest.split_at(end);
            rest = tail.get(1..).unwrap_or_default();
            if self.partial.is_empty() {
                self.line(head, sink)?;
            } else {
                // The buffer is taken for the call and put back, to keep its capacity.
                let mut line = std::mem::take(&mut self.partial);
                line.extend_from_slice(head);
                self.line(&line, sink)?;
                line.clear();
                self.partial = line;
            }
        }
        if self.partial.len() + rest.len() > MAX_LINE_BYTES {
            return Err(Error::LineTooLong { line: self.n_lines + 1 });
        }
        self.partial.extend_from_slice(rest);
        Ok(())
    }

    fn line<S: Sink>(&mut self, line: &[u8], sink: &mut S) -> Result<(), Error> {
        self.n_lines = self.n_lines.saturating_add(1);
        if line.len() > MAX_LINE_BYTES {
            return Err(Error::LineTooLong { line: self.n_lines });
        }
        let line = line.trim_ascii();
        let Some(&first) = line.first() else {
            return Ok(());
        };
        if self.ended && self.format == Format::OpenMetrics {
            return Err(Error::AfterEnd { line: self.n_lines });
        }
        if !starts_a_line(first) {
            return Err(Error::NotMetrics { line: self.n_lines });
        }
        if first == b'#' { self.comment(line, sink) } else { self.series(line, sink) }
    }

    fn comment<S: Sink>(&mut self, line: &[u8], sink: &mut S) -> Result<(), Error> {
        if let Some(rest) = line.strip_prefix(b"# TYPE ") {
            let (name, _) = split_at_blank(rest.trim_ascii_start());
            if let Some(wanted) = sink.wants(name) {
                sink.declared(wanted, self.utf8(name)?);
            }
        } else if is_eof(line) {
            self.ended = true;
        }
        Ok(())
    }

    fn series<S: Sink>(&mut self, line: &[u8], sink: &mut S) -> Result<(), Error> {
        let (name, rest) = match line.strip_prefix(b"{") {
            None => line.split_at(memchr3(b'{', b' ', b'\t', line).unwrap_or(line.len())),
            Some(inner) => match quoted_name(inner) {
                Some(parts) => parts,
                None => return Ok(()),
            },
        };
        let Some(wanted) = sink.wants(name) else {
            return Ok(());
        };
        self.n_series += 1;
        if self.n_series > MAX_SERIES {
            return Err(Error::TooManySeries);
        }
        let name = self.utf8(name)?;
        let rest = self.utf8(rest)?.trim_ascii_start();
        let (labels, tail) = match rest.strip_prefix('{') {
            Some(labels) => (labels, self.check_labels(labels)?),
            // After a quoted name the braces are open already.
            None if line.first() == Some(&b'{') => (rest, self.check_labels(rest)?),
            None => ("}", rest),
        };
        let (value, at_ms) = self.value(tail)?;
        sink.sample(wanted, Sample { name, labels: Labels { rest: labels }, value, at_ms });
        Ok(())
    }

    /// Checks labels up to their closing brace and returns what follows it.
    fn check_labels<'a>(&self, labels: &'a str) -> Result<&'a str, Error> {
        let mut rest = labels;
        let mut n_labels = 0;
        loop {
            match take_label(&mut rest) {
                Ok(Some(_)) => n_labels += 1,
                Ok(None) => return Ok(rest),
                Err(expected) => return Err(self.syntax(expected)),
            }
            if n_labels > MAX_LABELS {
                return Err(Error::TooManyLabels { line: self.n_lines });
            }
        }
    }

    /// Value and timestamp; an exemplar behind them is passed over.
    fn value(&self, tail: &str) -> Result<(f64, Option<i64>), Error> {
        let mut words = tail.split_ascii_whitespace();
        let value = words.next().ok_or_else(|| self.syntax("a value"))?;
        let Ok(value) = value.parse::<f64>() else {
            return Ok((f64::NAN, None));
        };
        let at_ms = match words.next() {
            None | Some("#") => return Ok((value, None)),
            Some(word) => match self.format {
                Format::Text => word.parse().ok(),
                Format::OpenMetrics => word.parse().ok().and_then(millis_of_seconds),
            },
        };
        match (at_ms, words.next()) {
            (Some(at_ms), None | Some("#")) => Ok((value, Some(at_ms))),
            _ => Err(self.syntax("a timestamp or the end of the line after the value")),
        }
    }

    fn utf8<'a>(&self, bytes: &'a [u8]) -> Result<&'a str, Error> {
        std::str::from_utf8(bytes).or(Err(Error::NotUtf8 { line: self.n_lines }))
    }

    fn syntax(&self, expected: &'static str) -> Error {
        Error::Syntax { line: self.n_lines, expected }
    }
}

/// Why a page cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A line that no metrics page has: HTML, compressed or binary data.
    #[error("line {line} is no line of a metrics page: expected a name, a brace or `#`")]
    NotMetrics {
        /// The line's number, from 1.
        line: u32,
    },
    /// A wanted line that breaks the format.
    #[error("line {line}: expected {expected}")]
    Syntax {
        /// The line's number, from 1.
        line: u32,
        /// What should have been there.
        expected: &'static str,
    },
    /// A wanted line that is not UTF-8.
    #[error("line {line} is not UTF-8")]
    NotUtf8 {
        /// The line's number, from 1.
        line: u32,
    },
    /// Text after OpenMetrics' `# EOF`.
    #[error("line {line} follows `# EOF`")]
    AfterEnd {
        /// The line's number, from 1.
        line: u32,
    },
    /// The page is cut off: no newline, or no `# EOF` in OpenMetrics, at its end.
    #[error("the page is cut off: expected a newline (OpenMetrics: `# EOF`) at its end")]
    Truncated,
    /// A line over [`MAX_LINE_BYTES`].
    #[error("line {line} has more than {MAX_LINE_BYTES} bytes")]
    LineTooLong {
        /// The line's number, from 1.
        line: u32,
    },
    /// A series over [`MAX_LABELS`].
    #[error("line {line} has more than {MAX_LABELS} labels")]
    TooManyLabels {
        /// The line's number, from 1.
        line: u32,
    },
    /// A page over [`MAX_SERIES`].
    #[error("the page has more than {MAX_SERIES} series that matter")]
    TooManySeries,
    /// A page over [`MAX_PAGE_BYTES`].
    #[error("the page has more than {MAX_PAGE_BYTES} bytes")]
    PageTooLong,
}

impl Error {
    /// The reason that a reading carries.
    #[must_use]
    pub fn why(&self) -> Why {
        match self {
            Error::NotMetrics { .. }
            | Error::Syntax { .. }
            | Error::NotUtf8 { .. }
            | Error::AfterEnd { .. }
            | Error::Truncated => Why::BadBody,
            Error::LineTooLong { .. }
            | Error::TooManyLabels { .. }
            | Error::TooManySeries
            | Error::PageTooLong => Why::TooLarge,
        }
    }
}

/// Seconds since the epoch as milliseconds, where they name a moment of the years 1970 to 5138.
pub(super) fn millis_of_seconds(seconds: f64) -> Option<i64> {
    const MAX_SECONDS: f64 = 1e11;
    if !(0.0..=MAX_SECONDS).contains(&seconds) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "at most 1e14, checked just above")]
    Some((seconds * 1_000.0).round() as i64)
}

struct Label<'a> {
    name: &'a str,
    raw: &'a str,
}

impl<'a> Label<'a> {
    fn value(&self) -> Cow<'a, str> {
        if memchr(b'\\', self.raw.as_bytes()).is_none() {
            return Cow::Borrowed(self.raw);
        }
        let mut value = String::with_capacity(self.raw.len());
        let mut chars = self.raw.chars();
        while let Some(c) = chars.next() {
            if c != '\\' {
                value.push(c);
                continue;
            }
            match chars.next() {
                Some('n') => value.push('\n'),
                Some(c @ ('\\' | '"')) => value.push(c),
                // Not an escape of the format: both characters stand for themselves.
                Some(c) => value.extend(['\\', c]),
                None => value.push('\\'),
            }
        }
        Cow::Owned(value)
    }
}

/// Takes one `name="value"` and its comma off the front, or the closing brace (then `None`).
/// The error says what was expected instead.
fn take_label<'a>(rest: &mut &'a str) -> Result<Option<Label<'a>>, &'static str> {
    let text = rest.trim_ascii_start();
    if let Some(tail) = text.strip_prefix('}') {
        *rest = tail;
        return Ok(None);
    }
    let (name, tail) = match text.strip_prefix('"') {
        Some(quoted) => split_at_quote(quoted).ok_or("a closing quote after the label name")?,
        None => {
            // By bytes, since this is most of the work on a wanted line: what is not ASCII ends the
            // name, and ends it between two characters.
            let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            text.split_at(text.bytes().position(|byte| !legal(byte)).unwrap_or(text.len()))
        }
    };
    if name.is_empty() {
        return Err("a label name or `}`");
    }
    let tail = tail.trim_ascii_start().strip_prefix('=').ok_or("`=` after the label name")?;
    let quoted =
        tail.trim_ascii_start().strip_prefix('"').ok_or("a quote before the label value")?;
    let (raw, tail) = split_at_quote(quoted).ok_or("a closing quote after the label value")?;
    let tail = tail.trim_ascii_start();
    *rest = match tail.strip_prefix(',') {
        Some(tail) => tail,
        None if tail.starts_with('}') => tail,
        None => return Err("`,` or `}` after the label value"),
    };
    Ok(Some(Label { name, raw }))
}

/// Splits at the first quote that no backslash guards, and drops the quote.
fn split_at_quote(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let mut from = 0;
    loop {
        let at = from + memchr2(b'"', b'\\', bytes.get(from..)?)?;
        if bytes.get(at) == Some(&b'"') {
            let (head, tail) = text.split_at(at);
            return Some((head, tail.get(1..)?));
        }
        from = at + 2;
    }
}

/// The name in `"name", labels…`, the form that Prometheus 3 gives to names outside the old
/// alphabet, and the labels behind it. `None` where there is no such name, or one with escapes,
/// which no known metric has.
fn quoted_name(inner: &[u8]) -> Option<(&[u8], &[u8])> {
    let inner = inner.trim_ascii_start().strip_prefix(b"\"")?;
    let (name, rest) = inner.split_at(memchr2(b'"', b'\\', inner)?);
    let rest = rest.strip_prefix(b"\"")?.trim_ascii_start();
    Some((name, rest.strip_prefix(b",").unwrap_or(rest)))
}

fn split_at_blank(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(memchr2(b' ', b'\t', text).unwrap_or(text.len()))
}

fn starts_a_line(first: u8) -> bool {
    first.is_ascii_alphabetic() || matches!(first, b'#' | b'_' | b':' | b'{')
}

fn is_eof(line: &[u8]) -> bool {
    line == b"# EOF"
}

#[cfg(test)]
mod tests;
