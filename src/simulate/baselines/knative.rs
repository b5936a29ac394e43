//! Knative's pod autoscaler (KPA) on concurrency [knative/serving 98e5ef90,
//! `pkg/autoscaler/scaling/autoscaler.go`, `config/core/configmaps/autoscaler.yaml`].
//!
//! Must not route: the burst capacity of 211 decides only whether the activator stands in the way.
//!
//! Averages are totals over the revision: every second for 60 s (stable) and 6 s (panic), with what
//! the activator holds. The documented target is 100 in flight at 70 %. Panic lasts 60 s after the
//! last time that the panic average wanted twice what is ready, which is less than a cold start of
//! an inference server takes: what panic ordered is deleted before it serves. `knative-kpa-delayed`
//! has a `scale-down-delay` of 300 s against that.

use super::series::{Window, in_flight, sum};
use super::{Baseline, count};
use crate::simulate::policy::{Action, Actuation, Policy, Source, View};

/// Seconds between two scrapes of the queue proxies, and between two decisions.
const SCRAPE_S: f64 = 1.0;
const TICK_S: f64 = 2.0;
/// `stable-window`, and the share of it that panic looks at (`panic-window-percentage`).
const STABLE_S: f64 = 60.0;
const PANIC_S: f64 = 6.0;
/// `scale-to-zero-grace-period`.
const GRACE_S: f64 = 30.0;
const IN_FLIGHT: &[f64] =
    &[1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0];

/// The autoscaler as it comes, and with a delay of scaling down.
pub(super) const ALL: [Baseline; 2] = [
    Baseline {
        policy: "knative-kpa",
        knob: "target",
        documented: Some(70.0),
        sweep: IN_FLIGHT,
        make: |target, _| Box::new(Knative::new(Config::new(target))),
    },
    Baseline {
        policy: "knative-kpa-delayed",
        knob: "target",
        documented: None,
        sweep: IN_FLIGHT,
        make: |target, _| {
            Box::new(Knative::new(Config { down_delay_s: 300.0, ..Config::new(target) }))
        },
    },
];

/// Settings of the autoscaler.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// Requests in flight for each pod, above 0.
    pub target: f64,
    /// `max-scale-up-rate`.
    pub up_rate: f64,
    /// `max-scale-down-rate`.
    pub down_rate: f64,
    /// `panic-threshold-percentage`, as a ratio.
    pub panic_threshold: f64,
    /// `scale-down-delay` in seconds; 0 for none.
    pub down_delay_s: f64,
}

impl Config {
    /// Knative's defaults with that target.
    #[must_use]
    pub fn new(target: f64) -> Config {
        Config { target, up_rate: 1_000.0, down_rate: 2.0, panic_threshold: 2.0, down_delay_s: 0.0 }
    }
}

/// The autoscaler and what feeds it.
#[derive(Debug)]
pub struct Knative {
    config: Config,
    kpa: Option<Kpa>,
    stable: Window,
    panic: Window,
    next_decision_s: f64,
    zero: Zero,
}

impl Knative {
    /// An autoscaler that has seen nothing yet.
    #[must_use]
    pub fn new(config: Config) -> Knative {
        Knative {
            config,
            kpa: None,
            stable: Window::new(STABLE_S),
            panic: Window::new(PANIC_S),
            next_decision_s: f64::NEG_INFINITY,
            zero: Zero::default(),
        }
    }
}

impl Policy for Knative {
    fn tick_s(&self) -> f64 {
        SCRAPE_S
    }

    fn source(&self) -> Source {
        Source::Direct
    }

    fn actuation(&self) -> Actuation {
        Actuation::Direct
    }

    fn tick(&mut self, view: &View<'_>) -> Action {
        let now_s = view.now_s;
        let concurrency = sum(view, in_flight) + view.held;
        self.stable.add(now_s, concurrency);
        self.panic.add(now_s, concurrency);
        if now_s < self.next_decision_s {
            return Action::Keep;
        }
        self.next_decision_s = now_s + TICK_S;
        let ready = view.counts.ready;
        let kpa = self.kpa.get_or_insert_with(|| Kpa::new(self.config, ready, now_s));
        let averages = (self.stable.mean().unwrap_or(0.0), self.panic.mean().unwrap_or(0.0));
        let desired = kpa.scale(now_s, ready, averages);
        Action::Replicas(self.zero.apply(now_s, desired, view.counts.spec))
    }
}

