//! KEDA's side while the source is lost.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::Arc;

use ghostscaler::clock::Clock;
use ghostscaler::decision::{
    Answer, Engine, Moment, Observation, Phase, Reading, Replicas, Spec, State, Unavailable, Why,
    decide,
};
use ghostscaler::inventory::Inventory;
use ghostscaler::proto::ScaledObjectRef;
use ghostscaler::registry::{Limits, Published, Registry};
use libtest_mimic::Trial;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::scaler::{Scaler, keda, scaled_object, serve, workload};
use super::{soon, trial};

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("f39_a_lost_source_fails_the_values_only_so_that_the_fallback_counts", lost),
        trial("f109_an_address_in_metadata_is_refused_and_never_called", addressed),
    ]
}

/// The line in the log is `b5_…` of `src/registry/tests.rs`.
async fn addressed() {
    let inside = TcpListener::bind("127.0.0.1:0").unwrap();
    inside.set_nonblocking(true).unwrap();
    let url = format!("http://{}/latest/meta-data", inside.local_addr().unwrap());
    let metadata = [("metricsUrl", url.as_str())];
    let sound = workload("sound", Vec::new(), &[]);
    let scaler = Scaler::start("", vec![workload("llm", Vec::new(), &metadata), sound]).await;
    let mut keda = scaler.keda().await;
    let scaler_metadata = [("metricsUrl".to_owned(), url.clone())].into();
    let trigger = ScaledObjectRef { scaler_metadata, ..scaled_object("llm") };
    let refused = soon(keda.client.is_active(trigger)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("metricsUrl") && !refused.message().contains("127.0.0.1"));
    // Another has been read and decided meanwhile.
    scaler.decided("sound", |_| true).await;
    assert_eq!(inside.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "nobody has called");
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
    let observation = Observation { replicas, engines: [engine].into(), ..Observation::default() };
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
