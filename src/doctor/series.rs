//! Facts from a Prometheus: what looks like an engine, what a wake source's query finds, how long
//! answers take.
//!
//! Must not be used for answers to KEDA: it looks beyond the ScaledObject's namespace, for whoever
//! runs it.

use std::sync::Arc;

use super::checks::load_names;
use super::facts::{Facts, Labels, Prometheus, Said, Selected, Wake};
use super::object::{name, namespace, own_trigger};
use super::promql::{self, Selector};
use crate::source::Error;
use crate::source::config::PrometheusConfig;
use crate::source::prometheus::{Answer, PrometheusClient};
use crate::source::selector::Query;
use crate::source::wake::Subject;

/// Names that speak of an engine's load, whoever gave them.
const ALIKE: &str = "(.*[:_])?(vllm|sglang)[:_].*|.*num_requests_.*|.*num_(running|queue)_reqs";

/// Histograms of the time from request to last token: of vLLM (also as Ray re-exports it), SGLang and
/// trtllm-serve, of NIM without a prefix, and of TGI by its own name. LMDeploy, llama.cpp and Triton
/// have none.
const WHOLE_ANSWERS: &str = "((ray_)?(vllm|sglang|trtllm)[:_])?e2e_request_latency_seconds_bucket\
    |tgi_request_duration_bucket";

/// Asks a Prometheus what the checks of these facts need, and puts it there.
pub(super) async fn ask(config: &PrometheusConfig, facts: &mut Facts) {
    let said = match PrometheusClient::new(config) {
        Ok(client) => said(&client, facts).await,
        Err(error) => Err(error),
    };
    let said = said.map(|(said, longest_ms)| {
        if let (Some(millis), true) = (longest_ms, facts.longest_answer_ms.is_err()) {
            facts.longest_answer_ms = Ok(millis);
        }
        said
    });
    facts.prometheus = Ok(Prometheus { url: config.url.clone(), said: said.map_err(Arc::new) });
}

async fn said(client: &PrometheusClient, facts: &Facts) -> Result<(Said, Option<u64>), Error> {
    let known: Vec<String> = load_names().map(|name| name.replace(':', "[:_]")).collect();
    // Buckets are nine of ten lines.
    let engines = format!(
        "count by (__name__, namespace, exported_namespace, model_name) \
         ({{__name__=~\"{}|{ALIKE}\",__name__!~\".*_(bucket|created)\"}})",
        known.join("|")
    );
    let engines = labels(&client.instant(&Query::written(&engines)).await?);
    let said = Said { engines, wake: wake(client, facts).await? };
    let namespace = namespace(&facts.object);
    let longest = format!(
        "histogram_quantile(0.99, sum by (le) (rate({{__name__=~\"{WHOLE_ANSWERS}\",\
         namespace=\"{namespace}\"}}[1d])))"
    );
    let longest = client.instant(&Query::written(&longest)).await?;
    let seconds = longest.series.first().and_then(|series| series.samples.last());
    Ok((said, seconds.and_then(|sample| millis(sample.value))))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "finite, positive and below a day: a cast of the whole number is exact"
)]
fn millis(seconds: f64) -> Option<u64> {
    (seconds > 0.0 && seconds < 86_400.0).then(|| (seconds * 1e3).ceil() as u64)
}

async fn wake(client: &PrometheusClient, facts: &Facts) -> Result<Option<Wake>, Error> {
    let (Some(own), Ok(configuration)) = (own_trigger(&facts.object), &facts.configuration) else {
        return Ok(None);
    };
    let source = own.metadata("wakeSource").and_then(|name| configuration.wake_sources.get(name));
    let Some(source) = source else { return Ok(None) };
    let (namespace, name) = (namespace(&facts.object), name(&facts.object));
    let subject = Subject { namespace, name, model: own.metadata("modelName") };
    let Some(query) = source.query_of(&subject)? else { return Ok(None) };
    let is_empty = client.instant(&Query::written(&query)).await?.series.is_empty();
    let mut selectors = Vec::new();
    for Selector { metric, wants } in promql::selectors(&query) {
        let by: Vec<&str> = wants.keys().map(String::as_str).collect();
        let query = format!("count by ({}) ({metric})", by.join(", "));
        let found = labels(&client.instant(&Query::written(&query)).await?);
        selectors.push(Selected { metric, wants, found });
    }
    Ok(Some(Wake { source: source.name.clone(), is_empty, selectors }))
}

fn labels(answer: &Answer) -> Vec<Labels> {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    answer.series.iter().map(|series| series.labels.iter().map(owned).collect()).collect()
}
