//! Parts of the decision that can be left out, to measure what each is worth.
//!
//! Must not be reachable from a trigger's metadata: no workload is run without a part.

use serde::{Deserialize, Serialize};

/// A part of the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Rule 1: without it the level is what requests in flight say.
    Demand,
    /// Rule 1: standing capacity for what demand may grow within a start.
    Headroom,
    /// Rule 1: no more trust in the fit than it has been seen to deserve.
    Trust,
    /// Rules 1 and 6: headroom and hold as rehearsed, not as assumed.
    Rehearsal,
    /// Rule 2.
    Queue,
    /// Rule 3.
    Kv,
    /// Rule 4.
    GpuCeiling,
    /// Rule 5.
    Feedback,
    /// Rule 6: without it what is not needed goes at once.
    Hold,
}

impl Part {
    /// All of them, in the order of the rules.
    pub const ALL: [Part; 9] = [
        Part::Demand,
        Part::Headroom,
        Part::Trust,
        Part::Rehearsal,
        Part::Queue,
        Part::Kv,
        Part::GpuCeiling,
        Part::Feedback,
        Part::Hold,
    ];

    /// Its name in a report.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Part::Demand => "work demand",
            Part::Headroom => "headroom",
            Part::Trust => "trust bound",
            Part::Rehearsal => "rehearsal",
            Part::Queue => "queue",
            Part::Kv => "KV pressure",
            Part::GpuCeiling => "GPU ceiling",
            Part::Feedback => "SLO feedback",
            Part::Hold => "hold",
        }
    }
}
