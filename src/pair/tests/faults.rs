//! What must hold when something between the replicas, or around them, is broken.

use tokio::net::TcpSocket;

use super::super::archive::Archive;
use super::*;
use crate::decision::State;

fn named(name: &str, min: u32, spec: u32) -> Workload {
    Workload { key: WorkloadKey::new("a", name), ..workload(min, spec, &[]) }
}

#[tokio::test]
async fn answers_that_come_long_before_their_workloads_are_not_lost() {
    let store = Store::start().await;
    let all = || inventory((0..1_200).map(|n| named(&format!("llm-{n}"), 3, 3)));
    let mut first = Replica::start_with(store.client(), "first", all());
    first.until_leading().await;
    until("all are decided", || {
        first.parts.registry.trackers().iter().all(|own| own.published.load().version > 0)
    })
    .await;
    let mut second = Replica::start_with(store.client(), "second", inventory([]));
    let early =
        timeout(Duration::from_secs(3), second.can_answer.wait_for(|can| *can)).await.is_ok();
    assert!(!early, "it has not what it says it has");
    second.parts.registry.set_inventory(all());
    second.until_it_can_answer().await;
    until("it has all of them", || {
        let trackers = second.parts.registry.trackers();
        trackers.len() == 1_200 && trackers.iter().all(|own| own.published.load().version > 0)
    })
    .await;
}

#[tokio::test]
async fn a_wake_of_a_workload_that_the_follower_does_not_list_yet_outlives_the_leader() {
    let store = Store::start().await;
    let mut leader = Replica::start_with(store.client(), "first", inventory([named("new", 0, 0)]));
    leader.until_leading().await;
    let mut follower = Replica::start_with(store.client(), "second", inventory([]));
    follower.until_it_can_answer().await;
    let key = WorkloadKey::new("a", "new");
    leader.writes.wake(key.clone()).await.unwrap();
    leader.kill();
    assert!(follower.parts.wakes.last(&key).is_some(), "it has said that it has it");
    follower.until_leading().await;
    follower.parts.registry.set_inventory(inventory([named("new", 0, 0)]));
    until("it is awake", || follower.want() >= 1).await;
}

#[tokio::test]
async fn who_is_cut_off_from_the_api_server_follows_whoever_leads_instead() {
    let store = Store::start().await;
    let (client, door) = store.client_behind_a_door().await;
    let mut first = Replica::start_with(client, "first", inventory([workload(4, 4, &[])]));
    first.until_leading().await;
    let mut second = Replica::start(&store, "second", workload(4, 4, &[]));
    second.until_it_can_answer().await;
    // It has heard of the other by having served it.
    door.shut(true);
    second.until_leading().await;
    second.parts.registry.set_inventory(inventory([workload(6, 4, &[])]));
    until("the new leader wants more", || second.want() == 6).await;
    until("who is cut off answers the same", || first.want() == 6).await;
    assert!(!first.is_leading());
    let taken = first.writes.wake(WorkloadKey::new("a", "llm")).await;
    assert!(taken.is_ok(), "and hands on what it is asked for");
    door.shut(false);
    until("it sees again who leads", || {
        *first.standing.borrow() == Standing::Following { leader: Some("second".into()) }
    })
    .await;
    assert_eq!((first.want(), second.want()), (6, 6));
}

