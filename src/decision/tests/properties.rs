//! The properties of the decision, each over many random fleets and histories.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::fleet::{Fleet, REQUEST_S, moment};
use super::fleet_runs::{reversals, series};
use crate::decision::{Answer, Observation, Phase, Reading, State, Why, decide};

/// The same cases in every run, so that a failure is the change's and not the dice's; more of them
/// by `PROPTEST_CASES`, of which 256 is the default.
fn cases(n: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: if default.cases == 256 { n } else { default.cases },
        failure_persistence: None,
        max_global_rejects: 65_536,
        rng_seed: RngSeed::Fixed(0x6768_6f73_7473),
        ..default
    }
}

/// A fleet of `n` under `work` replicas of work for a while.
fn warmed(seed: u64, n: u32, work: f64, learned: bool, seconds: f64) -> Fleet {
    let mut fleet = Fleet::new(n).seed(seed);
    fleet.random = true;
    if learned {
        fleet = fleet.learned();
    }
    fleet.run(seconds, work / REQUEST_S);
    fleet
}

/// More of everything that is demanded, alike on every replica.
fn more(observation: &Observation, factor: f64, extra: f64) -> Observation {
    let mut observation = observation.clone();
    for engine in &mut observation.engines {
        if let Reading::Fresh { value, .. } = &mut engine.reading {
            let mut value = value.edit();
            value.waiting = value.waiting.map(|waiting| waiting * factor + extra);
            value.running = value.running.map(|running| running * factor);
            value.finished = value.finished.map(|finished| finished + extra);
            value.generated_tokens = value.generated_tokens.map(|tokens| tokens + 100.0 * extra);
            value.prompt_tokens = value.prompt_tokens.map(|tokens| tokens + 200.0 * extra);
        }
    }
    observation
}

fn lost(observation: &Observation, which: impl Fn(usize) -> bool, stale: bool) -> Observation {
    let mut observation = observation.clone();
    for (index, engine) in observation.engines.iter_mut().enumerate() {
        if engine.phase == Phase::Ready && which(index) {
            engine.reading = match &engine.reading {
                Reading::Fresh { value, .. } if stale => {
                    let value = value.clone();
                    Reading::Stale { value, age_ms: 60_000, why: Why::Timeout }
                }
                Reading::Fresh { .. } | Reading::Stale { .. } | Reading::Missing { .. } => {
                    Reading::Missing { why: Why::Refused }
                }
            };
        }
    }
    observation
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn the_same_arguments_give_the_same_decision_and_deciding_twice_changes_nothing(
        seed in 1_u64..1_000_000, n in 1_u32..6, work in 0.0_f64..8.0, learned in any::<bool>(),
    ) {
        let mut fleet = warmed(seed, n, work, learned, 300.0);
        for _ in 0..40 {
            fleet.advance(work / REQUEST_S);
            let observation = fleet.observe();
            let at = moment(fleet.now_s);
            let once = decide(&fleet.spec, fleet.state.clone(), &observation, at);
            prop_assert_eq!(&once, &decide(&fleet.spec, fleet.state.clone(), &observation, at));
            let twice = decide(&fleet.spec, once.1.clone(), &observation, at);
            prop_assert_eq!(once.0.want, twice.0.want);
            prop_assert_eq!(once.0.answer, twice.0.answer);
            prop_assert_eq!(once.0.binding, twice.0.binding);
            prop_assert_eq!(once.1.evidence.clock_ms(), twice.1.evidence.clock_ms());
            prop_assert!(twice.0.notices.is_empty());
            let _known = fleet.decide(&observation);
        }
    }

    #[test]
    fn more_demand_never_wants_fewer(
        seed in 1_u64..1_000_000, n in 1_u32..8, work in 0.1_f64..8.0, learned in any::<bool>(),
        factor in 1.0_f64..3.0, extra in 0.0_f64..50.0, seconds in 60.0_f64..1_500.0,
    ) {
        let mut fleet = warmed(seed, n, work, learned, seconds);
        fleet.advance(work / REQUEST_S);
        let observation = fleet.observe();
        let at = moment(fleet.now_s);
        let (less, _) = decide(&fleet.spec, fleet.state.clone(), &observation, at);
        let demand = more(&observation, factor, extra);
        let (more, _) = decide(&fleet.spec, fleet.state.clone(), &demand, at);
        prop_assert!(more.want >= less.want, "{} < {}", more.want, less.want);
    }

    #[test]
    fn load_at_or_above_the_target_never_wants_fewer_than_now(
        seed in 1_u64..1_000_000, n in 1_u32..8, share in 1.0_f64..1.5,
    ) {
        let mut fleet = Fleet::new(n).seed(seed).learned();
        for _ in 0..200 {
            let rho = fleet.decisions.last().and_then(|last| last.inputs.rho).unwrap_or(0.5);
            let spec = fleet.ordered();
            let decision = fleet.tick(share * rho * f64::from(spec) / REQUEST_S);
            let inputs = &decision.inputs;
            let full = inputs.work.zip(inputs.rho).is_some_and(|(w, rho)| w >= rho * f64::from(spec));
            prop_assert!(!full || decision.want >= spec.min(fleet.spec.max));
        }
    }

    #[test]
    fn missing_or_stale_never_lowers(
        seed in 1_u64..1_000_000, n in 1_u32..8, work in 0.0_f64..6.0, learned in any::<bool>(),
        seconds in 0.0_f64..1_500.0, mask in 1_u32..256, stale in any::<bool>(),
        for_ticks in 1_usize..200,
    ) {
        let mut fleet = warmed(seed, n, work, learned, seconds);
        let mut before = fleet.wants.last().copied().unwrap_or(n);
        for _ in 0..for_ticks {
            fleet.advance(work / REQUEST_S);
            let whole = fleet.observe();
            let which = |index: usize| mask >> (index % 8) & 1 == 1;
            let observation = lost(&whole, which, stale);
            let any_lost = observation != whole;
            let decision = fleet.decide(&observation);
            if any_lost {
                prop_assert!(decision.want >= before, "{} < {before}", decision.want);
                let active = matches!(decision.answer, Answer::Value { active: true, .. });
                prop_assert!(active);
            }
            before = decision.want;
        }
    }

    #[test]
    fn a_restart_moves_nothing_down(
        seed in 1_u64..1_000_000, n in 1_u32..12, work in 0.0_f64..6.0, restored in any::<bool>(),
        seconds in 0.0_f64..2_000.0, gap in 5.0_f64..5_000.0,
    ) {
        let mut fleet = warmed(seed, n, work, true, seconds);
        let spec = fleet.ordered();
        let text = serde_json::to_string(&fleet.state).unwrap();
        fleet.now_s += gap;
        fleet.state = if restored {
            let state: State = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(&state, &fleet.state);
            state.restored()
        } else {
            State::default()
        };
        let before = fleet.state.want().unwrap_or(spec);
        for _ in 0..60 {
            fleet.advance(work / REQUEST_S);
            let observation = fleet.observe();
            let ordered = fleet.ordered();
            let decision = fleet.decide(&observation);
            let stands = restored && fleet.state.evidence.clock_ms() >= 600_000;
            prop_assert!(stands || decision.want >= ordered, "{} < {ordered}", decision.want);
            prop_assert!(stands || decision.want >= before.min(spec));
        }
    }

    #[test]
    fn the_count_is_finite_and_within_bounds_and_the_state_survives_json(
        seed in 1_u64..1_000_000, n in 0_u32..12, work in 0.0_f64..20.0, learned in any::<bool>(),
        min in 0_u32..4, span in 0_u32..6,
    ) {
        let mut fleet = Fleet::new(n).seed(seed).spec(|spec| {
            spec.min = min;
            spec.max = (min + span).max(1);
        });
        if learned {
            fleet = fleet.learned();
        }
        for _ in 0..100 {
            let decision = fleet.tick(work / REQUEST_S);
            prop_assert!((min..=(min + span).max(1)).contains(&decision.want));
        }
        let text = serde_json::to_string(&fleet.state).unwrap();
        let state: State = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(state, fleet.state);
        let decision = fleet.decisions.last().unwrap();
        let text = serde_json::to_string(decision).unwrap();
        prop_assert_eq!(&serde_json::from_str::<crate::decision::Decision>(&text).unwrap(), decision);
    }
}

