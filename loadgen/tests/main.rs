//! What the simulated engines must reproduce: published tables, the laws of queues, captured
//! pages, and the real server's answers on the wire.
//! What the simulated engines must reproduce: published tables and the laws of queues; and what the
//! load generator must see, over real sockets.

mod golden;
mod published;
mod queueing;
mod server;
mod run;
