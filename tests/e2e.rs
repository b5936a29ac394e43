//! The built program from outside: its processes, files, signals and wires, with nothing inside of
//! it replaced. Engines, exporters and gateways are faked on the wire only.
//!
//! Must not call the library for what the program itself can be asked.

mod ends;
mod engine;
mod fleet;
mod gpu;
mod hostile;
mod keda;
mod metadata;
mod outage;
mod program;
mod prometheus;
mod reload;
mod restart;
mod serving;
mod wake;
