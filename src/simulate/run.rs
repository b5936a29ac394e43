//! One policy on one workload, event by event.
//!
//! Must not know which policy it is, nor let it see more than a [`View`].
//!
//! Four things happen in a run, in the order of their time: requests arrive, engines get on, pods
//! become ready or end, and the control loop turns: samples are taken, the policy ticks, the HPA
//! synchronises.

use loadgen::engine::{LeanEvent, PS_PER_S, Profile, Time, ps_from_secs, secs_from_ps};

use super::actuator::Actuator;
use super::cold::ColdStart;
use super::fleet::Fleet;
use super::judge::Judge;
use super::outcome::{Meter, Outcome};
use super::policy::{Policy, Slo, View};
use super::random::Random;
use super::reference::{Prices, first_need};
use super::sight::Sight;
use super::workload::Workload;

/// How long after the end of the trace its last requests may take.
const TAIL_PS: u64 = 3_600 * PS_PER_S;

/// Everything that is the same for every policy.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// The engine and its GPUs.
    pub profile: &'a Profile,
    /// The requests.
    pub workload: &'a Workload,
    /// How long replicas take to start.
    pub cold: ColdStart,
    /// Latency targets.
    pub slo: Slo,
    /// Fewest replicas.
    pub min: u32,
    /// Most replicas, at least 1.
    pub max: u32,
    /// Seed of everything random: cold starts, ties of the balancer, phases of the control loop.
    pub seed: u64,
}

/// Runs the policy on the workload.
pub fn run(setup: &Setup<'_>, policy: &mut dyn Policy) -> Outcome {
    let workload = setup.workload;
    let memory_ps = ps_from_secs(policy.memory_s());
    let start = Time(workload.counted_from.0.saturating_sub(memory_ps));
    let mut run = Run::new(setup, start, policy);
    run.play(policy);
    run.meter.finish(workload.counted())
}

struct Run<'a> {
    setup: &'a Setup<'a>,
    fleet: Fleet<'a>,
    meter: Meter,
    judge: Judge<'a>,
    sight: Sight,
    actuator: Actuator,
    /// Index of the next request.
    next: usize,
    next_tick: Time,
    arrived: u64,
    open: u64,
}

