//! What a client gets for a completion: JSON and events as vLLM writes them.
//!
//! Must not wait for anything but the engine's progress.
//!
//! The text is words of four bytes, one a token, so that it counts as many tokens when it comes
//! back in a prompt.

use std::convert::Infallible;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::Stream;

use super::backend::Ticket;
use super::error::ApiError;
use super::exchange::Counting;
use super::feed::{End, Progress};
use crate::engine::FinishReason;

const WORDS: [&str; 8] = [" one", " two", " six", " ten", " and", " but", " for", " nor"];

const DONE: &str = "data: [DONE]\n\n";

/// Which of the two APIs is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Completion,
    Chat,
}

impl Form {
    /// What the id of an answer begins with.
    pub(super) fn id_prefix(self) -> &'static str {
        match self {
            Form::Completion => "cmpl",
            Form::Chat => "chatcmpl",
        }
    }
}

/// What an answer says besides its text.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) form: Form,
    pub(super) id: String,
    pub(super) created_unix_s: u64,
    /// As JSON, in quotes.
    pub(super) model: String,
    pub(super) fingerprint: String,
    pub(super) prompt_tokens: u32,
    pub(super) includes_usage: bool,
    /// Every event says how many tokens there are so far (`continuous_usage_stats`).
    pub(super) repeats_usage: bool,
}

impl Answer {
    /// Waits for the end, and answers as a whole.
    pub(super) async fn whole(self, ticket: Ticket) -> Result<Response, ApiError> {
        let (tokens, reason) = match ticket.feed.ended().await {
            (tokens, End::Finished(reason)) => (tokens, reason),
            (_, End::Crashed) => return Err(ApiError::crashed()),
        };
        let Answer { id, created_unix_s, model, fingerprint, .. } = &self;
        let reason = reason_name(reason);
        let text: String = (0..tokens).map(word).collect();
        let (object, choice, system) = match self.form {
            Form::Completion => (
                "text_completion",
                format!(
                    "\"text\":\"{text}\",\"logprobs\":null,\"finish_reason\":\"{reason}\",\
                     \"stop_reason\":null,\"token_ids\":null,\"prompt_logprobs\":null,\
                     \"prompt_token_ids\":null"
                ),
                "",
            ),
            Form::Chat => (
                "chat.completion",
                format!(
                    "\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\",\"refusal\":null,\
                     \"annotations\":null,\"audio\":null,\"function_call\":null,\
                     \"tool_calls\":[],\"reasoning\":null}},\"logprobs\":null,\
                     \"finish_reason\":\"{reason}\",\"stop_reason\":null,\"token_ids\":null"
                ),
                "\"prompt_logprobs\":null,\"prompt_token_ids\":null,",
            ),
        };
        let usage = self.usage(tokens);
        let body = format!(
            "{{\"id\":\"{id}\",\"object\":\"{object}\",\"created\":{created_unix_s},\
             \"model\":{model},\"choices\":[{{\"index\":0,{choice}}}],\"service_tier\":null,\
             \"system_fingerprint\":\"{fingerprint}\",\"usage\":{{{usage},\
             \"prompt_tokens_details\":null,\"completion_tokens_details\":null}},{system}\
             \"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}}"
        );
        Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
    }

    /// Answers at once, with an event for each token as it is made.
    pub(super) fn stream(self, ticket: Ticket, counting: Arc<Counting>) -> Response {
        events(Body::from_stream(Events {
            head: self.head(),
            answer: self,
            ticket,
            sent: 0,
            has_ended: false,
            _counting: counting,
        }))
    }

    fn usage(&self, tokens: u32) -> String {
        let prompt = self.prompt_tokens;
        let total = u64::from(prompt) + u64::from(tokens);
        format!(
            "\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{tokens}"
        )
    }

    /// An event up to its list of choices.
    fn opening(&self) -> String {
        let Answer { form, id, created_unix_s, model, .. } = self;
        let object = match form {
            Form::Completion => "text_completion",
            Form::Chat => "chat.completion.chunk",
        };
        format!(
            "data: {{\"id\":\"{id}\",\"object\":\"{object}\",\"created\":{created_unix_s},\
             \"model\":{model},\"choices\":["
        )
    }

    /// An event up to its text.
    fn head(&self) -> String {
        let choice = match self.form {
            Form::Completion => "{\"index\":0,\"text\":\"",
            Form::Chat => "{\"index\":0,\"delta\":{\"content\":\"",
        };
        self.opening() + choice
    }

