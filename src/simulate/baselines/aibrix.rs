//! AIBrix's pod autoscalers APA and KPA [vllm-project/aibrix e3e10f9, `pkg/controller/podautoscaler`].
//!
//! Must not repair what was read in the code, but in the policies that say so.
//!
//! Every 10 s the mean over the pods of one metric goes into windows of 180 s (stable) and 60 s
//! (panic); the shipped samples target a KV-cache use of 0.5. Rates up and down 2, tolerances 10 %,
//! a cooldown of 300 s for scaling down. `scaleToZero` is off: never below 1.
//!
//! Three things do not do what their names say, so that each policy is there twice:
//! - the KPA divides a mean per pod by the target per pod without the number of pods: with a target
//!   of 0.5 it never wants more than two;
//! - the cooldown takes the *least* recommendation of its window for scaling down, where the HPA
//!   takes the largest;
//! - the most pods of a panic are forgotten at once (`SetMaxPanicPods` does nothing), and a stable
//!   average of 0 counts as panic.
//!
//! The `-intended` policies take the number of pods, the largest recommendation and the memory of a
//! panic, for as long as it lasts.

use super::series::{Window, each};
use super::{Baseline, count};
use crate::simulate::policy::{Action, Actuation, Policy, Source, View};

/// Seconds between two reconciliations.
const TICK_S: f64 = 10.0;
/// Windows of the metric, and of scaling down.
const STABLE_S: f64 = 180.0;
const PANIC_S: f64 = 60.0;
const COOLDOWN_S: f64 = 300.0;
/// `MaxScaleUpRate`, `MaxScaleDownRate` and both fluctuation tolerances.
const UP_RATE: f64 = 2.0;
const DOWN_RATE: f64 = 2.0;
const TOLERANCE: f64 = 0.1;
/// `PanicThreshold`: the panic average over the stable one.
const PANIC_THRESHOLD: f64 = 2.0;
const KV_USE: &[f64] = &[0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.7];

/// Both algorithms, as coded and as intended.
pub(super) const ALL: [Baseline; 4] = [
    Baseline {
        policy: "aibrix-apa",
        knob: "target",
        documented: Some(0.5),
        sweep: KV_USE,
        make: |target, _| Box::new(Aibrix::new(Algorithm::Apa, Reading::AsCoded, target)),
    },
    Baseline {
        policy: "aibrix-apa-intended",
        knob: "target",
        documented: None,
        sweep: KV_USE,
        make: |target, _| Box::new(Aibrix::new(Algorithm::Apa, Reading::AsIntended, target)),
    },
    Baseline {
        policy: "aibrix-kpa",
        knob: "target",
        documented: Some(0.5),
        sweep: KV_USE,
        make: |target, _| Box::new(Aibrix::new(Algorithm::Kpa, Reading::AsCoded, target)),
    },
    Baseline {
        policy: "aibrix-kpa-intended",
        knob: "target",
        documented: None,
        sweep: KV_USE,
        make: |target, _| Box::new(Aibrix::new(Algorithm::Kpa, Reading::AsIntended, target)),
    },
];

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Scales what is there by the ratio to the target.
    Apa,
    /// After Knative, with a panic.
    Kpa,
}

/// How the code is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// As it runs.
    AsCoded,
    /// As its names and comments say.
    AsIntended,
}

/// A pod autoscaler on KV-cache use.
#[derive(Debug)]
pub struct Aibrix {
    algorithm: Algorithm,
    reading: Reading,
    target: f64,
    stable: Window,
    panic: Window,
    cooldown: Window,
    most_in_panic: u32,
}

impl Aibrix {
    /// An autoscaler with that target for each pod, above 0.
    #[must_use]
    pub fn new(algorithm: Algorithm, reading: Reading, target: f64) -> Aibrix {
        Aibrix {
            algorithm,
            reading,
            target,
            stable: Window::new(STABLE_S),
            panic: Window::new(PANIC_S),
            cooldown: Window::new(COOLDOWN_S),
            most_in_panic: 0,
        }
    }

