//! Replays a told case: metadata, freshness, observation and decision are the real ones.
//!
//! Must not judge; `expect` does.

use std::collections::{BTreeMap, BTreeSet};

use ghostscaler::decision::{
    Answer, COLD_START_UNSEEN_MS, Decision, Gpu, GpuSample, Moment, Observation, Spec, State, Wake,
    WakeReading, decide,
};
use ghostscaler::inventory::{Counted, Kubernetes, Workload, WorkloadKey};
use ghostscaler::observe::{Around, observe};
use ghostscaler::schedule::WarmSchedule;
use ghostscaler::trigger::{self, ByHand, Context};
use jiff::Timestamp;
use serde_saphyr::NonFiniteFloatPolicy;

use super::Fault;
use super::expect::{self, Span};
use super::fleet::{Fleet, Load};
use super::trace::{Arrives, Devices, Run, Set, Setting, Step, Trace};

/// The wake source that the process of a told case has configured.
const WAKE_SOURCE: &str = "gateway";

/// Replays every run of a case.
pub(crate) fn replay(text: &str) -> Result<(), Fault> {
    // A sample may hold what is no number.
    let options = serde_saphyr::options! {
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
    };
    let trace: Trace = serde_saphyr::from_str_with_options(text, options)?;
    for run in &trace.runs {
        let mut replay = Replay::new(run)?;
        for (index, step) in run.steps.iter().enumerate() {
            replay
                .step(run, step)
                .map_err(|fault| format!("{}, step {}: {fault}", run.what, index + 1))?;
        }
    }
    Ok(())
}

struct Replay {
    spec: Spec,
    schedule: Option<WarmSchedule>,
    by_hand: Option<ByHand>,
    state: State,
    workload: Workload,
    fleet: Fleet,
    set: Set,
    start: Moment,
    now: Moment,
    arrived_at: Option<Moment>,
    gpu_seen_at: Option<Moment>,
    last: Option<Decision>,
}

impl Replay {
    fn new(run: &Run) -> Result<Replay, Fault> {
        let mut workload = Workload {
            key: WorkloadKey::new("field", "llm"),
            min: 1,
            max: 8,
            fallback_replicas: None,
            triggers: Vec::new(),
            replicas: ghostscaler::decision::Replicas::default(),
            members: Vec::new(),
            counted: Counted::ByKubernetes,
            gpus_per_replica: None,
            paused: false,
            kubernetes: Kubernetes::default(),
        };
        let mut metadata = BTreeMap::new();
        for (key, setting) in &run.settings {
            match (key.as_str(), setting) {
                ("min", Setting::Number(min)) => workload.min = *min,
                ("max", Setting::Number(max)) => workload.max = *max,
                ("fallback", Setting::Number(replicas)) => {
                    workload.fallback_replicas = Some(*replicas);
                }
                (key, Setting::Number(number)) => drop(metadata.insert(key, number.to_string())),
                (key, Setting::Text(text)) => drop(metadata.insert(key, text.clone())),
            }
        }
        let policy = trigger::parse(metadata.iter().map(|(key, text)| (*key, text.as_str())))?;
        let wake_sources = BTreeSet::from([WAKE_SOURCE.to_owned()]);
        let context = Context { wake_sources: &wake_sources, has_prometheus: false };
        let starts: Timestamp = run.starts.as_deref().unwrap_or("2026-03-02T12:00:00Z").parse()?;
        Ok(Replay {
            spec: policy.spec(&workload, context),
            schedule: policy.warm_schedule,
            by_hand: policy.by_hand,
            state: State::default(),
            workload,
            fleet: Fleet::default(),
            set: Set::default(),
            start: Moment(starts.as_millisecond()),
            now: Moment(starts.as_millisecond()),
            arrived_at: None,
            gpu_seen_at: None,
            last: None,
        })
    }

