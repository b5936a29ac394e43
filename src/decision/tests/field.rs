//! Cases from the field that a decision can settle, each by its id.
//!
//! The rest of the cases of these themes are settled by sources, the wire or the cluster, or stand
//! beside the rule they are about.

use super::build::{Bench, Does, reason, wanted};
use crate::decision::{
    EngineSample, Health, Notice, Phase, Reading, Reason, Rule, Wake, WakeReading, Why,
};

const IDLE: fn(usize) -> Does = |_| Does::serving(0.0);

#[test]
fn f04_thresholds_with_a_gap_neither_flap_nor_stick() {
    let mut bench = Bench::new(1);
    for round in 0..180_u32 {
        let kv = 0.60 + 0.01 * f64::from(round % 16);
        let decision = bench.tick(|_| Does::serving(2.0).kv(kv));
        assert_eq!(decision.want, 1);
        assert_eq!(reason(&decision, Rule::Kv), Reason::KvFits { used: kv });
    }
    let mut bench = Bench::new(2);
    bench.run(610, |_| Does::serving(0.0).kv(0.03));
    assert_eq!(bench.last.unwrap().want, 1);
}

#[test]
fn f05_a_collapse_is_answered_without_a_jump_to_the_maximum() {
    let mut bench = Bench::new(6).deaf().spec(|spec| spec.max = 54);
    bench.run(1_800, |_| Does::serving(8.0));
    assert_eq!(bench.last.clone().unwrap().want, 6);
    // Three pods die; 60 requests wait on the others, of 8 running each.
    bench.seen.replicas.ready = 3;
    bench.seen.replicas.starting = 3;
    for engine in bench.seen.engines.iter_mut().skip(3) {
        engine.phase = Phase::Starting;
        engine.reading = Reading::Missing { why: Why::Refused };
    }
    let wants: Vec<u32> =
        (0..12).map(|_| bench.tick(|_| Does::serving(8.0).waiting(20.0)).want).collect();
    // 3 + ceil(60/8) = 11, at most double what was there.
    assert!(wants.iter().all(|want| (6..=12).contains(want)), "{wants:?}");
}

#[test]
fn f10_the_gateways_queue_shows_what_an_engine_that_takes_one_at_a_time_hides() {
    let mut bench = Bench::new(1);
    bench.seen.wake = Wake {
        source: Some(WakeReading::Fresh { queued: 30.0, last_arrival_at: None }),
        requested_at: None,
    };
    assert!(bench.tick(|_| Does::serving(1.0)).want > 1);
}

#[test]
fn f11_an_empty_answer_at_peak_lowers_nothing() {
    let mut bench = Bench::new(6);
    bench.run(60, |_| Does::serving(5.0).waiting(5.0));
    let before = bench.last.clone().unwrap().want;
    bench.obeys = false;
    for engine in &mut bench.seen.engines {
        engine.reading = Reading::Missing { why: Why::NoKnownSeries };
    }
    for _ in 0..60 {
        let decision = bench.tick(IDLE);
        assert_eq!(decision.want, before);
        assert!(matches!(decision.health, Health::Degraded { why: Why::NoKnownSeries, .. }));
    }
}

#[test]
fn f12_flat_counters_are_idleness_and_absent_ones_are_none() {
    let mut bench = Bench::new(7);
    bench.run(900, |_| Does::default());
    assert_eq!(bench.last.clone().unwrap().want, 1);
    let mut bench = Bench::new(7);
    for engine in &mut bench.seen.engines {
        engine.reading = Reading::Fresh { value: EngineSample::default(), age_ms: 0 };
    }
    bench.run(900, |_| Does::default());
    assert_eq!(bench.last.unwrap().want, 7);
}

#[test]
fn f13_ten_minutes_without_a_source_change_the_count_at_most_once() {
    let mut bench = Bench::new(3).deaf().spec(|spec| spec.fallback_replicas = Some(5));
    bench.run(60, |_| Does::serving(4.0));
    bench.lose();
    let mut wants = bench.run(600, IDLE);
    wants.dedup();
    assert_eq!(wants, [3]);
}

