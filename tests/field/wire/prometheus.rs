//! Engine series by way of a Prometheus: copies, leftovers, suffixes, refusals and slowness.

use std::time::Duration;

use ghostscaler::decision::{Answer, Health, Phase, Reading, Why};
use ghostscaler::inventory::Member;
use libtest_mimic::Trial;
use tokio::time::Instant;

use super::scaler::{NAMESPACE, Scaler, pod, scaled_object, workload};
use super::upstream::{Act, Series, Upstream};
use super::{eventually, trial};

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("f14_series_of_pods_that_are_gone_are_nobodys_load", gone),
        trial("f16_refused_credentials_are_told_and_are_no_zero", refused),
        trial("f17_the_suffix_of_a_rank_is_joined_to_its_pod", suffixed),
        trial("f19_two_copies_of_a_prometheus_count_once", copies),
        trial("f20_the_newest_point_that_is_a_number_counts", newest),
        trial("f41_a_slow_source_delays_no_answer", slow),
    ]
}

const NOW: &[(i64, &str)] = &[(15, "10"), (0, "10")];

/// Waiting requests of one pod, with any further labels.
fn waiting(pod: &str, more: &[(&'static str, &str)], samples: &[(i64, &'static str)]) -> Series {
    let labels = [
        ("__name__", "vllm:num_requests_waiting"),
        ("namespace", NAMESPACE),
        ("pod", pod),
        ("engine", "0"),
    ];
    let labels = labels.iter().chain(more).map(|(label, value)| (*label, (*value).to_owned()));
    Series { labels: labels.collect(), samples: samples.to_vec() }
}

async fn start(prometheus: &Upstream, pods: Vec<Member>) -> Scaler {
    let config = format!("prometheus: [{{name: main, url: 'http://{}'}}]", prometheus.address);
    Scaler::start(&config, vec![workload("llm", pods, &[("source", "prometheus")])]).await
}

/// What is counted as waiting over these series and live pods.
async fn counted(series: Vec<Series>, pods: Vec<Member>) -> Option<f64> {
    let prometheus = Upstream::start(Act::Series(series)).await;
    let scaler = start(&prometheus, pods).await;
    scaler.decided("llm", |decision| decision.inputs.waiting.is_some()).await.inputs.waiting
}

async fn gone() {
    let series = ["a", "b", "c", "d", "e"].map(|name| waiting(name, &[], NOW)).to_vec();
    let leaving = Member { phase: Phase::Terminating, ..pod("d", None) };
    let pods = vec![pod("a", None), pod("b", None), pod("c", None), leaving];
    assert_eq!(counted(series, pods).await, Some(30.0));
}

async fn suffixed() {
    let series = vec![
        waiting("x-rank-0", &[], &[(0, "3")]),
        waiting("x-rank-1", &[], &[(0, "4")]),
        waiting("xy-rank-0", &[], &[(0, "50")]),
    ];
    assert_eq!(counted(series, vec![pod("x", None)]).await, Some(7.0));
}

async fn copies() {
    // Two Prometheus, whatever their label is called.
    for label in ["prometheus_replica", "cluster_replica"] {
        let copy = |name, samples| waiting("a", &[(label, name)], samples);
        let series = vec![copy("a", &[(0, "10")]), copy("b", &[(15, "9")])];
        assert_eq!(counted(series, vec![pod("a", None)]).await, Some(10.0), "{label}");
    }
    // Two jobs that scrape one pod, each with labels of its own.
    let monitor = [("job", "models/llm"), ("container", "vllm"), ("instance", "10.0.0.1:8000")];
    let all_pods = [("job", "pods"), ("app", "llm"), ("instance", "10.0.0.1:8000")];
    let series = vec![
        waiting("a", &monitor, &[(15, "6")]),
        waiting("a", &all_pods, &[(0, "8")]),
        // Another engine of the pod is no copy.
        waiting("a", &[("instance", "10.0.0.1:8001")], &[(0, "3")]),
    ];
    assert_eq!(counted(series, vec![pod("a", None)]).await, Some(11.0));
}

async fn newest() {
    let series = vec![
        waiting("a", &[], &[(30, "12"), (15, "12"), (0, "NaN")]),
        // Older than three ticks of 15 s.
        waiting("b", &[], &[(90, "50"), (75, "50"), (0, "NaN")]),
    ];
    let prometheus = Upstream::start(Act::Series(series)).await;
    let scaler = start(&prometheus, vec![pod("a", None), pod("b", None)]).await;
    let decision = scaler.decided("llm", |decision| decision.inputs.waiting.is_some()).await;
    assert_eq!(decision.inputs.waiting, Some(12.0));
    let seen = scaler.observed("llm", |seen| seen.engines[0].reading.fresh().is_some()).await;
    assert!(matches!(seen.engines[1].reading, Reading::Stale { .. }), "{:?}", seen.engines[1]);
}

async fn refused() {
    let prometheus = Upstream::start(Act::Refuse).await;
    let pods = ["a", "b", "c"].map(|name| pod(name, None)).to_vec();
    let scaler = start(&prometheus, pods).await;
    let told = |health| matches!(health, Health::Degraded { why: Why::Unauthorized, .. });
    let decision = scaler.decided("llm", |decision| told(decision.health)).await;
    assert_eq!(decision.answer, Answer::Value { want: 3, active: true });
    assert_eq!(decision.inputs.waiting, None);
    assert!(Why::Unauthorized.sentence().contains("401"));
}

/// Past `stale` the report wants an error. The design has the last count go on, degraded, as in F13: an
/// error can become a scale to zero.
async fn slow() {
    let prometheus = Upstream::start(Act::Series(vec![waiting("a", &[], NOW)])).await;
    let scaler = start(&prometheus, vec![pod("a", None)]).await;
    let decision = scaler.decided("llm", |decision| decision.inputs.waiting == Some(10.0)).await;
    prometheus.act(Act::Hang);
    eventually("a query that hangs", async || (prometheus.n_hanging() > 0).then_some(())).await;
    // The query stays without an answer for as long as this case runs.
    let mut keda = scaler.keda().await;
    let (mut answers, mut nothing) = (Vec::new(), Vec::new());
    let spec = scaled_object("llm");
    for _ in 0..20 {
        let at = Instant::now();
        assert_eq!(keda.wanted("llm").await.unwrap(), i64::from(decision.want));
        answers.push(at.elapsed());
        assert!(keda.is_active("llm").await.unwrap());
        // Asks for what never changes: the time of the wire and this machine.
        let at = Instant::now();
        keda.client.get_metric_spec(spec.clone()).await.unwrap();
        nothing.push(at.elapsed());
    }
    let median = |mut took: Vec<Duration>| {
        took.sort_unstable();
        took[took.len() / 2]
    };
    assert!(median(answers) < 10 * median(nothing), "an answer waits for the source");
    // How old the decision and its sample are is shown, and grows.
    let shown = async || scaler.http("GET", "/api/v1/workloads/field/llm").await.1;
    let before = shown().await;
    assert!(before["members"][0]["age_ms"].is_u64(), "{before}");
    let age_ms = before["age_ms"].as_u64().unwrap();
    eventually("an age that grows", async || {
        shown().await["age_ms"].as_u64().filter(|now| *now > age_ms)
    })
    .await;
}
