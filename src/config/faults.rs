//! What is wrong with a file: gathered, so that all of it is told at once.

use std::collections::BTreeSet;

use crate::trigger;

/// One fault of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where it stands, as `workloads[1].max`.
    pub field: String,
    /// What stands there; empty where it is the key itself that is wrong.
    pub value: String,
    /// What was expected.
    pub expected: String,
}

/// The faults so far.
#[derive(Debug, Default)]
pub(super) struct Faults {
    list: Vec<Fault>,
    settled: BTreeSet<String>,
}

impl Faults {
    pub(super) fn add(&mut self, field: String, value: &str, expected: &str) {
        if !self.settled.contains(&field) {
            self.list.push(Fault { field, value: value.to_owned(), expected: expected.to_owned() });
        }
    }

    /// Nothing more is to be said of a field: it has no value, and has been told.
    pub(super) fn settle(&mut self, field: String) {
        self.settled.insert(field);
    }

    /// A name that no entry of `list` has.
    pub(super) fn name<'a>(
        &mut self,
        field: String,
        value: &str,
        list: &str,
        known: impl Iterator<Item = &'a String>,
    ) {
        let expected = match trigger::nearest(value, known.map(String::as_str)) {
            Some(nearest) => format!("the name of an entry of `{list}`, nearest is {nearest}"),
            None => format!("the name of an entry of `{list}`, which has none"),
        };
        self.add(field, value, &expected);
    }

    /// All of them; none where the file is sound.
    pub(super) fn into_list(self) -> Vec<Fault> {
        self.list
    }
}

/// A line for each.
pub(super) fn text(faults: &[Fault]) -> String {
    let lines: Vec<String> = faults
        .iter()
        .map(|Fault { field, value, expected }| match value.as_str() {
            "" => format!("`{field}`: expected {expected}"),
            value => format!("`{field}` is {value:?}: expected {expected}"),
        })
        .collect();
    lines.join("\n")
}
