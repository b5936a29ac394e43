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

/// The kinds that it has: where they stand, and in the plural.
const KINDS: [(&str, &str, &str); 16] = [
    ("APIService", "apis/apiregistration.k8s.io/v1", "apiservices"),
    ("ClusterRole", "apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    ("ClusterRoleBinding", "apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    ("ConfigMap", "api/v1", "configmaps"),
    ("Deployment", "apis/apps/v1", "deployments"),
    ("HorizontalPodAutoscaler", "apis/autoscaling/v2", "horizontalpodautoscalers"),
    ("InferenceService", "apis/serving.kserve.io/v1beta1", "inferenceservices"),
    ("Lease", "apis/coordination.k8s.io/v1", "leases"),
    ("Node", "api/v1", "nodes"),
    ("Pod", "api/v1", "pods"),
    ("PodMonitor", "apis/monitoring.coreos.com/v1", "podmonitors"),
    ("ResourceQuota", "api/v1", "resourcequotas"),
    ("Role", "apis/rbac.authorization.k8s.io/v1", "roles"),
    ("RoleBinding", "apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    ("ScaledObject", "apis/keda.sh/v1alpha1", "scaledobjects"),
    ("Service", "api/v1", "services"),
];

/// The server; its kubeconfig is gone with it.
pub(super) struct Api {
    state: Arc<Mutex<State>>,
    dir: TempDir,
}

#[derive(Default)]
struct State {
    objects: Vec<Value>,
    /// What is no object.
    answers: BTreeMap<String, Value>,
    forbidden: Vec<String>,
    /// Resources that the scaler's account may not use, unless a role says so.
    denied: Vec<String>,
    /// Who asks.
    username: String,
    /// The kinds of the questions about rights.
    reviews: Vec<String>,
    /// The account that they were about, if they said one.
    asked_about: Option<String>,
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

    /// Has this object from now on, in place of one of the same kind and name.
    pub(super) fn put(&self, mut object: Value) {
        self.remove(word(&object, "kind"), namespace(&object), name(&object));
        if object["kind"] == "Service" && object["spec"].get("clusterIP").is_none() {
            object["spec"]["clusterIP"] = json!("10.0.0.7");
        }
        object["metadata"]["uid"] = json!("1");
        let group = KINDS.iter().find(|known| object["kind"] == known.0).unwrap().1;
        let version = group.trim_start_matches("apis/").trim_start_matches("api/");
        object["apiVersion"] = json!(version);
        self.state.lock().unwrap().objects.push(object);
    }

    pub(super) fn remove(&self, kind: &str, namespace: Option<&str>, name: &str) {
        self.state.lock().unwrap().objects.retain(|object| !is(object, kind, namespace, name));
    }

    /// Changes the object of this kind and name, in whatever namespace.
    pub(super) fn change(&self, kind: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut state = self.state.lock().unwrap();
        let found =
            state.objects.iter_mut().find(|it| it["kind"] == kind && self::name(it) == name);
        change(found.unwrap_or_else(|| panic!("there is no {kind}/{name}")));
    }

    /// The object of this kind and name.
    pub(super) fn get(&self, kind: &str, namespace: Option<&str>, name: &str) -> Option<Value> {
        let state = self.state.lock().unwrap();
        state.objects.iter().find(|object| is(object, kind, namespace, name)).cloned()
    }

    /// What a GET of this path answers, where no object stands.
    pub(super) fn answer(&self, path: &str, answer: Value) {
        self.state.lock().unwrap().answers.insert(path.to_owned(), answer);
    }

    /// Answers this path with 403.
    pub(super) fn forbid(&self, path: &str) {
        self.state.lock().unwrap().forbidden.push(path.to_owned());
    }

    /// Lets the scaler's account do nothing with such a resource.
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

    /// The account that the last of them was about.
    pub(super) fn asked_about(&self) -> Option<String> {
        self.state.lock().unwrap().asked_about.clone()
    }
}

fn word<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap()
}

pub(super) fn name(object: &Value) -> &str {
    word(&object["metadata"], "name")
}

fn namespace(object: &Value) -> Option<&str> {
    object["metadata"]["namespace"].as_str()
}

fn is(object: &Value, kind: &str, namespace: Option<&str>, name: &str) -> bool {
    object["kind"] == kind && self::namespace(object) == namespace && self::name(object) == name
}

/// The path of the objects of a kind: of one namespace, or of all.
fn collection(object: &Value, namespace: Option<&str>) -> String {
    let kind = word(object, "kind");
    let known = KINDS.iter().find(|known| known.0 == kind);
    let (_, group, plural) = known.unwrap_or_else(|| panic!("{kind} is no kind here"));
    match namespace {
        Some(namespace) => format!("/{group}/namespaces/{namespace}/{plural}"),
        None => format!("/{group}/{plural}"),
    }
}

fn answer(state: &mut State, method: &Method, uri: &Uri, body: &[u8]) -> Response {
    let path = uri.path();
    if state.forbidden.iter().any(|forbidden| forbidden == path) {
        return failure(403);
    }
    if method == Method::POST {
        return review(state, path, body);
    }
    if let Some(answer) = state.answers.get(path) {
        return Json(answer).into_response();
    }
    let own = |object: &&Value| collection(object, namespace(object));
    if let Some(found) = state.objects.iter().find(|it| format!("{}/{}", own(it), name(it)) == path)
    {
        return Json(found).into_response();
    }
    let (before, plural) = path.rsplit_once('/').unwrap();
    if !KINDS.iter().any(|(_, group, known)| {
        *known == plural && before.trim_start_matches('/').starts_with(group)
    }) {
        return failure(404);
    }
    let query = uri.query().unwrap_or_default();
    let label = |item: &Value| item["metadata"]["labels"]["app.kubernetes.io/name"].clone();
    let is_meant = |item: &&Value| {
        !query.contains("labelSelector")
            || label(item).as_str().is_some_and(|name| query.contains(name))
    };
    let within = |it: &&Value| own(it) == path || collection(it, None) == path;
    let items = state.objects.iter().filter(within).filter(is_meant).cloned();
    let bare = |mut item: Value| {
        // What all of a list have in common, its items leave out.
        item.as_object_mut().unwrap().retain(|key, _| key != "kind" && key != "apiVersion");
        item
    };
    let items: Vec<Value> = items.map(bare).collect();
    Json(json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}))
        .into_response()
}

