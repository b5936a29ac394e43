//! Tests of the engine as a whole; must not look behind its public face, but for `reference`.

mod lean;
mod life;
mod reference;

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use reference::Reference;

/// A small engine: steps of 10 ms + 0.1 ms a prompt token + 1 ms a decode + 1 µs a resident token.
pub(super) fn profile(change: impl FnOnce(&mut Profile)) -> Arc<Profile> {
    let mut profile = Profile::load("8b-a100").unwrap();
    profile.kv = Kv { block_tokens: 16, blocks: 1 + 64, prefix_caching: true };
    profile.limits = Limits {
        max_num_seqs: 8,
        max_num_batched_tokens: 256,
        max_model_tokens: 1_024,
        long_prefill_token_threshold: 0,
        watermark_blocks: 0,
    };
    profile.step = Step {
        base_ms: 10.0,
        prefill_ms: vec![(0, 0.0), (10, 1.0)],
        decode_ms: vec![(0, 0.0), (1, 1.0)],
        resident_ms: vec![(0, 0.0), (1_000, 1.0)],
        attention_ns: 0.0,
    };
    change(&mut profile);
    Arc::new(profile)
}

fn ms(millis: f64) -> Time {
    Time::from_secs_f64(millis / 1e3)
}

fn run(engine: &mut Engine, to: Time) -> Vec<Event> {
    let mut events = Vec::new();
    engine.advance(to, Watch::EveryToken, &mut |event| events.push(event));
    events
}

fn token_times(events: &[Event], wanted: u64) -> Vec<Time> {
    events
        .iter()
        .filter_map(|event| match *event {
            Event::Token { id, at, .. } if id == wanted => Some(at),
            Event::Token { .. } | Event::Preempted { .. } | Event::Finished { .. } => None,
        })
        .collect()
}

fn finished(events: &[Event], wanted: u64) -> Option<(Time, FinishReason, Served)> {
    events.iter().find_map(|event| match *event {
        Event::Finished { id, at, reason, served } if id == wanted => Some((at, reason, served)),
        Event::Token { .. } | Event::Preempted { .. } | Event::Finished { .. } => None,
    })
}

#[test]
fn one_request_takes_one_prefill_step_and_one_step_for_each_further_token() {
    let mut engine = Engine::new(profile(|_| {}));
    engine.submit(Request::new(1, 100, 3), ms(5.0)).unwrap();
    let events = run(&mut engine, ms(100.0));
    // 10 + 100 × 0.1 = 20 ms; then 10 + 1 + 100 × 0.001, and one resident token more.
    assert_eq!(token_times(&events, 1), [ms(25.0), ms(36.1), ms(47.201)]);
    let (at, reason, served) = finished(&events, 1).unwrap();
    assert_eq!((at, reason), (ms(47.201), FinishReason::Length));
    assert_eq!(served.scheduled, Some(ms(5.0)));
    assert_eq!((served.first_token, served.last_token), (Some(ms(25.0)), ms(47.201)));

    let metrics = engine.metrics();
    assert_eq!((metrics.prompt_tokens, metrics.generation_tokens), (100, 3));
    assert_eq!(metrics.finished_length, 1);
    assert_eq!(metrics.iteration_tokens.sum(), 103, "the prompt counts with its first token");
    assert_eq!(metrics.iteration_tokens.count(), 3);
    assert_eq!(metrics.time_to_first_token.sum(), 20_000_000_000);
    assert_eq!(metrics.inter_token_latency.sum(), 22_201_000_000);
    assert_eq!(metrics.e2e_latency.sum(), 42_201_000_000);
    assert_eq!(metrics.gauges.kv_blocks_used, 0);
    assert_eq!(engine.work().total_ps(), 42_201_000_000, "it was busy from arrival to end");
}

