//! What an OpenAI-compatible server answers: one event of a stream, or a whole answer.
//!
//! Pure. Reads only what is needed, and keeps no text.

use std::fmt;

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::failure::{Failure, Fault};

/// Why a model stops that has answered: OpenAI's reasons, and those of TGI's first versions. vLLM and
/// SGLang end what they give up with `abort`, and what they cannot go on with by `error`.
const WHOLE: [&str; 7] = [
    "stop",
    "length",
    "tool_calls",
    "function_call",
    "content_filter",
    "eos_token",
    "stop_sequence",
];

/// What an answer from another model is told by.
pub(super) const ANOTHER_MODEL: &str = "the answer is from";

/// What one event, or a whole answer, says.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    /// Token counts, where they are sent.
    #[serde(default)]
    pub(super) usage: Option<Usage>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    #[serde(default)]
    text: Something,
    #[serde(default)]
    delta: Option<Message>,
    #[serde(default)]
    message: Option<Message>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Message {
    #[serde(default)]
    content: Something,
    #[serde(default)]
    reasoning_content: Something,
    #[serde(default)]
    reasoning: Something,
    #[serde(default)]
    tool_calls: Something,
}

/// The server's own count of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct Usage {
    #[serde(default)]
    pub(super) prompt_tokens: u64,
    #[serde(default)]
    pub(super) completion_tokens: u64,
}

impl Chunk {
    /// Reads an event's data or a whole answer.
    pub(super) fn read(json: &[u8]) -> Result<Chunk, Fault> {
        let chunk: Chunk = serde_json::from_slice(json).map_err(|error| {
            Failure::Malformed.because(format_args!("{error}: {}", String::from_utf8_lossy(json)))
        })?;
        match &chunk.error {
            Some(error) => {
                let message = error.get("message").and_then(serde_json::Value::as_str);
                let message = message.map_or_else(|| error.to_string(), str::to_owned);
                Err(Failure::ServerError.because(message))
            }
            None => Ok(chunk),
        }
    }

    /// Whether it carries something that the model generated. The first event of a chat carries
    /// only the role.
    pub(super) fn has_text(&self) -> bool {
        let says = |message: &Option<Message>| {
            message.as_ref().is_some_and(|message| {
                message.content.0
                    || message.reasoning_content.0
                    || message.reasoning.0
                    || message.tool_calls.0
            })
        };
        self.choices
            .iter()
            .any(|choice| choice.text.0 || says(&choice.delta) || says(&choice.message))
    }

    /// Whether it says why the model stopped.
    pub(super) fn is_last(&self) -> bool {
        self.reasons().next().is_some()
    }

    /// Checks that the model stopped because it had answered, where it has stopped.
    pub(super) fn check_end(&self) -> Result<(), Fault> {
        match self.reasons().find(|reason| !WHOLE.contains(reason)) {
            Some(reason) => {
                Err(Failure::CutShort.because(format_args!("finish_reason \"{reason}\"")))
            }
            None => Ok(()),
        }
    }

    /// Some servers send an empty one until there is one.
    fn reasons(&self) -> impl Iterator<Item = &str> {
        let reasons = self.choices.iter().filter_map(|choice| choice.finish_reason.as_deref());
        reasons.filter(|reason| !reason.is_empty())
    }

    /// Checks that the answer is from the model that was asked for, where it says so.
    pub(super) fn check_model(&self, expected: &str) -> Result<(), Fault> {
        match &self.model {
            Some(model) if model != expected => Err(Failure::WrongModel
                .because(format_args!("{ANOTHER_MODEL} \"{model}\", expected \"{expected}\""))),
            Some(_) | None => Ok(()),
        }
    }

    /// Whether there is anything of a completion in it.
    pub(super) fn is_completion(&self) -> bool {
        !self.choices.is_empty() || self.usage.is_some()
    }
}

