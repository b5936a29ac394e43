//! What goes into the engine and what comes out of it: requests and events.
//!
//! Must not hold engine state.

use std::sync::Arc;

use crate::engine::{Profile, Time};

/// One completion to serve.
#[derive(Debug, Clone)]
pub struct Request {
    /// Names the request in events; the caller keeps it unique among those in flight.
    pub id: u64,
    /// Length of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens that the model will have generated when it ends, at least 1.
    pub output_tokens: u32,
    /// The client's limit, at least `output_tokens`. A request that reaches it finishes with
    /// [`FinishReason::Length`], an earlier end is [`FinishReason::Stop`].
    pub max_tokens: u32,
    /// What of the prompt the engine may find in its prefix cache.
    pub prefix: Prefix,
    /// Until then the request waits for something that is not capacity (a grammar, a KV transfer,
    /// an adapter slot) and is counted as deferred. `None`: never.
    pub deferred_until: Option<Time>,
}

impl Request {
    /// A request that generates up to its client's limit and shares no prefix.
    #[must_use]
    pub fn new(id: u64, prompt_tokens: u32, output_tokens: u32) -> Request {
        Request {
            id,
            prompt_tokens,
            output_tokens,
            max_tokens: output_tokens,
            prefix: Prefix::Unknown,
            deferred_until: None,
        }
    }

    /// Checks that an engine of this profile could ever serve it.
    pub(crate) fn check(&self, profile: &Profile) -> Result<(), Rejected> {
        for (field, tokens) in
            [("prompt_tokens", self.prompt_tokens), ("output_tokens", self.output_tokens)]
        {
            if tokens == 0 {
                return Err(Rejected::Empty { field });
            }
        }
        let tokens = self.prompt_tokens as usize + self.output_tokens as usize;
        let most = profile.limits.max_model_tokens;
        if tokens > most {
            return Err(Rejected::TooLong { tokens, most });
        }
        let Request { max_tokens, output_tokens, .. } = *self;
        if max_tokens < output_tokens {
            return Err(Rejected::OverLimit { max_tokens, output_tokens });
        }
        let block_tokens = profile.kv.block_tokens;
        match self.prefix {
            Prefix::Segments { tokens, .. }
                if tokens == 0 || !(tokens as usize).is_multiple_of(block_tokens) =>
            {
                Err(Rejected::Segments { tokens, block_tokens })
            }
            Prefix::Unknown | Prefix::Cached(_) | Prefix::Segments { .. } => Ok(()),
        }
    }
}

/// Why a request cannot be served by this engine at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// A prompt or an output of no tokens.
    #[error("`{field}` is 0: expected at least 1 token")]
    Empty {
        /// Which of the two.
        field: &'static str,
    },
    /// Prompt and output are longer than the model's context.
    #[error("prompt and output are {tokens} tokens: expected at most {most}")]
    TooLong {
        /// Tokens of both.
        tokens: usize,
        /// The profile's `max_model_tokens`.
        most: usize,
    },
    /// The client's limit is below what is to be generated.
    #[error("`max_tokens` is {max_tokens}: expected at least the {output_tokens} output tokens")]
    OverLimit {
        /// The limit.
        max_tokens: u32,
        /// The output.
        output_tokens: u32,
    },
    /// Segments of the prefix do not end where KV blocks end.
    #[error("segments of {tokens} tokens: expected a multiple of the {block_tokens} of a KV block")]
    Segments {
        /// Tokens of a segment.
        tokens: u32,
        /// Tokens of a block.
        block_tokens: usize,
    },
}

/// The part of a prompt that may be cached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Prefix {
    /// Nothing is known to be shared.
    #[default]
    Unknown,
    /// That many leading tokens hit the cache, as the caller knows; counted in whole KV blocks,
    /// and at least one token is always computed.
    Cached(u32),
    /// The prompt's leading segments, of `tokens` tokens each. A hash stands for everything up to
    /// the end of its segment, so equal hashes are equal prefixes (the form of the Mooncake
    /// traces). The engine keeps segments until room is needed, least recently used first.
    Segments {
        /// Length of each segment, a multiple of the KV block.
        tokens: u32,
        /// One hash for each whole segment; what lies beyond the prompt is ignored.
        hashes: Arc<[u64]>,
    },
}

/// Why a request ended. The order is that of vLLM's `finished_reason` values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended the text.
    Stop,
    /// The client's token limit was reached.
    Length,
    /// The engine gave it up: sleep, shutdown or a crash.
    Abort,
}

/// What happened in the engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event {
    /// A token was generated.
    Token {
        /// The request it belongs to.
        id: u64,
        /// The end of the step that made it.
        at: Time,
        /// True for the first token of the request.
        first: bool,
    },
    /// A request lost its KV blocks to one that runs longer, and will be computed again.
    Preempted {
        /// The request.
        id: u64,
        /// The start of the step that took its blocks.
        at: Time,
    },
    /// A request ended.
    Finished {
        /// The request.
        id: u64,
        /// When.
        at: Time,
        /// Why.
        reason: FinishReason,
        /// How it was served.
        served: Served,
    },
}

/// The course of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the prompt that came from the prefix cache.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// How often it was preempted.
    pub preemptions: u32,
    /// When it reached the server.
    pub arrival: Time,
    /// When the server handed it to the scheduler.
    pub queued: Time,
    /// When it was first scheduled; `None` if it never was.
    pub scheduled: Option<Time>,
    /// The end of the step that made its first token; `None` if there was none.
    pub first_token: Option<Time>,
    /// The end of the step that made its last token; [`Served::queued`] if there was none.
    pub last_token: Time,
}

/// Which tokens are reported as events. Metrics count all of them either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// Every token: for a server that streams.
    EveryToken,
    /// Only the first of each request. Steps that decode the same batch are then computed
    /// together, with the same result.
    FirstToken,
}
