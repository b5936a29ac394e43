//! What the engine's costs really are, for judging what was learned of them.
//!
//! Must not be shown to a policy.

use loadgen::engine::{Profile, Time, secs_from_ps};

use super::policy::Learning;
use super::scenario::Scenario;
use super::work::{Prices, Tokens, mean_context};
use super::workload::Workload;
use crate::decision::LearnedCost;

/// What is called learned: within this share of the truth.
const NEAR: f64 = 0.1;

/// The mean request of a workload, and what it really costs.
#[derive(Debug, Clone)]
pub struct Truth {
    tokens: Tokens,
    /// Mean tokens before each generated one.
    context: f64,
    kv_tokens: f64,
    /// Replica-seconds of the mean request at full batches, from which second on.
    request_s: Vec<(f64, f64)>,
    /// When it last became another engine, if ever; a drift is none.
    changed_at_s: Option<f64>,
}

impl Truth {
    pub(super) fn of(workload: &Workload, profile: &Profile, scenario: &Scenario) -> Truth {
        let requests = workload.counted();
        let n = requests.len().max(1) as f64;
        let mean = |of: fn(&super::workload::Request) -> u32| {
            requests.iter().map(|request| f64::from(of(request))).sum::<f64>() / n
        };
        let tokens = Tokens {
            prompt: mean(|request| request.prompt_tokens),
            cached: mean(|request| request.cached_tokens),
            output: mean(|request| request.output_tokens),
        };
        let context = mean_context(requests);
        let request_s = scenario.over_time(profile, workload.end, |profile| {
            let (prefill_s, decode_s) = Prices::loaded(profile).request(&tokens, context);
            prefill_s + decode_s
        });
        let request_s =
            request_s.into_iter().map(|(from, s)| (secs_from_ps(from.since(Time::ZERO)), s));
        let kv_tokens = profile.kv_tokens() as f64;
        let changed_at_s = scenario.changes.last().map(|change| change.at_s);
        Truth { tokens, context, kv_tokens, request_s: request_s.collect(), changed_at_s }
    }

    /// By what share a model is above (or below) the true cost of the mean request at a moment.
    #[must_use]
    pub fn error(&self, model: &LearnedCost, at_s: f64) -> f64 {
        let resident_ms = model.kv_ms / self.kv_tokens.max(1.0);
        let learned_ms = (self.tokens.prompt - self.tokens.cached) * model.prompt_ms
            + self.tokens.output * (model.generated_ms + resident_ms * self.context);
        let known = self.request_s.iter().take_while(|(from_s, _)| *from_s <= at_s);
        let true_s = known.last().map_or(f64::NAN, |&(_, s)| s);
        learned_ms / 1e3 / true_s - 1.0
    }

    /// Seconds since its first tick and the error then, minute by minute.
    #[must_use]
    pub fn errors(&self, learning: &Learning) -> Vec<(f64, f64)> {
        let course = learning.course.iter();
        course.map(|(at_s, model)| (at_s - learning.began_s, self.error(model, *at_s))).collect()
    }

    /// Seconds from its first tick until the model in force was within a tenth of the truth.
    #[must_use]
    pub fn near_after_s(&self, learning: &Learning) -> Option<f64> {
        self.near_since(learning, learning.began_s)
    }

    /// Seconds from the last change of the engine until the model in force was within a tenth of what
    /// is true since; `None` if it never changed.
    #[must_use]
    pub fn near_again_after_s(&self, learning: &Learning) -> Option<f64> {
        self.near_since(learning, self.changed_at_s?)
    }

    fn near_since(&self, learning: &Learning, since_s: f64) -> Option<f64> {
        let mut course = learning.course.iter().filter(|(at_s, _)| *at_s >= since_s);
        let near = course.find(|(at_s, model)| self.error(model, *at_s).abs() <= NEAR);
        near.map(|(at_s, _)| at_s - since_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::workload::Request;

    #[test]
    fn a_model_is_near_once_the_mean_request_costs_what_it_says() {
        let profile = Profile::load("8b-a100").unwrap();
        let request = Request {
            at: Time::ZERO,
            prompt_tokens: 1_000,
            cached_tokens: 200,
            output_tokens: 100,
        };
        let workload = Workload {
            requests: vec![request],
            counted_from: Time::ZERO,
            end: Time::from_millis(10_000),
            empty_rows: 0,
        };
        let truth = Truth::of(&workload, &profile, Scenario::NONE);
        let model = |factor: f64| LearnedCost {
            step_ms: 12.5,
            prompt_ms: 0.067 * factor,
            generated_ms: 0.067 * factor,
            // 82 ms for a million tokens.
            kv_ms: 82e-6 * profile.kv_tokens() as f64 * factor,
            error: 0.0,
            rows: 1.0,
        };
        assert!(truth.error(&model(1.0), 5.0).abs() < 1e-9);
        assert!((truth.error(&model(1.2), 5.0) - 0.2).abs() < 1e-9);
        let course = [(160.0, model(0.5)), (220.0, model(1.05)), (280.0, model(1.3))];
        let learning = Learning { began_s: 100.0, course: course.to_vec(), ..Learning::default() };
        assert_eq!(truth.near_after_s(&learning), Some(120.0));
        assert_eq!(truth.near_again_after_s(&learning), None, "it never changed");
        let twice_as_fast = (230.0, truth.request_s[0].1 / 2.0);
        let request_s = vec![truth.request_s[0], twice_as_fast];
        let changed = Truth { request_s, changed_at_s: Some(230.0), ..truth };
        let course = [(160.0, model(1.0)), (240.0, model(1.0)), (300.0, model(0.5))];
        let learning = Learning { course: course.to_vec(), ..learning };
        assert_eq!(changed.near_after_s(&learning), Some(60.0));
        assert_eq!(changed.near_again_after_s(&learning), Some(70.0));
    }
}
