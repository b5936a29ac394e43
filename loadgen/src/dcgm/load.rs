//! The loads of a fleet's file, as the work that an engine would have counted.
//!
//! Must not read a clock: its owner says what time it is.

use std::f64::consts::TAU;

use super::DeviceIndex;
use super::config::{EngineLoad, Fleet, Load, Pod, Sine, Span};
use crate::engine::{Time, Work, ps_from_secs, secs_from_ps};

/// What a busy second goes into where only the share of time busy is given: base, prefill, decode
/// and resident, as an 8B on an A100 spends it on chat near its capacity (8.5 requests a second of
/// 1,000 prompt and 210 output tokens).
const MIX: [f64; 4] = [0.15, 0.57, 0.12, 0.16];

/// A pod of the file that does something.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Worker {
    /// The number of its node.
    pub(super) node: usize,
    /// Its device on that node.
    pub(super) device: DeviceIndex,
    /// Its number among the device's pods.
    pub(super) holder: usize,
    /// What it does.
    pub(super) load: Load,
}

/// Every pod of a fleet that does something, once for each device that it holds.
pub(super) fn workers(fleet: &Fleet) -> Vec<Worker> {
    let mut workers = Vec::new();
    for (node, spec) in fleet.nodes.iter().enumerate() {
        let mut device = DeviceIndex(0);
        let mut add = |pods: &[Pod]| {
            for (holder, pod) in pods.iter().enumerate() {
                let worker = |load| Worker { node, device, holder, load };
                workers.extend(pod.load.clone().map(worker));
            }
            device.0 += 1;
        };
        for gpu in &spec.gpus {
            for _ in 0..gpu.count {
                if gpu.mig.is_empty() {
                    add(&gpu.pods);
                }
                gpu.mig.iter().for_each(|instance| add(&instance.pods));
            }
        }
    }
    workers
}

/// The engines that a fleet's loads name, each once.
pub(super) fn engines(fleet: &Fleet) -> Vec<EngineLoad> {
    let mut engines = Vec::new();
    for worker in workers(fleet) {
        if let Load::Engine(engine) = worker.load
            && !engines.contains(&engine)
        {
            engines.push(engine);
        }
    }
    engines
}

/// Adds up what a load has done since the start.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Doing {
    work: Work,
    at: Time,
}

impl Doing {
    /// The work of a load until `now`; nothing where an engine counts it itself.
    pub(super) fn until(&mut self, now: Time, load: &Load) -> Work {
        let busy_s = busy(load, now) * secs_from_ps(now.since(self.at));
        self.at = now;
        let [base, prefill, decode, resident] = MIX.map(|share| ps_from_secs(share * busy_s));
        self.work.base_ps += base;
        self.work.prefill_ps += prefill;
        self.work.decode_ps += decode;
        self.work.resident_ps += resident;
        self.work
    }
}

/// The share of time that a load keeps its device busy at a moment, 0 to 1.
fn busy(load: &Load, now: Time) -> f64 {
    match load {
        Load::Busy(share) => *share,
        Load::Sine(Sine { mean, amplitude, period }) => {
            let turns = now.as_secs_f64() / secs_from_ps(period.time().0);
            (mean + amplitude * (TAU * turns).sin()).clamp(0.0, 1.0)
        }
        Load::Steps(points) => {
            let after = points.partition_point(|(from, _): &(Span, f64)| from.time() <= now);
            after
                .checked_sub(1)
                .and_then(|index| points.get(index))
                .map_or(0.0, |&(_, share)| share)
        }
        Load::Engine(_) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::{Engine, PS_PER_S, Profile, Request, Watch};

    #[test]
    fn the_mix_is_that_of_a_chat_load_near_capacity() {
        let mut engine = Engine::new(Arc::new(Profile::load("8b-a100").unwrap()));
        for id in 0..2_000 {
            let now = Time::from_secs_f64(id as f64 / 8.5);
            engine.advance(now, Watch::FirstToken, &mut |_| {});
            engine.submit(Request::new(id, 1_000, 210), now).unwrap();
        }
        let work = *engine.work();
        let total_s = secs_from_ps(work.total_ps());
        let terms = [work.base_ps, work.prefill_ps, work.decode_ps, work.resident_ps];
        for (found, stated) in terms.map(|ps| secs_from_ps(ps) / total_s).into_iter().zip(MIX) {
            assert!((found - stated).abs() < 0.03, "{found:.3}, stated {stated}");
        }
        assert!((MIX.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn loads_rise_and_fall_as_the_file_says() {
        let at = |load: &Load, seconds: u64| busy(load, Time::from_millis(1_000 * seconds));
        let sine = Sine { mean: 0.5, amplitude: 0.7, period: Span(400_000) };
        let sine = Load::Sine(sine);
        for (seconds, expected) in [(0, 0.5), (100, 1.0), (200, 0.5), (300, 0.0)] {
            assert!((at(&sine, seconds) - expected).abs() < 1e-9, "{seconds} s");
        }
        let steps = Load::Steps(vec![(Span(10_000), 0.2), (Span(20_000), 0.8)]);
        for (seconds, expected) in [(0, 0.0), (10, 0.2), (19, 0.2), (20, 0.8), (9_999, 0.8)] {
            assert!((at(&steps, seconds) - expected).abs() < 1e-9, "{seconds} s");
        }
    }

    #[test]
    fn work_is_the_busy_time() {
        let mut doing = Doing::default();
        let load = Load::Busy(0.25);
        let mut work = Work::default();
        for second in 0..=8 {
            work = doing.until(Time(second * PS_PER_S), &load);
        }
        assert_eq!(work.total_ps(), 2 * PS_PER_S);
    }

    #[test]
    fn workers_are_counted_as_the_exporter_counts_devices() {
        let fleet = Fleet::parse(
            "fleet",
            "nodes:
- name: a
  gpus:
  - {model: t4, count: 2, pods: [{load: {busy: 0.1}}]}
  - model: a100-40gb
    mig:
    - {profile: 1g.5gb, id: 7}
    - {profile: 2g.10gb, id: 3, pods: [{load: {busy: 0.2}}]}
- name: b
  gpus:
  - model: t4
    sharing: {by: mps, replicas: 2}
    pods: [{}, {load: {engine: {url: 'http://h:1/metrics', profile: 8b-a100}}}]
",
        )
        .unwrap();
        let places: Vec<_> =
            workers(&fleet).iter().map(|w| (w.node, w.device.0, w.holder)).collect();
        assert_eq!(places, [(0, 0, 0), (0, 1, 0), (0, 3, 0), (1, 0, 1)]);
        assert_eq!(engines(&fleet).len(), 1);
        let exporters = super::super::Exporter::of_fleet(&fleet);
        assert_eq!(exporters.iter().map(|e| e.n_devices()).collect::<Vec<_>>(), [4, 1]);
    }
}
