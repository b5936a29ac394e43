//! The shards against an API server on a real socket.

use serde_json::json;

use super::*;
use crate::cluster::fixtures::Store;
use crate::inventory::WorkloadKey;
use crate::lead::Standing;

const MAPS: &str = "/api/v1/namespaces/gs/configmaps/";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/gs/events";

fn shards(store: &Store) -> Shards {
    Shards::new(store.client(), "gs", "ghostscaler")
}

fn states(n: usize) -> Vec<(TrackerKey, State)> {
    (0..n)
        .map(|index| {
            let workload = WorkloadKey::new("team", &format!("llm-{index}"));
            (TrackerKey { workload, trigger: 7 }, State::default())
        })
        .collect()
}

async fn save(shards: &mut Shards, at: i64, states: &[(TrackerKey, State)]) -> Result<(), Error> {
    shards.save(Moment(at), states, &Lead::default(), Duration::ZERO).await
}

fn keys(restored: &[Restored]) -> Vec<String> {
    let all = restored.iter().flat_map(|shard| &shard.states);
    let mut keys: Vec<_> = all.map(|(key, _)| key.to_string()).collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn what_was_saved_comes_back_from_as_many_shards_as_its_size_needs() {
    let store = Store::start().await;
    let one = serde_json::to_string(&State::default()).unwrap().len();
    let states = states(3 * MAX_SHARD_BYTES / one);
    save(&mut shards(&store), 5, &states).await.unwrap();
    let maps = store.below(MAPS);
    assert!(maps.len() >= 4, "{} shards", maps.len());
    for map in &maps {
        let bytes = map["data"]["state.jsonl"].as_str().unwrap().len();
        assert!(bytes <= MAX_SHARD_BYTES, "{bytes}");
    }
    let restored = shards(&store).restore().await.unwrap();
    let mut expected: Vec<_> = states.iter().map(|(key, _)| key.to_string()).collect();
    expected.sort();
    assert_eq!(keys(&restored), expected);
    assert!(restored.iter().all(|shard| shard.saved_at == Some(Moment(5))));
}

#[tokio::test]
async fn a_damaged_and_a_newer_shard_are_set_aside_with_an_event_and_the_others_come_back() {
    let store = Store::start().await;
    let one = serde_json::to_string(&State::default()).unwrap().len();
    let states = states(3 * MAX_SHARD_BYTES / one);
    save(&mut shards(&store), 5, &states).await.unwrap();
    let n_shards = store.below(MAPS).len();
    let change = |index: u32, from: &str, to: &str| {
        let path = format!("{MAPS}ghostscaler-state-{index}");
        let mut map = store.get(&path).unwrap();
        let text = map["data"]["state.jsonl"].as_str().unwrap();
        map["data"]["state.jsonl"] = json!(text.replacen(from, to, 1));
        store.put(&path, map);
    };
    change(0, "\"trigger\":7", "\"trigger\":8");
    change(1, "\"ghostscaler_state\":1", "\"ghostscaler_state\":99");
    let mut second = shards(&store);
    let restored = second.restore().await.unwrap();
    assert_eq!(restored.len(), n_shards - 2);
    for index in [0, 1] {
        let aside = store.get(&format!("{MAPS}ghostscaler-state-damaged-{index}")).unwrap();
        assert!(aside["data"]["state.jsonl"].as_str().unwrap().len() > 100);
    }
    let events = store.below(EVENTS);
    let notes: Vec<_> = events.iter().filter_map(|event| event["note"].as_str()).collect();
    assert_eq!(notes.len(), 2, "{events:?}");
    assert!(notes.iter().any(|note| note.contains("checksum")), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("version 99")), "{notes:?}");
    // The next save makes them whole again.
    save(&mut second, 9, &states).await.unwrap();
    assert_eq!(shards(&store).restore().await.unwrap().len(), n_shards);
}