    fn recommend(&mut self, replicas: u32) -> u32 {
        let stable = self.stable.mean().unwrap_or(0.0);
        let panic = self.panic.mean().unwrap_or(0.0);
        match self.algorithm {
            Algorithm::Apa => apa(replicas, stable / self.target, UP_RATE, DOWN_RATE),
            Algorithm::Kpa => {
                let panics = match self.reading {
                    Reading::AsCoded => stable <= 0.0 || panic / stable > PANIC_THRESHOLD,
                    Reading::AsIntended => stable > 0.0 && panic / stable > PANIC_THRESHOLD,
                };
                let pods = match self.reading {
                    Reading::AsCoded => 1.0,
                    Reading::AsIntended => f64::from(replicas),
                };
                let wanted = |value: f64| kpa(replicas, value / self.target, pods, UP_RATE);
                if !panics {
                    self.most_in_panic = 0;
                    return wanted(stable);
                }
                let wanted = wanted(stable).max(wanted(panic));
                if self.reading == Reading::AsIntended {
                    self.most_in_panic = self.most_in_panic.max(wanted);
                }
                self.most_in_panic.max(wanted)
            }
        }
    }

    /// `stabilizeRecommendation`.
    fn stabilise(&mut self, now_s: f64, recommended: u32, current: u32) -> u32 {
        self.cooldown.add(now_s, f64::from(recommended));
        if recommended >= current {
            return recommended;
        }
        let stable = match self.reading {
            Reading::AsCoded => self.cooldown.min(),
            Reading::AsIntended => self.cooldown.max(),
        };
        stable.map_or(recommended, count).min(current)
    }
}

impl Policy for Aibrix {
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
        let mut mean = Window::new(f64::INFINITY);
        each(view, |engine| engine.sample.kv_usage).for_each(|(_, use_)| mean.add(0.0, use_));
        // Without one metric the reconciliation fails.
        let Some(value) = mean.mean() else { return Action::Keep };
        self.stable.add(view.now_s, value);
        self.panic.add(view.now_s, value);
        let current = view.counts.spec;
        let recommended = self.recommend(current).max(1);
        Action::Replicas(self.stabilise(view.now_s, recommended, current))
    }
}

/// `APAAlgorithm.computeTargetReplicas` for a ratio of use to target.
fn apa(replicas: u32, ratio: f64, up_rate: f64, down_rate: f64) -> u32 {
    let n = f64::from(replicas);
    let wanted = (n * ratio).ceil();
    if ratio > 1.0 + TOLERANCE {
        count(wanted.min((up_rate * n).ceil()))
    } else if ratio < 1.0 - TOLERANCE {
        count(wanted.max((n / down_rate).floor()))
    } else {
        replicas
    }
}

