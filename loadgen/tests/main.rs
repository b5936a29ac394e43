//! What the simulated engines must reproduce: published tables and the laws of queues.

mod published;
mod queueing;
