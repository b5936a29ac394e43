//! KEDA's external-scaler service: checks the call, looks the trigger up, answers from memory.
//!
//! Must do no IO on behalf of a call, and must share no thread with anything that can stall: it
//! runs on a runtime of its own.

mod convert;
mod expiry;
pub mod observe;
mod serve;
mod service;
pub mod tls;

pub use convert::METRIC_NAME;
pub use serve::{Error, Options, Readiness, Server, spawn};
