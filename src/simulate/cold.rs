//! How long a pod takes from its order to its first request.
//!
//! Must not know who ordered it.

use loadgen::engine::{Profile, ps_from_secs};

use super::random::Random;

/// A cold start: a log-normal time to load, then the readiness probe and the endpoint's way to the
/// balancer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColdStart {
    /// Mean seconds to load.
    pub mean_s: f64,
    /// Sigma of their logarithm; 0 for starts that all take as long.
    pub sigma: f64,
    /// Whether readiness takes its time: a probe every 5 s and 2 s for the endpoint.
    pub readiness: bool,
}

/// Seconds between two readiness probes, and from ready to routed (Kubernetes: a period of 5-10 s
/// is usual, endpoints take 1-3 s).
const PROBE_S: f64 = 5.0;
const ENDPOINT_S: f64 = 2.0;
/// Sigma of a start whose mean is given.
const SIGMA: f64 = 0.2;

impl ColdStart {
    /// Starts of that mean.
    #[must_use]
    pub fn of_mean(mean_s: f64) -> ColdStart {
        ColdStart { mean_s, sigma: SIGMA, readiness: true }
    }

    /// What a profile says: its stages one after another.
    #[must_use]
    pub fn of_profile(profile: &Profile) -> ColdStart {
        let start = &profile.start;
        let stages = [start.schedule, start.pull, start.load, start.warm];
        // Of the sum of log-normal stages: the mean exactly, the spread by the widest of them.
        const Z_95: f64 = 1.644_853_626_951_472;
        let sigma = |stage: &loadgen::engine::Spread| (stage.p95_s / stage.median_s).ln() / Z_95;
        let mean =
            |stage: &loadgen::engine::Spread| stage.median_s * (sigma(stage).powi(2) / 2.0).exp();
        let mean_s: f64 = stages.iter().map(mean).sum();
        let variance: f64 = stages
            .iter()
            .map(|stage| mean(stage).powi(2) * (sigma(stage).powi(2).exp() - 1.0))
            .sum();
        let sigma = (variance / mean_s.powi(2)).ln_1p().sqrt();
        ColdStart { mean_s, sigma, readiness: true }
    }

    /// The same start without chance: every one takes the mean.
    #[must_use]
    pub fn certain(self) -> ColdStart {
        ColdStart { sigma: 0.0, ..self }
    }

    /// Mean seconds from the order to the first request.
    #[must_use]
    pub fn whole_s(&self) -> f64 {
        self.mean_s + if self.readiness { PROBE_S / 2.0 + ENDPOINT_S } else { 0.0 }
    }

    /// One start.
    pub(super) fn draw_ps(&self, rng: &mut Random) -> u64 {
        let load_s =
            self.mean_s * (self.sigma * rng.normal() - self.sigma * self.sigma / 2.0).exp();
        let uniform = if self.sigma > 0.0 { rng.uniform() } else { 0.5 };
        let ready_s = if self.readiness { PROBE_S * uniform + ENDPOINT_S } else { 0.0 };
        ps_from_secs(load_s + ready_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_have_the_mean_and_the_spread_that_were_asked_for() {
        let cold = ColdStart { readiness: false, ..ColdStart::of_mean(120.0) };
        let mut rng = Random::new(1, 0);
        let draws: Vec<f64> =
            (0..20_000).map(|_| loadgen::engine::secs_from_ps(cold.draw_ps(&mut rng))).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let spread =
            draws.iter().map(|s| (s / 120.0).ln().powi(2)).sum::<f64>() / draws.len() as f64;
        assert!((mean - 120.0).abs() < 1.0, "{mean}");
        assert!((spread.sqrt() - 0.2).abs() < 0.01, "{spread}");
    }

    #[test]
    fn a_profile_starts_in_the_sum_of_its_stages() {
        let cold = ColdStart::of_profile(&Profile::load("8b-a100").unwrap());
        // Medians add up to 78 s; the mean of a log-normal lies above its median.
        assert!((78.0..84.0).contains(&cold.mean_s), "{cold:?}");
        assert!((0.1..0.25).contains(&cold.sigma), "{cold:?}");
    }
}
