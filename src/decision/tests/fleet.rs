//! A simulated fleet: linear engines, a least-loaded balancer, cold starts, an HPA that obeys.
//!
//! Deterministic. Coarse on purpose (whole slices of a second): the core reads means of five
//! seconds. Must not share arithmetic with the core.

use std::collections::VecDeque;

use crate::decision::{
    CostModel, Decision, Engine, EngineSample, Interval, KeptSample, Moment, Observation, Phase,
    Reading, Replicas, Spec, State, decide,
};

const SLICE_S: f64 = 0.5;

/// The engine's true cost of a step, and its limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Truth {
    pub(super) step_s: f64,
    pub(super) prompt_s: f64,
    pub(super) token_s: f64,
    pub(super) max_running: usize,
}

/// One replica saturates at 1/(200·0.1 ms + 100·1 ms) = 8.3 requests/s of 200 in, 100 out.
pub(super) const TRUTH: Truth =
    Truth { step_s: 0.010, prompt_s: 0.000_1, token_s: 0.001, max_running: 64 };
pub(super) const PROMPT: f64 = 200.0;
pub(super) const OUTPUT: f64 = 100.0;
/// Replica-seconds of one mean request: 200·0.0001 + 100·0.001.
pub(super) const REQUEST_S: f64 = 0.12;

/// Pseudo-random numbers that are the same everywhere (xorshift).
#[derive(Debug, Clone)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    /// Uniform in 0..1.
    pub(super) fn roll(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Exponential with mean 1.
    fn wait(&mut self) -> f64 {
        -(1.0 - self.roll()).ln()
    }
}

#[derive(Debug, Clone)]
struct Replica {
    id: String,
    ready_at_s: f64,
    waiting: VecDeque<f64>,
    running: Vec<f64>,
    sample: EngineSample,
}

/// The fleet and the loop around it.
#[derive(Debug, Clone)]
pub(super) struct Fleet {
    pub(super) spec: Spec,
    pub(super) state: State,
    pub(super) now_s: f64,
    pub(super) cold_start_s: f64,
    /// Noise on every input, as a share.
    pub(super) noise: f64,
    /// Poisson arrivals, or evenly spaced ones.
    pub(super) random: bool,
    replicas: Vec<Replica>,
    n_started: u32,
    next_arrival_s: f64,
    /// Requests per second at which it was foreseen.
    rate: f64,
    dice: Dice,
    noise_dice: Dice,
    pub(super) wants: Vec<u32>,
    pub(super) decisions: Vec<Decision>,
    /// Waiting over all replicas at each tick.
    pub(super) queued: Vec<usize>,
}

impl Fleet {
    pub(super) fn new(n: u32) -> Fleet {
        let mut fleet = Fleet {
            spec: Spec { max: 20, ..Spec::default() },
            state: State::default(),
            now_s: 0.0,
            cold_start_s: 120.0,
            noise: 0.0,
            random: false,
            replicas: Vec::new(),
            n_started: 0,
            next_arrival_s: 0.0,
            rate: 0.0,
            dice: Dice(0x9E37_79B9_7F4A_7C15),
            noise_dice: Dice(0xD1B5_4A32_D192_ED03),
            wants: Vec::new(),
            decisions: Vec::new(),
            queued: Vec::new(),
        };
        for _ in 0..n {
            fleet.start(-3_600.0);
        }
        fleet
    }

    pub(super) fn seed(mut self, seed: u64) -> Fleet {
        self.dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        self.noise_dice = Dice(seed.wrapping_mul(0xD1B5_4A32_D192_ED03) | 1);
        self
    }

    /// With the cost model already learned.
    pub(super) fn learned(mut self) -> Fleet {
        self.state.cost = learned(&TRUTH);
        self
    }

    pub(super) fn spec(mut self, change: impl FnOnce(&mut Spec)) -> Fleet {
        change(&mut self.spec);
        self
    }

    pub(super) fn ordered(&self) -> u32 {
        u32::try_from(self.replicas.len()).unwrap()
    }

    fn start(&mut self, ready_at_s: f64) {
        let id = format!("pod-{:04}", self.n_started);
        self.n_started += 1;
        let sample = EngineSample {
            waiting: Some(0.0),
            running: Some(0.0),
            kv_usage: Some(0.0),
            prompt_tokens: Some(0.0),
            generated_tokens: Some(0.0),
            finished: Some(0.0),
            finished_generated_tokens: Some(0.0),
            steps: Some(0.0),
            itl_sum_s: Some(0.0),
            itl_count: Some(0.0),
            max_running: Some(64.0),
            ..EngineSample::default()
        };
        let (waiting, running) = (VecDeque::new(), Vec::new());
        self.replicas.push(Replica { id, ready_at_s, waiting, running, sample });
    }

