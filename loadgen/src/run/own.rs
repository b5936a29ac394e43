//! Prompts of one's own, a line each: `"text"`, `{"prompt": "text"}` or `{"messages": […]}` as the
//! API has them.
//!
//! Must not change them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

use crate::files;

/// Most bytes of them: they are held in memory.
const MAX_PROMPTS_BYTES: u64 = 256 << 20;

/// Prompts from a file.
#[derive(Debug, Clone)]
pub struct Own {
    path: PathBuf,
    /// Shared: each run of a series has them.
    prompts: Arc<[Prompt]>,
}

/// As JSON.
#[derive(Debug, Clone)]
enum Prompt {
    Text(String),
    Messages(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Text(String),
    Prompt { prompt: String },
    Messages { messages: Vec<serde_json::Value> },
}

impl Own {
    /// Reads them for chats, or for plain completions, which have no messages.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, has more than 256 MiB, no line, or one that is no prompt.
    pub fn load(path: &Path, is_chat: bool) -> anyhow::Result<Own> {
        let shown = path.display();
        let text = files::read_text(path, MAX_PROMPTS_BYTES)
            .with_context(|| format!("cannot read the prompts in {shown}"))?;
        let mut prompts = Vec::new();
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let Ok(line) = serde_json::from_str::<Line>(line) else {
                bail!(
                    "{shown}, line {number}: expected a prompt as JSON: \"text\", {{\"prompt\": \
                     \"text\"}} or {{\"messages\": […]}}"
                );
            };
            prompts.push(match line {
                Line::Text(text) | Line::Prompt { prompt: text } => {
                    Prompt::Text(serde_json::to_string(&text)?)
                }
                Line::Messages { messages } if is_chat => {
                    Prompt::Messages(serde_json::to_string(&messages)?)
                }
                Line::Messages { .. } => {
                    bail!("{shown}, line {number}: messages go with --endpoint chat")
                }
            });
        }
        ensure!(!prompts.is_empty(), "{shown}: no prompts, expected one a line");
        Ok(Own { path: path.to_owned(), prompts: prompts.into() })
    }

    /// The file, and how many there are.
    pub(super) fn source(&self) -> (&str, usize) {
        (self.path.to_str().unwrap_or("a file"), self.prompts.len())
    }

    /// Writes the one of a request, with the name of its field.
    pub(super) fn write(&self, body: &mut Vec<u8>, is_chat: bool, number: u64) {
        let index = usize::try_from(number % self.prompts.len() as u64).unwrap_or(0);
        let parts = match &self.prompts[index] {
            Prompt::Messages(messages) => [",\"messages\":", messages, ""],
            Prompt::Text(text) if is_chat => {
                [",\"messages\":[{\"role\":\"user\",\"content\":", text, "}]"]
            }
            Prompt::Text(text) => [",\"prompt\":", text, ""],
        };
        parts.iter().for_each(|part| body.extend_from_slice(part.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn load(text: &str, is_chat: bool) -> anyhow::Result<Own> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Own::load(file.path(), is_chat)
    }

    #[test]
    fn prompts_are_sent_as_they_are_one_after_the_other() {
        let system = r#"{"messages": [{"role": "system", "content": "x"}]}"#;
        let own = load(&format!("\"a\\nb\"\n\n{{\"prompt\": \"c\"}}\n{system}\n"), true).unwrap();
        let body = |number| {
            let mut body = b"{\"model\":\"m\"".to_vec();
            own.write(&mut body, true, number);
            body.push(b'}');
            let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
            json["messages"][0]["content"].as_str().unwrap().to_owned()
        };
        assert_eq!([body(0), body(1), body(2), body(3)], ["a\nb", "c", "x", "a\nb"]);
        assert_eq!(own.source().1, 3);
    }

    #[test]
    fn what_is_no_prompt_is_refused_by_its_line() {
        for (text, is_chat, words) in [
            ("", true, "no prompts, expected one a line"),
            ("\"a\"\nhello\n", true, "line 2: expected a prompt as JSON"),
            ("{\"text\": \"a\"}", true, "line 1: expected a prompt"),
            ("{\"messages\": []}", false, "line 1: messages go with --endpoint chat"),
        ] {
            let error = load(text, is_chat).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
