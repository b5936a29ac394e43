//! What the loop of a trigger does beside the decision: it waits for nobody, and names what it means.

use std::collections::BTreeMap;

use tokio::net::TcpListener;
use tokio::time::timeout;

use super::*;
use crate::decision::{Observation, Phase, Replicas, Spec, State, decide};
use crate::health::Health;
use crate::inventory::{Counted, Endpoint, Inventory, Kubernetes, Member};
use crate::registry::Limits;
use crate::source::scrape::Options;
use crate::trigger::Context;

/// Longer than a machine under load needs, and half of the deadline of a read.
const SOON: Duration = Duration::from_secs(30);

pub(super) fn workload(
    replicas: u32,
    metadata: &[(&str, &str)],
    endpoint: Option<&str>,
) -> Workload {
    let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let member = |url: &str| Member {
        id: url.into(),
        phase: Phase::Ready,
        created_at: None,
        ready_at: None,
        endpoint: Some(Endpoint::Url(url.into())),
        node: None,
    };
    Workload {
        key: WorkloadKey::new("a", "llm"),
        min: 0,
        max: 8,
        fallback_replicas: None,
        triggers: vec![metadata.collect::<BTreeMap<_, _>>()],
        replicas: Replicas { spec: Some(replicas), ..Replicas::default() },
        members: endpoint.map(member).into_iter().collect(),
        counted: Counted::ByAnswers,
        gpus_per_replica: None,
        paused: false,
        kubernetes: Kubernetes::default(),
    }
}

pub(super) fn parts(workload: Workload) -> Arc<Parts> {
    let clock = Clock::start();
    let registry = Registry::new(Limits::default(), clock);
    let workloads = [(workload.key.clone(), Arc::new(workload))].into();
    registry.set_inventory(Arc::new(Inventory { synced: true, workloads, ..Inventory::default() }));
    let options = Options { timeout_ms: 60_000, ..Options::default() };
    Arc::new(Parts {
        registry,
        scraper: Scraper::new(options).unwrap(),
        upstreams: ArcSwap::default(),
        wakes: WakeRequests::default(),
        states: States::default(),
        log: None,
        metrics: Metrics::default(),
        lead: Lead::default(),
        clock,
    })
}

#[tokio::test]
async fn a_wake_is_decided_while_engines_that_hang_are_being_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    let parts = parts(workload(0, &[], Some(&url)));
    let tracker = Arc::clone(&parts.registry.trackers()[0]);
    let cancel = CancellationToken::new();
    let pulse = Health::new(parts.clock).pulse("tick");
    let ticks = tokio::spawn(run(Arc::clone(&parts), pulse, cancel.clone()));
    // From here on the engine is being read, and never says a word.
    let _connection = timeout(SOON, listener.accept()).await.unwrap().unwrap();
    let wakes = &parts.wakes;
    wakes.request(&tracker.key.workload, parts.clock.now());
    let woken = async {
        while !matches!(tracker.published.load().answer, Answer::Value { active: true, .. }) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, woken).await.expect("a wake waits for no engine");
    cancel.cancel();
    ticks.await.unwrap();
}

#[tokio::test]
async fn a_name_that_the_configuration_does_not_have_is_noted_until_it_has() {
    let parts = parts(workload(1, &[("wakeSource", "gatway")], None));
    let tracker = Arc::clone(&parts.registry.trackers()[0]);
    let key = &tracker.key.workload;
    let workload = Arc::clone(&parts.registry.inventory().workloads[key]);
    let noted = |names: &[&str]| {
        let wake_sources = names.iter().map(|name| (*name).to_owned()).collect();
        let context = Context { wake_sources: &wake_sources, has_prometheus: true };
        Crowd::default().note_remarks(&tracker, &workload, context);
        let remarks = tracker.remarks.load_full();
        remarks.map(|remarks| remarks.iter().map(|remark| remark.text.clone()).collect::<Vec<_>>())
    };
    let told = noted(&["gateway"]).unwrap();
    assert!(told[0].contains("nearest is gateway"), "{told:?}");
    assert_eq!(noted(&["gateway", "gatway"]), None);
    assert!(noted(&[]).is_some());
}

