//! The integration tests, in one binary: it links once.

mod conformance;
mod grpc;
mod tidy;
