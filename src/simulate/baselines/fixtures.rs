//! Views for the baselines' tests.

use crate::decision::{EngineSample, Moment};
use crate::simulate::policy::{Action, Counts, EngineView, Latencies, Metric, Slo, Target, View};

/// What a policy will see.
#[derive(Debug, Clone)]
pub(super) struct Scene {
    pub(super) now_s: f64,
    pub(super) spec: u32,
    pub(super) engines: Vec<EngineView>,
    pub(super) held: f64,
    pub(super) arrived: f64,
    pub(super) latencies: Latencies,
    pub(super) bounds: (u32, u32),
}

impl Scene {
    /// A fleet of `spec` replicas of which those that are given serve.
    pub(super) fn new(spec: u32, engines: Vec<EngineView>) -> Scene {
        Scene {
            now_s: 0.0,
            spec,
            engines,
            held: 0.0,
            arrived: 0.0,
            latencies: Latencies::default(),
            bounds: (1, 20),
        }
    }

    /// The same at another moment, just scraped.
    pub(super) fn at(mut self, now_s: f64) -> Scene {
        self.now_s = now_s;
        for engine in &mut self.engines {
            engine.sample.at = Moment(0).plus_millis(millis(now_s));
        }
        self
    }

    pub(super) fn view(&self) -> View<'_> {
        let ready = u32::try_from(self.engines.len()).unwrap();
        View {
            now_s: self.now_s,
            counts: Counts {
                spec: self.spec,
                ready,
                starting: self.spec - ready,
                ..Counts::default()
            },
            updating: false,
            pods: &[],
            engines: &self.engines,
            held: self.held,
            arrived: self.arrived,
            latencies: &self.latencies,
            bounds: self.bounds,
            slo: Slo { ttft_s: 2.0, tpot_s: 0.2 },
            cold_start_s: 120.0,
        }
    }
}

/// An engine with that many waiting and running, and that much of its 100,000 tokens in use.
pub(super) fn engine(id: u32, waiting: f64, running: f64, kv_usage: f64) -> EngineView {
    EngineView {
        id,
        ready_at_s: 0.0,
        sample: EngineSample {
            waiting: Some(waiting),
            running: Some(running),
            kv_usage: Some(kv_usage),
            kv_tokens: Some(100_000.0),
            ..EngineSample::default()
        },
        busy_s: 0.0,
        queued_prompt_tokens: 0.0,
    }
}

/// The metrics of an answer.
pub(super) fn metrics(action: Action) -> (Vec<Metric>, bool) {
    match action {
        Action::Metrics { metrics, active } => (metrics, active),
        Action::Keep | Action::Replicas(_) => panic!("no metrics: {action:?}"),
    }
}

/// The value of an answer with one metric whose target is 1, which is a number of replicas.
pub(super) fn wanted(action: Action) -> f64 {
    let (metrics, _) = metrics(action);
    assert_eq!(metrics.len(), 1);
    assert_eq!(metrics[0].target, Target::AverageValue(1.0));
    metrics[0].value
}

fn millis(seconds: f64) -> u64 {
    u64::try_from(crate::simulate::number::floor_index(seconds * 1e3)).unwrap()
}