impl<'a> Run<'a> {
    fn new(setup: &'a Setup<'a>, start: Time, policy: &dyn Policy) -> Run<'a> {
        let workload = setup.workload;
        let requests = &workload.requests;
        let stream = |stream| Random::new(setup.seed, stream);
        let need = || first_need(workload, &Prices::of(setup.profile), start);
        let initial = policy.initial().unwrap_or_else(need).clamp(setup.min, setup.max);
        let fleet = Fleet::new(setup.profile, requests, setup.cold, stream(1), initial, start);
        let mut meter = Meter::new(workload.counted_from, workload.end, setup.max, start);
        meter.changed(fleet.counts(), 0, start);
        let mut phases = stream(2);
        Run {
            setup,
            fleet,
            meter,
            judge: Judge::new(setup.profile, setup.slo),
            sight: Sight::new(policy.source(), setup.profile, start, &mut phases),
            actuator: Actuator::new(policy.actuation(), (setup.min, setup.max), start, &mut phases),
            next: requests.partition_point(|request| request.at < start),
            next_tick: start,
            arrived: 0,
            open: 0,
        }
    }

    fn play(&mut self, policy: &mut dyn Policy) {
        let requests = &self.setup.workload.requests;
        let end = self.setup.workload.end;
        let last = end.plus_ps(TAIL_PS);
        let mut next_turn = self.next_turn();
        loop {
            let arrival = requests.get(self.next).map_or(Time::MAX, |request| request.at);
            let (index, event) = self.fleet.next_event();
            if event <= arrival && event <= next_turn {
                if event > last || event == Time::MAX {
                    return;
                }
                self.serve(index, event);
            } else if arrival <= next_turn {
                let id = u32::try_from(self.next).unwrap_or(u32::MAX);
                self.next += 1;
                self.arrived += 1;
                self.open += 1;
                self.meter.arrived();
                self.fleet.route(id, arrival);
                if self.fleet.held() > 0 {
                    self.wake(arrival);
                    next_turn = self.next_turn();
                }
            } else {
                if next_turn > last || (next_turn > end && self.open == 0) {
                    return;
                }
                self.turn(policy, next_turn);
                next_turn = self.next_turn();
            }
        }
    }

    /// When the control loop has something to do next; after the end of the trace it rests.
    fn next_turn(&self) -> Time {
        let control = [self.next_tick, self.sight.next_scrape(), self.actuator.next_turn()];
        let control = control.into_iter().min().unwrap_or(Time::MAX);
        let control = if control < self.setup.workload.end { control } else { Time::MAX };
        control.min(self.fleet.next_change()).min(self.meter.next_point())
    }

    fn serve(&mut self, index: usize, at: Time) {
        for event in self.fleet.serve(index, at) {
            match *event {
                LeanEvent::FirstToken { id, at } => {
                    let request = &self.setup.workload.requests[id as usize];
                    self.sight.first_token(secs_from_ps(at.since(request.at)));
                }
                LeanEvent::Finished { id, first_token, at, .. } => {
                    self.open = self.open.saturating_sub(1);
                    let request = &self.setup.workload.requests[id as usize];
                    let verdict = self.judge.judge(request, first_token, at);
                    self.meter.ended(request, first_token, at, verdict);
                    let gaps = f64::from(request.output_tokens.saturating_sub(1).max(1));
                    self.sight.finished(secs_from_ps(at.since(first_token)) / gaps);
                }
            }
        }
        // A pod that was only waiting for this request has gone.
        if self.fleet.take_gone() {
            self.meter.pass(at);
            self.meter.changed(self.fleet.counts(), 0, at);
        }
    }

    /// Everything of the control loop that is due now, in the order of its way through a cluster.
    fn turn(&mut self, policy: &mut dyn Policy, now: Time) {
        if self.fleet.next_change() <= now {
            self.meter.pass(now);
            self.fleet.change(now);
            self.meter.changed(self.fleet.counts(), 0, now);
        }
        if self.meter.next_point() <= now {
            self.meter.pass(now);
            let in_flight = usize::try_from(self.open).unwrap_or(usize::MAX);
            self.meter.point(in_flight, now);
        }
        if now >= self.setup.workload.end {
            return;
        }
        if self.sight.next_scrape() <= now {
            self.sight.scrape(&mut self.fleet, now);
        }
        if self.next_tick <= now {
            self.tick(policy, now);
        }
        while self.actuator.next_turn() <= now {
            let wanted = self.actuator.turn(self.fleet.counts());
            self.scale(wanted, now);
        }
    }

    /// A request is held while nothing serves: whoever can see that is asked at once.
    fn wake(&mut self, now: Time) {
        // A wake source is looked at four times a second.
        let soon = now.plus_ps(PS_PER_S / 4);
        if self.setup.min == 0 && self.next_tick > soon && self.fleet.counts().spec == 0 {
            self.next_tick = soon;
        }
    }

    fn tick(&mut self, policy: &mut dyn Policy, now: Time) {
        self.sight.look(&mut self.fleet, now);
        let counts = self.fleet.counts();
        let view = View {
            now_s: secs_from_ps(now.0),
            counts,
            pods: self.sight.pods(),
            engines: self.sight.engines(),
            held: self.fleet.held() as f64,
            arrived: self.arrived as f64,
            latencies: self.sight.latencies(),
            bounds: (self.setup.min, self.setup.max),
            slo: self.setup.slo,
            cold_start_s: self.setup.cold.whole_s(),
        };
        let action = policy.tick(&view);
        let wanted = self.actuator.take(action, counts, now);
        self.scale(wanted, now);
        let tick_ps = ps_from_secs(policy.tick_s()).max(PS_PER_S / 10);
        self.next_tick = now.plus_ps(tick_ps);
    }

    fn scale(&mut self, wanted: Option<u32>, now: Time) {
        let Some(wanted) = wanted else { return };
        let wanted = wanted.clamp(self.setup.min, self.setup.max);
        if wanted != self.fleet.counts().spec {
            self.meter.pass(now);
            let created = self.fleet.scale(wanted, now);
            self.meter.changed(self.fleet.counts(), created, now);
        }
    }
}
