//! KEDA's side while the source is lost.

use std::sync::Arc;

use ghostscaler::clock::Clock;
use ghostscaler::decision::{
    Answer, Engine, Moment, Observation, Phase, Reading, Replicas, Spec, State, Unavailable, Why,
    decide,
};
use ghostscaler::inventory::Inventory;
use ghostscaler::registry::{Limits, Published, Registry};
use libtest_mimic::Trial;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::scaler::{keda, scaled_object, serve, workload};
use super::{soon, trial};

pub(super) fn trials() -> Vec<Trial> {
    vec![trial("f39_a_lost_source_fails_the_values_only_so_that_the_fallback_counts", lost)]
}

/// What is answered after this long without a source, in virtual time.
fn after(lost_ms: u32) -> Answer {
    let spec = Spec { fallback_replicas: Some(2), ..Spec::default() };
    let engine = Engine {
        id: "a".into(),
        phase: Phase::Ready,
        ready_ms: Some(3_600_000),
        reading: Reading::Missing { why: Why::Timeout },
    };
    let replicas = Replicas { spec: Some(3), ready: 3, ..Replicas::default() };
    let observation = Observation { replicas, engines: vec![engine], ..Observation::default() };
    let mut state = State::default();
    let mut answer = Answer::Unavailable { why: Unavailable::NothingKnown };
    for tick in 0..=lost_ms / 5_000 {
        let now = Moment(i64::from(tick) * 5_000);
        let (decision, after) = decide(&spec, state, &observation, now);
        (state, answer) = (after, decision.answer);
    }
    answer
}

async fn lost() {
    let clock = Clock::start();
    let registry = Registry::new(Limits::default(), clock);
    let llm = Arc::new(workload("llm", Vec::new(), &[]));
    let workloads = [(llm.key.clone(), llm)].into();
    registry.set_inventory(Arc::new(Inventory { synced: true, workloads, ..Inventory::default() }));
    let cancel = CancellationToken::new();
    let server = serve(&registry, &cancel);
    let mut keda = keda(server.address).await;
    let tracker = Arc::clone(&registry.trackers()[0]);
    let publish = |version, answer| {
        let at = clock.now();
        tracker.publish(Published { version, at, answer, decision: None, spec: None });
    };

    publish(1, after(14 * 60_000));
    assert_eq!(keda.wanted("llm").await.unwrap(), 3);
    assert!(keda.is_active("llm").await.unwrap());
    publish(2, after(16 * 60_000));
    assert_eq!(keda.wanted("llm").await.unwrap_err().code(), Code::Unavailable);
    let spec = soon(keda.client.get_metric_spec(scaled_object("llm"))).await.unwrap();
    assert_eq!(spec.get_ref().metric_specs.len(), 1);
    cancel.cancel();
}
