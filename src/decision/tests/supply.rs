//! Orders and starts: what is on its way is not ordered again, what cannot start is not ordered.

use super::build::{Bench, Does, reason, value, wanted};
use crate::decision::{Engine, Health, Notice, Phase, Reading, Reason, Rule, Why};

const QUEUE: fn(usize) -> Does = |_| Does::serving(8.0).waiting(8.0);
const CALM: fn(usize) -> Does = |_| Does::serving(8.0);

#[test]
fn an_own_order_counts_for_a_minute_before_the_target_shows_it() {
    let mut bench = Bench::new(2).deaf();
    assert_eq!(bench.tick(QUEUE).want, 4);
    let wants = bench.run(55, CALM);
    assert!(wants.iter().all(|want| *want == 4), "{wants:?}");
    assert_eq!(bench.tick(CALM).want, 2);
}

#[test]
fn f07_a_hold_is_based_on_the_wanted_count_not_on_what_is_ready() {
    let mut bench = Bench::new(1).deaf();
    assert_eq!(bench.tick(|_| Does::serving(3.0).waiting(12.0)).want, 5);
    bench.seen.replicas.spec = Some(5);
    bench.seen.replicas.starting = 4;
    let wants = bench.run(100, |_| Does::serving(3.0).waiting(3.0));
    assert!(wants.iter().all(|want| *want == 5), "{wants:?}");
}

#[test]
fn shadow_mode_trusts_no_own_orders() {
    let mut bench = Bench::new(2).deaf().spec(|spec| spec.mode = crate::decision::Mode::Shadow);
    assert_eq!(bench.tick(QUEUE).want, 4);
    assert_eq!(bench.tick(CALM).want, 2);
}

#[test]
fn a_queue_that_the_hpa_would_ignore_is_answered_past_its_dead_band() {
    let queue = |index: usize| Does::serving(8.0).waiting(if index == 0 { 8.0 } else { 0.0 });
    let answer = |tolerance| {
        let mut bench = Bench::new(10).deaf().spec(|spec| {
            spec.max = 20;
            spec.hpa_tolerance = tolerance;
        });
        bench.run(5, CALM);
        bench.run(5, queue);
        // 8 running each and 8 waiting: one more. At ten the default tolerance ignores eleven.
        let decision = bench.tick(queue);
        assert_eq!(decision.want, 11);
        decision.answer
    };
    assert_eq!(answer(Some(0.1)), value(12));
    assert_eq!(answer(Some(0.0)), value(11));
    assert_eq!(answer(None), value(11));
}

#[test]
fn a_warm_schedule_waits_for_the_hpa_and_pushes_nothing() {
    let mut bench = Bench::new(10).deaf().spec(|spec| {
        spec.max = 20;
        spec.hpa_tolerance = Some(0.1);
    });
    bench.seen.schedule_floor = 11;
    assert_eq!(bench.tick(CALM).answer, value(11));
}

#[test]
fn replicas_that_cannot_be_placed_stop_further_orders() {
    let mut bench = Bench::new(2).deaf();
    bench.seen.replicas.spec = Some(4);
    bench.seen.replicas.unschedulable = 2;
    let decision = bench.tick(|_| Does::serving(8.0).waiting(80.0));
    assert_eq!(decision.want, 4);
    assert_eq!(*decision.notices, [Notice::CapacityExhausted]);
    assert_eq!(
        reason(&decision, Rule::Max),
        Reason::CapacityExhausted { unschedulable: 2, crash_looping: 0 }
    );
    // Once they are placed, the queue is heard again.
    bench.seen.replicas.unschedulable = 0;
    assert!(bench.tick(|_| Does::serving(8.0).waiting(80.0)).want > 4);
}

#[test]
fn f78_replicas_that_start_again_and_again_stop_further_orders() {
    let mut bench = Bench::new(1).deaf();
    bench.seen.replicas.spec = Some(2);
    bench.seen.replicas.crash_looping = 1;
    assert_eq!(bench.tick(|_| Does::serving(8.0).waiting(80.0)).want, 2);
}

#[test]
fn a_start_that_takes_more_than_twice_its_time_is_replaced_once() {
    let mut bench = Bench::new(2).deaf();
    bench.seen.replicas.spec = Some(4);
    bench.seen.replicas.starting = 2;
    // 16 waiting, 8 running on each, none finishing: 4 wanted, all of them ordered.
    let queue = |_| Does { finished: 0.0, ..QUEUE(0) };
    let wants = bench.run(360, queue);
    assert!(wants.iter().all(|want| *want == 4), "{wants:?}");
    // After 2 · 180 s the two are not expected any more: two others, and not two more each tick.
    bench.run(5, queue);
    assert_eq!(bench.tick(queue).want, 6);
    bench.seen.replicas.spec = Some(6);
    bench.seen.replicas.starting = 4;
    let wants = bench.run(300, queue);
    assert!(wants.iter().all(|want| *want == 6), "{wants:?}");
}