#[test]
fn a_long_prompt_is_computed_in_chunks_and_everybody_waits_for_them() {
    let mut engine = Engine::new(profile(|_| {}));
    engine.submit(Request::new(1, 16, 50), Time::ZERO).unwrap();
    run(&mut engine, ms(20.0));
    engine.submit(Request::new(2, 500, 1), ms(20.0)).unwrap();
    let events = run(&mut engine, ms(200.0));
    // 1 decodes first: chunks of 255 and 245 tokens. Steps of about 11 + 25.5 and 11 + 24.5 ms.
    let decodes = token_times(&events, 1);
    let gaps: Vec<f64> =
        decodes.windows(2).take(3).map(|pair| secs_from_ps(pair[1].since(pair[0]))).collect();
    assert_eq!(gaps.iter().map(|gap| (gap * 1e3).round()).collect::<Vec<_>>(), [37.0, 36.0, 11.0]);
    assert_eq!(token_times(&events, 2), [decodes[2]]);
}

#[test]
fn gauges_are_those_of_the_last_step_and_in_flight_is_not() {
    let mut engine = Engine::new(profile(|profile| profile.limits.max_num_seqs = 2));
    engine.submit(Request::new(1, 16, 50), Time::ZERO).unwrap();
    run(&mut engine, ms(15.0));
    for id in 2..=4 {
        engine.submit(Request::new(id, 16, 50), ms(15.0)).unwrap();
    }
    assert_eq!(engine.in_flight(), 4);
    assert_eq!((engine.metrics().gauges.running, engine.metrics().gauges.waiting), (1, 0));
    run(&mut engine, ms(45.0));
    let gauges = engine.metrics().gauges;
    assert_eq!((gauges.running, gauges.waiting, gauges.deferred), (2, 2, 0));
    assert_eq!(gauges.kv_blocks_used, 3, "the older is in its second block");
    assert!((gauges.kv_usage() - 3.0 / 64.0).abs() < 1e-12);
}

#[test]
fn nobody_behind_a_head_that_does_not_fit_is_admitted() {
    let mut engine = Engine::new(profile(|_| {}));
    engine.submit(Request::new(1, 600, 100), Time::ZERO).unwrap();
    engine.submit(Request::new(2, 600, 1), Time::ZERO).unwrap();
    engine.submit(Request::new(3, 16, 1), Time::ZERO).unwrap();
    let events = run(&mut engine, Time::MAX);
    let end_of_first = finished(&events, 1).unwrap().0;
    assert!(token_times(&events, 2)[0] > end_of_first);
    assert!(token_times(&events, 3)[0] > end_of_first, "though its block was free");
}

#[test]
fn the_youngest_loses_its_blocks_and_is_computed_again_with_what_it_had_generated() {
    // 12 blocks: two requests of 5 blocks grow to 8 each.
    let mut engine = Engine::new(profile(|profile| {
        profile.kv.blocks = 13;
        profile.limits.max_model_tokens = 192;
    }));
    engine.submit(Request::new(1, 80, 48), Time::ZERO).unwrap();
    engine.submit(Request::new(2, 80, 48), Time::ZERO).unwrap();
    let events = run(&mut engine, Time::MAX);
    let preempted: Vec<_> =
        events.iter().filter(|event| matches!(event, Event::Preempted { id: 2, .. })).collect();
    assert_eq!(preempted.len(), 1);
    assert_eq!(engine.metrics().preemptions, 1);
    let [first, second] = [1, 2].map(|id| finished(&events, id).unwrap());
    assert_eq!([first.2.preemptions, second.2.preemptions], [0, 1]);
    assert_eq!(token_times(&events, 2).len(), 48, "no token is generated twice");
    assert!(second.0 > first.0);
    assert_eq!(engine.metrics().generation_tokens, 96);
    assert_eq!(engine.metrics().prompt_tokens, 160, "a prompt counts once");
}

#[test]
fn a_deferred_request_lets_others_pass_and_is_counted_apart() {
    let mut engine = Engine::new(profile(|_| {}));
    let deferred = Request { deferred_until: Some(ms(50.0)), ..Request::new(1, 16, 1) };
    engine.submit(deferred, Time::ZERO).unwrap();
    engine.submit(Request::new(2, 16, 20), Time::ZERO).unwrap();
    let mut events = run(&mut engine, ms(40.0));
    let gauges = engine.metrics().gauges;
    assert_eq!((gauges.running, gauges.waiting, gauges.deferred), (1, 0, 1));
    events.extend(run(&mut engine, Time::MAX));
    assert!(token_times(&events, 1)[0] > ms(50.0));
}

