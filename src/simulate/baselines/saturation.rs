//! llm-d WVA's first analyser (V1): one replica more while the spare capacity of the unsaturated is
//! small, one less while it would stay large enough [b08b1c7, `internal/saturation/analyzer.go`].
//!
//! Must not take a second step before the first is seen.
//!
//! A replica is saturated at a KV-cache use of 0.8 or a queue of 5. The knob is `kvSpareTrigger`:
//! the larger, the earlier it adds; on cards with more KV cache than the service can fill, it is
//! the only setting that acts before a queue stands. It is swept without the HPA's damping
//! (`-direct`).

use super::Baseline;
use super::wva::{Peak, TICK_S, Way, Wva};
use crate::simulate::policy::{Action, Actuation, Policy, View};

/// `kvCacheThreshold`, `queueLengthThreshold`, `queueSpareTrigger`.
const KV_THRESHOLD: f64 = 0.80;
const QUEUE_THRESHOLD: f64 = 5.0;
const QUEUE_TRIGGER: f64 = 3.0;
/// Fewest unsaturated replicas of which one may go.
const MIN_UNSATURATED: usize = 2;
/// KV-cache use at which it adds: 0.8 less the trigger.
const TRIGGERS: &[f64] = &[0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.725, 0.75, 0.765, 0.78];

/// The analyser behind the chart's HPA, and behind one that lets it through.
pub(super) const ALL: [Baseline; 2] = [
    Baseline {
        policy: "llm-d-wva-v1",
        knob: "kvSpareTrigger",
        documented: Some(0.1),
        sweep: TRIGGERS,
        make: |trigger, _| Box::new(Saturation::new(Way::Chart, trigger)),
    },
    Baseline {
        policy: "llm-d-wva-v1-direct",
        knob: "kvSpareTrigger",
        documented: None,
        sweep: &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.725, 0.75, 0.765, 0.78],
        make: |trigger, context| Box::new(Saturation::new(Way::Direct(context.max), trigger)),
    },
];

#[derive(Debug)]
struct Saturation {
    way: Way,
    kv_trigger: f64,
    wva: Wva,
}

impl Saturation {
    fn new(way: Way, kv_trigger: f64) -> Saturation {
        Saturation { way, kv_trigger, wva: Wva::new() }
    }
}

impl Policy for Saturation {
    fn tick_s(&self) -> f64 {
        TICK_S
    }

    fn actuation(&self) -> Actuation {
        self.way.actuation()
    }

    fn tick(&mut self, view: &View<'_>) -> Action {
        self.wva.read(view);
        if !self.wva.is_due(view.now_s) {
            return self.wva.gauge(view);
        }
        let peaks = self.wva.peaks(view);
        let target = target(&peaks, view.counts.spec, self.wva.desired, self.kv_trigger);
        self.wva.publish(view, target)
    }
}

