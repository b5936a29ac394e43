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
    /// Ready replicas at each look.
    ready: Vec<(Duration, u32)>,
    /// Ordered ones at each look.
    ordered: Vec<(Duration, u32)>,
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
            ready: Vec::new(),
            ordered: Vec::new(),
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
        self.ready.extend(sample.ready.map(|ready| (self.at(), ready)));
        self.ordered.extend(sample.spec.map(|spec| (self.at(), spec)));
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

    /// The most ready replicas in each of so many equal parts of the time since `from`, as a row of
    /// bars; the highest bar stands for `most`.
    pub(crate) fn bars(&self, from: Duration, n_parts: u32, most: u32) -> String {
        const BARS: [char; 9] = ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let part = (self.at().saturating_sub(from)) / n_parts;
        let ready = |index: u32| {
            let (start, end) = (from + part * index, from + part * (index + 1));
            let within = self.ready.iter().filter(|(at, _)| (start..end).contains(at));
            within.map(|(_, ready)| *ready).max().unwrap_or(0)
        };
        let bar = |ready: u32| {
            let height = (ready.min(most) * 8).div_ceil(most.max(1));
            BARS.get(usize::try_from(height).unwrap()).copied().unwrap()
        };
        (0..n_parts).map(|index| bar(ready(index))).collect()
    }

    /// Replicas ordered at each look from then on.
    pub(crate) fn ordered_since(&self, from: Duration) -> impl Iterator<Item = (Duration, u32)> {
        self.ordered.iter().copied().filter(move |(at, _)| *at >= from)
    }

    /// The most that were ever ready.
    pub(crate) fn most_ready(&self) -> u32 {
        self.ready.iter().map(|(_, ready)| *ready).max().unwrap_or(0)
    }

    /// Time since the start.
    pub(crate) fn at(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}