    /// An event from the end of its text to that of its choices, if more will follow.
    fn tail(&self) -> &'static str {
        match self.form {
            Form::Completion => {
                "\",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null,\
                 \"prompt_token_ids\":null,\"token_ids\":null}]"
            }
            Form::Chat => "\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]",
        }
    }

    /// Ends an event behind its choices, when there are so many tokens.
    fn close(&self, tokens: u32, out: &mut BytesMut) {
        if self.repeats_usage {
            out.put(format!(",\"usage\":{{{}}}", self.usage(tokens)).as_bytes());
        }
        out.put(&b"}\n\n"[..]);
    }

    /// The last event with text, from the end of its text to its own.
    fn last_tail(&self, reason: FinishReason) -> String {
        let (reason, fingerprint) = (reason_name(reason), &self.fingerprint);
        match self.form {
            Form::Completion => format!(
                "\",\"logprobs\":null,\"finish_reason\":\"{reason}\",\"stop_reason\":null,\
                 \"prompt_token_ids\":null,\"token_ids\":null}}],\
                 \"system_fingerprint\":\"{fingerprint}\""
            ),
            Form::Chat => format!(
                "\"}},\"logprobs\":null,\"finish_reason\":\"{reason}\",\"stop_reason\":null,\
                 \"token_ids\":null}}],\"system_fingerprint\":\"{fingerprint}\""
            ),
        }
    }
}

/// The events of an answer.
#[derive(Debug)]
struct Events {
    answer: Answer,
    head: String,
    ticket: Ticket,
    sent: u32,
    has_ended: bool,
    // The exchange lasts as long as the stream.
    _counting: Arc<Counting>,
}

impl Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.has_ended {
            return Poll::Ready(None);
        }
        let progress = ready!(this.ticket.feed.poll_beyond(this.sent, context));
        Poll::Ready(Some(Ok(this.write(progress))))
    }
}

impl Events {
    /// Everything that is due, in one piece.
    fn write(&mut self, Progress { tokens, end }: Progress) -> Bytes {
        let due = (tokens - self.sent) as usize;
        let tail = self.answer.tail();
        let room = (due + 2)
            * (self.head.len() + tail.len() + 64 + 96 * usize::from(self.answer.repeats_usage));
        let mut out = BytesMut::with_capacity(room);
        if self.answer.form == Form::Chat && self.sent == 0 && due > 0 {
            out.put(self.answer.opening().as_bytes());
            out.put(
                &b"{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\
                \"logprobs\":null,\"finish_reason\":null}],\"prompt_token_ids\":null"[..],
            );
            self.answer.close(0, &mut out);
        }
        let is_last = matches!(end, Some(End::Finished(_))) && due > 0;
        let plain = self.sent..tokens - u32::from(is_last);
        self.write_tokens(&mut out, plain, tail);
        self.sent = tokens;
        let Some(end) = end else {
            return out.freeze();
        };
        self.has_ended = true;
        match end {
            End::Finished(reason) => {
                // A request that was given up before its first token has no event of its own.
                if tokens > 0 {
                    out.put(self.head.as_bytes());
                    out.put(if is_last { word(tokens - 1) } else { "" }.as_bytes());
                    out.put(self.answer.last_tail(reason).as_bytes());
                    self.answer.close(tokens, &mut out);
                }
                if self.answer.includes_usage {
                    let (usage, fingerprint) =
                        (self.answer.usage(tokens), &self.answer.fingerprint);
                    out.put(self.answer.opening().as_bytes());
                    let end = format!(
                        "],\"usage\":{{{usage}}},\"system_fingerprint\":\"{fingerprint}\"}}\n\n"
                    );
                    out.put(end.as_bytes());
                }
                out.put(DONE.as_bytes());
            }
            End::Crashed => out.put(ApiError::crashed().event().as_bytes()),
        }
        out.freeze()
    }

    fn write_tokens(&self, out: &mut BytesMut, tokens: Range<u32>, tail: &str) {
        for token in tokens {
            out.extend_from_slice(self.head.as_bytes());
            out.extend_from_slice(word(token).as_bytes());
            out.extend_from_slice(tail.as_bytes());
            self.answer.close(token + 1, out);
        }
    }
}

/// A body of events.
pub(super) fn events(body: impl Into<Body>) -> Response {
    ([(CONTENT_TYPE, "text/event-stream; charset=utf-8")], body.into()).into_response()
}

fn word(token: u32) -> &'static str {
    WORDS[token as usize % WORDS.len()]
}

fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}