#[test]
fn an_aborted_request_leaves_with_the_step_without_a_trace() {
    let mut engine = Engine::new(profile(|_| {}));
    engine.submit(Request::new(1, 16, 50), Time::ZERO).unwrap();
    engine.submit(Request::new(2, 16, 50), Time::ZERO).unwrap();
    run(&mut engine, ms(30.0));
    assert!(engine.abort(1));
    assert!(!engine.abort(1), "gone already");
    assert!(!engine.abort(9), "never there");
    assert_eq!(engine.in_flight(), 1);
    let events = run(&mut engine, Time::MAX);
    assert_eq!(token_times(&events, 1), []);
    assert_eq!(finished(&events, 1), None);
    assert_eq!(engine.metrics().gauges.kv_blocks_used, 0);
    assert_eq!(engine.metrics().finished_abort, 0, "as vLLM 0.32 counts clients that go");
}

#[test]
fn giving_up_all_reports_each_and_frees_every_block() {
    let mut engine = Engine::new(profile(|_| {}));
    for id in 1..=10 {
        engine.submit(Request::new(id, 16, 50), Time::ZERO).unwrap();
    }
    run(&mut engine, ms(100.0));
    let mut events = Vec::new();
    engine.abort_all(ms(100.0), &mut |event| events.push(event));
    assert_eq!(events.len(), 10);
    assert_eq!(finished(&events, 10).unwrap().1, FinishReason::Abort);
    assert_eq!(engine.metrics().finished_abort, 10);
    assert_eq!((engine.in_flight(), engine.metrics().gauges.kv_blocks_used), (0, 0));
    assert_eq!(run(&mut engine, Time::MAX), []);
}

#[test]
fn a_stalled_engine_makes_no_token_and_the_stall_is_in_the_latency() {
    let mut engine = Engine::new(profile(|_| {}));
    engine.submit(Request::new(1, 16, 4), Time::ZERO).unwrap();
    let mut events = run(&mut engine, ms(15.0));
    engine.stall(ms(1_000.0));
    assert_eq!(run(&mut engine, ms(999.0)), []);
    events.extend(run(&mut engine, Time::MAX));
    assert_eq!(token_times(&events, 1)[1], ms(1_000.0));
    engine.submit(Request::new(2, 16, 4), ms(2_000.0)).unwrap();
    engine.stall(Time::MAX);
    assert_eq!((engine.next_event(), engine.in_flight()), (None, 1), "hung");
}

#[test]
fn the_frontend_takes_requests_one_after_the_other() {
    let mut engine = Engine::new(profile(|profile| profile.frontend.request_ms = vec![(0, 4.0)]));
    for id in 1..=3 {
        engine.submit(Request::new(id, 16, 2), Time::ZERO).unwrap();
    }
    let events = run(&mut engine, Time::MAX);
    let queued: Vec<Time> = (1..=3).map(|id| finished(&events, id).unwrap().2.queued).collect();
    assert_eq!(queued, [ms(4.0), ms(8.0), ms(12.0)]);
    assert_eq!(finished(&events, 1).unwrap().2.scheduled, Some(ms(4.0)));
    assert!(finished(&events, 2).unwrap().2.scheduled > Some(ms(12.0)), "with the next step");
}

#[test]
fn a_new_request_waits_behind_the_tokens_that_are_being_streamed() {
    let mut engine = Engine::new(profile(|profile| profile.frontend.token_ms = 3.0));
    for id in 1..=8 {
        engine.submit(Request::new(id, 1, 100), Time::ZERO).unwrap();
    }
    // Eight tokens a step of some 18 ms, 24 ms to stream them: after a while it is behind.
    let mut events = run(&mut engine, ms(1_000.0));
    let tokens = engine.metrics().generation_tokens;
    engine.submit(Request::new(9, 1, 1), ms(1_000.0)).unwrap();
    events.extend(run(&mut engine, Time::MAX));
    let queued = finished(&events, 9).unwrap().2.queued;
    let first_step_end = token_times(&events, 1)[0];
    assert_eq!(queued, first_step_end.plus_ps(tokens * 3 * PS_PER_MS));
}

