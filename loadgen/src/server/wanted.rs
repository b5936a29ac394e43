//! Requests of the OpenAI API: what of them matters to an engine.
//!
//! Must not answer them. Fields that are not named here are taken and ignored, as they change
//! nothing that is simulated.
//!
//! Prompts are counted by a rule of their own, since there is no tokenizer: a list of token ids
//! has as many tokens as numbers, a text one for each four bytes begun, at least one. A chat is
//! the text of its messages, each after `<|role|>`. Equal beginnings, in whole KV blocks, are
//! found in the prefix cache.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;

use super::backend::Wanted;
use super::error::ApiError;
use crate::engine::{Prefix, Profile};

/// Bytes of text that make a token.
const TOKEN_BYTES: usize = 4;

/// vLLM's `max_tokens` of a completion that names none.
const COMPLETION_TOKENS: u32 = 16;

/// The body of both paths; each needs its own kind of prompt.
#[derive(Debug, Deserialize)]
struct Body {
    prompt: Option<Prompt>,
    messages: Option<Vec<Message>>,
    model: Option<String>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    #[serde(default)]
    min_tokens: u32,
    #[serde(default)]
    ignore_eos: bool,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    n: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
    /// Only beside `include_usage`, as in vLLM.
    #[serde(default)]
    continuous_usage_stats: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    Lists(Vec<Vec<u32>>),
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    content: Option<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(default)]
    text: String,
}

/// A request, read.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) wanted: Wanted,
    pub(super) includes_usage: bool,
    /// In every event of a stream, too.
    pub(super) repeats_usage: bool,
}

/// Reads the body of `/v1/completions`.
pub(super) fn completion(body: &[u8], profile: &Profile, model: &str) -> Result<Read, ApiError> {
    let mut body = Body::parse(body)?;
    let only = |len: usize| match len {
        1 => Ok(()),
        _ => Err(ApiError::bad_request("loadgen serves one prompt a request".to_owned())),
    };
    let prompt = match body.prompt.take().ok_or_else(|| missing("prompt"))? {
        Prompt::Text(text) => Tokens::of_text(&text, profile),
        Prompt::Ids(ids) => Tokens::of_ids(&ids, profile),
        Prompt::Texts(texts) => {
            only(texts.len())?;
            Tokens::of_text(&texts.concat(), profile)
        }
        Prompt::Lists(lists) => {
            only(lists.len())?;
            Tokens::of_ids(&lists.concat(), profile)
        }
    };
    let default = COMPLETION_TOKENS.min(room(prompt.count, profile));
    let max_tokens = body.max_tokens.unwrap_or(default);
    body.into_read(prompt, max_tokens, profile, model)
}

/// Reads the body of `/v1/chat/completions`.
pub(super) fn chat(body: &[u8], profile: &Profile, model: &str) -> Result<Read, ApiError> {
    let mut body = Body::parse(body)?;
    let mut text = String::new();
    for Message { role, content } in body.messages.take().ok_or_else(|| missing("messages"))? {
        text.extend(["<|", role.as_str(), "|>"]);
        match content {
            Some(Content::Text(content)) => text.push_str(&content),
            Some(Content::Parts(parts)) => text.extend(parts.into_iter().map(|part| part.text)),
            None => {}
        }
    }
    let prompt = Tokens::of_text(&text, profile);
    let asked = body.max_completion_tokens.or(body.max_tokens);
    let max_tokens = asked.unwrap_or_else(|| room(prompt.count, profile));
    body.into_read(prompt, max_tokens, profile, model)
}

impl Body {
    fn parse(body: &[u8]) -> Result<Body, ApiError> {
        serde_json::from_slice(body).map_err(|error| ApiError::bad_request(error.to_string()))
    }

    fn into_read(
        self,
        prompt: Tokens,
        max_tokens: u32,
        profile: &Profile,
        model: &str,
    ) -> Result<Read, ApiError> {
        if let Some(other) = self.model.filter(|named| named != model) {
            return Err(ApiError::unknown_model(&other));
        }
        if self.n.is_some_and(|n| n != 1) {
            return Err(ApiError::bad_request("loadgen serves `n` = 1 only".to_owned()));
        }
        let most = profile.limits.max_model_tokens;
        let asked = prompt.count as usize + max_tokens as usize;
        if asked > most || prompt.count as usize >= most {
            return Err(ApiError::bad_request(format!(
                "This model's maximum context length is {most} tokens. However, you requested \
                 {max_tokens} output tokens and your prompt contains {} input tokens, for a total \
                 of {asked} tokens. Please reduce the length of the input prompt or the number of \
                 requested output tokens.",
                prompt.count
            )));
        }
        if max_tokens == 0 {
            let message = "max_tokens must be at least 1, got 0.".to_owned();
            return Err(ApiError::bad_request(message));
        }
        if self.min_tokens > max_tokens {
            return Err(ApiError::bad_request(format!(
                "min_tokens must be less than or equal to max_tokens={max_tokens}, got {}.",
                self.min_tokens
            )));
        }
        let wanted = Wanted {
            prompt_tokens: prompt.count,
            prefix: prompt.prefix,
            max_tokens,
            min_tokens: self.min_tokens,
            ignores_eos: self.ignore_eos,
            streams: self.stream,
        };
        let options = self.stream_options.filter(|options| options.include_usage);
        let repeats_usage = options.as_ref().is_some_and(|options| options.continuous_usage_stats);
        Ok(Read { wanted, includes_usage: options.is_some(), repeats_usage })
    }
}

