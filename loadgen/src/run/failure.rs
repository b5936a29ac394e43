//! The ways in which a request can fail, each with a name of its own in the report.
//!
//! Must not decide what is a failure: `exchange` does, and `answer` for what is inside an answer.

use std::borrow::Cow;

use crate::text::shortened;

/// As much of an example as fits a report.
const MOST_CHARS: usize = 160;

/// Why a request did not give a whole, right answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// No connection: refused, unreachable, name unknown, or not within 10 s.
    Connect,
    /// No TLS session: certificate, name or protocol, or none within 10 s.
    Tls,
    /// No whole answer within the time allowed.
    Timeout,
    /// The user left before the first token.
    Abandoned,
    /// The answer began and then fell silent for longer than is allowed.
    Stalled,
    /// A status other than 200.
    Status(u16),
    /// The connection ended before the answer began, with nothing or too little of it.
    Closed,
    /// The answer began with 200 and ended before its end: bytes missing, no `[DONE]`, that with
    /// neither text nor a reason before it, or a reason that is no end of an answer (`abort`).
    CutShort,
    /// What came is not what the API answers: no HTTP, no stream of events, a coding that nobody asked
    /// for, or not the API's JSON.
    Malformed,
    /// The answer is from another model, or the model is not known there.
    WrongModel,
    /// An error inside an answer with status 200.
    ServerError,
    /// A whole answer without a token.
    Empty,
    /// This machine has no more sockets, files or ports: says nothing about the server.
    ClientLimit,
}

impl Failure {
    /// Its name in reports.
    #[must_use]
    pub fn class(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Failure::Connect => "connect",
            Failure::Tls => "tls",
            Failure::Timeout => "timeout",
            Failure::Abandoned => "abandoned",
            Failure::Stalled => "stalled",
            Failure::Status(status) => return Cow::Owned(format!("http_{status}")),
            Failure::Closed => "closed",
            Failure::CutShort => "cut_short",
            Failure::Malformed => "malformed",
            Failure::WrongModel => "wrong_model",
            Failure::ServerError => "server_error",
            Failure::Empty => "empty",
            Failure::ClientLimit => "client_limit",
        })
    }

    /// A failure with what is to be shown of it.
    #[must_use]
    pub(super) fn because(self, example: impl std::fmt::Display) -> Fault {
        let example = example.to_string();
        let line = example.trim().lines().next().unwrap_or_default();
        Fault { failure: self, example: shortened(line, MOST_CHARS) }
    }
}

/// A failure with an example of its words: their first line, shortened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(super) failure: Failure,
    pub(crate) example: String,
}