    /// Sets the scale target's spec, as the HPA does: the newest replicas go first, their
    /// requests go back to the others.
    pub(super) fn scale(&mut self, to: u32) {
        while self.ordered() < to {
            self.start(self.now_s + self.cold_start_s);
        }
        while self.ordered() > to {
            let gone = self.replicas.pop().unwrap();
            for output in gone.waiting.into_iter().chain(gone.running) {
                self.arrive(output);
            }
        }
    }

    /// The counters of the oldest replica begin anew; what it had is lost.
    pub(super) fn restart_one(&mut self) {
        let started_at = moment(self.now_s);
        if let Some(replica) = self.replicas.first_mut() {
            replica.waiting.clear();
            replica.running.clear();
            let of = |counter: Option<f64>| counter.map(|_| 0.0);
            let before = replica.sample;
            replica.sample = EngineSample {
                started_at: Some(started_at),
                prompt_tokens: of(before.prompt_tokens),
                generated_tokens: of(before.generated_tokens),
                finished: of(before.finished),
                finished_generated_tokens: of(before.finished_generated_tokens),
                steps: of(before.steps),
                itl_sum_s: of(before.itl_sum_s),
                itl_count: of(before.itl_count),
                ..before
            };
        }
    }

    fn arrive(&mut self, output: f64) {
        let now_s = self.now_s;
        let ready = self.replicas.iter_mut().filter(|replica| replica.ready_at_s <= now_s);
        if let Some(replica) = ready.min_by_key(|r| r.waiting.len() + r.running.len()) {
            replica.waiting.push_back(output);
        }
    }

    fn slice(&mut self, requests_per_s: f64) {
        if (requests_per_s - self.rate).abs() > f64::EPSILON {
            self.rate = requests_per_s;
            self.next_arrival_s = self.next_arrival_s.min(self.now_s + 1.0 / requests_per_s);
        }
        self.now_s += SLICE_S;
        while requests_per_s > 0.0 && self.next_arrival_s <= self.now_s {
            let output = OUTPUT * (0.5 + self.dice.roll());
            self.arrive(output);
            let gap = if self.random { self.dice.wait() } else { 1.0 };
            self.next_arrival_s =
                self.next_arrival_s.max(self.now_s - SLICE_S) + gap / requests_per_s;
        }
        let now_s = self.now_s;
        for replica in &mut self.replicas {
            if replica.ready_at_s <= now_s {
                replica.work(&TRUTH);
            }
        }
    }

    /// What one tick sees, with noise on every rate and gauge.
    pub(super) fn observe(&mut self) -> Observation {
        let now_s = self.now_s;
        let ready = self.replicas.iter().filter(|replica| replica.ready_at_s <= now_s).count();
        let ready = u32::try_from(ready).unwrap();
        let ordered = self.ordered();
        let mut engines = Vec::new();
        for replica in &self.replicas {
            let up = replica.ready_at_s <= now_s;
            let mut value = replica.sample;
            value.at = moment(now_s);
            value.waiting = Some(replica.waiting.len() as f64);
            value.running = Some(replica.running.len() as f64);
            value.kv_usage = Some((replica.running.len() as f64 * 0.005).min(1.0));
            for gauge in [&mut value.waiting, &mut value.running, &mut value.kv_usage] {
                let noise = 1.0 + self.noise * (2.0 * self.noise_dice.roll() - 1.0);
                *gauge = gauge.map(|value| value * noise);
            }
            engines.push(Engine {
                id: replica.id.as_str().into(),
                phase: if up { Phase::Ready } else { Phase::Starting },
                ready_ms: up.then(|| millis(now_s - replica.ready_at_s)),
                reading: if up {
                    Reading::Fresh { value: KeptSample::from(value), age_ms: 0 }
                } else {
                    Reading::Missing { why: crate::decision::Why::Refused }
                },
            });
        }
        engines.sort_by(|one, two| one.id.cmp(&two.id));
        let starting = ordered - ready;
        let replicas = Replicas { spec: Some(ordered), ready, starting, ..Replicas::default() };
        Observation { replicas, engines: engines.into(), ..Observation::default() }
    }

    /// One tick at this rate of requests; the HPA follows every third.
    pub(super) fn tick(&mut self, requests_per_s: f64) -> Decision {
        self.advance(requests_per_s);
        let observation = self.observe();
        self.decide(&observation)
    }