#[test]
fn a_cold_start_is_learned_up_fast_and_down_slowly() {
    let mut bench = Bench::new(1).deaf();
    let mut learned = Vec::new();
    for (round, seconds) in [100, 200, 50].into_iter().enumerate() {
        let new = Engine {
            id: format!("new-{round}").into(),
            phase: Phase::Starting,
            ready_ms: None,
            reading: Reading::Missing { why: Why::Refused },
        };
        bench.seen.engines = bench.seen.engines.into_iter().chain([new]).collect();
        bench.run(seconds + 5, CALM);
        let engine = bench.seen.engines.last_mut().unwrap();
        engine.phase = Phase::Ready;
        engine.ready_ms = Some(5_000);
        bench.run(5, CALM);
        learned.push(bench.last.clone().unwrap().inputs.cold_start_ms);
    }
    // First seen: 100 s. Half of the way up to 200 s. A fifth of the way down to 50 s.
    assert_eq!(learned, [100_000, 150_000, 130_000]);
}

#[test]
fn all_replicas_starting_is_no_lost_source() {
    let mut bench = Bench::new(2).deaf();
    bench.seen.replicas.ready = 0;
    bench.seen.replicas.starting = 2;
    for engine in &mut bench.seen.engines {
        engine.phase = Phase::Starting;
        engine.reading = Reading::Missing { why: Why::Refused };
    }
    bench.spec.fallback_replicas = Some(1);
    bench.run(1_500, CALM);
    let decision = bench.last.unwrap();
    assert_eq!(decision.health, Health::Starting);
    assert_eq!(decision.answer, value(2));
}

#[test]
fn ticks_are_fast_while_something_waits_or_starts() {
    let mut bench = Bench::new(2).deaf();
    assert_eq!(bench.tick(CALM).next_tick_ms, 5_000);
    assert_eq!(bench.tick(QUEUE).next_tick_ms, 1_000);
    let mut bench = Bench::new(2).deaf();
    bench.seen.replicas.spec = Some(3);
    bench.seen.replicas.starting = 1;
    assert_eq!(bench.tick(CALM).next_tick_ms, 1_000);
    // Not for ever: a start that never ends is not waited for.
    bench.run(370, CALM);
    assert_eq!(bench.last.clone().unwrap().next_tick_ms, 5_000);
}

#[test]
fn a_source_that_cannot_be_read_faster_is_not() {
    let mut bench = Bench::new(2).deaf().spec(|spec| spec.tick_ms = 15_000);
    assert_eq!(bench.tick(QUEUE).next_tick_ms, 15_000);
}

#[test]
fn an_in_flight_target_overrides_what_is_learned() {
    let mut bench = Bench::new(2).deaf().spec(|spec| spec.target_in_flight = Some(4.0));
    // 16 waiting and 8 running: 24/4.
    let decision = bench.tick(|_| Does::serving(4.0).waiting(8.0));
    assert_eq!(wanted(&decision, Rule::Queue), Some(6));
    // Nothing waits, 24 run: the level asks, once a minute has been seen.
    let mut bench = Bench::new(2).deaf().spec(|spec| spec.target_in_flight = Some(4.0));
    bench.run(60, |_| Does::serving(12.0));
    let decision = bench.tick(|_| Does::serving(12.0));
    assert_eq!(wanted(&decision, Rule::Demand), Some(6));
}

#[test]
fn an_engine_without_counters_is_raised_by_a_preset_one_a_cold_start() {
    let mut bench = Bench::new(1);
    let no_counters = |bench: &mut Bench| {
        for engine in &mut bench.seen.engines {
            if let Reading::Fresh { value, .. } = &mut engine.reading {
                let mut value = value.edit();
                value.steps = None;
                value.generated_tokens = None;
            }
        }
    };
    no_counters(&mut bench);
    let mut wants = Vec::new();
    for _ in 0..100 {
        // 160 in flight: five replicas of the preset of 32.
        let n = bench.seen.engines.len() as f64;
        wants.push(bench.tick(|_| Does::serving(160.0 / n)).want);
        no_counters(&mut bench);
    }
    let second = wants.iter().position(|want| *want == 2).unwrap();
    let third = wants.iter().position(|want| *want == 3).unwrap();
    assert!(second >= 11, "{second}");
    // 180 s are 36 ticks.
    assert_eq!(third - second, 36, "{wants:?}");
    assert!(wants.iter().all(|want| *want <= 4));
}
