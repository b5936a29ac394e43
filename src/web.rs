//! HTTP for people, Prometheus and Kubernetes: the JSON API, `/metrics`, `/livez` and `/readyz`.
//!
//! Answers from published snapshots and does no IO of its own, so that no source can stall it.

mod access;
mod error;
#[cfg(test)]
pub(crate) mod fixtures;
mod large;
mod serve;
mod view;
mod wake;
pub mod words;

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Deserialize;

pub use access::{Access, TokenFile};
pub use error::Error;
pub use serve::{END_TIMEOUT, HEADER_TIMEOUT, MAX_CONNECTION_AGE, MAX_CONNECTIONS, serve};
pub use view::{Asked, Cluster, Hpa, Member, Page, Refused, Snapshot, VoteText, Workload};
pub use wake::{Wake, WakeRequests, WakeState, take_wake};

use access::Intent;
use large::Large;
use serve::Peer;

use crate::clock::Clock;
use crate::health::Health;
use crate::inventory::WorkloadKey;
use crate::lead::Writes;
use crate::metrics;
use crate::registry::{Registry, Tracker, TrackerKey};

/// Workloads of one page where `limit` does not say: about 700 bytes each, so 350 KB.
const PAGE_DEFAULT: usize = 500;
/// Most workloads of one page: 3.5 MB.
const PAGE_MAX: usize = 5_000;

/// What the routes answer from.
#[derive(Debug)]
pub struct Api {
    /// The tracked triggers with their published snapshots.
    pub registry: Registry,
    /// The process's clock.
    pub clock: Clock,
    /// Where wakes go.
    pub wakes: WakeRequests,
    /// The way to the leader; `None` where this process alone decides.
    pub writes: Option<Writes>,
    /// What the probes are told.
    pub health: Health,
    /// What `/metrics` shows.
    pub metrics: metrics::Page,
    /// Who may ask.
    pub access: Access,
}

struct Shared {
    api: Api,
    large: Large,
}

/// All routes. Every connection must carry its peer, as [`serve`] sees to.
pub fn router(api: Api) -> Router {
    let shared = Arc::new(Shared { api, large: Large::default() });
    Router::new()
        .route("/metrics", get(metrics_page))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/api/v1/workloads", get(workloads))
        .route("/api/v1/workloads/{namespace}/{name}", get(workload))
        .route("/api/v1/wake/{namespace}/{name}", post(request_wake))
        .fallback(async |uri: Uri| Error::NoSuchPath(uri.path().chars().take(200).collect()))
        .method_not_allowed_fallback(async |method: Method| Error::Method(method.to_string()))
        .with_state(shared)
}

async fn livez(State(shared): State<Arc<Shared>>) -> Response {
    let hung = shared.api.health.hung();
    if hung.is_empty() {
        return "ok\n".into_response();
    }
    let hung: Vec<String> =
        hung.iter().map(|(name, age_ms)| format!("{name} loop hangs for {age_ms} ms\n")).collect();
    (StatusCode::SERVICE_UNAVAILABLE, hung.concat()).into_response()
}

async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    if shared.api.health.is_ready() {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "no published or restored answers yet\n").into_response()
    }
}

async fn metrics_page(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = metrics::Format::accepted(accept);
    let content_type = HeaderValue::from_static(format.content_type());
    let large = shared.large.clone();
    let build = move || shared.api.metrics.render(format).ok().map(String::into_bytes);
    large.answer(content_type, build).await
}

#[derive(Debug, Deserialize)]
struct ListQuery {
    namespace: Option<String>,
    limit: Option<String>,
    after: Option<String>,
}

