//! llm-d's autoscaling on latency [llm-d/llm-d d38c9f0,
//! `guides/workload-autoscaling/README.slo-aware.md`].
//!
//! Must not see single requests: it reads quantiles of histograms, as its recording rules do.
//!
//! The signal is `s`, the mean over 45 s of min(max(P90 TTFT / SLO, P90 TPOT / SLO), 2), each P90
//! over a minute, evaluated every 15 s from scrapes each 5 s. Above θ_up it adds
//! ceil(n (s c / θ_up − 1)) to the n provisioned replicas, where c is the share of them that is
//! ready; below θ_dn it takes floor(n (1 − s / θ_dn)) away. The HPA adds at most 100 % or 4 pods a
//! minute after 30 s, and takes one pod in 120 s after 180 s. The guide prefers latencies that
//! its router predicts and falls back to measured ones, which are what is here.
//!
//! The knob is θ_up, documented 0.55; θ_dn keeps its ratio of 0.40 / 0.55.

use std::collections::VecDeque;

use super::series::Window;
use super::{Baseline, count};
use crate::simulate::policy::{
    Action, Actuation, Behavior, Change, Latencies, Limit, Metric, Policy, Rules, Select, Slo,
    Source, TPOT_BOUNDS_S, TTFT_BOUNDS_S, Target, View,
};

/// Seconds between two evaluations of the recording rules.
const TICK_S: f64 = 15.0;
const SCRAPE_S: f64 = 5.0;
/// The window of the bucket rates, and of the mean.
const RATE_S: f64 = 60.0;
const MEAN_S: f64 = 45.0;
const QUANTILE: f64 = 0.9;
/// The most that one sample says.
const CLAMP: f64 = 2.0;
/// θ_dn over θ_up.
const DOWN_RATIO: f64 = 0.40 / 0.55;

/// The guide's control law.
pub(super) const SLO_AWARE: Baseline = Baseline {
    policy: "llm-d-slo-aware",
    knob: "up above",
    documented: Some(0.55),
    sweep: &[0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.3],
    make: |up, _| Box::new(SloAware::new(up)),
};

/// The control law, and the samples that it rests on.
#[derive(Debug)]
pub struct SloAware {
    up: f64,
    /// Histograms of the last minute, oldest first.
    seen: VecDeque<(f64, Latencies)>,
    signal: Window,
}

impl SloAware {
    /// A law that adds above that share of the SLO.
    #[must_use]
    pub fn new(up: f64) -> SloAware {
        SloAware { up, seen: VecDeque::new(), signal: Window::new(MEAN_S) }
    }

    /// P90 over the SLO, the worse of the two; 0 without traffic.
    fn saturation(&self, slo: Slo) -> f64 {
        let Some(((_, first), (_, last))) = self.seen.front().zip(self.seen.back()) else {
            return 0.0;
        };
        let share = |bounds: &[f64], first: &[u64], last: &[u64], slo_s: f64| {
            let grown: Vec<u64> =
                last.iter().zip(first).map(|(last, first)| last.saturating_sub(*first)).collect();
            quantile(QUANTILE, bounds, &grown).unwrap_or(0.0) / slo_s
        };
        let ttft = share(&TTFT_BOUNDS_S, &first.ttft, &last.ttft, slo.ttft_s);
        let tpot = share(&TPOT_BOUNDS_S, &first.tpot, &last.tpot, slo.tpot_s);
        ttft.max(tpot)
    }
}

impl Policy for SloAware {
    fn tick_s(&self) -> f64 {
        TICK_S
    }

    fn source(&self) -> Source {
        Source::Prometheus { interval_s: SCRAPE_S, delay_s: 1.0 }
    }

    fn actuation(&self) -> Actuation {
        let limit = |change, period_s: u64| Limit { change, period_ms: period_s * 1_000 };
        let rules = |window_ms, limits| Rules {
            tolerance: 0.1,
            window_ms,
            select: Select::Largest,
            limits,
        };
        let up = vec![limit(Change::Percent(100), 60), limit(Change::Pods(4), 60)];
        let down = vec![limit(Change::Pods(1), 120)];
        let behavior = Behavior { up: rules(30_000, up), down: rules(180_000, down) };
        Actuation::Keda { behavior: Some(behavior), push: false }
    }

    fn tick(&mut self, view: &View<'_>) -> Action {
        let now_s = view.now_s;
        self.seen.push_back((now_s, view.latencies.clone()));
        while self.seen.front().is_some_and(|&(at_s, _)| at_s < now_s - RATE_S) {
            self.seen.pop_front();
        }
        self.signal.add(now_s, self.saturation(view.slo).min(CLAMP));
        let signal = self.signal.mean().unwrap_or(0.0);
        let (provisioned, ready) = (view.counts.spec, view.counts.ready);
        let wanted = wanted(signal, provisioned, ready, self.up);
        let metric = Metric { value: f64::from(wanted), target: Target::AverageValue(1.0) };
        Action::Metrics { metrics: vec![metric], active: signal > 0.0 || view.held > 0.0 }
    }
}

