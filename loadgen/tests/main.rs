//! What the simulated engines must reproduce: published tables, the laws of queues, captured
//! pages, and the real server's answers on the wire.

mod dcgm;
mod golden;
mod published;
mod queueing;
mod server;
