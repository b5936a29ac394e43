//! Answers that are errors, in vLLM's form.
//!
//! Must not decide what is one.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::engine::{Refused, Rejected};
use crate::server::backend::Refusal;

/// An error as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<&'static str>,
}

impl ApiError {
    pub(super) fn bad_request(message: String) -> ApiError {
        ApiError { status: StatusCode::BAD_REQUEST, kind: "BadRequestError", message, param: None }
    }

    pub(super) fn unknown_model(name: &str) -> ApiError {
        ApiError {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            message: format!("The model `{name}` does not exist."),
            param: Some("model"),
        }
    }

    pub(super) fn busy() -> ApiError {
        ApiError {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "Service Unavailable",
            message: "The engine is currently busy and cannot accept new requests. Please try \
                again later or on a different instance."
                .to_owned(),
            param: None,
        }
    }

    pub(super) fn crashed() -> ApiError {
        ApiError::internal(
            "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        )
    }

    fn internal(message: &str) -> ApiError {
        ApiError {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            kind: "InternalServerError",
            message: message.to_owned(),
            param: None,
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE
    }

    /// The error as the last event of a stream that has been answered with 200. Spaced as Python
    /// writes JSON by default, unlike the plain answer.
    pub(super) fn event(&self) -> String {
        let ApiError { status, kind, message, .. } = self;
        let message = json!(message);
        let status = status.as_u16();
        format!(
            "data: {{\"error\": {{\"message\": {message}, \"type\": \"{kind}\", \"param\": null, \
             \"code\": {status}}}}}\n\ndata: [DONE]\n\n"
        )
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        match refusal {
            Refusal::Busy => ApiError::busy(),
            Refusal::Engine(Refused::Rejected(rejected)) => rejected.into(),
            Refusal::Engine(refused @ (Refused::ShuttingDown | Refused::NotListening)) => {
                ApiError::internal(&refused.to_string())
            }
        }
    }
}

impl From<Rejected> for ApiError {
    fn from(rejected: Rejected) -> ApiError {
        ApiError::bad_request(rejected.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let ApiError { status, kind, message, param } = self;
        // In vLLM's order, which an object of `serde_json` does not keep.
        let body = format!(
            "{{\"error\":{{\"message\":{},\"type\":\"{kind}\",\"param\":{},\"code\":{}}}}}",
            json!(message),
            json!(param),
            status.as_u16()
        );
        (status, [("content-type", "application/json")], body).into_response()
    }
}

/// What FastAPI answers where it has no route.
pub(super) fn detail(status: StatusCode, text: &str) -> Response {
    (status, Json(json!({ "detail": text }))).into_response()
}
