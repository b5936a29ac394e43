//! What is asked: bodies of requests whose prompts have a wanted number of tokens.
//!
//! Pure. A prompt is cut out of a text of common short words, one token each in the vocabularies
//! in use, or out of token numbers, which vLLM and SGLang take as they are. How many tokens the
//! server counted is in the report.

use bytes::Bytes;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng as _, SeedableRng as _};

use super::more::Fields;
use super::own::Own;
use crate::engine::Prefix;

/// What a prompt is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alphabet {
    /// Words: any server, about one token each.
    Words,
    /// Token numbers: exact, completions only.
    TokenIds,
}

/// What every request of a class has in common.
#[derive(Debug, Clone)]
pub struct Form {
    /// The model's name.
    pub model: String,
    /// Chat or plain completion.
    pub is_chat: bool,
    /// Whether the answer comes token by token.
    pub is_streaming: bool,
    /// Whether the output's length is forced (`ignore_eos`, `min_tokens`), which vLLM and SGLang
    /// know.
    pub forces_length: bool,
    /// Whether each piece is to say how many tokens there were up to it, which vLLM and SGLang know.
    pub counts_tokens: bool,
    /// Further fields of each request.
    pub more: Option<Fields>,
}

/// Words that are one token each, with a space before them, in the vocabularies of GPT-2, Llama 3
/// and Qwen; each lower case, so that no JSON escape is needed.
const WORDS: &str = "the of and to in is that for it as was with be by on not he his but at are this \
    have from or had an they which one you were all her she there would their we him been has when \
    who will no more if out so up said what its about than into them can only other time new some \
    could these two may first then do any like my now over such our man me even most made after also \
    did many off before must well back through years much where your way down should because long \
    each just state those people too mr good how work life great day world still last own see men";

/// Words of the text that prompts are cut from.
const TEXT_ITEMS: usize = 1 << 16;
/// Items that tell one prompt from every other, in front of it: no prefix cache knows it.
const NONCE_ITEMS: u32 = 5;
/// Numbers of ordinary tokens in every vocabulary in use.
const TOKEN_IDS: std::ops::Range<u32> = 1_000..30_000;

/// Makes bodies.
#[derive(Debug)]
pub struct Prompts {
    alphabet: Alphabet,
    seed: u64,
    text: Vec<u8>,
    /// Where each item begins in the text; one more than there are items.
    starts: Vec<u32>,
    words: Vec<&'static str>,
    own: Option<Own>,
}

impl Prompts {
    /// The text is the same for the same seed.
    #[must_use]
    pub fn new(alphabet: Alphabet, seed: u64) -> Prompts {
        let words: Vec<&str> = WORDS.split_ascii_whitespace().collect();
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut text = Vec::new();
        let mut starts = vec![0];
        for _ in 0..TEXT_ITEMS {
            let drawn = rng.next_u32();
            match alphabet {
                Alphabet::Words => {
                    text.extend_from_slice(words[drawn as usize % words.len()].as_bytes());
                    text.push(b' ');
                }
                Alphabet::TokenIds => {
                    let id = TOKEN_IDS.start + drawn % (TOKEN_IDS.end - TOKEN_IDS.start);
                    text.extend_from_slice(id.to_string().as_bytes());
                    text.push(b',');
                }
            }
            starts.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
        }
        Prompts { alphabet, seed, text, starts, words, own: None }
    }

    /// The same prompts for every seed, whatever length was asked for.
    #[must_use]
    pub fn with_own(mut self, own: Option<Own>) -> Prompts {
        self.own = own;
        self
    }

    /// The file of the prompts, and how many it has, where they are one's own.
    #[must_use]
    pub fn own(&self) -> Option<(&str, usize)> {
        self.own.as_ref().map(Own::source)
    }

    /// What prompts are made of, where they are not one's own.
    #[must_use]
    pub fn alphabet(&self) -> Alphabet {
        self.alphabet
    }

