//! What a lane looked like over the story, in as many columns as fit beside a label.
//!
//! Pure.

use loadgen::engine::Time;
use serde::Serialize;

use super::cluster::Gauges;
use super::story::Story;

/// Columns of a timeline.
pub(super) const COLUMNS: u32 = 60;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Samples of one lane, one a column, each from the column's end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Timeline {
    column_ms: u64,
    /// Requests waiting in the engines and held by the gateway.
    pub(super) queue: Vec<u32>,
    /// Replicas ordered.
    pub(super) wanted: Vec<u32>,
    /// Replicas serving.
    pub(super) ready: Vec<u32>,
}

impl Timeline {
    pub(super) fn new(story: &Story) -> Timeline {
        Timeline {
            column_ms: u64::from(story.seconds) * 1_000 / u64::from(COLUMNS),
            queue: Vec::new(),
            wanted: Vec::new(),
            ready: Vec::new(),
        }
    }

    /// When the next sample is due.
    pub(super) fn next(&self) -> Time {
        Time::from_millis(self.column_ms * (self.ready.len() as u64 + 1))
    }

    /// Takes the sample that is due.
    pub(super) fn note(&mut self, gauges: &Gauges) {
        self.queue.push(u32::try_from(gauges.waiting + gauges.held).unwrap_or(u32::MAX));
        self.wanted.push(gauges.spec);
        self.ready.push(gauges.ready);
    }
}

/// Requests per second of the story, by column.
pub(super) fn load(story: &Story) -> Vec<f64> {
    let column_ms = u64::from(story.seconds) * 1_000 / u64::from(COLUMNS);
    let at = |column: u32| Time::from_millis(column_ms * u64::from(column));
    let per_s =
        |column| story.arrived(at(column), at(column + 1)) as f64 * 1_000.0 / column_ms as f64;
    (0..COLUMNS).map(per_s).collect()
}

/// A row of bars: zero is a dot, everything else at least the lowest bar.
pub(super) fn bars(values: impl IntoIterator<Item = f64>, largest: f64) -> String {
    values
        .into_iter()
        .map(|value| {
            let level =
                BARS.iter().enumerate().rev().find(|(level, _)| {
                    value >= largest * (*level as f64 + 0.5) / BARS.len() as f64
                });
            if value <= 0.0 { '·' } else { level.map_or(BARS[0], |(_, bar)| *bar) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_grow_with_their_values_and_zero_is_none() {
        assert_eq!(bars([0.0, 0.01, 1.0, 4.0, 8.0], 8.0), "·▁▁▄█");
        assert_eq!(bars([0.0, 0.0], 0.0), "··");
    }
}
