//! The arithmetic by the facts that Kubernetes' own tables and measurements give.

use super::*;
use crate::decision::Moment;

const S: u64 = 1_000;

/// Syncs every 15 s with these wanted counts, target 1; the counts that follow.
fn syncs(hpa: &mut Hpa, start: u32, wants: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let (mut now, mut replicas) = (Moment(0), start);
    wants
        .into_iter()
        .map(|want| {
            replicas = hpa.sync(now, replicas, replicas, Some(f64::from(want)), 1.0);
            now = now.plus_millis(15 * S);
            replicas
        })
        .collect()
}

#[test]
fn a_slow_ramp_is_followed_to_ten_and_in_jumps_from_there() {
    let behavior = Behavior {
        down: Rules { window_ms: 0, ..Behavior::default().down },
        ..Behavior::default()
    };
    let mut up = syncs(&mut Hpa::new(1, 100, Some(behavior.clone())), 1, 1..=60);
    up.dedup();
    assert_eq!(
        up,
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 23, 26, 29, 32, 36, 40, 45, 50, 56]
    );
    let mut down = syncs(&mut Hpa::new(1, 100, Some(behavior)), 60, (10..=60).rev());
    down.dedup();
    assert_eq!(down, [60, 53, 47, 42, 37, 33, 29, 26, 23, 20, 17, 15, 13, 11]);
}

#[test]
fn without_a_behavior_the_count_doubles_or_goes_to_four() {
    let counts = syncs(&mut Hpa::new(1, 64, None), 1, [64; 7]);
    assert_eq!(counts, [4, 8, 16, 32, 64, 64, 64]);
}

#[test]
fn with_an_empty_behavior_it_grows_by_four_or_doubles() {
    let counts = syncs(&mut Hpa::new(1, 64, Some(Behavior::default())), 1, [64; 6]);
    assert_eq!(counts, [5, 10, 20, 40, 64, 64]);
}

#[test]
fn a_pass_through_follows_every_step_at_the_next_sync() {
    let wants = [10, 11, 10, 20, 21, 1, 40];
    assert_eq!(syncs(&mut Hpa::new(1, 40, Some(Behavior::pass_through(40))), 1, wants), wants);
}

#[test]
fn a_window_down_holds_the_highest_recommendation_in_it() {
    let wants = [8, 2, 2, 4, 2, 2, 2, 2];
    let down = Rules { window_ms: 60 * S, ..Behavior::default().down };
    let mut hpa = Hpa::new(1, 20, Some(Behavior { down, ..Behavior::default() }));
    // 8 was recommended at 0 s, 4 at 45 s: each counts for less than 60 s.
    assert_eq!(syncs(&mut hpa, 8, wants), [8, 8, 8, 8, 4, 4, 4, 2]);
}

#[test]
fn only_without_a_behavior_may_an_old_recommendation_raise_the_count() {
    for (behavior, count) in [(None, 4), (Some(Behavior::default()), 1)] {
        let mut hpa = Hpa::new(1, 20, behavior);
        hpa.sync(Moment(0), 6, 6, Some(6.0), 1.0);
        // KEDA took it to zero and back to one in between.
        assert_eq!(hpa.sync(Moment(60_000), 1, 1, Some(1.0), 1.0), count);
    }
}

#[test]
fn limits_count_what_was_done_within_their_period() {
    let limit = |change, s: u64| Limit { change, period_ms: s * S };
    let rules = |select, limits| Rules { select, limits, window_ms: 0, tolerance: 0.1 };
    let behavior = |select| Behavior {
        up: rules(select, vec![limit(Change::Pods(2), 30), limit(Change::Percent(50), 30)]),
        down: rules(select, vec![limit(Change::Pods(1), 15), limit(Change::Percent(25), 30)]),
    };
    let mut largest = Hpa::new(1, 30, Some(behavior(Select::Largest)));
    assert_eq!(syncs(&mut largest, 2, [30; 7]), [4, 4, 6, 6, 9, 9, 14]);
    let mut smallest = Hpa::new(1, 30, Some(behavior(Select::Smallest)));
    assert_eq!(syncs(&mut smallest, 2, [30; 7]), [3, 3, 5, 5, 7, 7, 9]);
    let mut disabled = Hpa::new(1, 30, Some(behavior(Select::Disabled)));
    assert_eq!(syncs(&mut disabled, 9, [30, 1]), [9, 9]);
    let mut down = Hpa::new(1, 30, Some(behavior(Select::Largest)));
    assert_eq!(syncs(&mut down, 20, [1; 4]), [15, 14, 11, 10]);
}

#[test]
fn bounds_are_corrected_without_the_metric_and_a_lost_metric_freezes() {
    let mut hpa = Hpa::new(2, 6, Some(Behavior::default()));
    assert!(!hpa.reads_metric(0) && !hpa.reads_metric(9) && hpa.reads_metric(6));
    assert_eq!(hpa.sync(Moment(0), 9, 9, None, 1.0), 6);
    assert_eq!(hpa.sync(Moment(0), 1, 1, None, 1.0), 2);
    assert_eq!(hpa.sync(Moment(0), 0, 0, Some(5.0), 1.0), 0);
    assert_eq!(hpa.sync(Moment(0), 4, 4, None, 1.0), 4);
}

#[test]
fn zero_comes_one_cooldown_after_the_last_active_poll_and_one_at_once() {
    let object = ScaledObject {
        polling_ms: 5 * S,
        cooldown_ms: 30 * S,
        initial_cooldown_ms: 20 * S,
        ..ScaledObject::default()
    };
    let fresh = Keda::new(object, Moment(0), Moment(15_000));
    let mut keda = fresh.clone();
    let poll = |keda: &mut Keda, s: i64, spec, active| keda.poll(Moment(s * 1_000), spec, active);
    assert_eq!(poll(&mut keda, 20, 3, Some(false)), 3);
    assert_eq!(poll(&mut keda, 21, 3, Some(false)), 0);
    let mut keda = fresh;
    assert_eq!(keda.push(Moment(2_000), 0), 1);
    assert_eq!(poll(&mut keda, 5, 1, None), 1, "an error changes nothing");
    assert_eq!(poll(&mut keda, 32, 1, Some(false)), 1);
    assert_eq!(poll(&mut keda, 35, 4, Some(false)), 0, "from any count in one step");
    assert_eq!(poll(&mut keda, 40, 0, Some(true)), 1);
}
