//! PromQL selectors: every one within named namespaces, every value escaped.
//!
//! Must not make a selector without a namespace but for a person who asks for himself
//! ([`Selector::anywhere`]), and never widens one to find more.

use std::fmt;

use super::Error;

/// Most namespaces of one query. With 20 pods in each and 40 series a pod, about 500 bytes each, an
/// answer has 20 MB of the 32 MiB that are read.
pub const NAMESPACES_PER_QUERY: usize = 50;

/// The namespaces that a query may see: one at least, none of them empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespaces {
    // Invariant: sorted, distinct, 1..=NAMESPACES_PER_QUERY, none empty; kept by `batches`.
    names: Vec<Box<str>>,
}

impl Namespaces {
    /// Any number of namespaces, in as few queries as fit; names given twice are asked for once.
    ///
    /// # Errors
    ///
    /// [`Error::NoNamespace`] when a name is empty, which to Prometheus means "no such label".
    pub fn batches<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<Namespaces>, Error> {
        let mut names: Vec<&str> = names.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        if names.first().is_some_and(|name| name.is_empty()) {
            return Err(Error::NoNamespace);
        }
        Ok(names
            .chunks(NAMESPACES_PER_QUERY)
            .map(|chunk| Namespaces { names: chunk.iter().map(|&name| name.into()).collect() })
            .collect())
    }

    /// The same in two parts; `None` of a single one.
    #[must_use]
    pub fn halves(&self) -> Option<[Namespaces; 2]> {
        let middle = self.names.len() / 2;
        let (left, right) = self.names.split_at_checked(middle)?;
        (middle > 0).then(|| [left, right].map(|names| Namespaces { names: names.to_vec() }))
    }

    /// The names, sorted.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// Whether `name` is one of them.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.names.binary_search_by(|have| (**have).cmp(name)).is_ok()
    }
}

/// Where a series says to which namespace it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamespaceLabel {
    /// `namespace`.
    Namespace,
    /// `exported_namespace`: the exporter's own word, where the scrape has overwritten `namespace`.
    Exported,
    /// `namespace` of a series without `exported_namespace`, so that it is the exporter's word too.
    NotExported,
}

/// A label's name: letters, digits and `_`, no digit first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelName(Box<str>);

