//! What a program tells its caller: results on standard output, whose reader may leave before the
//! end, and the error that ended it.
//!
//! Must not decide what is an error, or print one.

use std::error::Error as StdError;
use std::fmt;
use std::io::{self, Write};

/// An output that remembers whether its reader has left.
#[derive(Debug)]
pub struct Output<W> {
    inner: W,
    is_closed: bool,
}

impl<W> Output<W> {
    /// Writes to `inner`.
    pub fn new(inner: W) -> Output<W> {
        Output { inner, is_closed: false }
    }

    /// Whether a write has failed because nobody reads any more, as after `| head`: a normal end.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn noted<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        let is_closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        self.is_closed |= result.as_ref().is_err_and(is_closed);
        result
    }
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes);
        self.noted(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.inner.flush();
        self.noted(flushed)
    }
}

/// Shows an error with all its sources, `outer: inner: innermost`.
///
/// Each part is said once: no `Display` of these crates repeats its source, but those of other
/// crates do, and some begin with the word that stands before every error already.
#[derive(Debug, Clone, Copy)]
pub struct ErrorChain<'a>(pub &'a (dyn StdError + 'static));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        let mut source = self.0.source();
        while let Some(error) = source {
            let text = error.to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            if !said.contains(text) {
                said.push_str(": ");
                said.push_str(text);
            }
            source = error.source();
        }
        f.write_str(&said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Said {
        text: &'static str,
        source: Option<Box<dyn StdError + 'static>>,
    }

    fn said(texts: &[&'static str]) -> Said {
        let (text, rest) = texts.split_first().unwrap();
        let source = (!rest.is_empty()).then(|| Box::new(said(rest)) as Box<dyn StdError>);
        Said { text, source }
    }

    #[test]
    fn a_chain_says_every_source_once() {
        for (texts, shown) in [
            (
                &["outer failed", "inner failed", "disk full"][..],
                "outer failed: inner failed: disk full",
            ),
            (&["no cluster", "none (no file)", "no file"], "no cluster: none (no file)"),
            (&["no YAML", "error: line 1: `[` is open"], "no YAML: line 1: `[` is open"),
        ] {
            assert_eq!(ErrorChain(&said(texts)).to_string(), shown);
        }
    }

    #[test]
    fn an_output_knows_its_reader_gone_and_no_other_fault_for_that() {
        let (reader, writer) = io::pipe().unwrap();
        let mut out = Output::new(writer);
        out.write_all(b"read").unwrap();
        assert!(!out.is_closed());
        drop(reader);
        out.write_all(b"unread").unwrap_err();
        assert!(out.is_closed());

        let mut full: Output<&mut [u8]> = Output::new(&mut []);
        full.write_all(b"x").unwrap_err();
        assert!(!full.is_closed());
    }
}
