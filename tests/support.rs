//! What the integration tests share: real servers on free ports, and bounded waits.
//!
//! Must not stand in for anything that can be run for real.

pub(crate) mod exporter;
pub(crate) mod nobody;
pub(crate) mod ports;
pub(crate) mod prometheus;
mod wait;

pub(crate) use wait::eventually;
