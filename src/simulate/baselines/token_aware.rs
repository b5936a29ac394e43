//! llm-d's autoscaling on tokens [llm-d/llm-d 04c0115,
//! `guides/workload-autoscaling/keda-epp-token-aware`].
//!
//! Must not guess the one constant of the guide: it is measured on the engine, as the guide asks.
//!
//! Two triggers, of which the larger counts: ceil(queued prompt tokens / V_P / 1.5 s) and
//! ceil(Σ KV-cache use / 0.8). V_P is what one replica prefills per second: a full step's tokens over
//! the time to the first token of such a prompt on an empty replica (15,928 tokens/s for Qwen3-32B on
//! two H100). The HPA adds at most one pod in 180 s and takes one in 300 s, after 300 s.
//!
//! The knob is the seconds of backlog that a replica may have. Tokens that a prefix cache holds are
//! counted as queued.

use loadgen::engine::{Lean, LeanEvent, LeanRequest, Profile, Time, secs_from_ps};

use super::Baseline;
use super::series::sum;
use crate::simulate::policy::{
    Action, Actuation, Behavior, Change, Limit, Metric, Policy, Rules, Select, Target, View,
};

/// Pods' worth of KV cache for each replica.
const KV_USE: f64 = 0.8;
/// How often KEDA could be asked.
const TICK_S: f64 = 1.0;

/// The guide's two triggers.
pub(super) const TOKEN_AWARE: Baseline = Baseline {
    policy: "llm-d-token-aware",
    knob: "backlog seconds",
    documented: Some(1.5),
    sweep: &[0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 3.0],
    make: |seconds, context| Box::new(TokenAware::new(seconds, context.prefill_tokens_per_s)),
};

/// Both triggers.
#[derive(Debug)]
pub struct TokenAware {
    backlog_s: f64,
    prefill_tokens_per_s: f64,
}

impl TokenAware {
    /// Triggers with that many seconds of backlog for each replica and that speed of prefill.
    #[must_use]
    pub fn new(backlog_s: f64, prefill_tokens_per_s: f64) -> TokenAware {
        TokenAware { backlog_s, prefill_tokens_per_s }
    }
}

impl Policy for TokenAware {
    fn tick_s(&self) -> f64 {
        TICK_S
    }

    fn actuation(&self) -> Actuation {
        let rules = |window_ms, period_ms| Rules {
            tolerance: 0.1,
            window_ms,
            select: Select::Largest,
            limits: vec![Limit { change: Change::Pods(1), period_ms }],
        };
        let behavior = Behavior { up: rules(0, 180_000), down: rules(300_000, 300_000) };
        Actuation::Keda { behavior: Some(behavior), push: false }
    }

    fn tick(&mut self, view: &View<'_>) -> Action {
        let queued = sum(view, |engine| Some(engine.queued_prompt_tokens));
        let kv = sum(view, |engine| engine.sample.kv_usage);
        let metric = |value, target| Metric { value, target: Target::AverageValue(target) };
        let prefill = metric(queued / self.prefill_tokens_per_s, self.backlog_s);
        let decode = metric(kv, KV_USE);
        Action::Metrics {
            metrics: vec![prefill, decode],
            active: queued > 0.0 || kv > 0.0 || view.held > 0.0,
        }
    }
}

/// V_P of an engine, in tokens per second: the calibration that the guide prescribes.
pub(in crate::simulate) fn prefill_tokens_per_s(profile: &Profile) -> f64 {
    let tokens = profile.limits.max_num_batched_tokens;
    let mut engine = Lean::new(profile);
    let request = LeanRequest {
        id: 0,
        prompt_tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
        cached_tokens: 0,
        output_tokens: 1,
    };
    engine.submit(request, Time::ZERO);
    let mut ttft_s = 0.0;
    while let Some(at) = engine.next_event() {
        engine.advance(at, &mut |event| {
            if let LeanEvent::FirstToken { at, .. } = event {
                ttft_s = secs_from_ps(at.0);
            }
        });
    }
    tokens as f64 / ttft_s
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Scene, engine, metrics};
    use super::*;

    #[test]
    fn the_backlog_is_counted_in_seconds_and_the_cache_in_pods() {
        let mut scene = Scene::new(3, (0..3).map(|id| engine(id, 0.0, 1.0, 0.5)).collect());
        for replica in &mut scene.engines {
            replica.queued_prompt_tokens = 15_928.0;
        }
        let mut policy = TokenAware::new(1.5, 15_928.0);
        let (metrics, active) = metrics(policy.tick(&scene.view()));
        assert!(active);
        let wanted: Vec<f64> = metrics
            .iter()
            .map(|metric| match metric.target {
                Target::AverageValue(target) => (metric.value / target).ceil(),
                Target::Value(_) => panic!("shared values only"),
            })
            .collect();
        // 3 s of backlog at 1.5 s, and 1.5 pods' worth of cache at 0.8.
        assert_eq!(wanted, [2.0, 2.0]);
    }

    #[test]
    fn the_speed_of_prefill_is_that_of_a_full_step() {
        let profile = Profile::load("8b-a100").unwrap();
        let speed = prefill_tokens_per_s(&profile);
        // 2,048 tokens in 12.5 ms + 2,048 × 0.067 ms, and the front end's part.
        assert!((12_500.0..13_700.0).contains(&speed), "{speed}");
    }
}