/// The form of an event with text: the events of an answer are the same but for their text, and
/// what matters of them is known once it is known of one.
#[derive(Debug, Default)]
pub(super) struct Form {
    /// What is in front of the text, and behind it.
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Form {
    /// Learns from an event that was read and has text. In JSON a quote within a text has a
    /// backslash in front, so what is looked for here is a key wherever it is found.
    pub(super) fn learn(&mut self, event: &[u8]) {
        const KEYS: [&[u8]; 2] = [b"\"content\":\"", b"\"text\":\""];
        let begin = KEYS.iter().find_map(|key| Some(memchr::memmem::find(event, key)? + key.len()));
        let Some((before, rest)) = begin.map(|begin| event.split_at(begin)) else { return };
        // A text with a backslash is left to the next event.
        if let Some(end) = memchr::memchr2(b'"', b'\\', rest).filter(|end| rest[*end] == b'"') {
            self.before = before.to_vec();
            self.after = rest[end..].to_vec();
        }
    }

    /// Whether an event has this form, and a text that is not empty.
    pub(super) fn matches(&self, event: &[u8]) -> bool {
        !self.before.is_empty()
            && event
                .strip_prefix(self.before.as_slice())
                .and_then(|rest| rest.strip_suffix(self.after.as_slice()))
                .is_some_and(|text| !text.is_empty() && is_plain(text))
    }
}

/// Whether it is the inside of a JSON string that nothing needs to be done to.
fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|byte| *byte >= b' ' && *byte != b'"' && *byte != b'\\')
}

/// What a status other than 200 means, with the server's own words; of a redirect, where to.
pub(super) fn refused(status: u16, location: Option<&[u8]>, body: &[u8], model: &str) -> Fault {
    if let Some(location) = location.filter(|_| (300..400).contains(&status)) {
        let location = String::from_utf8_lossy(location);
        return Failure::Status(status).because(format_args!("location: {location}"));
    }
    let text = String::from_utf8_lossy(body);
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message = json.as_ref().and_then(|json| {
        let error = json.get("error").unwrap_or(json);
        error.get("message").or_else(|| json.get("detail")).and_then(serde_json::Value::as_str)
    });
    let message = message.unwrap_or(&text);
    let is_unknown = match status {
        404 => message.contains(model),
        // LiteLLM: "Invalid model name passed in model=…".
        400 => message.contains("Invalid model name") && message.contains(model),
        _ => false,
    };
    let failure = if is_unknown { Failure::WrongModel } else { Failure::Status(status) };
    failure.because(message)
}

/// Whether a value is there and not empty; its content is skipped.
#[derive(Debug, Default)]
struct Something(bool);

impl<'de> Deserialize<'de> for Something {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Something, D::Error> {
        deserializer.deserialize_any(SomethingVisitor)
    }
}

struct SomethingVisitor;

