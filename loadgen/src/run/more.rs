//! What a user adds to each request: headers, and fields of its body.
//!
//! Must not show a header's value: it may be a key.

use std::fmt;
use std::str::FromStr;

use http::header::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

/// What the program writes itself, and what would contradict it.
const OWN_FIELDS: [&str; 8] = [
    "model",
    "messages",
    "prompt",
    "max_tokens",
    "ignore_eos",
    "min_tokens",
    "stream",
    "stream_options",
];
const OWN_HEADERS: [&str; 4] =
    ["content-length", "content-type", "transfer-encoding", "connection"];

/// Reads a header, `NAME:VALUE`; its value is shown nowhere.
///
/// # Errors
///
/// When it is none, or one that the program sends itself, without its value.
pub(super) fn header(text: &str) -> anyhow::Result<(HeaderName, HeaderValue)> {
    let (name, value) =
        text.split_once(':').ok_or_else(|| anyhow::anyhow!("expected NAME:VALUE"))?;
    let parsed: HeaderName = name
        .trim()
        .parse()
        .map_err(|_characters| anyhow::anyhow!("its name has characters that no name can have"))?;
    anyhow::ensure!(!OWN_HEADERS.contains(&parsed.as_str()), "{parsed} is set by what is sent");
    let mut value = HeaderValue::from_str(value.trim()).map_err(|_characters| {
        anyhow::anyhow!("the value of {parsed} has characters that no header can carry")
    })?;
    value.set_sensitive(true);
    Ok((parsed, value))
}

/// Further fields of each request.
#[derive(Debug, Clone, PartialEq)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Writes them behind the fields of an object that is not ended yet.
    pub(super) fn write(&self, body: &mut Vec<u8>) {
        for (name, value) in &self.0 {
            body.push(b',');
            // Names and values that were read from JSON can be written as JSON.
            drop(serde_json::to_writer(&mut *body, name));
            body.push(b':');
            drop(serde_json::to_writer(&mut *body, value));
        }
    }
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(&self.0).unwrap_or_default())
    }
}

impl FromStr for Fields {
    type Err = FieldsError;

    fn from_str(text: &str) -> Result<Fields, FieldsError> {
        let fields: Map<String, Value> = serde_json::from_str(text)?;
        match OWN_FIELDS.iter().find(|name| fields.contains_key(**name)) {
            Some(name) => Err(FieldsError::Own { name }),
            None => Ok(Fields(fields)),
        }
    }
}

/// The text adds nothing to a request.
#[derive(Debug, thiserror::Error)]
pub enum FieldsError {
    /// It is no JSON object.
    #[error("expected a JSON object such as {{\"temperature\":0.7}}: {0}")]
    Json(#[from] serde_json::Error),
    /// A field that the program writes itself.
    #[error("`{name}` is set by other flags")]
    Own {
        /// The field.
        name: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_and_its_value_shown_nowhere() {
        let (name, value) = header("X-Tenant: a:b ").unwrap();
        assert_eq!((name.as_str(), value.as_bytes()), ("x-tenant", &b"a:b"[..]));
        assert!(!format!("{value:?}").contains("a:b"));
        for (text, words) in [
            ("secret", "expected NAME:VALUE"),
            ("a b: secret", "its name has characters"),
            ("Content-Length: secret", "content-length is set"),
            ("x: sec\u{7f}ret", "the value of x has characters"),
        ] {
            let error = header(text).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn fields_are_added_and_none_is_given_twice() {
        let fields: Fields = r#"{"temperature": 0.7, "stop": ["\"x"]}"#.parse().unwrap();
        let mut body = b"{\"model\":\"m\"".to_vec();
        fields.write(&mut body);
        body.push(b'}');
        let json: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(json, serde_json::json!({"model": "m", "temperature": 0.7, "stop": ["\"x"]}));
        for (text, words) in [
            ("7", "expected a JSON object"),
            ("{", "expected a JSON object"),
            (r#"{"max_tokens": 7}"#, "`max_tokens` is set by other flags"),
        ] {
            let error = text.parse::<Fields>().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