#[tokio::test]
async fn what_could_not_be_read_is_never_saved_over_and_comes_back_later() {
    let store = Store::start().await;
    let replica = Replica::start(&store, "first", workload(3, 3, &[]));
    until("it has decided", || replica.published().version > 0).await;
    let key = replica.tracker().key.clone();
    let learned = replica.parts.states.get(&key).unwrap();
    assert_eq!(learned.want(), Some(3));
    drop(replica);

    let shards = || Shards::new(store.client(), "gs", "ghostscaler");
    let lead = Lead::default();
    shards().save(Moment(5), &[(key.clone(), learned)], &lead, Duration::ZERO).await.unwrap();
    const SHARD: &str = "/api/v1/namespaces/gs/configmaps/ghostscaler-state-0";
    let saved = store.get(SHARD).unwrap();

    let (standing, stands) = watch::channel(Standing::Following { leader: None });
    let parts = parts(inventory([workload(3, 3, &[])]), Lead::of(stands));
    let shared = shared(&store, Arc::clone(&parts));
    let archive = Archive::new(shards());
    let pulse = Health::new(parts.clock).pulse("tick");
    store.fail_at(Some("/configmaps"));
    archive.recall(&shared, None, &pulse).await;
    standing.send_replace(Standing::Alone);
    // Learned since; the list fails no more, but once more at the first try to save.
    parts.states.put(key.clone(), State::default());
    archive.save(&shared, Duration::ZERO).await;
    store.fail_at(None);
    assert_eq!(store.get(SHARD).unwrap(), saved);

    archive.save(&shared, Duration::ZERO).await;
    assert_eq!(parts.states.get(&key).unwrap().want(), Some(3), "it is back");
    let restored = shards().restore().await.unwrap();
    assert_eq!(restored[0].states[0].1.want(), Some(3), "and saved on");
    assert!(restored[0].saved_at > Some(Moment(5)));
}

#[tokio::test]
async fn what_is_read_late_never_replaces_what_was_decided_since() {
    let store = Store::start().await;
    let replica = Replica::start(&store, "first", workload(2, 2, &[]));
    until("it has decided", || replica.published().version > 0).await;
    let key = replica.tracker().key.clone();
    let old = replica.parts.states.get(&key).unwrap();
    replica.parts.registry.set_inventory(inventory([workload(7, 7, &[])]));
    until("it wants more", || replica.want() == 7).await;
    let live = replica.parts.states.get(&key).unwrap();
    drop(replica);
    assert_eq!((old.want(), live.want()), (Some(2), Some(7)));

    let shards = || Shards::new(store.client(), "gs", "ghostscaler");
    shards()
        .save(Moment(5), &[(key.clone(), old)], &Lead::default(), Duration::ZERO)
        .await
        .unwrap();
    let parts = parts(inventory([workload(7, 7, &[])]), Lead::default());
    let shared = shared(&store, Arc::clone(&parts));
    shared.is_unread.store(true, std::sync::atomic::Ordering::Release);
    parts.states.put(key.clone(), live.clone());
    let archive = Archive::new(shards());
    // What is handed over is what was decided, and the next leader reads what was saved.
    archive.save_last(&shared).await;
    assert_eq!(shards().restore().await.unwrap()[0].saved_at, Some(Moment(5)));
    assert!(shared.is_unread.load(std::sync::atomic::Ordering::Acquire));
    archive.save(&shared, Duration::ZERO).await;
    assert_eq!(parts.states.get(&key), Some(live));
    let restored = shards().restore().await.unwrap();
    assert_eq!(restored[0].states[0].1.want(), Some(7), "and saved on");
}

#[tokio::test]
async fn what_may_not_be_read_is_not_waited_for_as_long_as_what_cannot() {
    let store = Store::start().await;
    let parts = parts(inventory([workload(3, 3, &[])]), Lead::default());
    let shared = shared(&store, Arc::clone(&parts));
    let archive = Archive::new(Shards::new(store.client(), "gs", "ghostscaler"));
    let pulse = Health::new(parts.clock).pulse("tick");
    store.fail(Some(403));
    let recall = archive.recall(&shared, None, &pulse);
    // Less than its follower takes to turn unready.
    timeout(STALE, recall).await.expect("it begins to decide");
    assert!(shared.is_unread.load(std::sync::atomic::Ordering::Acquire), "and saves over nothing");
}

