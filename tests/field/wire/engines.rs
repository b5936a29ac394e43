//! Engines that hang, change their names, or are several in one.

use ghostscaler::decision::{
    Answer, Decision, Engine, Health, KeptSample, Moment, Observation, Phase, Reading, Replicas,
    Spec, State, Wake, WakeReading, Why, ZeroAfter, decide,
};
use ghostscaler::signals::engine::{EngineReader, Filter};
use libtest_mimic::Trial;

use super::scaler::{Scaler, pod, scaled_object, vllm, workload};
use super::trial;
use super::upstream::{Act, Upstream};

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("f09_the_value_is_replicas_and_the_explanation_names_requests", value_and_target),
        trial("f15_one_pod_that_hangs_holds_up_nothing", one_hangs),
        trial("f18_the_old_or_the_new_name_is_read_and_neither_is_unknown", renamed),
        trial("f22_a_name_with_an_underscore_is_read", underscored),
        trial("f30_hits_on_metrics_and_health_are_no_work", only_probes),
        trial("f68_the_ranks_of_a_pod_are_summed", ranks),
        trial("f95_an_adapter_that_is_not_named_is_no_idle_engine", adapters),
    ]
}

/// What each pod of a workload said, by its place.
async fn samples(pages: &[String]) -> Vec<Reading<KeptSample>> {
    let mut upstreams = Vec::new();
    for page in pages {
        upstreams.push(Upstream::page(page.as_str()).await);
    }
    let pods = upstreams.iter().enumerate().map(|(i, at)| pod(&format!("pod-{i}"), Some(at)));
    let scaler = Scaler::start("", vec![workload("llm", pods.collect(), &[])]).await;
    // A machine under load may take more than one tick to read them all.
    let is_read = |reading: &Reading<_>| {
        reading.fresh().is_some() || reading.why() == Some(Why::NoKnownSeries)
    };
    let all = |seen: &Observation| seen.engines.iter().all(|engine| is_read(&engine.reading));
    let seen = scaler.observed("llm", all).await;
    seen.engines.iter().map(|engine| engine.reading.clone()).collect()
}

async fn value_and_target() {
    let page = Upstream::page(vllm(4, 8)).await;
    let pods = ["a", "b", "c"].map(|name| pod(name, Some(&page))).to_vec();
    let scaler = Scaler::start("", vec![workload("llm", pods, &[])]).await;
    // 12 wait beside 24 running on three: 3 + ceil(12/8).
    let all_read = |decision: &Decision| decision.inputs.waiting == Some(12.0);
    assert_eq!(scaler.decided("llm", all_read).await.want, 5);
    let mut keda = scaler.keda().await;
    assert_eq!(keda.wanted("llm").await.unwrap(), 5);
    let spec = keda.client.get_metric_spec(scaled_object("llm")).await.unwrap().into_inner();
    assert_eq!(spec.metric_specs[0].target_size, 1);
    let (status, snapshot) = scaler.http("GET", "/api/v1/workloads/field/llm").await;
    assert_eq!(status, 200);
    assert_eq!(snapshot["waiting"], 12.0);
    assert_eq!(snapshot["want"], 5);
    let reasons = snapshot["reasons"].to_string();
    assert!(reasons.contains("12 waiting"), "{reasons}");
}

async fn one_hangs() {
    let page = Upstream::page(vllm(2, 8)).await;
    let hung = Upstream::start(Act::Hang).await;
    let pods = |eighth| {
        let mut pods: Vec<_> = (0..7).map(|i| pod(&format!("pod-{i}"), Some(&page))).collect();
        pods.push(pod("pod-7", Some(eighth)));
        vec![workload("llm", pods, &[])]
    };
    let whole = Scaler::start("", pods(&page)).await;
    let whole = whole.decided("llm", |decision| decision.inputs.waiting == Some(16.0)).await;
    let scaler = Scaler::start("", pods(&hung)).await;
    let first = scaler.decided("llm", |decision| decision.inputs.waiting == Some(14.0)).await;
    assert_eq!(first.want, whole.want, "decided without waiting for the eighth");
    let is_given_up = |health: &Health| {
        matches!(health, Health::Degraded { why: Why::Timeout, answered: 7, expected: 8, .. })
    };
    let holed = scaler.decided("llm", |decision| is_given_up(&decision.health)).await;
    assert_eq!(holed.want, whole.want);
    let wanted = scaler.keda().await.wanted("llm").await.unwrap();
    assert_eq!(wanted, i64::from(whole.want));
    // Where most hang the count is held as well. An error, which the case asks for, would leave it to
    // KEDA, and the few that answer may be the idle ones.
    let most = (0..8).map(|i| pod(&format!("pod-{i}"), Some(if i < 3 { &page } else { &hung })));
    let scaler = Scaler::start("", vec![workload("llm", most.collect(), &[])]).await;
    let is_most = |health: &Health| {
        matches!(health, Health::Degraded { why: Why::Timeout, answered: 3, expected: 8, .. })
    };
    let held = scaler.decided("llm", |decision| is_most(&decision.health)).await;
    assert!(matches!(held.answer, Answer::Value { want: 8.., active: true }), "{held:?}");
}