/// A prompt as an engine sees it.
struct Tokens {
    count: u32,
    prefix: Prefix,
}

impl Tokens {
    fn of_text(text: &str, profile: &Profile) -> Tokens {
        let block = profile.kv.block_tokens * TOKEN_BYTES;
        let tokens = text.len().div_ceil(TOKEN_BYTES).max(1);
        Tokens::new(tokens, text.as_bytes().chunks_exact(block), profile)
    }

    fn of_ids(ids: &[u32], profile: &Profile) -> Tokens {
        Tokens::new(ids.len(), ids.chunks_exact(profile.kv.block_tokens), profile)
    }

    fn new<T: Hash>(count: usize, blocks: impl Iterator<Item = T>, profile: &Profile) -> Tokens {
        // A hash goes on from the last one, so that it stands for everything before it.
        let mut hasher = DefaultHasher::new();
        let hashes = blocks.map(|block| {
            block.hash(&mut hasher);
            hasher.finish()
        });
        let prefix = match u32::try_from(profile.kv.block_tokens) {
            Ok(tokens) if profile.kv.prefix_caching => {
                Prefix::Segments { tokens, hashes: hashes.collect() }
            }
            Ok(_) | Err(_) => Prefix::Unknown,
        };
        Tokens { count: u32::try_from(count).unwrap_or(u32::MAX), prefix }
    }
}

/// Tokens that fit behind a prompt.
fn room(prompt_tokens: u32, profile: &Profile) -> u32 {
    let most = u32::try_from(profile.limits.max_model_tokens).unwrap_or(u32::MAX);
    most.saturating_sub(prompt_tokens)
}

fn missing(field: &str) -> ApiError {
    ApiError::bad_request(format!("missing field `{field}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Read, ApiError> {
        let profile = Profile::load("8b-a100").unwrap();
        match body.contains("messages") {
            true => chat(body.as_bytes(), &profile, "m"),
            false => completion(body.as_bytes(), &profile, "m"),
        }
    }

    #[test]
    fn prompts_are_counted_by_the_documented_rule() {
        for (body, tokens) in [
            (r#"{"prompt":""}"#, 1),
            (r#"{"prompt":"12345"}"#, 2),
            (r#"{"prompt":[5,6,7]}"#, 3),
            (r#"{"prompt":["12345678"]}"#, 2),
            (r#"{"prompt":[[5,6,7,8]]}"#, 4),
            // <|user|>hello: 8 + 5 bytes.
            (r#"{"messages":[{"role":"user","content":"hello"}]}"#, 4),
            (r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}]}"#, 4),
            (r#"{"messages":[{"role":"assistant","content":null}]}"#, 4),
        ] {
            assert_eq!(read(body).unwrap().wanted.prompt_tokens, tokens, "{body}");
        }
    }

    #[test]
    fn limits_have_the_defaults_of_the_real_server() {
        assert_eq!(read(r#"{"prompt":"a"}"#).unwrap().wanted.max_tokens, 16);
        let chat = r#"{"messages":[{"role":"user","content":"hello"}]}"#;
        assert_eq!(read(chat).unwrap().wanted.max_tokens, 131_072 - 4);
        let both = r#"{"messages":[],"max_tokens":5,"max_completion_tokens":7}"#;
        assert_eq!(read(both).unwrap().wanted.max_tokens, 7);
    }

    #[test]
    fn equal_beginnings_have_equal_hashes_and_no_others() {
        let hashes = |text: &str| match read(&format!(r#"{{"prompt":"{text}"}}"#)).unwrap() {
            Read { wanted: Wanted { prefix: Prefix::Segments { hashes, .. }, .. }, .. } => hashes,
            other => panic!("{other:?}"),
        };
        let (same, other) = ("a".repeat(64), "b".repeat(64));
        let (first, second) =
            (hashes(&format!("{same}{other}x")), hashes(&format!("{same}{same}")));
        assert_eq!((first.len(), second.len()), (2, 2), "a block is 16 tokens of 4 bytes");
        assert_eq!(first[0], second[0]);
        assert_ne!(first[1], second[1]);
        assert_ne!(hashes(&format!("{other}{same}"))[1], second[1]);
    }

    #[test]
    fn what_cannot_be_served_is_said() {
        for (body, expect) in [
            (r#"{"prompt":"a","model":"gpt"}"#, "The model `gpt` does not exist."),
            (r#"{"prompt":"a","n":2}"#, "loadgen serves `n` = 1 only"),
            (r#"{"prompt":["a","b"]}"#, "loadgen serves one prompt a request"),
            (r#"{"prompt":"a","max_tokens":0}"#, "max_tokens must be at least 1, got 0."),
            (r#"{"prompt":"a","min_tokens":20}"#, "min_tokens must be less than or equal to"),
            (r#"{"prompt":"a","max_tokens":131072}"#, "This model's maximum context length is"),
            (r#"{"max_tokens":3}"#, "missing field `prompt`"),
            (r#"{"prompt""#, "EOF while parsing"),
        ] {
            let error = read(body).unwrap_err();
            assert!(format!("{error:?}").contains(expect), "{body}: {error:?}");
        }
    }
}
