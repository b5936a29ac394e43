//! The engines of a told case: what a step says becomes samples, as a scrape of each would give them.
//!
//! Deterministic. Must not share arithmetic with the core.

use std::collections::BTreeMap;
use std::sync::Arc;

use ghostscaler::decision::{EngineSample, KeptSample, Moment, Phase, Reading, Replicas, Why};
use ghostscaler::inventory::Member;
use ghostscaler::signals::freshness::Freshness;

use super::trace::{Exposes, Set, Signal, Silent, Stuck};

/// A step of an engine takes 20 ms, and half a millisecond for each running request's token.
const STEP_S: f64 = 0.020;
const TOKEN_S: f64 = 0.000_5;
/// Every request has this many prompt tokens, of 20 µs each, and generates as many.
const TOKENS: f64 = 200.0;
const PROMPT_TOKEN_S: f64 = 0.000_02;
/// What is ready when a case begins has been so for an hour.
const READY_BEFORE_MS: u64 = 3_600_000;

/// A fleet of engines.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    pods: Vec<Pod>,
    ordered: usize,
    n_made: usize,
    /// When the case began: what was ready then has been so for long.
    began_at: Option<Moment>,
}

#[derive(Debug)]
struct Pod {
    id: Arc<str>,
    phase: Phase,
    ready_at: Option<Moment>,
    /// When it will be ready, where that is not the steps' to say.
    due_at: Option<Moment>,
    sample: EngineSample,
    memory: Freshness,
}

/// What the engines do at one tick.
#[derive(Debug)]
pub(crate) struct Load<'a> {
    pub(crate) set: &'a Set,
    /// The tick's number in its step, and how much of the step has passed, 0..1.
    pub(crate) tick: usize,
    pub(crate) passed: f64,
}

impl Signal {
    /// The share of engine `index` of `n`; totals are dealt out one by one.
    fn of(&self, index: usize, n: usize, load: &Load<'_>) -> f64 {
        let total = match self {
            Signal::Each { each } => return each.get(index).copied().unwrap_or(0.0),
            Signal::Steady(total) => *total,
            Signal::Cycle { cycle } => cycle[load.tick % cycle.len()],
            Signal::Ramp { ramp: [from, to] } => from + (to - from) * load.passed,
        };
        let every = (total / n as f64).floor();
        every + (total - every * n as f64 - index as f64).clamp(0.0, 1.0)
    }

    /// The value for each engine alike.
    fn alike(&self, index: usize, load: &Load<'_>) -> f64 {
        match self {
            Signal::Each { each } => each.get(index).copied().unwrap_or(0.0),
            Signal::Steady(_) | Signal::Cycle { .. } | Signal::Ramp { .. } => self.of(0, 1, load),
        }
    }
}

impl Fleet {
    /// Makes `ready` of `spec` replicas serve, and the others start.
    pub(crate) fn set(&mut self, ready: usize, spec: usize, now: Moment) {
        // Somebody else may have made more than are ordered.
        self.resize(ready.max(spec), None);
        self.ordered = spec;
        for (index, pod) in self.pods.iter_mut().enumerate() {
            pod.due_at = None;
            pod.turn(if index < ready { Phase::Ready } else { Phase::Starting }, now);
            if self.began_at.is_none_or(|began_at| began_at == now) {
                pod.ready_at = pod.ready_at.map(|at| at.minus_millis(READY_BEFORE_MS));
            }
        }
        self.began_at.get_or_insert(now);
    }

    /// Orders `spec` replicas, of which new ones are ready at `due_at`.
    pub(crate) fn order(&mut self, spec: usize, due_at: Moment) {
        self.resize(spec, Some(due_at));
        self.ordered = spec;
    }

    fn resize(&mut self, spec: usize, due_at: Option<Moment>) {
        self.pods.truncate(spec);
        while self.pods.len() < spec {
            self.pods.push(Pod {
                id: format!("pod-{:03}", self.n_made).into(),
                phase: Phase::Starting,
                ready_at: None,
                due_at,
                sample: EngineSample::default(),
                memory: Freshness::default(),
            });
            self.n_made += 1;
        }
    }

    /// Puts single pods into another phase.
    pub(crate) fn turn(&mut self, phases: &BTreeMap<usize, Phase>, now: Moment) {
        for (index, phase) in phases {
            self.pods[*index].turn(*phase, now);
        }
    }

    /// Lets time pass until `now`, and reads every engine then.
    pub(crate) fn pass(&mut self, load: &Load<'_>, now: Moment) {
        for pod in &mut self.pods {
            if pod.phase == Phase::Starting && pod.due_at.is_some_and(|due_at| due_at <= now) {
                pod.turn(Phase::Ready, now);
            }
        }
        let n = self.pods.iter().filter(|pod| pod.phase == Phase::Ready).count();
        let mut place = 0;
        for (index, pod) in self.pods.iter_mut().enumerate() {
            if pod.phase != Phase::Ready {
                if pod.phase != Phase::Terminating {
                    pod.memory.fail(Why::Refused);
                }
                continue;
            }
            pod.work(index, load, (place, n), now);
            place += 1;
            match silence(load.set, index) {
                Some(why) => pod.memory.fail(why),
                None => pod.memory.record(exposed(&pod.sample, load.set.exposes), now),
            }
        }
    }