impl<'de> Visitor<'de> for SomethingVisitor {
    type Value = Something;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list, an object or null")
    }

    fn visit_str<E>(self, text: &str) -> Result<Something, E> {
        Ok(Something(!text.is_empty()))
    }

    fn visit_unit<E>(self) -> Result<Something, E> {
        Ok(Something(false))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Something, A::Error> {
        let mut found = false;
        while list.next_element::<IgnoredAny>()?.is_some() {
            found = true;
        }
        Ok(Something(found))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Something, A::Error> {
        let mut found = false;
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            found = true;
        }
        Ok(Something(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(json: &str) -> Chunk {
        Chunk::read(json.as_bytes()).unwrap()
    }

    #[test]
    fn only_generated_text_counts_as_text() {
        for (json, has_text) in [
            (r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#, false),
            (r#"{"choices":[{"index":0,"delta":{"content":" a\"b"}}]}"#, true),
            (r#"{"choices":[{"delta":{"content":null,"reasoning_content":"hm"}}]}"#, true),
            (r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#, true),
            (r#"{"choices":[{"delta":{"tool_calls":[]}}]}"#, false),
            (r#"{"choices":[{"text":"x","finish_reason":null}]}"#, true),
            (r#"{"choices":[{"text":"","finish_reason":"length"}]}"#, false),
            (r#"{"choices":[{"message":{"role":"assistant","content":"x"}}]}"#, true),
            (r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#, false),
        ] {
            assert_eq!(chunk(json).has_text(), has_text, "{json}");
        }
        assert!(chunk(r#"{"choices":[{"text":"","finish_reason":"length"}]}"#).is_last());
        assert!(!chunk(r#"{"choices":[{"text":"","finish_reason":null}]}"#).is_last());
        assert!(!chunk(r#"{"choices":[{"text":"","finish_reason":""}]}"#).is_last());
        assert!(!chunk("{}").is_completion());
        let usage =
            chunk(r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#).usage;
        assert_eq!(usage, Some(Usage { prompt_tokens: 3, completion_tokens: 2 }));
    }

    #[test]
    fn what_is_wrong_in_an_answer_has_its_class() {
        let class = |json: &str| Chunk::read(json.as_bytes()).unwrap_err().failure;
        assert_eq!(class("Internal Server Error"), Failure::Malformed);
        assert_eq!(class(r#"{"choices":3}"#), Failure::Malformed);
        assert_eq!(
            class(r#"{"error":{"message":"out of memory","code":500}}"#),
            Failure::ServerError
        );
        let other = chunk(r#"{"model":"b"}"#).check_model("a").unwrap_err();
        assert_eq!(other.failure, Failure::WrongModel);
        assert_eq!(other.example, "the answer is from \"b\", expected \"a\"");
        assert_eq!(chunk(r#"{"model":"a"}"#).check_model("a"), Ok(()));
        assert_eq!(chunk("{}").check_model("a"), Ok(()));
    }

    #[test]
    fn only_a_known_reason_is_the_end_of_a_whole_answer() {
        let end = |reason: &str| {
            chunk(&format!(r#"{{"choices":[{{"text":"","finish_reason":"{reason}"}}]}}"#))
                .check_end()
        };
        for reason in ["", "stop", "length", "tool_calls"] {
            assert_eq!(end(reason), Ok(()), "{reason}");
        }
        for reason in ["abort", "error", "whatever"] {
            let fault = end(reason).unwrap_err();
            assert_eq!(fault.failure, Failure::CutShort);
            assert_eq!(fault.example, format!("finish_reason \"{reason}\""));
        }
    }

    #[test]
    fn a_form_matches_what_differs_only_in_its_text() {
        let event = |text: &str| {
            format!(
                r#"{{"id":"a","choices":[{{"delta":{{"content":"{text}"}},"finish_reason":null}}]}}"#
            )
        };
        let mut form = Form::default();
        assert!(!form.matches(b""));
        form.learn(event(r##"with \" in it"##).as_bytes());
        assert!(!form.matches(event("x").as_bytes()), "not learnt yet");
        form.learn(event(" one").as_bytes());
        for (text, is_match) in [
            (" two", true),
            ("é", true),
            ("", false),
            (r"\n", false),
            (r#"","finish_reason":"stop"#, false),
            ("a\tb", false),
        ] {
            assert_eq!(form.matches(event(text).as_bytes()), is_match, "{text}");
        }
        for other in [
            r#"{"id":"a","choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}"#,
            r#"{"id":"b","choices":[{"delta":{"content":"x"},"finish_reason":null}]}"#,
            "[DONE]",
        ] {
            assert!(!form.matches(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_refusal_shows_the_servers_words() {
        let body = br#"{"error":{"message":"The model `x/y` does not exist.","code":404}}"#;
        let fault = refused(404, None, body, "x/y");
        assert_eq!(fault.failure, Failure::WrongModel);
        assert_eq!(fault.example, "The model `x/y` does not exist.");
        assert_eq!(
            refused(404, None, br#"{"detail":"Not Found"}"#, "x").failure,
            Failure::Status(404)
        );
        let body = br#"{"error":{"message":"Invalid model name passed in model=x/y"}}"#;
        assert_eq!(refused(400, None, body, "x/y").failure, Failure::WrongModel);
        let body = br#"{"error":{"message":"x/y takes no ignore_eos"}}"#;
        assert_eq!(refused(400, None, body, "x/y").failure, Failure::Status(400));
        let fault = refused(503, None, b"no healthy upstream\nmore", "x");
        assert_eq!(
            (fault.failure, fault.example.as_str()),
            (Failure::Status(503), "no healthy upstream")
        );
        let fault = refused(308, Some(b"https://x/v1/chat/completions"), b"moved", "x");
        assert_eq!(fault.example, "location: https://x/v1/chat/completions");
        assert_eq!(refused(307, None, b"moved", "x").example, "moved");
        assert_eq!(refused(503, Some(b"https://x"), b"full", "x").example, "full");
    }
}
