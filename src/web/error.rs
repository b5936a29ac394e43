//! What the API answers when it cannot answer: a code, a message and what to do about it.
//!
//! Must never carry a secret or the text of an upstream's answer.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Whole seconds after which a write without a leader, or a large answer, is worth another try.
const RETRY_S: header::HeaderValue = header::HeaderValue::from_static("2");

/// A refused request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The path leads nowhere.
    #[error("no such path: {0}")]
    NoSuchPath(String),
    /// The path exists, the method is not for it.
    #[error("method {0} is not allowed here")]
    Method(String),
    /// No workload of that name is tracked.
    #[error("workload {name} is not known; {known}")]
    UnknownWorkload {
        /// As given, shortened.
        name: String,
        /// Which are, in words.
        known: String,
    },
    /// The workload is known, and none of its triggers is tracked: they are wrong.
    #[error("{name} has trigger metadata that is refused: {faults}")]
    TriggerRefused {
        /// Which.
        name: String,
        /// Every fault of each.
        faults: String,
    },
    /// The workload is known, and its trigger is complete only with a call of KEDA.
    #[error("{name} is known, and KEDA has not asked for it yet")]
    NotAsked {
        /// Which.
        name: String,
    },
    /// A query parameter is out of range.
    #[error("`{field}` is \"{value}\": expected {expected}")]
    Query {
        /// The parameter.
        field: &'static str,
        /// As given, shortened.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A token is needed and was not given, or is wrong.
    #[error("the bearer token is missing or wrong")]
    Token,
    /// Writes from another host need a token and none is configured.
    #[error("writes from another host need a token, and none is configured")]
    WritesAreLocal,
    /// The token file cannot be used.
    #[error("the token file cannot be read or holds less than 16 bytes")]
    TokenFile,
    /// A write that no leader has taken.
    #[error("no replica of the scaler leads at this moment")]
    NoLeader,
    /// As much of large answers is being sent as may be at once.
    #[error("too many large answers are being read slowly at this moment")]
    Busy,
    /// The page could not be built.
    #[error("the page could not be built")]
    Internal,
}

impl Error {
    fn parts(&self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Error::NoSuchPath(_) => (
                StatusCode::NOT_FOUND,
                "no_such_path",
                "the paths are /api/v1/workloads, /api/v1/workloads/{namespace}/{name}, \
                 /api/v1/wake/{namespace}/{name}, /metrics, /livez and /readyz",
            ),
            Error::Method(_) => (
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "read with GET; wake with POST",
            ),
            Error::UnknownWorkload { .. } => (
                StatusCode::NOT_FOUND,
                "unknown_workload",
                "GET /api/v1/workloads lists them all; a ScaledObject is known once the scaler sees \
                 it with a trigger that points here",
            ),
            Error::TriggerRefused { .. } => (
                StatusCode::CONFLICT,
                "trigger_refused",
                "correct the trigger's metadata: until then KEDA is answered INVALID_ARGUMENT and \
                 the count stands",
            ),
            Error::NotAsked { .. } => (
                StatusCode::CONFLICT,
                "not_asked_yet",
                "a value of its trigger comes from the target's environment (FromEnv), which only \
                 a call of KEDA brings: check that KEDA runs and that scalerAddress leads here",
            ),
            Error::Query { .. } => {
                (StatusCode::BAD_REQUEST, "bad_query", "correct the query parameter")
            }
            Error::Token => (
                StatusCode::UNAUTHORIZED,
                "token_required",
                "send the header `Authorization: Bearer TOKEN` with the content of the file that \
                 --api-token-file names, or ask from the scaler's own host by its IP or localhost",
            ),
            Error::WritesAreLocal => (
                StatusCode::FORBIDDEN,
                "writes_are_local",
                "start the scaler with --api-token-file FILE, or ask from its own host by its IP \
                 or localhost",
            ),
            Error::TokenFile => (
                StatusCode::SERVICE_UNAVAILABLE,
                "token_file_unusable",
                "check that the file of --api-token-file exists, is readable and holds a token of \
                 16 to 4096 bytes",
            ),
            Error::NoLeader => (
                StatusCode::SERVICE_UNAVAILABLE,
                "no_leader",
                "ask again after the seconds of Retry-After: another replica takes over by itself",
            ),
            Error::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "busy",
                "ask again after the seconds of Retry-After, or for less with ?limit= and \
                 ?namespace=",
            ),
            Error::Internal => {
                (StatusCode::INTERNAL_SERVER_ERROR, "internal", "look into the scaler's log")
            }
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let (status, code, remedy) = self.parts();
        let body = serde_json::json!({
            "error": { "code": code, "message": self.to_string(), "remedy": remedy }
        });
        let is_passing = matches!(self, Error::NoLeader | Error::Busy);
        let mut response = (status, Json(body)).into_response();
        if is_passing {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_S);
        }
        if status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        }
        response
    }
}
