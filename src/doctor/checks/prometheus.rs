//! What Prometheus has of the engines and of what wakes them: nothing, something by another name, or
//! something with another label.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::doctor::facts::{Facts, Labels, Missing, Said, Selected};
use crate::doctor::finding::{Finding, Fix, Patch};
use crate::doctor::object::{Trigger, list, name, namespace, own_trigger, text};
use crate::doctor::workload::{Engine, pod_pointer};
use crate::signals::engine::About;
use crate::source::{Error as SourceError, FileRole, QueryFault};
use crate::telemetry::ErrorChain;
use crate::trigger::{SourceKind, nearest};

/// What nearly every fleet has, for a hint.
const USUAL: &str = "vllm:num_requests_running";
/// vLLM's old name of its KV usage, in each spelling of it, and the end of the new one.
const RENAMED: ([&str; 4], &str) = (
    [
        "vllm:gpu_cache_usage_perc",
        "vllm_gpu_cache_usage_perc",
        "ray_vllm:gpu_cache_usage_perc",
        "ray_vllm_gpu_cache_usage_perc",
    ],
    "kv_cache_usage_perc",
);
/// How a scrape of pods writes their namespace.
const RELABEL: &str = "relabel_configs: [{source_labels: [__meta_kubernetes_namespace], \
                       target_label: namespace}]";
/// Where an engine is looked for that declares no port; vLLM's own default.
const DEFAULT_PORT: u16 = 8_000;

pub(super) fn unreadable(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let prometheus = facts.prometheus.as_ref()?;
    let Err(error) = &prometheus.said else { return Ok(None) };
    Ok(Some(Finding {
        id: "prometheus-unreadable",
        what: format!("{}: {}", prometheus.url, ErrorChain(&**error)),
        why: "the scaler would see nothing either: it holds the counts, and nothing wakes",
        fix: Fix::words(remedy(error)),
    }))
}

/// What to do about a fault, in words.
fn remedy(error: &SourceError) -> &'static str {
    match error {
        SourceError::Unauthorized { .. } | SourceError::File { what: FileRole::Token, .. } => {
            "it wants a token, or another one: name its file in bearerTokenFile of the scaler's \
             configuration, and here in --prometheus-token-file"
        }
        SourceError::Tls(_) | SourceError::File { what: FileRole::Ca, .. } => {
            "its certificate is not trusted, or made for another name, or there is no TLS at that \
             port: name the authority that signed it in caFile of the scaler's configuration, and \
             here in --prometheus-ca-file"
        }
        SourceError::Timeout { .. }
        | SourceError::NoTurn { .. }
        | SourceError::Query { fault: QueryFault::Timeout, .. } => {
            "it is there and too slow, or a firewall swallows the packets: look at its load and \
             at the NetworkPolicies, or give it a longer timeout in the scaler's configuration"
        }
        SourceError::Refused => {
            "nothing listens there: check host and port, and whether it runs (in a cluster: \
             kubectl port-forward first)"
        }
        SourceError::Transport(_) | SourceError::Incomplete { .. } | SourceError::Setup(_) => {
            "the host is not known, or hangs up: check the name, and http against https"
        }
        SourceError::HttpStatus { .. } | SourceError::BadBody { .. } => {
            "something else answers there, such as a login page or a path prefix: give the URL \
             below which /api/v1/query stands"
        }
        SourceError::Query { .. }
        | SourceError::TooLarge { .. }
        | SourceError::NoNamespace
        | SourceError::AmbiguousTenant
        | SourceError::NoModel
        | SourceError::Page(_)
        | SourceError::Config(_)
        | SourceError::BadAddress => "check the URL, and the queries of the scaler's configuration",
    }
}

/// What Prometheus said, where the trigger reads engines from it. What it does not say is its pods' own
/// pages: the scaler's default in a cluster, which has all ScaledObjects.
fn read_from(facts: &Facts) -> Result<Option<&Said>, Missing> {
    let source = own_trigger(&facts.object).and_then(|own| own.policy().source);
    if source != Some(SourceKind::Prometheus) {
        return Ok(None);
    }
    said(facts).map(Some)
}

fn said(facts: &Facts) -> Result<&Said, Missing> {
    let said = facts.prometheus.as_ref()?.said.as_ref();
    said.map_err(|_told| Missing::because("Prometheus cannot be read"))
}

