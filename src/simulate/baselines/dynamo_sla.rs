//! NVIDIA Dynamo's planner in its SLA mode, for aggregated engines [ai-dynamo/dynamo 0c6da1e,
//! `components/src/dynamo/planner/core/{load_scaling,throughput_scaling}.py`].
//!
//! Must not decide while a start or an end is under way.
//!
//! Every 5 s a model of the step time (`regression.rs`) learns from each engine and estimates
//! the next TTFT and ITL: all engines above a target add one replica; one goes where the survivors
//! would stay below 80 % of the targets (`load_scaling_down_sensitivity`) and within their KV cache.
//! Every 180 s the predicted load over what one engine serves within the targets becomes the least.
//!
//! Two inputs stand for the planner's own. The mean step of the last 5 s stands for the last forward
//! pass. And the load of the next 180 s is predicted to be that of the last (`load_predictor:
//! constant`): the default, an automatically chosen ARIMA model, is not rebuilt here.
//!
//! The knob is the share of the workload's SLO that the planner is given.

use std::collections::BTreeMap;

use super::dynamo::{TICK_S, settled};
use super::regression::{Limits, Regression, Step};
use super::series::{Counter, each, kv_tokens};
use super::{Baseline, count};
use crate::simulate::candidate::Context;
use crate::simulate::policy::{Action, Actuation, EngineView, Policy, Source, View};

/// `throughput_adjustment_interval`.
const THROUGHPUT_S: f64 = 180.0;
/// `load_scaling_down_sensitivity`.
const SENSITIVITY: f64 = 0.8;

/// The mode at a share of the SLO.
pub(super) const SLA: Baseline = Baseline {
    policy: "dynamo-sla",
    knob: "share of SLO",
    documented: Some(1.0),
    sweep: &[0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8],
    make: |share, context| Box::new(Sla::new(share, context)),
};

#[derive(Debug)]
struct Sla {
    limits: Limits,
    regression: Regression,
    last: BTreeMap<u32, Totals>,
    traffic: Traffic,
    least: u32,
}

impl Sla {
    fn new(share: f64, context: &Context) -> Sla {
        let (max_num_seqs, max_num_batched_tokens) = context.limits;
        let limits = Limits {
            ttft_s: context.slo.ttft_s * share,
            itl_s: context.slo.tpot_s * share,
            max_num_batched_tokens,
            max_num_seqs,
            kv_tokens: context.kv_tokens,
        };
        Sla {
            limits,
            regression: Regression::default(),
            last: BTreeMap::new(),
            traffic: Traffic::new(),
            least: 1,
        }
    }

    fn learn(&mut self, view: &View<'_>) {
        let mut now = BTreeMap::new();
        for engine in view.engines {
            let Some(totals) = Totals::of(engine) else { continue };
            let before = self.last.get(&engine.id).copied().unwrap_or_default();
            let steps = totals.steps - before.steps;
            let seconds = totals.busy_s - before.busy_s;
            if steps > 0.0 && seconds > 0.0 {
                let prompts = totals.prompts - before.prompts;
                let prompt_tokens = totals.prompt_tokens - before.prompt_tokens;
                if prompts > 0.0 {
                    self.regression.prompt_length.add(prompt_tokens / prompts);
                }
                let resident = kv_tokens(engine).unwrap_or(0.0);
                if let Some(running) = engine.sample.running.filter(|&n| n > 0.0) {
                    self.regression.decode_length.add(resident / running);
                }
                self.regression.add(Step {
                    prompt_tokens: prompt_tokens / steps,
                    kv_tokens: resident,
                    seconds: seconds / steps,
                });
            }
            now.insert(engine.id, totals);
        }
        self.last = now;
    }

    /// The load loop: replicas wanted, the present count if nothing is to be done.
    fn load(&self, engines: &[EngineView], workers: u32) -> Option<u32> {
        let prefill = self.by_ttft(engines, workers)?;
        let decode = self.by_itl(engines, workers)?;
        Some(match (prefill, decode) {
            (Verdict::Up, _) | (_, Verdict::Up) => workers + 1,
            (Verdict::Down, Verdict::Down) => workers - 1,
            (Verdict::Down | Verdict::Stay, Verdict::Down | Verdict::Stay) => workers,
        })
    }

    /// `_agg_prefill_scaling`: of the survivors' TTFT only what the queue adds is held against the
    /// sensitivity.
    fn by_ttft(&self, engines: &[EngineView], workers: u32) -> Option<Verdict> {
        let target_s = self.limits.ttft_s;
        let spread = spread(workers);
        let ttft_s = |queued, resident| self.regression.ttft_s(queued, resident, &self.limits);
        let (mut all_late, mut safe) = (true, workers > 1);
        for engine in engines {
            let (queued, resident) = (engine.queued_prompt_tokens, kv_tokens(engine)?);
            all_late &= ttft_s(queued, resident)? > target_s;
            let own_s = ttft_s(0.0, resident * spread)?;
            let budget_s = (target_s - own_s) * SENSITIVITY;
            let by_queue_s = ttft_s(queued * spread, resident * spread)? - own_s;
            safe &= budget_s > 0.0 && by_queue_s < budget_s;
        }
        Some(Verdict::of(all_late, safe))
    }

