//! Waking by what a gateway shows or asks.

use ghostscaler::decision::{Phase, Reason, Rule, WakeReading};
use ghostscaler::inventory::{Member, Workload};
use libtest_mimic::Trial;

use super::scaler::{Scaler, pod, scaled_object, vllm, workload};
use super::upstream::Upstream;
use super::{eventually, soon, trial};

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("f23_a_counter_that_exists_at_zero_wakes_and_a_lack_of_one_is_said", counter),
        trial("f24_rejected_requests_wake_their_model_and_no_other", rejected),
        trial("f26_fifty_requests_at_zero_are_one_wake", one_wake),
        trial("f97_the_queue_of_one_model_is_no_demand_for_another", by_model),
        trial("f29_a_gateway_can_ask_where_a_wake_is", wake_state),
    ]
}

/// Requests that the gateway has counted by model, whatever it has answered.
fn page(counts: &[(&str, u32)]) -> String {
    let row = |(model, n): &(&str, u32)| {
        format!("gateway_requests_total{{model=\"{model}\",code=\"503\"}} {n}\n")
    };
    counts.iter().map(row).collect()
}

fn config(gateway: &Upstream) -> String {
    format!(
        "wakeSources: [{{name: gw, kind: counter, url: '{}', metric: gateway_requests_total, \
         matchers: {{model: '{{model}}'}}}}]",
        gateway.url()
    )
}

/// A workload that may sleep.
fn sleeper(name: &str, members: Vec<Member>, metadata: &[(&str, &str)]) -> Workload {
    Workload { min: 0, ..workload(name, members, metadata) }
}

/// Waits until the workload's wake source has been read.
async fn read(scaler: &Scaler, name: &str) {
    let is_read = |source| matches!(source, Some(WakeReading::Fresh { .. }));
    scaler.observed(name, |seen| is_read(seen.wake.source)).await;
}

async fn counter() {
    let gateway = Upstream::page(page(&[("m", 5)])).await;
    let named = [("wakeSource", "gw"), ("modelName", "m")];
    let workloads = vec![sleeper("llm", Vec::new(), &named), sleeper("deaf", Vec::new(), &[])];
    let scaler = Scaler::start(&config(&gateway), workloads).await;
    read(&scaler, "llm").await;
    let mut keda = scaler.keda().await;
    assert!(!keda.is_active("llm").await.unwrap());
    gateway.show(page(&[("m", 6)]));
    let woken = scaler.decided("llm", |decision| decision.want > 0).await;
    assert_eq!(woken.binding, Rule::Wake);
    assert!(keda.is_active("llm").await.unwrap());
    assert_eq!(keda.wanted("llm").await.unwrap(), 1);
    // Nothing is there that could wake the other one. The report would have an error; at zero replicas that
    // says no more than `false` with the reason, and beside running ones an error is what costs them.
    let deaf = scaler.decided("deaf", |_| true).await;
    let said = |reason| deaf.votes.iter().any(|vote| vote.reason == reason);
    assert!(said(Reason::NoWakeSource), "{:?}", deaf.votes);
    assert!(!keda.is_active("deaf").await.unwrap());
}

async fn rejected() {
    let gateway = Upstream::page(page(&[("m", 1), ("n", 1)])).await;
    let named = |model| [("wakeSource", "gw"), ("modelName", model)];
    let workloads =
        vec![sleeper("m", Vec::new(), &named("m")), sleeper("n", Vec::new(), &named("n"))];
    let scaler = Scaler::start(&config(&gateway), workloads).await;
    read(&scaler, "m").await;
    read(&scaler, "n").await;
    // Three for one model, and a hundred for a name that nobody serves.
    gateway.show(page(&[("m", 4), ("n", 1), ("x", 100)]));
    let woken = scaler.decided("m", |decision| decision.want > 0).await;
    let other = scaler.decided("n", |decision| decision.at > woken.at).await;
    assert_eq!(other.want, 0);
    let mut keda = scaler.keda().await;
    assert!(keda.is_active("m").await.unwrap());
    assert!(!keda.is_active("n").await.unwrap());
}

