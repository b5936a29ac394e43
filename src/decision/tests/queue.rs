//! Rules 2 and 3: waiting work and KV pressure.

use super::build::{Bench, Does, reason, wanted};
use crate::decision::{
    EngineSample, Health, KeptSample, Notice, Phase, Reading, Reason, Rule, Wake, WakeReading, Why,
};

#[test]
fn waiting_work_raises_in_the_tick_that_sees_it() {
    let mut bench = Bench::new(2);
    // 16 waiting, 8 running on each of 2: 2 + ceil(16/8) = 4.
    let decision = bench.tick(|_| Does::serving(8.0).waiting(8.0));
    assert_eq!((decision.want, decision.binding), (4, Rule::Queue));
    assert!(decision.notices.is_empty(), "no count before it to compare with");
}

#[test]
fn an_order_that_the_target_does_not_show_yet_is_still_the_queues() {
    let mut bench = Bench::new(2).deaf();
    for _ in 0..3 {
        let decision = bench.tick(|_| Does::serving(8.0).waiting(8.0));
        assert_eq!((decision.want, decision.binding), (4, Rule::Queue));
    }
    // Nothing asks for it any more, and it still stands.
    let decision = bench.tick(|_| Does::serving(8.0));
    assert_eq!((decision.want, decision.binding), (4, Rule::Ghost));
}

#[test]
fn the_target_is_absolute_while_nothing_is_ready() {
    let mut bench = Bench::new(2).deaf();
    for waiting in [8.0, 9.0, 10.0] {
        let decision = bench.tick(|_| Does::serving(8.0).waiting(waiting));
        // The order is in, its replicas start.
        bench.seen.replicas.spec = Some(decision.want);
        bench.seen.replicas.starting = decision.want - 2;
        assert!((4..=5).contains(&decision.want), "{}", decision.want);
    }
}

#[test]
fn a_standing_queue_raises_with_nothing_else_readable() {
    let mut bench = Bench::new(1);
    bench.seen.engines[0].reading = Reading::Fresh {
        value: KeptSample::from(EngineSample { waiting: Some(0.0), ..EngineSample::default() }),
        age_ms: 0,
    };
    assert_eq!(bench.tick(|_| Does::default().waiting(5.0)).want, 2);
}

#[test]
fn one_request_a_replica_in_a_single_sample_is_no_queue() {
    let mut bench = Bench::new(2);
    bench.run(5, |_| Does::serving(8.0));
    let decision =
        bench.tick(|index| Does::serving(8.0).waiting(if index == 0 { 1.0 } else { 0.0 }));
    assert_eq!(decision.want, 2);
    assert_eq!(reason(&decision, Rule::Queue), Reason::Clears { waiting: 1.0 });
    // It still waits at the next look.
    let decision =
        bench.tick(|index| Does::serving(8.0).waiting(if index == 0 { 1.0 } else { 0.0 }));
    assert_eq!(decision.want, 3);
}

#[test]
fn what_replicas_do_not_cure_does_not_count() {
    let mut bench = Bench::new(2);
    bench.sample(0).waiting_deferred = Some(50.0);
    let wants = bench.run(60, |_| Does::serving(4.0));
    assert!(wants.iter().all(|want| *want == 2));
}

#[test]
fn a_queue_that_stands_at_saturation_is_not_cleared() {
    let mut bench = Bench::new(2).deaf();
    // Each finishes 0.8 requests/s, and as many come. No order is followed, so each is trusted for
    // a minute and then placed anew.
    let standing = |_| Does::serving(8.0).waiting(8.0);
    let mut placed_anew = 0;
    for _ in 0..60 {
        let decision = bench.tick(standing);
        assert!(decision.want >= 3, "{decision:?}");
        // 16 of 1/0.8 s each; 1.6/0.8 + 20/180 = 2.1.
        let due = matches!(
            reason(&decision, Rule::Queue),
            Reason::Backlog { work_s, .. } if (work_s - 20.0).abs() < 0.1
        );
        placed_anew += u32::from(due && wanted(&decision, Rule::Queue) == Some(3));
    }
    assert!(placed_anew > 0);
}