proptest! {
    #![proptest_config(cases(8))]

    #[test]
    fn noise_of_five_percent_under_constant_load_gives_no_reversal(
        seed in 1_u64..1_000_000, n in 1_u32..10, share in 0.1_f64..0.85, learned in any::<bool>(),
    ) {
        let mut fleet = Fleet::new(n).seed(seed);
        fleet.noise = 0.05;
        if learned {
            fleet = fleet.learned();
        }
        let wants = fleet.run(7_200.0, share * f64::from(n) / REQUEST_S);
        // The count may rise once to meet the load, or fall to it; it never turns.
        prop_assert_eq!(reversals(&wants), 0, "{}", series(&wants));
    }

    #[test]
    fn a_released_replica_is_not_ordered_again_within_a_cold_start_under_constant_load(
        seed in 1_u64..1_000_000, n in 2_u32..10, share in 0.05_f64..0.8,
    ) {
        let mut fleet = Fleet::new(n).seed(seed).learned();
        let wants = fleet.run(5_400.0, share * f64::from(n) / REQUEST_S);
        for (index, pair) in wants.windows(2).enumerate() {
            if pair[1] < pair[0] {
                let after = wants.iter().skip(index + 1).take(24);
                prop_assert!(after.clone().all(|want| *want <= pair[1]), "{}", series(&wants));
            }
        }
    }

    #[test]
    fn a_dip_shorter_than_the_hold_changes_nothing(
        seed in 1_u64..1_000_000, work in 1.0_f64..6.0, depth in 0.0_f64..0.9,
        // No learned hold is shorter than 300 s.
        dip_ticks in 1_u32..60,
    ) {
        let fleet = || {
            let mut fleet = Fleet::new(8).seed(seed).learned();
            fleet.run(3_600.0, work / REQUEST_S);
            fleet
        };
        let seconds = 5.0 * f64::from(dip_ticks) - 5.0;
        let mut dipped = fleet();
        let before = dipped.ordered();
        // Where the level itself is within noise of a step, time alone may bring a release.
        let evidence = &dipped.state.evidence;
        let now = evidence.largest_need(&evidence.trial, 5_000).unwrap_or(0.0);
        prop_assume!(now > 1.05 * f64::from(before - 1));
        let during = dipped.run(seconds, depth * work / REQUEST_S);
        let after = dipped.run(600.0, work / REQUEST_S);
        // A release that was already due from the level before the dip is none of the dip's.
        let without = fleet().run(seconds + 600.0, work / REQUEST_S);
        let lowest = without.iter().min().copied().unwrap_or(before);
        prop_assert!(during.iter().chain(&after).all(|want| *want >= lowest), "{} {}", series(&during), series(&after));
    }
}