#[test]
fn f14_pods_that_are_gone_or_leaving_do_not_count() {
    let mut bench = Bench::new(5).deaf();
    bench.seen.replicas.spec = Some(3);
    bench.seen.replicas.ready = 3;
    bench.seen.replicas.terminating = 2;
    for engine in bench.seen.engines.iter_mut().skip(3) {
        engine.phase = Phase::Terminating;
    }
    let decision =
        bench.tick(
            |index| {
                if index < 3 { Does::serving(4.0) } else { Does::serving(4.0).waiting(10.0) }
            },
        );
    assert_eq!((decision.want, decision.inputs.waiting), (3, Some(0.0)));
}

#[test]
fn f15_one_pod_that_does_not_answer_changes_nothing() {
    let mut bench = Bench::new(8).deaf();
    bench.run(60, |_| Does::serving(8.0));
    let hung = *bench.sample(7);
    bench.seen.engines[7].reading =
        Reading::Stale { value: hung, age_ms: 30_000, why: Why::Timeout };
    let wants = bench.run(1_200, |_| Does::serving(8.0));
    assert!(wants.iter().all(|want| *want == 8));
    assert!(matches!(
        bench.last.unwrap().health,
        Health::Degraded { answered: 7, expected: 8, .. }
    ));
}

#[test]
fn f20_a_newest_point_without_a_value_is_no_zero() {
    let mut bench = Bench::new(2).deaf();
    bench.run(60, |_| Does::serving(8.0).waiting(6.0));
    let before = bench.last.clone().unwrap().want;
    bench.pass(5_000, |_| Does::serving(8.0));
    for index in 0..2 {
        *bench.sample(index) = EngineSample { at: bench.now, ..EngineSample::default() };
    }
    assert!(bench.decide().want >= before.min(2));
    assert_eq!(bench.last.unwrap().inputs.waiting, None);
}

#[test]
fn f21_pods_of_a_dead_node_are_no_quorum() {
    let mut bench = Bench::new(5).deaf();
    bench.seen.replicas.ready = 3;
    bench.seen.replicas.terminating = 2;
    for engine in bench.seen.engines.iter_mut().skip(3) {
        engine.phase = Phase::Terminating;
        engine.reading = Reading::Missing { why: Why::Timeout };
    }
    let decision = bench.tick(|_| Does::serving(5.0).waiting(10.0));
    assert!(decision.want > 5, "{}", decision.want);
    assert_eq!(decision.health, Health::Ok);
}

#[test]
fn f46_one_replica_and_nothing_waiting_is_told_in_plain_words() {
    let mut bench = Bench::new(1);
    let decision = bench.tick(IDLE);
    assert_eq!(decision.want, 1);
    let warm = reason(&decision, Rule::Warm);
    assert_eq!(warm, Reason::WarmFloor { min: 1, schedule: 0 });
    assert_eq!(warm.to_string(), "warm minimum 1, schedule 0");
}

#[test]
fn f47_active_and_the_count_come_from_one_decision() {
    let mut bench = Bench::new(0).deaf().spec(|spec| {
        spec.min = 0;
        spec.has_wake_source = true;
    });
    bench.seen.wake.source = Some(WakeReading::Fresh { queued: 50.0, last_arrival_at: None });
    assert_eq!(bench.tick(IDLE).answer, super::build::value(2));
    bench.replicas(1);
    bench.seen.replicas.ready = 0;
    bench.seen.replicas.starting = 1;
    bench.seen.engines[0].phase = Phase::Starting;
    assert_eq!(bench.tick(IDLE).answer, super::build::value(2));
}

#[test]
fn f61_a_single_request_never_adds_replicas() {
    let mut bench = Bench::new(1);
    let wants = bench.run(1_800, |_| Does::serving(1.0).kv(0.03));
    assert!(wants.iter().all(|want| *want == 1));
}

#[test]
fn f65_a_queue_alone_is_enough_at_low_kv() {
    let mut bench = Bench::new(1).deaf();
    bench.run(60, |_| Does::serving(4.0).kv(0.32));
    for waiting in [5.0, 15.0, 30.0, 60.0] {
        let does =
            |_: usize| Does { finished: 0.0, ..Does::serving(4.0) }.kv(0.32).waiting(waiting);
        assert!(bench.tick(does).want > 1, "{waiting}");
        bench.run(55, does);
    }
}

