//! How long a hand-over of ten thousand workloads takes, and how large its messages are.
//!
//! A measurement: it asserts that the follower has every state, and prints the rest. The states are young:
//! what is learned over a day makes each some KiB larger. Only a release build saves all in the time that
//! a leaving leader has:
//!
//! ```sh
//! cargo test --release --locked --lib pair::tests::fleet -- --ignored --nocapture
//! ```

use prost::Message as _;

use super::*;

const MAPS: &str = "/api/v1/namespaces/gs/configmaps/";
const N_WORKLOADS: usize = 10_000;

fn fleet() -> Arc<Inventory> {
    let named = |n| Workload {
        key: WorkloadKey::new(&format!("team-{}", n % 100), &format!("llm-{n}")),
        ..workload(1, 3, &[])
    };
    inventory((0..N_WORKLOADS).map(named))
}

/// What is published of all, as it is sent: bytes of the largest entry, and of all.
fn sizes(parts: &Parts, with_states: bool) -> (usize, usize) {
    let size = |tracker: &Arc<Tracker>| {
        let state = with_states.then(|| parts.states.get(&tracker.key)).flatten();
        entry::entry(tracker, &tracker.published.load(), state.as_ref()).encoded_len()
    };
    let sizes: Vec<usize> = parts.registry.trackers().iter().map(size).collect();
    (sizes.iter().copied().max().unwrap_or(0), sizes.iter().sum())
}

fn memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Ten thousand take a machine under load longer than one does.
async fn patiently(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + 10 * SOON;
    while !is() {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, for a release build"]
async fn ten_thousand_workloads_are_handed_over_whole() {
    let store = Store::start().await;
    let all_decided = |replica: &Replica| {
        let trackers = replica.parts.registry.trackers();
        trackers.len() == N_WORKLOADS && trackers.iter().all(|own| own.published.load().version > 0)
    };
    let mut leader = Replica::start_with(store.client(), "first", fleet());
    leader.until_leading().await;
    patiently("all are decided", || all_decided(&leader)).await;
    let (before_kib, started_at) = (memory_kib(), Instant::now());
    let mut follower = Replica::start_with(store.client(), "second", fleet());
    patiently("the follower has all", || all_decided(&follower)).await;
    println!("followed whole after {:.1?}", started_at.elapsed());
    println!("a second replica in the same process: {} MiB", (memory_kib() - before_kib) / 1_024);
    let ((largest, answers), (_, all)) = (sizes(&leader.parts, false), sizes(&leader.parts, true));
    println!("answers {answers} bytes, with states {all}; largest entry {largest}");

    let left_at = Instant::now();
    leader.leaving.cancel();
    follower.until_leading().await;
    println!("another leads {:.1?} after the word to leave, all saved", left_at.elapsed());
    let maps = store.below(MAPS);
    let bytes: usize = maps.iter().map(|map| map["data"].to_string().len()).sum();
    let n_writes = store.n_writes(MAPS.trim_end_matches('/'));
    println!("{} shards, {bytes} bytes, {n_writes} writes", maps.len());
    let trackers = leader.parts.registry.trackers();
    let is_there = |own: &&Arc<Tracker>| {
        leader.parts.states.get(&own.key).and_then(|state| state.want())
            == follower.parts.states.get(&own.key).and_then(|state| state.want())
    };
    assert_eq!(trackers.iter().filter(is_there).count(), N_WORKLOADS, "no state is lost");
    let saved = Shards::new(store.client(), "gs", "ghostscaler").restore().await.unwrap();
    let n_saved: usize = saved.iter().map(|shard| shard.states.len()).sum();
    assert_eq!(n_saved, N_WORKLOADS, "all are saved");

    let shared = shared(&store, Arc::clone(&follower.parts));
    let archive = Archive::new(Shards::new(store.client(), "gs", "ghostscaler"));
    let saves_at = Instant::now();
    archive.save_last(&shared).await;
    println!("the save alone {:.2?}", saves_at.elapsed());
}