#[test]
fn cached_prompt_tokens_are_not_computed_but_occupy_blocks() {
    let mut engine = Engine::new(profile(|_| {}));
    let cached = |id, tokens| Request { prefix: Prefix::Cached(tokens), ..Request::new(id, 96, 1) };
    for (id, tokens, computed) in [(1, 95, 16), (2, 96, 16), (3, 40, 64), (4, 15, 96)] {
        let start = engine.last_step_end();
        engine.submit(cached(id, tokens), start).unwrap();
        let events = run(&mut engine, Time::MAX);
        let (at, _, served) = finished(&events, id).unwrap();
        assert_eq!(served.cached_tokens, 96 - computed, "{tokens} tokens said to be cached");
        assert_eq!(at.since(start), (100 + u64::from(computed)) * PS_PER_MS / 10);
    }
    let metrics = engine.metrics();
    assert_eq!((metrics.prefix_queries, metrics.prefix_hits), (384, 80 + 80 + 32));
    assert_eq!((metrics.prompt_tokens, metrics.prompt_tokens_cached), (384, 192));
    assert_eq!(metrics.request_computed_tokens.sum(), 192);
}

#[test]
fn a_shared_prefix_is_computed_once_and_held_once() {
    let mut engine = Engine::new(profile(|_| {}));
    let sharing = |id, hashes: &[u64]| Request {
        prefix: Prefix::Segments { tokens: 32, hashes: hashes.into() },
        ..Request::new(id, 100, 20)
    };
    engine.submit(sharing(1, &[11, 12, 13]), Time::ZERO).unwrap();
    run(&mut engine, ms(30.0));
    engine.submit(sharing(2, &[11, 12, 99]), ms(30.0)).unwrap();
    let mut events = run(&mut engine, ms(60.0));
    // 7 blocks of the first, 3 of the second beside the 4 that they share.
    assert_eq!(engine.metrics().gauges.kv_blocks_used, 10);
    events.extend(run(&mut engine, Time::MAX));
    assert_eq!(finished(&events, 2).unwrap().2.cached_tokens, 64);
    assert_eq!(engine.metrics().gauges.kv_blocks_used, 0, "what is only cached is free");

    engine.submit(sharing(3, &[11, 12, 13]), engine.last_step_end()).unwrap();
    let events = run(&mut engine, Time::MAX);
    assert_eq!(finished(&events, 3).unwrap().2.cached_tokens, 96);
    engine.abort_all(engine.last_step_end(), &mut |_| {});
    engine.submit(sharing(4, &[11, 12, 13]), engine.last_step_end()).unwrap();
    let events = run(&mut engine, Time::MAX);
    assert_eq!(finished(&events, 4).unwrap().2.cached_tokens, 0);
}

#[test]
fn what_no_engine_could_serve_is_refused_with_what_was_expected() {
    let mut engine = Engine::new(profile(|_| {}));
    let short_segments = Prefix::Segments { tokens: 24, hashes: Arc::new([1]) };
    for (request, message) in [
        (Request::new(1, 0, 1), "`prompt_tokens` is 0: expected at least 1 token"),
        (Request::new(1, 1, 0), "`output_tokens` is 0: expected at least 1 token"),
        (Request::new(1, 1_000, 25), "prompt and output are 1025 tokens: expected at most 1024"),
        (
            Request { max_tokens: 3, ..Request::new(1, 1, 4) },
            "`max_tokens` is 3: expected at least the 4 output tokens",
        ),
        (
            Request { prefix: short_segments, ..Request::new(1, 100, 4) },
            "segments of 24 tokens: expected a multiple of the 16 of a KV block",
        ),
    ] {
        assert_eq!(engine.submit(request, Time::ZERO).unwrap_err().to_string(), message);
    }
    assert_eq!(engine.in_flight(), 0);
}

