//! The paths of a server: OpenAI's, those of its dialect, and one for faults on command.
//!
//! Must not know sockets.
//!
//! `/_loadgen/pathology` is the only path that a real server does not have: GET lists the faults
//! in force or to come, POST orders those in the body, one a line as for `--pathology`, and DELETE
//! calls all of them off.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Deserialize;
use serde_json::json;
use tokio::time::sleep;

use super::answer::{self, Answer, Form};
use super::backend::{Backend, Wanted};
use super::error::{ApiError, detail};
use super::exchange::{self, Counting};
use super::pathology::Order;
use super::wanted::{self, Read};
use crate::engine::{Condition, SleepLevel};
use crate::exposition::{self, Health};

/// Where faults are ordered.
pub(super) const PATHOLOGY: &str = "/_loadgen/pathology";

/// How long a health check that generates waits, SGLang's time, and how often it looks.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(20);
const HEALTH_PERIOD: Duration = Duration::from_millis(20);

/// Largest body: some two million token ids.
const MAX_BODY_BYTES: usize = 16 << 20;

/// The paths of one server.
pub(super) fn router(backend: Arc<Backend>, api_key: Option<Arc<str>>) -> Router {
    let openai = Router::new()
        .route("/v1/models", get(models))
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat_completions))
        .layer(middleware::from_fn(move |headers: HeaderMap, request: Request, next: Next| {
            authorize(api_key.clone(), headers, request, next)
        }));
    let dialect = backend.settings.dialect;
    let pages =
        dialect.paths.iter().fold(Router::new(), |pages, path| pages.route(path, get(metrics)));
    let pages = if dialect.has_json { pages.route("/metrics", get(iterations)) } else { pages };
    let manners = dialect.manners;
    let own = manners.health.paths().iter();
    let own = own.fold(Router::new(), |own, path| own.route(path, get(health)));
    let own = match manners.has_vllm_paths {
        true => own
            .route("/ping", get(|| async {}).post(|| async {}))
            .route("/load", get(load))
            .route("/version", get(version))
            .route("/sleep", post(fall_asleep))
            .route("/wake_up", post(wake_up))
            .route("/is_sleeping", get(is_sleeping)),
        false => own,
    };
    let own = if manners.slots.is_some() { own.route("/slots", get(slots)) } else { own };
    let still_loads = middleware::from_fn_with_state(Arc::clone(&backend), refuse_while_loading);
    Router::new()
        .merge(openai)
        .merge(pages)
        .merge(own)
        .layer(still_loads)
        .route(PATHOLOGY, get(faults).post(order).delete(call_off))
        .fallback(|| async { detail(StatusCode::NOT_FOUND, "Not Found") })
        .method_not_allowed_fallback(|| async {
            detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&backend), exchange::count))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(backend)
}

async fn authorize(
    api_key: Option<Arc<str>>,
    headers: HeaderMap,
    request: Request,
    next: Next,
) -> Response {
    let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let is_right = |key: &str| given.and_then(|text| text.strip_prefix("Bearer ")) == Some(key);
    match api_key {
        Some(key) if !is_right(&key) => {
            (StatusCode::UNAUTHORIZED, Json(json!({"error": "Unauthorized"}))).into_response()
        }
        Some(_) | None => next.run(request).await,
    }
}

async fn completions(
    State(backend): State<Arc<Backend>>,
    Extension(counting): Extension<Arc<Counting>>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let settings = &backend.settings;
    let read = wanted::completion(&body, &settings.profile, &settings.model_name)?;
    serve(&backend, counting, read, Form::Completion).await
}

async fn chat_completions(
    State(backend): State<Arc<Backend>>,
    Extension(counting): Extension<Arc<Counting>>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let settings = &backend.settings;
    let read = wanted::chat(&body, &settings.profile, &settings.model_name)?;
    serve(&backend, counting, read, Form::Chat).await
}

async fn serve(
    backend: &Arc<Backend>,
    counting: Arc<Counting>,
    Read { wanted, includes_usage, repeats_usage }: Read,
    form: Form,
) -> Result<Response, ApiError> {
    let (streams, prompt_tokens) = (wanted.streams, wanted.prompt_tokens);
    let ticket = match backend.submit(wanted).map_err(ApiError::from) {
        Ok(ticket) => ticket,
        // The real server finds out when it has begun to answer.
        Err(error) if streams && error.is_busy() => return Ok(answer::events(error.event())),
        Err(error) => return Err(error),
    };
    let dialect = backend.settings.dialect;
    let answer = Answer {
        form,
        id: format!("{}-{:032x}", form.id_prefix(), ticket.id),
        created_unix_s: unix_seconds(backend),
        model: json!(backend.settings.model_name).to_string(),
        fingerprint: format!("{}-{}", dialect.engine(), dialect.version),
        prompt_tokens,
        includes_usage,
        repeats_usage,
    };
    if streams { Ok(answer.stream(ticket, counting)) } else { answer.whole(ticket).await }
}

async fn models(State(backend): State<Arc<Backend>>) -> Response {
    let (name, created) = (&backend.settings.model_name, unix_seconds(&backend));
    let model = json!({
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": backend.settings.dialect.engine(),
        "root": name,
        "parent": null,
        "max_model_len": backend.settings.profile.limits.max_model_tokens,
        "permission": [],
    });
    Json(json!({"object": "list", "data": [model]})).into_response()
}

