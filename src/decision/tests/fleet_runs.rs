//! The rules together, on a simulated fleet.

use super::fleet::{Fleet, REQUEST_S, TRUTH, learned};
use crate::decision::{Health, LevelSource, Mode};

/// Requests per second that are this many replicas of work.
fn load(replicas_of_work: f64) -> f64 {
    replicas_of_work / REQUEST_S
}

/// Number of changes of direction in a series of counts.
pub(super) fn reversals(wants: &[u32]) -> usize {
    let steps: Vec<bool> = wants.windows(2).filter(|w| w[0] != w[1]).map(|w| w[1] > w[0]).collect();
    steps.windows(2).filter(|w| w[0] != w[1]).count()
}

/// A series of counts, shortened.
pub(super) fn series(wants: &[u32]) -> String {
    let runs = wants.chunk_by(|one, two| one == two);
    runs.map(|run| format!("{}x{} ", run[0], run.len())).collect()
}

#[test]
fn the_model_is_learned_from_a_day_of_varying_load() {
    let mut fleet = Fleet::new(3);
    for step in 0..60_u32 {
        fleet.run(60.0, load(0.2 + 1.6 * f64::from(step % 10) / 10.0));
    }
    let last = fleet.decisions.last().unwrap();
    assert_eq!(last.inputs.level_source, LevelSource::CostModel);
    let [step_s, prompt_s, token_s, kv_s] = fleet.state.cost.costs();
    // A request's price, with the KV use of one running request.
    let request_s = 200.0 * prompt_s + 100.0 * (token_s + 0.005 * kv_s);
    assert!((request_s / REQUEST_S - 1.0).abs() < 0.15, "{request_s} {step_s}");
}

#[test]
fn work_is_priced_right_on_a_learned_fleet() {
    let mut fleet = Fleet::new(4).learned();
    fleet.run(300.0, load(2.0));
    let work = fleet.decisions.last().unwrap().inputs.work.unwrap();
    assert!((work / 2.0 - 1.0).abs() < 0.1, "{work}");
}

#[test]
fn constant_load_keeps_the_count_constant() {
    let mut fleet = Fleet::new(4).learned();
    let wants = fleet.run(7_200.0, load(2.0));
    assert_eq!(reversals(&wants), 0, "{}", series(&wants));
    assert!(fleet.queued.iter().skip(100).all(|queued| *queued < 10));
}

/// Counts over two hours of constant load under 5 % of noise, from an unlearned start.
fn noisy(seed: u64, n: u32, share: f64) -> Vec<u32> {
    let mut fleet = Fleet::new(n).seed(seed);
    fleet.noise = 0.05;
    fleet.run(7_200.0, load(share * f64::from(n)))
}

#[test]
fn a_price_that_was_learned_stays_in_force_under_constant_load() {
    // It was given up after an hour, a replica let go by in-flight requests, and taken back.
    let wants = noisy(5_225, 6, 0.848_074_875_183_090_1);
    assert_eq!(reversals(&wants), 0, "{}", series(&wants));
}

#[test]
fn a_minute_that_fewer_replicas_have_seen_is_no_reason_to_distrust_the_present_ones() {
    // A queue brought the second replica; five seconds after its start the level wanted a third.
    let wants = noisy(726_181, 1, 0.849_860_507_654_304_1);
    assert_eq!(reversals(&wants), 0, "{}", series(&wants));
    assert_eq!(wants.iter().max(), Some(&2));
}

#[test]
fn a_surplus_is_let_go_after_the_hold_and_not_before() {
    let mut fleet = Fleet::new(10).learned();
    let wants = fleet.run(595.0, load(2.0));
    assert!(wants.iter().all(|want| *want == 10), "{}", series(&wants));
    fleet.run(3_000.0, load(2.0));
    assert!(fleet.ordered() < 6, "{}", fleet.ordered());
    assert!(fleet.ordered() >= 3, "{}", fleet.ordered());
}

#[test]
fn survivors_of_a_release_carry_the_load() {
    let mut fleet = Fleet::new(10).learned();
    fleet.run(7_200.0, load(3.0));
    let queued: usize = fleet.queued.iter().rev().take(300).sum();
    assert_eq!(queued, 0);
}

#[test]
fn a_step_up_is_followed_in_the_first_ticks_and_not_overdone() {
    let mut fleet = Fleet::new(4).learned();
    fleet.run(900.0, load(2.0));
    let before = fleet.ordered();
    let wants = fleet.run(60.0, load(7.0));
    assert!(wants.iter().take(4).any(|want| *want > before), "{}", series(&wants));
    let during = fleet.run(1_200.0, load(7.0));
    let most = during.iter().chain(&wants).max().unwrap();
    // 7 of work at ρ 0.885 and the backlog of a cold start: not past 16 (DESIGN: 25 is a fault).
    assert!((9..=16).contains(most), "{most}");
    assert_eq!(*fleet.queued.last().unwrap(), 0);
}

#[test]
fn who_came_for_a_backlog_goes_when_it_is_gone_and_the_level_stays() {
    let mut fleet = Fleet::new(4).learned();
    fleet.run(900.0, load(2.0));
    fleet.run(900.0, load(7.0));
    // 7 of work at ρ 0.885 and the growth seen; at the step up to 16.
    let settled = fleet.ordered();
    assert!((8..=12).contains(&settled), "{settled}");
    let most = fleet.wants.iter().max().unwrap();
    assert!(*most > settled, "{most}");
    let after = fleet.run(3_600.0, load(7.0));
    assert_eq!(reversals(&after), 0, "{}", series(&after));
}

