//! Wake sources: demand that can be seen in front of engines that are not there.
//!
//! Must not decide whether a workload wakes, nor take silence for no demand.

mod template;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::decision::{Moment, WakeReading, Why};

pub use template::Subject;
pub(super) use template::Template;

/// Most series of one workload's wake source: a gateway's pods times its request classes.
pub const MAX_SERIES: usize = 1_024;

/// What the number of a wake source means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WakeKind {
    /// Requests held now.
    Gauge,
    /// Requests that have arrived since the gateway's start.
    Counter,
}

/// What a wake source said of one workload at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Demand {
    /// Values by a hash of the series' labels.
    series: BTreeMap<u64, f64>,
    /// The source has this metric, if perhaps not for this workload.
    exists: bool,
}
/// What has to be remembered of one workload's wake source between readings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WakeMemory {
    // Invariant: at most MAX_SERIES entries.
    last: BTreeMap<u64, f64>,
    read_before: bool,
    exists: bool,
    last_arrival_at: Option<Moment>,
}

impl WakeMemory {
    /// Takes a reading made at `at`.
    ///
    /// A counter's series that first appears after an earlier reading counts from zero: a rate
    /// would miss its first requests, which are the ones that have to wake. A metric that has never
    /// been seen is unknown rather than zero; once seen, its absence is a zero.
    pub fn take(&mut self, kind: WakeKind, read: Result<&Demand, Why>, at: Moment) -> WakeReading {
        let demand = match read {
            Ok(demand) => demand,
            Err(why) => return WakeReading::Unknown { why },
        };
        if demand
            .series
            .values()
            .any(|value| !value.is_finite() || *value < 0.0)
        {
            return WakeReading::Unknown {
                why: Why::Impossible,
            };
        }
        if demand
            .series
            .iter()
            .any(|(&key, &value)| self.rises(kind, key, value))
        {
            self.last_arrival_at = Some(at);
        }
        match kind {
            WakeKind::Gauge => self.last.clone_from(&demand.series),
            WakeKind::Counter => {
                // A series that fails to show up once has not gone back to zero.
                self.last.extend(&demand.series);
                if self.last.len() > MAX_SERIES {
                    self.last.clone_from(&demand.series);
                }
            }
        }
        self.read_before = true;
        self.exists |= demand.exists;
        if !self.exists {
            return WakeReading::Unknown {
                why: Why::NoKnownSeries,
            };
        }
        let queued = match kind {
            WakeKind::Gauge => demand.series.values().sum(),
            WakeKind::Counter => 0.0,
        };
        WakeReading::Fresh {
            queued,
            last_arrival_at: self.last_arrival_at,
        }
    }

    fn rises(&self, kind: WakeKind, key: u64, value: f64) -> bool {
        match (self.last.get(&key), kind) {
            (Some(&last), WakeKind::Counter) if value < last => value > 0.0,
            (Some(&last), WakeKind::Counter | WakeKind::Gauge) => value > last,
            (None, WakeKind::Counter) => self.read_before && value > 0.0,
            (None, WakeKind::Gauge) => value > 0.0,
        }
    }
}
