//! KEDA and the HPA on one of the metrics that people scale inference on.
//!
//! Must not model the HPA: [`crate::hpa`] does.
//!
//! Every signal is read by Prometheus each 15 s and reaches the HPA at its next sync, without a
//! `behavior`: a window of 300 s and a tolerance of 10 %.
//!
//! | policy | query | target | from |
//! |---|---|---|---|
//! | `hpa-queue` | `sum(vllm:num_requests_waiting)` | 5 a replica | vLLM production-stack's KEDA example |
//! | `hpa-concurrency` | sum of waiting and running | measured by the user | the same query |
//! | `hpa-concurrency-1m` | its mean over a minute | measured by the user | |
//! | `hpa-request-rate` | `sum(rate(vllm:request_success_total[1m]))` | measured by the user | |
//! | `hpa-gpu` | mean of `DCGM_FI_DEV_GPU_UTIL` over a minute, as a `Value` | 0.8 | the usual HPA target for processors |
//! | `hpa-kv` | `sum(vllm:kv_cache_usage_perc)` | 0.5 a replica | public examples use 0.5 to 0.8 |
//!
//! No series exists at zero replicas. A minimum of 0 works only with a second trigger, on the queue
//! of the gateway; it is given one.

use super::Baseline;
use super::series::{Counter, Scrapes, Window, each, in_flight, sum};
use crate::simulate::policy::{Action, Metric, Policy, Target, View};

/// The window of averages and rates, in seconds.
const MINUTE_S: f64 = 60.0;
/// How often KEDA could be asked: more often than the HPA does, so that no value is old.
const TICK_S: f64 = 1.0;
/// Requests in flight: from what breaks a prefill-bound service to what a decode-bound one carries.
const IN_FLIGHT: &[f64] =
    &[1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 160.0];

/// The policies on one metric each.
pub(super) const ALL: [Baseline; 6] = [
    Baseline {
        policy: "hpa-queue",
        knob: "target",
        documented: Some(5.0),
        sweep: &[0.1, 0.25, 0.5, 1.0, 2.0, 3.0],
        make: |target, _| Box::new(Hpa::new(Signal::Queue, target)),
    },
    Baseline {
        policy: "hpa-concurrency",
        knob: "target",
        documented: None,
        sweep: IN_FLIGHT,
        make: |target, _| Box::new(Hpa::new(Signal::Concurrency, target)),
    },
    Baseline {
        policy: "hpa-concurrency-1m",
        knob: "target",
        documented: None,
        sweep: IN_FLIGHT,
        make: |target, _| Box::new(Hpa::new(Signal::MeanConcurrency, target)),
    },
    Baseline {
        policy: "hpa-request-rate",
        knob: "target",
        documented: None,
        sweep: &[
            0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0,
            5.5, 6.0, 7.0, 8.0, 10.0, 12.0, 16.0,
        ],
        make: |target, _| Box::new(Hpa::new(Signal::RequestRate, target)),
    },
    Baseline {
        policy: "hpa-gpu",
        knob: "target",
        documented: Some(0.8),
        sweep: &[0.4, 0.5, 0.6, 0.7, 0.75, 0.85, 0.9],
        make: |target, _| Box::new(Hpa::new(Signal::GpuUse, target)),
    },
    Baseline {
        policy: "hpa-kv",
        knob: "target",
        documented: Some(0.5),
        sweep: &[0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8],
        make: |target, _| Box::new(Hpa::new(Signal::KvUse, target)),
    },
];

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Requests waiting in engines.
    Queue,
    /// Requests waiting and running in engines.
    Concurrency,
    /// The same, averaged over a minute.
    MeanConcurrency,
    /// Requests finished per second, over a minute.
    RequestRate,
    /// Share of the last minute in which a replica computed, averaged over the replicas.
    GpuUse,
    /// Share of the KV cache in use, summed over the replicas.
    KvUse,
}

/// One trigger with one metric.
#[derive(Debug)]
pub struct Hpa {
    signal: Signal,
    target: f64,
    scrapes: Scrapes,
    in_flight: Window,
    replicas: Window,
    finished: Counter,
    busy: Counter,
}

impl Hpa {
    /// A trigger on a signal with that target for each replica, above 0.
    #[must_use]
    pub fn new(signal: Signal, target: f64) -> Hpa {
        Hpa {
            signal,
            target,
            scrapes: Scrapes::default(),
            in_flight: Window::new(MINUTE_S),
            replicas: Window::new(MINUTE_S),
            finished: Counter::new(MINUTE_S),
            busy: Counter::new(MINUTE_S),
        }
    }