/// One router before several models: each workload names its own.
async fn by_model() {
    let row = |model: &str, n: u32| format!("router_queue{{model=\"{model}\"}} {n}\n");
    let page = |a: u32| [row("org/a", a), row("b", 0), row("c", 9)].concat();
    let router = Upstream::page(page(0)).await;
    let config = format!(
        "wakeSources: [{{name: gw, kind: gauge, url: '{}', metric: router_queue, \
         matchers: {{model: '{{model}}'}}}}]",
        router.url()
    );
    let named = |model| [("wakeSource", "gw"), ("modelName", model)];
    let workloads =
        vec![sleeper("a", Vec::new(), &named("org/a")), sleeper("b", Vec::new(), &named("b"))];
    let scaler = Scaler::start(&config, workloads).await;
    read(&scaler, "a").await;
    read(&scaler, "b").await;
    router.show(page(30));
    let woken = scaler.decided("a", |decision| decision.want > 0).await;
    assert_eq!(woken.inputs.gateway_queued, Some(30.0));
    let other = scaler.decided("b", |decision| decision.at > woken.at).await;
    assert_eq!((other.want, other.inputs.gateway_queued), (0, Some(0.0)));
}

async fn one_wake() {
    let scaler = Scaler::start("", vec![sleeper("llm", Vec::new(), &[])]).await;
    scaler.decided("llm", |decision| decision.want == 0).await;
    let mut keda = scaler.keda().await;
    let stream = soon(keda.client.stream_is_active(scaled_object("llm"))).await.unwrap();
    let mut stream = stream.into_inner();
    let posts = (0..50).map(|_| scaler.http("POST", "/api/v1/wake/field/llm"));
    for (status, _body) in futures_util::future::join_all(posts).await {
        assert_eq!(status, 202);
    }
    let tracker = scaler.tracker("llm");
    let woken = scaler.decided("llm", |decision| decision.want > 0).await;
    assert_eq!(woken.want, 1);
    // Several ticks later it is still the same wake.
    let version = tracker.published.load().version;
    let attempt = async || (tracker.published.load().version >= version + 3).then_some(());
    eventually("three more ticks", attempt).await;
    assert_eq!(keda.wanted("llm").await.unwrap(), 1);
    scaler.stop();
    let mut pushed = Vec::new();
    while let Ok(Some(message)) = soon(stream.message()).await {
        pushed.push(message.result);
    }
    assert_eq!(pushed, [true]);
}

async fn wake_state() {
    let engine = Upstream::page(vllm(0, 1)).await;
    let scaler = Scaler::start("", vec![sleeper("llm", Vec::new(), &[])]).await;
    scaler.decided("llm", |decision| decision.want == 0).await;
    let ask = async || scaler.http("POST", "/api/v1/wake/field/llm").await.1;
    assert_eq!(ask().await["state"], "waking");
    scaler.decided("llm", |decision| decision.want == 1).await;

    let starting = Member { phase: Phase::Starting, ready_at: None, ..pod("a", None) };
    scaler.set(vec![sleeper("llm", vec![starting], &[])]);
    scaler.decided("llm", |decision| decision.inputs.spec == Some(1)).await;
    let wake = ask().await;
    assert_eq!(wake["state"], "starting");
    // Of the 180 s that are taken for a start until one was seen, little has passed.
    let left_ms = wake["expected_ms"].as_u64().unwrap();
    assert!((100_000..=180_000).contains(&left_ms), "{wake}");

    scaler.set(vec![sleeper("llm", vec![pod("a", Some(&engine))], &[])]);
    scaler.decided("llm", |decision| decision.inputs.ready == 1).await;
    let wake = ask().await;
    assert_eq!((&wake["state"], &wake["expected_ms"]), (&"ready".into(), &0.into()));
}
