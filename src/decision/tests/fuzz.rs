//! Whatever the outside says: finite, bounded, deterministic, and never an invented fall.

use proptest::prelude::*;

use crate::decision::{
    Answer, Engine, EngineSample, Gpu, GpuSample, KeptSample, Mode, Moment, Observation, Phase,
    Reading, Replicas, Spec, State, Wake, WakeReading, Why, ZeroAfter, decide,
};

fn number() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        1 => Just(None),
        1 => prop_oneof![
            Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY), Just(-1.0),
            Just(1e308), Just(f64::MIN_POSITIVE), Just(-0.0), Just(1e15),
        ].prop_map(Some),
        6 => (0.0_f64..1_000.0).prop_map(Some),
        2 => Just(Some(0.0)),
    ]
}

fn sample() -> impl Strategy<Value = EngineSample> {
    (proptest::collection::vec(number(), 20), 0_i64..200_000, any::<Option<bool>>()).prop_map(
        |(n, at, asleep)| EngineSample {
            at: Moment(at),
            waiting: n[0],
            waiting_deferred: n[1],
            running: n[2],
            kv_usage: n[3],
            kv_tokens: n[4],
            prompt_tokens: n[5],
            generated_tokens: n[6],
            finished: n[7],
            finished_generated_tokens: n[9],
            rejected: n[10],
            preemptions: n[11],
            steps: n[12],
            ttft_sum_s: n[13],
            ttft_count: n[14],
            itl_sum_s: n[15],
            itl_count: n[16],
            max_running: n[17],
            waiting_spread: n[18],
            asleep,
            ..EngineSample::default()
        },
    )
}

fn engine() -> impl Strategy<Value = Engine> {
    let phase = prop_oneof![
        5 => Just(Phase::Ready), 1 => Just(Phase::Starting), 1 => Just(Phase::NotReady),
        1 => Just(Phase::Terminating),
    ];
    let reading = prop_oneof![
        5 => sample().prop_map(|value| Reading::Fresh { value: KeptSample::from(value), age_ms: 100 }),
        1 => sample().prop_map(|value| {
            Reading::Stale { value: KeptSample::from(value), age_ms: 99_999, why: Why::Timeout }
        }),
        1 => Just(Reading::Missing { why: Why::Refused }),
    ];
    (0_u8..6, phase, any::<Option<u32>>(), reading).prop_map(|(id, phase, ready_ms, reading)| {
        Engine { id: format!("pod-{id}").into(), phase, ready_ms: ready_ms.map(u64::from), reading }
    })
}

fn gpu() -> impl Strategy<Value = Gpu> {
    prop_oneof![
        Just(Gpu::Absent),
        Just(Gpu::Unread { why: Why::Timeout }),
        any::<u64>().prop_map(|for_ms| Gpu::Lost { for_ms, why: None }),
        (number(), number(), number(), 0..3_u32).prop_map(|(busy, sm, dram, unread)| {
            Gpu::Fresh(GpuSample { devices: 1, unread, busy, sm, tensor: None, dram })
        }),
    ]
}

fn wake() -> impl Strategy<Value = Wake> {
    let source = prop_oneof![
        Just(None),
        Just(Some(WakeReading::Unknown { why: Why::Timeout })),
        (number(), any::<Option<i64>>()).prop_map(|(queued, at)| Some(WakeReading::Fresh {
            queued: queued.unwrap_or(0.0),
            last_arrival_at: at.map(Moment),
        })),
    ];
    (source, any::<Option<i64>>())
        .prop_map(|(source, at)| Wake { source, requested_at: at.map(Moment) })
}

fn observation() -> impl Strategy<Value = Observation> {
    let count = || prop_oneof![8 => 0_u32..12, 1 => Just(u32::MAX), 1 => Just(0)];
    let spec =
        prop_oneof![1 => Just(None), 8 => (0_u32..12).prop_map(Some), 1 => Just(Some(u32::MAX))];
    let replicas = (spec, count(), count(), 0_u32..3, 0_u32..3, count(), any::<bool>()).prop_map(
        |(spec, ready, starting, unschedulable, crash_looping, leaving, rollout)| Replicas {
            spec,
            ready,
            starting,
            terminating: 0,
            unschedulable,
            crash_looping,
            leaving,
            rollout,
        },
    );
    let engines = proptest::collection::vec(engine(), 0..6);
    let by_hand = proptest::option::weighted(0.1, count());
    (replicas, engines, gpu(), wake(), count(), by_hand).prop_map(
        |(replicas, engines, gpu, wake, schedule_floor, by_hand)| Observation {
            replicas,
            engines: engines.into(),
            gpu,
            wake,
            schedule_floor,
            by_hand,
        },
    )
}

