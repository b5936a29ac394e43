//! KEDA's contract over real sockets; the tests are named by the ids of the conformance checklist.

mod contract;
mod errors;
mod load;
mod operations;
mod push;
mod support;