/// llama.cpp's answer to everything while it loads.
async fn refuse_while_loading(
    State(backend): State<Arc<Backend>>,
    request: Request,
    next: Next,
) -> Response {
    let is_loading = matches!(backend.life().borrow().condition, Condition::Starting(_));
    if !is_loading {
        return next.run(request).await;
    }
    let error = json!({"code": 503, "message": "Loading model", "type": "unavailable_error"});
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"error": error}))).into_response()
}

async fn health(State(backend): State<Arc<Backend>>) -> Response {
    let unhealthy = match backend.settings.dialect.manners.health {
        Health::Empty(_) => return StatusCode::OK.into_response(),
        Health::Says(_, body) => {
            return ([(CONTENT_TYPE, "application/json")], body).into_response();
        }
        Health::Generates(_, body) => body,
    };
    let (in_flight, before) = backend.work();
    // Given up with the answer.
    let _own = if in_flight == 0 { backend.submit(Wanted::probe()).ok() } else { None };
    let makes_a_token = async {
        while backend.work().1 == before {
            sleep(HEALTH_PERIOD).await;
        }
    };
    match tokio::time::timeout(HEALTH_TIMEOUT, makes_a_token).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(_elapsed) => (StatusCode::SERVICE_UNAVAILABLE, unhealthy).into_response(),
    }
}

/// llama.cpp's slots: of their many fields those that tell whether one is free.
async fn slots(State(backend): State<Arc<Backend>>) -> Response {
    let tokens = backend.settings.profile.limits.max_model_tokens;
    let slots = backend.slots().into_iter().enumerate().map(
        |(id, is_processing)| json!({"id": id, "n_ctx": tokens, "is_processing": is_processing}),
    );
    Json(serde_json::Value::from_iter(slots)).into_response()
}

async fn load(State(backend): State<Arc<Backend>>) -> Response {
    Json(json!({"server_load": backend.load()})).into_response()
}

async fn version(State(backend): State<Arc<Backend>>) -> Response {
    Json(json!({"version": backend.settings.dialect.version})).into_response()
}

async fn metrics(State(backend): State<Arc<Backend>>, headers: HeaderMap) -> Response {
    match backend.scrape_ms() {
        0 => {}
        slow_ms => sleep(Duration::from_millis(slow_ms)).await,
    }
    let dialect = backend.settings.dialect;
    if dialect.has_underscores && wants_underscores(&headers) {
        let page = exposition::with_underscores(&backend.page());
        return ([(CONTENT_TYPE, exposition::UNDERSCORES_TYPE)], page).into_response();
    }
    ([(CONTENT_TYPE, dialect.content_type)], backend.page()).into_response()
}

/// OpenMetrics before all else, and no word of names with other characters.
fn wants_underscores(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let first = accept.split(',').next().unwrap_or_default();
    first.trim_start().starts_with("application/openmetrics-text")
        && !first.contains("escaping=allow-utf-8")
}

async fn iterations(State(backend): State<Arc<Backend>>) -> Response {
    ([(CONTENT_TYPE, "application/json")], backend.iterations()).into_response()
}

#[derive(Debug, Deserialize)]
struct Sleep {
    level: Option<u8>,
}

async fn fall_asleep(
    State(backend): State<Arc<Backend>>,
    Query(Sleep { level }): Query<Sleep>,
) -> Result<(), ApiError> {
    let level = match level {
        Some(0) => SleepLevel::Paused,
        None | Some(1) => SleepLevel::Offloaded,
        Some(2) => SleepLevel::Discarded,
        Some(other) => {
            let message = format!("level is {other}: expected 0, 1 or 2");
            return Err(ApiError::bad_request(message));
        }
    };
    backend.sleep(level);
    Ok(())
}

/// Answers when the engine is awake.
async fn wake_up(State(backend): State<Arc<Backend>>) {
    let mut life = backend.life();
    backend.wake();
    // The sender is in the backend.
    let _awake = life.wait_for(|life| !is_asleep(life.condition)).await;
}

async fn is_sleeping(State(backend): State<Arc<Backend>>) -> Response {
    let asleep = is_asleep(backend.life().borrow().condition);
    Json(json!({"is_sleeping": asleep})).into_response()
}

async fn faults(State(backend): State<Arc<Backend>>) -> String {
    backend.faults()
}

async fn order(State(backend): State<Arc<Backend>>, body: String) -> Result<String, ApiError> {
    let orders: Result<Vec<Order>, _> = body.split_whitespace().map(str::parse).collect();
    Ok(backend.order(orders.map_err(|error| ApiError::bad_request(error.to_string()))?))
}

async fn call_off(State(backend): State<Arc<Backend>>) {
    backend.call_off();
}

fn is_asleep(condition: Condition) -> bool {
    match condition {
        Condition::Asleep(_) | Condition::Waking(_) => true,
        Condition::Starting(_)
        | Condition::Ready
        | Condition::Draining
        | Condition::Exiting
        | Condition::Gone => false,
    }
}

fn unix_seconds(backend: &Backend) -> u64 {
    Duration::try_from_secs_f64(backend.clock.unix_now_s()).unwrap_or_default().as_secs()
}