/// `KPAAlgorithm.computeTargetReplicas` for one of its two averages; `pods` is what the ratio of
/// means is multiplied by.
fn kpa(replicas: u32, ratio: f64, pods: f64, up_rate: f64) -> u32 {
    let n = f64::from(replicas);
    let (most, fewest) = ((up_rate * n).ceil().max(1.0), (n / DOWN_RATE).floor());
    if (1.0 - TOLERANCE..=1.0 + TOLERANCE).contains(&ratio) {
        return replicas;
    }
    count((ratio * pods).ceil().max(fewest).min(most))
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Scene, engine};
    use super::*;

    #[test]
    fn apa_wants_what_its_own_table_says() {
        // (replicas, use, up rate, down rate, wanted), each at a target of 30
        let table = [
            (2, 45.0, 2.0, 2.0, 3),
            (2, 35.0, 2.0, 2.0, 3),
            (2, 90.0, 2.0, 2.0, 4),
            (2, 90.0, 2.5, 2.0, 5),
            (6, 20.0, 2.0, 2.0, 4),
            (6, 18.0, 2.0, 2.0, 4),
            (6, 10.0, 2.0, 2.0, 3),
            (6, 5.0, 2.0, 2.5, 2),
            (2, 33.0, 2.0, 2.0, 2),
            (2, 27.0, 2.0, 2.0, 2),
        ];
        for (replicas, value, up, down, wanted) in table {
            assert_eq!(apa(replicas, value / 30.0, up, down), wanted, "{replicas} at {value}");
        }
    }

    #[test]
    fn kpa_wants_what_its_own_table_says() {
        // (replicas, average over target, up rate, wanted)
        let table = [
            (2, 2.0, 2.0, 2),
            (2, 3.0, 2.0, 3),
            (2, 4.0, 2.0, 4),
            (1, 0.0, 2.0, 0),
            (2, 10.0, 1.5, 3),
            (4, 0.5, 2.0, 2),
        ];
        for (replicas, ratio, up, wanted) in table {
            assert_eq!(kpa(replicas, ratio, 1.0, up), wanted, "{replicas} at {ratio}");
        }
    }

    /// What comes of a KV-cache use that stays, from a number of replicas that all serve.
    fn settled(algorithm: Algorithm, reading: Reading, start: u32, kv: f64, ticks: u32) -> u32 {
        let mut policy = Aibrix::new(algorithm, reading, 0.5);
        let mut replicas = start;
        for tick in 0..ticks {
            let engines = (0..replicas).map(|id| engine(id, 0.0, 1.0, kv)).collect();
            let scene = Scene::new(replicas, engines).at(10.0 * f64::from(tick));
            if let Action::Replicas(wanted) = policy.tick(&scene.view()) {
                replicas = wanted.min(50);
            }
        }
        replicas
    }

    #[test]
    fn kpa_as_coded_never_wants_more_than_two_at_a_full_cache() {
        assert_eq!(settled(Algorithm::Kpa, Reading::AsCoded, 1, 1.0, 60), 2);
        assert_eq!(settled(Algorithm::Kpa, Reading::AsCoded, 8, 1.0, 200), 2);
        assert_eq!(settled(Algorithm::Kpa, Reading::AsIntended, 1, 1.0, 60), 50);
    }

    #[test]
    fn within_the_tolerance_nothing_moves() {
        for algorithm in [Algorithm::Apa, Algorithm::Kpa] {
            for reading in [Reading::AsCoded, Reading::AsIntended] {
                assert_eq!(settled(algorithm, reading, 7, 0.54, 30), 7);
                assert_eq!(settled(algorithm, reading, 7, 0.46, 30), 7);
            }
        }
    }

    #[test]
    fn the_cooldown_takes_the_least_as_coded_and_the_most_as_intended() {
        for (reading, wanted) in [(Reading::AsCoded, 2), (Reading::AsIntended, 7)] {
            let mut policy = Aibrix::new(Algorithm::Apa, reading, 0.5);
            assert_eq!(policy.stabilise(0.0, 2, 2), 2);
            assert_eq!(policy.stabilise(10.0, 7, 5), 7, "up at once");
            assert_eq!(policy.stabilise(20.0, 6, 8), wanted);
        }
    }

    #[test]
    fn the_intended_panic_is_remembered_while_it_lasts() {
        let mut policy = Aibrix::new(Algorithm::Kpa, Reading::AsIntended, 0.5);
        policy.stable.add(0.0, 0.4);
        policy.panic.add(0.0, 2.0);
        // ceil(4 × 10) within twice what is there.
        assert_eq!(policy.recommend(10), 20);
        policy.panic.add(0.0, 0.0);
        policy.panic.add(0.0, 1.0);
        assert_eq!(policy.recommend(5), 20);
        policy.panic.add(0.0, 0.0);
        policy.panic.add(0.0, 0.0);
        policy.panic.add(0.0, 0.0);
        assert_eq!(policy.recommend(5), 4, "calm: ceil(0.8 × 5)");
    }
}
