//! The selectors of a PromQL query: each metric's name with the labels that have to equal a value.
//!
//! Pure, and no parser of the language: what it does not understand it passes over.

use std::str::Chars;

use super::facts::Labels;

/// One selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Selector {
    /// The metric's name.
    pub(super) metric: String,
    /// Its matchers by equality.
    pub(super) wants: Labels,
}

/// The selectors with matchers in braces, in the order of the query.
pub(super) fn selectors(query: &str) -> Vec<Selector> {
    let mut found = Vec::new();
    let mut word = String::new();
    let mut rest = query.chars();
    while let Some(c) = rest.next() {
        match c {
            '{' if !word.is_empty() => {
                let wants = matchers(&mut rest);
                found.push(Selector { metric: std::mem::take(&mut word), wants });
            }
            '"' | '\'' | '`' => {
                quoted(&mut rest, c);
                word.clear();
            }
            c if c.is_ascii_alphanumeric() || c == '_' || c == ':' => word.push(c),
            _ => word.clear(),
        }
    }
    found
}

/// The matchers by equality, up to the closing brace.
fn matchers(rest: &mut Chars<'_>) -> Labels {
    let mut wants = Labels::new();
    let (mut label, mut operator) = (String::new(), String::new());
    while let Some(c) = rest.next() {
        match c {
            '}' => break,
            ',' => {
                label.clear();
                operator.clear();
            }
            '"' | '\'' | '`' => {
                let value = quoted(rest, c);
                if operator == "=" && !value.is_empty() {
                    wants.insert(std::mem::take(&mut label), value);
                }
            }
            '=' | '!' | '~' => operator.push(c),
            c if c.is_whitespace() => {}
            c => label.push(c),
        }
    }
    wants
}

/// The rest of a string, up to its closing quote.
fn quoted(rest: &mut Chars<'_>, quote: char) -> String {
    let mut text = String::new();
    while let Some(c) = rest.next() {
        match c {
            c if c == quote => break,
            '\\' if quote != '`' => text.extend(rest.next()),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Vec<(String, Vec<(String, String)>)> {
        let found = selectors(query).into_iter();
        found.map(|selector| (selector.metric, selector.wants.into_iter().collect())).collect()
    }

    fn one(metric: &str, wants: &[(&str, &str)]) -> (String, Vec<(String, String)>) {
        let wants = wants.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        (metric.to_owned(), wants)
    }

    #[test]
    fn the_metrics_of_a_query_are_found_with_what_they_must_equal() {
        assert_eq!(
            read(
                r#"sum(queue_size{ns="a", model='m/x',pod=~"p.*",x!="y"}) or 0 * max(up{job="epp"})"#
            ),
            [one("queue_size", &[("model", "m/x"), ("ns", "a")]), one("up", &[("job", "epp")])]
        );
        assert_eq!(read(r#"rate(a:b{}[5m])"#), [one("a:b", &[])]);
    }

    #[test]
    fn strings_and_braces_in_them_are_no_selectors() {
        assert_eq!(read(r#"label_replace(up, "a{b=\"c\"}", "$1", "x", "")"#), []);
        assert_eq!(read(r#"q{a="}\"{"}"#), [one("q", &[("a", "}\"{")])]);
        assert_eq!(read("sum(up)"), []);
        assert_eq!(read("{job=\"x\"}"), []);
        assert_eq!(read("q{a=\"unclosed"), [one("q", &[("a", "unclosed")])]);
    }
}