/// `CalculateSaturationTargets` for one variant.
fn target(peaks: &[Peak], current: u32, desired: Option<u32>, kv_trigger: f64) -> u32 {
    // While the last wish has not come true, or not every pod has metrics, it stands.
    let wished = desired.filter(|desired| *desired != 0 && *desired != current);
    if wished.is_some() || peaks.len() != current as usize {
        return wished.unwrap_or(current);
    }
    match analyse(peaks, kv_trigger) {
        Verdict::Up => current + 1,
        Verdict::Down => current.saturating_sub(1),
        Verdict::Stay => current,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Up,
    Down,
    Stay,
}

/// `AnalyzeModelSaturation`.
fn analyse(peaks: &[Peak], kv_trigger: f64) -> Verdict {
    let unsaturated: Vec<&Peak> = peaks
        .iter()
        .filter(|peak| peak.kv_usage < KV_THRESHOLD && peak.queue < QUEUE_THRESHOLD)
        .collect();
    if peaks.is_empty() {
        return Verdict::Stay;
    }
    let n = unsaturated.len() as f64;
    let mean = |of: fn(&Peak) -> f64| {
        // Where all are saturated nothing is spare.
        if unsaturated.is_empty() {
            0.0
        } else {
            unsaturated.iter().map(|p| of(p)).sum::<f64>() / n
        }
    };
    let spare_kv = mean(|peak| KV_THRESHOLD - peak.kv_usage);
    let spare_queue = mean(|peak| QUEUE_THRESHOLD - peak.queue);
    if spare_kv < kv_trigger || spare_queue < QUEUE_TRIGGER {
        return Verdict::Up;
    }
    if unsaturated.len() < MIN_UNSATURATED {
        return Verdict::Stay;
    }
    let spread = n / (n - 1.0);
    let kv_left = KV_THRESHOLD - (KV_THRESHOLD - spare_kv) * spread;
    let queue_left = QUEUE_THRESHOLD - (QUEUE_THRESHOLD - spare_queue) * spread;
    if kv_left >= kv_trigger && queue_left >= QUEUE_TRIGGER { Verdict::Down } else { Verdict::Stay }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Scene, engine, wanted};
    use super::*;

    fn peaks(all: &[(f64, f64)]) -> Vec<Peak> {
        all.iter()
            .map(|&(kv_usage, queue)| Peak { kv_usage, queue, kv_tokens: 100_000.0 })
            .collect()
    }

    #[test]
    fn spare_capacity_of_the_unsaturated_decides() {
        let table: [(&[(f64, f64)], Verdict); 9] = [
            // Spare 0.05 of the KV cache is below 0.1.
            (&[(0.75, 0.0), (0.75, 0.0)], Verdict::Up),
            // A queue of 2.5 leaves 2.5, below 3.
            (&[(0.1, 2.0), (0.1, 3.0)], Verdict::Up),
            // The saturated do not count into the mean …
            (&[(0.95, 9.0), (0.40, 0.0)], Verdict::Stay),
            // … and where all are, nothing is spare.
            (&[(0.80, 0.0), (0.10, 5.0)], Verdict::Up),
            (&[(0.30, 0.0), (0.30, 0.0)], Verdict::Down),
            // 0.36 would become 0.72: 0.08 spare.
            (&[(0.36, 0.0), (0.36, 0.0)], Verdict::Stay),
            // A queue of 1.2 would become 2.4: 2.6 spare.
            (&[(0.1, 1.2), (0.1, 1.2)], Verdict::Stay),
            // Three at 0.45 become two at 0.675.
            (&[(0.45, 0.0), (0.45, 0.0), (0.45, 0.0)], Verdict::Down),
            (&[(0.0, 0.0)], Verdict::Stay),
        ];
        for (loads, verdict) in table {
            assert_eq!(analyse(&peaks(loads), 0.1), verdict, "{loads:?}");
        }
        assert_eq!(analyse(&peaks(&[(0.3, 0.0), (0.3, 0.0)]), 0.6), Verdict::Up);
    }

    #[test]
    fn a_wish_stands_until_it_has_come_true_and_every_pod_is_seen() {
        let full = peaks(&[(0.9, 9.0), (0.9, 9.0)]);
        assert_eq!(target(&full, 2, None, 0.1), 3);
        assert_eq!(target(&full, 2, Some(3), 0.1), 3, "not carried out yet");
        assert_eq!(target(&full, 3, Some(3), 0.1), 3, "the third pod has no metrics yet");
        assert_eq!(target(&full, 2, Some(2), 0.1), 3);
        assert_eq!(target(&peaks(&[(0.0, 0.0); 2]), 2, Some(2), 0.1), 1);
    }

    #[test]
    fn the_peak_of_a_minute_counts_and_decisions_come_once_a_minute() {
        let mut policy = Saturation::new(Way::Chart, 0.1);
        let mut last = Vec::new();
        for tick in 0..=8 {
            // A queue only in the scrape at 15 s.
            let queue = if tick == 1 { 20.0 } else { 0.0 };
            let scene = Scene::new(1, vec![engine(1, queue, 1.0, 0.1)]);
            last.push(wanted(policy.tick(&scene.at(15.0 * f64::from(tick)).view())));
        }
        // Decided at 0 s (calm), at 60 s (the queue is 45 s old) and at 120 s (the wish stands).
        assert_eq!(last, [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn the_charts_hpa_swallows_a_step_of_one_from_eleven_on() {
        let Actuation::Keda { behavior: Some(behavior), .. } = Way::Chart.actuation() else {
            panic!("no behaviour");
        };
        let mut hpa = crate::hpa::Hpa::new(1, 64, Some(behavior));
        let mut at = crate::decision::Moment(0);
        let mut replicas = 11;
        for _ in 0..60 {
            replicas = hpa.sync(at, replicas, replicas, Some(12.0), 1.0);
            at = at.plus_millis(15_000);
        }
        assert_eq!(replicas, 11);
        for _ in 0..60 {
            replicas = hpa.sync(at, replicas, replicas, Some(13.0), 1.0);
            at = at.plus_millis(15_000);
        }
        assert_eq!(replicas, 13);
    }
}
