//! ghostscaler: a KEDA external scaler for GPU inference.

pub mod clock;
pub mod decision;
pub mod duration;
pub mod inventory;

/// KEDA's contract, generated from `proto/externalscaler.proto`.
#[allow(
    missing_docs,
    unused_qualifications,
    clippy::all,
    clippy::restriction,
    clippy::pedantic,
    clippy::nursery,
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