#[test]
fn what_the_ready_replicas_work_off_in_time_is_not_ordered() {
    let mut bench = Bench::new(2).deaf();
    bench.run(120, |_| Does::serving(8.0).waiting(80.0));
    // Nothing comes any more: 0.8 requests/s each, 4 in 5 s.
    for step in 1..=13_u32 {
        let waiting = 80.0 - 4.0 * f64::from(step);
        bench.run(5, |_| Does::serving(8.0).waiting(waiting));
    }
    let decision = bench.last.unwrap();
    assert_eq!(reason(&decision, Rule::Queue), Reason::Clears { waiting: 56.0 });
    assert_eq!(wanted(&decision, Rule::Queue), None);
}

#[test]
fn what_waits_in_single_samples_teaches_neither_limit_nor_throughput() {
    let mut bench = Bench::new(1).deaf();
    for _ in 0..60 {
        bench.run(5, |_| Does::serving(4.0));
        bench.run(5, |_| Does::serving(4.0).waiting(1.0));
    }
    let figures = &bench.state.figures;
    assert_eq!((figures.running_limit, figures.saturation), (None, None));
    // Fifteen seconds to stand, thirty to be believed, and the figures follow a tick later.
    bench.run(50, |_| Does::serving(4.0).waiting(1.0));
    let figures = &bench.state.figures;
    assert_eq!(figures.running_limit, Some(4.0));
    assert!(figures.saturation.is_some());
}

#[test]
fn an_engine_that_waits_with_nothing_running_gets_one_more() {
    let mut bench = Bench::new(1);
    let decision = bench.tick(|_| Does::default().waiting(50.0));
    assert_eq!(decision.want, 2);
}

#[test]
fn a_frozen_replica_is_neither_busy_nor_idle() {
    let mut bench = Bench::new(3).deaf();
    bench.run(60, |_| Does::serving(4.0));
    // Replica 2 stops: its gauges stay, its counters stand.
    let frozen = |index: usize| {
        if index == 2 {
            Does { running: 4.0, waiting: 9.0, ..Does::default() }
        } else {
            Does::serving(0.0)
        }
    };
    bench.run(60, frozen);
    let decision = bench.tick(frozen);
    assert_eq!(reason(&decision, Rule::Queue), Reason::StuckQueue { waiting: 9.0, replicas: 1 });
    assert_eq!(reason(&decision, Rule::Ghost), Reason::InDoubt { replicas: 1 });
    // In doubt for ten minutes, then a whole hold until anything goes.
    let wants = bench.run(1_100, frozen);
    assert!(wants.iter().all(|want| *want >= 3), "{wants:?}");
    bench.run(300, frozen);
    assert!(bench.last.unwrap().want < 3);
}

#[test]
fn a_replica_that_has_just_stopped_keeps_the_others_whatever_the_hold() {
    let mut bench = Bench::new(3).deaf().spec(|spec| spec.ghost_hold_ms = Some(20_000));
    bench.run(120, |_| Does::serving(30.0));
    bench.run(10, |_| Does::serving(4.0));
    // The evidence for two is from before the hang, and whole before a hang is told as one.
    let hung = |index: usize| {
        if index == 2 { Does { running: 4.0, ..Does::default() } } else { Does::serving(4.0) }
    };
    let wants = bench.run(25, hung);
    assert!(wants.iter().all(|want| *want == 3), "{wants:?}");
    let decision = bench.last.clone().unwrap();
    assert_eq!((decision.health, decision.binding), (Health::Ok, Rule::Ghost));
    assert_eq!(reason(&decision, Rule::Ghost), Reason::InDoubt { replicas: 1 });
    let wants = bench.run(95, hung);
    assert!(wants.iter().all(|want| *want == 3), "{wants:?}");
    bench.run(40, |_| Does::serving(4.0));
    assert!(bench.last.unwrap().want < 3);
}

