//! Rule 4: the ceiling, and what idle GPUs say about a queue.

use super::build::{Bench, Does, reason, wanted};
use crate::decision::{Gpu, GpuSample, Notice, Reason, Rule, Why};

fn gpu(busy: f64, sm: Option<f64>) -> Gpu {
    Gpu::Fresh(GpuSample { devices: 1, busy: Some(busy), sm, ..GpuSample::default() })
}

/// A fleet whose SM activity has been seen to follow its work: 2 % a running request.
fn informed(n: u32) -> Bench {
    informed_of(n, |running| 0.02 * running)
}

fn informed_of(n: u32, activity: fn(f64) -> f64) -> Bench {
    // By a target that asks for little, so that the devices are what is heard.
    let mut bench = Bench::new(n).deaf().spec(|spec| spec.target_in_flight = Some(200.0));
    for round in 0..100_u32 {
        let running = f64::from(1 + round % 20);
        bench.seen.gpu = gpu(0.99, Some(activity(running)));
        bench.run(5, |_| Does::serving(running));
    }
    bench
}

#[test]
fn time_busy_never_raises() {
    let mut bench = Bench::new(1);
    bench.seen.gpu = gpu(1.0, None);
    let wants = bench.run(1_800, |_| Does::serving(1.0));
    assert!(wants.iter().all(|want| *want == 1));
}

#[test]
fn gpus_never_seen_are_an_absent_rule() {
    let mut bench = Bench::new(1);
    let decision = bench.tick(|_| Does::serving(1.0));
    assert_eq!(reason(&decision, Rule::GpuCeiling), Reason::GpuAbsent);
}

#[test]
fn a_counter_that_follows_work_keeps_survivors_under_the_ceiling() {
    let mut bench = informed(3);
    // 0.3 on each of three: 0.9 of one device, over the ceiling for one, 0.45 each for two.
    bench.seen.gpu = gpu(0.99, Some(0.3));
    bench.run(1_500, |_| Does::serving(15.0));
    bench.obeys = true;
    for _ in 0..600 {
        let n = bench.seen.engines.len() as f64;
        bench.seen.gpu = gpu(0.99, Some(0.9 / n));
        assert!(bench.tick(|_| Does::serving(45.0 / n)).want >= 2);
    }
    assert_eq!(bench.last.unwrap().want, 2);
}

#[test]
fn activity_that_a_single_request_makes_is_not_shared_out() {
    let activity = |running: f64| 0.6 + 0.01 * running;
    let mut bench = informed_of(3, activity);
    bench.obeys = true;
    for _ in 0..600 {
        let n = bench.seen.engines.len() as f64;
        bench.seen.gpu = gpu(0.99, Some(activity(15.0 / n)));
        bench.run(5, |_| Does::serving(15.0 / n));
    }
    // 0.65 on each of three: 0.05 of it is work, 3 · 0.05 / (0.8 − 0.6) = 0.75 devices. In proportion
    // it would be 3 · 0.65 / 0.8 = 2.4.
    assert_eq!(bench.last.unwrap().want, 1);
}

#[test]
fn activity_above_the_ceiling_whatever_the_work_is_no_information() {
    let activity = |running: f64| 0.85 + 0.005 * running;
    let mut bench = informed_of(3, activity);
    bench.seen.gpu = gpu(0.99, Some(activity(5.0)));
    let decision = bench.tick(|_| Does::serving(5.0));
    let told = reason(&decision, Rule::GpuCeiling);
    assert_eq!(told, Reason::GpuNoInformation { activity: 0.875 });
}

#[test]
fn a_flat_counter_is_no_information_and_stands_in_no_way() {
    let mut bench = Bench::new(3);
    bench.seen.gpu = gpu(0.99, Some(0.99));
    bench.run(100, |_| Does::serving(10.0));
    let decision = bench.tick(|_| Does::serving(1.0));
    assert_eq!(reason(&decision, Rule::GpuCeiling), Reason::GpuNoInformation { activity: 0.99 });
    bench.run(2_000, |_| Does::serving(1.0));
    assert_eq!(bench.last.unwrap().want, 1);
}