impl LabelName {
    /// A label's name, if the text is one.
    #[must_use]
    pub fn new(text: &str) -> Option<LabelName> {
        let first = text.bytes().next()?;
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        (plain && !first.is_ascii_digit()).then(|| LabelName(text.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A selector that is still open to more matchers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    // Invariant: `{` and at least the namespace's matcher; no closing brace.
    text: String,
}

impl Selector {
    /// All series of these namespaces.
    #[must_use]
    pub fn within(namespaces: &Namespaces, label: NamespaceLabel) -> Selector {
        let name = match label {
            NamespaceLabel::Namespace | NamespaceLabel::NotExported => "namespace",
            NamespaceLabel::Exported => "exported_namespace",
        };
        let mut selector = Selector { text: format!("{{{name}") };
        selector.push_alternatives(namespaces.iter());
        if label == NamespaceLabel::NotExported {
            selector.text.push_str(r#",exported_namespace="""#);
        }
        selector
    }

    /// All series that there are: for a person's own question, never on behalf of a workload.
    #[must_use]
    pub fn anywhere() -> Selector {
        // Every series has a name.
        Selector { text: r#"{__name__!="""#.to_owned() }
    }

    /// Of those, the ones with this label value.
    #[must_use]
    pub fn with(mut self, label: &LabelName, value: &str) -> Selector {
        self.text.push(',');
        self.text.push_str(label.as_str());
        self.push_alternatives(std::iter::once(value));
        self
    }

    /// Of those, the ones whose label value begins so.
    #[must_use]
    pub fn beginning(mut self, label: &LabelName, prefix: &str) -> Selector {
        self.text.push(',');
        self.text.push_str(label.as_str());
        self.text.push_str("=~\"");
        push_quoted(&mut self.text, &escape_regex(prefix), '"');
        self.text.push_str(".*\"");
        self
    }

    /// Of those, the ones with one of these metric names; none if there are no names.
    #[must_use]
    pub fn named<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Selector {
        self.text.push_str(",__name__");
        self.push_alternatives(names.into_iter());
        self
    }

    /// The newest sample of each series: as an instant query gives it, or at each step of a range.
    #[must_use]
    pub fn newest(self) -> Query {
        Query(format!("{}}}", self.text).into())
    }

    /// The samples of the last `window_ms` milliseconds, with their own timestamps.
    #[must_use]
    pub fn over(self, window_ms: u64) -> Query {
        Query(format!("{}}}[{window_ms}ms]", self.text).into())
    }

    /// How many series there are now with each combination of these labels' values.
    #[must_use]
    pub fn counted_by(self, labels: &[LabelName]) -> Query {
        let labels: Vec<&str> = labels.iter().map(LabelName::as_str).collect();
        Query(format!("count by ({}) ({}}})", labels.join(","), self.text).into())
    }

    /// When the newest sample of each series was taken, in seconds; the metric's name is not in the
    /// answer, so that only series of one name can be asked for.
    #[must_use]
    pub fn taken_at(self) -> Query {
        Query(format!("timestamp({}}})", self.text).into())
    }

    /// `="a"` for one value, `=~"a|b"` for more: Prometheus anchors the whole expression.
    fn push_alternatives<'a>(&mut self, values: impl Iterator<Item = &'a str>) {
        let mut values = values.peekable();
        let first = values.next().unwrap_or_default();
        if values.peek().is_none() {
            self.text.push_str("=\"");
            push_quoted(&mut self.text, first, '"');
        } else {
            self.text.push_str("=~\"");
            push_quoted(&mut self.text, &escape_regex(first), '"');
            for value in values {
                self.text.push('|');
                push_quoted(&mut self.text, &escape_regex(value), '"');
            }
        }
        self.text.push('"');
    }
}

/// A whole query: from a [`Selector`], from a wake source of the process's configuration, or from
/// whoever runs this program.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Query(Box<str>);

impl Query {
    /// A query that the process's configuration has written; its placeholders are escaped already.
    pub(super) fn configured(text: String) -> Query {
        Query(text.into())
    }

    /// A query that whoever runs this program may see the whole answer of. No answer to KEDA comes
    /// from one.
    #[must_use]
    pub fn written(text: &str) -> Query {
        Query(text.into())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Appends `value` as it stands between two of `quote`, which is `"` or `'`.
pub(super) fn push_quoted(text: &mut String, value: &str, quote: char) {
    for c in value.chars() {
        match c {
            '\n' => text.push_str("\\n"),
            c if c == '\\' || c == quote => text.extend(['\\', c]),
            c => text.push(c),
        }
    }
}

/// `value` as a regular expression that matches nothing else (RE2's special characters).
pub(super) fn escape_regex(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(names: &[&str]) -> Selector {
        let mut batches = Namespaces::batches(names.iter().copied()).unwrap();
        assert_eq!(batches.len(), 1);
        Selector::within(&batches.remove(0), NamespaceLabel::Namespace)
    }

    fn label(name: &str) -> LabelName {
        LabelName::new(name).unwrap()
    }

    #[test]
    fn one_namespace_is_an_equality_and_more_are_alternatives() {
        assert_eq!(within(&["a"]).newest().as_str(), r#"{namespace="a"}"#);
        assert_eq!(within(&["b", "a", "b"]).newest().as_str(), r#"{namespace=~"a|b"}"#);
    }

    #[test]
    fn f112_values_cannot_leave_their_matcher() {
        for (value, escaped) in [
            (r#"a",namespace=~".*"#, r#"a\",namespace=~\".*"#),
            (r"a\", r"a\\"),
            ("a\nb", r"a\nb"),
            ("a|b.*", "a|b.*"),
            ("{}[1m] # '`", "{}[1m] # '`"),
        ] {
            let query = within(&["ns"]).with(&label("model_name"), value).over(60_000);
            let expected = format!(r#"{{namespace="ns",model_name="{escaped}"}}[60000ms]"#);
            assert_eq!(query.as_str(), expected);
        }
    }

    #[test]
    fn alternatives_are_literal() {
        let query = within(&["a.b", "a|b", "a\"b"]).named(["x:y", "z_total"]).newest();
        assert_eq!(query.as_str(), r#"{namespace=~"a\"b|a\\.b|a\\|b",__name__=~"x:y|z_total"}"#);
        assert_eq!(escape_regex(r"\.+*?()|[]{}^$a-1"), r"\\\.\+\*\?\(\)\|\[\]\{\}\^\$a-1");
    }

    #[test]
    fn no_names_select_nothing_rather_than_everything() {
        // No series is without a name.
        assert_eq!(within(&["a"]).named([]).newest().as_str(), r#"{namespace="a",__name__=""}"#);
    }

    #[test]
    fn a_person_can_ask_for_counts_and_times_and_beginnings() {
        let pods = within(&["a"]).beginning(&label("pod"), "l.m-");
        assert_eq!(pods.newest().as_str(), r#"{namespace="a",pod=~"l\\.m-.*"}"#);
        assert_eq!(
            Selector::anywhere().named(["up"]).counted_by(&[label("job"), label("pod")]).as_str(),
            r#"count by (job,pod) ({__name__!="",__name__="up"})"#
        );
        assert_eq!(within(&["a"]).taken_at().as_str(), r#"timestamp({namespace="a"})"#);
    }

    #[test]
    fn f115_an_empty_namespace_is_refused_because_it_would_match_every_unlabelled_series() {
        assert!(matches!(Namespaces::batches([""]), Err(Error::NoNamespace)));
        assert!(matches!(Namespaces::batches(["a", "", "b"]), Err(Error::NoNamespace)));
    }

    #[test]
    fn f44_many_namespaces_share_queries() {
        let names: Vec<String> = (0..1_000).map(|n| format!("ns-{n}")).collect();
        let batches = Namespaces::batches(names.iter().map(String::as_str)).unwrap();
        assert_eq!(batches.len(), 20);
        for name in &names {
            assert_eq!(batches.iter().filter(|batch| batch.contains(name)).count(), 1, "{name}");
        }
        assert!(Namespaces::batches([]).unwrap().is_empty());
    }

    #[test]
    fn halves_have_all_names_once_and_one_name_has_none() {
        let three = Namespaces::batches(["a", "b", "c"]).unwrap().remove(0);
        let [left, right] = three.halves().unwrap();
        let names = |part: &Namespaces| part.iter().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!((names(&left), names(&right)), (vec!["a".into()], vec!["b".into(), "c".into()]));
        assert_eq!(left.halves(), None);
    }

    #[test]
    fn label_names_are_checked() {
        for good in ["a", "_a1", "Hostname"] {
            assert_eq!(label(good).as_str(), good);
        }
        for bad in ["", "1a", "a-b", "a=\"\"", "a b", "é"] {
            assert_eq!(LabelName::new(bad), None, "{bad}");
        }
    }

    #[test]
    fn dcgm_series_are_found_by_either_namespace_label_once() {
        let namespaces = Namespaces::batches(["a"]).unwrap().remove(0);
        let text = |label| Selector::within(&namespaces, label).newest().as_str().to_owned();
        assert_eq!(text(NamespaceLabel::Exported), r#"{exported_namespace="a"}"#);
        assert_eq!(text(NamespaceLabel::NotExported), r#"{namespace="a",exported_namespace=""}"#);
    }
}
