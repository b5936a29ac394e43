//! How much faster than real time one busy replica is simulated:
//! `cargo bench -p loadgen --bench engine`.
//!
//! Each iteration is an hour of a replica near its capacity on one thread. An element of the
//! throughput is a simulated second, so `thrpt` *is* the ratio to real time; the bar of 3,000 is
//! 3 Kelem/s, an hour in 1.2 s.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use loadgen::engine::{Engine, Profile, Request, Time, Watch};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

const HOUR_S: u32 = 3_600;

/// An hour of Poisson arrivals; half of the lengths are half their mean, half are one and a half.
fn hour(profile: &Arc<Profile>, rate_per_s: f64, prompt: u32, output: u32, watch: Watch) -> u64 {
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let mut uniform = || (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let mut engine = Engine::new(Arc::clone(profile));
    let (mut now_s, mut id, mut events) = (0.0, 0, 0);
    while now_s < f64::from(HOUR_S) {
        let now = Time::from_secs_f64(now_s);
        engine.advance(now, watch, &mut |_| events += 1);
        let mut length = |mean: u32| mean / 2 + u32::from(uniform() < 0.5) * mean;
        let request = Request::new(id, length(prompt), length(output));
        engine.submit(request, now).expect("the profile's context is longer");
        id += 1;
        now_s -= (1.0 - uniform()).ln() / rate_per_s;
    }
    engine.advance(Time::MAX, watch, &mut |_| events += 1);
    events
}

fn benches(c: &mut Criterion) {
    let profile = Arc::new(Profile::load("8b-a100").expect("a preset"));
    let mut group = c.benchmark_group("engine, one hour");
    group.sample_size(10);
    group.throughput(Throughput::Elements(HOUR_S.into()));
    // Chat: some 150 decode at once. Code: long prompts, short outputs. Both at 85 % of capacity.
    for (name, rate, prompt, output) in [("chat", 8.5, 1_000, 210), ("code", 6.0, 2_000, 28)] {
        group.bench_function(name, |b| {
            b.iter(|| hour(black_box(&profile), rate, prompt, output, Watch::FirstToken));
        });
    }
    group.bench_function("chat, every token reported", |b| {
        b.iter(|| hour(black_box(&profile), 8.5, 1_000, 210, Watch::EveryToken));
    });
    group.finish();
}

criterion_group!(engine, benches);
criterion_main!(engine);
