//! A Kubernetes API server as far as single objects go, on a real socket: create, read, replace with
//! its version, apply, delete, and lists by label.
//!
//! Used by tests only.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

/// The server. It ends with the test's runtime.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    state: Arc<Mutex<State>>,
    address: std::net::SocketAddr,
}

/// The way of one client.
#[derive(Debug)]
pub(crate) struct Door(watch::Sender<bool>);

impl Door {
    /// Lets nothing through, or everything again.
    pub(crate) fn shut(&self, is_shut: bool) {
        self.0.send_replace(is_shut);
    }
}

#[derive(Debug, Default)]
struct State {
    version: u64,
    /// By path.
    objects: BTreeMap<String, Value>,
    /// Method and path of every change that was taken.
    writes: Vec<(String, String)>,
    /// How often it was read.
    n_reads: usize,
    /// Everything answers with this status, after this time.
    failing: Option<u16>,
    /// Whatever has this in its path answers with 500.
    failing_part: Option<&'static str>,
    /// The next write is made, and answered with 500.
    loses_answer: bool,
    delay: Duration,
}

impl Store {
    /// Starts it on a free port.
    pub(crate) async fn start() -> Store {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let store = Store { state, address };
        let shared = store.clone();
        let app = Router::new().fallback(move |method: Method, uri: Uri, body: Bytes| {
            let shared = shared.clone();
            async move {
                let delay = shared.lock().delay;
                sleep(delay).await;
                let mut state = shared.lock();
                let answer = answer(&mut state, &method, &uri, &body);
                let is_lost = method != Method::GET && std::mem::take(&mut state.loses_answer);
                if is_lost { failure(500) } else { answer }
            }
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        store
    }

    /// A client of it, with a connection of its own.
    pub(crate) fn client(&self) -> kube::Client {
        let config = kube::Config::new(format!("http://{}", self.address).parse().unwrap());
        kube::Client::try_from(config).unwrap()
    }

    /// A client with a way of its own to the server, which can be shut.
    pub(crate) async fn client_behind_a_door(&self) -> (kube::Client, Door) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shut, is_shut) = watch::channel(false);
        let shared = self.clone();
        let app = Router::new().fallback(move |method: Method, uri: Uri, body: Bytes| {
            let (shared, mut is_shut) = (shared.clone(), is_shut.clone());
            async move {
                // What comes while it is shut gets no answer, as when packets vanish.
                is_shut.wait_for(|is_shut| !is_shut).await.unwrap();
                answer(&mut shared.lock(), &method, &uri, &body)
            }
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        (kube::Client::try_from(config).unwrap(), Door(shut))
    }

    /// The object at a path.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.lock().objects.get(path).cloned()
    }

    /// Every object whose path starts so.
    pub(crate) fn below(&self, path: &str) -> Vec<Value> {
        let state = self.lock();
        let below = state.objects.iter().filter(|(own, _)| own.starts_with(path));
        below.map(|(_, object)| object.clone()).collect()
    }

    /// Puts an object there, as somebody else would.
    pub(crate) fn put(&self, path: &str, object: Value) {
        let mut state = self.lock();
        state.put(path, object);
    }

    /// Removes it, as somebody else would.
    pub(crate) fn remove(&self, path: &str) {
        self.lock().objects.remove(path);
    }

    /// Changes of paths that start so.
    pub(crate) fn n_writes(&self, path: &str) -> usize {
        self.lock().writes.iter().filter(|(_, own)| own.starts_with(path)).count()
    }

    /// How often it has been read.
    pub(crate) fn n_reads(&self) -> usize {
        self.lock().n_reads
    }

    /// Answers everything with this status, or as usual again.
    pub(crate) fn fail(&self, status: Option<u16>) {
        self.lock().failing = status;
    }

    /// Fails for paths with this part, or as usual again.
    pub(crate) fn fail_at(&self, part: Option<&'static str>) {
        self.lock().failing_part = part;
    }

    /// Makes the next write and loses its answer.
    pub(crate) fn lose_answer(&self) {
        self.lock().loses_answer = true;
    }

    /// Whether the answer that was to be lost is.
    pub(crate) fn has_lost_answer(&self) -> bool {
        !self.lock().loses_answer
    }

    /// Takes this long for everything.
    pub(crate) fn delay(&self, delay: Duration) {
        self.lock().delay = delay;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        object["metadata"]["uid"] = json!(format!("uid-of-{path}"));
        self.objects.insert(path.to_owned(), object.clone());
        object
    }
}

fn answer(state: &mut State, method: &Method, uri: &Uri, body: &[u8]) -> Response {
    if let Some(code) = state.failing {
        return failure(code);
    }
    let path = uri.path().to_owned();
    if state.failing_part.is_some_and(|part| path.contains(part)) {
        return failure(500);
    }
    let object = || serde_json::from_slice::<Value>(body).unwrap();
    if *method == Method::GET {
        state.n_reads += 1;
    } else {
        state.writes.push((method.to_string(), path.clone()));
    }
    match *method {
        Method::POST => {
            let object = object();
            let name = object["metadata"]["name"].as_str().unwrap_or("generated");
            let path = format!("{path}/{name}");
            if state.objects.contains_key(&path) {
                return failure(409);
            }
            Json(state.put(&path, object)).into_response()
        }
        Method::PUT => {
            let object = object();
            let Some(known) = state.objects.get(&path) else { return failure(404) };
            let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
            if version(&object) != version(known) {
                return failure(409);
            }
            Json(state.put(&path, object)).into_response()
        }
        Method::PATCH => Json(state.put(&path, object())).into_response(),
        Method::DELETE => match state.objects.remove(&path) {
            Some(object) => Json(object).into_response(),
            None => failure(404),
        },
        _ => match state.objects.get(&path) {
            Some(object) => Json(object.clone()).into_response(),
            // A name has been asked for where the path has one more part than its collection.
            None if is_object(&path) => failure(404),
            None => list(state, &path, uri.query().unwrap_or_default()),
        },
    }
}

fn is_object(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    parts.next();
    matches!(parts.next(), Some("leases" | "configmaps"))
}

fn list(state: &State, path: &str, query: &str) -> Response {
    // `labelSelector=key%3Dvalue`, as the client writes it.
    let query = query.replace("%3D", "=").replace("%2F", "/");
    let selector = query.split('&').find_map(|pair| pair.strip_prefix("labelSelector="));
    let (key, value) = selector.and_then(|selector| selector.split_once('=')).unwrap_or_default();
    let prefix = format!("{path}/");
    let items: Vec<&Value> = state
        .objects
        .iter()
        .filter(|(own, object)| {
            own.starts_with(&prefix) && object["metadata"]["labels"][key] == *value
        })
        .map(|(_, object)| object)
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items});
    Json(list).into_response()
}

fn failure(code: u16) -> Response {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        _ => "InternalError",
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "so the test wants it", "reason": reason, "code": code});
    (StatusCode::from_u16(code).unwrap(), Json(status)).into_response()
}
