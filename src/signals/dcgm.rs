//! What dcgm-exporter says, as one observation a device, and a workload's share of it.
//!
//! The device is the unit, never the series: copies for sharers, jobs and exporters count once.
//! Must not guess: a shared device is attributed to nobody, and an absent value is not zero.

mod fold;
mod names;
mod owned;
mod owners;

use std::collections::BTreeMap;

use crate::decision::{Moment, Why};
use crate::signals::exposition::{self, Format, Parser, Sample, Sink};

pub use fold::DcgmFold;
pub use names::prometheus_names;
pub use owned::Owned;
pub use owners::OwnerMemory;

/// A GPU, or one MIG instance of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKey {
    /// The board's UUID; for a MIG instance its parent's.
    pub uuid: Box<str>,
    /// The GPU instance's id where the board is cut by MIG. An id, not an index.
    pub instance: Option<Box<str>>,
}

/// A pod by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    /// The namespace, empty where the series does not tell it: such a pod is nobody's.
    pub namespace: Box<str>,
    /// The name.
    pub pod: Box<str>,
}

/// One device at one moment. `None` means not told, never zero.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Device {
    /// The node, as far as the exporter knows it.
    pub host: Option<Box<str>>,
    /// The pods that hold it: none where unknown or free, several where it is shared.
    pub owners: Vec<PodRef>,
    /// When its newest sample was taken, as its source says.
    pub at: Moment,
    /// The same by the reader's own clock, and not later than when it was first seen: a source whose
    /// clock is ahead must not look fresh for as long as it is ahead. `at` until [`Devices::follow`]
    /// says otherwise.
    pub sampled_at: Moment,
    /// Share of time with a kernel running, 0..1; never told for a MIG instance.
    pub gpu_util: Option<f64>,
    /// Share of time that the compute engine was active, 0..1.
    pub gr_engine: Option<f64>,
    /// Mean share of multiprocessors with a warp, 0..1.
    pub sm: Option<f64>,
    /// Tensor pipes, 0..1.
    pub tensor: Option<f64>,
    /// Memory interface, 0..1.
    pub dram: Option<f64>,
    /// Memory held, MiB.
    pub fb_used_mib: Option<f64>,
}

impl Device {
    /// Share of time busy, 0..1. GR_ENGINE_ACTIVE before GPU_UTIL: it is finer and the only one of
    /// the two that exists for MIG.
    #[must_use]
    pub fn busy(&self) -> Option<f64> {
        self.gr_engine.or(self.gpu_util)
    }

    /// Whether several pods hold it, so that its activity is no pod's own.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.owners.len() > 1
    }
}

/// Every device that was seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Devices {
    /// The devices.
    pub by_key: BTreeMap<DeviceKey, Device>,
    /// Watts of each board, by UUID. Rows of MIG instances repeat their parent's.
    pub board_power_w: BTreeMap<Box<str>, f64>,
}

impl Devices {
    /// Adds what another exporter saw. Where both saw a device the newer observation counts and
    /// the owners are those of both.
    pub fn merge(&mut self, other: Devices) {
        for (key, mut device) in other.by_key {
            if let Some(ours) = self.by_key.remove(&key) {
                let (mut newer, older) =
                    if ours.at > device.at { (ours, device) } else { (device, ours) };
                newer.owners.extend(older.owners);
                newer.owners.sort_unstable();
                newer.owners.dedup();
                device = newer;
            }
            self.by_key.insert(key, device);
        }
        self.board_power_w.extend(other.board_power_w);
    }

    /// Goes on from the `last` devices with these, read at `now` from a source whose clock is
    /// `ahead_ms` milliseconds ahead: a sample that has not moved was seen before, whatever its source
    /// takes for the time.
    pub fn follow(&mut self, last: &Devices, ahead_ms: i64, now: Moment) {
        for (key, device) in &mut self.by_key {
            let known = last.by_key.get(key).filter(|known| known.at == device.at);
            let new = Moment(device.at.0.saturating_sub(ahead_ms)).min(now);
            device.sampled_at = known.map_or(new, |known| known.sampled_at);
        }
    }

    /// Adds those of the `last` devices that are missing here and were sampled since `since`: what
    /// could not be read is as old as it was. Without their owners, who are the memory's
    /// ([`OwnerMemory`]): what was remembered is not named anew.
    pub fn fill(&mut self, last: &Devices, since: Moment) {
        for (key, device) in &last.by_key {
            if device.sampled_at >= since && !self.by_key.contains_key(key) {
                let unnamed = Device { owners: Vec::new(), ..device.clone() };
                self.by_key.insert(key.clone(), unnamed);
            }
        }
    }
}

/// Reads one page of one exporter, fed in pieces.
#[derive(Debug)]
pub struct DcgmReader {
    parser: Parser,
    rows: PageRows,
}

/// A fold that gives rows without a timestamp the page's time.
#[derive(Debug)]
struct PageRows {
    fold: DcgmFold,
    at: Moment,
}

impl DcgmReader {
    /// A reader for one page sampled at `at`, which counts unless the page has timestamps.
    #[must_use]
    pub fn new(format: Format, at: Moment) -> DcgmReader {
        DcgmReader { parser: Parser::new(format), rows: PageRows { fold: DcgmFold::default(), at } }
    }

    /// Reads the next piece of the page.
    ///
    /// # Errors
    ///
    /// When the page is no metrics page or breaks a bound: the rest of it need not be fetched.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), Error> {
        Ok(self.parser.push(chunk, &mut self.rows)?)
    }

    /// Ends the page.
    ///
    /// # Errors
    ///
    /// When the page was cut off or unreadable, or has no DCGM series.
    pub fn finish(self) -> Result<Devices, Error> {
        self.parser.finish()?;
        self.rows.fold.finish()
    }
}

impl Sink for PageRows {
    type Wanted = names::Field;

    fn wants(&self, name: &[u8]) -> Option<names::Field> {
        names::field_of(name)
    }

    fn sample(&mut self, field: names::Field, sample: Sample<'_>) {
        let at = sample.at_ms.map_or(self.at, Moment);
        self.fold.take(field, sample.labels, sample.value, at);
    }

    fn declared(&mut self, _field: names::Field, _name: &str) {}
}

/// Why a page or a set of series gives no devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The page cannot be read.
    #[error(transparent)]
    Unreadable(#[from] exposition::Error),
    /// No DCGM series with a device's UUID.
    #[error("no DCGM series with a device UUID: expected DCGM_FI_ or dcgm_ names")]
    NoKnownSeries,
}

impl Error {
    /// The reason that a reading carries.
    #[must_use]
    pub fn why(&self) -> Why {
        match self {
            Error::Unreadable(error) => error.why(),
            Error::NoKnownSeries => Why::NoKnownSeries,
        }
    }
}

#[cfg(test)]
mod tests;
