//! What engines and GPUs say, as the decision's own types: metric pages and series in, samples out.
//!
//! Pure: no IO, no clock, no runtime, no log; bytes and moments come from the caller.

pub mod dcgm;
pub mod engine;
pub mod exposition;
pub mod freshness;

#[cfg(test)]
mod fixtures;
