//! Two replicas over real sockets: the election on a fake API server, the stream with its keys.
//!
//! Each replica has a runtime of its own, so that dropping it is as sudden as a kill.

use std::collections::BTreeMap;

use arc_swap::ArcSwap;
use tokio::runtime::Runtime;

use super::office::{fallback, is_leading};
use super::*;
use crate::clock::Clock;
use crate::cluster::fixtures::Store;
use crate::decision::{Answer, Mode, Replicas, Unavailable};
use crate::health::Health;
use crate::inventory::{Counted, Inventory, Kubernetes, Workload, WorkloadKey};
use crate::lead::{Lead, NotTaken, Writes};
use crate::metrics::Metrics;
use crate::registry::{Caller, Limits, OpenStream, Published, Registry, Rpc, Tracker};
use crate::source::scrape::{Options, Scraper};
use crate::tick::States;
use crate::web::{Wake, WakeRequests, WakeState};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/gs/leases/ghostscaler";
/// Longer than a machine under load needs.
const SOON: Duration = Duration::from_secs(30);

/// A workload whose engines nobody reads: its answer is its present count within its bounds.
fn workload(min: u32, spec: u32, metadata: &[(&str, &str)]) -> Workload {
    let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Workload {
        key: WorkloadKey::new("a", "llm"),
        min,
        max: 8,
        fallback_replicas: None,
        triggers: vec![metadata.collect::<BTreeMap<_, _>>()],
        replicas: Replicas { spec: Some(spec), ready: spec, ..Replicas::default() },
        members: Vec::new(),
        counted: Counted::ByKubernetes,
        gpus_per_replica: None,
        paused: false,
        kubernetes: Kubernetes::default(),
    }
}

fn inventory(workloads: impl IntoIterator<Item = Workload>) -> Arc<Inventory> {
    let keyed = |workload: Workload| (workload.key.clone(), Arc::new(workload));
    let workloads = workloads.into_iter().map(keyed).collect();
    Arc::new(Inventory { synced: true, workloads, ..Inventory::default() })
}

/// What decides, without anything to read.
fn parts(inventory: Arc<Inventory>, lead: Lead) -> Arc<Parts> {
    let clock = Clock::start();
    let registry = Registry::new(Limits::default(), clock);
    registry.set_inventory(inventory);
    Arc::new(Parts {
        registry,
        scraper: Scraper::new(Options::default()).unwrap(),
        upstreams: ArcSwap::default(),
        wakes: WakeRequests::default(),
        states: States::default(),
        log: None,
        metrics: Metrics::default(),
        lead,
        clock,
    })
}

/// What leader and follower have in common, without either.
fn shared(store: &Store, parts: Arc<Parts>) -> Arc<Shared> {
    Arc::new(Shared {
        parts,
        own: "first".into(),
        ask_again: ASK_AGAIN,
        members: Members::new(store.client(), "gs", "ghostscaler", None),
        followers: Followers::default(),
        leader: Mutex::default(),
        known: Mutex::default(),
        heard: Heard::default(),
        has_recalled: AtomicBool::new(false),
        pending: Mutex::default(),
        is_unread: AtomicBool::new(false),
    })
}

/// One replica of the scaler.
struct Replica {
    runtime: Option<Runtime>,
    parts: Arc<Parts>,
    writes: Writes,
    can_answer: watch::Receiver<bool>,
    standing: watch::Receiver<Standing>,
    leaving: CancellationToken,
    answered: CancellationToken,
}

impl Replica {
    fn start(store: &Store, name: &str, workload: Workload) -> Replica {
        Replica::start_with(store.client(), name, inventory([workload]))
    }