#[test]
fn f66_full_kv_with_preemptions_is_enough_without_a_queue() {
    let mut bench = Bench::new(1).deaf();
    let thrashing = |_| Does { preemptions: 0.33, ..Does::serving(8.0) }.kv(0.95);
    bench.run(5, thrashing);
    for _ in 0..3 {
        assert_eq!(bench.tick(thrashing).want, 2);
    }
    let mut bench = Bench::new(1);
    let wants = bench.run(600, |_| Does::serving(1.0).kv(0.95));
    assert!(wants.iter().all(|want| *want == 1));
}

#[test]
fn f67_a_queue_that_does_not_move_adds_nothing_and_the_idle_ones_may_go() {
    let mut bench = Bench::new(7).deaf();
    bench.run(60, |_| Does::serving(10.0));
    let abandoned = |index: usize| {
        let waiting = [213.0, 78.0, 40.0, 32.0, 0.0, 0.0, 0.0][index];
        Does { waiting, ..Does::default() }
    };
    let mut told = 0;
    let mut wants = Vec::new();
    for _ in 0..120 {
        let decision = bench.tick(abandoned);
        told += usize::from(decision.notices.contains(&Notice::StuckQueue));
        wants.push(decision.want);
    }
    assert_eq!(told, 1);
    // Up at first, before it is known that nothing moves; never after.
    assert!(wants[30..].iter().all(|want| *want == 7), "{wants:?}");
    bench.run(800, abandoned);
    assert!(bench.last.unwrap().want < 7);
}

#[test]
fn f71_one_replica_waits_while_others_idle() {
    let mut bench = Bench::new(4).deaf();
    bench.run(60, |index| Does::serving(if index == 0 { 8.0 } else { 0.0 }));
    let does = |index: usize| {
        if index == 0 {
            Does { finished: 0.0, ..Does::serving(8.0) }.waiting(40.0)
        } else {
            Does::serving(0.0)
        }
    };
    let decision = bench.tick(does);
    assert_eq!(decision.want, 5);
    assert_eq!(decision.notices, [Notice::ScaledUp, Notice::Imbalance]);
    // One more in all: not another when the fifth idles too.
    bench.replicas(5);
    let decision = bench.tick(does);
    assert_eq!(decision.want, 5);
    assert_eq!(wanted(&decision, Rule::Queue), Some(5));
}

#[test]
fn f86_what_cannot_be_placed_is_not_asked_for_again() {
    let mut bench = Bench::new(4).deaf().spec(|spec| spec.max = 20);
    bench.seen.replicas.spec = Some(8);
    bench.seen.replicas.unschedulable = 4;
    let wants = bench.run(1_200, |_| Does { finished: 0.0, ..Does::serving(8.0) }.waiting(8.0));
    assert!(wants.iter().all(|want| *want == 8), "{wants:?}");
}

#[test]
fn f89_what_is_starting_is_not_in_the_measure() {
    let mut bench = Bench::new(2).deaf();
    bench.seen.replicas.spec = Some(5);
    bench.seen.replicas.starting = 3;
    let decision = bench.tick(|_| Does::serving(8.0));
    assert_eq!((decision.inputs.ready, decision.inputs.starting), (2, 3));
    assert_eq!(decision.want, 5);
}

#[test]
fn f91_a_replica_that_completes_nothing_is_no_capacity() {
    let mut bench = Bench::new(4).deaf();
    let dead = |index: usize| {
        if index == 3 {
            Does { running: 4.0, ..Does::default() }
        } else {
            Does { finished: 0.0, ..Does::serving(8.0) }
        }
    };
    bench.run(300, dead);
    let decision =
        bench.tick(|index| if index == 3 { dead(3) } else { dead(index).waiting(20.0 / 3.0) });
    // 3 + ceil(20/8) = 6 that serve, and the dead one.
    assert_eq!(decision.want, 7);
    assert!(matches!(reason(&decision, Rule::Degraded), Reason::InDoubt { replicas: 1 }));
}