async fn renamed() {
    let page = vllm(0, 1);
    let old = page.replace("kv_cache_usage_perc", "gpu_cache_usage_perc");
    let neither: String = page
        .lines()
        .filter(|line| !line.contains("usage"))
        .map(|line| format!("{line}\n"))
        .collect();
    let other = "node_load1 3\n".to_owned();
    let read = samples(&[old, page, neither, other]).await;
    let kv = |index: usize| read[index].fresh().unwrap().get().kv_usage;
    assert_eq!([kv(0), kv(1), kv(2)], [Some(0.1), Some(0.1), None]);
    assert_eq!(read[3], Reading::Missing { why: Why::NoKnownSeries });
}

async fn underscored() {
    let read = samples(&["vllm_num_requests_waiting 7\n".to_owned()]).await;
    assert_eq!(read[0].fresh().unwrap().get().waiting, Some(7.0));
}

async fn ranks() {
    let page = "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 0\n\
                vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 18\n";
    let read = samples(&[page.to_owned()]).await;
    assert_eq!(read[0].fresh().unwrap().get().waiting, Some(18.0));
}

/// The adapters of the running requests are named; one that is loaded and idle is not.
async fn adapters() {
    let with = |running: &str| {
        format!(
            "{}vllm:lora_requests_info{{running_lora_adapters=\"{running}\",\
             waiting_lora_adapters=\"\",max_lora=\"4\"}} 1.7e9\n",
            vllm(0, 6)
        )
    };
    let read = samples(&[with(""), with("sql")]).await;
    for reading in read {
        let sample = reading.fresh().unwrap().get();
        assert_eq!((sample.running, sample.waiting), (Some(6.0), Some(0.0)));
    }
}

/// More than an hour of probes and scrapes on an engine that serves nobody, in virtual time.
async fn only_probes() {
    let spec = Spec {
        min: 0,
        has_wake_source: true,
        zero_after: ZeroAfter::After { millis: 3_600_000 },
        ..Spec::default()
    };
    let replicas = Replicas { spec: Some(1), ready: 1, ..Replicas::default() };
    let gateway = WakeReading::Fresh { queued: 0.0, last_arrival_at: None };
    let mut state = State::default();
    let mut wants = Vec::new();
    for tick in 0..800_u32 {
        let now = Moment(i64::from(tick) * 5_000);
        let page = format!(
            "{}vllm:request_success_total{{engine=\"0\",finished_reason=\"stop\"}} 41\n\
             vllm:generation_tokens_total{{engine=\"0\"}} 8000\n\
             http_requests_total{{handler=\"/metrics\",status=\"2xx\"}} {tick}\n\
             http_requests_total{{handler=\"/health\",status=\"2xx\"}} {tick}\n",
            vllm(0, 0)
        );
        let filter = Filter::default();
        let mut reader = EngineReader::new(&filter);
        reader.push(page.as_bytes()).unwrap();
        let value = reader.finish(now).unwrap().sample;
        let engine = Engine {
            id: "pod".into(),
            phase: Phase::Ready,
            ready_ms: Some(3_600_000),
            reading: Reading::Fresh { value: KeptSample::from(value), age_ms: 0 },
        };
        let observation = Observation {
            replicas,
            engines: [engine].into(),
            wake: Wake { source: Some(gateway), requested_at: None },
            ..Observation::default()
        };
        let (decision, after) = decide(&spec, state, &observation, now);
        state = after;
        wants.push(decision.want);
    }
    // An hour is 720 ticks.
    assert!(wants[..720].iter().all(|want| *want == 1));
    assert_eq!(wants.last(), Some(&0));
}
