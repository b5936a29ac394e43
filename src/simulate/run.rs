//! One policy on one workload, event by event.
//!
//! Must not know which policy it is, nor let it see more than a [`View`].
//!
//! Four things happen in a run, in the order of their time: requests arrive, engines get on, pods
//! become ready or end, and the control loop turns: samples are taken, the policy ticks, the HPA
//! synchronises. Runs of several workloads take turns, in the order of what happens next to each.

use loadgen::engine::{LeanEvent, PS_PER_S, Profile, Time, ps_from_secs, secs_from_ps};

use super::actuator::Actuator;
use super::cold::ColdStart;
use super::fleet::Fleet;
use super::judge::Judge;
use super::outcome::{Meter, Outcome};
use super::policy::{Policy, Slo, View};
use super::random::Random;
use super::scenario::Scenario;
use super::sight::Sight;
use super::supply::{Nodes, Supply};
use super::work::{Prices, first_need};
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
    /// Where GPUs come from.
    pub nodes: Nodes,
    /// What changes on the way.
    pub scenario: &'a Scenario,
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
    let mut supply = Supply::new(setup.nodes, Time::ZERO);
    let mut run = Run::new(setup, policy, &mut supply);
    while run.step(policy, &mut supply) {
        if supply.take_freed() {
            while run.place_one(&mut supply) {}
        }
    }
    run.meter.finish(setup.workload.counted())
}

