//! One sync of the horizontal pod autoscaler, with what it remembers between two.
//!
//! Must not know KEDA, nor who asks it when.

use super::behavior::{Behavior, Change, Rules, Select};
use crate::decision::{DEFAULT_TOLERANCE, Moment};

/// `--horizontal-pod-autoscaler-downscale-stabilization`.
const DEFAULT_WINDOW_DOWN_MS: u64 = 300_000;

/// An HPA with one External metric of the type AverageValue.
#[derive(Debug, Clone)]
pub struct Hpa {
    min: u32,
    max: u32,
    behavior: Option<Behavior>,
    recommendations: Vec<Recommendation>,
    added: Vec<Event>,
    removed: Vec<Event>,
}

#[derive(Debug, Clone, Copy)]
struct Recommendation {
    at: Moment,
    count: u32,
}

/// A change that was made.
#[derive(Debug, Clone, Copy)]
struct Event {
    at: Moment,
    replicas: u32,
}

impl Hpa {
    /// A new HPA; its memory is empty. `min` below 1 counts as 1, `max` below `min` as `min`.
    #[must_use]
    pub fn new(min: u32, max: u32, behavior: Option<Behavior>) -> Hpa {
        let min = min.max(1);
        Hpa {
            min,
            max: max.max(min),
            behavior,
            recommendations: Vec::new(),
            added: Vec::new(),
            removed: Vec::new(),
        }
    }

    /// Whether a sync at this count reads the metric: not at zero, where the HPA is off, nor outside
    /// the bounds, which it corrects first.
    #[must_use]
    pub fn reads_metric(&self, spec: u32) -> bool {
        (self.min..=self.max).contains(&spec)
    }

    /// One sync; gives the replicas from now on. `spec` and `status` are the target's counts,
    /// `usage` the metric's sum (`None`: it could not be read), `target` its AverageValue, above 0.
    pub fn sync(
        &mut self,
        now: Moment,
        spec: u32,
        status: u32,
        usage: Option<f64>,
        target: f64,
    ) -> u32 {
        if self.recommendations.is_empty() {
            self.recommendations.push(Recommendation { at: now, count: spec });
        }
        if spec == 0 {
            return 0;
        }
        let desired = if self.reads_metric(spec) {
            // All metrics failed: it stays as it is, for ever.
            let Some(usage) = usage else { return spec };
            let desired = self.desired(status, usage, target);
            match self.behavior.clone() {
                Some(behavior) => self.by_behavior(now, &behavior, spec, desired),
                None => self.by_default(now, spec, desired),
            }
        } else {
            spec.clamp(self.min, self.max)
        };
        self.note_change(now, spec, desired);
        desired
    }

    /// `GetExternalPerPodMetricReplicas`: readiness does not enter, and both ends of the dead band
    /// belong to it. Quantities have three decimals.
    fn desired(&self, status: u32, usage: f64, target: f64) -> u32 {
        let (usage, target) = ((usage * 1e3).round(), (target * 1e3).round());
        let ratio = usage / (target * f64::from(status));
        let (down, up) = match &self.behavior {
            Some(behavior) => (behavior.down.tolerance, behavior.up.tolerance),
            None => (DEFAULT_TOLERANCE, DEFAULT_TOLERANCE),
        };
        if (1.0 - down..=1.0 + up).contains(&ratio) { status } else { ceil(usage / target) }
    }

    /// `normalizeDesiredReplicas`: the largest recommendation of the window, even if that raises,
    /// and at most twice the count or 4.
    fn by_default(&mut self, now: Moment, spec: u32, desired: u32) -> u32 {
        let since = now.minus_millis(DEFAULT_WINDOW_DOWN_MS);
        let within = self.recommendations.iter().filter(|made| made.at >= since);
        let largest = within.map(|made| made.count).max().unwrap_or(0).max(desired);
        self.remember(now, desired, since);
        let limit = spec.saturating_mul(2).max(4).min(self.max);
        largest.clamp(self.min.min(limit), limit)
    }

    /// `normalizeDesiredReplicasWithBehaviors`: what was recommended within a window can hold the
    /// count and never move it; then the limits of the direction apply.
    fn by_behavior(&mut self, now: Moment, behavior: &Behavior, spec: u32, desired: u32) -> u32 {
        let since_up = now.minus_millis(behavior.up.window_ms);
        let since_down = now.minus_millis(behavior.down.window_ms);
        let since = |since: Moment| {
            let within = self.recommendations.iter().filter(move |made| made.at > since);
            within.map(|made| made.count).chain([desired])
        };
        let at_least = since(since_up).min().unwrap_or(desired);
        let at_most = since(since_down).max().unwrap_or(desired);
        self.remember(now, desired, since_up.min(since_down));
        let stable = spec.max(at_least).min(at_most);
        if stable > spec {
            let limit = self.limit(now, spec, &behavior.up, Direction::Up);
            stable.min(self.max.min(limit.max(spec)))
        } else if stable < spec {
            let limit = self.limit(now, spec, &behavior.down, Direction::Down);
            stable.max(self.min.max(limit.min(spec)))
        } else {
            spec
        }
    }

    /// The count that the policies of a direction allow now.
    fn limit(&self, now: Moment, spec: u32, rules: &Rules, direction: Direction) -> u32 {
        if rules.select == Select::Disabled {
            return spec;
        }
        let allowed = rules.limits.iter().map(|limit| {
            let since = now.minus_millis(limit.period_ms);
            let sum = |events: &[Event]| {
                events.iter().filter(|event| event.at > since).map(|event| event.replicas).sum()
            };
            let (added, removed): (u32, u32) = (sum(&self.added), sum(&self.removed));
            let start = (spec + removed).saturating_sub(added);
            match (direction, limit.change) {
                (Direction::Up, Change::Pods(pods)) => start.saturating_add(pods),
                (Direction::Up, Change::Percent(percent)) => {
                    ceil(f64::from(start) * (1.0 + f64::from(percent) / 100.0))
                }
                (Direction::Down, Change::Pods(pods)) => start.saturating_sub(pods),
                (Direction::Down, Change::Percent(percent)) => {
                    floor(f64::from(start) * (1.0 - f64::from(percent) / 100.0))
                }
            }
        });
        let chosen = match (direction, rules.select) {
            (Direction::Up, Select::Largest) | (Direction::Down, Select::Smallest) => allowed.max(),
            (Direction::Up | Direction::Down, _) => allowed.min(),
        };
        chosen.unwrap_or(spec)
    }

    /// Takes the place of a recommendation from before `since`, if there is one.
    fn remember(&mut self, at: Moment, count: u32, since: Moment) {
        let new = Recommendation { at, count };
        match self.recommendations.iter_mut().rfind(|made| made.at < since) {
            Some(outdated) => *outdated = new,
            None => self.recommendations.push(new),
        }
    }

    fn note_change(&mut self, now: Moment, from: u32, to: u32) {
        let Some(behavior) = &self.behavior else { return };
        let keep = |events: &mut Vec<Event>, rules: &Rules| {
            let since = now.minus_millis(rules.longest_period_ms());
            events.retain(|event| event.at > since);
        };
        keep(&mut self.added, &behavior.up);
        keep(&mut self.removed, &behavior.down);
        if to > from {
            self.added.push(Event { at: now, replicas: to - from });
        } else if to < from {
            self.removed.push(Event { at: now, replicas: from - to });
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Direction {
    Up,
    Down,
}

fn ceil(value: f64) -> u32 {
    floor(value.ceil())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates at both ends, as is wanted of a count"
)]
fn floor(value: f64) -> u32 {
    value as u32
}
