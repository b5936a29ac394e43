//! The decision: a pure function from what was seen to how many replicas are wanted, and why.
//!
//! No clock, IO, log or randomness: time is an argument, reasons are data. The same function
//! serves, simulates, backtests and replays.
//!
#![doc = include_str!("decision/tried.md")]

mod cost;
mod decide;
mod evidence;
mod ghost;
mod gpu;
mod headroom;
mod hpa;
mod kept;
mod known;
mod kv;
mod leaving;
mod level;
mod members;
mod number;
mod observation;
mod outcome;
mod part;
mod queue;
mod reading;
mod reason;
mod rehearsal;
mod spec;
mod state;
mod supply;
mod units;
mod wake;
mod window;
mod zero;

#[cfg(test)]
mod tests;

pub use cost::{CostModel, Interval};
pub use decide::decide;
pub use ghost::score;
pub use hpa::{DEFAULT_TOLERANCE, HpaEffect, hpa_effect};
pub use kept::KeptSample;
pub use members::WARM_UP_MS;
pub use observation::{
    Engine, EngineSample, Gpu, GpuSample, Observation, Phase, Replicas, Wake, WakeReading,
};
pub use outcome::{
    Answer, Decision, Health, Inputs, LearnedCost, LevelSource, Next, Notice, Rule, Unavailable,
    Vote,
};
pub use part::Part;
pub use reading::{Reading, Why};
pub use reason::Reason;
pub use spec::{Mode, Profile, Spec, ZeroAfter};
pub use state::State;
pub use supply::COLD_START_UNSEEN_MS;
pub use units::Moment;
