//! `loadgen dcgm`: the GPUs of a described fleet, as dcgm-exporter shows them.
//!
//! Must not be taken for a capture: no page of a running exporter and no GPU was at hand. Names,
//! labels, order and numbers are those of the exporter's template and lists of counters (see
//! `dcgm/exposition.rs`); what the activity counters show of an engine's work is a model, but for
//! the share of time busy (see [`Activity`]).
//!
//! # In a process of its own
//!
//! `loadgen dcgm --config FILE` serves one exporter a node, on ports that follow each other. A
//! pod's load is a share of time busy (`busy`, `sine`, `steps`), with the work of a chat load in
//! it, or an engine whose metrics are read each second (`engine`): a `loadgen engine`, or any vLLM
//! with a profile. [`Fleet`] lists every key; `--help` shows a whole file:
//!
//! ```yaml
#![doc = include_str!("dcgm/example.yaml")]
//! ```
//!
//! # In a simulation
//!
//! Pure, in simulated time: [`Exporter::observe`] takes what an [`Engine`](crate::engine::Engine)
//! has done, for each of its GPUs.
//!
//! ```
//! use std::sync::Arc;
//!
//! use loadgen::dcgm::{DeviceIndex, Exporter, Fleet};
//! use loadgen::engine::{Engine, Profile, Request, Time, Watch};
//!
//! let fleet = "nodes: [{name: n1, gpus: [{model: a100-80gb, pods: [{namespace: s, name: p}]}]}]";
//! let mut exporter = Exporter::of_fleet(&Fleet::parse("here", fleet)?).remove(0);
//! exporter.tick(Time::ZERO);
//! let mut engine = Engine::new(Arc::new(Profile::load("8b-a100")?));
//! // One request keeps a GPU busy all the time: that is no sign of load.
//! engine.submit(Request::new(1, 100, 4_000), Time::ZERO)?;
//! for second in 1..=30 {
//!     let now = Time::from_millis(1_000 * second);
//!     engine.advance(now, Watch::FirstToken, &mut |_| {});
//!     exporter.observe(DeviceIndex(0), 0, engine.work());
//!     exporter.tick(now);
//! }
//! let row = exporter.page().lines().find(|line| line.starts_with("DCGM_FI_DEV_GPU_UTIL{"));
//! assert!(row.is_some_and(|row| row.ends_with("container=\"main\",namespace=\"s\",pod=\"p\"} 99")
//!     || row.ends_with("} 100")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it shows
//!
//! - GPU_UTIL and GR_ENGINE_ACTIVE: the share of time with a step running. SM, tensor and DRAM
//!   activity and power follow from what the steps were spent on.
//! - FB_USED: what was allocated at the start, weights and KV cache together; it does not move
//!   with the load.
//! - Values are the mean of the last second before a collection, and a page shows the last
//!   collection (30 s by default): a burst in between is not seen, as with the real one.
//! - MIG: rows of instances only, without GPU_UTIL; power and energy are the board's, repeated.
//! - Faults: pages and devices that are gone for a while, profiling counters off or stuck at zero,
//!   pods that end while their labels or counters stay, devices busy for no pod.
//!
//! # What it does not show
//!
//! Clocks, temperatures, PCIe, NVLink, XIDs, DRA and HPC labels; memory while a model loads.

mod activity;
mod board;
mod config;
mod exporter;
mod exposition;
mod load;
mod scrape;
mod serve;

pub use activity::Activity;
pub use board::Board;
pub use config::{
    EngineLoad, Error, Fleet, Gap, Gpu, HostLabel, Instance, Load, Means, Names, Node, Pod,
    PodLabels, Profiling, SharedRows, Sharing, Sine, Span, Style,
};
pub use exporter::{DeviceIndex, Exporter};
pub use serve::{Args, serve};
