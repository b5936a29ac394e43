//! What a tick costs: decisions of 10,000 workloads, and one update of the cost model.
//!
//! Must not measure anything that a tick of `serve` does not do.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ghostscaler::decision::{
    CostModel, Engine, EngineSample, Interval, KeptSample, Moment, Observation, Phase, Reading,
    Replicas, Spec, State, decide,
};

const WORKLOADS: u32 = 10_000;
const TICK_MS: u64 = 5_000;

/// One workload whose engine serves a load that varies from minute to minute.
struct Workload {
    state: Option<State>,
    observation: Observation,
    now: Moment,
    tick: u32,
}

impl Workload {
    fn new(n_replicas: u32) -> Workload {
        let engines = (0..n_replicas).map(|index| Engine {
            id: format!("model-7c9f8d6b5-{index:05}").into(),
            phase: Phase::Ready,
            ready_ms: Some(3_600_000),
            reading: Reading::Fresh {
                value: KeptSample::from(EngineSample::default()),
                age_ms: 10,
            },
        });
        Workload {
            state: Some(State::default()),
            observation: Observation {
                replicas: Replicas {
                    spec: Some(n_replicas),
                    ready: n_replicas,
                    ..Replicas::default()
                },
                engines: engines.collect(),
                ..Observation::default()
            },
            now: Moment(1_800_000_000_000),
            tick: 0,
        }
    }

    fn step(&mut self, spec: &Spec) -> u32 {
        self.now = self.now.plus_millis(TICK_MS);
        self.tick += 1;
        let running = 1.0 + f64::from(self.tick / 12 % 30);
        for engine in &mut self.observation.engines {
            if let Reading::Fresh { value, .. } = &mut engine.reading {
                let mut value = value.edit();
                let steps = 5.0 / (0.010 + 0.001 * running);
                let grow = |counter: &mut Option<f64>, part: f64| {
                    *counter = Some(counter.unwrap_or(0.0) + part);
                };
                value.at = self.now;
                value.waiting = Some(0.0);
                value.running = Some(running);
                value.kv_usage = Some(0.01 * running);
                grow(&mut value.steps, steps);
                grow(&mut value.generated_tokens, steps * running);
                grow(&mut value.prompt_tokens, 2.0 * steps * running);
                grow(&mut value.finished, 0.01 * steps * running);
                grow(&mut value.finished_generated_tokens, steps * running);
                grow(&mut value.itl_sum_s, 5.0 * running);
                grow(&mut value.itl_count, steps * running);
            }
        }
        let state = self.state.take().unwrap_or_default();
        let (decision, state) = decide(spec, state, &self.observation, self.now);
        self.state = Some(state);
        decision.want
    }
}

fn workloads(n_replicas: u32, spec: &Spec) -> Vec<Workload> {
    let mut workloads: Vec<Workload> = (0..WORKLOADS).map(|_| Workload::new(n_replicas)).collect();
    // Windows, histories and the cost model are filled before anything is measured.
    for workload in &mut workloads {
        for _ in 0..400 {
            workload.step(spec);
        }
    }
    workloads
}

fn one_tick(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one tick of 10,000 workloads");
    group.throughput(Throughput::Elements(u64::from(WORKLOADS)));
    group.sample_size(20);
    for n_replicas in [1, 8] {
        let spec = Spec { min: n_replicas, max: 16, ..Spec::default() };
        let mut workloads = workloads(n_replicas, &spec);
        group.bench_function(format!("{n_replicas} replica(s)"), |bencher| {
            bencher.iter(|| {
                for workload in &mut workloads {
                    black_box(workload.step(&spec));
                }
            });
        });
    }
    group.finish();
}

fn cost_model(criterion: &mut Criterion) {
    let mut model = CostModel::default();
    let mut running = 0.0;
    criterion.bench_function("one update of the cost model", |bencher| {
        bencher.iter(|| {
            running = (running + 1.0) % 30.0;
            let steps = 5.0 / (0.011 + 0.001 * running);
            let generated = steps * (1.0 + running);
            let interval = Interval {
                seconds: 5.0,
                steps,
                prompts: None,
                first_tokens_s: None,
                prompt: 100.0,
                generated,
                kv: 0.01 * running,
            };
            model.observe(black_box(&interval), 1.0);
            model.refit();
        });
    });
}

criterion_group!(benches, one_tick, cost_model);
criterion_main!(benches);