/// The decision itself.
#[derive(Debug)]
struct Kpa {
    config: Config,
    panic_since_s: Option<f64>,
    most_in_panic: u32,
    delayed: Option<Window>,
}

impl Kpa {
    /// It starts in panic where more than one pod is ready, so that a restart drops nothing.
    fn new(config: Config, ready: u32, now_s: f64) -> Kpa {
        Kpa {
            config,
            panic_since_s: (ready > 1).then_some(now_s),
            most_in_panic: ready,
            delayed: (config.down_delay_s > 0.0).then(|| Window::new(config.down_delay_s)),
        }
    }

    /// Pods wanted with the stable and the panic average of the requests in flight.
    fn scale(&mut self, now_s: f64, ready: u32, (stable, panic): (f64, f64)) -> u32 {
        let config = &self.config;
        let ready = f64::from(ready.max(1));
        let most = (config.up_rate * ready).ceil();
        let fewest = (ready / config.down_rate).floor();
        let for_stable = (stable / config.target).ceil();
        let for_panic = (panic / config.target).ceil();
        let within = |pods: f64| count(pods.max(fewest).min(most));

        if for_panic / ready >= config.panic_threshold {
            self.panic_since_s = Some(now_s);
        } else if self.panic_since_s.is_some_and(|since_s| since_s + STABLE_S < now_s) {
            self.panic_since_s = None;
            self.most_in_panic = 0;
        }
        let mut desired = within(for_stable);
        if self.panic_since_s.is_some() {
            self.most_in_panic = self.most_in_panic.max(desired).max(within(for_panic));
            desired = self.most_in_panic;
        }
        let Some(delayed) = &mut self.delayed else { return desired };
        delayed.add(now_s, f64::from(desired));
        delayed.max().map_or(desired, count)
    }
}

/// The way to zero: a revision that has been active for a stable window is let go after the grace
/// period, in which the activator is put into its way.
#[derive(Debug, Default)]
struct Zero {
    active_since_s: Option<f64>,
    idle_since_s: Option<f64>,
}

impl Zero {
    fn apply(&mut self, now_s: f64, desired: u32, spec: u32) -> u32 {
        if spec == 0 {
            self.active_since_s = None;
        }
        if desired > 0 {
            self.idle_since_s = None;
            self.active_since_s.get_or_insert(now_s);
            return desired;
        }
        let active_since_s = *self.active_since_s.get_or_insert(now_s);
        if spec == 0 {
            return 0;
        }
        if now_s - active_since_s < STABLE_S {
            return 1;
        }
        let idle_since_s = *self.idle_since_s.get_or_insert(now_s);
        u32::from(now_s - idle_since_s < GRACE_S)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Scene, engine};
    use super::*;

    /// The settings of Knative's own table: both rates 10, threshold 2.
    fn kpa(target: f64) -> Kpa {
        Kpa::new(Config { up_rate: 10.0, down_rate: 10.0, ..Config::new(target) }, 1, 0.0)
    }

    #[test]
    fn it_wants_what_knatives_own_table_says() {
        // (target, up rate, down rate, ready, stable, panic, wanted)
        let table = [
            (10.0, 10.0, 10.0, 1, 0.0, 0.0, 0),
            (181.0, 10.0, 10.0, 1, 21.0, 26.0, 1),
            (10.0, 10.0, 10.0, 1, 50.0, 49.0, 5),
            (10.0, 10.0, 10.0, 1, 50.0, 10.0, 5),
            (10.0, 10.0, 10.0, 5, 50.0, 50.0, 5),
            (1.0, 1.1, 10.0, 2, 3.0, 3.1, 3),
            (10.0, 10.0, 1.1, 100, 1.0, 1.0, 90),
            (10.0, 10.0, 10.0, 1, 50.0, 100.0, 10),
            (10.0, 10.0, 10.0, 1, 1_000.0, 1_001.0, 10),
            (10.0, 10.0, 10.0, 100, 1.0, 1.0, 10),
            (10.0, 10.0, 10.0, 0, 1_000.0, 888.0, 10),
        ];
        for (target, up_rate, down_rate, ready, stable, panic, wanted) in table {
            let mut kpa = kpa(target);
            kpa.config = Config { up_rate, down_rate, ..kpa.config };
            assert_eq!(kpa.scale(0.0, ready, (stable, panic)), wanted, "{target} {stable} {panic}");
        }
    }