    fn value(&self, view: &View<'_>) -> f64 {
        match self.signal {
            Signal::Queue => sum(view, |engine| engine.sample.waiting),
            Signal::Concurrency => sum(view, in_flight),
            Signal::MeanConcurrency => self.in_flight.mean().unwrap_or(0.0),
            Signal::RequestRate => self.finished.rate(),
            Signal::GpuUse => {
                let replicas = self.replicas.mean().unwrap_or(0.0);
                (self.busy.rate() / replicas.max(1.0)).min(1.0)
            }
            Signal::KvUse => sum(view, |engine| engine.sample.kv_usage),
        }
    }
}

impl Policy for Hpa {
    fn tick_s(&self) -> f64 {
        TICK_S
    }

    fn tick(&mut self, view: &View<'_>) -> Action {
        if let Some(at_s) = self.scrapes.new_at_s(view) {
            self.in_flight.add(at_s, sum(view, in_flight));
            self.replicas.add(at_s, view.engines.len() as f64);
            self.finished.read(at_s, each(view, |engine| engine.sample.finished));
            self.busy.read(at_s, each(view, |engine| Some(engine.busy_s)));
        }
        self.in_flight.pass(view.now_s);
        self.replicas.pass(view.now_s);
        self.finished.pass(view.now_s);
        self.busy.pass(view.now_s);
        let target = match self.signal {
            Signal::GpuUse => Target::Value(self.target),
            Signal::Queue
            | Signal::Concurrency
            | Signal::MeanConcurrency
            | Signal::RequestRate
            | Signal::KvUse => Target::AverageValue(self.target),
        };
        let value = self.value(view);
        Action::Metrics {
            metrics: vec![Metric { value, target }],
            active: value > 0.0 || view.held > 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Scene, engine, metrics};
    use super::*;

    /// The last value that a signal gives after scrapes every 15 s.
    fn last(signal: Signal, scenes: Vec<Scene>) -> f64 {
        let mut hpa = Hpa::new(signal, 2.0);
        let mut value = 0.0;
        for (i, scene) in scenes.into_iter().enumerate() {
            let scene = scene.at(15.0 * i as f64);
            value = metrics(hpa.tick(&scene.view())).0[0].value;
        }
        value
    }

    fn two(waiting: f64, running: f64, kv: f64) -> Scene {
        Scene::new(2, vec![engine(1, waiting, running, kv), engine(2, 1.0, 2.0, 0.25)])
    }

    #[test]
    fn gauges_are_sums_over_the_replicas() {
        assert!((last(Signal::Queue, vec![two(4.0, 8.0, 0.5)]) - 5.0).abs() < 1e-9);
        assert!((last(Signal::Concurrency, vec![two(4.0, 8.0, 0.5)]) - 15.0).abs() < 1e-9);
        assert!((last(Signal::KvUse, vec![two(4.0, 8.0, 0.5)]) - 0.75).abs() < 1e-9);
    }

    #[test]
    fn the_average_is_that_of_the_last_four_scrapes() {
        let in_flight = [100.0, 3.0, 6.0, 9.0, 12.0];
        let scenes = in_flight.map(|n| Scene::new(1, vec![engine(1, 0.0, n, 0.0)])).to_vec();
        assert!((last(Signal::MeanConcurrency, scenes.clone()) - 7.5).abs() < 1e-9);
        assert!((last(Signal::Concurrency, scenes) - 12.0).abs() < 1e-9);
    }

    #[test]
    fn rates_are_those_of_the_last_minute() {
        let scene = |finished: f64, busy_s: f64| {
            let mut replica = engine(1, 0.0, 1.0, 0.1);
            replica.sample.finished = Some(finished);
            replica.busy_s = busy_s;
            Scene::new(1, vec![replica])
        };
        let scenes: Vec<Scene> =
            (0..6).map(|i| scene(f64::from(i * i), 12.0 * f64::from(i))).collect();
        // From 1 at 15 s to 25 at 75 s; 12 of each 15 s busy.
        assert!((last(Signal::RequestRate, scenes.clone()) - 24.0 / 60.0).abs() < 1e-9);
        assert!((last(Signal::GpuUse, scenes) - 0.8).abs() < 1e-9);
    }

    #[test]
    fn utilisation_scales_the_ready_replicas_and_everything_else_is_shared() {
        let target = |signal| metrics(Hpa::new(signal, 2.0).tick(&two(0.0, 0.0, 0.0).view())).0;
        assert_eq!(target(Signal::GpuUse)[0].target, Target::Value(2.0));
        assert_eq!(target(Signal::Queue)[0].target, Target::AverageValue(2.0));
    }

    #[test]
    fn at_zero_only_the_gateway_wakes() {
        let mut empty = Scene::new(0, Vec::new());
        let mut hpa = Hpa::new(Signal::Queue, 5.0);
        assert!(!metrics(hpa.tick(&empty.view())).1);
        empty.held = 1.0;
        let (metrics, active) = metrics(hpa.tick(&empty.view()));
        assert!(active);
        assert!(metrics[0].value.abs() < 1e-9);
    }
}