    /// How many tokens of a prompt are known to have been sent; none of one's own.
    pub(super) fn tokens_of(&self, asked: u32) -> u32 {
        if self.own.is_some() { 0 } else { asked }
    }

    /// The same with another text, and other first words of each prompt.
    #[must_use]
    pub fn reseeded(&self, seed: u64) -> Prompts {
        Prompts::new(self.alphabet, seed).with_own(self.own.clone())
    }

    /// The body of request number `number`.
    #[must_use]
    pub fn body(
        &self,
        form: &Form,
        number: u64,
        input_tokens: u32,
        output_tokens: u32,
        prefix: &Prefix,
    ) -> Bytes {
        let mut body = Vec::with_capacity(320 + input_tokens as usize * 6);
        body.extend_from_slice(b"{\"model\":");
        // A name is text: writing it as JSON cannot fail.
        drop(serde_json::to_writer(&mut body, &form.model));
        if let Some(own) = &self.own {
            own.write(&mut body, form.is_chat, number);
        } else {
            self.write_field(&mut body, form, number, input_tokens, prefix);
        }
        let output = output_tokens.to_string();
        body.extend_from_slice(b",\"max_tokens\":");
        body.extend_from_slice(output.as_bytes());
        if form.forces_length {
            body.extend_from_slice(b",\"ignore_eos\":true,\"min_tokens\":");
            body.extend_from_slice(output.as_bytes());
        }
        if form.is_streaming {
            body.extend_from_slice(b",\"stream\":true,\"stream_options\":{\"include_usage\":true");
            if form.counts_tokens {
                body.extend_from_slice(b",\"continuous_usage_stats\":true");
            }
            body.push(b'}');
        }
        if let Some(more) = &form.more {
            more.write(&mut body);
        }
        body.push(b'}');
        Bytes::from(body)
    }

    fn write_field(
        &self,
        body: &mut Vec<u8>,
        form: &Form,
        number: u64,
        input_tokens: u32,
        prefix: &Prefix,
    ) {
        let quote: (&[u8], &[u8]) = match (form.is_chat, self.alphabet) {
            (true, _) => (b",\"messages\":[{\"role\":\"user\",\"content\":\"", b"\"}]"),
            (false, Alphabet::Words) => (b",\"prompt\":\"", b"\""),
            (false, Alphabet::TokenIds) => (b",\"prompt\":[", b"]"),
        };
        body.extend_from_slice(quote.0);
        self.write_prompt(body, number, input_tokens, prefix);
        // The separator behind the last item.
        body.pop();
        body.extend_from_slice(quote.1);
    }

    fn write_prompt(&self, body: &mut Vec<u8>, number: u64, input_tokens: u32, prefix: &Prefix) {
        let mut left = input_tokens.max(1);
        match prefix {
            Prefix::Unknown => {}
            Prefix::Cached(tokens) => {
                // At least one token is a prompt's own.
                let shared = (*tokens).min(left - 1);
                self.write_items(body, 0, shared);
                left -= shared;
            }
            Prefix::Segments { tokens, hashes } => {
                for hash in hashes.iter() {
                    let segment = (*tokens).min(left);
                    self.write_items(body, mixed(*hash), segment);
                    left -= segment;
                }
            }
        }
        let nonce = NONCE_ITEMS.min(left);
        // Mixed, so that also the first item differs between one request and the next.
        let mut digits = mixed(number.wrapping_add(1) ^ mixed(self.seed));
        for _ in 0..nonce {
            self.write_nonce(body, digits);
            digits /= 1 << 12;
        }
        self.write_items(body, mixed(!number), left - nonce);
    }

    fn write_nonce(&self, body: &mut Vec<u8>, digits: u64) {
        match self.alphabet {
            Alphabet::Words => {
                let index = digits % self.words.len() as u64;
                let word = usize::try_from(index).ok().and_then(|index| self.words.get(index));
                body.extend_from_slice(word.copied().unwrap_or("the").as_bytes());
                body.push(b' ');
            }
            Alphabet::TokenIds => {
                let id = u64::from(TOKEN_IDS.start) + digits % (1 << 12);
                body.extend_from_slice(id.to_string().as_bytes());
                body.push(b',');
            }
        }
    }

