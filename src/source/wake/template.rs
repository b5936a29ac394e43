//! The text of a wake source with its placeholders, which stand for one workload's own names.
//!
//! Pure. A value must never reach a query unescaped, nor outside of a quoted matcher value.

use crate::source::Error;
use crate::source::selector::{escape_regex, push_quoted};

/// The workload that a wake source is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its model's name, where the trigger gives one.
    pub model: Option<&'a str>,
}

/// A text cut at its placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::source) struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Slot(Slot, Escape),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Namespace,
    Name,
    Model,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escape {
    None,
    Quoted(char),
    Regex(char),
}

const SLOTS: [(&str, Slot); 3] =
    [("{namespace}", Slot::Namespace), ("{name}", Slot::Name), ("{model}", Slot::Model)];

impl Template {
    /// Cuts a label value that is compared as it is.
    pub(in crate::source) fn of_value(text: &str) -> Template {
        let mut cutter = Cutter::new(text);
        while let Some(c) = cutter.peek() {
            if !cutter.take_slot(Escape::None) {
                cutter.take(c);
            }
        }
        cutter.finish()
    }

    /// Cuts a PromQL query; what is wrong with it otherwise, as what was expected.
    pub(in crate::source) fn of_query(text: &str) -> Result<Template, &'static str> {
        let mut cutter = Cutter::new(text);
        // What the string that may come next would be to the characters just before it.
        let mut operator = Operator::Other;
        while let Some(c) = cutter.peek() {
            if cutter.at_slot() {
                return Err("placeholders inside quoted matcher values only");
            }
            cutter.take(c);
            match c {
                '"' | '\'' | '`' => {
                    cutter.take_string(c, operator)?;
                    operator = Operator::Other;
                }
                '#' => {
                    while let Some(c) = cutter.peek()
                        && c != '\n'
                    {
                        cutter.take(c);
                    }
                }
                '=' => operator = Operator::Equal,
                '~' if operator == Operator::Equal => operator = Operator::Regex,
                '!' => operator = Operator::Not,
                '~' if operator == Operator::Not => operator = Operator::Regex,
                c if c.is_whitespace() => {}
                _ => operator = Operator::Other,
            }
        }
        Ok(cutter.finish())
    }

    /// The text for one workload.
    ///
    /// # Errors
    ///
    /// [`Error::NoModel`] when it names the model and the workload has none: without it the query
    /// would see other tenants' demand.
    pub(in crate::source) fn render(&self, subject: &Subject<'_>) -> Result<String, Error> {
        let mut text = String::new();
        for part in &self.parts {
            let (slot, escape) = match part {
                Part::Text(literal) => {
                    text.push_str(literal);
                    continue;
                }
                Part::Slot(slot, escape) => (*slot, *escape),
            };
            let value = match slot {
                Slot::Namespace => subject.namespace,
                Slot::Name => subject.name,
                Slot::Model => {
                    subject.model.filter(|model| !model.is_empty()).ok_or(Error::NoModel)?
                }
            };
            match escape {
                Escape::None => text.push_str(value),
                Escape::Quoted(quote) => push_quoted(&mut text, value, quote),
                Escape::Regex(quote) => push_quoted(&mut text, &escape_regex(value), quote),
            }
        }
        Ok(text)
    }
}

/// The matcher operator before a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    Not,
    Regex,
    Other,
}

struct Cutter<'a> {
    rest: &'a str,
    literal: String,
    parts: Vec<Part>,
}

