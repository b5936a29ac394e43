//! What was seen, second by second: wanted, ordered, ready, in flight.
//!
//! Must not judge. A line is kept where something changed.

use std::fmt;
use std::fmt::Write as _;
use std::time::Duration;

use tokio::time::Instant;

/// What is seen at one moment. `None` is what could not be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sample {
    /// Replicas that the scaler wants.
    pub(crate) want: Option<u32>,
    /// The rule behind it.
    pub(crate) rule: Option<String>,
    /// The scaler's word for the state of its inputs.
    pub(crate) health: Option<String>,
    /// Replicas ordered.
    pub(crate) spec: Option<u32>,
    /// Replicas ready.
    pub(crate) ready: Option<u32>,
    /// Requests at engines or held.
    pub(crate) in_flight: u64,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<u32>| value.map_or_else(|| "-".to_owned(), |n| n.to_string());
        write!(
            f,
            "wanted {:>3}  spec {:>3}  ready {:>3}  in flight {:>4}  {} {}",
            number(self.want),
            number(self.spec),
            number(self.ready),
            self.in_flight,
            self.rule.as_deref().unwrap_or("-"),
            self.health.as_deref().unwrap_or("-"),
        )
    }
}

/// The samples of one scenario, and what happened in it.
#[derive(Debug)]
pub(crate) struct Timeline {
    started: Instant,
    text: String,
    last: Option<Sample>,
    last_at: Instant,
    /// Replicas ordered, over time.
    pub(crate) replica_seconds: f64,
    /// How often the order went up right after it had gone down, or the other way round.
    pub(crate) turns: u32,
    direction: Option<bool>,
}

impl Timeline {
    pub(crate) fn new() -> Timeline {
        let now = Instant::now();
        Timeline {
            started: now,
            text: String::new(),
            last: None,
            last_at: now,
            replica_seconds: 0.0,
            turns: 0,
            direction: None,
        }
    }

    /// Adds what is seen now.
    pub(crate) fn see(&mut self, sample: &Sample) {
        let since = self.last_at.elapsed();
        self.last_at = Instant::now();
        if let Some((before, after)) =
            self.last.as_ref().and_then(|last| last.spec).zip(sample.spec)
        {
            self.replica_seconds += f64::from(before) * since.as_secs_f64();
            if before != after {
                let is_up = after > before;
                self.turns += u32::from(self.direction.is_some_and(|was_up| was_up != is_up));
                self.direction = Some(is_up);
            }
        }
        // Requests come and go all the time; that alone is no line.
        let differs = self.last.as_ref().is_none_or(|last| {
            (last.want, last.spec, last.ready, &last.health)
                != (sample.want, sample.spec, sample.ready, &sample.health)
        });
        if differs {
            self.say(&sample.to_string());
        }
        self.last = Some(sample.clone());
    }

    /// Adds what happens now.
    pub(crate) fn say(&mut self, what: &str) {
        writeln!(self.text, "{:7.1} s  {what}", self.at().as_secs_f64()).unwrap();
    }

    /// Time since the start.
    pub(crate) fn at(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}