    fn start_with(client: kube::Client, name: &str, inventory: Arc<Inventory>) -> Replica {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let guard = runtime.enter();
        let (standing, stands) = watch::channel(Standing::Following { leader: None });
        let (can_answer, answers) = watch::channel(false);
        let (writes, queue) = Writes::channel(8);
        let parts = parts(inventory, Lead::of(stands.clone()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let identity = Identity::generate().unwrap();
        let election = lease::Options {
            duration: Duration::from_secs(2),
            renew_within: Duration::from_millis(1_400),
            interval: Duration::from_millis(200),
            ..lease::Options::new("gs", "ghostscaler", name)
        };
        let pair = Pair {
            parts: Arc::clone(&parts),
            members: Members::new(client.clone(), "gs", "ghostscaler", None),
            shards: Shards::new(client.clone(), "gs", "ghostscaler"),
            client,
            idle_pods_first: false,
            election,
            own: Member { name: name.into(), address, key: identity.public_key() },
            identity,
            listener: TcpListener::from_std(listener).unwrap(),
            standing,
            can_answer,
            writes: queue,
            pulse: Health::new(parts.clock).pulse("tick"),
            ask_again: Duration::from_millis(500),
        };
        let (leaving, answered) = (CancellationToken::new(), CancellationToken::new());
        runtime.spawn(pair.run(leaving.clone(), answered.clone()));
        drop(guard);
        Replica {
            runtime: Some(runtime),
            parts,
            writes,
            can_answer: answers,
            standing: stands,
            leaving,
            answered,
        }
    }

    fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }

    fn tracker(&self) -> Arc<Tracker> {
        Arc::clone(&self.parts.registry.trackers()[0])
    }

    fn published(&self) -> Arc<Published> {
        self.tracker().published.load_full()
    }

    fn want(&self) -> u32 {
        let Answer::Value { want, .. } = self.published().answer else { panic!("no value") };
        want
    }

    fn stream(&self) -> OpenStream {
        self.tracker().open_stream()
    }

    async fn until_it_can_answer(&mut self) {
        timeout(SOON, self.can_answer.wait_for(|can| *can)).await.unwrap().unwrap();
    }

    async fn until_leading(&mut self) {
        timeout(SOON, self.standing.wait_for(is_leading)).await.unwrap().unwrap();
    }

    fn is_leading(&self) -> bool {
        self.parts.lead.decides()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + SOON;
    while !is() {
        assert!(Instant::now() < end, "not within {} s: {what}", SOON.as_secs());
        sleep(Duration::from_millis(10)).await;
    }
}

/// A leader and its follower, which knows other bounds, so that only the leader's answer can be its.
async fn pair(store: &Store, leader: Workload, follower: Workload) -> (Replica, Replica) {
    let mut first = Replica::start(store, "first", leader);
    first.until_leading().await;
    first.until_it_can_answer().await;
    until("the leader has decided", || first.published().version > 0).await;
    let mut second = Replica::start(store, "second", follower);
    assert!(!*second.can_answer.borrow(), "not ready before it knows the leader's answers");
    second.until_it_can_answer().await;
    (first, second)
}

#[tokio::test]
async fn the_follower_answers_what_the_leader_decides_and_not_what_it_sees_itself() {
    let store = Store::start().await;
    let (leader, follower) = pair(&store, workload(5, 5, &[]), workload(1, 2, &[])).await;
    assert_eq!((leader.want(), follower.want()), (5, 5));
    leader.parts.registry.set_inventory(inventory([workload(7, 5, &[])]));
    until("the leader wants more", || leader.want() == 7).await;
    until("so does the follower", || follower.want() == 7).await;
    let (led, followed) = (leader.published(), follower.published());
    assert_eq!(led.decision.as_ref().unwrap().want, followed.decision.as_ref().unwrap().want);
    assert_eq!(led.spec, followed.spec);
    assert!(follower.tracker().observed.load().is_some(), "with what was seen");
    assert!(!follower.is_leading());
}

#[tokio::test]
async fn a_leader_is_not_followed_before_it_has_recalled_what_was_saved() {
    let store = Store::start().await;
    store.fail_at(Some("/configmaps"));
    let mut first = Replica::start(&store, "first", workload(3, 3, &[]));
    first.until_leading().await;
    let mut second = Replica::start(&store, "second", workload(1, 2, &[]));
    let early =
        timeout(Duration::from_secs(2), second.can_answer.wait_for(|can| *can)).await.is_ok();
    assert!(!early, "what it could follow is not yet what the leader will know");
    assert!(!*first.can_answer.borrow());
    store.fail_at(None);
    first.until_it_can_answer().await;
    second.until_it_can_answer().await;
    until("the leader's answer is there", || second.want() == 3).await;
}

#[tokio::test]
async fn keda_f6_headless_or_not_both_are_asked_in_turn_and_never_contradict_each_other() {
    let store = Store::start().await;
    let (leader, follower) = pair(&store, workload(3, 3, &[]), workload(0, 1, &[])).await;
    let ask = |replica: &Replica| {
        let registry = &replica.parts.registry;
        let found = registry.lookup("a", "llm", &HashMap::new(), Caller::Poll, Rpc::GetMetrics);
        found.unwrap().published.load().answer
    };
    for _ in 0..200 {
        assert_eq!(ask(&leader), ask(&follower));
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_wake_at_the_follower_reaches_the_leader_and_both_push_it() {
    let store = Store::start().await;
    let asleep = || workload(0, 0, &[]);
    let (leader, follower) = pair(&store, asleep(), asleep()).await;
    let (mut at_leader, mut at_follower) = (leader.stream(), follower.stream());
    assert!(!at_leader.take_edge() && !at_follower.take_edge());
    let woken_at = Instant::now();
    let answer = follower.writes.wake(WorkloadKey::new("a", "llm")).await.unwrap();
    let answer: Wake = serde_json::from_slice(&answer).unwrap();
    assert_eq!((answer.state, &*answer.name), (WakeState::Waking, "llm"));
    for stream in [&mut at_leader, &mut at_follower] {
        while !stream.take_edge() {
            timeout(SOON, stream.changed()).await.unwrap();
        }
    }
    let took = woken_at.elapsed();
    println!("a wake at the follower is pushed by both after {took:?}");
    assert!(follower.want() >= 1);
}

#[tokio::test]
async fn a_wake_that_was_answered_outlives_the_leader_that_took_it() {
    let store = Store::start().await;
    let asleep = || workload(0, 0, &[]);
    let (mut leader, mut follower) = pair(&store, asleep(), asleep()).await;
    leader.writes.wake(WorkloadKey::new("a", "llm")).await.unwrap();
    leader.kill();
    let known = follower.parts.wakes.last(&WorkloadKey::new("a", "llm"));
    assert!(known.is_some(), "the follower had it before the answer");
    follower.until_leading().await;
    until("it is awake", || follower.want() >= 1).await;
}

#[tokio::test]
async fn without_a_leader_a_write_is_refused_and_never_taken_silently() {
    let store = Store::start().await;
    let (mut leader, follower) = pair(&store, workload(0, 0, &[]), workload(0, 0, &[])).await;
    // Nobody can lead while the API server is away.
    store.fail(Some(500));
    leader.kill();
    let woken = follower.writes.wake(WorkloadKey::new("a", "llm")).await;
    assert_eq!(woken, Err(NotTaken));
}

#[tokio::test]
async fn a_killed_leader_is_replaced_without_moving_the_count() {
    let store = Store::start().await;
    let (mut leader, mut follower) = pair(&store, workload(4, 4, &[]), workload(1, 2, &[])).await;
    let before = follower.published();
    leader.kill();
    let killed_at = Instant::now();
    // The cluster shows the same to the new leader in the end.
    follower.parts.registry.set_inventory(inventory([workload(1, 4, &[])]));
    while !follower.is_leading() {
        assert_eq!(follower.want(), 4, "its answer stands meanwhile");
        assert!(*follower.can_answer.borrow());
        assert!(killed_at.elapsed() < SOON);
        sleep(Duration::from_millis(5)).await;
    }
    println!("another leads {:?} after the kill", killed_at.elapsed());
    follower.until_leading().await;
    until("it has decided", || follower.published().version > before.version).await;
    assert_eq!(follower.want(), 4);
}

#[tokio::test]
async fn a_leader_that_leaves_hands_its_state_over_and_then_answers_from_its_follower() {
    let store = Store::start().await;
    let (mut leader, mut follower) = pair(&store, workload(3, 3, &[]), workload(1, 3, &[])).await;
    let left_at = Instant::now();
    leader.leaving.cancel();
    follower.until_leading().await;
    println!("another leads {:?} after the word to leave", left_at.elapsed());
    // Taken, given up, taken: one that has run out changes hands once.
    assert_eq!(
        store.get(LEASE).unwrap()["spec"]["leaseTransitions"],
        3,
        "before the lease has run out"
    );
    let key = leader.tracker().key.clone();
    let last = leader.parts.states.get(&key).unwrap();
    assert_eq!(last.want(), Some(3));
    assert!(follower.parts.states.get(&key).is_some());
    until("the shards have it", || {
        store.get("/api/v1/namespaces/gs/configmaps/ghostscaler-state-0").is_some()
    })
    .await;
    follower.parts.registry.set_inventory(inventory([workload(6, 3, &[])]));
    until("the new leader wants more", || follower.want() == 6).await;
    until("the old one answers the same", || leader.want() == 6).await;
    leader.answered.cancel();
    leader.kill();
}

#[tokio::test]
async fn who_starts_after_everybody_has_died_goes_on_from_the_shards() {
    let store = Store::start().await;
    let mut only = Replica::start(&store, "first", workload(3, 3, &[]));
    only.until_leading().await;
    until("it has decided", || only.published().version > 0).await;
    only.leaving.cancel();
    assert!(only.is_leading(), "alone it decides until nobody asks any more");
    only.answered.cancel();
    until("the lease is given up", || {
        store.get(LEASE).is_some_and(|lease| lease["spec"]["holderIdentity"] == "")
    })
    .await;
    let mut next = Replica::start(&store, "second", workload(1, 3, &[]));
    next.until_leading().await;
    until("it knows what was learned", || {
        next.parts.states.get(&next.tracker().key).is_some_and(|state| state.want() == Some(3))
    })
    .await;
}

#[tokio::test]
async fn a_trigger_that_only_calls_bring_is_decided_by_the_leader_too() {
    let store = Store::start().await;
    // The inventory lists the key without its value, which is in the target's environment.
    let listed = || workload(4, 4, &[("modelNameFromEnv", "MODEL")]);
    let mut first = Replica::start(&store, "first", listed());
    first.until_leading().await;
    let mut second =
        Replica::start(&store, "second", workload(1, 1, &[("modelNameFromEnv", "MODEL")]));
    let metadata = HashMap::from([("modelNameFromEnv".to_owned(), "llama".to_owned())]);
    let registry = second.parts.registry.clone();
    registry.lookup("a", "llm", &metadata, Caller::Poll, Rpc::GetMetrics).unwrap();
    second.until_it_can_answer().await;
    until("the leader knows it", || first.parts.registry.trackers().len() == 1).await;
    until("and has decided it for both", || second.want() == 4).await;
}

#[tokio::test]
async fn a_stranger_is_not_let_in_and_a_false_leader_is_not_believed() {
    let store = Store::start().await;
    let mut leader = Replica::start(&store, "first", workload(3, 3, &[]));
    leader.until_leading().await;
    let members = Members::new(store.client(), "gs", "ghostscaler", None);
    until("the leader is announced", || store.get(&format!("{LEASE}-first")).is_some()).await;
    let first = members.find("first").await.unwrap().unwrap();

    let stranger = Identity::generate().unwrap();
    // With TLS 1.3 a client is done before the server has looked at its key.
    let refused = match follow::connect(&stranger, &first).await {
        Err(_refused) => true,
        Ok(mut client) => client.wake(wire::Workload::default()).await.is_err(),
    };
    assert!(refused, "its key is no replica's");

    let own = Member {
        name: "second".into(),
        address: "127.0.0.1:1".to_owned(),
        key: stranger.public_key(),
    };
    members.publish(&own).await.unwrap();
    assert!(follow::connect(&stranger, &first).await.is_ok(), "now it is one");
    let false_leader = Member { key: stranger.public_key(), ..first };
    assert!(follow::connect(&stranger, &false_leader).await.is_err(), "another holds that key");
}

#[test]
fn an_old_answer_turns_into_an_error_only_where_a_fallback_is_declared() {
    use crate::decision::Spec;
    let published = |fallback_replicas, mode| Published {
        version: 3,
        at: Moment(1),
        answer: Answer::Value { want: 2, active: true },
        decision: None,
        spec: Some(Arc::new(Spec { fallback_replicas, mode, ..Spec::default() })),
    };
    let lost = Answer::Unavailable { why: Unavailable::SourceLost };
    let counted = fallback(&published(Some(2), Mode::Act)).unwrap();
    assert_eq!((counted.answer, counted.version), (lost, 3));
    assert_eq!(fallback(&counted), None, "once");
    assert_eq!(fallback(&published(None, Mode::Act)), None);
    assert_eq!(fallback(&published(Some(0), Mode::Act)), None);
    assert_eq!(fallback(&published(Some(2), Mode::Shadow)), None);
}

mod faults;
mod fleet;
