//! A Kubernetes API server as far as lists, watches, discovery and scales go, on a real socket.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// The server. It ends with the test's runtime.
#[derive(Clone)]
pub(super) struct FakeApi {
    state: Arc<Mutex<State>>,
    client: kube::Client,
}

#[derive(Default)]
struct State {
    version: u64,
    collections: BTreeMap<String, Collection>,
    /// What a GET of these paths answers.
    singles: BTreeMap<String, Value>,
    /// Paths that answer with this status instead.
    failing: BTreeMap<String, u16>,
    /// Every path asked for, with what was wanted there.
    asked: Vec<(&'static str, String)>,
}

#[derive(Default)]
struct Collection {
    objects: BTreeMap<(String, String), Value>,
    /// Events by version, for watches that start in the past.
    events: Vec<(u64, Value)>,
    /// Watches that start before this version are told that it is gone.
    expired_before: u64,
    watches: Vec<mpsc::UnboundedSender<Value>>,
}

impl FakeApi {
    /// Starts the server on a free port.
    pub(super) async fn start() -> FakeApi {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let app = Router::new().fallback(move |uri: Uri| {
            let answer = answer(&mut shared.lock().unwrap_or_else(PoisonError::into_inner), &uri);
            async move { answer }
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        FakeApi { state, client: kube::Client::try_from(config).unwrap() }
    }

    /// A client of it.
    pub(super) fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Creates or changes an object of a collection.
    pub(super) fn put(&self, collection: &str, object: Value) {
        self.change(collection, object, "MODIFIED");
    }

    /// Deletes an object of a collection.
    pub(super) fn delete(&self, collection: &str, object: Value) {
        self.change(collection, object, "DELETED");
    }

    /// Sets what a GET of this path answers; `None` is 404.
    pub(super) fn single(&self, path: &str, answer: Option<Value>) {
        let mut state = self.lock();
        match answer {
            Some(answer) => state.singles.insert(path.to_owned(), answer),
            None => state.singles.remove(path),
        };
    }

    /// Ends all watches of a collection.
    pub(super) fn hang_up(&self, collection: &str) {
        self.lock().collections.entry(collection.to_owned()).or_default().watches.clear();
    }

    /// Forgets the past: watches that would start in it are answered 410.
    pub(super) fn expire(&self, collection: &str) {
        let mut state = self.lock();
        state.version += 1;
        let version = state.version;
        state.collections.entry(collection.to_owned()).or_default().expired_before = version;
    }

    /// Answers everything about a path with this status, or as usual again.
    pub(super) fn fail(&self, path: &str, status: Option<u16>) {
        let mut state = self.lock();
        match status {
            Some(status) => state.failing.insert(path.to_owned(), status),
            None => state.failing.remove(path),
        };
    }

    /// How often this was wanted of this path: `list`, `watch` or `get`.
    pub(super) fn count(&self, verb: &str, path: &str) -> usize {
        self.lock().asked.iter().filter(|asked| asked.0 == verb && asked.1 == path).count()
    }

    /// Everything that was asked for.
    pub(super) fn asked(&self) -> BTreeSet<(&'static str, String)> {
        self.lock().asked.iter().cloned().collect()
    }

    fn change(&self, collection: &str, mut object: Value, kind: &str) {
        let mut state = self.lock();
        state.version += 1;
        let version = state.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let part = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
        let key = (part("namespace"), part("name"));
        let event = json!({"type": kind, "object": object});
        let collection = state.collections.entry(collection.to_owned()).or_default();
        if kind == "DELETED" {
            collection.objects.remove(&key);
        } else {
            collection.objects.insert(key, object);
        }
        collection.watches.retain(|watch| watch.send(event.clone()).is_ok());
        collection.events.push((version, event));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn answer(state: &mut State, uri: &Uri) -> Response {
    let path = uri.path().to_owned();
    let query = uri.query().unwrap_or_default();
    let watched_from = query.contains("watch=true").then(|| {
        let version = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="));
        version.and_then(|version| version.parse::<u64>().ok()).unwrap_or(0)
    });
    let is_discovery = path.starts_with("/apis/") && path.split('/').count() == 4;
    let is_single = is_discovery || path.ends_with("/scale");
    let verb = match watched_from {
        Some(_) => "watch",
        None if is_single => "get",
        None => "list",
    };
    state.asked.push((verb, path.clone()));
    if let Some(&code) = state.failing.get(&path) {
        return failure(code);
    }
    if is_single {
        return match state.singles.get(&path) {
            Some(answer) => Json(answer.clone()).into_response(),
            None => failure(404),
        };
    }
    let version = state.version;
    let collection = state.collections.entry(path).or_default();
    match watched_from {
        Some(from) => watch(collection, from),
        None => Json(json!({
            "apiVersion": "v1", "kind": "List",
            "metadata": {"resourceVersion": version.to_string()},
            "items": collection.objects.values().collect::<Vec<_>>(),
        }))
        .into_response(),
    }
}

fn watch(collection: &mut Collection, from: u64) -> Response {
    let (sender, receiver) = mpsc::unbounded_channel();
    if from < collection.expired_before {
        let gone = json!({"type": "ERROR", "object": status(410)});
        sender.send(gone).unwrap();
    } else {
        for (_, event) in collection.events.iter().filter(|(version, _)| *version > from) {
            sender.send(event.clone()).unwrap();
        }
        collection.watches.push(sender);
    }
    let lines = UnboundedReceiverStream::new(receiver)
        .map(|event| Ok::<_, Infallible>(Bytes::from(format!("{event}\n"))));
    Body::from_stream(lines).into_response()
}

fn failure(code: u16) -> Response {
    (StatusCode::from_u16(code).unwrap(), Json(status(code))).into_response()
}

fn status(code: u16) -> Value {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        410 => "Expired",
        _ => "InternalError",
    };
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "so the test wants it", "reason": reason, "code": code})
}