/// Runs workloads side by side on the GPUs that the first one's nodes have, each with a policy of
/// its own; what waits longest for a GPU gets the next one.
pub fn run_together(setups: &[Setup<'_>], policies: &mut [Box<dyn Policy>]) -> Vec<Outcome> {
    let nodes = setups.first().map_or_else(Nodes::default, |setup| setup.nodes);
    let mut supply = Supply::new(nodes, Time::ZERO);
    let mut runs: Vec<Run<'_>> = setups
        .iter()
        .zip(policies.iter())
        .map(|(setup, policy)| Run::new(setup, policy.as_ref(), &mut supply))
        .collect();
    loop {
        let next = runs.iter().map(Run::next_at).enumerate().min_by_key(|&(_, at)| at);
        let Some((index, at)) = next.filter(|&(_, at)| at < Time::MAX) else { break };
        let Some(policy) = policies.get_mut(index) else { break };
        runs[index].step(policy.as_mut(), &mut supply);
        while supply.take_freed() {
            place_all(&mut runs, at, &mut supply);
        }
    }
    let finished = runs.into_iter().zip(setups);
    finished.map(|(run, setup)| run.meter.finish(setup.workload.counted())).collect()
}

/// Gives what is free to who has waited longest.
fn place_all(runs: &mut [Run<'_>], now: Time, supply: &mut Supply) {
    loop {
        let waiting = runs.iter_mut().filter_map(|run| Some((run.fleet.waits_since()?, run)));
        let Some((_, run)) = waiting.min_by_key(|&(since, _)| since) else { return };
        run.now = run.now.max(now);
        if !run.place_one(supply) {
            return;
        }
    }
}

struct Run<'a> {
    setup: &'a Setup<'a>,
    fleet: Fleet<'a>,
    meter: Meter,
    judge: Judge,
    sight: Sight,
    actuator: Actuator,
    /// Of the last thing that happened.
    now: Time,
    /// Index of the next request.
    next: usize,
    next_tick: Time,
    next_scene: Time,
    /// The earliest of everything but requests and engines.
    next_turn: Time,
    arrived: u64,
    open: u64,
    ended: bool,
}

impl<'a> Run<'a> {
    fn new(setup: &'a Setup<'a>, policy: &dyn Policy, supply: &mut Supply) -> Run<'a> {
        let workload = setup.workload;
        let requests = &workload.requests;
        let memory_ps = ps_from_secs(policy.memory_s());
        let start = Time(workload.counted_from.0.saturating_sub(memory_ps));
        let stream = |stream| Random::new(setup.seed, stream);
        let profile = setup.scenario.profile(setup.profile, start);
        let need = || first_need(workload, &Prices::loaded(profile), start);
        let initial = policy.initial().unwrap_or_else(need).clamp(setup.min, setup.max);
        let drifted = setup.scenario.drifted(profile, start);
        let fleet = Fleet::new(drifted, requests, setup.cold, stream(1), initial, (supply, start));
        let span = (workload.counted_from, workload.end);
        let meter = Meter::new(span, setup.max, start, fleet.census());
        let mut phases = stream(2);
        let mut run = Run {
            setup,
            fleet,
            meter,
            judge: Judge::new(profile.clone(), setup.slo),
            sight: Sight::new(policy.source(), start, &mut phases),
            actuator: Actuator::new(policy.actuation(), (setup.min, setup.max), start, &mut phases),
            now: start,
            next: requests.partition_point(|request| request.at < start),
            next_tick: start,
            next_scene: setup.scenario.next(start),
            next_turn: start,
            arrived: 0,
            open: 0,
            ended: false,
        };
        run.next_turn = run.find_next_turn();
        run
    }

    /// When something happens next; [`Time::MAX`] once the run has ended.
    fn next_at(&self) -> Time {
        if self.ended {
            return Time::MAX;
        }
        let (_, event) = self.fleet.next_event();
        event.min(self.next_arrival()).min(self.next_turn)
    }

    fn next_arrival(&self) -> Time {
        self.setup.workload.requests.get(self.next).map_or(Time::MAX, |request| request.at)
    }

    /// Lets the next thing happen; false if nothing is left to.
    fn step(&mut self, policy: &mut dyn Policy, supply: &mut Supply) -> bool {
        let end = self.setup.workload.end;
        let last = end.plus_ps(TAIL_PS);
        let arrival = self.next_arrival();
        let (index, event) = self.fleet.next_event();
        if event <= arrival && event <= self.next_turn {
            self.ended = event > last || event == Time::MAX;
            if !self.ended {
                self.now = event;
                self.serve(index, event, supply);
            }
        } else if arrival <= self.next_turn {
            self.now = arrival;
            self.arrive(arrival);
        } else {
            self.ended = self.next_turn > last || (self.next_turn > end && self.open == 0);
            if !self.ended {
                self.now = self.next_turn;
                self.turn(policy, self.next_turn, supply);
                self.next_turn = self.find_next_turn();
            }
        }
        !self.ended
    }

    fn arrive(&mut self, at: Time) {
        let id = u32::try_from(self.next).unwrap_or(u32::MAX);
        self.next += 1;
        self.arrived += 1;
        self.open += 1;
        self.meter.arrived(at);
        self.fleet.route(id, at);
        if self.fleet.held() > 0 {
            self.wake(at);
            self.next_turn = self.find_next_turn();
        }
    }

    /// Gives GPUs that have become free to the pod that has waited longest.
    fn place_one(&mut self, supply: &mut Supply) -> bool {
        let placed = self.fleet.place_one(self.now, supply);
        if placed {
            self.meter.pass(self.now);
            self.meter.changed(self.fleet.census(), self.now);
            self.next_turn = self.find_next_turn();
        }
        placed
    }

    /// When the control loop has something to do next; after the end of the trace it rests.
    fn find_next_turn(&self) -> Time {
        let control = [self.next_tick, self.sight.next_scrape(), self.actuator.next_turn()];
        let control = control.into_iter().min().unwrap_or(Time::MAX);
        let control = if control < self.setup.workload.end { control } else { Time::MAX };
        let rest = [self.fleet.next_change(), self.meter.next_point(), self.next_scene];
        rest.into_iter().fold(control, Time::min)
    }

    fn serve(&mut self, index: usize, at: Time, supply: &mut Supply) {
        for event in self.fleet.serve(index, at, supply) {
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
            self.meter.changed(self.fleet.census(), at);
            self.next_turn = self.find_next_turn();
        }
    }

    /// Everything of the control loop that is due now, in the order of its way through a cluster.
    fn turn(&mut self, policy: &mut dyn Policy, now: Time, supply: &mut Supply) {
        if self.next_scene <= now {
            self.change_scene(now, supply);
        }
        if self.fleet.next_change() <= now {
            self.meter.pass(now);
            self.fleet.change(now, supply);
            self.meter.changed(self.fleet.census(), now);
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
            self.tick(policy, now, supply);
        }
        while self.actuator.next_turn() <= now {
            let wanted = self.actuator.turn(self.fleet.counts());
            self.scale(wanted, now, supply);
        }
    }

    /// An update begins, or the engines have become a little faster or slower.
    fn change_scene(&mut self, now: Time, supply: &mut Supply) {
        let scenario = self.setup.scenario;
        let last = scenario.profile(self.setup.profile, Time(now.0 - 1));
        let profile = scenario.profile(self.setup.profile, now);
        let drifted = scenario.drifted(profile, now);
        if profile == last {
            self.fleet.retime(drifted);
        } else {
            self.judge.update(profile.clone());
            self.meter.pass(now);
            self.fleet.update(drifted, now, supply);
            self.meter.changed(self.fleet.census(), now);
        }
        self.next_scene = scenario.next(now);
    }

    /// A request is held while nothing serves: whoever can see that is asked at once.
    fn wake(&mut self, now: Time) {
        // A wake source is looked at four times a second.
        let soon = now.plus_ps(PS_PER_S / 4);
        if self.setup.min == 0 && self.next_tick > soon && self.fleet.counts().spec == 0 {
            self.next_tick = soon;
        }
    }

    fn tick(&mut self, policy: &mut dyn Policy, now: Time, supply: &mut Supply) {
        self.sight.look(&mut self.fleet, now);
        let counts = self.fleet.counts();
        let view = View {
            now_s: secs_from_ps(now.0),
            counts,
            updating: self.fleet.is_updating(),
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
        self.scale(wanted, now, supply);
        let tick_ps = ps_from_secs(policy.tick_s()).max(PS_PER_S / 10);
        self.next_tick = now.plus_ps(tick_ps);
    }

    fn scale(&mut self, wanted: Option<u32>, now: Time, supply: &mut Supply) {
        let Some(wanted) = wanted else { return };
        let wanted = wanted.clamp(self.setup.min, self.setup.max);
        if wanted != self.fleet.counts().spec {
            self.meter.pass(now);
            self.fleet.scale(wanted, now, supply);
            self.meter.changed(self.fleet.census(), now);
        }
    }
}
