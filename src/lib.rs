//! ghostscaler decides how many GPU replicas an LLM inference workload needs, says why, and answers
//! KEDA over gRPC as an external scaler. KEDA and the HPA do the scaling.
//!
//! This page is the architecture: what flows where, which module holds what, and which things are
//! absent on purpose. `tests/tidy.rs` checks what can be checked.
//!
//! # Data flow
//!
//! ```text
//!  engines (vLLM, SGLang) ── source::scrape ──┐
//!  Prometheus ────────────── source::prometheus ─ signals ─┐
//!  gateway (wake source) ─── source::wake ────┘            ├─ observe ─ decision::decide ─┐
//!  Kubernetes API ────────── cluster ──┐                   │       (pure)                 │
//!  configuration file ────── config ───┴── inventory ──────┘                              │
//!                                                                                registry (snapshots)
//!        KEDA ◄── grpc ──────────────────────────────────────────────────────────────┤
//!        people, Prometheus ◄── web, explain, metrics ───────────────────────────────┤
//!        decision log, saved state ◄── declog, statedir ─────────────────────────────┘
//! ```
//!
//! Each trigger has one *tick* (`tick`): read → observe → decide → publish an immutable snapshot.
//! Every RPC, API answer and metric comes from that snapshot; no RPC does IO.
//!
//! # The modules, in reading order
//!
//! | module | what it holds |
//! |---|---|
//! | [`decision`] | the core: `decide(spec, state, observation, now) -> (decision, state)`, its types and its reasons |
//! | [`signals`] | exposition parser, engine profiles, DCGM devices, freshness |
//! | [`source`] | the wire to engines and Prometheus: deadlines, bounds, escaping, credentials |
//! | [`inventory`] | what a workload is apart from its metrics: bounds, counts, members |
//! | [`config`] | the file that describes upstreams and, without a cluster, workloads |
//! | [`cluster`] | ScaledObjects, their targets and pods, by watches |
//! | [`trigger`], [`schedule`] | KEDA's trigger metadata into a policy; the warm schedule |
//! | [`observe`] | inventory and readings into one observation |
//! | [`registry`] | every tracked trigger and its published snapshot |
//! | [`tick`] | the loop of one trigger, and the shared readers of Prometheus, DCGM and gateways |
//! | [`grpc`], [`proto`] | KEDA's contract, health, reflection, TLS; on a runtime of its own; the generated messages |
//! | [`web`], [`metrics`], [`explain`] | the API, `/metrics`, and the API for a person |
//! | [`declog`], [`replay`], [`statedir`] | the decision log and its proof; what outlives a restart |
//! | [`conformance`] | a client that plays KEDA against any external scaler |
//! | [`args`], [`app`], [`clock`], [`duration`], [`telemetry`], [`shutdown`] | flags, wiring, time, logs, the end |
//!
//! # Invariants
//!
//! - `decision` and `signals` do no IO, read no clock, log nothing, and depend on no other module but
//!   the types they share. Time is an argument: the same code serves and replays.
//! - A reading is fresh, stale or missing; a failure never becomes a number. Only a fresh zero votes
//!   to scale down.
//! - gRPC answers come from memory, on threads that no decision, scrape or API call can stall.
//!   Errors are as fast as values.
//! - `IsActive` and `GetMetrics` of one moment come from one snapshot and agree.
//! - Nothing is unbounded: bodies, series, labels, objects, streams and times have their limits
//!   where they enter.
//! - Trigger metadata names no address, credential or namespace.
//! - One owner of hysteresis: the core. The HPA is told to pass values through.
//! - There is no trait for a source, an inventory or a clock: each has one shape, and tests fake the
//!   wire.
//! - Nothing is written to Kubernetes.

pub mod clock;
pub mod decision;
pub mod duration;
pub mod inventory;

/// KEDA's contract, generated from `proto/externalscaler.proto`.
#[allow(
    missing_docs,
    unused_qualifications,
    clippy::all,
    clippy::restriction,
    clippy::pedantic,
    clippy::nursery,
    reason = "generated code"
)]
pub mod proto {
    tonic::include_proto!("externalscaler");

    /// The compiled proto, for gRPC reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/externalscaler.bin"));
}

pub mod app;
pub mod args;
pub mod cluster;
pub mod config;
pub mod conformance;
pub mod declog;
pub mod explain;
pub mod grpc;
pub mod metrics;
pub mod observe;
pub mod registry;
pub mod replay;
pub mod schedule;
pub mod shutdown;
pub mod signals;
pub mod source;
pub mod statedir;
pub mod telemetry;
pub mod tick;
pub mod trigger;
pub mod web;