async fn workloads(
    State(shared): State<Arc<Shared>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, Error> {
    let api = &shared.api;
    api.access.check(Intent::Read, peer, &headers).await?;
    let Query(query) = query.map_err(unreadable_query)?;
    let limit = match &query.limit {
        None => PAGE_DEFAULT,
        Some(text) => text
            .parse()
            .ok()
            .filter(|limit| (1..=PAGE_MAX).contains(limit))
            .ok_or_else(|| bad_query("limit", text, "a number from 1 to 5000"))?,
    };
    let after = match &query.after {
        None => None,
        Some(text) => Some(position(text).ok_or_else(|| {
            bad_query("after", text, "the `next` of the page before, namespace/name/trigger")
        })?),
    };
    let large = shared.large.clone();
    let build = move || {
        let page = page(&shared.api, query.namespace.as_deref(), after.as_ref(), limit);
        serde_json::to_vec(&page).ok()
    };
    large.answer(HeaderValue::from_static("application/json"), build).await
}

/// The page of the list that was asked for.
fn page(api: &Api, namespace: Option<&str>, after: Option<&TrackerKey>, limit: usize) -> Page {
    let trackers = api.registry.trackers();
    let mut matching = trackers.iter().map(|tracker| &**tracker).filter(|tracker| {
        namespace.is_none_or(|namespace| *tracker.key.workload.namespace == *namespace)
            && after.is_none_or(|after| *after < tracker.key)
    });
    let (now, inventory) = (api.clock.now(), api.registry.inventory());
    let mut last = None;
    let workloads = matching
        .by_ref()
        .take(limit)
        .inspect(|tracker| last = Some(&tracker.key))
        .map(|tracker| Workload::new(tracker, &tracker.published.load(), &inventory, now))
        .collect();
    let next = last.filter(|_| matching.next().is_some());
    // Between this page's first and the next one's: each is on one page, if not with a trigger.
    let refused = api.registry.refused();
    let refused = refused.iter().filter(|(key, _)| {
        namespace.is_none_or(|namespace| *key.namespace == *namespace)
            && after.is_none_or(|after| after.workload < *key)
            && next.is_none_or(|next| *key <= next.workload)
    });
    let refused = refused.map(|(key, faults)| Refused::new(key, faults)).collect();
    let next = next.map(|key| format!("{}/{}", key.workload, key.trigger_id()));
    Page { workloads, next, refused }
}

/// The place in the list that a page's `next` names.
fn position(text: &str) -> Option<TrackerKey> {
    let (namespace, rest) = text.split_once('/')?;
    let (name, trigger) = rest.split_once('/')?;
    let workload = WorkloadKey::new(namespace, name);
    Some(TrackerKey { workload, trigger: u64::from_str_radix(trigger, 16).ok()? })
}

#[derive(Debug, Deserialize)]
struct SnapshotQuery {
    trigger: Option<String>,
}

async fn workload(
    State(shared): State<Arc<Shared>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    path: Result<Path<(String, String)>, PathRejection>,
    query: Result<Query<SnapshotQuery>, QueryRejection>,
) -> Result<Json<Snapshot>, Error> {
    let api = &shared.api;
    api.access.check(Intent::Read, peer, &headers).await?;
    let Query(query) = query.map_err(unreadable_query)?;
    let key = key(path)?;
    let trackers = find(&api.registry, &key)?;
    let triggers: Vec<String> = trackers.iter().map(|tracker| tracker.key.trigger_id()).collect();
    let index = match &query.trigger {
        None => 0,
        Some(wanted) => triggers.iter().position(|trigger| trigger == wanted).ok_or_else(|| {
            bad_query("trigger", wanted, "one of the `triggers` of this workload")
        })?,
    };
    let tracker = trackers.get(index).ok_or(Error::Internal)?;
    let inventory = api.registry.inventory();
    let untracked = api.registry.untracked_of(&key).unwrap_or_default();
    Ok(Json(Snapshot::new(tracker, triggers, &untracked, &inventory, api.clock.now())))
}

async fn request_wake(
    State(shared): State<Arc<Shared>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Error> {
    let api = &shared.api;
    api.access.check(Intent::Write, peer, &headers).await?;
    let key = key(path)?;
    let wake = match &api.writes {
        None => take_wake(&api.registry, &api.wakes, api.clock, &key)?,
        Some(writes) => {
            // Whoever misspells one is told so by any replica.
            drop(find(&api.registry, &key)?);
            let taken = writes.wake(key).await.map_err(|_not_taken| Error::NoLeader)?;
            serde_json::from_slice(&taken).map_err(|_another_version| Error::Internal)?
        }
    };
    let retry_after = wake.retry_after_s().map(HeaderValue::from);
    let mut response = (StatusCode::ACCEPTED, Json(wake)).into_response();
    if let Some(retry_after) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, retry_after);
    }
    Ok(response)
}

/// The trackers of a workload, at least one, that which counts for it first.
fn find(registry: &Registry, key: &WorkloadKey) -> Result<Vec<Arc<Tracker>>, Error> {
    let found = registry.trackers_of(key);
    if !found.is_empty() {
        return Ok(found);
    }
    let name = key.to_string().chars().take(520).collect();
    Err(match registry.untracked_of(key) {
        Some(untracked) if !untracked.refused.is_empty() => {
            Error::TriggerRefused { name, faults: view::refused(&untracked).join("; and ") }
        }
        Some(_) => Error::NotAsked { name },
        None => Error::UnknownWorkload { name, known: known(&registry.trackers()) },
    })
}

/// The first workloads by name, for whoever has misspelled one.
fn known(trackers: &[Arc<Tracker>]) -> String {
    /// An error is read at a terminal.
    const MOST_NAMED: usize = 10;
    let names: BTreeSet<&WorkloadKey> =
        trackers.iter().map(|tracker| &tracker.key.workload).collect();
    let named: Vec<String> = names.iter().take(MOST_NAMED).map(ToString::to_string).collect();
    match names.len() - named.len() {
        _ if named.is_empty() => "none is known yet".to_owned(),
        0 => format!("known are {}", named.join(", ")),
        n_more => format!("known are {} and {n_more} more", named.join(", ")),
    }
}

fn key(path: Result<Path<(String, String)>, PathRejection>) -> Result<WorkloadKey, Error> {
    let not_text = |_rejection| Error::NoSuchPath("a name that is not UTF-8".to_owned());
    let Path((namespace, name)) = path.map_err(not_text)?;
    Ok(WorkloadKey::new(&namespace, &name))
}

fn unreadable_query(rejection: QueryRejection) -> Error {
    bad_query("query", &rejection.body_text(), "each parameter once, URL-encoded")
}

fn bad_query(field: &'static str, value: &str, expected: &'static str) -> Error {
    Error::Query { field, value: value.chars().take(80).collect(), expected }
}

#[cfg(test)]
mod tests;
