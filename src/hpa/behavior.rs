//! The HPA's `behavior`: how far and how fast each way.
//!
//! Must not remember anything: events and recommendations are the controller's.

use crate::decision::DEFAULT_TOLERANCE;

/// Rules for both directions. The default is what the API server makes of an empty `behavior`.
#[derive(Debug, Clone, PartialEq)]
pub struct Behavior {
    /// `scaleUp`.
    pub up: Rules,
    /// `scaleDown`.
    pub down: Rules,
}

/// The rules of one direction.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// `tolerance`: distance of the ratio from 1 within which nothing happens. Default 0.1.
    pub tolerance: f64,
    /// `stabilizationWindowSeconds`, in milliseconds. Default 0 up, 300,000 down.
    pub window_ms: u64,
    /// `selectPolicy`. Default the largest change.
    pub select: Select,
    /// `policies`. Default 4 pods or 100 % up, 100 % down, each in 15 s.
    pub limits: Vec<Limit>,
}

/// Which of several limits counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Select {
    /// `Max`: the one that allows the largest change.
    Largest,
    /// `Min`: the one that allows the smallest.
    Smallest,
    /// `Disabled`: no change in this direction.
    Disabled,
}

/// A limit to the change within a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// How much.
    pub change: Change,
    /// `periodSeconds`, in milliseconds.
    pub period_ms: u64,
}

/// How much may change in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// That many replicas.
    Pods(u32),
    /// That many percent of the count at the period's start.
    Percent(u32),
}

impl Default for Behavior {
    fn default() -> Behavior {
        let limit = |change| Limit { change, period_ms: 15_000 };
        let up = Rules {
            tolerance: DEFAULT_TOLERANCE,
            window_ms: 0,
            select: Select::Largest,
            limits: vec![limit(Change::Pods(4)), limit(Change::Percent(100))],
        };
        let down = Rules { window_ms: 300_000, limits: vec![limit(Change::Percent(100))], ..up };
        Behavior { up, down }
    }
}

impl Behavior {
    /// What lets every wanted count up to `max` through at the next sync: no tolerance, no window,
    /// the whole range in one step.
    #[must_use]
    pub fn pass_through(max: u32) -> Behavior {
        let rules = |change| Rules {
            tolerance: 0.0,
            window_ms: 0,
            select: Select::Largest,
            limits: vec![Limit { change, period_ms: 15_000 }],
        };
        Behavior { up: rules(Change::Pods(max)), down: rules(Change::Percent(100)) }
    }
}

impl Rules {
    /// The longest period of the limits.
    pub(super) fn longest_period_ms(&self) -> u64 {
        self.limits.iter().map(|limit| limit.period_ms).max().unwrap_or(0)
    }
}
