//! The integration tests, in one binary: it links once.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests are not inside of test functions, where these are allowed"
)]

mod backtest;
mod conformance;
mod dcgm;
mod docs;
mod doctor;
mod e2e;
mod engines;
mod grpc;
mod hpa;
mod manifests;
mod prometheus;
mod simulate;
mod support;
mod tidy;