    /// Writes `n` items from a place in the text on, around its end if need be.
    fn write_items(&self, body: &mut Vec<u8>, place: u64, n: u32) {
        let mut at = usize::try_from(place % TEXT_ITEMS as u64).unwrap_or(0);
        let mut left = n as usize;
        while left > 0 {
            let end = (at + left).min(TEXT_ITEMS);
            body.extend_from_slice(&self.text[self.starts[at] as usize..self.starts[end] as usize]);
            left -= end - at;
            at = 0;
        }
    }
}

/// Spreads numbers that lie close together (the finalizer of SplitMix64: Steele et al., 2014).
fn mixed(number: u64) -> u64 {
    let mut x = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use super::*;

    fn form(is_chat: bool) -> Form {
        let model = "a \"b\"".to_owned();
        let more = Some(r#"{"temperature":0}"#.parse().unwrap());
        Form { model, is_chat, is_streaming: true, forces_length: true, counts_tokens: true, more }
    }

    fn prompt(prompts: &Prompts, number: u64, input: u32, prefix: &Prefix) -> Vec<String> {
        let body = prompts.body(&form(false), number, input, 7, prefix);
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        match json["prompt"].as_str() {
            Some(text) => text.split(' ').map(str::to_owned).collect(),
            None => json["prompt"].as_array().unwrap().iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn bodies_are_json_with_the_wanted_fields() {
        let prompts = Prompts::new(Alphabet::Words, 1);
        let body = prompts.body(&form(true), 3, 20, 7, &Prefix::Unknown);
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(json["model"], "a \"b\"");
        assert_eq!(json["max_tokens"], 7);
        assert_eq!(json["min_tokens"], 7);
        assert_eq!(json["temperature"], 0);
        let options = serde_json::json!({"include_usage": true, "continuous_usage_stats": true});
        assert_eq!(json["stream_options"], options);
        let content = json["messages"][0]["content"].as_str().unwrap();
        assert_eq!(content.split(' ').count(), 20);
        let plain = Form { is_streaming: false, forces_length: false, ..form(false) };
        let body = prompts.body(&plain, 3, 20, 7, &Prefix::Unknown);
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert!(json.get("stream").is_none() && json.get("ignore_eos").is_none());
    }

    #[test]
    fn prompts_have_their_length_and_differ_from_the_first_items_on() {
        for alphabet in [Alphabet::Words, Alphabet::TokenIds] {
            let prompts = Prompts::new(alphabet, 1);
            for length in [1, 4, 5, 6, 1_000, 200_000] {
                assert_eq!(prompt(&prompts, 9, length, &Prefix::Unknown).len(), length as usize);
            }
            let beginnings: HashSet<Vec<String>> = (0..2_000)
                .map(|number| prompt(&prompts, number, 30, &Prefix::Unknown)[..5].to_vec())
                .collect();
            assert_eq!(beginnings.len(), 2_000);
        }
    }

    #[test]
    fn shared_prefixes_are_shared_and_nothing_else() {
        let prompts = Prompts::new(Alphabet::TokenIds, 1);
        let common =
            |a: &[String], b: &[String]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let first = prompt(&prompts, 1, 600, &Prefix::Cached(512));
        let second = prompt(&prompts, 2, 700, &Prefix::Cached(512));
        assert_eq!((first.len(), second.len(), common(&first, &second)), (600, 700, 512));
        let segments = |hashes: &[u64]| Prefix::Segments { tokens: 512, hashes: Arc::from(hashes) };
        let first = prompt(&prompts, 1, 1_300, &segments(&[7, 8, 9]));
        let second = prompt(&prompts, 2, 1_300, &segments(&[7, 8, 10]));
        assert_eq!((first.len(), common(&first, &second)), (1_300, 1_024));
    }
}