    /// The counts, as Kubernetes would give them.
    pub(crate) fn replicas(&self, set: &Set) -> Replicas {
        let count = |phase| {
            let n = self.pods.iter().filter(|pod| pod.phase == phase).count();
            u32::try_from(n).expect("a handful of pods")
        };
        let ordered = u32::try_from(self.ordered).expect("a handful of pods");
        Replicas {
            spec: Some(ordered),
            // As a cluster counts them: those beyond the order are no capacity.
            ready: count(Phase::Ready).min(ordered),
            starting: count(Phase::Starting),
            terminating: count(Phase::Terminating),
            unschedulable: set.unschedulable.unwrap_or(0),
            leaving: set.leaving.unwrap_or(0),
            ..Replicas::default()
        }
    }

    pub(crate) fn members(&self) -> Vec<Member> {
        let member = |pod: &Pod| Member {
            id: Arc::clone(&pod.id),
            phase: pod.phase,
            created_at: None,
            ready_at: pod.ready_at,
            endpoint: None,
            node: None,
        };
        self.pods.iter().map(member).collect()
    }

    pub(crate) fn reading(&self, id: &str, tick_ms: u64, now: Moment) -> Reading<KeptSample> {
        let pod = self.pods.iter().find(|pod| &*pod.id == id).expect("a member is a pod");
        pod.memory.reading(now, tick_ms)
    }
}

fn silence(set: &Set, index: usize) -> Option<Why> {
    match set.silent.as_ref()? {
        Silent::All(why) => Some(*why),
        Silent::Some(by_pod) => by_pod.get(&index).copied(),
    }
}

fn is_stuck(set: &Set, index: usize) -> bool {
    match &set.stuck {
        Some(Stuck::All(all)) => *all,
        Some(Stuck::Some(some)) => some.contains(&index),
        None => false,
    }
}

impl Pod {
    fn turn(&mut self, phase: Phase, now: Moment) {
        if phase == Phase::Ready && self.phase != Phase::Ready {
            self.ready_at = Some(now);
            self.sample = EngineSample { at: now, ..zeros() };
        }
        self.phase = phase;
    }

    /// Moves gauges to what the step says, and counters on by what they mean.
    fn work(&mut self, index: usize, load: &Load<'_>, place: (usize, usize), now: Moment) {
        let set = load.set;
        let seconds = now.secs_since(self.sample.at);
        let total = |signal: &Option<Signal>| {
            signal.as_ref().map_or(0.0, |signal| signal.of(place.0, place.1, load))
        };
        let (waiting, running) = (total(&set.waiting), total(&set.running));
        let asleep = set.asleep.as_ref().is_some_and(|asleep| asleep.contains(&index));
        let kv = set.kv.as_ref().map_or(0.005 * running, |kv| kv.alike(index, load));
        let works = running > 0.0 && !asleep && !is_stuck(set, index);
        let step_s = STEP_S + (TOKEN_S + PROMPT_TOKEN_S) * running;
        let steps = if works { seconds / step_s } else { 0.0 };
        let finished = steps * running / TOKENS;
        let sample = &mut self.sample;
        sample.at = now;
        sample.waiting = Some(waiting);
        sample.running = Some(if asleep { 0.0 } else { running });
        sample.kv_usage = Some(kv);
        sample.asleep = Some(asleep);
        let preemptions = set.preemptions_a_minute.unwrap_or(0.0) / 60.0 * seconds;
        for (counter, grown) in [
            (&mut sample.steps, steps),
            (&mut sample.generated_tokens, steps * running),
            (&mut sample.prompt_tokens, steps * running),
            (&mut sample.finished, finished),
            (&mut sample.finished_generated_tokens, finished * TOKENS),
            (&mut sample.preemptions, preemptions),
            (&mut sample.itl_sum_s, steps * running * step_s),
            (&mut sample.itl_count, steps * running),
            // Little's law: what waits, over time, is the time waited.
            (
                &mut sample.ttft_sum_s,
                if works { finished * step_s + waiting * seconds } else { 0.0 },
            ),
            (&mut sample.ttft_count, finished),
        ] {
            *counter = counter.map(|total| total + grown);
        }
    }
}

fn zeros() -> EngineSample {
    EngineSample {
        steps: Some(0.0),
        generated_tokens: Some(0.0),
        prompt_tokens: Some(0.0),
        finished: Some(0.0),
        finished_generated_tokens: Some(0.0),
        preemptions: Some(0.0),
        itl_sum_s: Some(0.0),
        itl_count: Some(0.0),
        ttft_sum_s: Some(0.0),
        ttft_count: Some(0.0),
        ..EngineSample::default()
    }
}

fn exposed(sample: &EngineSample, exposes: Option<Exposes>) -> EngineSample {
    let gauges = EngineSample {
        at: sample.at,
        waiting: sample.waiting,
        running: sample.running,
        kv_usage: sample.kv_usage,
        ..EngineSample::default()
    };
    match exposes.unwrap_or(Exposes::All) {
        Exposes::All => *sample,
        Exposes::Gauges => gauges,
        Exposes::Counters => {
            EngineSample { waiting: None, running: None, kv_usage: None, ..*sample }
        }
        Exposes::Nothing => EngineSample { at: sample.at, ..EngineSample::default() },
    }
}