#[test]
fn an_engine_that_counts_at_the_end_of_requests_only_is_not_frozen_by_a_long_one() {
    let long = |_| Does { running: 1.0, kv: 0.1, ..Does::default() };
    let mut bench = Bench::new(2);
    for index in 0..2 {
        let mut sample = bench.sample(index);
        (sample.steps, sample.generated_tokens) = (None, None);
    }
    bench.run(60, |_| Does::serving(1.0));
    let wants = bench.run(1_800, long);
    assert!(wants.iter().all(|want| *want == 2), "{wants:?}");
    // With a counter of steps that stands, the same gauges are a hang.
    let mut bench = Bench::new(2);
    bench.run(60, |_| Does::serving(1.0));
    bench.run(120, long);
    assert_eq!(reason(&bench.last.unwrap(), Rule::Ghost), Reason::InDoubt { replicas: 2 });
}

#[test]
fn right_after_a_burst_stuck_gauges_are_not_idle() {
    let mut bench = Bench::new(2);
    bench.run(60, |_| Does::serving(20.0));
    let stuck = |_| Does { running: 4.0, waiting: 2.0, ..Does::default() };
    let wants = bench.run(1_150, stuck);
    assert!(wants.iter().all(|want| *want >= 2), "{wants:?}");
}

#[test]
fn gauges_stuck_for_long_are_idle_and_it_is_said_once() {
    // vLLM 0.9.1 V1 after clients went away: running 4, waiting 2 for ever.
    let mut bench = Bench::new(1).spec(|spec| spec.max = 1);
    bench.run(60, |_| Does::serving(10.0));
    let stuck = |_| Does { running: 4.0, waiting: 2.0, ..Does::default() };
    let mut told = 0;
    for _ in 0..300 {
        told += usize::from(bench.tick(stuck).notices.contains(&Notice::StuckQueue));
    }
    assert_eq!(told, 1);
    assert!(bench.state.evidence.idle_ms() >= 600_000);
}

#[test]
fn a_frozen_replica_is_no_capacity_for_the_queue_of_the_others() {
    let mut bench = Bench::new(4).deaf();
    let frozen = |index: usize| {
        if index == 3 { Does { running: 8.0, ..Does::default() } } else { Does::serving(8.0) }
    };
    bench.run(120, frozen);
    let decision =
        bench.tick(|index| if index == 3 { frozen(3) } else { Does::serving(8.0).waiting(4.0) });
    // Three serve: 3 + ceil(12/8) = 5, and the dead one is in the count.
    assert_eq!(decision.want, 6);
}

#[test]
fn sleeping_replicas_are_no_capacity() {
    let mut bench = Bench::new(2).deaf().spec(|spec| spec.max = 20);
    bench.sample(1).asleep = Some(true);
    let does = |index: usize| {
        if index == 0 { Does::serving(8.0).waiting(80.0) } else { Does::default() }
    };
    // One serves: 1 + ceil(80/8) = 11, and the sleeping one is in the count; it idles beside no queue.
    let decision = bench.tick(does);
    assert_eq!((decision.want, decision.binding), (12, Rule::Queue));
    let expected = Reason::Waiting { waiting: 80.0, cleared: 0.0, per_replica: 8.0 };
    assert_eq!(reason(&decision, Rule::Queue), expected);
    assert!(!decision.notices.contains(&Notice::Imbalance));
}

#[test]
fn what_sleeps_is_no_survivor_of_a_release() {
    let mut bench = Bench::new(3).spec(|spec| spec.ghost_hold_ms = Some(60_000));
    bench.sample(0).asleep = Some(true);
    bench.run(600, |_| Does::default());
    // One awake has to stay, and the one that goes may be it.
    let decision = bench.last.clone().unwrap();
    assert_eq!((decision.want, decision.next.down_in_ms), (2, None));
    // Awake again, it is one too many.
    bench.sample(0).asleep = Some(false);
    bench.run(120, |_| Does::default());
    assert_eq!(bench.last.unwrap().want, 1);
}

