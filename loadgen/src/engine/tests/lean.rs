//! The lean engine beside the engine: the same moments for every request, the same counters.

use super::*;
use crate::engine::secs_from_ps;

/// First token and end of each request, in picoseconds; and when an interval was looked at, its
/// counters.
#[derive(Debug, Default, PartialEq)]
struct Course {
    first: Vec<(u64, Time)>,
    finished: Vec<(u64, Time)>,
}

fn of_engine(events: &[Event]) -> Course {
    let mut course = Course::default();
    for event in events {
        match *event {
            Event::Token { id, at, first: true } => course.first.push((id, at)),
            Event::Finished { id, at, .. } => course.finished.push((id, at)),
            Event::Token { .. } | Event::Preempted { .. } => {}
        }
    }
    course
}

fn note(course: &mut Course, event: LeanEvent) {
    match event {
        LeanEvent::FirstToken { id, at } => course.first.push((id.into(), at)),
        LeanEvent::Finished { id, at, .. } => course.finished.push((id.into(), at)),
    }
}

/// Compares what the two say of themselves.
fn same_sample(engine: &Engine, lean: &mut Lean, now: Time) {
    let metrics = engine.metrics();
    let sample = lean.sample(now);
    let counts = [
        (metrics.gauges.running as u64, sample.running as u64),
        (metrics.gauges.waiting as u64, sample.waiting as u64),
        (metrics.prompt_tokens - metrics.prompt_tokens_cached, sample.computed_prompt_tokens),
        (metrics.generation_tokens, sample.generation_tokens),
        (metrics.finished_length, sample.finished),
        (metrics.preemptions, sample.preemptions),
        (metrics.iteration_tokens.count(), sample.steps),
        (metrics.time_to_first_token.count(), sample.ttft_count),
        (metrics.inter_token_latency.count(), sample.itl_count),
    ];
    for (index, (engine, lean)) in counts.into_iter().enumerate() {
        assert_eq!(engine, lean, "count {index} at {now:?}");
    }
    let seconds = |sum: u128| secs_from_ps(u64::try_from(sum).unwrap());
    let sums = [
        (metrics.gauges.kv_usage(), sample.kv_usage),
        (seconds(metrics.time_to_first_token.sum()), sample.ttft_sum_s),
        (seconds(metrics.inter_token_latency.sum()), sample.itl_sum_s),
    ];
    for (index, (engine, lean)) in sums.into_iter().enumerate() {
        assert!((engine - lean).abs() < 1e-9, "sum {index} at {now:?}: {engine} and {lean}");
    }
}

/// A moment at which no step ends: who is asked for the next event has begun the next step, and what
/// comes at that very moment is not in it any more.
fn between_steps(millis: u64) -> Time {
    Time::from_millis(millis).plus_ps(333)
}

/// Plays the arrivals to both, stopping at whole slices to compare, and as the lean engine's
/// caller would: from event to event.
fn compare(profile: &Arc<Profile>, arrivals: &[Arrival], cached: u32, slice_ms: u64) {
    let (mut engine, mut lean) = (Engine::new(Arc::clone(profile)), Lean::new(profile));
    let (mut events, mut course) = (Vec::new(), Course::default());
    let most = u32::try_from(profile.limits.max_model_tokens).unwrap();
    let mut now_ms = 0;
    for (id, &(gap_ms, prompt, output)) in (0_u32..).zip(arrivals) {
        let arrival_ms = now_ms + gap_ms;
        while now_ms < arrival_ms {
            now_ms = (now_ms + slice_ms).min(arrival_ms);
            let now = between_steps(now_ms);
            while let Some(at) = lean.next_event().filter(|&at| at <= now) {
                lean.advance(at, &mut |event| note(&mut course, event));
            }
            engine.advance(now, Watch::FirstToken, &mut |event| events.push(event));
            same_sample(&engine, &mut lean, now);
        }
        let output = output.min(most - prompt);
        let now = between_steps(now_ms);
        let mut request = Request::new(id.into(), prompt, output);
        request.prefix = Prefix::Cached(cached);
        engine.submit(request, now).unwrap();
        lean.submit(
            LeanRequest { id, prompt_tokens: prompt, cached_tokens: cached, output_tokens: output },
            now,
        );
    }
    engine.advance(Time::MAX, Watch::FirstToken, &mut |event| events.push(event));
    lean.advance(Time::MAX, &mut |event| note(&mut course, event));
    assert_eq!(course, of_engine(&events));
    same_sample(&engine, &mut lean, Time::MAX);
    assert_eq!(lean.in_flight(), 0);
    let busy_s = secs_from_ps(engine.work().total_ps());
    assert!((lean.busy_s(Time::MAX) - busy_s).abs() < 1e-9, "{busy_s}");
}

proptest! {
    #[test]
    fn the_lean_engine_is_the_engine_to_the_picosecond(
        profile in engines(),
        arrivals in arrivals(),
        cached in prop_oneof![Just(0_u32), 16..90_u32],
        slice_ms in 1..400_u64,
        request_ms in 0..20_u8,
        token_ms in 0..4_u8,
    ) {
        let mut profile = Arc::unwrap_or_clone(profile);
        profile.limits.long_prefill_token_threshold = 0;
        profile.frontend.request_ms = vec![(0, f64::from(request_ms))];
        profile.frontend.token_ms = f64::from(token_ms);
        prop_assert!(Lean::can(&profile));
        compare(&Arc::new(profile), &arrivals, cached, slice_ms);
    }
}

#[test]
fn every_preset_is_the_same_under_an_hour_of_load_on_both() {
    use rand_pcg::Pcg64Mcg;
    use rand_pcg::rand_core::{Rng, SeedableRng};
    // Gaps around the rate at which an 8B on an A100 saturates: busy, and at times overloaded.
    for name in ["8b-a100", "8b-h100", "70b-4xh100", "nim-8b", "nim-70b-2xh100"] {
        let profile = Arc::new(Profile::load(name).unwrap());
        let mut rng = Pcg64Mcg::seed_from_u64(7);
        let mut below = |limit: u32| {
            u32::try_from((u64::from(rng.next_u32()) * u64::from(limit)) >> 32).unwrap()
        };
        let arrivals: Vec<Arrival> =
            (0..3_000).map(|_| (u64::from(below(300)), 1 + below(2_500), 1 + below(500))).collect();
        compare(&profile, &arrivals, 0, 5_000);
    }
}
