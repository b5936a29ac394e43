//! Which pods belong to a scale target: a label selector, from its two forms.
//!
//! Pure; matching is the client library's, only the text form is read here.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Expression, Selector, SelectorExt as _};

/// A pod's labels.
pub(super) type Labels = BTreeMap<String, String>;

/// A selector that selects something, never everything.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PodSelector {
    selector: Selector,
    /// A label that each match has, so that candidates are found without asking every selector.
    anchor: Option<(String, String)>,
}

impl PodSelector {
    /// Reads a Deployment's or StatefulSet's selector; `None` for one that is invalid or empty.
    pub(super) fn from_object(selector: &LabelSelector) -> Option<PodSelector> {
        let selector = Selector::try_from(selector.clone()).ok()?;
        PodSelector::from_expressions(selector.into_iter().collect())
    }

    /// Reads the text of `/scale`'s `status.selector`; `None` for one that is invalid or empty.
    pub(super) fn from_text(text: &str) -> Option<PodSelector> {
        PodSelector::from_expressions(split(text).map(expression).collect::<Option<_>>()?)
    }

    /// Whether a pod with these labels is selected.
    pub(super) fn matches(&self, labels: &Labels) -> bool {
        self.selector.matches(labels)
    }

    /// A label that every match has, where the selector asks for one.
    pub(super) fn anchor(&self) -> Option<(&str, &str)> {
        self.anchor.as_ref().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    fn from_expressions(expressions: Vec<Expression>) -> Option<PodSelector> {
        // An empty selector means all pods of the namespace, which no scale target can mean.
        if expressions.is_empty() {
            return None;
        }
        let anchor = expressions.iter().find_map(|expression| match expression {
            Expression::Equal(key, value) => Some((key.clone(), value.clone())),
            Expression::In(..)
            | Expression::NotIn(..)
            | Expression::NotEqual(..)
            | Expression::Exists(_)
            | Expression::DoesNotExist(_) => None,
        });
        Some(PodSelector { selector: expressions.into_iter().collect(), anchor })
    }
}

/// Splits at the commas that separate requirements, not at those inside parentheses.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
}

/// Reads one requirement as Kubernetes prints it (`labels.Requirement.String`); `None` for the
/// numeric comparisons, which no workload controller can express.
fn expression(text: &str) -> Option<Expression> {
    if let Some(key) = text.strip_prefix('!') {
        return Some(Expression::DoesNotExist(word(key)?));
    }
    if let Some((key, values)) = text.split_once(" notin ") {
        return Some(Expression::NotIn(word(key)?, set(values)?));
    }
    if let Some((key, values)) = text.split_once(" in ") {
        return Some(Expression::In(word(key)?, set(values)?));
    }
    if let Some((key, value)) = text.split_once("!=") {
        return Some(Expression::NotEqual(word(key)?, value_word(value)?));
    }
    if let Some((key, value)) = text.split_once('=') {
        let value = value.strip_prefix('=').unwrap_or(value);
        return Some(Expression::Equal(word(key)?, value_word(value)?));
    }
    Some(Expression::Exists(word(text)?))
}

fn set(text: &str) -> Option<BTreeSet<String>> {
    let inside = text.trim().strip_prefix('(')?.strip_suffix(')')?;
    inside.split(',').map(value_word).collect()
}

fn word(text: &str) -> Option<String> {
    value_word(text).filter(|word| !word.is_empty())
}

/// A label value may be empty; neither keys nor values hold anything but these characters.
fn value_word(text: &str) -> Option<String> {
    let text = text.trim();
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
        .then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn every_form_that_kubernetes_prints_selects_the_right_pods() {
        let pod = labels(&[("app", "llm"), ("tier", "gold"), ("empty", "")]);
        for (text, selected) in [
            ("app=llm", true),
            ("app==llm", true),
            ("app=other", false),
            ("app=llm,tier=gold", true),
            ("app=llm,tier=silver", false),
            ("tier in (gold,silver)", true),
            ("tier in (bronze,silver),app=llm", false),
            ("app=llm,tier notin (bronze)", true),
            ("tier notin (gold)", false),
            ("app!=llm", false),
            ("app!=other,tier", true),
            ("missing", false),
            ("!missing", true),
            ("!app", false),
            ("empty=", true),
            ("leaderworkerset.sigs.k8s.io/name=x", false),
        ] {
            let selector = PodSelector::from_text(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(selector.matches(&pod), selected, "{text}");
        }
    }

    #[test]
    fn what_selects_everything_or_is_no_selector_selects_nothing() {
        for text in
            ["", ",", "app=llm,", "=llm", "!", "x in llm", "x in (", "cores>4", "a b", "a=b=c"]
        {
            assert_eq!(PodSelector::from_text(text), None, "{text}");
        }
        assert_eq!(PodSelector::from_object(&LabelSelector::default()), None);
    }

    #[test]
    fn the_anchor_is_a_label_of_every_match() {
        let anchor = |text| PodSelector::from_text(text).and_then(|s| s.anchor);
        assert_eq!(anchor("tier,app=llm"), Some(("app".to_owned(), "llm".to_owned())));
        assert_eq!(anchor("app in (llm,other)"), None);
        assert_eq!(anchor("app!=llm"), None);
    }
}