fn spec() -> impl Strategy<Value = Spec> {
    let numbers = (0_u32..5, 0_u32..9, any::<Option<u32>>(), 1_u64..100_000, 1_u64..100_000);
    (numbers, any::<[bool; 4]>(), 0.01_f64..100.0, any::<u64>()).prop_map(
        |(
            (min, span, fallback, ttft, tpot),
            [has_wake_source, shadow, by_target, push],
            target,
            zero,
        )| {
            Spec {
                min,
                max: (min + span).max(1),
                slo_ttft_ms: ttft,
                slo_tpot_ms: tpot,
                target_in_flight: by_target.then_some(target),
                zero_after: ZeroAfter::After { millis: zero },
                has_wake_source,
                mode: if shadow { Mode::Shadow } else { Mode::Act },
                fallback_replicas: fallback,
                hpa_tolerance: push.then_some(0.1),
                ..Spec::default()
            }
        },
    )
}

/// A history: observations with the milliseconds before each.
fn history() -> impl Strategy<Value = Vec<(Observation, i64)>> {
    let gap = prop_oneof![
        6 => Just(5_000_i64), 1 => Just(0), 1 => Just(1_000), 1 => -10_000_i64..0,
        1 => 0_i64..10_000_000, 1 => Just(i64::MAX / 4),
    ];
    proptest::collection::vec((observation(), gap), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_gives_bounded_repeatable_decisions(spec in spec(), history in history()) {
        let mut state = State::default();
        let mut now = Moment(100_000);
        let mut last_want = None;
        let mut known_spec = None;
        for (observation, gap) in history {
            now = Moment(now.0.saturating_add(gap));
            let (decision, next) = decide(&spec, state.clone(), &observation, now);
            let again = decide(&spec, state, &observation, now);
            prop_assert_eq!(serde_json::to_string(&decision).unwrap(), serde_json::to_string(&again.0).unwrap());
            let (twice, _) = decide(&spec, next.clone(), &observation, now);
            prop_assert_eq!(twice.want, decision.want);
            prop_assert_eq!(twice.answer, decision.answer);
            known_spec = observation.replicas.spec.or(known_spec);
            match decision.answer {
                Answer::Value { want, active } => {
                    prop_assert_eq!(active, want > 0);
                    if spec.mode == Mode::Act {
                        prop_assert!((spec.min..=spec.max).contains(&want), "{}", want);
                    } else {
                        prop_assert_eq!(Some(want), known_spec.map(|count| spec.clamp(count)));
                    }
                }
                Answer::Unavailable { .. } => {
                    let fallback = spec.fallback_replicas.is_some_and(|n| n > 0);
                    prop_assert!(known_spec.is_none() || fallback);
                }
            }
            // What was read before, and is not any more, never lowers.
            let mut blind = observation.clone();
            for engine in &mut blind.engines {
                if engine.phase == Phase::Ready {
                    engine.reading = Reading::Missing { why: Why::Timeout };
                    engine.ready_ms = None;
                }
            }
            let reads = blind.engines.iter().any(|engine| engine.phase == Phase::Ready);
            if let (true, Some(want), Some(1..)) = (reads, last_want, known_spec) {
                let (held, _) = decide(&spec, next.clone(), &blind, now.plus_millis(5_000));
                prop_assert!(held.want >= decision.want.min(want), "{} {}", held.want, want);
                prop_assert!(held.want >= decision.want, "{} {}", held.want, decision.want);
            }
            let text = serde_json::to_string(&next).unwrap();
            prop_assert_eq!(&serde_json::from_str::<State>(&text).unwrap(), &next);
            last_want = Some(decision.want);
            state = next;
        }
    }
}