#[tokio::test]
async fn who_leads_again_saves_over_what_another_leader_has_saved() {
    let store = Store::start().await;
    let parts = parts(inventory([workload(3, 3, &[])]), Lead::default());
    let shared = shared(&store, Arc::clone(&parts));
    let key = parts.registry.trackers()[0].key.clone();
    parts.states.put(key.clone(), State::default());
    let shards = || Shards::new(store.client(), "gs", "ghostscaler");
    let (own, mut other) = (Archive::new(shards()), shards());
    own.save(&shared, Duration::ZERO).await;
    // Another leads, and divides what it has among more shards.
    let mut states: Vec<_> = other.restore().await.unwrap().remove(0).states;
    let more = |n| TrackerKey { workload: WorkloadKey::new("a", &format!("more-{n}")), trigger: 7 };
    states.extend((0..2_000).map(|n| (more(n), State::default())));
    other.save(Moment(5), &states, &Lead::default(), Duration::ZERO).await.unwrap();
    let n_shards = store.below("/api/v1/namespaces/gs/configmaps/").len();
    assert!(n_shards > 1);
    own.go_on().await;
    own.save_last(&shared).await;
    assert_eq!(store.below("/api/v1/namespaces/gs/configmaps/").len(), n_shards, "all are known");
    let restored = shards().restore().await.unwrap();
    assert!(restored.iter().all(|shard| shard.saved_at > Some(Moment(5))), "and written");
}

#[tokio::test]
async fn who_followed_before_stays_ready_while_the_new_leader_recalls() {
    let store = Store::start().await;
    store.fail_at(Some("/configmaps"));
    let mut leader = Replica::start(&store, "first", workload(3, 3, &[]));
    leader.until_leading().await;
    let parts = parts(inventory([workload(3, 3, &[])]), Lead::default());
    let mut shared = shared(&store, parts);
    Arc::get_mut(&mut shared).unwrap().own = "second".into();
    let identity = Identity::generate().unwrap();
    let own = Member {
        name: "second".into(),
        address: "127.0.0.1:1".to_owned(),
        key: identity.public_key(),
    };
    shared.members.publish(&own).await.unwrap();
    until("the leader is announced", || store.get(&format!("{LEASE}-first")).is_some()).await;
    let name = Arc::from("first");
    assert!(!shared.heard.head(Some(&name)).stays_ready(STALE), "KEDA shall ask the leader");
    let why = office::follow_once(&shared, &identity, Some(&name)).await;
    assert!(shared.heard.head(Some(&name)).stays_ready(STALE), "which answers nobody yet: {why}");
}

/// The Lease as a process has it that is no scaler, and renews it for ever.
fn take_the_lease(store: &Store, transitions: i32) {
    let now = jiff::Timestamp::now();
    store.put(
        LEASE,
        serde_json::json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "ghostscaler", "namespace": "gs"},
            "spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 10,
                "leaseTransitions": transitions, "renewTime": format!("{now:.6}")}}),
    );
}

#[tokio::test]
async fn a_stranger_that_holds_the_lease_turns_no_replica_away_that_knows_the_counts() {
    let store = Store::start().await;
    let (leader, follower) = pair(&store, workload(5, 5, &[]), workload(1, 2, &[])).await;
    let mut n_renewals = 0;
    let mut renewed_until = async |what: &str, is: &dyn Fn() -> bool| {
        let end = Instant::now() + SOON;
        while !is() {
            assert!(Instant::now() < end, "not in time: {what}");
            n_renewals += 1;
            take_the_lease(&store, n_renewals);
            sleep(Duration::from_millis(200)).await;
        }
    };
    renewed_until("nobody decides", &|| !leader.is_leading() && !follower.is_leading()).await;
    let knows = |replica: &Replica| replica.parts.metrics.is_lease_strangers();
    renewed_until("both know the stranger", &|| knows(&leader) && knows(&follower)).await;
    // Longer than a leader may be silent.
    let since = Instant::now();
    renewed_until("it lasts", &|| since.elapsed() > STALE + Duration::from_secs(3)).await;
    assert!(*leader.can_answer.borrow() && *follower.can_answer.borrow(), "who else would answer?");
    assert_eq!((leader.want(), follower.want()), (5, 5));
    // It goes, and all is as before.
    store.remove(LEASE);
    until("one decides again", || leader.is_leading() || follower.is_leading()).await;
    until("neither sees a stranger", || !knows(&leader) && !knows(&follower)).await;
}

