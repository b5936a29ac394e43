//! Where readings come from: direct scrapes of metrics pages, and Prometheus servers.
//!
//! Must not decide, remember or log: a call gives what was read now, or a typed reason why not.
//!
//! Addresses, credentials and namespaces come from the process's configuration or from the
//! Kubernetes API, never from trigger metadata. Each input is bounded: time, body, series, samples
//! and how much is asked at once.

mod client;
pub mod config;
pub mod engines;
pub mod prometheus;
pub mod scrape;
pub mod selector;
pub mod wake;

use crate::decision::Why;
use crate::signals::exposition;

/// A fault of the network, of TLS or of HTTP, as the library names it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a source gave no reading.
///
/// No text of it holds a body, a header, a token or a URL: it ends in statuses that tenants read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The whole exchange (connect, headers and body) did not fit into the deadline.
    #[error("no whole answer within {deadline_ms} ms")]
    Timeout {
        /// The deadline, in milliseconds.
        deadline_ms: u64,
    },
    /// Others who ask were not done in time; nothing was sent.
    #[error("no turn within {waited_ms} ms: others who are asked answer too slowly")]
    NoTurn {
        /// How long it was waited, in milliseconds.
        waited_ms: u64,
    },
    /// Nothing listens there.
    #[error("connection refused")]
    Refused,
    /// The TLS handshake failed, or the server's certificate is not trusted.
    #[error("the TLS handshake failed")]
    Tls(#[source] BoxError),
    /// The connection failed in another way: no such host, reset before an answer, no HTTP.
    #[error("the connection failed")]
    Transport(#[source] BoxError),
    /// The connection ended inside the body: what came of it is not a shorter page.
    #[error("the connection ended after {received_bytes} bytes of an unfinished body")]
    Incomplete {
        /// Bytes of the body that came.
        received_bytes: u64,
        /// What ended it.
        #[source]
        source: BoxError,
    },
    /// 401 or 403.
    #[error("the server refused the credentials with status {status}")]
    Unauthorized {
        /// The HTTP status.
        status: u16,
    },
    /// Any other status than 200, a refused redirect included.
    #[error("the server answered with status {status}, expected 200")]
    HttpStatus {
        /// The HTTP status.
        status: u16,
    },
    /// The body is not what was asked for.
    #[error("the body is {what}, expected {expected}")]
    BadBody {
        /// What it is.
        what: &'static str,
        /// What was asked for.
        expected: &'static str,
    },
    /// The answer is over a limit.
    #[error("the answer has more than {limit} {unit}")]
    TooLarge {
        /// The limit.
        limit: u64,
        /// What is counted.
        unit: &'static str,
    },
    /// Prometheus refused a query or could not evaluate it.
    #[error("the query failed with status {status}: {fault}")]
    Query {
        /// The HTTP status.
        status: u16,
        /// What Prometheus calls it.
        fault: QueryFault,
    },
    /// A namespace is empty, which to Prometheus would mean every series that has none.
    #[error("a namespace is empty: expected its name")]
    NoNamespace,
    /// The answer has series of a namespace that was not asked for, or of none.
    #[error("the answer has series outside of the namespaces that were asked for")]
    AmbiguousTenant,
    /// A wake source names the model, and the workload has none.
    #[error("the wake source names {{model}}: expected `modelName` in the trigger")]
    NoModel,
    /// A page cannot be read as metrics.
    #[error(transparent)]
    Page(#[from] exposition::Error),
    /// A configured value is wrong.
    #[error(transparent)]
    Config(#[from] config::Fault),
    /// A configured address cannot be asked.
    #[error("the address is not usable: expected an http or https URL without credentials")]
    BadAddress,
    /// A file with a certificate or a token cannot be used.
    #[error("the {what} file cannot be used: expected {expected}")]
    File {
        /// Which file.
        what: FileRole,
        /// What it has to hold.
        expected: &'static str,
        /// Why it could not be read, where that is the reason.
        #[source]
        source: Option<std::io::Error>,
    },
    /// TLS could not be set up.
    #[error("the TLS of the HTTP client could not be set up")]
    Setup(#[source] rustls::Error),
}

/// Why a query failed: Prometheus's `errorType`, or what the status says where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryFault {
    /// The query or a parameter is wrong (400).
    BadQuery,
    /// It could not be evaluated (422), such as for its number of samples.
    Execution,
    /// It took too long, or was cancelled.
    Timeout,
    /// The server is not ready (503).
    Unavailable,
    /// Anything else, a redirect to a login page included.
    Other,
}

impl std::fmt::Display for QueryFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            QueryFault::BadQuery => "bad query",
            QueryFault::Execution => "execution failed",
            QueryFault::Timeout => "timed out",
            QueryFault::Unavailable => "unavailable",
            QueryFault::Other => "another fault",
        })
    }
}

/// What a configured file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRole {
    /// The authority that an upstream's certificate must come from.
    Ca,
    /// The bearer token shown to an upstream.
    Token,
}

impl std::fmt::Display for FileRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FileRole::Ca => "CA",
            FileRole::Token => "token",
        })
    }
}

impl Error {
    /// The reason as the decision knows it.
    #[must_use]
    pub fn why(&self) -> Why {
        match self {
            Error::Timeout { .. } | Error::NoTurn { .. } => Why::Timeout,
            Error::Refused => Why::Refused,
            Error::Tls(_) | Error::File { what: FileRole::Ca, .. } => Why::Tls,
            Error::Transport(_) | Error::Incomplete { .. } | Error::Setup(_) => Why::Transport,
            Error::Unauthorized { .. } | Error::File { what: FileRole::Token, .. } => {
                Why::Unauthorized
            }
            Error::Query { fault: QueryFault::Timeout, .. } => Why::Timeout,
            Error::HttpStatus { .. } | Error::Query { .. } => Why::HttpStatus,
            Error::NoNamespace | Error::AmbiguousTenant | Error::NoModel => Why::AmbiguousTenant,
            Error::BadBody { .. } => Why::BadBody,
            Error::TooLarge { .. } => Why::TooLarge,
            Error::Page(error) => error.why(),
            Error::BadAddress | Error::Config(_) => Why::NoEndpoint,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