#[test]
fn f82_the_same_shortage_is_not_ordered_twice_while_nothing_is_ready() {
    let mut fleet = Fleet::new(2);
    fleet.cold_start_s = 180.0;
    fleet.run(120.0, load(1.0));
    let wants = fleet.run(175.0, load(3.0));
    let first = wants.iter().find(|want| **want > 2).unwrap();
    let last = wants.last().unwrap();
    assert!(*last <= first * 3, "first {first}, then {last}: {}", series(&wants));
}

#[test]
fn f01_the_fall_of_the_queue_after_an_own_step_up_is_no_fall_in_demand() {
    let mut fleet = Fleet::new(1).learned();
    fleet.cold_start_s = 30.0;
    fleet.run(60.0, load(3.5));
    let wants = fleet.run(1_800.0, load(3.5));
    let settled = &wants[60..];
    assert!(settled.iter().all(|want| *want >= 4), "{}", series(settled));
    assert!(reversals(settled) == 0, "{}", series(settled));
}

#[test]
fn f05_flat_load_is_a_flat_count() {
    let mut fleet = Fleet::new(6).learned();
    fleet.random = true;
    let wants = fleet.run(1_800.0, load(4.2));
    assert!(wants.iter().all(|want| *want == 6), "{}", series(&wants));
}

#[test]
fn a_long_slow_rise_is_followed_without_a_standing_queue() {
    let mut fleet = Fleet::new(2).learned();
    let mut worst = 0;
    for step in 0..120_u32 {
        fleet.run(60.0, load(1.0 + 0.05 * f64::from(step)));
        worst = worst.max(*fleet.queued.last().unwrap());
    }
    assert!(worst < 40, "{worst}");
    assert!(fleet.ordered() >= 8, "{}", fleet.ordered());
}

#[test]
fn a_released_replica_that_is_wanted_back_lengthens_the_hold() {
    let mut fleet = Fleet::new(6).learned();
    fleet.run(1_500.0, load(1.0));
    let low = fleet.ordered();
    assert!(low < 6);
    assert_eq!(fleet.decisions.last().unwrap().inputs.hold_ms, 600_000);
    fleet.run(300.0, load(5.0));
    assert!(fleet.ordered() > low);
    // By half, once: what then goes after the backlog and is wanted back teaches the hold nothing.
    assert!(fleet.wants.windows(2).any(|wants| wants[0] > low && wants[1] < wants[0]));
    assert_eq!(fleet.decisions.last().unwrap().inputs.hold_ms, 900_000);
}

#[test]
fn an_explicit_hold_wins_over_the_learned_one() {
    let mut fleet = Fleet::new(6).learned().spec(|spec| spec.ghost_hold_ms = Some(400_000));
    fleet.run(1_500.0, load(1.0));
    fleet.run(300.0, load(5.0));
    assert_eq!(fleet.decisions.last().unwrap().inputs.hold_ms, 400_000);
}

#[test]
fn clean_releases_shorten_the_hold_again() {
    // What releases teach, where nothing is rehearsed.
    let mut fleet =
        Fleet::new(20).learned().spec(|spec| spec.without = Some(crate::decision::Part::Rehearsal));
    for level in [9.0, 7.0, 5.0, 3.0, 1.0] {
        fleet.run(4_000.0, load(level));
    }
    assert_eq!(fleet.decisions.last().unwrap().inputs.hold_ms, 400_000);
}

#[test]
fn the_cold_start_is_learned_from_a_start() {
    let mut fleet = Fleet::new(1).learned();
    fleet.cold_start_s = 75.0;
    assert_eq!(fleet.tick(load(0.5)).inputs.cold_start_ms, 180_000);
    fleet.run(400.0, load(3.0));
    let learned_ms = fleet.decisions.last().unwrap().inputs.cold_start_ms;
    assert!((70_000..=80_000).contains(&learned_ms), "{learned_ms}");
}

#[test]
fn starting_replicas_are_no_lost_source() {
    let mut fleet = Fleet::new(0);
    fleet.scale(2);
    let decision = fleet.tick(0.0);
    assert_eq!(decision.health, Health::Starting);
    assert_eq!(decision.want, 2);
}

#[test]
fn shadow_mode_publishes_and_reproduces_the_present_count() {
    let mut fleet = Fleet::new(10).learned().spec(|spec| spec.mode = Mode::Shadow);
    let mut wanted_less = false;
    for _ in 0..500 {
        fleet.advance(load(2.0));
        let observation = fleet.observe();
        let decision = fleet.decide(&observation);
        assert_eq!(decision.answer, super::build::value(10));
        wanted_less |= decision.want < 10;
        fleet.scale(10);
    }
    assert!(wanted_less);
}

#[test]
fn a_single_step_beyond_the_load_seen_is_taken_after_twice_the_hold() {
    // 0.5 of work and 0.1 of headroom on two replicas. Trusted of each: 1.3 times the 0.25 seen,
    // or 0.6 of a fit of 0.885 = 0.53: one replica would not carry it. At 0.85 of the fit = 0.75
    // it does.
    let mut fleet = Fleet::new(2).learned();
    // Learned, but from light loads only.
    let mut model = serde_json::to_value(&fleet.state.cost).unwrap();
    model["reach"] = 0.0.into();
    fleet.state.cost = serde_json::from_value(model).unwrap();
    fleet.run(1_000.0, load(0.5));
    assert_eq!(fleet.ordered(), 2);
    fleet.run(2_500.0, load(0.5));
    assert_eq!(fleet.ordered(), 1);
    let wants = fleet.run(3_600.0, load(0.5));
    assert!(wants.iter().all(|want| *want == 1), "{}", series(&wants));
}

#[test]
fn a_model_that_was_learned_survives_its_json_form() {
    let model = learned(&TRUTH);
    let text = serde_json::to_string(&model).unwrap();
    assert_eq!(serde_json::from_str::<crate::decision::CostModel>(&text).unwrap(), model);
}