pub(super) fn no_engine_series(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let Some(said) = read_from(facts)? else { return Ok(None) };
    if !said.engines.is_empty() {
        return Ok(None);
    }
    let Ok(target) = facts.target.as_ref() else {
        return Err(Missing::because("which pods a PodMonitor would have to select is not known"));
    };
    Ok(Some(Finding {
        id: "no-engine-series",
        what: format!("Prometheus has no series of any engine: expected {USUAL} or the like"),
        why: "with source: prometheus the scaler sees no engine, and holds the count for ever",
        fix: scraped(target),
    }))
}

/// How Prometheus's operator comes to scrape the pods of a target, at a port that they have.
fn scraped(target: &Value) -> Fix {
    let container = Engine::of(target).map(|engine| engine.container).or_else(|| {
        let pod = pod_pointer(target)?;
        Some(format!("{pod}/containers/0"))
    });
    let words = "let Prometheus scrape the engines (vLLM also has none under --disable-log-stats), or \
                 take source out of the trigger: the scaler then reads the pods themselves";
    let container = container.filter(|container| target.pointer(container).is_some());
    let selector = &target["spec"]["selector"];
    let is_selector =
        ["matchLabels", "matchExpressions"].iter().any(|key| selector.get(key).is_some());
    // What another kind says of its pods, a monitor cannot be made of.
    let Some(container) = container.filter(|_| is_selector) else { return Fix::words(words) };
    let ports = list(target, &format!("{container}/ports"));
    let named = |name: &&str| ports.iter().any(|port| port["name"] == **name);
    let known = ["metrics", "http"].into_iter().find(named);
    let known = known.or_else(|| ports.iter().find_map(|port| text(port, "/name")));
    let endpoint = match (known, ports.first()) {
        (Some(name), _) => json!({"port": name}),
        (None, Some(port)) => json!({"portNumber": port["containerPort"]}),
        (None, None) => json!({"port": "http"}),
    };
    let monitor = json!({"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor",
        "metadata": {"name": name(target), "namespace": namespace(target)},
        "spec": {"selector": selector, "podMetricsEndpoints": [endpoint]}});
    let fix = if ports.is_empty() {
        // A PodMonitor finds only ports that a pod declares.
        let port = json!({"name": "http", "containerPort": DEFAULT_PORT});
        Fix::patch(words, Patch::to(target).set(&format!("{container}/ports/-"), port))
    } else {
        Fix::words(words)
    };
    let monitor = serde_saphyr::to_string(&monitor).unwrap_or_default();
    fix.and(format!("kubectl apply -f - <<'EOF'\n{}\nEOF", monitor.trim_end()))
}

pub(super) fn renamed(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let Some(said) = read_from(facts)? else { return Ok(None) };
    let own: Vec<&str> = within(said, namespace(&facts.object)).filter_map(metric).collect();
    if own.is_empty() || own.iter().any(|name| is_load(name)) {
        return Ok(None);
    }
    let near = nearest(USUAL, own.iter().copied()).unwrap_or_default();
    Ok(Some(Finding {
        id: "engine-series-renamed",
        what: format!("of this namespace there is no {USUAL}; nearest is {near}"),
        why: "the scaler knows engines by their own names, in every version's spelling: under \
              another they are not there",
        fix: Fix::words(format!(
            "keep the engine's own names: take out the metricRelabelings or the recording rule that \
             makes {near}; or take source out of the trigger: the scaler then reads the pods themselves"
        )),
    }))
}

pub(super) fn deprecated(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let Some(said) = read_from(facts)? else { return Ok(None) };
    let own = || within(said, namespace(&facts.object)).filter_map(metric);
    let old = own().find(|name| RENAMED.0.contains(name));
    let Some(old) = old.filter(|_| !own().any(|name| name.ends_with(RENAMED.1))) else {
        return Ok(None);
    };
    Ok(Some(Finding {
        id: "engine-series-deprecated",
        what: format!("the engines tell their KV usage as {old} only"),
        why: "vLLM calls it kv_cache_usage_perc since 0.9.2, and has the old name no longer since \
              0.12. The scaler reads either, dashboards and alerts mostly one",
        fix: Fix::words(
            "update vLLM to 0.9.2 or later; until then let dashboards and alerts ask for both names",
        ),
    }))
}

