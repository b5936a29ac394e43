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
//! Of several replicas only the leader ticks. A follower has the same registry, filled from the leader's
//! stream instead: whatever answers need not know which of the two it stands in.
//!
//! ```text
//!  leader:   tick ─ registry ── pair ═══ TLS 1.3, keys on Leases ═══ pair ─ registry   :follower
//!              └─ statedir's form, in ConfigMaps ── next leader
//! ```
//!
//! # The modules, in reading order
//!
//! | module | what it holds |
//! |---|---|
//! | [`decision`] | the core: `decide(spec, state, observation, now) -> (decision, state)`, its types and its reasons |
//! | [`signals`] | exposition parser, engine samples (by the names of `loadgen::series`), DCGM devices, freshness |
//! | [`source`] | the wire to engines and Prometheus: deadlines, bounds, escaping, credentials |
//! | [`inventory`] | what a workload is apart from its metrics: bounds, counts, members |
//! | [`config`] | the file that describes upstreams and, without a cluster, workloads |
//! | [`cluster`] | ScaledObjects, their targets and pods, the HPAs and the room on the nodes, by watches; the election and the state shards |
//! | [`trigger`], [`schedule`] | KEDA's trigger metadata into a policy; the warm schedule |
//! | [`observe`] | inventory and readings into one observation |
//! | [`registry`] | every tracked trigger and its published snapshot |
//! | [`tick`] | the loop of one trigger, and the shared readers of Prometheus, DCGM and gateways |
//! | [`grpc`], [`proto`] | KEDA's contract, health, reflection, TLS; on a runtime of its own; the generated messages |
//! | `listen` | the connections of both listeners: bounded, with room for the next one |
//! | `token` | a token's file, read anew at each use by one reader at a time |
//! | [`lead`], [`pair`] | who decides of several replicas; the leader's answers, state and writes between them |
//! | [`web`], [`metrics`], [`explain`] | the API, `/metrics`, and the API for a person |
//! | [`declog`], [`replay`], [`statedir`] | the decision log and its proof; what outlives a restart |
//! | [`hpa`], [`demo`] | KEDA's loop and the HPA as a model; the demonstration that runs on it, with the parts of `serve` on a stepped clock |
//! | [`generate`] | a ScaledObject for a target, with its reasons |
//! | [`doctor`] | what is wrong with a ScaledObject and around it, and what cures it: gatherers, and pure checks |
//! | [`simulate`] | days of requests on simulated engines: the product, its peers and a clairvoyant |
//! | [`backtest`] | a workload's own history from Prometheus, replayed under each policy |
//! | [`conformance`] | a client that plays KEDA against any external scaler |
//! | [`args`], [`app`], [`clock`], [`duration`], [`files`], [`text`], [`yaml`], [`telemetry`], [`health`], [`shutdown`] | flags, wiring, time, bounded files, lines of 80 columns, faults of YAML, logs, signs of life, the end |
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
//! - Nothing is written to Kubernetes but events; where `--idle-pods-first` is given which pods go first
//!   at a step down; and in the scaler's own namespace who leads, how the replicas reach each other and
//!   what was learned. None of it per tick.
//! - One process decides: the right to is looked at before each decision is published, against a
//!   monotonic clock. A follower's answers are the leader's and nothing else, also while it cannot see who
//!   leads: it asks whom it knows. Nobody is sent away who would have nowhere to go.
//! - Nothing is saved over what could not be read.
//! - `doctor` finds the scaler behind an address by selectors and command lines. By name it takes what only
//!   a name tells: which Services and addresses are some scaler's, and the role that the manifests bind. No
//!   command that it prints deletes a scaler unless each ScaledObject's own address is known, and none is its.
//! - A write that was answered with success is known to everyone who could lead next.
//!
//! # Choices of the decision that its first sketch did not have
//!
//! - Demand is the balance of what was served and what the queue grew by. Arrivals count only beyond
//!   chance (three sigma): the larger of two noisy numbers is too large most of the time.
//! - The fit is trusted up to 1.3 times the load at which its rows were right, besides the healthy
//!   minutes; a minute is healthy by its means over all replicas and with less than one waiting
//!   request for each.
//! - Rule 5 corrects what a pool keeps free for waiting, which falls with the root of its size, and
//!   not the capacity: latency says how much waits, and nothing of the cliff behind it. What an empty
//!   replica takes for the prompt itself is no wait. Capacity goes only where steady replicas are seen
//!   to be late all the same (short answers caught in the steps of other people's prompts), down to
//!   0.85, and comes back slowly. Prompts that take more than a sixth of what they may take and come late
//!   behind each other widen the margin instead, while more than 0.7 % of a day's do, to up to seven times
//!   the plan's: a small fleet of them is full at a third of its capacity, a large one is not. What they
//!   may take is twice the time of the whole prompt, whatever part of it a cache held.
//! - The fit forgets in 2.8 h, to follow an engine that becomes slower and faster within a day. Rows that
//!   are off by a fifth count a quarter until the mean error tells whether it is another engine.
//! - A step takes a limited number of prompt tokens, which no metric tells, so that the fit promises more
//!   than a full replica does. What it does is measured while a queue stands (`level/full.rs`), and bounds
//!   the plan, by 15 % at most: a queue that the others do not share looks alike.
//! - A row of the cost model is as long as ten mean prompts, a minute at most: engines count a prompt
//!   whole when its last piece is computed, and the one that a sample cuts in two is noise that takes
//!   from its own price. Where the engine rests sooner, ten times what first tokens took is enough.
//! - A request that has a replica to itself between two samples at which it rests is two rows: the
//!   time to its first token is its prompt's, the rest its answer's. Replicas that are planned at a third
//!   of their capacity are seldom busy at two samples in a row.
//! - Minutes are healthy, and the SLO is kept, by the promise of DESIGN 10: twice what a prompt takes
//!   alone where that is longer than the target.
//! - While the fit is wrong its rows are learned apart as well, and take its place once they make one
//!   that is right. A fit of two engines meets the means of both, at a price that is neither's.
//! - Rule 5 learns nothing from lateness until a cold start after the last change of the count.
//! - Headroom and hold are rehearsed: twenty fleets of arithmetic meet the work that was there, and
//!   the settings of the cheapest that is late for no more than 1 % are in force from the first
//!   half hour on; where bursts outrun every start, no more than two and a half times the least that
//!   is late, less 1 %. Until then headroom covers four fifths of past growth and releases teach the hold.
//!   So the hold is 5 to 30 minutes from then on, where rule 6 lets regret lengthen it to an hour: a
//!   departure, whose figures are on the page of [`decision`].
//! - Replicas that came for a backlog go a cold start after it is gone: the level holds what a burst
//!   that comes back takes.
//! - GPU activity is projected by its regression on the work of a replica: what a single request makes
//!   is not shared out among survivors. Where that alone is above the ceiling no count gets under it:
//!   such devices neither refuse a step down nor raise, and say that they tell nothing.
//! - What was tried and lost is on the page of [`decision`].
//! - Before a price is learned, a queue is weighed against what comes as well as against what the
//!   ready replicas finish: a queue that stands at saturation is not "soon cleared".
//! - A queue has to stand for 15 s before it teaches a limit or a throughput; one waiting request
//!   in one sample is the scheduler between two steps.
//! - Evidence that rests on the 60-s mean starts 60 s after the last tick that needed more, and a
//!   change of the level's source starts it anew, for it was measured on another scale.
//! - Between a release and taking it back lies a dead band of 5 %.
//! - The cost model wants 10 % of spread in the work of its steps, for from an even load no slope
//!   can be told. Random arrivals at a constant rate have that within minutes; a perfectly even
//!   load stays unlearned. What was learned stays: rows that tell nothing new are not learned from.
//! - A minute that fewer replicas have seen says nothing of the present ones: until they have had
//!   their own, the level raises on 85 % of the fitted capacity, and the queue as ever.
//! - A step up that cannot wait is answered one past the HPA's dead band, only where its tolerance
//!   is known: read from the HPA itself, since an API server drops what its version does not know;
//!   shadow mode's answer is clamped too.
//! - Counts that the Kubernetes API has not kept fresh for 30 s count as not read: they hold.
//! - A target that only its `/scale` is read of does not say whether it rolls out: its pods' revisions
//!   do, while one of the newer comes and for ten minutes after the last change. A partition or a
//!   paused canary stands for days.
//! - Whether an engine that answers is alive is judged in the decision alone, from its counters.

pub mod clock;
pub mod decision;
pub mod inventory;

pub use loadgen::duration;
pub use loadgen::files;
pub use loadgen::text;
pub use loadgen::yaml;

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
pub mod backtest;
pub mod cluster;
pub mod config;
pub mod conformance;
pub mod declog;
pub mod demo;
pub mod doctor;
pub mod explain;
pub mod generate;
pub mod grpc;
pub mod health;
pub mod hpa;
pub mod lead;
mod listen;
pub mod metrics;
pub mod observe;
pub mod pair;
pub mod registry;
pub mod replay;
pub mod schedule;
pub mod shutdown;
pub mod signals;
pub mod simulate;
pub mod source;
pub mod statedir;
pub mod telemetry;
pub mod tick;
mod token;
pub mod trigger;
pub mod web;
