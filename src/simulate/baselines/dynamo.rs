//! NVIDIA Dynamo's planner in its load modes, for aggregated engines [ai-dynamo/dynamo 0c6da1e,
//! `components/src/dynamo/planner/core/load_scaling.py`].
//!
//! Must not decide while a start or an end is under way.
//!
//! Every 5 s each engine's KV-cache use is looked at, with the prompts that are queued: any above the
//! upper threshold adds one replica, all below the lower one take one. `dynamo-throughput` is the
//! default (1.0 and 0.6), `dynamo-latency` its sibling (0.4 and 0.1). The planner's budget of eight
//! GPUs is left to the bounds of the run.
//!
//! The knob is the upper threshold; the lower keeps its ratio. An engine's KV use stands for the
//! planner's scheduled and queued decode tokens.

use super::Baseline;
use super::series::kv_tokens;
use crate::simulate::policy::{Action, Actuation, EngineView, Policy, Source, View};

/// `load_adjustment_interval`.
pub(super) const TICK_S: f64 = 5.0;
/// The lower thresholds over the upper ones.
const THROUGHPUT_RATIO: f64 = 0.6;
const LATENCY_RATIO: f64 = 0.25;
const KV_USE: &[f64] = &[0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7];

/// Both easy modes.
pub(super) const ALL: [Baseline; 2] = [
    Baseline {
        policy: "dynamo-throughput",
        knob: "up above",
        documented: Some(1.0),
        sweep: KV_USE,
        make: |up, _| Box::new(Easy { up, down: up * THROUGHPUT_RATIO }),
    },
    Baseline {
        policy: "dynamo-latency",
        knob: "up above",
        documented: Some(0.4),
        sweep: KV_USE,
        make: |up, _| Box::new(Easy { up, down: up * LATENCY_RATIO }),
    },
];

/// Static thresholds.
#[derive(Debug)]
struct Easy {
    up: f64,
    down: f64,
}

impl Policy for Easy {
    fn tick_s(&self) -> f64 {
        TICK_S
    }

    fn source(&self) -> Source {
        Source::Direct
    }

    fn actuation(&self) -> Actuation {
        Actuation::Direct
    }

    fn memory_s(&self) -> f64 {
        600.0
    }

    fn tick(&mut self, view: &View<'_>) -> Action {
        let Some(workers) = settled(view) else { return Action::Keep };
        let uses: Vec<f64> = view.engines.iter().filter_map(kv_use).collect();
        if uses.iter().any(|&used| used > self.up) {
            Action::Replicas(workers + 1)
        } else if workers > 1 && uses.iter().all(|&used| used < self.down) {
            Action::Replicas(workers - 1)
        } else {
            Action::Keep
        }
    }
}

/// Workers, unless scaling is in progress or not every worker has reported; one is woken for what
/// the gateway holds, which the planner, whose minimum is 1, never has to.
pub(super) fn settled(view: &View<'_>) -> Option<u32> {
    let counts = view.counts;
    if counts.spec == 0 {
        return (view.held > 0.0).then_some(0);
    }
    let all_report = view.engines.len() == counts.ready as usize;
    (counts.ready == counts.spec && all_report).then_some(counts.ready)
}

fn kv_use(engine: &EngineView) -> Option<f64> {
    let all = engine.sample.kv_tokens.filter(|&tokens| tokens > 0.0)?;
    Some((kv_tokens(engine)? + engine.queued_prompt_tokens) / all)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Scene, engine};
    use super::*;

    /// The throughput mode's answer to engines of 100,000 tokens with that many resident and queued.
    fn answer(up: f64, ratio: f64, loads: &[(f64, f64)], spec: u32) -> Action {
        let engines = loads.iter().zip(0..).map(|(&(resident, queued), id)| EngineView {
            queued_prompt_tokens: queued,
            ..engine(id, 0.0, 1.0, resident / 100_000.0)
        });
        Easy { up, down: up * ratio }.tick(&Scene::new(spec, engines.collect()).view())
    }

    #[test]
    fn any_engine_above_adds_and_all_below_take_away() {
        let throughput = |loads: &[(f64, f64)]| {
            answer(1.0, THROUGHPUT_RATIO, loads, u32::try_from(loads.len()).unwrap())
        };
        let table: [(&[(f64, f64)], Action); 7] = [
            (&[(110_000.0, 0.0)], Action::Replicas(2)),
            (&[(20_000.0, 90_000.0)], Action::Replicas(2)),
            (&[(30_000.0, 0.0), (30_000.0, 0.0)], Action::Replicas(1)),
            (&[(70_000.0, 0.0), (70_000.0, 0.0)], Action::Keep),
            (&[(50_000.0, 0.0), (80_000.0, 30_000.0)], Action::Replicas(3)),
            (&[(20_000.0, 0.0), (70_000.0, 0.0)], Action::Keep),
            (&[(5_000.0, 0.0)], Action::Keep),
        ];
        for (loads, expected) in table {
            assert_eq!(throughput(loads), expected, "{loads:?}");
        }
        let latency = |loads: &[(f64, f64)]| answer(0.4, LATENCY_RATIO, loads, 2);
        assert_eq!(latency(&[(45_000.0, 0.0), (0.0, 0.0)]), Action::Replicas(3));
        assert_eq!(latency(&[(5_000.0, 0.0), (5_000.0, 0.0)]), Action::Replicas(1));
        assert_eq!(latency(&[(15_000.0, 0.0), (5_000.0, 0.0)]), Action::Keep);
    }

    #[test]
    fn nothing_is_decided_while_scaling_is_in_progress() {
        assert_eq!(answer(1.0, THROUGHPUT_RATIO, &[(150_000.0, 0.0)], 2), Action::Keep);
    }
}
