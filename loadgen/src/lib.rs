//! loadgen: simulated engines and the load that is put on them.

pub mod calibration;
pub mod engine;