#[tokio::test]
async fn whose_record_is_deleted_for_a_moment_is_served_on() {
    let store = Store::start().await;
    let mut shared = shared(&store, parts(inventory([workload(3, 3, &[])]), Lead::default()));
    Arc::get_mut(&mut shared).unwrap().ask_again = Duration::from_secs(3);
    let own =
        Member { name: "second".into(), address: "127.0.0.1:1".to_owned(), key: "ab".to_owned() };
    let disowned = tokio::spawn(serve::disowned(Arc::clone(&shared), own.key.clone()));
    // One look finds nothing, and the next ones, three seconds apart, find it again.
    until("a look", || store.n_reads() > 0).await;
    shared.members.publish(&own).await.unwrap();
    let n_reads = store.n_reads();
    until("two more", || store.n_reads() >= n_reads + 2).await;
    sleep(Duration::from_millis(500)).await;
    assert!(!disowned.is_finished());
    store.remove(&format!("{LEASE}-second"));
    timeout(SOON, disowned).await.expect("who is no replica is not").unwrap();
}

#[tokio::test]
async fn who_follows_a_leader_that_could_not_read_reads_before_it_saves() {
    let store = Store::start().await;
    let parts = parts(inventory([workload(3, 3, &[])]), Lead::default());
    let shared = shared(&store, Arc::clone(&parts));
    let key = parts.registry.trackers()[0].key.clone();
    let shards = || Shards::new(store.client(), "gs", "ghostscaler");
    let saved = [(key.clone(), State::default())];
    shards().save(Moment(5), &saved, &Lead::default(), Duration::ZERO).await.unwrap();
    // As the last batch of the leader said.
    shared.is_unread.store(true, std::sync::atomic::Ordering::Release);
    let archive = Archive::new(shards());
    archive.go_on().await;
    archive.save(&shared, Duration::ZERO).await;
    assert!(parts.states.get(&key).is_some(), "what was saved has been read");
}

#[tokio::test]
async fn the_state_of_what_is_gone_is_forgotten_by_the_follower_too() {
    let store = Store::start().await;
    let both = || inventory([named("goes", 2, 2), named("stays", 2, 2)]);
    let mut leader = Replica::start_with(store.client(), "first", both());
    leader.until_leading().await;
    let mut follower = Replica::start_with(store.client(), "second", both());
    follower.until_it_can_answer().await;
    let keys: Vec<_> =
        follower.parts.registry.trackers().iter().map(|own| own.key.clone()).collect();
    let has = |key| follower.parts.states.get(key).is_some();
    until("it has both states", || keys.iter().all(has)).await;
    for replica in [&leader, &follower] {
        replica.parts.registry.set_inventory(inventory([named("stays", 2, 2)]));
    }
    until("one is forgotten", || !has(&keys[0])).await;
    assert!(has(&keys[1]));
}

#[tokio::test]
async fn what_was_learned_of_a_trigger_that_only_the_leader_is_asked_for_is_not_lost_with_it() {
    let store = Store::start().await;
    let listed = || inventory([workload(1, 1, &[("modelNameFromEnv", "MODEL")])]);
    let mut leader = Replica::start_with(store.client(), "first", listed());
    leader.until_leading().await;
    let metadata = HashMap::from([("modelNameFromEnv".to_owned(), "llama".to_owned())]);
    let registry = &leader.parts.registry;
    registry.lookup("a", "llm", &metadata, Caller::Poll, Rpc::GetMetrics).unwrap();
    until("it is decided", || {
        leader.parts.registry.trackers().first().is_some_and(|own| own.published.load().version > 0)
    })
    .await;
    let key = leader.tracker().key.clone();
    let mut follower = Replica::start_with(store.client(), "second", listed());
    follower.until_it_can_answer().await;
    leader.kill();
    follower.until_leading().await;
    assert!(follower.parts.states.get(&key).is_some());
}