/// An arrival for the property tests: milliseconds after the one before, prompt, output, and the
/// token up to which it stays (0: to its end).
type Arrival = (u64, u32, u32);

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let gap = prop_oneof![Just(0_u64), 0..40_u64, 100..900_u64];
    let prompt = prop_oneof![1..40_u32, 40..160_u32];
    prop::collection::vec((gap, prompt, 1..70_u32), 1..40)
}

prop_compose! {
    fn engines()(
        max_num_seqs in 1..12_usize,
        batched in 12..200_usize,
        threshold in prop_oneof![Just(0_usize), 5..60_usize],
        watermark_blocks in 0..3_usize,
        blocks in 16..40_usize,
        bend in 0..300_usize,
    ) -> Arc<Profile> {
        profile(|profile| {
            profile.kv.blocks = blocks;
            profile.limits = Limits {
                max_num_seqs,
                max_num_batched_tokens: batched,
                max_model_tokens: (blocks - 1) * 16,
                long_prefill_token_threshold: threshold,
                watermark_blocks,
            };
            profile.step.resident_ms = vec![(0, 0.0), (100 + bend, 0.2), (500 + bend, 1.7)];
        })
    }
}

fn play(engine: &mut Engine, arrivals: &[Arrival], watch: Watch, slice_ms: u64) -> Vec<Event> {
    let mut events = Vec::new();
    let mut now_ms = 0;
    let most = u32::try_from(engine.profile().limits.max_model_tokens).unwrap();
    for (id, &(gap_ms, prompt, output)) in (0..).zip(arrivals) {
        let arrival_ms = now_ms + gap_ms;
        while now_ms < arrival_ms {
            now_ms = (now_ms + slice_ms).min(arrival_ms);
            engine.advance(Time::from_millis(now_ms), watch, &mut |event| events.push(event));
        }
        let request = Request::new(id, prompt, output.min(most - prompt));
        engine.submit(request, Time::from_millis(now_ms)).unwrap();
    }
    engine.advance(Time::MAX, watch, &mut |event| events.push(event));
    events
}

proptest! {
    #[test]
    fn the_engine_does_what_the_scheduler_does_token_by_token(
        profile in engines(),
        arrivals in arrivals(),
    ) {
        let mut engine = Engine::new(Arc::clone(&profile));
        let events = play(&mut engine, &arrivals, Watch::EveryToken, 1_000_000);
        let mut reference = Reference::new(&profile);
        let expected = reference.play(&arrivals);
        let happened: Vec<_> = events.iter().filter_map(reference::brief).collect();
        prop_assert_eq!(happened, expected);
        prop_assert_eq!(engine.metrics().gauges.kv_blocks_used, 0);
        prop_assert_eq!(engine.in_flight(), 0);
    }

    #[test]
    fn neither_slices_nor_watching_change_what_happens(
        profile in engines(),
        arrivals in arrivals(),
        slice_ms in 1..200_u64,
        request_ms in 0..20_u8,
        token_ms in 0..4_u8,
    ) {
        let mut profile = Arc::unwrap_or_clone(profile);
        profile.frontend.request_ms = vec![(0, f64::from(request_ms))];
        profile.frontend.token_ms = f64::from(token_ms);
        let profile = Arc::new(profile);
        let mut watched = Engine::new(Arc::clone(&profile));
        let every = play(&mut watched, &arrivals, Watch::EveryToken, 1_000_000);
        let mut sliced = Engine::new(Arc::clone(&profile));
        let some = play(&mut sliced, &arrivals, Watch::FirstToken, slice_ms);
        let milestones: Vec<_> = every
            .into_iter()
            .filter(|event| !matches!(event, Event::Token { first: false, .. }))
            .collect();
        prop_assert_eq!(some, milestones);
        prop_assert_eq!(sliced.metrics(), watched.metrics());
        prop_assert_eq!(sliced.work(), watched.work());
    }
}