    fn step(&mut self, run: &Run, step: &Step) -> Result<(), Fault> {
        let begin = self.now;
        self.set = step.set.over(std::mem::take(&mut self.set));
        if let Some(replicas) = &step.set.replicas {
            let (ready, spec) = replicas.split_once('/').ok_or("replicas: expected ready/spec")?;
            self.fleet.set(ready.parse()?, spec.parse()?, begin);
        }
        if let Some(phases) = &step.set.pods {
            self.fleet.turn(phases, begin);
        }
        let mut span = Span::default();
        let end = begin.plus_millis(step.lasts_ms);
        while self.now < end || span.is_empty() {
            let passed = self.now.secs_since(begin) / end.secs_since(begin);
            let decision = self.tick(span.n_ticks(), passed);
            let at_ms = self.now.millis_since(self.start);
            expect::check(&run.expects, &decision, at_ms)?;
            expect::check(&step.expects, &decision, at_ms)?;
            self.obey(run, &decision);
            self.now = self.now.plus_millis(decision.next_tick_ms);
            span.add(decision);
        }
        let at_ms = self.now.millis_since(self.start);
        span.check(step, self.last.as_ref(), at_ms)?;
        self.last = span.into_last();
        Ok(())
    }

    fn tick(&mut self, tick: usize, passed: f64) -> Decision {
        let load = Load { set: &self.set, tick, passed };
        self.fleet.pass(&load, self.now);
        self.workload.replicas = self.fleet.replicas(&self.set);
        self.workload.members = self.fleet.members();
        let around = self.around(tick == 0);
        let reading = |member: &ghostscaler::inventory::Member| {
            self.fleet.reading(&member.id, self.spec.tick_ms, self.now)
        };
        let observation: Observation = observe(&self.workload, reading, around, self.now);
        let state = std::mem::take(&mut self.state);
        let (decision, state) = decide(&self.spec, state, &observation, self.now);
        self.state = state;
        decision
    }

    fn around(&mut self, is_first: bool) -> Around {
        let gpu = match (&self.set.gpu, self.gpu_seen_at) {
            (Some(Devices::Fresh { busy, sm }), _) => {
                self.gpu_seen_at = Some(self.now);
                Gpu::Fresh(GpuSample {
                    devices: self.workload.replicas.ready,
                    busy: Some(*busy),
                    sm: *sm,
                    ..GpuSample::default()
                })
            }
            (Some(Devices::Lost(_)), Some(at)) => {
                Gpu::Lost { for_ms: self.now.millis_since(at), why: None }
            }
            (Some(Devices::Lost(_)) | None, _) => Gpu::Absent,
        };
        let source = self.spec.has_wake_source.then(|| {
            let gateway = self.set.gateway.unwrap_or_default();
            let arrives = match gateway.arrives {
                Arrives::Never => false,
                Arrives::Once => is_first,
                Arrives::Always => true,
            };
            if arrives {
                self.arrived_at = Some(self.now);
            }
            match gateway.unknown {
                Some(why) => WakeReading::Unknown { why },
                None => {
                    WakeReading::Fresh { queued: gateway.queued, last_arrival_at: self.arrived_at }
                }
            }
        });
        let lead_ms = self
            .last
            .as_ref()
            .map_or(COLD_START_UNSEEN_MS, |decision| decision.inputs.cold_start_ms);
        let schedule = self.schedule.as_ref();
        Around {
            gpu,
            wake: Wake { source, requested_at: None },
            schedule_floor: schedule.map_or(0, |schedule| schedule.replicas_at(self.now, lead_ms)),
            by_hand: self.by_hand.and_then(|by_hand| by_hand.replicas_at(self.now)),
        }
    }

    /// Lets KEDA and the HPA take the answer to the scale target.
    fn obey(&mut self, run: &Run, decision: &Decision) {
        let (Some(cold_start_ms), Answer::Value { want, .. }) = (run.follows_ms, decision.answer)
        else {
            return;
        };
        let due_at = self.now.plus_millis(cold_start_ms);
        self.fleet.order(usize::try_from(want).expect("a handful of pods"), due_at);
    }
}