#[test]
fn a_counter_is_seen_to_follow_work_that_varies_by_a_tenth_and_not_by_less() {
    for (share, is_seen) in [(0.12, true), (0.08, false)] {
        let mut bench = Bench::new(3);
        for round in 0..200 {
            let running = 10.0 * if round % 2 == 0 { 1.0 + share } else { 1.0 - share };
            bench.seen.gpu = gpu(0.99, Some(0.02 * running));
            bench.run(5, |_| Does::serving(running));
        }
        let says = reason(bench.last.as_ref().unwrap(), Rule::GpuCeiling);
        let is_flat = matches!(says, Reason::GpuNoInformation { .. });
        assert_eq!(is_flat, !is_seen, "{share}: {says:?}");
    }
}

#[test]
fn full_devices_raise_when_demand_confirms_once_a_cold_start() {
    let mut bench = informed(4);
    bench.seen.gpu = gpu(0.99, Some(0.9));
    // Full, and nothing waits.
    bench.run(120, |_| Does::serving(20.0));
    let calm = bench.last.clone().unwrap();
    assert_eq!(wanted(&calm, Rule::GpuCeiling), None);
    // One waits somewhere: 0.9 · 4 / 0.8 = 4.5 after a minute of it.
    let waits = |index: usize| Does::serving(20.0).waiting(if index == 0 { 1.0 } else { 0.0 });
    bench.run(60, waits);
    assert_eq!(wanted(bench.last.as_ref().unwrap(), Rule::GpuCeiling), None);
    let decision = bench.tick(waits);
    assert_eq!(wanted(&decision, Rule::GpuCeiling), Some(5));
    // Not again within the cold start of 180 s.
    bench.run(170, waits);
    assert_eq!(wanted(bench.last.as_ref().unwrap(), Rule::GpuCeiling), None);
    bench.run(10, waits);
    assert_eq!(wanted(bench.last.as_ref().unwrap(), Rule::GpuCeiling), Some(5));
}

#[test]
fn full_devices_order_no_more_than_in_proportion() {
    // Of 0.85 a fifteenth follows the work: kept under 0.8 by 0.06/0.01 times as many, says the
    // regression. 0.85/0.8 of three are four.
    let mut bench = informed_of(3, |running| 0.79 + 0.003 * running);
    bench.seen.gpu = gpu(0.99, Some(0.85));
    let wants = bench.run(90, |_| Does::serving(20.0).waiting(1.0));
    assert_eq!(wants.iter().max(), Some(&4), "{wants:?}");
}

#[test]
fn f70_a_queue_that_stands_beside_idle_gpus_gets_one_more_at_most_and_a_notice() {
    let mut bench = Bench::new(1);
    let dead = |index| Does::default().waiting(if index == 0 { 50.0 } else { 0.0 });
    bench.seen.gpu = gpu(0.0, None);
    let wants = bench.run(300, dead);
    assert!(wants.iter().all(|want| *want <= 2), "{wants:?}");
    let wants = bench.run(1_200, dead);
    assert!(wants.iter().all(|want| *want >= 1));
}

#[test]
fn a_slow_queue_beside_idle_gpus_caps_what_the_queue_adds() {
    let mut bench = Bench::new(2).deaf();
    bench.seen.gpu = gpu(0.01, None);
    // It serves a little, so it is not frozen; yet the GPUs rest.
    let slow = |_| Does { generated: 1.0, steps: 1.0, ..Does::default() }.waiting(30.0);
    assert!(bench.tick(slow).want > 2);
    let mut told = 0;
    for _ in 0..40 {
        told += usize::from(bench.tick(slow).notices.contains(&Notice::NotServing));
    }
    assert_eq!(told, 1);
    let decision = bench.last.unwrap();
    assert_eq!((decision.want, decision.next.up_at_waiting), (2, None));
    assert_eq!(reason(&decision, Rule::Queue), Reason::NotServing { waiting: 60.0, busy: 0.01 });
}

