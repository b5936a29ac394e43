//! One input as it stands now: fresh, stale or missing, never a bare number.
//!
//! A failure never becomes a number: only [`Reading::Fresh`] may vote to scale down.

use serde::{Deserialize, Serialize};

/// The state of one input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Reading<T> {
    /// Younger than max(3 ticks, 2 × the source's own sample interval).
    Fresh {
        /// What was read.
        value: T,
        /// Age of the sample in milliseconds.
        age_ms: u64,
    },
    /// Read before, too old to decide on.
    Stale {
        /// The last value read.
        value: T,
        /// Age of the sample in milliseconds.
        age_ms: u64,
        /// Why no newer sample came.
        why: Why,
    },
    /// Never read, or gone for good.
    Missing {
        /// Why there is no sample.
        why: Why,
    },
}

impl<T> Reading<T> {
    /// The value, if fresh.
    pub fn fresh(&self) -> Option<&T> {
        match self {
            Reading::Fresh { value, .. } => Some(value),
            Reading::Stale { .. } | Reading::Missing { .. } => None,
        }
    }

    /// The last value known, fresh or stale.
    pub fn last(&self) -> Option<&T> {
        match self {
            Reading::Fresh { value, .. } | Reading::Stale { value, .. } => Some(value),
            Reading::Missing { .. } => None,
        }
    }

    /// Why the reading is not fresh.
    pub fn why(&self) -> Option<Why> {
        match self {
            Reading::Fresh { .. } => None,
            Reading::Stale { why, .. } | Reading::Missing { why } => Some(*why),
        }
    }
}

/// Why a reading is not fresh. A closed list, so that it can label a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Nothing has been asked yet.
    NotYetRead,
    /// No endpoint or pod to ask.
    NoEndpoint,
    /// The connection was refused: a vLLM that is still loading looks like this.
    Refused,
    /// No answer within the deadline.
    Timeout,
    /// Any other transport fault.
    Transport,
    /// The TLS handshake failed.
    Tls,
    /// 401 or 403.
    Unauthorized,
    /// Another HTTP status than 200.
    HttpStatus,
    /// The body could not be read as what it should be.
    BadBody,
    /// The body, or its number of series, was over the limit.
    TooLarge,
    /// The answer came, and no known engine's series were in it (wrong port, statistics off, new names).
    NoKnownSeries,
    /// The answer came, and it could not be told which tenant the series belong to.
    AmbiguousTenant,
    /// The source itself said that its answer is partial.
    Partial,
    /// Answers come, and their sample timestamps do not move.
    NotMoving,
    /// The pod is gone, terminating or not ready.
    PodGone,
    /// The value itself is impossible (NaN, infinite, negative, a sentinel), or its time is one of the future.
    Impossible,
}

impl Why {
    /// The metric label and JSON word.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Why::NotYetRead => "not_yet_read",
            Why::NoEndpoint => "no_endpoint",
            Why::Refused => "refused",
            Why::Timeout => "timeout",
            Why::Transport => "transport",
            Why::Tls => "tls",
            Why::Unauthorized => "unauthorized",
            Why::HttpStatus => "http_status",
            Why::BadBody => "bad_body",
            Why::TooLarge => "too_large",
            Why::NoKnownSeries => "no_known_series",
            Why::AmbiguousTenant => "ambiguous_tenant",
            Why::Partial => "partial",
            Why::NotMoving => "not_moving",
            Why::PodGone => "pod_gone",
            Why::Impossible => "impossible",
        }
    }

    /// What a person should read, with the remedy where one is known.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Why::NotYetRead => "not read yet",
            Why::NoEndpoint => "no endpoint to read: no ready pod, or no address known",
            Why::Refused => "connection refused: the engine is still loading, or the port is wrong",
            Why::Timeout => "no answer within the deadline",
            Why::Transport => "the connection failed",
            Why::Tls => "the TLS handshake failed: check the CA and the host name",
            Why::Unauthorized => "the server refused the credentials (401 or 403)",
            Why::HttpStatus => "the server answered with an error status",
            Why::BadBody => "the answer is not a metrics page",
            Why::TooLarge => "the answer is larger than the limit",
            Why::NoKnownSeries => {
                "no known engine's series in the answer: wrong port, statistics off \
                 (vLLM --disable-log-stats), or names of a version not known here"
            }
            Why::AmbiguousTenant => {
                "the series carry no namespace, so they could be another tenant's"
            }
            Why::Partial => "the source says that its answer is partial",
            Why::NotMoving => "answers come but the samples in them no longer move",
            Why::PodGone => "the pod is gone, terminating or not ready",
            Why::Impossible => {
                "the value is impossible (NaN, infinite, negative, a sentinel), or of the future"
            }
        }
    }
}
