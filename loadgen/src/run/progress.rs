//! How far a run is, on stderr: one line that moves on a terminal, a line every ten seconds
//! elsewhere.
//!
//! Must not write to stdout: that is the report's.

use std::io::{IsTerminal as _, Write as _};

use tokio::time::Instant;

use super::measure::Progress;

const BAR_COLUMNS: usize = 20;
/// A line that is longer wraps, and then only its last row is cleared for the next one.
const MOST_COLUMNS: usize = 79;
const PLAIN_PERIOD_S: f64 = 10.0;

/// Where progress goes.
#[derive(Debug)]
pub struct Display {
    is_quiet: bool,
    is_terminal: bool,
    next_s: f64,
    made: Instant,
    /// What is in front of each line.
    label: String,
}

impl Display {
    /// Looks whether somebody watches.
    #[must_use]
    pub fn new(is_quiet: bool) -> Display {
        let is_terminal = std::io::stderr().is_terminal();
        let (next_s, made) = (PLAIN_PERIOD_S, Instant::now());
        Display { is_quiet, is_terminal, next_s, made, label: String::new() }
    }

    /// Shows how many requests of a trace were read before the run, and which share of it that is
    /// if its length is known.
    pub fn reading(&mut self, n: u64, share: Option<f64>) {
        let elapsed_s = self.made.elapsed().as_secs_f64();
        self.line(elapsed_s, share, &format!("reading the trace: {n} requests"));
    }

    /// A new stretch of the run begins.
    pub fn begin(&mut self, label: String) {
        self.label = label;
        self.next_s = PLAIN_PERIOD_S;
    }

    /// Shows how far it is, of `span_s` seconds if that is known.
    pub fn show(&mut self, progress: Progress, span_s: Option<f64>) {
        let Progress { elapsed_s, scheduled, completed, errors, in_flight } = progress;
        let share = span_s.map(|span_s| (elapsed_s / span_s.max(1e-9)).min(1.0));
        let counts = format!(
            "{}{}  due {scheduled}  whole {completed}  open {in_flight}  errors {errors}",
            self.label,
            spent(elapsed_s, span_s)
        );
        self.line(elapsed_s, share, &counts);
    }

    fn line(&mut self, elapsed_s: f64, share: Option<f64>, words: &str) {
        if self.is_quiet || (!self.is_terminal && elapsed_s < self.next_s) {
            return;
        }
        self.next_s = elapsed_s + PLAIN_PERIOD_S;
        let line = match self.is_terminal {
            true => format!("\r{}\x1b[K", fitted(share, words)),
            false => format!("{words}\n"),
        };
        // Progress that nobody can read is no reason to end a run.
        drop(std::io::stderr().lock().write_all(line.as_bytes()));
    }

    /// Leaves the line to what comes after.
    pub fn end(&mut self) {
        self.next_s = PLAIN_PERIOD_S;
        if !self.is_quiet && self.is_terminal {
            drop(std::io::stderr().lock().write_all(b"\r\x1b[K"));
        }
    }
}

/// The time so far, of all if that is known; answers may come for longer than requests are due.
fn spent(elapsed_s: f64, span_s: Option<f64>) -> String {
    match span_s {
        None => format!("{elapsed_s:.0} s"),
        Some(span_s) if elapsed_s <= span_s => format!("{elapsed_s:.0}/{span_s:.0} s"),
        Some(span_s) => format!("{span_s:.0} s and {:.0} for answers", elapsed_s - span_s),
    }
}

/// What a terminal has room for: the bar last.
fn fitted(share: Option<f64>, counts: &str) -> String {
    let whole = share.map(|share| format!("{} {counts}", bar(share)));
    let whole = whole.filter(|line| line.chars().count() <= MOST_COLUMNS);
    whole.unwrap_or_else(|| counts.chars().take(MOST_COLUMNS).collect())
}

fn bar(share: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of 0 to 1 of a few columns"
    )]
    let full = (share * BAR_COLUMNS as f64).round() as usize;
    format!("[{}{}]", "#".repeat(full), "-".repeat(BAR_COLUMNS.saturating_sub(full)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_is_never_more_than_all() {
        assert_eq!(spent(2.4, Some(3.0)), "2/3 s");
        assert_eq!(spent(10.0, Some(3.0)), "3 s and 7 for answers");
        assert_eq!(spent(10.0, None), "10 s");
    }

    #[test]
    fn a_line_never_wraps() {
        let counts = "2 s and 1 for answers  due 106  whole 0  open 106  errors 0";
        assert_eq!(fitted(Some(1.0), counts), counts);
        assert_eq!(fitted(Some(0.5), "due 1"), "[##########----------] due 1");
        assert_eq!(fitted(None, &"x".repeat(200)).len(), 79);
    }
}
