//! The properties of the decision, each over many random fleets and histories.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::build::idle_sample;
use super::fleet::{Fleet, REQUEST_S, moment};
use super::fleet_runs::{reversals, series};
use crate::decision::{
    Answer, Engine, EngineSample, Gpu, Moment, Observation, Phase, Reading, Spec, State, Wake,
    WakeReading, Why, ZeroAfter, decide,
};

/// The same cases in every run, so that a failure is the change's and not the dice's; more of them
/// by `PROPTEST_CASES` (256, its default, is taken for none given), others by `PROPTEST_RNG_SEED`.
fn cases(n: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: if default.cases == 256 { n } else { default.cases },
        failure_persistence: None,
        max_global_rejects: 65_536,
        rng_seed: match default.rng_seed {
            RngSeed::Random => RngSeed::Fixed(0x6768_6f73_7473),
            RngSeed::Fixed(seed) => RngSeed::Fixed(seed),
        },
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

/// What tells that a fleet is full.
#[derive(Debug, Clone, Copy)]
enum Measure {
    Work,
    InFlight,
    Queue,
}

/// The same with replicas beside it that sleep.
fn asleep_beside(observation: &Observation, n: u32, now: Moment) -> Observation {
    let mut observation = observation.clone();
    let replicas = &mut observation.replicas;
    replicas.spec = replicas.spec.map(|spec| spec + n);
    replicas.ready += n;
    let value = EngineSample { at: now, asleep: Some(true), ..idle_sample() };
    let sleeper = |index| Engine {
        id: format!("sleeper-{index}").into(),
        phase: Phase::Ready,
        ready_ms: Some(3_600_000),
        reading: Reading::Fresh { value: value.into(), age_ms: 0 },
    };
    let engines = std::mem::take(&mut observation.engines).into_vec();
    observation.engines = engines.into_iter().chain((0..n).map(sleeper)).collect();
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
        seed in 1_u64..1_000_000, n in 1_u32..8, share in 1.1_f64..1.5, target in 4_u32..40,
        measure in prop_oneof![Just(Measure::Work), Just(Measure::InFlight), Just(Measure::Queue)],
    ) {
        let mut fleet = Fleet::new(n).seed(seed);
        let target = f64::from(target);
        fleet = match measure {
            Measure::Work => fleet.learned(),
            Measure::InFlight => fleet.spec(|spec| spec.target_in_flight = Some(target)),
            Measure::Queue => fleet,
        };
        let mut n_full = 0;
        for _ in 0..200 {
            let last = fleet.decisions.last();
            // Without a model a replica is full where it cannot serve more.
            let rho = last.and_then(|last| last.inputs.rho).unwrap_or(1.0);
            let spec = fleet.ordered();
            let decision = fleet.tick(share * rho * f64::from(spec) / REQUEST_S);
            let inputs = &decision.inputs;
            let in_flight = inputs.running.unwrap_or(0.0) + inputs.waiting.unwrap_or(0.0);
            let full = match measure {
                Measure::Work => {
                    inputs.work.zip(inputs.rho).is_some_and(|(w, rho)| w >= rho * f64::from(spec))
                }
                Measure::InFlight => in_flight >= target * f64::from(spec),
                Measure::Queue => inputs.waiting > Some(0.0),
            };
            n_full += u32::from(full);
            prop_assert!(!full || decision.want >= spec.min(fleet.spec.max), "{measure:?}");
        }
        prop_assert!(n_full > 0, "{measure:?} was never full");
    }

    #[test]
    fn missing_or_stale_never_lowers(
        seed in 1_u64..1_000_000, n in 1_u32..8, work in 0.0_f64..6.0, learned in any::<bool>(),
        seconds in 0.0_f64..1_500.0, mask in 1_u32..256, stale in any::<bool>(),
        for_ticks in 1_usize..200, devices_too in any::<bool>(),
    ) {
        let mut fleet = warmed(seed, n, work, learned, seconds);
        let mut before = fleet.wants.last().copied().unwrap_or(n);
        for _ in 0..for_ticks {
            fleet.advance(work / REQUEST_S);
            let whole = fleet.observe();
            let which = |index: usize| mask >> (index % 8) & 1 == 1;
            let mut observation = lost(&whole, which, stale);
            if devices_too {
                observation.gpu = Gpu::Lost { for_ms: 60_000, why: Some(Why::Timeout) };
            }
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
    fn an_unknown_wake_source_never_lets_the_last_one_go(
        seed in 1_u64..1_000_000, n in 1_u32..4, unknown in 0_usize..2_000,
    ) {
        let mut fleet = Fleet::new(n).seed(seed).spec(|spec| {
            (spec.min, spec.has_wake_source) = (0, true);
            spec.zero_after = ZeroAfter::After { millis: 900_000 };
        });
        let mut n_asleep = 0;
        for tick in 0..2_400 {
            fleet.advance(0.0);
            let mut observation = fleet.observe();
            let source = if tick < unknown {
                WakeReading::Unknown { why: Why::Timeout }
            } else {
                WakeReading::Fresh { queued: 0.0, last_arrival_at: None }
            };
            observation.wake = Wake { source: Some(source), requested_at: None };
            let want = fleet.decide(&observation).want;
            prop_assert!(tick >= unknown || want > 0);
            n_asleep += usize::from(want == 0);
        }
        // Known again, and nothing there: then it goes.
        prop_assert!(n_asleep > 0);
    }

    #[test]
    fn what_sleeps_is_in_every_count_and_changes_nothing_else(
        seed in 1_u64..1_000_000, n in 1_u32..6, work in 0.0_f64..4.0, learned in any::<bool>(),
        sleepers in 1_u32..4,
    ) {
        let mut fleet = Fleet::new(n).seed(seed);
        if learned {
            fleet = fleet.learned();
        }
        let mut state = fleet.state.clone();
        for tick in 0..360_u32 {
            let rate = if tick < 120 { work / REQUEST_S } else { 0.5 * work / REQUEST_S };
            fleet.advance(rate);
            let observation = fleet.observe();
            let more = asleep_beside(&observation, sleepers, moment(fleet.now_s));
            let spec = Spec { max: fleet.spec.max + sleepers, ..fleet.spec.clone() };
            let (beside, after) = decide(&spec, state, &more, moment(fleet.now_s));
            state = after;
            let alone = fleet.decide(&observation);
            prop_assert_eq!(beside.want, alone.want + sleepers);
            prop_assert_eq!(beside.binding, alone.binding);
            prop_assert_eq!(beside.next.down_in_ms, alone.next.down_in_ms);
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
