//! Words as a terminal shows them: lines of 80 columns, texts cut to what fits, and names that were
//! misspelled.
//!
//! Must not know what is said.

/// Columns of a terminal.
const COLUMNS: usize = 80;

/// Words in lines of at most 80 columns, each ended: `first` stands before the first of them, `rest`
/// before the others. A word that is longer than a line has one of its own.
#[must_use]
pub fn wrapped(first: &str, rest: &str, words: &str) -> String {
    let mut text = String::new();
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in words.split_whitespace() {
        let n_added = word.chars().count() + usize::from(!is_empty);
        if !is_empty && line.chars().count() + n_added > COLUMNS {
            text.push_str(line.trim_end());
            text.push('\n');
            rest.clone_into(&mut line);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    text.push_str(line.trim_end());
    text.push('\n');
    text
}

/// `did you mean … ? ` with the name that was probably meant; empty where none is near.
pub fn did_you_mean<'a>(given: &str, names: impl Iterator<Item = &'a str>) -> String {
    /// One letter of two wrong is no slip of the finger any more.
    const NEAR: f64 = 0.6;
    let likeness = |name: &str| strsim::normalized_damerau_levenshtein(given, name);
    let nearest = names.max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match nearest.filter(|name| likeness(name) >= NEAR) {
        Some(name) => format!("did you mean `{name}`? "),
        None => String::new(),
    }
}

/// The beginning of a text in at most `columns` characters, the last of them an ellipsis where more
/// were cut.
#[must_use]
pub fn shortened(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

/// A text of others' between the tags of a page, or in the quotes of an attribute.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('\'', "&#39;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_full_and_never_longer_than_80_columns() {
        let first = format!("note: {}", ["word"; 14].join(" "));
        let words = ["word"; 16].join(" ");
        assert_eq!(first.len() + " word".len(), 80);
        assert_eq!(wrapped("note: ", "  ", &words), format!("{first} word\n  word\n"));
        assert_eq!(
            wrapped("note: ", "  ", &format!("x{words}")),
            format!("{}\n  word word\n", first.replacen("word", "xword", 1))
        );
    }

    #[test]
    fn a_word_longer_than_a_line_has_one_of_its_own() {
        let long = "é".repeat(90);
        assert_eq!(wrapped("", "", &format!("a {long} b")), format!("a\n{long}\nb\n"));
        assert_eq!(wrapped("note: ", "  ", " "), "note:\n");
    }

    #[test]
    fn only_a_near_name_was_meant() {
        let meant = |given| did_you_mean(given, ["hang", "static"].into_iter());
        assert_eq!(meant("hnag"), "did you mean `hang`? ");
        assert_eq!(meant("statc"), "did you mean `static`? ");
        for given in ["foo", "", "h", "stop", "hangs-for-ever"] {
            assert_eq!(meant(given), "", "{given}");
        }
    }

    #[test]
    fn what_fits_is_not_cut() {
        assert_eq!(shortened("ééé", 3), "ééé");
        assert_eq!(shortened("éééé", 3), "éé…");
    }

    #[test]
    fn text_of_others_is_no_markup() {
        assert_eq!(escaped("<a & 'b'>"), "&lt;a &amp; &#39;b&#39;&gt;");
    }
}