pub(super) fn elsewhere(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let Some(said) = read_from(facts)? else { return Ok(None) };
    let wanted = namespace(&facts.object);
    let loads = || said.engines.iter().filter(|labels| metric(labels).is_some_and(is_load));
    if loads().next().is_none() || within(said, wanted).next().is_some() {
        return Ok(None);
    }
    let values = |label: &str| -> Vec<&str> {
        loads().filter_map(|labels| labels.get(label)).map(String::as_str).collect()
    };
    let exported = values("exported_namespace").contains(&wanted);
    let near = nearest(wanted, values("namespace").into_iter());
    let (what, fix) = match near {
        Some(_) if exported => (
            format!("the engines' namespace {wanted:?} stands in exported_namespace"),
            "let the scrape keep the page's own labels (honorLabels: true), or scrape the pods \
             themselves with a PodMonitor"
                .to_owned(),
        ),
        Some(near) => (
            format!("no engine series has namespace={wanted:?}; nearest is namespace={near:?}"),
            format!(
                "if {near:?} is meant, put the ScaledObject there; if the label is wrong, let the \
                 scrape write it: {RELABEL}"
            ),
        ),
        None => (
            "the engines' series have no namespace label".to_owned(),
            format!("let the scrape write it: {RELABEL}"),
        ),
    };
    Ok(Some(Finding {
        id: "engine-series-elsewhere",
        what,
        why: "each read is bound to the ScaledObject's namespace, so that no other team's traffic \
              moves its replicas: what is labelled otherwise is not seen",
        fix: Fix::words(fix),
    }))
}

pub(super) fn other_model(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let Some(own) = own_trigger(&facts.object) else { return Ok(None) };
    let Some(wanted) = own.metadata("modelName") else { return Ok(None) };
    let said = said(facts)?;
    let loads = within(said, namespace(&facts.object));
    let loads = loads.filter(|labels| metric(labels).is_some_and(is_load));
    let models: Vec<&str> =
        loads.filter_map(|labels| labels.get("model_name")).map(String::as_str).collect();
    if models.contains(&wanted) {
        return Ok(None);
    }
    let Some(near) = nearest(wanted, models.into_iter()) else { return Ok(None) };
    Ok(Some(Finding {
        id: "other-model-name",
        what: format!("modelName is {wanted:?}, and no series has it; nearest is {near:?}"),
        why: "the scaler counts only that model's series, so it finds none",
        fix: Fix::patch(
            "take the name that the engine writes: its first --served-model-name",
            own.patch(&facts.object).set(&own.pointer("metadata/modelName"), near),
        ),
    }))
}

pub(super) fn wake_unmatched(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let Some(own) = own_trigger(&facts.object).filter(|own| own.has("wakeSource")) else {
        return Ok(None);
    };
    let said = said(facts)?;
    let Some(wake) = &said.wake else {
        return Err(Missing::because("the wake source's query is not known"));
    };
    let missed =
        wake.selectors.iter().find(|selected| !selected.found.is_empty() && !finds(selected));
    let gone = wake.selectors.first().filter(|_| wake.is_empty);
    let Some(selected) = missed.or(gone) else { return Ok(None) };
    let metric = &selected.metric;
    let why = "a request at zero is not seen: what sleeps never wakes, and nothing says so";
    // The series that has most of what is wanted, and what it has otherwise.
    let differs = |labels: &Labels| {
        selected.wants.iter().filter(|want| labels.get(want.0) != Some(want.1)).count()
    };
    let Some(near) = selected.found.iter().min_by_key(|labels| differs(labels)) else {
        return Ok(Some(Finding {
            id: "wake-query-unmatched",
            what: format!(
                "wake source {:?} finds nothing: there is no series {metric}",
                wake.source
            ),
            why,
            fix: Fix::words(
                "check the metric's name against the gateway's /metrics, and that Prometheus \
                 scrapes it; one that exists only while something waits needs its zero in the \
                 query: `or 0 * max(up{job=\"gateway\"})`",
            ),
        }));
    };
    let mut fix = Fix::words(format!(
        "correct the matchers of wake source {:?} in the scaler's configuration",
        wake.source
    ));
    let mut misses = Vec::new();
    for (label, want) in selected.wants.iter().filter(|want| near.get(want.0) != Some(want.1)) {
        match near.get(label) {
            Some(has) => {
                misses.push(format!("{label}={want:?}, nearest is {label}={has:?}"));
                if own.metadata("modelName") == Some(want) {
                    fix = other_name(facts, own, (said, &wake.source), (label, want, has));
                }
            }
            None => misses.push(format!("{label}={want:?}, and they have no label {label}")),
        }
    }
    Ok(Some(Finding {
        id: "wake-query-unmatched",
        what: format!("wake source {:?} asks {metric} for {}", wake.source, misses.join("; ")),
        why,
        fix,
    }))
}

/// Whether there is a series that a selector asks for.
fn finds(selected: &Selected) -> bool {
    let fits =
        |labels: &Labels| selected.wants.iter().all(|want| labels.get(want.0) == Some(want.1));
    selected.found.iter().any(fits)
}

