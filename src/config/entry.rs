//! The file as it is written: lists and keys, from which each known key is taken once, with every fault of
//! the way told.
//!
//! Knows no key and no value; must not stop at the first fault.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{NonFiniteFloatPolicy, Spanned, options};

use super::faults::Faults;
use crate::trigger::nearest;
use crate::yaml;

/// One value of the file.
#[derive(Debug)]
pub(super) enum Node {
    Nothing,
    /// As it stands there: `1.10` and `007` may be names.
    Text(String),
    List(Vec<Node>),
    Keys(Vec<(String, Node)>),
}

impl Node {
    /// Reads a text.
    ///
    /// # Errors
    ///
    /// When it is no YAML, or has more than one document.
    pub(super) fn parse(text: &str) -> Result<Node, yaml::Error> {
        let options = options! {
            // Told with all the other faults, and with their place.
            duplicate_keys: DuplicateKeyPolicy::PassThrough,
            non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        };
        if text.trim().is_empty() {
            return Ok(Node::Nothing);
        }
        let parsed: Spanned<Parsed> = serde_saphyr::from_str_with_options(text, options)?;
        Ok(parsed.value.written(text, parsed.defined.span()))
    }

    /// What may be shown of it in a fault.
    fn shown(&self) -> &str {
        match self {
            Node::Nothing => "",
            Node::Text(text) => text,
            Node::List(_) => "a list",
            Node::Keys(_) => "keys and values",
        }
    }

    /// The text; a fault of anything else.
    pub(super) fn into_text(
        self,
        path: &str,
        expected: &str,
        faults: &mut Faults,
    ) -> Option<String> {
        if let Node::Text(text) = self {
            return Some(text);
        }
        faults.add(path.to_owned(), self.shown(), expected);
        None
    }
}

/// What the parser takes a value for.
enum Parsed {
    Nothing,
    Plain(String),
    Text(String),
    List(Vec<Spanned<Parsed>>),
    Keys(Vec<(String, Spanned<Parsed>)>),
}

impl Parsed {
    /// Gives what the parser took for a number its own spelling again.
    fn written(self, text: &str, span: serde_saphyr::Span) -> Node {
        let node = |spanned: Spanned<Parsed>| spanned.value.written(text, spanned.defined.span());
        match self {
            Parsed::Nothing => Node::Nothing,
            Parsed::Text(value) => Node::Text(value),
            Parsed::Plain(value) => Node::Text(spelling(text, span).map_or(value, str::to_owned)),
            Parsed::List(values) => Node::List(values.into_iter().map(node).collect()),
            Parsed::Keys(pairs) => {
                Node::Keys(pairs.into_iter().map(|(key, value)| (key, node(value))).collect())
            }
        }
    }
}

