//! What both analysers of llm-d's Workload Variant Autoscaler (WVA) share: the peaks of a minute,
//! the interval, and the HPA that carries `wva_desired_replicas` out.
//!
//! Must not hold a decision: [`super::saturation`] (V1) and [`super::tokens`] (V2) do.
//!
//! Written from llm-d-workload-variant-autoscaler b08b1c7 (v0.5.0); intervals, thresholds and the
//! HPA's behaviour from its chart. One variant; Prometheus scrapes each 15 s.

use std::collections::BTreeMap;

use super::series::{Counter, Scrapes, Window, each};
use crate::simulate::policy::{
    Action, Actuation, Behavior, Change, EngineView, Limit, Metric, Rules, Select, Target, View,
};

/// Seconds between two readings, one scrape each.
pub(super) const TICK_S: f64 = 15.0;
/// `GLOBAL_OPT_INTERVAL`.
const INTERVAL_S: f64 = 60.0;
/// `max_over_time(…[1m])`.
const PEAK_S: f64 = 60.0;
/// `scaleToZero`'s retention: without one success for so long, zero.
const RETENTION_S: f64 = 600.0;

/// The highest of each pod over the last minute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Peak {
    /// Share of the KV cache in use.
    pub(super) kv_usage: f64,
    /// Requests waiting.
    pub(super) queue: f64,
    /// Tokens that the KV cache holds at most.
    pub(super) kv_tokens: f64,
}

/// What carries the gauge out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The HPA of the chart: 240 s of stabilisation both ways, 10 pods in 150 s, and the tolerance
    /// of 10 % that swallows every step of one pod from eleven on.
    Chart,
    /// An HPA that lets every wanted count through, up to so many.
    Direct(u32),
}

impl Way {
    pub(super) fn actuation(self) -> Actuation {
        let behavior = match self {
            Way::Direct(max) => Behavior::pass_through(max),
            Way::Chart => {
                let rules = Rules {
                    tolerance: 0.1,
                    window_ms: 240_000,
                    select: Select::Largest,
                    limits: vec![Limit { change: Change::Pods(10), period_ms: 150_000 }],
                };
                Behavior { up: rules.clone(), down: rules }
            }
        };
        Actuation::Keda { behavior: Some(behavior), push: false }
    }
}

/// Readings, and the gauge as it was last set.
#[derive(Debug)]
pub(super) struct Wva {
    scrapes: Scrapes,
    pods: BTreeMap<u32, (Window, Window)>,
    finished: Counter,
    next_decision_s: f64,
    started_s: Option<f64>,
    /// `wva_desired_replicas`.
    pub(super) desired: Option<u32>,
}

impl Wva {
    pub(super) fn new() -> Wva {
        Wva {
            scrapes: Scrapes::default(),
            pods: BTreeMap::new(),
            finished: Counter::new(RETENTION_S),
            next_decision_s: f64::NEG_INFINITY,
            started_s: None,
            desired: None,
        }
    }

    /// Takes in a scrape; says when it was, if it is new.
    pub(super) fn read(&mut self, view: &View<'_>) -> Option<f64> {
        self.pods.retain(|id, _| view.engines.iter().any(|engine| engine.id == *id));
        let at_s = self.scrapes.new_at_s(view)?;
        for engine in view.engines {
            let windows = || (Window::new(PEAK_S), Window::new(PEAK_S));
            let (kv, queue) = self.pods.entry(engine.id).or_insert_with(windows);
            kv.add(at_s, engine.sample.kv_usage.unwrap_or(0.0));
            queue.add(at_s, engine.sample.waiting.unwrap_or(0.0));
        }
        self.finished.read(at_s, each(view, |engine| engine.sample.finished));
        Some(at_s)
    }

    /// Whether the interval is over; the next one begins then.
    pub(super) fn is_due(&mut self, now_s: f64) -> bool {
        let is_due = now_s >= self.next_decision_s;
        if is_due {
            self.next_decision_s = now_s + INTERVAL_S;
        }
        is_due
    }

    pub(super) fn peaks(&self, view: &View<'_>) -> Vec<Peak> {
        let peak = |engine: &EngineView| {
            let (kv, queue) = self.pods.get(&engine.id)?;
            Some(Peak {
                kv_usage: kv.max()?,
                queue: queue.max()?,
                kv_tokens: engine.sample.kv_tokens?,
            })
        };
        view.engines.iter().filter_map(peak).collect()
    }

    /// Sets the gauge within the bounds. It is bounded here because a wish beyond them would never
    /// come true, and V1 waits for its wish; zero is wished for after the retention alone.
    pub(super) fn publish(&mut self, view: &View<'_>, target: u32) -> Action {
        let (min, max) = view.bounds;
        let started_s = *self.started_s.get_or_insert(view.now_s);
        let is_retained = view.now_s - started_s < RETENTION_S || self.finished.increase() > 0.0;
        let desired = if min == 0 && view.held <= 0.0 && !is_retained {
            0
        } else {
            target.clamp(min.max(1), max.max(1))
        };
        self.desired = Some(desired);
        self.gauge(view)
    }

    /// The gauge as it stands; at zero the gateway's queue wakes, which is polled ten times a second.
    pub(super) fn gauge(&mut self, view: &View<'_>) -> Action {
        if view.held > 0.0 && view.counts.spec == 0 {
            self.desired = Some(1);
        }
        let Some(desired) = self.desired else { return Action::Keep };
        let metric = Metric { value: f64::from(desired), target: Target::AverageValue(1.0) };
        Action::Metrics { metrics: vec![metric], active: desired > 0 }
    }
}
