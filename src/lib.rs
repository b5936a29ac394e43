//! ghostscaler: a KEDA external scaler for GPU inference.

pub mod clock;
pub mod decision;
pub mod duration;
pub mod inventory;

/// KEDA's contract, generated from `proto/externalscaler.proto`.
#[expect(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::pedantic,
    clippy::or_fun_call,
    clippy::wildcard_enum_match_arm,
    reason = "generated code"
)]
pub mod proto {
    tonic::include_proto!("externalscaler");

    /// The compiled proto, for gRPC reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/externalscaler.bin"));
}

pub mod app;
pub mod args;
pub mod cluster;
pub mod config;
pub mod conformance;
pub mod declog;
pub mod explain;
pub mod grpc;
pub mod metrics;
pub mod observe;
pub mod registry;
pub mod replay;
pub mod schedule;
pub mod shutdown;
pub mod signals;
pub mod source;
pub mod statedir;
pub mod telemetry;
pub mod tick;
pub mod trigger;
pub mod web;