impl<'a> Cutter<'a> {
    fn new(text: &'a str) -> Cutter<'a> {
        Cutter { rest: text, literal: String::new(), parts: Vec::new() }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn at_slot(&self) -> bool {
        SLOTS.iter().any(|(text, _)| self.rest.starts_with(text))
    }

    fn take(&mut self, c: char) {
        self.rest = self.rest.strip_prefix(c).unwrap_or_default();
        self.literal.push(c);
    }

    fn take_slot(&mut self, escape: Escape) -> bool {
        for (text, slot) in SLOTS {
            if let Some(rest) = self.rest.strip_prefix(text) {
                self.rest = rest;
                self.parts.push(Part::Text(std::mem::take(&mut self.literal)));
                self.parts.push(Part::Slot(slot, escape));
                return true;
            }
        }
        false
    }

    /// Takes the rest of a string, its closing quote included.
    fn take_string(&mut self, quote: char, operator: Operator) -> Result<(), &'static str> {
        while let Some(c) = self.peek() {
            if self.at_slot() {
                let escape = match operator {
                    // Between backquotes nothing can be escaped.
                    Operator::Equal if quote != '`' => Escape::Quoted(quote),
                    Operator::Regex if quote != '`' => Escape::Regex(quote),
                    Operator::Equal | Operator::Regex | Operator::Not | Operator::Other => {
                        return Err("placeholders inside \"…\" or '…' after =, !=, =~ or !~ only");
                    }
                };
                self.take_slot(escape);
                continue;
            }
            self.take(c);
            if c == quote {
                return Ok(());
            }
            if c == '\\'
                && quote != '`'
                && let Some(escaped) = self.peek()
            {
                self.take(escaped);
            }
        }
        Err("every quote to be closed")
    }

    fn finish(mut self) -> Template {
        self.parts.push(Part::Text(self.literal));
        Template { parts: self.parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: Subject<'_> = Subject {
        namespace: "team-a",
        name: "llm",
        model: Some("a\"} or vector(1) # '\\.*\n{name}"),
    };

    fn rendered(query: &str) -> String {
        Template::of_query(query).unwrap().render(&HOSTILE).unwrap()
    }

    #[test]
    fn values_are_escaped_for_where_they_stand() {
        assert_eq!(
            rendered(r#"sum(q{ns="{namespace}",w='{name}',m="{model}"})"#),
            r#"sum(q{ns="team-a",w='llm',m="a\"} or vector(1) # '\\.*\n{name}"})"#
        );
        assert_eq!(
            rendered(r#"q{w=~'{namespace}-{name}-.+',m !~ "{model}"}"#),
            r#"q{w=~'team-a-llm-.+',m !~ "a\"\\} or vector\\(1\\) # '\\\\\\.\\*\n\\{name\\}"}"#
        );
        assert_eq!(rendered(r"q{m='{model}'}"), r#"q{m='a"} or vector(1) # \'\\.*\n{name}'}"#);
    }

    #[test]
    fn what_only_looks_like_a_placeholder_stays() {
        for query in [
            r#"sum by (name) (q{name="x"})"#,
            r#"q{a="\"{Namespace}"} # a comment with " and '"#,
            r#"label_replace(q{}, "a", "$1", "b", `(.+)\`)"#,
            "q # {",
        ] {
            assert_eq!(rendered(query), query);
        }
    }

    #[test]
    fn f112_a_placeholder_that_could_not_be_escaped_is_refused() {
        for query in [
            "sum(q) by ({namespace})",
            "q{namespace}",
            "q{ns=`{namespace}`}",
            r#"label_replace(q, "a", "{name}", "b", "(.+)")"#,
            r#"q{ns=""} == on() "{name}""#,
            r#"q{a="\\"{name}"}"#,
        ] {
            assert!(Template::of_query(query).is_err(), "{query}");
        }
    }

    #[test]
    fn a_quote_that_stays_open_is_refused() {
        for query in [r#"q{a="b}"#, r#"q{a="b\"}"#, "q{a='b\"}", "q{a=`b}"] {
            assert_eq!(Template::of_query(query), Err("every quote to be closed"), "{query}");
        }
    }

    #[test]
    fn f115_without_the_model_the_query_is_not_asked_at_all() {
        let template = Template::of_query(r#"q{m="{model}"}"#).unwrap();
        for model in [None, Some("")] {
            let subject = Subject { model, ..HOSTILE };
            assert!(matches!(template.render(&subject), Err(Error::NoModel)));
        }
    }

    #[test]
    fn a_value_to_compare_is_not_escaped() {
        let template = Template::of_value("{namespace}/{model}");
        let model = HOSTILE.model.unwrap();
        assert_eq!(template.render(&HOSTILE).unwrap(), format!("team-a/{model}"));
    }
}