/// The formula of the ScaledObject.
fn wanted(signal: f64, provisioned: u32, ready: u32, up: f64) -> u32 {
    let n = f64::from(provisioned);
    let down = up * DOWN_RATIO;
    if signal > up {
        let is_partly_ready = 0 < ready && ready < provisioned;
        let credit = if is_partly_ready { f64::from(ready) / n } else { 1.0 };
        count(n + (n * (signal * credit / up - 1.0)).ceil())
    } else if signal < down {
        count(n - (n * (1.0 - signal / down)).floor())
    } else {
        provisioned
    }
}

/// `histogram_quantile`, over buckets that are not cumulated and whose last is open.
fn quantile(share: f64, bounds: &[f64], counts: &[u64]) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    if total == 0 {
        return None;
    }
    let rank = share * total as f64;
    let mut below = 0.0;
    for (i, (&bound, &n)) in bounds.iter().zip(counts).enumerate() {
        let within = n as f64;
        if below + within >= rank && n > 0 {
            let start = if i == 0 { 0.0 } else { bounds[i - 1] };
            return Some(start + (bound - start) * (rank - below) / within);
        }
        below += within;
    }
    // In the open bucket the highest bound is all that is known.
    bounds.last().copied()
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Scene, engine, wanted as answer};
    use super::*;

    #[test]
    fn the_formula_adds_by_the_excess_and_takes_by_the_headroom() {
        // (signal, provisioned, ready, wanted)
        let table = [
            (0.50, 5, 5, 5),
            (0.55, 5, 5, 5),
            // 5 + ceil(5 × 0.0909)
            (0.60, 5, 5, 6),
            // 3 + ceil(3 × (2 / 0.55 − 1))
            (2.00, 3, 3, 11),
            // Half of them start: 8 + ceil(8 × (1.1 × 0.5 / 0.55 − 1)) = 8.
            (1.10, 8, 4, 8),
            // The credit may ask for less than is there: 8 + ceil(8 × (0.6 × 0.5 / 0.55 − 1)).
            (0.60, 8, 4, 5),
            (0.40, 5, 5, 5),
            // 5 − floor(5 × 0.25)
            (0.30, 5, 5, 4),
            (0.00, 5, 5, 0),
            // Scaling down gives no credit.
            (0.30, 8, 4, 6),
        ];
        for (signal, provisioned, ready, expected) in table {
            assert_eq!(wanted(signal, provisioned, ready, 0.55), expected, "{signal}");
        }
    }

    #[test]
    fn quantiles_are_interpolated_as_prometheus_does() {
        let bounds = [1.0, 2.0, 4.0];
        assert_eq!(quantile(0.9, &bounds, &[0, 0, 0, 0]), None);
        let of = |counts: &[u64]| quantile(0.9, &bounds, counts).unwrap();
        assert!((of(&[10, 0, 0, 0]) - 0.9).abs() < 1e-9);
        assert!((of(&[5, 5, 0, 0]) - 1.8).abs() < 1e-9);
        assert!((of(&[8, 0, 2, 0]) - 3.0).abs() < 1e-9);
        assert!((of(&[0, 0, 0, 3]) - 4.0).abs() < 1e-9);
    }

    #[test]
    fn the_signal_is_the_clamped_mean_of_three_samples_of_a_minute() {
        let mut policy = SloAware::new(0.55);
        let mut scene = Scene::new(4, (0..4).map(|id| engine(id, 0.0, 1.0, 0.1)).collect());
        let mut values = Vec::new();
        for tick in 0..=4 {
            if tick == 2 {
                // All of the minute's requests take 20 to 40 s: far above 2 × the SLO of 2 s.
                scene.latencies.ttft[17] += 100;
            }
            values.push(answer(policy.tick(&scene.clone().at(15.0 * f64::from(tick)).view())));
        }
        // s = 0, 0, 2/3, 4/3, 2.
        assert_eq!(values, [0.0, 0.0, 5.0, 10.0, 15.0]);
    }

    #[test]
    fn slow_tokens_count_as_late_first_ones() {
        let mut policy = SloAware::new(0.55);
        let mut scene = Scene::new(2, (0..2).map(|id| engine(id, 0.0, 1.0, 0.1)).collect());
        policy.tick(&scene.clone().at(0.0).view());
        scene.latencies.ttft[0] += 10;
        scene.latencies.tpot[7] += 10;
        policy.tick(&scene.at(15.0).view());
        // 0.29 s of 0.2 s.
        assert!((policy.saturation(Slo { ttft_s: 2.0, tpot_s: 0.2 }) - 1.45).abs() < 1e-9);
    }
}
