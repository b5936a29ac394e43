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
        attention_ns in prop_oneof![Just(0.0), 1.0..2e4],
    ) {
        let mut profile = Arc::unwrap_or_clone(profile);
        profile.limits.long_prefill_token_threshold = 0;
        profile.frontend.request_ms = vec![(0, f64::from(request_ms))];
        profile.frontend.token_ms = f64::from(token_ms);
        profile.step.attention_ns = attention_ns;
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

/// When a prompt that comes alone gets its first token, in seconds.
fn alone_s(profile: &Profile, prompt_tokens: u32) -> f64 {
    let mut lean = Lean::new(profile);
    let request = LeanRequest { id: 0, prompt_tokens, cached_tokens: 0, output_tokens: 1 };
    lean.submit(request, Time::ZERO);
    let mut first_s = 0.0;
    while let Some(at) = lean.next_event() {
        lean.advance(at, &mut |_| {});
        first_s = secs_from_ps(at.0);
    }
    first_s
}

#[test]
fn attention_makes_a_prompt_grow_with_its_square_however_it_is_cut_into_steps() {
    let linear = Profile::load("8b-a100").unwrap();
    let mut square = linear.clone();
    square.step.attention_ns = 2.0;
    for prompt_tokens in [1_000, 4_096, 20_480] {
        let more_s = alone_s(&square, prompt_tokens) - alone_s(&linear, prompt_tokens);
        let expected_s = 2e-9 * f64::from(prompt_tokens).powi(2) / 2.0;
        assert!((more_s - expected_s).abs() < 1e-9, "{prompt_tokens}: {more_s}");
    }
}

#[test]
fn an_engine_that_is_retimed_takes_what_the_new_profile_says_from_its_next_steps_on() {
    let profile = Profile::load("8b-a100").unwrap();
    let mut slower = profile.clone();
    slower.step.base_ms *= 2.0;
    let mut lean = Lean::new(&profile);
    lean.retime(&slower);
    let request = LeanRequest { id: 0, prompt_tokens: 16, cached_tokens: 0, output_tokens: 1 };
    lean.submit(request, Time::ZERO);
    let end_s = secs_from_ps(lean.next_event().unwrap().0);
    assert!((end_s - alone_s(&slower, 16)).abs() < 1e-12, "{end_s}");
}
