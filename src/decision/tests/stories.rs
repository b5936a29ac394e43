//! Long, eventful runs. What each tick answered is kept in `stories.txt`, so that a change of the core
//! shows in its diff what it does to answers, and one that should do nothing is seen to do nothing.
//!
//! Says what is, not what is right: that is what the other tests are for.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use super::fleet::{Dice, Fleet, REQUEST_S, moment};
use super::fleet_runs::series;
use crate::decision::kept::Edit;
use crate::decision::{
    Decision, Engine, EngineSample, Gpu, GpuSample, Mode, Observation, Part, Phase, Reading, Spec,
    State, WakeReading, Why, ZeroAfter,
};

const STORIES: u64 = 12;
/// Three hours of ticks each, told in blocks of ten minutes.
const BLOCKS: u32 = 18;
const BLOCK_TICKS: u32 = 120;

#[test]
fn every_story_is_answered_as_before() {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/src/decision/tests/stories.txt");
    let told: String = (1..=STORIES).map(|seed| Story::new(seed).tell()).collect();
    if std::env::var_os("KEEP_STORIES").is_some() {
        std::fs::write(kept, &told).unwrap();
    }
    let before = std::fs::read_to_string(kept).unwrap();
    for (line, (told, before)) in told.lines().zip(before.lines()).enumerate() {
        let line = line + 1;
        assert_eq!(told, before, "line {line} of stories.txt (KEEP_STORIES=1 keeps the new ones)");
    }
    assert_eq!(told.lines().count(), before.lines().count());
}

/// What happens, how likely it begins in a tick, and for how many ticks it lasts at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    OneSilent,
    AllSilent,
    OneNotReady,
    OneFrozen,
    OneAsleep,
    OneLeaves,
    KvPressure,
    NoRoom,
    CrashLoop,
    Rollout,
    ByHand,
    Scheduled,
    AtGateway,
    GatewayUnknown,
    WakeAsked,
    GpuLost,
    CountsUnknown,
    RanksApart,
    SlowAnswers,
    ScalerRestarts,
    EngineRestarts,
    Gap,
    Edited,
}

const EVENTS: [(Event, f64, u32); 23] = [
    (Event::OneSilent, 0.004, 30),
    (Event::AllSilent, 0.001, 40),
    (Event::OneNotReady, 0.002, 20),
    (Event::OneFrozen, 0.002, 160),
    (Event::OneAsleep, 0.001, 60),
    (Event::OneLeaves, 0.001, 30),
    (Event::KvPressure, 0.002, 20),
    (Event::NoRoom, 0.002, 60),
    (Event::CrashLoop, 0.001, 60),
    (Event::Rollout, 0.001, 60),
    (Event::ByHand, 0.000_5, 60),
    (Event::Scheduled, 0.001, 60),
    (Event::AtGateway, 0.004, 10),
    (Event::GatewayUnknown, 0.002, 40),
    (Event::WakeAsked, 0.001, 1),
    (Event::GpuLost, 0.002, 40),
    (Event::CountsUnknown, 0.001, 10),
    (Event::RanksApart, 0.001, 30),
    (Event::SlowAnswers, 0.002, 30),
    (Event::ScalerRestarts, 0.001, 1),
    (Event::EngineRestarts, 0.002, 1),
    (Event::Gap, 0.001, 1),
    (Event::Edited, 0.001, 1),
];

/// A fleet to which things happen.
#[derive(Debug)]
struct Story {
    seed: u64,
    fleet: Fleet,
    dice: Dice,
    left: [u32; EVENTS.len()],
    /// Requests per second, and for how many ticks more.
    load: (f64, u32),
    frozen: Option<EngineSample>,
    /// Preempted requests and seconds of slow first tokens so far.
    preempted: f64,
    slow_s: f64,
}

impl Story {
    fn new(seed: u64) -> Story {
        let mut fleet = Fleet::new(1 + u32::try_from(seed % 4).unwrap()).seed(seed);
        fleet.random = true;
        fleet.noise = if seed.is_multiple_of(2) { 0.05 } else { 0.0 };
        fleet.cold_start_s = [30.0, 120.0, 300.0][usize::try_from(seed % 3).unwrap()];
        fleet.spec = spec(seed);
        let dice = Dice(seed.wrapping_mul(0xA076_1D64_78BD_642F) | 1);
        Story {
            seed,
            fleet,
            dice,
            left: [0; EVENTS.len()],
            load: (0.0, 0),
            frozen: None,
            preempted: 0.0,
            slow_s: 0.0,
        }
    }