    /// Lets one tick pass without deciding.
    pub(super) fn advance(&mut self, requests_per_s: f64) {
        let before: Vec<EngineSample> = self.replicas.iter().map(|r| r.sample).collect();
        for _ in 0..10 {
            self.slice(requests_per_s);
        }
        for (replica, before) in self.replicas.iter_mut().zip(before) {
            let noise = 1.0 + self.noise * (2.0 * self.noise_dice.roll() - 1.0);
            replica.sample.blur(&before, noise);
        }
    }

    pub(super) fn decide(&mut self, observation: &Observation) -> Decision {
        let state = std::mem::take(&mut self.state);
        let (decision, state) = decide(&self.spec, state, observation, moment(self.now_s));
        self.state = state;
        self.wants.push(decision.want);
        self.queued.push(self.replicas.iter().map(|replica| replica.waiting.len()).sum());
        self.decisions.push(decision.clone());
        if self.wants.len().is_multiple_of(3) {
            self.scale(decision.want);
        }
        decision
    }

    pub(super) fn run(&mut self, seconds: f64, requests_per_s: f64) -> Vec<u32> {
        let ticks = (seconds / 5.0).ceil();
        let mut wants = Vec::new();
        let mut tick = 0.0;
        while tick < ticks {
            wants.push(self.tick(requests_per_s).want);
            tick += 1.0;
        }
        wants
    }
}

impl Replica {
    /// One slice: admit, pay for the prompts, then step until the slice is over.
    fn work(&mut self, truth: &Truth) {
        let mut left_s = SLICE_S;
        while self.running.len() < truth.max_running && left_s > 0.0 {
            let Some(output) = self.waiting.pop_front() else {
                break;
            };
            self.running.push(output);
            left_s -= PROMPT * truth.prompt_s;
            add(&mut self.sample.prompt_tokens, PROMPT);
        }
        let n = self.running.len() as f64;
        if n < 1.0 {
            return;
        }
        let step_s = truth.step_s + truth.token_s * n;
        let steps = (left_s / step_s).max(0.0);
        add(&mut self.sample.steps, SLICE_S / step_s * (left_s / SLICE_S).max(0.0));
        add(&mut self.sample.generated_tokens, steps * n);
        add(&mut self.sample.itl_sum_s, SLICE_S * n);
        add(&mut self.sample.itl_count, steps * n);
        let sample = &mut self.sample;
        self.running.retain_mut(|output| {
            *output -= steps;
            let done = *output <= 0.0;
            if done {
                add(&mut sample.finished, 1.0);
                add(&mut sample.finished_generated_tokens, OUTPUT);
            }
            !done
        });
    }
}

impl EngineSample {
    /// Scales what the counters grew by.
    fn blur(&mut self, before: &EngineSample, noise: f64) {
        for (after, before) in [
            (&mut self.prompt_tokens, before.prompt_tokens),
            (&mut self.generated_tokens, before.generated_tokens),
            (&mut self.finished, before.finished),
            (&mut self.finished_generated_tokens, before.finished_generated_tokens),
        ] {
            *after = after.zip(before).map(|(after, before)| before + (after - before) * noise);
        }
    }
}

fn add(counter: &mut Option<f64>, part: f64) {
    *counter = counter.map(|total| total + part);
}

pub(super) fn moment(seconds: f64) -> Moment {
    Moment(1_800_000_000_000).plus_millis(millis(seconds))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "simulated seconds")]
fn millis(seconds: f64) -> u64 {
    (seconds * 1_000.0).round() as u64
}

/// A model that has seen this engine at many loads and mixes.
pub(super) fn learned(truth: &Truth) -> CostModel {
    let mut model = CostModel::default();
    for round in 0..40_u32 {
        for (running, prompt) in [(1.0, 2.0), (4.0, 10.0), (16.0, 3.0), (32.0, 60.0), (60.0, 20.0)]
        {
            let kv = 0.005 * running;
            let step_s = truth.step_s + truth.prompt_s * prompt + truth.token_s * running;
            let steps = 5.0 / step_s * (1.0 + 0.01 * f64::from(round % 3));
            model.observe(
                &Interval {
                    seconds: 5.0,
                    steps,
                    prompts: None,
                    first_tokens_s: None,
                    prompt: prompt * steps,
                    generated: running * steps,
                    kv,
                },
                1.0,
            );
            model.refit();
        }
    }
    model
}