#[tokio::test]
async fn who_cannot_renew_stands_by_at_once_and_leads_no_more_in_between() {
    let store = Store::start().await;
    let mut leader = Replica::start(&store, "first", workload(3, 3, &[]));
    leader.until_leading().await;
    leader.until_it_can_answer().await;
    // Longer than the test is patient: it is told while the renewal hangs.
    store.delay(Duration::from_secs(600));
    until("it decides no more", || !leader.is_leading()).await;
    let told = leader.standing.wait_for(|standing| matches!(standing, Standing::Following { .. }));
    timeout(SOON, told).await.expect("it is told while the renewal hangs").unwrap();
}

#[tokio::test]
async fn more_triggers_than_fit_into_one_word_are_all_decided_by_the_leader() {
    let store = Store::start().await;
    let listed = |min| {
        let brought = |n| Workload {
            key: WorkloadKey::new("a", &format!("llm-{n}")),
            ..workload(min, min, &[("modelNameFromEnv", "MODEL")])
        };
        inventory((0..300).map(brought))
    };
    let mut leader = Replica::start_with(store.client(), "first", listed(4));
    leader.until_leading().await;
    let mut follower = Replica::start_with(store.client(), "second", listed(1));
    follower.until_it_can_answer().await;
    let metadata = HashMap::from([("modelNameFromEnv".to_owned(), "llama".to_owned())]);
    let registry = &follower.parts.registry;
    for n in 0..300 {
        let name = format!("llm-{n}");
        registry.lookup("a", &name, &metadata, Caller::Poll, Rpc::GetMetrics).unwrap();
    }
    let four = Answer::Value { want: 4, active: true };
    until("all are decided by the leader", || {
        registry.trackers().iter().all(|own| own.published.load().answer == four)
    })
    .await;
}

#[tokio::test]
async fn who_connects_and_says_nothing_keeps_no_replica_out() {
    let store = Store::start().await;
    let mut leader = Replica::start(&store, "first", workload(3, 3, &[]));
    leader.until_leading().await;
    let members = Members::new(store.client(), "gs", "ghostscaler", None);
    until("the leader is announced", || store.get(&format!("{LEASE}-first")).is_some()).await;
    let address: std::net::SocketAddr =
        members.find("first").await.unwrap().unwrap().address.parse().unwrap();
    let mut silent = Vec::new();
    for _ in 0..100 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        silent.push(socket.connect(address).await.unwrap());
    }
    let mut follower = Replica::start(&store, "second", workload(1, 1, &[]));
    // Two handshakes of the silent ones may be waited for, not fifty: those take minutes, which are
    // not waited for here.
    follower.until_it_can_answer().await;
}

#[tokio::test]
async fn who_is_no_replica_any_more_is_not_served_on() {
    let store = Store::start().await;
    let (leader, follower) = pair(&store, workload(3, 3, &[]), workload(3, 3, &[])).await;
    until("it is followed", || store.get(&format!("{LEASE}-second")).is_some()).await;
    // Whoever is announced under that name now has another key.
    let own = Member {
        name: "second".into(),
        address: "127.0.0.1:1".to_owned(),
        key: Identity::generate().unwrap().public_key(),
    };
    Members::new(store.client(), "gs", "ghostscaler", None).publish(&own).await.unwrap();
    leader.parts.registry.set_inventory(inventory([workload(7, 3, &[])]));
    let end = Instant::now() + SOON;
    loop {
        let before = follower.published().version;
        sleep(Duration::from_secs(2)).await;
        if follower.published().version == before && leader.published().version > before {
            break;
        }
        assert!(Instant::now() < end, "it is served on");
    }
}

#[tokio::test]
async fn until_when_all_is_known_is_told_by_the_clock_of_who_saves() {
    let store = Store::start().await;
    let shared = shared(&store, parts(inventory([workload(3, 3, &[])]), Lead::default()));
    // The leader's node is years behind.
    let batch = wire::Batch { now_ms: 5_000, whole: true, ..wire::Batch::default() };
    follow::Mirror::new(&shared).take(batch).unwrap();
    assert_eq!(shared.known().unwrap().saved_until, Moment(5_000));
}
