//! How far a profile is from the truth: published tables and captured runs, and the same loads
//! put on the simulated engine; and the fit of a profile to a capture.
//!
//! Must not be used while an engine runs: it is the yardstick, not a part.

mod batches;
mod capture;
mod fit;
mod published;

pub use batches::{BatchRow, BatchTable, MeanErrors, Phases, SAGESERVE_8B, SPLITWISE_70B};
pub use capture::{Capture, Error as CaptureError, Phase, Shape, Summary};
pub use fit::{StepRow, fit_step};
pub use published::{A100_40GB, ClosedLoop, H100_ALONE, NIM_8B, NIM_70B, Published, Seen, run};