/// Whether the account may: where nothing is denied, or a role of whatever name gives it.
fn review(state: &mut State, path: &str, body: &[u8]) -> Response {
    let kind = path.rsplit('/').next().unwrap().to_owned();
    let mut review: Value = serde_json::from_slice(body).unwrap();
    let asked = &review["spec"]["resourceAttributes"];
    let resource = &asked["resource"];
    let has = |list: &Value, value: &Value| list.as_array().is_some_and(|all| all.contains(value));
    let gives = |rule: &Value| {
        has(&rule["resources"], resource)
            && has(&rule["apiGroups"], &asked["group"])
            && has(&rule["verbs"], &asked["verb"])
    };
    let rules = state.objects.iter().filter_map(|object| object["rules"].as_array()).flatten();
    let is_denied = state.denied.iter().any(|denied| resource == denied);
    let allowed = !is_denied || rules.into_iter().any(gives);
    if let Some(user) = review["spec"]["user"].as_str() {
        state.asked_about = Some(user.to_owned());
    }
    let user = json!({"username": state.username});
    review["status"] = json!({"allowed": allowed, "userInfo": user});
    state.reviews.push(kind);
    (StatusCode::CREATED, Json(review)).into_response()
}

fn failure(code: u16) -> Response {
    let reason = if code == 403 { "Forbidden" } else { "NotFound" };
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "so the test wants it", "reason": reason, "code": code});
    (StatusCode::from_u16(code).unwrap(), Json(status)).into_response()
}

/// The kind that a word of a command names.
pub(super) fn kind_of(word: &str) -> &'static str {
    let is_it = |kind: &str, plural: &str| {
        word == kind.to_ascii_lowercase()
            || word == plural
            || word == "hpa" && kind.starts_with("Hor")
    };
    let found = KINDS.iter().find(|(kind, _, plural)| is_it(kind, plural));
    found.unwrap_or_else(|| panic!("{word} is no kind here")).0
}