    fn tell(mut self) -> String {
        let mut told = format!("story {}\n", self.seed);
        for block in 1..=BLOCKS {
            let (mut wants, mut digest) = (Vec::new(), Digest::default());
            for _ in 0..BLOCK_TICKS {
                let decision = self.tick();
                wants.push(decision.want);
                digest.note(&decision);
            }
            digest.note(&self.fleet.state);
            let minute = block * BLOCK_TICKS / 12;
            writeln!(told, "{minute:>4} min {:016x} {}", digest.0, series(&wants).trim()).unwrap();
        }
        told
    }

    fn tick(&mut self) -> Decision {
        if self.load.1 == 0 {
            let replicas_of_work =
                if self.dice.roll() < 0.2 { 0.0 } else { 7.0 * self.dice.roll().powi(2) };
            self.load = (replicas_of_work / REQUEST_S, 12 + self.below(120));
        }
        self.load.1 -= 1;
        for (index, (event, chance, ticks)) in EVENTS.into_iter().enumerate() {
            self.left[index] = self.left[index].saturating_sub(1);
            if self.dice.roll() < chance {
                self.left[index] = 1 + self.below(ticks);
                self.begin(event);
            }
        }
        self.fleet.advance(self.load.0);
        let mut observation = self.fleet.observe();
        self.measure(&mut observation);
        for (index, (event, ..)) in EVENTS.into_iter().enumerate() {
            if self.left[index] > 0 {
                self.show(event, &mut observation);
            }
        }
        self.fleet.decide(&observation)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below a u32")]
    fn below(&mut self, end: u32) -> u32 {
        (self.dice.roll() * f64::from(end)) as u32
    }

    /// What an event does once.
    fn begin(&mut self, event: Event) {
        match event {
            Event::OneFrozen => self.frozen = None,
            Event::ScalerRestarts => {
                let text = serde_json::to_string(&self.fleet.state).unwrap();
                self.fleet.state = serde_json::from_str::<State>(&text).unwrap().restored();
            }
            Event::EngineRestarts => self.fleet.restart_one(),
            Event::Gap => (0..1 + self.below(30)).for_each(|_| self.fleet.advance(self.load.0)),
            Event::Edited => {
                self.fleet.spec.max = 4 + self.below(12);
                self.fleet.spec.slo_ttft_ms = 500 + 100 * u64::from(self.below(40));
            }
            Event::OneSilent
            | Event::AllSilent
            | Event::OneNotReady
            | Event::OneAsleep
            | Event::OneLeaves
            | Event::KvPressure
            | Event::NoRoom
            | Event::CrashLoop
            | Event::Rollout
            | Event::ByHand
            | Event::Scheduled
            | Event::AtGateway
            | Event::GatewayUnknown
            | Event::WakeAsked
            | Event::GpuLost
            | Event::CountsUnknown
            | Event::RanksApart
            | Event::SlowAnswers => {}
        }
    }

    /// What every engine and device of this story shows beside its load.
    fn measure(&mut self, observation: &mut Observation) {
        let mut running = 0.0;
        for mut sample in samples(observation) {
            running += sample.running.unwrap_or(0.0);
            sample.preemptions = Some(self.preempted);
            sample.ttft_count = sample.finished;
            sample.ttft_sum_s = sample.finished.map(|finished| 0.4 * finished + self.slow_s);
            match self.seed % 5 {
                3 => {
                    // No steps and no limit, as of an engine of another kind.
                    (sample.steps, sample.max_running) = (None, None);
                }
                4 => {
                    (sample.prompt_tokens, sample.generated_tokens) = (None, None);
                    (sample.steps, sample.finished, sample.max_running) = (None, None, None);
                }
                _ => sample.kv_tokens = Some(40_000.0),
            }
        }
        if self.seed.is_multiple_of(2) {
            let n = observation.replicas.ready;
            let each = running / f64::from(n.max(1)) / 64.0;
            observation.gpu = Gpu::Fresh(GpuSample {
                devices: n,
                unread: 0,
                busy: Some(if each > 0.0 { 0.97 } else { 0.0 }),
                sm: (self.seed.is_multiple_of(4)).then_some(0.05 + 0.9 * each),
                tensor: None,
                dram: Some(0.1 + 0.6 * each),
            });
        }
        if self.fleet.spec.has_wake_source {
            let is_asleep = observation.replicas.ready == 0 && self.load.0 > 0.0;
            observation.wake.source = Some(WakeReading::Fresh {
                queued: if is_asleep { self.load.0 } else { 0.0 },
                last_arrival_at: (self.load.0 > 0.0).then(|| moment(self.fleet.now_s)),
            });
        }
    }

    /// What an event shows while it lasts.
    fn show(&mut self, event: Event, observation: &mut Observation) {
        let now = moment(self.fleet.now_s);
        let missing = |why| Reading::Missing { why };
        match event {
            Event::OneSilent => first(observation, |one| one.reading = missing(Why::Timeout)),
            Event::AllSilent => {
                observation.engines.iter_mut().for_each(|one| one.reading = missing(Why::Refused));
            }
            Event::OneNotReady => first(observation, |one| {
                (one.phase, one.ready_ms) = (Phase::NotReady, None);
            }),
            Event::OneFrozen => {
                if let Some(mut sample) = samples(observation).next() {
                    let frozen = *self.frozen.get_or_insert(*sample);
                    *sample = EngineSample { at: now, running: Some(7.0), ..frozen };
                }
            }
            Event::OneAsleep => {
                if let Some(mut sample) = samples(observation).next() {
                    sample.asleep = Some(true);
                }
            }
            Event::OneLeaves => observation.replicas.leaving = 1,
            Event::KvPressure => {
                self.preempted += 1.0;
                for mut sample in samples(observation) {
                    sample.kv_usage = Some(0.97);
                    sample.waiting = sample.waiting.map(|waiting| waiting + 3.0);
                    sample.preemptions = Some(self.preempted);
                }
            }
            Event::NoRoom => observation.replicas.unschedulable = observation.replicas.starting,
            Event::CrashLoop => {
                observation.replicas.crash_looping = observation.replicas.starting.min(1);
            }
            Event::Rollout => observation.replicas.rollout = true,
            Event::ByHand => observation.by_hand = Some(5),
            Event::Scheduled => observation.schedule_floor = 3,
            Event::AtGateway => {
                let queued = 10.0 * self.dice.roll();
                observation.wake.source =
                    Some(WakeReading::Fresh { queued, last_arrival_at: Some(now) });
            }
            Event::GatewayUnknown => {
                observation.wake.source = Some(WakeReading::Unknown { why: Why::Timeout });
            }
            Event::WakeAsked => observation.wake.requested_at = Some(now),
            Event::GpuLost => {
                observation.gpu = Gpu::Lost { for_ms: 60_000, why: Some(Why::Timeout) };
            }
            Event::CountsUnknown => observation.replicas.spec = None,
            Event::RanksApart => {
                samples(observation).for_each(|mut sample| sample.waiting_spread = Some(6.0));
            }
            Event::SlowAnswers => {
                self.slow_s += 1.5;
                for mut sample in samples(observation) {
                    sample.ttft_sum_s = sample.ttft_sum_s.map(|sum| sum + 1.5);
                }
            }
            Event::ScalerRestarts | Event::EngineRestarts | Event::Gap | Event::Edited => {}
        }
    }
}

/// Each story has another policy.
fn spec(seed: u64) -> Spec {
    let chosen = |of: u64, which: u64| seed % of == which;
    Spec {
        min: if chosen(3, 1) { 0 } else { 1 },
        max: 12,
        has_wake_source: chosen(3, 1),
        zero_after: ZeroAfter::After { millis: 1_200_000 },
        hpa_tolerance: chosen(4, 3).then_some(0.1),
        target_in_flight: chosen(7, 5).then_some(24.0),
        ghost_hold_ms: chosen(5, 2).then_some(120_000),
        fallback_replicas: chosen(6, 4).then_some(2),
        mode: if chosen(13, 6) { Mode::Shadow } else { Mode::Act },
        without: match seed {
            9 => Some(Part::Feedback),
            10 => Some(Part::Queue),
            11 => Some(Part::Kv),
            12 => Some(Part::GpuCeiling),
            _ => None,
        },
        ..Spec::default()
    }
}

fn first(observation: &mut Observation, change: impl FnOnce(&mut Engine)) {
    let mut ready = observation.engines.iter_mut().filter(|one| one.phase == Phase::Ready);
    if let Some(engine) = ready.next() {
        change(engine);
    }
}

fn samples(observation: &mut Observation) -> impl Iterator<Item = Edit<'_>> {
    observation.engines.iter_mut().filter_map(|engine| match &mut engine.reading {
        Reading::Fresh { value, .. } | Reading::Stale { value, .. } => Some(value.edit()),
        Reading::Missing { .. } => None,
    })
}

/// FNV-1a over JSON whose numbers are cut to six digits: logarithms may differ in the last ones from
/// machine to machine.
#[derive(Debug)]
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Digest(0xCBF2_9CE4_8422_2325)
    }
}

impl Digest {
    fn note(&mut self, what: &impl Serialize) {
        let mut value = serde_json::to_value(what).unwrap();
        cut(&mut value);
        for byte in value.to_string().bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
}

fn cut(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap();
            // What is left of a difference of equals has no digit that is the same everywhere.
            let number = if number.abs() < 1e-9 { 0.0 } else { number };
            *value = Value::String(format!("{number:.5e}"));
        }
        Value::Array(list) => list.iter_mut().for_each(cut),
        Value::Object(map) => map.values_mut().for_each(cut),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
