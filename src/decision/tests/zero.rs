//! Rules 7 and 8: zero, and waking from it.

use super::build::{Bench, Does, reason, value};
use crate::decision::{
    Answer, Decision, Moment, Notice, Reason, Rule, State, Wake, WakeReading, Why, ZeroAfter,
};

const IDLE: fn(usize) -> Does = |_| Does::serving(0.0);

/// A workload that may sleep, with a readable wake source that sees nothing.
fn sleeper(n: u32) -> Bench {
    let mut bench = Bench::new(n).spec(|spec| {
        spec.min = 0;
        spec.has_wake_source = true;
    });
    quiet(&mut bench);
    bench
}

fn quiet(bench: &mut Bench) {
    bench.seen.wake = Wake {
        source: Some(WakeReading::Fresh { queued: 0.0, last_arrival_at: None }),
        requested_at: None,
    };
}

fn queued(bench: &mut Bench, queued: f64) {
    bench.seen.wake.source = Some(WakeReading::Fresh { queued, last_arrival_at: None });
}

fn asleep() -> Bench {
    let mut bench = sleeper(1);
    bench.run(3_700, IDLE);
    assert_eq!(bench.seen.replicas.spec, Some(0));
    bench
}

fn answers(decision: &Decision, want: u32) {
    assert_eq!(decision.answer, value(want));
}

#[test]
fn an_idle_workload_goes_to_one_and_then_to_zero() {
    let mut bench = sleeper(3);
    let wants = bench.run(3_550, IDLE);
    assert_eq!(wants.last(), Some(&1));
    let mut slept = 0;
    for _ in 0..20 {
        slept += usize::from(bench.tick(IDLE).notices.contains(&Notice::Slept));
    }
    assert_eq!(slept, 1);
    answers(&bench.last.clone().unwrap(), 0);
    assert_eq!(bench.last.unwrap().next_tick_ms, 5_000);
}

#[test]
fn without_a_wake_source_zero_never_comes_and_it_is_said_once() {
    let mut bench = Bench::new(1).spec(|spec| spec.min = 0);
    let mut told = 0;
    for _ in 0..2_000 {
        let decision = bench.tick(IDLE);
        answers(&decision, 1);
        told += usize::from(decision.notices.contains(&Notice::NoWakeSource));
    }
    assert_eq!(told, 1);
    assert_eq!(reason(&bench.last.unwrap(), Rule::Zero), Reason::NoWakeSource);
}

#[test]
fn zero_waits_for_its_own_time() {
    let mut bench = sleeper(1).spec(|spec| {
        spec.zero_after = ZeroAfter::After { millis: 900_000 };
    });
    bench.run(900, IDLE);
    assert_eq!(bench.last.clone().unwrap().want, 1);
    assert_eq!(bench.last.clone().unwrap().next.zero_in_ms, Some(5_000));
    bench.run(10, IDLE);
    assert_eq!(bench.last.unwrap().want, 0);
    let mut never = sleeper(1).spec(|spec| spec.zero_after = ZeroAfter::Never);
    never.run(8_000, IDLE);
    assert_eq!(never.last.unwrap().want, 1);
}

#[test]
fn a_wake_source_that_cannot_be_read_allows_no_zero() {
    let mut bench = sleeper(1);
    bench.seen.wake.source = Some(WakeReading::Unknown { why: Why::Unauthorized });
    bench.run(5_000, IDLE);
    let decision = bench.last.clone().unwrap();
    answers(&decision, 1);
    assert_eq!(reason(&decision, Rule::Zero), Reason::WakeUnknown { why: Why::Unauthorized });
}

#[test]
fn a_warm_schedule_allows_no_zero() {
    let mut bench = sleeper(1);
    bench.seen.schedule_floor = 1;
    bench.run(5_000, IDLE);
    answers(&bench.last.unwrap(), 1);
}

#[test]
fn a_request_now_and_then_allows_no_zero() {
    let mut bench = sleeper(1);
    for _ in 0..4 {
        let wants = bench.run(3_000, IDLE);
        assert!(wants.iter().all(|want| *want == 1));
        bench.run(5, |_| Does::serving(1.0));
    }
}

#[test]
fn arrivals_at_the_gateway_allow_no_zero() {
    let mut bench = sleeper(1);
    for _ in 0..3 {
        bench.run(3_000, IDLE);
        let now = bench.now.plus_millis(5_000);
        bench.seen.wake.source =
            Some(WakeReading::Fresh { queued: 0.0, last_arrival_at: Some(now) });
        assert_eq!(bench.tick(IDLE).want, 1);
    }
}

#[test]
fn new_demand_cancels_a_pending_zero_in_the_same_tick() {
    let mut bench = sleeper(1).deaf();
    bench.run(3_700, IDLE);
    answers(&bench.last.clone().unwrap(), 0);
    answers(&bench.tick(|_| Does::serving(1.0)), 1);
    answers(&bench.tick(IDLE), 1);
}

#[test]
fn a_pending_zero_becomes_true_again_when_the_source_is_lost() {
    let mut bench = sleeper(1).deaf();
    bench.run(3_700, IDLE);
    answers(&bench.last.clone().unwrap(), 0);
    bench.lose();
    answers(&bench.tick(IDLE), 1);
}