#[test]
fn an_idle_device_of_one_replica_proves_nothing_of_the_others() {
    let mut bench = Bench::new(4).deaf();
    bench.seen.gpu =
        Gpu::Fresh(GpuSample { devices: 1, unread: 3, busy: Some(0.0), ..GpuSample::default() });
    // What would be capped, were all four idle.
    let slow = |_| Does { generated: 1.0, steps: 1.0, ..Does::default() }.waiting(30.0);
    bench.run(120, slow);
    let decision = bench.last.clone().unwrap();
    assert!(decision.want > 4, "{decision:?}");
    assert!(!matches!(reason(&decision, Rule::Queue), Reason::NotServing { .. }), "{decision:?}");
    assert_eq!(decision.inputs.gpu_busy, None);
}

#[test]
fn devices_of_some_replicas_let_nothing_go_for_an_hour_and_raise_nothing() {
    let mut bench = informed(3);
    let (busy, sm) = (Some(0.99), Some(0.95));
    bench.seen.gpu =
        Gpu::Fresh(GpuSample { devices: 1, unread: 2, busy, sm, ..GpuSample::default() });
    let waits = |index: usize| Does::serving(20.0).waiting(if index == 0 { 1.0 } else { 0.0 });
    bench.run(300, waits);
    assert_eq!(wanted(bench.last.as_ref().unwrap(), Rule::GpuCeiling), None);
    bench.run(3_290, |_| Does::serving(0.0));
    let held = bench.last.clone().unwrap();
    assert_eq!(held.want, 3, "{held:?}");
    let told = reason(&held, Rule::GpuCeiling);
    assert!(matches!(told, Reason::GpuPartial { unread: 2, devices: 1, .. }), "{told:?}");
    assert!(told.to_string().contains("of 2 replica(s) missing"), "{told}");
    bench.run(30, |_| Does::serving(0.0));
    assert_eq!(bench.last.unwrap().want, 1);
}

#[test]
fn devices_that_are_read_keep_survivors_under_the_ceiling_beside_one_that_is_not() {
    let mut bench = informed(3);
    bench.obeys = true;
    for _ in 0..5_000 {
        let n = bench.seen.engines.len() as f64;
        let (busy, sm) = (Some(0.99), Some(0.9 / n));
        bench.seen.gpu =
            Gpu::Fresh(GpuSample { devices: 2, unread: 1, busy, sm, ..GpuSample::default() });
        assert!(bench.tick(|_| Does::serving(45.0 / n)).want >= 2);
    }
    // After the hour as if that one worked as they do, 3 · 0.3 / 0.8 = 1.1 devices.
    assert_eq!(bench.last.unwrap().want, 2);
}

#[test]
fn devices_that_could_never_be_read_are_an_absent_rule_with_its_reason() {
    let mut bench = Bench::new(1);
    bench.seen.gpu = Gpu::Unread { why: Why::Refused };
    let decision = bench.tick(|_| Does::serving(1.0));
    let told = reason(&decision, Rule::GpuCeiling);
    assert_eq!(told, Reason::GpuUnread { why: Why::Refused });
    assert_eq!(told.to_string(), "GPU metrics cannot be read: connection refused");
    // It stands in no way.
    let mut bench = Bench::new(3);
    bench.seen.gpu = Gpu::Unread { why: Why::TooLarge };
    bench.run(2_000, |_| Does::serving(0.0));
    assert_eq!(bench.last.unwrap().want, 1);
}

#[test]
fn an_engine_at_its_own_limit_explains_idle_gpus() {
    let mut bench = Bench::new(1).deaf();
    bench.seen.gpu = gpu(0.01, None);
    bench.sample(0).max_running = Some(4.0);
    let does =
        |_| Does { generated: 1.0, steps: 1.0, finished: 0.0, ..Does::serving(4.0) }.waiting(30.0);
    bench.run(120, does);
    assert!(bench.last.unwrap().want > 1);
}

#[test]
fn f62_busy_gpus_without_a_token_are_idle() {
    let mut bench = Bench::new(2);
    bench.seen.gpu = gpu(1.0, Some(1.0));
    bench.run(640, |_| Does::serving(0.0));
    assert_eq!(bench.last.unwrap().want, 1);
}
