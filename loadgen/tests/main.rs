//! What the simulated engines must reproduce: published tables, the laws of queues, captured
//! pages, and the real server's answers on the wire; and what the load generator must see.

mod golden;
mod published;
mod queueing;
mod run;
mod server;