    /// `_agg_decode_scaling`.
    fn by_itl(&self, engines: &[EngineView], workers: u32) -> Option<Verdict> {
        let spread = spread(workers);
        let (mut all_slow, mut safe) = (true, workers > 1);
        for engine in engines {
            let resident = kv_tokens(engine)?;
            all_slow &= self.regression.itl_s(resident)? > self.limits.itl_s;
            let survivor = (resident + engine.queued_prompt_tokens) * spread;
            let fits = survivor < engine.sample.kv_tokens.unwrap_or(self.limits.kv_tokens);
            safe &= fits && self.regression.itl_s(survivor)? < self.limits.itl_s * SENSITIVITY;
        }
        Some(Verdict::of(all_slow, safe))
    }
}

impl Policy for Sla {
    fn tick_s(&self) -> f64 {
        TICK_S
    }

    fn source(&self) -> Source {
        Source::Direct
    }

    fn actuation(&self) -> Actuation {
        Actuation::Direct
    }

    fn tick(&mut self, view: &View<'_>) -> Action {
        self.learn(view);
        if let Some((rate, prompt, output)) = self.traffic.read(view)
            && let Some(best) = self.regression.best_rate(prompt, output, &self.limits)
        {
            self.least = count((rate / best).ceil()).max(1);
        }
        let Some(workers) = settled(view) else { return Action::Keep };
        if workers == 0 {
            return Action::Replicas(1);
        }
        if !self.regression.has_enough() || view.engines.is_empty() {
            return Action::Keep;
        }
        let wanted = self.load(view.engines, workers).unwrap_or(workers);
        Action::Replicas(wanted.max(self.least))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Up,
    Down,
    Stay,
}

impl Verdict {
    fn of(all_above: bool, safe_to_lose_one: bool) -> Verdict {
        if all_above {
            Verdict::Up
        } else if safe_to_lose_one {
            Verdict::Down
        } else {
            Verdict::Stay
        }
    }
}

/// How much more each survivor has when one of the workers is gone.
fn spread(workers: u32) -> f64 {
    if workers > 1 { f64::from(workers) / f64::from(workers - 1) } else { 1.0 }
}

/// An engine's counters.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    steps: f64,
    busy_s: f64,
    prompt_tokens: f64,
    prompts: f64,
}

impl Totals {
    fn of(engine: &EngineView) -> Option<Totals> {
        Some(Totals {
            steps: engine.sample.steps?,
            busy_s: engine.busy_s,
            prompt_tokens: engine.sample.prompt_tokens?,
            prompts: engine.sample.ttft_count?,
        })
    }
}

/// The load of the last 180 s.
#[derive(Debug)]
struct Traffic {
    prompt_tokens: Counter,
    prompts: Counter,
    output_tokens: Counter,
    finished: Counter,
    arrived: Option<(f64, f64)>,
}

impl Traffic {
    fn new() -> Traffic {
        let counter = || Counter::new(THROUGHPUT_S);
        Traffic {
            prompt_tokens: counter(),
            prompts: counter(),
            output_tokens: counter(),
            finished: counter(),
            arrived: None,
        }
    }