#[test]
fn a_replica_that_falls_asleep_takes_its_share_of_the_capacity_with_it() {
    let mut bench = Bench::new(2).deaf().spec(|spec| spec.target_in_flight = Some(8.0));
    bench.run(120, |_| Does::serving(7.0));
    assert_eq!(bench.last.as_ref().unwrap().want, 2);
    bench.sample(1).asleep = Some(true);
    bench.run(120, |index| if index == 0 { Does::serving(14.0) } else { Does::default() });
    assert_eq!(bench.last.unwrap().want, 3);
}

#[test]
fn a_gateways_queue_counts_beyond_what_the_engines_have() {
    let mut bench = Bench::new(2).deaf();
    let queued = |queued| Wake {
        source: Some(WakeReading::Fresh { queued, last_arrival_at: None }),
        requested_at: None,
    };
    bench.seen.wake = queued(16.0);
    assert_eq!(bench.tick(|_| Does::serving(8.0)).want, 2);
    bench.seen.wake = queued(32.0);
    assert_eq!(bench.tick(|_| Does::serving(8.0)).want, 4);
}

#[test]
fn kv_pressure_sets_a_size_and_not_one_more_each_tick() {
    let mut bench = Bench::new(3).deaf();
    let pressed = |_| Does { preemptions: 0.3, ..Does::serving(8.0).kv(0.95) };
    bench.run(5, pressed);
    for _ in 0..20 {
        // 3 · 0.95 / 0.85 = 3.35.
        assert_eq!(bench.tick(pressed).want, 4);
    }
}

#[test]
fn kv_pressure_is_also_waiting_at_full_caches() {
    let mut bench = Bench::new(1);
    let decision = bench.tick(|_| Does::serving(8.0).kv(0.9).waiting(1.0));
    assert_eq!(wanted(&decision, Rule::Kv), Some(2));
    let decision = bench.tick(|_| Does::serving(8.0).kv(0.89).waiting(1.0));
    assert_eq!(wanted(&decision, Rule::Kv), None);
}

#[test]
fn full_caches_without_preemption_or_queue_hold() {
    let mut bench = Bench::new(1);
    let wants = bench.run(300, |_| Does::serving(1.0).kv(0.95));
    assert!(wants.iter().all(|want| *want == 1));
}

#[test]
fn survivors_must_hold_the_kv_caches() {
    let mut bench = Bench::new(3);
    bench.run(60, |_| Does::serving(30.0));
    // In flight one replica would carry it; 3 · 0.6 / 0.85 = 2.1 needs three.
    let wants = bench.run(2_000, |_| Does::serving(5.0).kv(0.6));
    assert!(wants.iter().all(|want| *want == 3));
}

#[test]
fn a_replica_that_leaves_takes_its_queue_with_it() {
    let mut bench = Bench::new(3).deaf();
    bench.seen.replicas.ready = 2;
    bench.seen.replicas.spec = Some(2);
    bench.seen.replicas.terminating = 1;
    bench.seen.engines[2].phase = Phase::Terminating;
    let decision =
        bench.tick(
            |index| {
                if index == 2 { Does::serving(8.0).waiting(30.0) } else { Does::serving(8.0) }
            },
        );
    assert_eq!(decision.inputs.waiting, Some(0.0));
    assert_eq!(decision.want, 2);
}

#[test]
fn a_restarted_engine_gives_no_rate() {
    let mut bench = Bench::new(1);
    bench.run(30, |_| Does::serving(8.0));
    *bench.sample(0) = super::build::idle_sample();
    bench.run(5, |_| Does::serving(8.0));
    assert!(!bench.state.window.means(60_000).is_some_and(|means| means.generated > 200.0));
    let decision = bench.tick(|_| Does::serving(8.0));
    assert_eq!(decision.want, 1);
}

#[test]
fn the_same_sample_again_is_no_new_one_and_no_zero() {
    let mut bench = Bench::new(1);
    bench.run(120, |_| Does::serving(8.0));
    let before = bench.state.window.means(60_000).unwrap().generated;
    // Three ticks in which the source has nothing new.
    for _ in 0..3 {
        bench.now = bench.now.plus_millis(5_000);
        let _held = bench.decide();
    }
    let after = bench.state.window.means(60_000).unwrap().generated;
    assert!((after / before - 1.0).abs() < 1e-3, "{before} {after}");
}