/// A model that the gateway calls otherwise than the trigger: the trigger's name is wrong, unless its
/// engines have it.
fn other_name(
    facts: &Facts,
    own: Trigger<'_>,
    (said, source): (&Said, &str),
    (label, want, has): (&str, &str, &str),
) -> Fix {
    let mut engines = within(said, namespace(&facts.object));
    if engines.any(|labels| labels.get("model_name").is_some_and(|name| name == want)) {
        return Fix::words(format!(
            "the engines have {want:?}, so that it stays in the trigger: let the gateway use it too, \
             or give the trigger a wake source of its own, a copy of {source:?} with {label}={has:?} \
             in its query"
        ));
    }
    let patch = own.patch(&facts.object).set(&own.pointer("metadata/modelName"), has);
    Fix::patch("take the model's name as the gateway writes it", patch)
}

pub(super) fn unserved_model(facts: &Facts) -> Result<Option<Finding>, Missing> {
    let object = &facts.object;
    let Some(own) = own_trigger(object).filter(|own| own.has("wakeSource")) else {
        return Ok(None);
    };
    let Some(model) = own.metadata("modelName") else { return Ok(None) };
    let said = said(facts)?;
    let mut named = BTreeSet::new();
    let selectors = said.wake.iter().flat_map(|wake| &wake.selectors);
    // Where the own model is not found, one of the others may well be it, as another check says.
    for selected in selectors.filter(|selected| finds(selected)) {
        named.extend(models_beside(selected, model, namespace(object)));
    }
    for engine in &said.engines {
        named.retain(|name| engine.get("model_name").map(String::as_str) != Some(name));
    }
    if named.is_empty() {
        return Ok(None);
    }
    for other in facts.other_objects.as_ref()? {
        let served = own_trigger(other).and_then(|trigger| trigger.metadata("modelName"));
        named.retain(|name| Some(*name) != served);
    }
    if named.is_empty() {
        return Ok(None);
    }
    let names: Vec<String> = named.iter().take(3).map(|name| format!("{name:?}")).collect();
    Ok(Some(Finding {
        id: "unserved-model",
        what: format!(
            "the gateway counts requests for {}, and no ScaledObject here has that modelName",
            names.join(", ")
        ),
        why: "a model under another name at the gateway than in its trigger is woken by nobody: its \
              requests wait or fail",
        fix: Fix::words(
            "give the ScaledObject that serves it this modelName, as the gateway writes it; of a \
             model that nobody should ask for take the route out",
        ),
    }))
}

/// The other models that the gateway's series of this namespace name, in the label in which `model` is
/// looked for. A query that is not bound to the namespace finds others' models too: then none.
fn models_beside<'a>(selected: &'a Selected, model: &str, namespace: &str) -> Vec<&'a str> {
    let label_of = |value: &str| selected.wants.iter().find(|want| want.1 == value);
    let (Some((by_model, _)), Some(home)) = (label_of(model), label_of(namespace)) else {
        return Vec::new();
    };
    let here = selected.found.iter().filter(|series| series.get(home.0) == Some(home.1));
    let names = here.filter_map(|series| series.get(by_model)).map(String::as_str);
    names.filter(|name| !name.is_empty() && *name != model).collect()
}

fn metric(labels: &Labels) -> Option<&str> {
    labels.get("__name__").map(String::as_str)
}

fn is_load(name: &str) -> bool {
    load_names().any(|known| spelled_alike(&known, name))
}

/// The series without which an engine cannot be read: what runs and what waits, of every engine.
pub(in crate::doctor) fn load_names() -> impl Iterator<Item = String> {
    let reads = About::ALL.iter().flat_map(About::reads);
    let loads = reads.filter(|(signal, _)| matches!(*signal, "waiting" | "running"));
    let names = loads.flat_map(|(_, alternatives)| alternatives.into_iter().flatten());
    names.map(|name| name.split('{').next().unwrap_or_default().to_owned())
}

/// Ray re-exports names with its own before them, and some scrapes turn the colon around.
fn spelled_alike(known: &str, name: &str) -> bool {
    let plain = |name: &str| name.replace(':', "_");
    plain(name.strip_prefix("ray_").unwrap_or(name)) == plain(known)
}

fn within<'a>(said: &'a Said, namespace: &'a str) -> impl Iterator<Item = &'a Labels> {
    let here =
        move |labels: &&Labels| labels.get("namespace").is_some_and(|name| name == namespace);
    said.engines.iter().filter(here)
}
