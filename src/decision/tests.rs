//! Tests of the decision core: properties, rule sentences, worked values.
//!
//! Pure like the core: a simulated fleet stands in for engines and for the HPA.

mod build;
mod cost_model;
mod fleet;
mod fleet_runs;
mod fuzz;
mod gpu;
mod hold;
mod properties;
mod queue;
mod state;
mod stories;
mod supply;
mod zero;
