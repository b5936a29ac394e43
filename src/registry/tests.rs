//! Which tracker a call finds, and what it answers before and after decisions.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::*;
use crate::decision::{Answer, Replicas, Unavailable};
use crate::inventory::{Counted, Kubernetes};

fn map<M: FromIterator<(String, String)>>(entries: &[(&str, &str)]) -> M {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn workload(name: &str, spec: Option<u32>, triggers: &[&[(&str, &str)]]) -> Arc<Workload> {
    Arc::new(Workload {
        key: WorkloadKey::new("ns", name),
        min: 0,
        max: 8,
        fallback_replicas: None,
        triggers: triggers.iter().map(|entries| map(entries)).collect(),
        replicas: Replicas { spec, ..Replicas::default() },
        members: Vec::new(),
        counted: Counted::ByKubernetes,
        gpus_per_replica: None,
        paused: false,
        kubernetes: Kubernetes::default(),
    })
}

fn inventory(workloads: &[Arc<Workload>]) -> Arc<Inventory> {
    let workloads: BTreeMap<_, _> =
        workloads.iter().map(|workload| (workload.key.clone(), Arc::clone(workload))).collect();
    Arc::new(Inventory { synced: true, workloads, ..Inventory::default() })
}

fn registry(workloads: &[Arc<Workload>]) -> Registry {
    let registry = Registry::new(Limits::default(), Clock::start());
    registry.set_inventory(inventory(workloads));
    registry
}

fn call(registry: &Registry, name: &str, metadata: &[(&str, &str)]) -> Result<Arc<Tracker>, Error> {
    registry.lookup("ns", name, &map(metadata), Caller::Poll, Rpc::GetMetrics)
}

fn value(want: u32, active: bool) -> Answer {
    Answer::Value { want, active }
}

fn decided(version: u64, answer: Answer) -> Published {
    Published { version, at: Moment(0), answer, decision: None, spec: None }
}

#[test]
fn a_workload_is_unknown_until_the_inventory_is_whole_and_absent_after() {
    let registry = Registry::new(Limits::default(), Clock::start());
    assert_eq!(call(&registry, "a", &[]).unwrap_err(), Error::NotSynced);
    registry.set_inventory(inventory(&[workload("b", None, &[])]));
    assert_eq!(call(&registry, "a", &[]).unwrap_err(), Error::NotFound);
    let elsewhere = registry.lookup("other", "b", &HashMap::new(), Caller::Poll, Rpc::IsActive);
    assert_eq!(elsewhere.unwrap_err(), Error::NotFound);
}

#[test]
fn triggers_of_the_inventory_are_tracked_before_any_call() {
    let registry = registry(&[
        workload("a", Some(2), &[&[("sloTtft", "3s"), ("scalerAddress", "x")]]),
        workload("b", Some(2), &[&[("sloTtft", "bad")], &[("sloTtftFromEnv", "VARIABLE")], &[]]),
    ]);
    let trackers = registry.trackers();
    let names: Vec<_> = trackers.iter().map(|tracker| &*tracker.key.workload.name).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(trackers[0].policy.spec.slo_ttft_ms, 3_000);
    let found = call(&registry, "a", &[("scalerAddress", "y"), ("sloTtft", "3s")]).unwrap();
    assert!(Arc::ptr_eq(&found, &trackers[0]));
    assert!(Arc::ptr_eq(&registry.trackers(), &trackers));
}

#[test]
fn an_undecided_trigger_answers_the_present_count_and_follows_it() {
    for (spec, expected) in [
        (Some(3), value(3, true)),
        (Some(0), value(0, false)),
        (Some(99), value(8, true)),
        (None, Answer::Unavailable { why: Unavailable::NothingKnown }),
    ] {
        let registry = registry(&[workload("a", spec, &[&[]])]);
        let tracker = call(&registry, "a", &[]).unwrap();
        assert_eq!(tracker.published.load().answer, expected, "{spec:?}");
        registry.set_inventory(inventory(&[workload("a", Some(5), &[&[]])]));
        assert_eq!(tracker.published.load().answer, value(5, true));
        tracker.publish(decided(1, value(2, true)));
        registry.set_inventory(inventory(&[workload("a", Some(6), &[&[]])]));
        assert_eq!(tracker.published.load().answer, value(2, true));
    }
}

#[test]
fn b6_two_triggers_of_one_object_are_two_trackers() {
    let registry =
        registry(&[workload("a", Some(1), &[&[("modelName", "x")], &[("modelName", "y")]])]);
    let x = call(&registry, "a", &[("modelName", "x")]).unwrap();
    let y = call(&registry, "a", &[("modelName", "y")]).unwrap();
    x.publish(decided(1, value(4, true)));
    assert_eq!(x.published.load().answer, value(4, true));
    assert_eq!(y.published.load().answer, value(1, true));
    assert_eq!(registry.trackers().len(), 2);
}

#[test]
fn a_call_without_own_keys_means_the_only_trigger() {
    let registry = registry(&[
        workload("one", Some(1), &[&[("sloTtft", "3s")]]),
        workload("two", Some(1), &[&[("sloTtft", "3s")], &[("sloTtft", "4s")]]),
    ]);
    let bare = [("scalerAddress", "x"), ("enableTLS", "true")];
    assert_eq!(call(&registry, "one", &bare).unwrap().policy.spec.slo_ttft_ms, 3_000);
    assert_eq!(call(&registry, "two", &bare).unwrap().policy.spec.slo_ttft_ms, 2_000);
    assert_eq!(registry.trackers().len(), 4);
}

#[test]
fn a_changed_policy_names_the_tracker_that_it_replaces() {
    // The inventory sees the edit first.
    let seen_first = registry(&[workload("a", Some(1), &[&[("sloTtft", "3s")]])]);
    let old = call(&seen_first, "a", &[("sloTtft", "3s")]).unwrap();
    seen_first.set_inventory(inventory(&[workload("a", Some(1), &[&[("sloTtft", "4s")]])]));
    let new = call(&seen_first, "a", &[("sloTtft", "4s")]).unwrap();
    assert_eq!(new.predecessor.as_deref(), Some(&old.key));
    assert_eq!(old.predecessor, None);

    // A call brings the edit first.
    let called_first = registry(&[workload("a", Some(1), &[&[("sloTtft", "3s")]])]);
    let new = call(&called_first, "a", &[("sloTtft", "4s")]).unwrap();
    assert_eq!(new.predecessor.as_deref(), Some(&old.key));

    // A second trigger replaces nothing, also where only its calls say what it is.
    let from_env: &[(&str, &str)] = &[("sloTtftFromEnv", "A")];
    let both = registry(&[workload("a", Some(1), &[from_env, &[("sloTpotFromEnv", "B")]])]);
    for resolved in [("sloTtftFromEnv", "3s"), ("sloTpotFromEnv", "50ms")] {
        assert_eq!(call(&both, "a", &[resolved]).unwrap().predecessor, None);
    }

    let second = registry(&[workload("a", Some(1), &[&[("sloTtft", "3s")], &[("sloTtft", "4s")]])]);
    assert!(second.trackers().iter().all(|tracker| tracker.predecessor.is_none()));
}

#[test]
fn b4_bad_metadata_is_told_with_what_the_workload_has() {
    let registry = registry(&[workload("a", Some(3), &[])]);
    for _ in 0..2 {
        let Err(Error::Refused { why: Refusal::BadMetadata(faults), min: 0, spec: Some(3) }) =
            call(&registry, "a", &[("sloTtft", "abc")])
        else {
            panic!("expected bad metadata");
        };
        assert!(faults.to_string().contains("sloTtft=\"abc\""), "{faults}");
    }
    assert!(registry.trackers().is_empty());
}

#[test]
fn b7_the_number_of_trackers_is_bounded() {
    let limits = Limits { trackers: 5, trackers_per_workload: 3, ..Limits::default() };
    let registry = Registry::new(limits, Clock::start());
    registry.set_inventory(inventory(&[workload("a", None, &[]), workload("b", None, &[])]));
    let call_all = |name| {
        (0..10)
            .map(|i| call(&registry, name, &[("modelName", format!("m{i}").as_str())]))
            .filter_map(Result::err)
            .collect::<Vec<_>>()
    };
    let refused = |why| Error::Refused { why, min: 0, spec: None };
    assert_eq!(call_all("a"), vec![refused(Refusal::Full { limit: 3 }); 7]);
    assert_eq!(call_all("b"), vec![refused(Refusal::Full { limit: 5 }); 8]);
    assert_eq!(registry.trackers().len(), 5);
    // Those that are there still answer.
    assert!(call(&registry, "a", &[("modelName", "m0")]).is_ok());
    let huge = "x".repeat(70_000);
    assert_eq!(
        call(&registry, "a", &[("modelName", &huge)]).unwrap_err(),
        refused(Refusal::TooLarge)
    );
}

#[test]
fn a_trigger_that_two_first_calls_bring_at_once_counts_once() {
    let (variants, workload) = (Variants::default(), workload("a", Some(1), &[&[]]));
    let add = || {
        let policy = Arc::default();
        let new = variants::New { workload: &workload, trigger: 7, policy, brought_by: None };
        variants.add(new, Clock::start(), 16).unwrap().1
    };
    assert!(add());
    assert!(!add());
}

#[test]
fn a_listed_trigger_takes_the_place_of_what_calls_have_brought() {
    let limits = Limits { trackers_per_workload: 3, ..Limits::default() };
    let registry = Registry::new(limits, Clock::start());
    registry.set_inventory(inventory(&[workload("a", Some(2), &[])]));
    for model in ["m0", "m1", "m2"] {
        assert!(call(&registry, "a", &[("modelName", model)]).is_ok());
    }
    registry.set_inventory(inventory(&[workload("a", Some(2), &[&[("sloTtft", "3s")]])]));
    let listed = call(&registry, "a", &[("sloTtft", "3s")]).unwrap();
    assert!(listed.is_listed());
    assert_eq!(registry.trackers().len(), 3);
    // Another that only a call brings has no place.
    assert!(call(&registry, "a", &[("modelName", "m3")]).is_err());
}

#[test]
fn a_listed_trigger_has_its_place_when_calls_have_filled_the_registry() {
    let limits = Limits { trackers: 3, ..Limits::default() };
    let registry = Registry::new(limits, Clock::start());
    let all = |triggers| inventory(&[workload("a", Some(2), triggers), workload("b", None, &[])]);
    registry.set_inventory(all(&[]));
    for (name, model) in [("a", "m0"), ("a", "m1"), ("b", "m2")] {
        assert!(call(&registry, name, &[("modelName", model)]).is_ok());
    }
    assert!(call(&registry, "a", &[("modelName", "m3")]).is_err());
    registry.set_inventory(all(&[&[("sloTtft", "3s")]]));
    assert!(call(&registry, "a", &[("sloTtft", "3s")]).unwrap().is_listed());
    assert_eq!(registry.trackers().len(), 3);
    assert!(call(&registry, "b", &[("modelName", "m2")]).is_ok(), "another workload's stays");
}

#[test]
fn a_workload_that_leaves_a_whole_inventory_is_dropped() {
    let registry = registry(&[workload("a", Some(1), &[&[]]), workload("b", Some(1), &[&[]])]);
    let mut changes = registry.changes();
    let unsynced = Inventory { synced: false, ..Inventory::default() };
    registry.set_inventory(Arc::new(unsynced));
    assert!(call(&registry, "a", &[]).is_ok());
    assert!(!changes.has_changed().unwrap());

    registry.set_inventory(inventory(&[workload("b", Some(1), &[&[]])]));
    assert_eq!(call(&registry, "a", &[]).unwrap_err(), Error::NotFound);
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    assert_eq!(registry.trackers().len(), 1);
    registry.set_inventory(inventory(&[workload("b", Some(2), &[&[]])]));
    assert!(!changes.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn an_unlisted_trigger_is_dropped_ten_minutes_after_its_last_call() {
    let registry = registry(&[workload("a", Some(1), &[&[("sloTtft", "3s")]])]);
    call(&registry, "a", &[("sloTtft", "4s")]).unwrap();
    let held = call(&registry, "a", &[("sloTtft", "5s")]).unwrap().open_stream();
    tokio::time::advance(Duration::from_secs(599)).await;
    registry.drop_idle();
    assert_eq!(registry.trackers().len(), 3);
    tokio::time::advance(Duration::from_secs(1)).await;
    registry.drop_idle();
    let left: Vec<_> = registry.trackers().iter().map(|t| t.policy.spec.slo_ttft_ms).collect();
    assert_eq!(left.len(), 2);
    assert!(left.contains(&3_000) && left.contains(&5_000), "{left:?}");
    drop(held);
    registry.drop_idle();
    assert_eq!(registry.trackers().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_values_of_a_trigger_from_the_environment_outlive_a_long_absence_of_keda() {
    let from_env: &[(&str, &str)] = &[("sloTtftFromEnv", "VARIABLE")];
    let registry = registry(&[workload("a", Some(1), &[from_env])]);
    call(&registry, "a", &[("sloTtftFromEnv", "3s")]).unwrap();
    tokio::time::advance(Duration::from_secs(10)).await;
    let now = call(&registry, "a", &[("sloTtftFromEnv", "4s")]).unwrap();
    tokio::time::advance(Duration::from_secs(3_600)).await;
    registry.drop_idle();
    // The older value goes; that which KEDA asked with last is what the inventory lists.
    let trackers = registry.trackers();
    assert_eq!(trackers.len(), 1);
    assert!(Arc::ptr_eq(&trackers[0], &now));
    // Nothing lists it any more.
    registry.set_inventory(inventory(&[workload("a", Some(1), &[&[("sloTtft", "9s")]])]));
    registry.drop_idle();
    assert!(registry.trackers().iter().all(|tracker| tracker.is_listed()));
}

#[test]
fn what_is_refused_is_told_whole_wherever_it_came_from() {
    let listed: &[(&str, &str)] = &[("sloTtft", "soon"), ("engine", "vlm")];
    let from_env: &[(&str, &str)] = &[("sloTpotFromEnv", "VARIABLE")];
    let both = registry(&[workload("a", Some(1), &[listed, from_env]), workload("b", None, &[])]);
    let keys = |registry: &Registry, name: &str| {
        let untracked = registry.untracked_of(&WorkloadKey::new("ns", name)).unwrap();
        let keys = |faults: &Faults| faults.iter().map(|it| it.key.clone()).collect::<Vec<_>>();
        (untracked.refused.iter().map(keys).collect::<Vec<_>>(), untracked.has_unresolved)
    };
    assert_eq!(keys(&both, "a"), (vec![vec!["engine".to_owned(), "sloTtft".to_owned()]], true));
    assert_eq!(keys(&both, "b"), (Vec::new(), false));
    assert!(both.untracked_of(&WorkloadKey::new("ns", "none")).is_none());
    // KEDA asks for both: the one is known already, of the other only its call tells the value.
    call(&both, "a", listed).unwrap_err();
    call(&both, "a", &[("sloTpotFromEnv", "late")]).unwrap_err();
    assert_eq!(keys(&both, "a").0.len(), 2);
    assert_eq!(keys(&both, "a").0[1], ["sloTpotFromEnv"]);
    // Edited, it is no longer what is wrong.
    both.set_inventory(inventory(&[workload("a", Some(1), &[&[]])]));
    assert_eq!(keys(&both, "a"), (Vec::new(), false));
}

#[tokio::test(start_paused = true)]
async fn a_trigger_that_was_edited_away_is_dropped_a_minute_after_its_last_call() {
    let registry = registry(&[workload("a", Some(1), &[&[("sloTtft", "3s")]])]);
    let old = call(&registry, "a", &[]).unwrap();
    let mut stream = old.clone().open_stream();
    registry.set_inventory(inventory(&[workload("a", Some(1), &[&[("sloTtft", "4s")]])]));
    assert_eq!(call(&registry, "a", &[]).unwrap().predecessor.as_deref(), Some(&old.key));
    tokio::time::advance(Duration::from_secs(59)).await;
    registry.drop_idle();
    assert_eq!(registry.trackers().len(), 2);
    tokio::time::advance(Duration::from_secs(1)).await;
    registry.drop_idle();
    assert_eq!(registry.trackers().len(), 1);
    assert_eq!(registry.trackers()[0].policy.spec.slo_ttft_ms, 4_000);
    assert!(stream.take_edge(), "its stream goes on with the new policy");
    assert!(is_silent(&mut stream));
    assert_eq!(registry.trackers()[0].n_streams(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_tracker_tells_how_long_ago_each_method_was_called() {
    let registry = registry(&[workload("a", Some(1), &[&[]])]);
    let tracker = registry.trackers()[0].clone();
    assert_eq!(tracker.asked(Rpc::GetMetrics, Caller::Poll), None);
    call(&registry, "a", &[]).unwrap();
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(tracker.asked(Rpc::GetMetrics, Caller::Poll), Some(30_000));
    assert_eq!(tracker.asked(Rpc::GetMetrics, Caller::Hpa), None);
    assert_eq!(tracker.asked(Rpc::IsActive, Caller::Poll), None);
}

#[tokio::test(start_paused = true)]
async fn e2_a_stream_sees_each_rising_edge_once() {
    let registry = registry(&[workload("a", Some(0), &[&[]])]);
    let tracker = registry.trackers()[0].clone();
    let mut stream = tracker.clone().open_stream();
    assert!(!stream.take_edge());
    tracker.publish(decided(1, value(1, true)));
    assert!(stream.take_edge());
    for version in 2..5 {
        tracker.publish(decided(version, value(2, true)));
        assert!(!stream.take_edge());
    }
    // An outage is no edge.
    tracker.publish(decided(5, Answer::Unavailable { why: Unavailable::SourceLost }));
    tracker.publish(decided(6, value(2, true)));
    assert!(!stream.take_edge());
    // An edge that has passed is not told late.
    tracker.publish(decided(7, value(0, false)));
    tracker.publish(decided(8, value(1, true)));
    tracker.publish(decided(9, value(0, false)));
    assert!(!stream.take_edge());
    tracker.publish(decided(10, value(1, true)));
    assert!(stream.take_edge());
    // A stream that opens now is told once.
    let mut second = tracker.clone().open_stream();
    assert!(second.take_edge() && !second.take_edge());
    assert_eq!(tracker.n_streams(), 2);
}

/// Whether an open stream waits: nothing to tell, and no end.
fn is_silent(stream: &mut OpenStream) -> bool {
    use futures_util::FutureExt as _;
    !stream.take_edge() && stream.changed().now_or_never().is_none()
}

#[test]
fn a_stream_moves_to_the_trigger_that_replaces_its_own() {
    let sleeping = |slo| workload("a", Some(0), &[&[("sloTtft", slo)]]);
    let registry = registry(&[sleeping("1s")]);
    let old = call(&registry, "a", &[("sloTtft", "1s")]).unwrap();
    let mut stream = Arc::clone(&old).open_stream();
    assert!(is_silent(&mut stream));
    registry.set_inventory(inventory(&[sleeping("2s")]));
    let new = call(&registry, "a", &[("sloTtft", "2s")]).unwrap();
    assert!(is_silent(&mut stream));
    assert_eq!((old.n_streams(), new.n_streams()), (0, 1));

    new.publish(decided(1, value(1, true)));
    assert!(stream.take_edge(), "the edge of the new trigger");
    assert!(is_silent(&mut stream));
    // An edit back: what goes on was told, and a new edge is told once.
    new.publish(decided(2, value(2, true)));
    old.publish(decided(1, value(2, true)));
    registry.set_inventory(inventory(&[sleeping("1s")]));
    assert!(is_silent(&mut stream));
    assert_eq!((old.n_streams(), new.n_streams()), (1, 0));
    new.publish(decided(3, value(0, false)));
    new.publish(decided(4, value(1, true)));
    assert!(is_silent(&mut stream), "the replaced trigger is not followed any more");
    old.publish(decided(2, value(0, false)));
    old.publish(decided(3, value(1, true)));
    assert!(stream.take_edge());
    // Without anything in its place a stream stays where it is.
    registry.set_inventory(inventory(&[workload("a", Some(0), &[])]));
    assert!(is_silent(&mut stream));
    assert_eq!(old.n_streams(), 1);
    drop(stream);
    assert_eq!(old.n_streams(), 0);
}

#[tokio::test]
async fn a_waiting_stream_learns_of_its_trigger_being_replaced() {
    let registry = registry(&[workload("a", Some(0), &[&[("sloTtft", "1s")]])]);
    let old = call(&registry, "a", &[("sloTtft", "1s")]).unwrap();
    let mut stream = old.open_stream();
    let waiting = tokio::spawn(async move {
        while !stream.take_edge() {
            assert!(!stream.changed().await, "it is moved and not ended");
        }
    });
    tokio::task::yield_now().await;
    registry.set_inventory(inventory(&[workload("a", Some(3), &[&[("sloTtft", "2s")]])]));
    tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap().unwrap();
}

#[tokio::test]
async fn concurrent_calls_with_a_new_trigger_share_one_tracker() {
    let registry = registry(&[workload("a", Some(1), &[])]);
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| call(&registry, "a", &[("modelName", "m")]).unwrap()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(found.iter().all(|tracker| Arc::ptr_eq(tracker, &found[0])));
    assert_eq!(registry.trackers().len(), 1);
}

#[test]
fn b5_refused_metadata_is_logged_once_by_its_keys_and_never_by_its_values() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).finish();
    tracing::subscriber::with_default(subscriber, || {
        let registry = registry(&[workload("a", Some(1), &[])]);
        for _ in 0..3 {
            let secret = [("sloTtft", "hunter2"), ("apiToken", "hunter2")];
            call(&registry, "a", &secret).unwrap_err();
            // The object's other trigger, asked for in turn.
            call(&registry, "a", &[("sloTpot", "hunter2")]).unwrap_err();
        }
    });
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("ns/a") && text.contains("sloTtft") && text.contains("apiToken"));
    assert!(!text.contains("hunter2"), "{text}");
}

/// Log lines in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

#[test]
fn a_tracker_with_its_counts_fits_the_allocators_class_of_256_bytes() {
    assert!(size_of::<Tracker>() <= 256 - 16, "{}", size_of::<Tracker>());
}

#[test]
fn equal_specs_are_held_once() {
    let registry = registry(&[]);
    let [one, two] = [2_000, 2_000]
        .map(|slo_ttft_ms| registry.share_spec(Spec { slo_ttft_ms, ..Spec::default() }));
    let other = registry.share_spec(Spec { slo_ttft_ms: 1_000, ..Spec::default() });
    assert!(Arc::ptr_eq(&one, &two));
    assert_ne!(other, one);
}
