//! What the tests of the pages stand on: a registry with decided workloads, and requests over a
//! wire whose far end can be anybody.
//!
//! Used by tests only.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Access, Api, WakeRequests, serve};
use crate::clock::Clock;
use crate::decision::{
    Answer, Decision, Engine, EngineSample, KeptSample, Moment, Observation, Phase, Reading,
    Replicas, Spec, State, Why, decide,
};
use crate::health::Health;
use crate::inventory::{Counted, Inventory, Kubernetes, Workload, WorkloadKey};
use crate::listen::{Place, Places};
use crate::metrics::{Metrics, Page};
use crate::registry::{Limits, Published, Registry, Tracker};

/// A peer on the scaler's own host.
pub(crate) const NEAR: &str = "127.0.0.1:40000";
/// A peer elsewhere.
pub(crate) const FAR: &str = "10.0.0.7:40000";

/// A workload of the inventory with 1 to 8 replicas, 3 of them ordered and ready.
pub(crate) fn workload(namespace: &str, name: &str) -> Workload {
    Workload {
        key: WorkloadKey::new(namespace, name),
        min: 1,
        max: 8,
        fallback_replicas: None,
        triggers: vec![BTreeMap::new()],
        replicas: replicas(Some(3), 3),
        members: Vec::new(),
        counted: Counted::ByKubernetes,
        gpus_per_replica: None,
        paused: false,
        kubernetes: Kubernetes::default(),
    }
}

pub(crate) fn replicas(spec: Option<u32>, ready: u32) -> Replicas {
    Replicas { spec, ready, ..Replicas::default() }
}

/// A registry that tracks these workloads; none has decided yet.
pub(crate) fn registry(workloads: impl IntoIterator<Item = Workload>) -> Registry {
    let workloads =
        workloads.into_iter().map(|workload| (workload.key.clone(), Arc::new(workload))).collect();
    let registry = Registry::new(Limits::default(), Clock::start());
    registry.set_inventory(Arc::new(Inventory { synced: true, workloads, ..Inventory::default() }));
    registry
}

/// The first tracker of a workload.
pub(crate) fn tracker(registry: &Registry, namespace: &str, name: &str) -> Arc<Tracker> {
    let key = WorkloadKey::new(namespace, name);
    let trackers = registry.trackers();
    trackers.iter().find(|tracker| tracker.key.workload == key).map(Arc::clone).unwrap()
}

/// Three engines: one fresh with 12 waiting, one stale, one never read.
pub(crate) fn observation() -> Observation {
    let sample = EngineSample {
        at: Moment(1_000_000),
        waiting: Some(12.0),
        running: Some(24.0),
        kv_usage: Some(0.5),
        ..EngineSample::default()
    };
    let stale = Reading::Stale {
        value: KeptSample::from(EngineSample { waiting: Some(0.0), ..sample }),
        age_ms: 61_000,
        why: Why::Timeout,
    };
    let readings = [
        Reading::Fresh { value: KeptSample::from(sample), age_ms: 1_200 },
        stale,
        Reading::Missing { why: Why::Refused },
    ];
    let engines = readings.into_iter().enumerate().map(|(index, reading)| Engine {
        id: format!("llm-7d9c5f-{index}").into(),
        phase: if index == 2 { Phase::Starting } else { Phase::Ready },
        ready_ms: None,
        reading,
    });
    Observation {
        replicas: replicas(Some(3), 3),
        engines: engines.collect(),
        ..Observation::default()
    }
}

/// A real decision of a start, over three replicas whatever it makes of them.
pub(crate) fn decision() -> Decision {
    let now = Moment(1_000_000);
    let mut decision = decide(&Spec::default(), State::default(), &observation(), now).0;
    decision.inputs.spec = Some(3);
    decision.inputs.ready = 3;
    decision
}

/// Publishes a decision together with the policy and the observation of it.
pub(crate) fn publish(tracker: &Tracker, clock: Clock, version: u64, decision: Decision) {
    tracker.observed.store(Some(Arc::new(observation())));
    tracker.publish(Published {
        version,
        at: clock.now(),
        answer: decision.answer,
        decision: Some(Arc::new(decision)),
        spec: Some(Arc::new(Spec::default())),
    });
}

/// A decision that wants and answers this many.
pub(crate) fn wanting(want: u32) -> Decision {
    Decision { want, answer: Answer::Value { want, active: want > 0 }, ..decision() }
}

pub(crate) fn api(registry: &Registry, access: Access) -> Api {
    let clock = Clock::start();
    Api {
        registry: registry.clone(),
        clock,
        wakes: WakeRequests::default(),
        writes: None,
        health: Health::new(clock),
        metrics: Page::new(&Metrics::default(), registry.clone(), clock),
        access,
    }
}

/// An answer off the wire.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answered {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    fn parse(raw: &str) -> Answered {
        let (head, body) = raw.split_once("\r\n\r\n").unwrap_or((raw, ""));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        Answered { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }
}

/// Sends one request as if it came from `peer`; `more` are header lines, each with its CRLF.
pub(crate) async fn ask(router: &Router, peer: &str, line: &str, more: &str) -> Answered {
    let raw = format!("{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n");
    Answered::parse(&exchange(router, peer, raw.as_bytes()).await)
}

/// A place that nobody else wants.
pub(crate) fn place() -> Place {
    Places::new(1).take()
}

/// Sends bytes and returns what comes back until the connection ends.
pub(crate) async fn exchange(router: &Router, peer: &str, bytes: &[u8]) -> String {
    let peer: SocketAddr = peer.parse().unwrap();
    let (mut near, far) = tokio::io::duplex(64 * 1024);
    let serving = serve::connection(far, peer, place(), router.clone(), CancellationToken::new());
    let serving = tokio::spawn(serving);
    near.write_all(bytes).await.unwrap();
    let mut raw = Vec::new();
    timeout(Duration::from_secs(60), near.read_to_end(&mut raw)).await.unwrap().unwrap();
    timeout(Duration::from_secs(60), serving).await.unwrap().unwrap();
    String::from_utf8(raw).unwrap()
}
