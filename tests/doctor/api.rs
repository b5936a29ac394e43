//! An API server as far as `doctor` asks one, on a real socket.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

/// The server; its kubeconfig is gone with it.
pub(super) struct Api {
    state: Arc<Mutex<State>>,
    dir: TempDir,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    forbidden: Vec<String>,
    /// Resources that the scaler's account may not read.
    denied: Vec<String>,
    /// Who asks.
    username: String,
    /// The paths of questions about rights.
    reviews: Vec<String>,
}

impl Api {
    pub(super) async fn start() -> Api {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let app = Router::new().fallback(move |method: Method, uri: Uri, body: Bytes| {
            let answer = answer(&mut shared.lock().unwrap(), &method, &uri, &body);
            async move { answer }
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        let dir = tempfile::tempdir().unwrap();
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}}],
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "u", "user": {}}]});
        std::fs::write(dir.path().join("config"), config.to_string()).unwrap();
        Api { state, dir }
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("config")
    }

    /// What a GET of this path answers.
    pub(super) fn put(&self, path: &str, answer: Value) {
        self.state.lock().unwrap().objects.insert(path.to_owned(), answer);
    }

    /// What a list at this path has.
    pub(super) fn list(&self, path: &str, items: &[Value]) {
        self.put(path, json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}));
    }

    /// Changes what stands at a path.
    pub(super) fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        change(self.state.lock().unwrap().objects.get_mut(path).unwrap());
    }

    /// Answers this path with 403.
    pub(super) fn forbid(&self, path: &str) {
        self.state.lock().unwrap().forbidden.push(path.to_owned());
    }

    /// Lets the scaler's account read no such resource.
    pub(super) fn deny(&self, resource: &str) {
        self.state.lock().unwrap().denied.push(resource.to_owned());
    }

    /// Says who asks.
    pub(super) fn name_caller(&self, username: &str) {
        username.clone_into(&mut self.state.lock().unwrap().username);
    }

    /// Which kinds of reviews were asked for, without repeats.
    pub(super) fn reviews(&self) -> Vec<String> {
        let mut reviews = self.state.lock().unwrap().reviews.clone();
        reviews.sort();
        reviews.dedup();
        reviews
    }
}

fn answer(state: &mut State, method: &Method, uri: &Uri, body: &[u8]) -> Response {
    let path = uri.path();
    if state.forbidden.iter().any(|forbidden| forbidden == path) {
        return failure(403);
    }
    if method == Method::POST {
        let kind = path.rsplit('/').next().unwrap().to_owned();
        let mut review: Value = serde_json::from_slice(body).unwrap();
        let resource = &review["spec"]["resourceAttributes"]["resource"];
        let allowed = !state.denied.iter().any(|denied| resource == denied);
        let user = json!({"username": state.username});
        review["status"] = json!({"allowed": allowed, "userInfo": user});
        state.reviews.push(kind);
        return (StatusCode::CREATED, Json(review)).into_response();
    }
    let Some(found) = state.objects.get(path) else { return failure(404) };
    let mut found = found.clone();
    let query = uri.query().unwrap_or_default();
    if let Some(items) = found["items"].as_array_mut().filter(|_| query.contains("labelSelector")) {
        let name = |item: &Value| item["metadata"]["labels"]["app.kubernetes.io/name"].clone();
        items.retain(|item| name(item).as_str().is_some_and(|name| query.contains(name)));
    }
    Json(found).into_response()
}

fn failure(code: u16) -> Response {
    let reason = if code == 403 { "Forbidden" } else { "NotFound" };
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "so the test wants it", "reason": reason, "code": code});
    (StatusCode::from_u16(code).unwrap(), Json(status)).into_response()
}
