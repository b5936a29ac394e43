//! The requests of one run, whole in memory and in order, so that every policy meets the same.
//!
//! Must not know where they come from: [`super::input`] reads them.

use loadgen::engine::Time;

/// One request: 24 bytes, because days of them are held at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// When it reaches the gateway.
    pub at: Time,
    /// Tokens of its prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens of its prompt that a prefix cache holds.
    pub cached_tokens: u32,
    /// Tokens that it will be answered with, at least 1.
    pub output_tokens: u32,
}

/// Requests in the order of their arrival, and which of them count.
#[derive(Debug, Clone)]
pub struct Workload {
    /// In order of arrival; none at or after `end`.
    pub requests: Vec<Request>,
    /// From here on requests, GPU-hours and events count; what is before warms up.
    pub counted_from: Time,
    /// Where the trace ends.
    pub end: Time,
    /// Rows of the trace that ask for 0 tokens, as failed requests do, which counts as 1.
    pub empty_rows: u64,
}

impl Workload {
    /// The requests that count.
    #[must_use]
    pub fn counted(&self) -> &[Request] {
        let first = self.requests.partition_point(|request| request.at < self.counted_from);
        self.requests.get(first..).unwrap_or_default()
    }

    /// Hours that count.
    #[must_use]
    pub fn hours(&self) -> f64 {
        self.seconds() / 3_600.0
    }

    /// Seconds that count.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        loadgen::engine::secs_from_ps(self.end.since(self.counted_from))
    }
}