    #[test]
    fn in_panic_the_larger_average_counts_and_nothing_goes_down() {
        for (stable, panic, wanted) in [(50.0, 30.0, 50), (20.0, 30.0, 30)] {
            let mut kpa = kpa(1.0);
            kpa.panic_since_s = Some(-5.0);
            kpa.most_in_panic = 5;
            assert_eq!(kpa.scale(0.0, 5, (stable, panic)), wanted);
        }
        let mut kpa = kpa(10.0);
        assert_eq!(kpa.scale(0.0, 1, (100.0, 100.0)), 10);
        assert_eq!(kpa.scale(0.0, 10, (100.0, 1_000.0)), 100);
        assert_eq!(kpa.scale(30.0, 10, (1.0, 1.0)), 100);
        assert_eq!(kpa.scale(61.0, 10, (1.0, 1.0)), 1);
    }

    #[test]
    fn panic_ends_a_stable_window_after_the_last_crossing() {
        let mut slow = kpa(1.0);
        assert_eq!(slow.scale(0.0, 10, (11.0, 25.0)), 25);
        assert_eq!(slow.scale(30.0, 40, (30.0, 41.0)), 41);
        assert_eq!(slow.panic_since_s, Some(0.0));
        assert_eq!(slow.scale(62.0, 55, (50.0, 56.0)), 50);
        assert_eq!(slow.panic_since_s, None);

        let mut surging = kpa(1.0);
        assert_eq!(surging.scale(0.0, 10, (11.0, 25.0)), 25);
        assert_eq!(surging.scale(30.0, 40, (30.0, 80.0)), 80);
        assert_eq!(surging.panic_since_s, Some(30.0));
    }

    #[test]
    fn it_starts_in_panic_with_two_pods_and_calm_with_fewer() {
        for (ready, panics) in [(0, false), (1, false), (2, true)] {
            let kpa = Kpa::new(Config::new(100.0), ready, 0.0);
            assert_eq!((kpa.panic_since_s.is_some(), kpa.most_in_panic), (panics, ready));
        }
    }

    #[test]
    fn a_delay_keeps_the_most_of_its_window() {
        let config = Config {
            target: 10.0,
            up_rate: 10.0,
            down_rate: 10.0,
            panic_threshold: 100.0,
            down_delay_s: 300.0,
        };
        let mut kpa = Kpa::new(config, 0, 0.0);
        let steps = [
            (2.0, 40.0, 4),
            (300.0, 0.0, 4),
            (302.0, 0.0, 0),
            (540.0, 40.0, 4),
            (600.0, 30.0, 4),
            (660.0, 0.0, 4),
            (840.0, 0.0, 3),
            (900.0, 0.0, 0),
        ];
        for (now_s, in_flight, wanted) in steps {
            assert_eq!(kpa.scale(now_s, 0, (in_flight, in_flight)), wanted, "{now_s}");
        }
    }

    #[test]
    fn averages_are_those_of_a_minute_and_of_six_seconds() {
        let mut knative = Knative::new(Config::new(10.0));
        let mut wanted = Action::Keep;
        for second in 0..60 {
            // 20 in flight, and 50 in the last three seconds.
            let running = if second >= 57 { 50.0 } else { 20.0 };
            let scene = Scene::new(1, vec![engine(1, 0.0, running, 0.0)]);
            let action = knative.tick(&scene.at(f64::from(second)).view());
            if action != Action::Keep {
                wanted = action;
            }
        }
        // Decided at second 58: the panic average is (4 × 20 + 2 × 50) / 6 = 30.
        assert_eq!(wanted, Action::Replicas(3));
    }

    #[test]
    fn zero_comes_after_a_stable_window_of_activity_and_a_grace_period() {
        let mut zero = Zero::default();
        let steps = [(0.0, 1, 1), (40.0, 0, 1), (60.0, 0, 1), (88.0, 0, 1), (90.0, 0, 0)];
        for (now_s, desired, applied) in steps {
            assert_eq!(zero.apply(now_s, desired, 1), applied, "{now_s}");
        }
        assert_eq!(zero.apply(100.0, 0, 0), 0);
        assert_eq!(zero.apply(102.0, 1, 0), 1);
    }
}