/// The one word that stands at this place, if it is one.
fn spelling(text: &str, span: serde_saphyr::Span) -> Option<&str> {
    let start = usize::try_from(span.byte_offset()?).ok()?;
    let len = usize::try_from(span.byte_len()?).ok()?;
    let word = text.get(start..start.checked_add(len)?)?.trim();
    let is_word = !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c == '&');
    is_word.then_some(word)
}

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Parsed, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Parsed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, a list or keys")
            }

            fn visit_unit<E>(self) -> Result<Parsed, E> {
                Ok(Parsed::Nothing)
            }

            fn visit_none<E>(self) -> Result<Parsed, E> {
                Ok(Parsed::Nothing)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Parsed, E> {
                Ok(Parsed::Plain(value.to_string()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Parsed, E> {
                Ok(Parsed::Plain(value.to_string()))
            }

            fn visit_i128<E>(self, value: i128) -> Result<Parsed, E> {
                Ok(Parsed::Plain(value.to_string()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Parsed, E> {
                Ok(Parsed::Plain(value.to_string()))
            }

            fn visit_u128<E>(self, value: u128) -> Result<Parsed, E> {
                Ok(Parsed::Plain(value.to_string()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Parsed, E> {
                Ok(Parsed::Plain(value.to_string()))
            }

            fn visit_str<E>(self, value: &str) -> Result<Parsed, E> {
                Ok(Parsed::Text(value.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Parsed, A::Error> {
                let mut list = Vec::new();
                while let Some(value) = values.next_element()? {
                    list.push(value);
                }
                Ok(Parsed::List(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Parsed::Keys(pairs))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// The keys of one mapping that have not been taken yet.
#[derive(Debug)]
pub(super) struct Entry {
    path: String,
    pairs: Vec<(String, Node)>,
    known: Vec<&'static str>,
}

impl Entry {
    /// A mapping; a fault of anything else, and of each key that stands there twice.
    pub(super) fn of(node: Node, path: &str, expected: &str, faults: &mut Faults) -> Option<Entry> {
        let Node::Keys(written) = node else {
            faults.add(path.to_owned(), node.shown(), expected);
            return None;
        };
        let mut entry = Entry { path: path.to_owned(), pairs: Vec::new(), known: Vec::new() };
        let mut seen = BTreeSet::new();
        for (key, value) in written {
            if seen.insert(key.clone()) {
                entry.pairs.push((key, value));
            } else {
                faults.add(entry.at(&key), "", "it once");
            }
        }
        Some(entry)
    }

    /// The path of one of its keys.
    pub(super) fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The value of a key; nothing where it has none.
    pub(super) fn take(&mut self, key: &'static str) -> Option<Node> {
        self.known.push(key);
        let at = self.pairs.iter().position(|(known, _)| known == key)?;
        let (_, node) = self.pairs.remove(at);
        (!matches!(node, Node::Nothing)).then_some(node)
    }

    /// The text of a key that may be missing.
    pub(super) fn text(&mut self, key: &'static str, faults: &mut Faults) -> Option<String> {
        self.take(key)?.into_text(&self.at(key), "text", faults)
    }

    /// The text of a key that must be there; empty where it is not.
    pub(super) fn needed(
        &mut self,
        key: &'static str,
        expected: &str,
        faults: &mut Faults,
    ) -> String {
        let path = self.at(key);
        let text = match self.take(key) {
            Some(node) => node.into_text(&path, expected, faults),
            None => {
                faults.add(path.clone(), "", &format!("{expected}, which is missing"));
                None
            }
        };
        text.unwrap_or_else(|| {
            faults.settle(path);
            String::new()
        })
    }

    /// The values of a list with their paths; none where it is missing.
    pub(super) fn list(&mut self, key: &'static str, faults: &mut Faults) -> Vec<(String, Node)> {
        let path = self.at(key);
        match self.take(key) {
            None => Vec::new(),
            Some(Node::List(nodes)) => {
                let at = |(index, node)| (format!("{path}[{index}]"), node);
                nodes.into_iter().enumerate().map(at).collect()
            }
            Some(node) => {
                faults.add(path, node.shown(), "a list");
                Vec::new()
            }
        }
    }

    /// Whether a key stands there with a value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.pairs.iter().any(|(known, node)| known == key && !matches!(node, Node::Nothing))
    }

    /// Takes whatever has not been taken.
    pub(super) fn drain(&mut self) -> Vec<(String, Node)> {
        std::mem::take(&mut self.pairs)
    }

    /// A fault of a key that nobody knows; `known` are those known beside the ones that were taken.
    pub(super) fn unknown(&self, key: &str, known: &[&'static str], faults: &mut Faults) {
        let names = self.known.iter().chain(known).copied();
        let nearest = nearest(key, names).unwrap_or_default();
        faults.add(self.at(key), "", &format!("a known key, nearest is {nearest}"));
    }

    /// A fault of each key that has not been taken.
    pub(super) fn end(self, faults: &mut Faults) {
        for (key, _) in &self.pairs {
            self.unknown(key, &[], faults);
        }
    }
}
