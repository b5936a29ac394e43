//! The lines of a metrics page: name, labels, value.
//!
//! For pages of engines that one has started or been given; must not be given one of an enemy. The
//! scaler's own parser has the bounds that such a page needs.

/// The samples of a page: name, labels in between braces, and value. Lines that are none are passed
/// over.
pub(crate) fn samples(page: &str) -> impl Iterator<Item = (&str, &str, f64)> {
    page.lines().filter_map(|line| {
        let end = line.find(['{', ' ', '\t'])?;
        let (name, rest) = line.split_at_checked(end)?;
        if name.starts_with('#') {
            return None;
        }
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.split_at_checked(end_of_labels(rest)?)?,
            None => ("", rest),
        };
        let value = value.trim_start_matches('}').split_whitespace().next()?;
        Some((name, labels, value.parse().ok()?))
    })
}

/// Where the closing brace stands: not within the quotes of a value.
fn end_of_labels(text: &str) -> Option<usize> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.bytes().position(|byte| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match byte {
            b'\\' if is_quoted && !was_escaped => is_escaped = true,
            b'"' if !was_escaped => is_quoted = !is_quoted,
            b'}' => return !is_quoted,
            _ => {}
        }
        false
    })
}

/// The names and values of labels as [`samples`] gives them; values as they are written, with their
/// escapes.
pub(crate) fn labels(text: &str) -> impl Iterator<Item = (&str, &str)> + Clone {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (name, value) = rest.split_once('=')?;
        let value = value.trim_start().strip_prefix('"')?;
        let mut is_escaped = false;
        let end = value.bytes().position(|byte| {
            let was_escaped = std::mem::take(&mut is_escaped);
            is_escaped = byte == b'\\' && !was_escaped;
            byte == b'"' && !was_escaped
        })?;
        let (value, behind) = value.split_at_checked(end)?;
        rest = behind.strip_prefix('"')?;
        Some((name.trim_matches([',', ' ']), value))
    })
}

/// The sum of a metric's series, and how many there are; `None` without one.
pub(crate) fn sum_of(page: &str, name: &str) -> Option<(f64, f64)> {
    let values = samples(page).filter(|(known, _, value)| *known == name && value.is_finite());
    let (sum, n) = values.fold((0.0, 0.0), |(sum, n), (_, _, value)| (sum + value, n + 1.0));
    (n > 0.0).then_some((sum, n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_may_hold_whatever_ends_a_label_outside_of_it() {
        let page =
            "# HELP a b\na{b=\"x,c=\\\"1\\\"}\", c = \"\\\\\",} 4.5 1700000000000\nd 7\n\ne{f\n";
        let found: Vec<_> = samples(page).collect();
        assert_eq!(found[0].0, "a");
        assert_eq!(
            labels(found[0].1).collect::<Vec<_>>(),
            [("b", "x,c=\\\"1\\\"}"), ("c", "\\\\")]
        );
        assert_eq!((found[0].2.to_bits(), found[1]), (4.5_f64.to_bits(), ("d", "", 7.0)));
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(sum_of("a 1\na{b=\"2\"} 2\nab 9\n", "a"), Some((3.0, 2.0)));
        assert_eq!(sum_of("ab 9\n", "a"), None);
    }
}
