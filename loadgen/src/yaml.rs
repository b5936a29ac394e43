//! Faults of YAML in words for whoever wrote the file: the parser's own advise programmers to set its options.
//!
//! Must not know what is in a file.

use std::fmt;

use serde_saphyr::UserMessageFormatter;

/// A text that is no YAML, or not of the shape that it should have; says where.
#[derive(Debug)]
pub struct Error(Box<serde_saphyr::Error>);

impl From<serde_saphyr::Error> for Error {
    fn from(error: serde_saphyr::Error) -> Error {
        Error(Box::new(error))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.render_with_formatter(&UserMessageFormatter))
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn no_fault_advises_to_set_an_option_of_the_parser() {
        for text in [
            "a: 1\na: 2",
            "a: 1\n---\na: 2",
            "a: !!binary /w==",
            "a: *nothing",
            "a: [",
            "a: ~",
            "a: [1]",
        ] {
            let error = serde_saphyr::from_str::<BTreeMap<String, String>>(text).unwrap_err();
            let told = Error::from(error).to_string();
            for word in ["Options", "option", "from_str", "from_multiple", "Policy"] {
                assert!(!told.contains(word), "{text:?}: {told}");
            }
        }
    }
}