#[tokio::test]
async fn of_two_saves_the_later_one_comes_last_whatever_clocks_said() {
    let store = Store::start().await;
    let states = states(3);
    // Left over from a time with more shards, written by a node whose clock was far ahead.
    let old = statedir::encode(Moment(9_000), states.iter().map(|(key, state)| (key, state)));
    let path = format!("{MAPS}ghostscaler-state-3");
    let labels = json!({"ghostscaler.io/state-of": "ghostscaler"});
    store.put(
        &path,
        json!({"metadata": {"name": "ghostscaler-state-3", "labels": labels},
        "data": {"state.jsonl": old}}),
    );
    let new = statedir::encode(Moment(5), states.iter().map(|(key, state)| (key, state)));
    store.put(
        &format!("{MAPS}ghostscaler-state-0"),
        json!({"metadata": {"name": "ghostscaler-state-0", "labels": labels},
        "data": {"state.jsonl": new}}),
    );
    let restored = shards(&store).restore().await.unwrap();
    let saved_at: Vec<_> = restored.iter().map(|shard| shard.saved_at).collect();
    assert_eq!(saved_at, [Some(Moment(9_000)), Some(Moment(5))]);
}

#[tokio::test]
async fn a_shard_that_somebody_else_has_written_is_saved_by_who_leads_and_by_nobody_else() {
    let store = Store::start().await;
    let states = states(3);
    let (mut own, mut other) = (shards(&store), shards(&store));
    save(&mut own, 5, &states).await.unwrap();
    other.restore().await.unwrap();
    save(&mut other, 6, &states).await.unwrap();
    // It leads again, and this may be its last save.
    save(&mut own, 7, &states).await.unwrap();
    assert_eq!(shards(&store).restore().await.unwrap()[0].saved_at, Some(Moment(7)));

    let (standing, stands) = tokio::sync::watch::channel(Standing::Alone);
    let lead = Lead::of(stands);
    store.delay(Duration::from_millis(500));
    let late = other.save(Moment(8), &states, &lead, Duration::ZERO);
    let loses = async {
        sleep(Duration::from_millis(100)).await;
        standing.send_replace(Standing::Following { leader: None });
    };
    let (late, ()) = tokio::join!(late, loses);
    store.delay(Duration::ZERO);
    assert!(matches!(late, Err(Error::Taken { .. })), "{late:?}");
    assert_eq!(shards(&store).restore().await.unwrap()[0].saved_at, Some(Moment(7)));
}

#[tokio::test]
async fn a_deleted_shard_is_made_again_by_the_save_that_finds_it_gone() {
    let store = Store::start().await;
    let states = states(3);
    let mut own = shards(&store);
    save(&mut own, 5, &states).await.unwrap();
    store.remove(&format!("{MAPS}ghostscaler-state-0"));
    save(&mut own, 6, &states).await.unwrap();
    assert_eq!(shards(&store).restore().await.unwrap()[0].saved_at, Some(Moment(6)));
    save(&mut own, 7, &states).await.unwrap();
    assert_eq!(shards(&store).restore().await.unwrap()[0].saved_at, Some(Moment(7)));
}

#[tokio::test]
async fn who_no_longer_leads_writes_nothing() {
    let store = Store::start().await;
    let following = Standing::Following { leader: None };
    let lead = Lead::of(tokio::sync::watch::channel(following).1);
    let saved = shards(&store).save(Moment(5), &states(3), &lead, Duration::ZERO).await;
    assert!(matches!(saved, Err(Error::NotLeading)));
    assert_eq!(store.n_writes("/"), 0);
}

#[tokio::test]
async fn who_leads_on_without_having_read_saves_at_the_first_try() {
    let store = Store::start().await;
    save(&mut shards(&store), 5, &states(3)).await.unwrap();
    save(&mut shards(&store), 6, &states(3)).await.unwrap();
    assert_eq!(shards(&store).restore().await.unwrap()[0].saved_at, Some(Moment(6)));
}

#[tokio::test]
async fn what_cannot_be_listed_is_an_error_and_no_empty_state() {
    let store = Store::start().await;
    store.fail(Some(500));
    let mut own = shards(&store);
    assert!(matches!(own.restore().await, Err(Error::List(_))), "not an empty state");
    assert!(save(&mut own, 5, &states(3)).await.is_err());
    store.fail(Some(403));
    assert!(matches!(own.restore().await, Err(Error::Refused(_))));
}
