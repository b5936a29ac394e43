//! Laws of queues that hold for any server, put to the engine.

use std::sync::Arc;

use loadgen::engine::{Engine, Event, Kv, Profile, Request, Step, Time, Watch, secs_from_ps};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

fn profile(max_num_seqs: usize, step: Step) -> Arc<Profile> {
    let mut profile = Profile::load("8b-a100").expect("a preset");
    profile.kv = Kv { block_tokens: 16, blocks: 1 << 20, prefix_caching: true };
    profile.limits.max_num_seqs = max_num_seqs;
    profile.limits.max_num_batched_tokens = 4_096;
    profile.step = step;
    Arc::new(profile)
}

/// Poisson arrivals; each request's prompt and output come from `lengths`.
struct Poisson {
    rng: Pcg64Mcg,
    rate_per_s: f64,
    next_s: f64,
}

impl Poisson {
    fn new(rate_per_s: f64) -> Poisson {
        Poisson { rng: Pcg64Mcg::seed_from_u64(11), rate_per_s, next_s: 0.0 }
    }

    fn uniform(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn next(&mut self) -> Time {
        self.next_s -= (1.0 - self.uniform()).ln() / self.rate_per_s;
        Time::from_secs_f64(self.next_s)
    }
}

/// What a run has shown; seconds.
#[derive(Debug, Default)]
struct Run {
    mean_in_system_s: f64,
    mean_in_flight: f64,
    busy_s: f64,
}

/// Runs so many requests through an engine, to its last.
fn run(engine: &mut Engine, rate: f64, n: u64, lengths: impl Fn(f64) -> (u32, u32)) -> Run {
    let mut arrivals = Poisson::new(rate);
    let (mut in_system_s, mut requests_s, mut busy_s) = (0.0, 0.0, 0.0);
    let mut now = Time::ZERO;
    let mut in_flight = 0_u32;
    let mut pass = |engine: &mut Engine, to: Time, arrived: u32| {
        let (requests, busy) = (&mut requests_s, &mut busy_s);
        engine.advance(to, Watch::FirstToken, &mut |event| {
            if let Event::Finished { at, served, .. } = event {
                in_system_s += secs_from_ps(at.since(served.arrival));
                *requests += f64::from(in_flight) * secs_from_ps(at.since(now));
                *busy += secs_from_ps(at.since(now));
                now = at;
                in_flight -= 1;
            }
        });
        if to < Time::MAX {
            requests_s += f64::from(in_flight) * secs_from_ps(to.since(now));
            busy_s += if in_flight > 0 { secs_from_ps(to.since(now)) } else { 0.0 };
            now = to;
        }
        in_flight += arrived;
    };
    let mut last = Time::ZERO;
    for id in 0..n {
        let arrival = arrivals.next();
        let (prompt, output) = lengths(arrivals.uniform());
        pass(engine, arrival, 1);
        let request = Request::new(id, prompt, output);
        engine.submit(request, arrival).expect("lengths that fit");
        last = arrival;
    }
    pass(engine, Time::MAX, 0);
    let span_s = engine.last_step_end().max(last).as_secs_f64();
    Run { mean_in_system_s: in_system_s / n as f64, mean_in_flight: requests_s / span_s, busy_s }
}

#[test]
fn one_at_a_time_with_equal_times_waits_as_an_m_d_1_queue() {
    let step = Step {
        base_ms: 60.0,
        prefill_ms: vec![(0, 0.0), (1_000, 40.0)],
        decode_ms: vec![(0, 0.0)],
        resident_ms: vec![(0, 0.0)],
        attention_ns: 0.0,
    };
    let service_s = 0.1;
    for load in [0.5, 0.8] {
        let mut engine = Engine::new(profile(1, step.clone()));
        let n = 60_000;
        run(&mut engine, load / service_s, n, |_| (1_000, 1));
        let waited = engine.metrics().queue_time.sum() as f64 / 1e12 / n as f64;
        let expected = load * service_s / (2.0 * (1.0 - load));
        assert!((waited / expected - 1.0).abs() < 0.05, "{load}: {waited} s, {expected} s");
    }
}

#[test]
fn a_batch_that_shares_a_constant_rate_is_processor_sharing() {
    // A step takes 1 ms for each request in it: each gets its share of 1,000 tokens a second.
    let step = Step {
        base_ms: 0.001,
        prefill_ms: vec![(0, 0.0)],
        decode_ms: vec![(0, 0.0), (1_000, 1_000.0)],
        resident_ms: vec![(0, 0.0)],
        attention_ns: 0.0,
    };
    let load = 0.7;
    let (mean_s, rate) = (0.2, load / 0.2);
    let expected = mean_s / (1.0 - load);
    // Processor sharing does not feel the distribution, only its mean of 200 tokens.
    for (short, long, share_long) in [(200, 200, 0.0), (101, 1_091, 0.1)] {
        let mut engine = Engine::new(profile(4_096, step.clone()));
        let lengths = |u: f64| (1, if u < share_long { long } else { short } + 1);
        let in_system = run(&mut engine, rate, 60_000, lengths).mean_in_system_s;
        assert!(
            (in_system / expected - 1.0).abs() < 0.06,
            "{short}/{long}: {in_system} s, {expected} s"
        );
    }
}

#[test]
fn no_work_is_lost_and_nothing_rests_while_somebody_waits() {
    let step = Step {
        base_ms: 12.5,
        prefill_ms: vec![(0, 0.0), (1_000, 67.0)],
        decode_ms: vec![(0, 0.0), (1_000, 67.0)],
        resident_ms: vec![(0, 0.0), (1_000_000, 82.0)],
        attention_ns: 0.0,
    };
    let mut engine = Engine::new(profile(64, step));
    let seen = run(&mut engine, 5.0, 5_000, |u| if u < 0.5 { (300, 150) } else { (1_500, 20) });
    let metrics = engine.metrics();
    let work = engine.work();
    assert_eq!(metrics.finished_length, 5_000);
    assert_eq!(metrics.preemptions, 0);
    assert_eq!(work.prefill_ps, metrics.prompt_tokens * 67_000_000);
    let decoded = metrics.generation_tokens - 5_000;
    assert_eq!(work.decode_ps, decoded * 67_000_000, "all tokens but the first ones");
    let busy_s = secs_from_ps(work.total_ps());
    assert!((busy_s - seen.busy_s).abs() < 1e-6 * busy_s, "{busy_s} s, {} s", seen.busy_s);
    // Little's law.
    let span_s = engine.last_step_end().as_secs_f64();
    let expected = 5_000.0 / span_s * seen.mean_in_system_s;
    assert!((seen.mean_in_flight / expected - 1.0).abs() < 1e-9, "{seen:?}, {expected}");
}
