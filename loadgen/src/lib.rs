//! loadgen: engines without GPUs, and the load that is put on them.
//!
//! # What there is
//!
//! - [`engine`]: the simulator's core. [`engine::Engine`] batches, chunks, caches, preempts and
//!   counts as vLLM does; [`engine::Replica`] adds the life around it, from the pod's creation to
//!   SIGTERM; [`engine::Profile`] says which model on which GPU, as a data file.
//! - [`exposition`]: what an engine's `/metrics` looks like, by server and version; pure.
//! - [`server`]: the engines behind real sockets, moved by the wall clock: `loadgen engine`.
//! - [`run`]: the load generator, open loop, over real sockets.
//! - [`compare`]: two of its results, or another tool's, beside each other; [`spread`]: how far a
//!   mean can be trusted.
//! - [`series`]: which series of which engine mean which number; the scaler's names too.
//! - [`traces`]: requests in time, from the public traces' formats or generated.
//! - [`calibration`]: published measurements, and the same loads put on a profile.
//! - [`dcgm`]: the GPUs under the engines, as dcgm-exporter shows them.
//!
//! Engines, pages and devices are pure and in simulated time: the servers move them by the wall
//! clock, a simulation by its events. The same calls give the same events to the picosecond.
//!
//! ```
//! use std::sync::Arc;
//!
//! use loadgen::engine::{Engine, Event, Profile, Request, Time, Watch};
//!
//! let profile = Arc::new(Profile::load("8b-a100")?);
//! let mut engine = Engine::new(profile);
//! engine.submit(Request::new(1, 1_000, 3), Time::ZERO)?;
//! let mut tokens = Vec::new();
//! engine.advance(Time::MAX, Watch::EveryToken, &mut |event| {
//!     if let Event::Token { at, .. } = event {
//!         tokens.push(format!("{:.1} ms", at.as_secs_f64() * 1e3));
//!     }
//! });
//! // 12.5 + 1000 × 0.067 ms for the prompt, then 12.5 + 0.067 + 1000 × 0.000082 ms a token.
//! assert_eq!(tokens, ["79.5 ms", "92.1 ms", "104.8 ms"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Reading order
//!
//! `engine.rs` (model and loop) → `engine/scheduler.rs` (who computes what in a step) →
//! `scheduler/decoding.rs` (why a step of decodes costs the same for one request as for a
//! thousand) → `engine/frontend.rs` (the API server before it) → `engine/kv.rs` (free blocks and what they still hold) → `engine/step_time.rs` →
//! `engine/metrics.rs` → `engine/life.rs`. Presets with their sources are in `profiles/`. `engine/lean.rs`
//! is the engine once more, for simulations of days.
//!
//! The load generator: `traces.rs` (when requests come) → `run.rs` (how it measures, with its own
//! reading order). How to use it on a server of one's own is in `BENCHMARKING.md`.
//!
//! # Invariants
//!
//! - The core reads no clock, opens nothing and draws no random number but the lengths of a cold
//!   start, from its seed.
//! - Times are whole picoseconds; how often a caller advances the engine, and whether it watches
//!   every token, changes no event and no metric (property-tested).
//! - The scheduler's choices are those of a second, direct writing of vLLM's scheduler, token by
//!   token and block by block (property-tested).
//! - No result depends on the order of a hash map.
//!
//! # How far from the truth
//!
//! `cargo run --release -p loadgen --example calibrate` prints every row. Found on 2026-11-30:
//!
//! | engine | load | inter-token latency | requests decoding | tokens/s | time to first token |
//! |---|---|---|---|---|---|
//! | NIM 70B, 2 × H100 | 1-250 clients, 5000/500 | −0.0 … +3.5 % | −1.5 … +1.4 % | −4.7 … +0.3 % | −28 … −8 % unsaturated, +6 … +9 % in the queue |
//! | NIM 8B | 1-250 clients, 200/200 | −0.5 … +1.7 % (its table is the profile) | −4 … +1 % | −4 … +2 % | 0 … +62 % up to 100 clients, −11 … +8 % above |
//! | 8B, A100-80 beside a published A100-40 | 1 and 8 clients, 1024/128 | | | +1 %, −11 % | |
//! | 8B, H100 | 1 and 4 clients, 200/200 | −0.6 %, −0.5 % | | | |
//!
//! A real vLLM 0.32 on one CPU thread (a random Llama of 590k parameters, 16 sequences at most),
//! its profile `tiny-cpu` fitted to six closed loops of other shapes and judged on these
//! (`calibrate tiny-cpu loadgen/tests/data`; simulated against captured):
//!
//! | load that judges | requests running | requests waiting | median time to first token |
//! |---|---|---|---|
//! | 8 clients, 200/80 | 7.6 against 7.5 | 0 against 0 | +18 % |
//! | 24 clients, 400/30 | −2 % | −2 % | +9 % |
//! | 32 clients, 100/60 | +4 % | +6 % | +8 % |
//! | 5 requests/s, Poisson, 100/80 | 1.2 against 1.3 | 0 against 0 | −21 % (11.2 against 14.2 ms) |
//! | 25 requests/s, Poisson, 150/60 | +8 % | 0 against 0 | +7 % |
//! | bursts of 40 every 8 s, 150/50 | 1.5 against 1.5 | 1.1 against 1.0 | −13 % |
//!
//! Published batches on an idle engine, as mean absolute errors; *judged* are the times through
//! which the curves do not go:
//!
//! | engine | profile | prompt time, judged | token time, judged |
//! |---|---|---|---|
//! | Splitwise's Llama-2-70B, 4 × H100 | curves through 4 prompts and 3 batches | 5.3 % (at most +14 %) | 2.7 % (−16 % at 64 requests, beyond the curve) |
//! | SageServe's Llama-3.1-8B, 2 × A100 | curves through 3 prompts and 3 batches | 10.6 % (at most +15 %) | 1.1 % |
//! | Splitwise's Llama-2-70B, 4 × H100 | the preset `70b-4xh100` as it is | 18 % (+1 … −10 % from 512 to 2,048 tokens, −31 % at 8,192) | 34 %: an engine of 2023, 30 ms a token alone |
//!
//! The NIM 70B profile takes one number from its table, the latency of one request alone; that some 86
//! requests fit, that the rest waits and how long follow from the model. The 8B engine is bound by
//! its API server from 150 clients on: requests wait in front of the scheduler, where no gauge sees
//! them.
//!
//! # What it does not know
//!
//! - Attention's quadratic part in long prompts, speculative decoding, pipeline parallelism,
//!   priorities, adapters (but for [`engine::Request::deferred_until`]), KV transfer.
//! - Delivery: a token's event is when the engine made it, however long the API server is behind.
//! - Content: only what a caller declares shared is found in the prefix cache, besides what a
//!   preempted request finds of itself.
//! - Noise: two equal steps take equally long. Only cold starts are drawn at random.

pub mod args;
pub mod calibration;
pub mod compare;
pub mod dcgm;
pub mod duration;
pub mod engine;
pub mod exposition;
pub mod files;
mod listen;
pub mod profiles;
pub mod run;
pub mod series;
pub mod server;
pub mod spread;
pub mod stdio;
pub mod text;
pub mod traces;
pub mod yaml;
