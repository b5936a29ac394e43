//! Small builders for observations.
//!
//! Must not hide a number that a test is about.

use crate::decision::kept::Edit;
use crate::decision::{
    Answer, Decision, Engine, EngineSample, KeptSample, Moment, Observation, Phase, Reading,
    Reason, Replicas, Rule, Spec, State, Why, decide,
};

/// A workload under test: a spec, its state, its replicas, and a clock.
#[derive(Debug, Clone)]
pub(super) struct Bench {
    pub(super) spec: Spec,
    pub(super) state: State,
    pub(super) seen: Observation,
    pub(super) now: Moment,
    /// Whether the scale target follows the answer at once, and replicas are ready at once.
    pub(super) obeys: bool,
    pub(super) last: Option<Decision>,
}

/// An engine with nothing to do, whose counters can be moved by tests.
pub(super) fn idle_sample() -> EngineSample {
    EngineSample {
        waiting: Some(0.0),
        running: Some(0.0),
        kv_usage: Some(0.0),
        prompt_tokens: Some(0.0),
        generated_tokens: Some(0.0),
        finished: Some(0.0),
        finished_generated_tokens: Some(0.0),
        preemptions: Some(0.0),
        steps: Some(0.0),
        ..EngineSample::default()
    }
}

/// What each replica does per second.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Does {
    pub(super) waiting: f64,
    pub(super) running: f64,
    pub(super) kv: f64,
    pub(super) generated: f64,
    pub(super) prompt: f64,
    pub(super) finished: f64,
    pub(super) preemptions: f64,
    pub(super) steps: f64,
}

impl Does {
    /// Serves `running` requests at 20 tokens/s each, 200 tokens long.
    pub(super) fn serving(running: f64) -> Does {
        Does {
            running,
            kv: 0.005 * running,
            generated: 20.0 * running,
            prompt: 20.0 * running,
            finished: 0.1 * running,
            steps: if running > 0.0 { 20.0 } else { 0.0 },
            ..Does::default()
        }
    }

    pub(super) fn waiting(self, waiting: f64) -> Does {
        Does { waiting, ..self }
    }

    pub(super) fn kv(self, kv: f64) -> Does {
        Does { kv, ..self }
    }
}

impl Bench {
    /// `n` replicas, ready for long.
    pub(super) fn new(n: u32) -> Bench {
        let mut bench = Bench {
            spec: Spec::default(),
            state: State::default(),
            seen: Observation::default(),
            now: Moment(1_000_000_000),
            obeys: true,
            last: None,
        };
        bench.replicas(n);
        bench
    }

    pub(super) fn spec(mut self, change: impl FnOnce(&mut Spec)) -> Bench {
        change(&mut self.spec);
        self
    }

    /// The fleet ignores what is wanted.
    pub(super) fn deaf(mut self) -> Bench {
        self.obeys = false;
        self
    }

    /// Makes the fleet `n` ready replicas.
    pub(super) fn replicas(&mut self, n: u32) {
        self.seen.replicas = Replicas { spec: Some(n), ready: n, ..Replicas::default() };
        let mut engines = std::mem::take(&mut self.seen.engines).into_vec();
        engines.truncate(usize::try_from(n).unwrap());
        for index in engines.len()..usize::try_from(n).unwrap() {
            engines.push(Engine {
                id: format!("pod-{index:03}").into(),
                phase: Phase::Ready,
                ready_ms: Some(3_600_000),
                reading: Reading::Fresh { value: KeptSample::from(idle_sample()), age_ms: 0 },
            });
        }
        self.seen.engines = engines.into();
    }

    pub(super) fn sample(&mut self, index: usize) -> Edit<'_> {
        match &mut self.seen.engines[index].reading {
            Reading::Fresh { value, .. } | Reading::Stale { value, .. } => value.edit(),
            Reading::Missing { .. } => panic!("no sample"),
        }
    }

    /// Lets `millis` pass in which replica `i` does `does(i)`, without deciding.
    pub(super) fn pass(&mut self, millis: u64, does: impl Fn(usize) -> Does) {
        self.now = self.now.plus_millis(millis);
        let (now, seconds) = (self.now, millis as f64 / 1_000.0);
        for index in 0..self.seen.engines.len() {
            let Reading::Fresh { value, .. } = &mut self.seen.engines[index].reading else {
                continue;
            };
            let (does, mut edit) = (does(index), value.edit());
            let value = &mut *edit;
            value.at = now;
            value.waiting = value.waiting.map(|_| does.waiting);
            value.running = value.running.map(|_| does.running);
            value.kv_usage = value.kv_usage.map(|_| does.kv);
            for (counter, rate) in [
                (&mut value.generated_tokens, does.generated),
                (&mut value.prompt_tokens, does.prompt),
                (&mut value.finished, does.finished),
                (&mut value.finished_generated_tokens, does.finished * 200.0),
                (&mut value.preemptions, does.preemptions),
                (&mut value.steps, does.steps),
            ] {
                *counter = counter.map(|total| total + rate * seconds);
            }
        }
    }

    /// Decides now.
    pub(super) fn decide(&mut self) -> Decision {
        let state = std::mem::take(&mut self.state);
        let (decision, state) = decide(&self.spec, state, &self.seen, self.now);
        self.state = state;
        if self.obeys && self.seen.replicas.spec.is_some_and(|spec| spec != decision.want) {
            self.replicas(decision.want);
        }
        self.last = Some(decision.clone());
        decision
    }

    /// One tick of five seconds.
    pub(super) fn tick(&mut self, does: impl Fn(usize) -> Does) -> Decision {
        self.pass(self.spec.tick_ms, does);
        self.decide()
    }

    /// Ticks for `seconds`; the wants in order.
    pub(super) fn run(&mut self, seconds: u64, does: impl Fn(usize) -> Does + Copy) -> Vec<u32> {
        let ticks = seconds * 1_000 / self.spec.tick_ms;
        (0..ticks).map(|_| self.tick(does).want).collect()
    }

    /// Makes every reading stale.
    pub(super) fn lose(&mut self) {
        for engine in &mut self.seen.engines {
            if let Reading::Fresh { value, .. } = &engine.reading {
                let value = value.clone();
                engine.reading = Reading::Stale { value, age_ms: 60_000, why: Why::Timeout };
            }
        }
    }

    /// Makes every reading fresh again.
    pub(super) fn find(&mut self) {
        for engine in &mut self.seen.engines {
            if let Reading::Stale { value, .. } = &engine.reading {
                let value = value.clone();
                engine.reading = Reading::Fresh { value, age_ms: 0 };
            }
        }
    }
}

/// What a rule wanted.
pub(super) fn wanted(decision: &Decision, rule: Rule) -> Option<u32> {
    decision.votes.iter().find(|vote| vote.rule == rule).and_then(|vote| vote.want)
}

/// Why a rule said what it said.
pub(super) fn reason(decision: &Decision, rule: Rule) -> Reason {
    let vote = decision.votes.iter().find(|vote| vote.rule == rule);
    vote.map_or(Reason::Silent, |vote| vote.reason)
}

/// A value answer.
pub(super) fn value(want: u32) -> Answer {
    Answer::Value { want, active: want > 0 }
}
