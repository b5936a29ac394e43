//! One request in the scheduler.
//!
//! Must not decide anything about it.

use crate::engine::Time;
use crate::engine::kv::Kept;
use crate::engine::request::{Request, Served};

/// A request in the engine.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    pub(crate) request: Request,
    pub(crate) served: Served,
    /// Tokens whose KV is computed; kept up to date while the request is not decoding.
    pub(super) computed: usize,
    /// Segments of the prefix cache that it uses.
    pub(super) shared: Vec<u64>,
    pub(super) shared_blocks: usize,
    /// Leading segments of its prompt that it has used or published.
    pub(super) segments_seen: usize,
    /// What was computed before its preemption.
    pub(super) kept: Option<Kept>,
}

impl Slot {
    pub(super) fn new(request: Request, arrival: Time, queued: Time) -> Slot {
        let served = Served {
            prompt_tokens: request.prompt_tokens,
            cached_tokens: 0,
            generated_tokens: 0,
            preemptions: 0,
            arrival,
            queued,
            scheduled: None,
            first_token: None,
            last_token: queued,
        };
        Slot {
            request,
            served,
            computed: 0,
            shared: Vec::new(),
            shared_blocks: 0,
            segments_seen: 0,
            kept: None,
        }
    }

    /// All tokens that there are: the next token needs the KV of each of them.
    pub(super) fn tokens(&self) -> usize {
        self.request.prompt_tokens as usize + self.served.generated_tokens as usize
    }
}