#[test]
fn fifty_requests_at_zero_are_one_wake() {
    let mut bench = asleep().deaf();
    queued(&mut bench, 50.0);
    let decision = bench.tick(IDLE);
    // ceil(50/32) of the preset.
    answers(&decision, 2);
    assert_eq!(decision.binding, Rule::Wake);
    assert!(decision.notices.contains(&Notice::Woke));
    for _ in 0..20 {
        let decision = bench.tick(IDLE);
        assert!(decision.want <= 2);
        assert!(!decision.notices.contains(&Notice::Woke));
    }
}

#[test]
fn a_guess_of_what_a_replica_carries_orders_one_beside_the_one_that_wakes() {
    let mut bench = asleep().deaf();
    // 145 held over a cold start would be ceil(145/32) = 5 of the preset.
    for held in [1.0, 50.0, 145.0] {
        queued(&mut bench, held);
        assert!(bench.tick(IDLE).want <= 2);
    }
}

#[test]
fn a_wake_can_be_asked_for() {
    let mut bench = asleep();
    bench.seen.wake.requested_at = Some(bench.now.plus_millis(4_000));
    answers(&bench.tick(IDLE), 1);
}

#[test]
fn a_wake_tells_how_long_it_will_take() {
    let mut bench = asleep().deaf();
    queued(&mut bench, 1.0);
    bench.tick(IDLE).next.wake_eta_ms.unwrap();
    let decision = bench.tick(IDLE);
    assert_eq!(decision.next.wake_eta_ms, Some(175_000));
    assert_eq!(
        reason(&decision, Rule::Wake),
        Reason::Woken { queued: 1.0, for_ms: 5_000, expected_ms: 180_000 }
    );
}

#[test]
fn a_wake_stands_for_a_cold_start_and_a_hold_and_then_ends() {
    let mut bench = asleep().deaf();
    bench.now = bench.now.plus_millis(60_000);
    bench.seen.wake.source =
        Some(WakeReading::Fresh { queued: 0.0, last_arrival_at: Some(bench.now) });
    // 180 s and 600 s.
    let wants = bench.run(780, IDLE);
    assert!(wants.iter().all(|want| *want == 1), "{wants:?}");
    // And the last order is trusted for a minute.
    bench.run(60, IDLE);
    answers(&bench.tick(IDLE), 0);
}

#[test]
fn what_came_before_the_sleep_wakes_nobody() {
    let mut bench = sleeper(1).spec(|spec| {
        spec.zero_after = ZeroAfter::After { millis: 300_000 };
    });
    bench.run(900, |_| Does::serving(1.0));
    bench.seen.wake.source =
        Some(WakeReading::Fresh { queued: 0.0, last_arrival_at: Some(bench.now) });
    bench.run(320, IDLE);
    answers(&bench.last.clone().unwrap(), 0);
    answers(&bench.tick(IDLE), 0);
}

#[test]
fn a_restart_at_zero_wakes_nobody() {
    let mut bench = asleep();
    bench.state = State::default();
    quiet(&mut bench);
    answers(&bench.tick(IDLE), 0);
    bench.state = State::default().restored();
    bench.seen.wake.source = None;
    answers(&bench.tick(IDLE), 0);
}

#[test]
fn an_unreadable_wake_source_at_zero_is_no_demand_and_no_error() {
    let mut bench = asleep();
    bench.seen.wake.source = Some(WakeReading::Unknown { why: Why::Timeout });
    assert_eq!(bench.tick(IDLE).answer, Answer::Value { want: 0, active: false });
}

#[test]
fn the_gateways_queue_is_heard_while_the_first_replica_loads() {
    let mut bench = asleep().deaf();
    queued(&mut bench, 10.0);
    answers(&bench.tick(IDLE), 1);
    bench.replicas(1);
    bench.seen.replicas.ready = 0;
    bench.seen.replicas.starting = 1;
    bench.seen.engines[0].phase = crate::decision::Phase::Starting;
    queued(&mut bench, 100.0);
    answers(&bench.tick(IDLE), 2);
}

#[test]
fn short_gaps_in_the_workloads_own_history_keep_it_awake() {
    let mut bench = sleeper(1).spec(|spec| {
        spec.zero_after = ZeroAfter::After { millis: 600_000 };
    });
    // Eight gaps of 9 minutes, in the bucket from 8 to 16 min with its middle at 12 min.
    for _ in 0..8 {
        bench.run(545, IDLE);
        bench.run(5, |_| Does::serving(1.0));
    }
    // At 10 minutes another 2 are to be expected, and sleeping pays from 10 cold starts = 30 min.
    bench.run(620, IDLE);
    let decision = bench.last.clone().unwrap();
    answers(&decision, 1);
    assert!(matches!(
        reason(&decision, Rule::Zero),
        Reason::GapsTooShort { needed_ms: 1_800_000, .. }
    ));
    // Longer than every gap so far: nothing speaks for staying awake.
    bench.run(200, IDLE);
    answers(&bench.last.unwrap(), 0);
}

#[test]
fn a_target_that_is_at_zero_and_must_not_be_is_raised() {
    let mut bench = Bench::new(0);
    answers(&bench.tick(IDLE), 1);
    assert_eq!(bench.last.unwrap().at, Moment(1_000_005_000));
}
