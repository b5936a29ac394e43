//! What the simulated engines must reproduce (published tables, a capture of a real engine, the laws
//! of queues, captured pages, the real server's answers on the wire), and what the load generator
//! must see over real sockets.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests are not inside of test functions, where these are allowed"
)]

mod captured;
mod compare;
mod dcgm;
mod golden;
mod published;
mod queueing;
mod run;
mod server;