    /// Requests per second and their mean lengths, once an interval; nothing where nothing came.
    fn read(&mut self, view: &View<'_>) -> Option<(f64, f64, f64)> {
        let now_s = view.now_s;
        self.prompt_tokens.read(now_s, each(view, |engine| engine.sample.prompt_tokens));
        self.prompts.read(now_s, each(view, |engine| engine.sample.ttft_count));
        self.output_tokens.read(now_s, each(view, |e| e.sample.finished_generated_tokens));
        self.finished.read(now_s, each(view, |engine| engine.sample.finished));
        let (since_s, before) = *self.arrived.get_or_insert((now_s, view.arrived));
        if now_s < since_s + THROUGHPUT_S {
            return None;
        }
        self.arrived = Some((now_s, view.arrived));
        let rate = (view.arrived - before) / (now_s - since_s);
        let (prompts, finished) = (self.prompts.increase(), self.finished.increase());
        (prompts > 0.0 && finished > 0.0).then(|| {
            let prompt = self.prompt_tokens.increase() / prompts;
            (rate, prompt, self.output_tokens.increase() / finished)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Scene, engine};
    use super::*;
    use crate::simulate::policy::Slo;

    /// A planner that knows engines of 10 ms + 0.05 ms a prompt token + 0.1 µs a resident one, and
    /// requests of 1,000 prompt tokens and 1,200 resident.
    fn planner() -> Sla {
        let context = Context {
            min: 1,
            max: 20,
            slo: Slo { ttft_s: 1.0, tpot_s: 0.05 },
            kv_tokens: 400_000.0,
            limits: (256.0, 2_000.0),
            gpus: 1,
            mean_tokens: (1_000.0, 200.0),
            prefill_tokens_per_s: 13_000.0,
        };
        let mut planner = Sla::new(1.0, &context);
        for (prompt_tokens, kv_tokens) in
            [(0.0, 5e4), (400.0, 2e4), (0.0, 1e5), (100.0, 4e4), (0.0, 9e4)]
        {
            let seconds = 0.01 + 0.05e-3 * prompt_tokens + 0.1e-6 * kv_tokens;
            planner.regression.add(Step { prompt_tokens, kv_tokens, seconds });
        }
        planner.regression.prompt_length.add(1_000.0);
        planner.regression.decode_length.add(1_200.0);
        planner
    }

    fn engines(loads: &[(f64, f64)]) -> Vec<EngineView> {
        let of = |(&(queued, resident), id): (&(f64, f64), u32)| {
            let mut view = engine(id, 0.0, 50.0, resident / 400_000.0);
            view.sample.kv_tokens = Some(400_000.0);
            view.queued_prompt_tokens = queued;
            view
        };
        loads.iter().zip(0..).map(of).collect()
    }

    #[test]
    fn all_engines_above_a_target_add_one_and_safe_survivors_take_one() {
        let planner = planner();
        let wanted = |loads: &[(f64, f64)]| {
            planner.load(&engines(loads), u32::try_from(loads.len()).unwrap())
        };
        // Nine steps of 2,000 tokens and one of 1,000 are 9 × 0.12 + 0.07 s.
        assert_eq!(wanted(&[(18_000.0, 1e5)]), Some(2));
        assert_eq!(wanted(&[(18_000.0, 1e5), (0.0, 1e5)]), Some(2), "one of them is not late");
        // 10 ms + 6 ms + 0.1 µs × 400,000 is above 50 ms; so is it for both.
        assert_eq!(wanted(&[(0.0, 399_000.0), (0.0, 399_000.0)]), Some(3));
        // Both idle enough: 0.1 µs × 2 × 50,000 and no queue.
        assert_eq!(wanted(&[(0.0, 5e4), (0.0, 5e4)]), Some(1));
        assert_eq!(wanted(&[(0.0, 5e4)]), Some(1));
        // The survivor would take 10 + 6 + 26 ms, above 80 % of 50 ms.
        assert_eq!(wanted(&[(0.0, 1.3e5), (0.0, 1.3e5)]), Some(2));
        // However slow it may be: its cache has to hold both.
        let patient = Sla { limits: Limits { itl_s: 1.0, ..planner.limits }, ..planner };
        let wanted = |resident| patient.load(&engines(&[(0.0, resident); 2]), 2);
        assert_eq!((wanted(1.9e5), wanted(2e5)), (Some(1), Some(2)));
    }

    #[test]
    fn the_predicted_load_is_the_least() {
        let mut planner = planner();
        let mut wanted = Action::Keep;
        for tick in 0..=36 {
            let mut scene = Scene::new(2, engines(&[(0.0, 1e4), (0.0, 1e4)]));
            scene.arrived = 20.0 * 5.0 * f64::from(tick);
            for view in &mut scene.engines {
                let requests = 50.0 * f64::from(tick);
                view.sample.steps = Some(0.0);
                view.sample.prompt_tokens = Some(1_000.0 * requests);
                view.sample.ttft_count = Some(requests);
                view.sample.finished_generated_tokens = Some(200.0 * requests);
                view.sample.finished = Some(requests);
            }
            wanted = planner.tick(&scene.at(5.0 * f64::from(tick)).view());
        }
        // 20 requests/s; one engine serves 111 / (200 × 49.96 ms) = 11.1 of them.
        let best = planner.regression.best_rate(1_000.0, 200.0, &planner.limits).unwrap();
        assert!((11.0..11.2).contains(&best), "{best}");
        assert_eq!((planner.least, wanted), (2, Action::Replicas(2)));
    }

    #[test]
    fn the_mean_step_of_five_seconds_is_learned() {
        let mut planner = Sla { regression: Regression::default(), ..planner() };
        for tick in 0..8 {
            let mut scene = Scene::new(1, engines(&[(0.0, 1e4 * f64::from(tick % 3))]));
            let view = &mut scene.engines[0];
            let n = f64::from(tick);
            view.sample.steps = Some(100.0 * n);
            view.sample.prompt_tokens = Some(50_000.0 * n * n);
            view.sample.ttft_count = Some(50.0 * n);
            view.busy_s = 4.0 * n;
            planner.tick(&scene.at(5.0 * n).view());
        }
        assert!((planner.regression.prompt_length.mean() - 7_000.0).abs() < 1e-6);
    }
}