#[test]
fn values_that_cannot_be_are_not_read() {
    let mut bench = Bench::new(2).deaf();
    bench.run(30, |_| Does::serving(8.0));
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -5.0, 1e308] {
        bench.pass(5_000, |_| Does::serving(8.0));
        bench.sample(0).waiting = Some(bad);
        bench.sample(1).waiting = Some(bad);
        let decision = bench.decide();
        assert_eq!((decision.want, decision.inputs.waiting), (2, None), "{bad}");
    }
}

#[test]
fn a_silent_replica_is_told_by_its_cause() {
    let mut bench = Bench::new(2).deaf();
    bench.run(30, |_| Does::serving(8.0));
    bench.seen.engines[1].reading = Reading::Missing { why: Why::Refused };
    let decision = bench.tick(|_| Does::serving(8.0));
    assert_eq!(
        reason(&decision, Rule::Degraded),
        Reason::Held { why: Why::Refused, answered: 1, expected: 2 }
    );
}

#[test]
fn the_next_step_up_is_told_in_waiting_requests() {
    let mut bench = Bench::new(2);
    let decision = bench.tick(|_| Does::serving(8.0));
    assert_eq!(decision.next.up_at_waiting, Some(3.0));
    let decision = bench.tick(|index| Does::serving(8.0).waiting([2.0, 1.0][index]));
    assert_eq!(decision.want, 3);
}

#[test]
fn where_more_waiting_brings_no_replica_no_number_is_told() {
    // One idles beside the queue: one more is all that it gets.
    let mut bench = Bench::new(2);
    let does = |index: usize| match index {
        0 => Does::serving(8.0).waiting(40.0),
        _ => Does::default(),
    };
    for idle in [1, 2] {
        let decision = bench.tick(does);
        assert_eq!(reason(&decision, Rule::Queue), Reason::Imbalance { waiting: 40.0, idle });
        assert_eq!((decision.want, decision.next.up_at_waiting), (3, None));
    }
    // What is on its way has room for 16 of those that wait.
    let mut bench = Bench::new(2).deaf();
    let decision = bench.tick(|_| Does::serving(8.0).waiting(8.0));
    assert_eq!((decision.want, decision.next.up_at_waiting), (4, Some(17.0)));
    (bench.seen.replicas.spec, bench.seen.replicas.starting) = (Some(4), 2);
    let decision = bench.tick(|_| Does::serving(8.0).waiting(8.0));
    assert_eq!((decision.want, decision.next.up_at_waiting), (4, Some(17.0)));
    assert_eq!(bench.tick(|_| Does::serving(8.0).waiting(8.5)).want, 5);
    // What cannot be placed.
    let mut bench = Bench::new(2).deaf();
    bench.seen.replicas.unschedulable = 1;
    assert_eq!(bench.tick(|_| Does::serving(8.0)).next.up_at_waiting, None);
}

#[test]
fn a_replica_that_is_still_being_filled_says_nothing_of_its_size() {
    let mut bench = Bench::new(1).deaf();
    let _idle = bench.tick(|_| Does::serving(0.0));
    // A gateway lets go what it held for a cold start: the first look sees 9 of 155 admitted.
    for (running, waiting) in [(9.0, 146.0), (27.0, 128.0), (96.0, 72.0)] {
        let decision = bench.tick(|_| Does::serving(running).waiting(waiting));
        assert_eq!(wanted(&decision, Rule::Queue), Some(2), "{running} run");
    }
    // Full: of its kind one more takes what waits.
    let decision = bench.tick(|_| Does::serving(100.0).waiting(68.0));
    assert_eq!(wanted(&decision, Rule::Queue), Some(2));
    let decision = bench.tick(|_| Does::serving(100.0).waiting(268.0));
    assert_eq!(wanted(&decision, Rule::Queue), Some(4));
}