#[tokio::test]
async fn a_task_that_panics_is_known_by_its_workload() {
    let mut tasks = JoinSet::new();
    let mut running = Vec::new();
    for name in ["well", "broken", "other"] {
        let task = tasks.spawn(async move { assert_ne!(name, "broken") });
        let key = TrackerKey { workload: WorkloadKey::new("a", name), trigger: 7 };
        running.push(Running { key, task, nudge: Arc::default(), woken_at: None });
    }
    let mut panicked = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            panicked.push(whose(&running, error.id()).map(ToString::to_string));
        }
    }
    assert_eq!(panicked, [Some("a/broken".to_owned())]);
}

#[test]
fn a_tick_that_comes_late_does_not_move_the_next_one() {
    let start = Instant::now();
    let grid = Grid(start);
    let at = |millis| start + Duration::from_millis(millis);
    assert_eq!(grid.nearest(at(5_000)), at(5_000));
    assert_eq!(grid.nearest(at(5_017)), at(5_000), "a little late");
    assert_eq!(grid.nearest(at(5_030)), at(5_050));
    let all: std::collections::BTreeSet<_> =
        (0..1_000).map(|millis| grid.nearest(at(millis))).collect();
    assert_eq!(all.len(), 21, "a second's ticks wake the process twenty times, not a thousand");
}

/// An inventory of these.
fn listing(workloads: &[&Workload]) -> Arc<Inventory> {
    let listed = workloads.iter().map(|listed| (listed.key.clone(), Arc::new((*listed).clone())));
    Arc::new(Inventory { synced: true, workloads: listed.collect(), ..Inventory::default() })
}

#[tokio::test]
async fn a_workload_that_comes_back_goes_on_where_it_was() {
    let parts = parts(workload(2, &[], None));
    let key = parts.registry.trackers()[0].key.clone();
    let replicas = workload(7, &[], None).replicas;
    let observed = Observation { replicas, ..Observation::default() };
    let (_, state) = decide(&Spec::default(), State::default(), &observed, parts.clock.now());
    assert_eq!(state.want(), Some(7));
    let is_back = |now| {
        let back = Arc::clone(&parts.registry.trackers()[0]);
        let _: Arc<Cell> = parts.states.of(&back, now);
        parts.states.get(&back.key).and_then(|state| state.want())
    };
    for (away_ms, found) in [(0, Some(7)), (599_999, Some(7)), (600_000, None)] {
        parts.states.put(key.clone(), state.clone());
        let now = parts.clock.now();
        parts.states.put_away(&key, now);
        assert_eq!(parts.states.get(&key), None, "put away");
        assert_eq!(is_back(now.plus_millis(away_ms)), found, "after {away_ms} ms");
    }

    // Saved while it is away: not in the file, and still there when it comes back.
    parts.states.put(key.clone(), state);
    let now = parts.clock.now();
    assert!(parts.states.snapshot(&listing(&[]), now).is_empty());
    assert_eq!(is_back(now), Some(7));

    // Nobody came back.
    parts.states.put_away(&key, now);
    parts.states.forget_gone(now.plus_millis(600_000));
    assert_eq!(is_back(now), None);
}

#[tokio::test]
async fn one_that_is_gone_and_back_before_anybody_looks_is_followed_on() {
    let llm = workload(2, &[], None);
    let parts = parts(llm.clone());
    let cancel = CancellationToken::new();
    let pulse = Health::new(parts.clock).pulse("tick");
    let ticks = tokio::spawn(run(Arc::clone(&parts), pulse, cancel.clone()));
    let decided = async || {
        while parts.registry.trackers()[0].published.load().version == 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, decided()).await.unwrap();
    // One thread: no task runs between these.
    parts.registry.set_inventory(listing(&[]));
    parts.registry.set_inventory(listing(&[&llm]));
    timeout(SOON, decided()).await.expect("the new trigger is followed");
    cancel.cancel();
    ticks.await.unwrap();
}
