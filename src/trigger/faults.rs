//! What is wrong with a trigger's metadata, in one short line that fits a Kubernetes event.
//!
//! Must never show a value that may be a secret, and never more than 200 characters.

use std::fmt;

use super::{FIELDS, FROM_ENV, Field, MAX_BYTES, MAX_KEYS, nearest};

/// The longest text of all faults together. An event with more than 1,024 characters is rejected
/// by the API server; people read less.
const MAX_TEXT: usize = 200;

const MAX_SHOWN: usize = 24;

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The key, as given, in printable ASCII of at most 24 characters.
    pub key: String,
    /// The value in the same form; empty where it is not the fault or may be a secret.
    pub value: String,
    /// What was expected.
    pub expected: String,
}

/// Every fault of one trigger's metadata; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Fault {
    pub(super) fn unknown(key: &str) -> Fault {
        let stem = key.strip_suffix(FROM_ENV).unwrap_or(key);
        let nearest = nearest(stem, FIELDS.iter().map(|field| field.key)).unwrap_or_default();
        Fault {
            key: shown(key),
            value: String::new(),
            expected: format!("a known key, nearest is {nearest}"),
        }
    }

    pub(super) fn twice(key: &str) -> Fault {
        Fault {
            key: shown(key),
            value: String::new(),
            expected: "it once, as itself or as FromEnv".to_owned(),
        }
    }

    pub(super) fn invalid(key: &str, value: Option<&str>, field: &Field) -> Fault {
        Fault {
            key: shown(key),
            value: value.map(shown).unwrap_or_default(),
            expected: field.expected(),
        }
    }

    pub(super) fn oversized() -> Fault {
        Fault {
            key: "metadata".to_owned(),
            value: String::new(),
            expected: format!("at most {MAX_KEYS} keys and {} KiB", MAX_BYTES / 1024),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.value.is_empty() {
            write!(f, "{}: expected {}", self.key, self.expected)
        } else {
            write!(f, "{}=\"{}\": expected {}", self.key, self.value, self.expected)
        }
    }
}

impl Faults {
    pub(super) fn new(faults: Vec<Fault>) -> Faults {
        Faults(faults)
    }

    /// The faults, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.0.iter()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::from("bad metadata: ");
        for (index, fault) in self.0.iter().enumerate() {
            let part = fault.to_string();
            let separator = if index == 0 { "" } else { "; " };
            let n_left = self.0.len() - index;
            let suffix = format!("; {n_left} more");
            // Room for the suffix is kept until the last fault, which needs none.
            let reserved = if n_left == 1 { 0 } else { suffix.len() };
            if index > 0 && text.len() + separator.len() + part.len() + reserved > MAX_TEXT {
                text.push_str(&suffix);
                break;
            }
            text.push_str(separator);
            text.push_str(&part);
        }
        f.write_str(&text)
    }
}

impl std::error::Error for Faults {}

fn shown(text: &str) -> String {
    let printable = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    let mut shown: String = text.chars().take(MAX_SHOWN).map(printable).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.truncate(MAX_SHOWN - 2);
        shown.push_str("..");
    }
    shown
}
