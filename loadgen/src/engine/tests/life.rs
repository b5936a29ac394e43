//! Tests of a replica's life.

use std::sync::Arc;

use super::{ms, profile};
use crate::engine::*;

fn advance(replica: &mut Replica, to: Time) -> Vec<ReplicaEvent> {
    let mut events = Vec::new();
    replica.advance(to, Watch::FirstToken, &mut |event| events.push(event));
    events
}

fn changes(events: &[ReplicaEvent]) -> Vec<(f64, Condition)> {
    events
        .iter()
        .filter_map(|event| match *event {
            ReplicaEvent::Changed { at, to } => Some((at.as_secs_f64(), to)),
            ReplicaEvent::Engine(_) => None,
        })
        .collect()
}

fn shutdown(timeout_s: f64) -> Arc<Profile> {
    profile(|profile| {
        profile.shutdown = Shutdown { timeout_s, linger_s: 5.5, exit_s: 0.5 };
    })
}

#[test]
fn a_cold_start_passes_its_stages_and_refuses_connections_until_it_is_ready() {
    let mut replica = Replica::cold(profile(|_| {}), 7, ms(1_000.0));
    assert_eq!(replica.condition(), Condition::Starting(Stage::Schedule));
    let refused = replica.submit(Request::new(1, 16, 1), ms(1_000.0));
    assert_eq!(refused, Err(Refused::NotListening));
    let events = advance(&mut replica, ms(1e6));
    let stages: Vec<_> = changes(&events).into_iter().map(|(_, condition)| condition).collect();
    let starting = [Stage::Pull, Stage::Load, Stage::Warm].map(Condition::Starting);
    assert_eq!(stages[..3], starting);
    assert_eq!(stages[3..], [Condition::Ready]);
    assert!(replica.is_listening());
}

#[test]
fn cold_starts_are_spread_as_the_profile_says_and_repeat_with_their_seed() {
    let ready_s = |seed| {
        let mut replica = Replica::cold(profile(|_| {}), seed, Time::ZERO);
        changes(&advance(&mut replica, ms(1e6))).last().unwrap().0
    };
    assert_eq!(ready_s(3).to_bits(), ready_s(3).to_bits());
    let mut all: Vec<f64> = (0..2_000).map(ready_s).collect();
    all.sort_by(f64::total_cmp);
    // The sum of four log-normals with medians of 3, 5, 37 and 33 s and sigma 0.25 has a mean of
    // 78 × exp(0.25² / 2) = 80.5 s and a standard deviation of 80.5 × 0.255 × √(Σm²) / Σm = 13 s.
    let mean = all.iter().sum::<f64>() / 2_000.0;
    assert!((mean - 80.5).abs() < 1.5, "mean {mean}");
    let p95 = all[1_900];
    assert!((p95 - (80.5 + 1.7 * 13.0)).abs() < 3.0, "p95 {p95}");
}

#[test]
fn a_sleeper_gives_up_what_it_has_and_serves_what_comes_when_it_has_woken() {
    let mut replica = Replica::warm(profile(|_| {}));
    replica.submit(Request::new(1, 16, 500), Time::ZERO).unwrap();
    advance(&mut replica, ms(100.0));
    let mut events = Vec::new();
    assert!(replica.sleep(SleepLevel::Offloaded, ms(100.0), &mut |event| events.push(event)));
    assert!(!replica.sleep(SleepLevel::Offloaded, ms(100.0), &mut |_| {}), "asleep already");
    let aborted = |event: &ReplicaEvent| {
        matches!(
            event,
            ReplicaEvent::Engine(Event::Finished { id: 1, reason: FinishReason::Abort, .. })
        )
    };
    assert!(events.iter().any(aborted));

    replica.submit(Request::new(2, 16, 1), ms(200.0)).unwrap();
    assert_eq!(advance(&mut replica, ms(60_000.0)), []);
    assert_eq!(replica.engine().in_flight(), 1);
    assert!(replica.wake(ms(60_000.0), &mut |_| {}));
    let events = advance(&mut replica, ms(70_000.0));
    assert_eq!(changes(&events), [(62.0, Condition::Ready)]);
    let first = Event::Token { id: 2, at: ms(62_000.0 + 10.0 + 1.6), first: true };
    assert!(events.contains(&ReplicaEvent::Engine(first)), "{events:?}");
}

#[test]
fn without_a_shutdown_timeout_requests_are_cut_at_once() {
    let mut replica = Replica::warm(shutdown(0.0));
    replica.submit(Request::new(1, 16, 500), Time::ZERO).unwrap();
    advance(&mut replica, ms(100.0));
    let mut events = Vec::new();
    replica.terminate(ms(100.0), &mut |event| events.push(event));
    assert_eq!(changes(&events), [(0.1, Condition::Exiting)]);
    assert_eq!(events.len(), 2, "and the aborted request");
    assert!(!replica.is_listening());
    assert_eq!(changes(&advance(&mut replica, ms(10_000.0))), [(0.6, Condition::Gone)]);
}

#[test]
fn with_a_shutdown_timeout_all_finish_new_ones_get_500_and_the_server_lingers() {
    let mut replica = Replica::warm(shutdown(30.0));
    for id in 1..=10 {
        replica.submit(Request::new(id, 16, 50), Time::ZERO).unwrap();
    }
    advance(&mut replica, ms(100.0));
    replica.terminate(ms(100.0), &mut |_| {});
    let refused = replica.submit(Request::new(11, 16, 1), ms(100.0));
    assert_eq!(refused, Err(Refused::ShuttingDown));
    assert!(replica.is_listening(), "and looks healthy");
    let events = advance(&mut replica, ms(60_000.0));
    let metrics = replica.engine().metrics();
    assert_eq!((metrics.finished_length, metrics.finished_abort), (10, 0));
    let drained = replica.engine().last_step_end().as_secs_f64();
    let [(exiting, Condition::Exiting), (gone, Condition::Gone)] = changes(&events)[..] else {
        panic!("{events:?}");
    };
    assert!((exiting - drained - 5.5).abs() < 1e-9, "drained at {drained}, closed at {exiting}");
    assert!((gone - exiting - 0.5).abs() < 1e-9);
}

#[test]
fn what_has_not_finished_at_the_timeout_is_given_up() {
    let mut replica = Replica::warm(shutdown(2.0));
    replica.submit(Request::new(1, 16, 900), Time::ZERO).unwrap();
    advance(&mut replica, ms(100.0));
    replica.terminate(ms(100.0), &mut |_| {});
    let events = advance(&mut replica, ms(60_000.0));
    assert_eq!(changes(&events), [(2.1, Condition::Exiting), (2.6, Condition::Gone)]);
    assert_eq!(replica.engine().metrics().finished_abort, 1);
}

#[test]
fn a_killed_replica_is_gone_at_once() {
    let mut replica = Replica::cold(profile(|_| {}), 1, Time::ZERO);
    let mut events = Vec::new();
    replica.kill(ms(10.0), &mut |event| events.push(event));
    assert_eq!(changes(&events), [(0.01, Condition::Gone)]);
    assert_eq!(replica.next_event(), None);
}
