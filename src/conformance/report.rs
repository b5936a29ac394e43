//! The report of a run: one entry a check, as JSON or as a table that fits 80 columns.
//!
//! Decides nothing.

use std::fmt::Write as _;

use serde::Serialize;

use super::Outcome;
use super::checks::{Finding, Rule, Shortfall};
use crate::text::wrapped;

/// What a run found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    address: String,
    summary: Summary,
    checks: Vec<Entry>,
}

#[derive(Debug, Default, Serialize)]
struct Summary {
    passed: usize,
    failed: usize,
    not_checkable: usize,
}

#[derive(Debug, Serialize)]
struct Entry {
    id: &'static str,
    title: &'static str,
    result: Verdict,
    /// Why the rule exists.
    why: &'static str,
    /// What was seen, or what it would take to see it.
    detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Pass,
    Fail,
    NotCheckable,
}

impl Report {
    pub(super) fn new(address: &str) -> Report {
        Report { address: address.to_owned(), summary: Summary::default(), checks: Vec::new() }
    }

    pub(super) fn add(&mut self, rule: &Rule, finding: Finding) {
        let (result, detail) = match finding {
            Ok(seen) => (Verdict::Pass, seen),
            Err(Shortfall::Fail(seen)) => (Verdict::Fail, seen),
            Err(Shortfall::NotCheckable(why)) => (Verdict::NotCheckable, why),
        };
        match result {
            Verdict::Pass => self.summary.passed += 1,
            Verdict::Fail => self.summary.failed += 1,
            Verdict::NotCheckable => self.summary.not_checkable += 1,
        }
        let Rule { id, title, why, .. } = *rule;
        self.checks.push(Entry { id, title, result, why, detail });
    }

    /// How the run ended; nothing where not one check could be made: that proves nothing.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        let Summary { passed, failed, .. } = self.summary;
        match (passed, failed) {
            (0, 0) => None,
            (_, 0) => Some(Outcome::Passed),
            (_, _) => Some(Outcome::Failed),
        }
    }

    /// The report as a table. `colours` are ANSI escapes, for a terminal.
    pub(super) fn table(&self, colours: bool) -> String {
        let mut table = String::new();
        for entry in &self.checks {
            let (mark, colour) = match entry.result {
                Verdict::Pass => ("pass", "32"),
                Verdict::Fail => ("FAIL", "1;31"),
                Verdict::NotCheckable => ("-   ", "2"),
            };
            let mark =
                if colours { format!("\x1b[{colour}m{mark}\x1b[0m") } else { mark.to_owned() };
            let Entry { id, title, detail, why, .. } = entry;
            line(&mut table, format_args!("{mark}  {id:<3}  {title}"));
            if entry.result == Verdict::Fail {
                labelled(&mut table, "seen: ", detail);
                labelled(&mut table, "why:  ", why);
            }
        }
        let Summary { passed, failed, not_checkable } = self.summary;
        line(&mut table, format_args!(""));
        line(
            &mut table,
            format_args!("{passed} passed, {failed} failed, {not_checkable} not checkable (-)"),
        );
        line(
            &mut table,
            format_args!("--format json says of each what was seen and why it exists"),
        );
        table
    }
}

fn line(table: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(table, "{text}").expect("writing to a string cannot fail");
}

/// Appends `text` below the titles.
fn labelled(table: &mut String, label: &str, text: &str) {
    const INDENT: usize = 11;
    let first = format!("{:INDENT$}{label}", "");
    table.push_str(&wrapped(&first, &" ".repeat(first.len()), text));
}
