//! The decision: a pure function from what was seen to how many replicas are wanted, and why.
//!
//! No clock, IO, log or randomness: time is an argument, reasons are data. The same function
//! serves, simulates, backtests and replays.

mod observation;
mod outcome;
mod reading;
mod spec;
mod units;

pub use observation::{
    Engine, EngineSample, Gpu, GpuSample, Observation, Phase, Replicas, Wake, WakeReading,
};
pub use outcome::{
    Answer, Decision, Health, Inputs, LevelSource, Next, Notice, Reason, Rule, Unavailable, Vote,
};
pub use reading::{Reading, Why};
pub use spec::{Mode, Profile, Spec, ZeroAfter};
pub use units::Moment;
