//! What an engine's `/metrics` looks like: the page of a named dialect, rendered from the engine's
//! own counts.
//!
//! Must not open a socket, read a clock or count anything but HTTP exchanges: [`render`] is pure,
//! so a simulation shows its engines exactly as a server with sockets does.
//!
//! A dialect is data: the families in their order, with their help texts, labels and where each
//! value comes from. `families.rs` defines each family once; `dialects.rs` lists them by engine and
//! version, and says which of them a captured page of a running server bears out. `iterations.rs`
//! is the JSON that trtllm-serve has where others have their page.
//!
//! ```
//! use std::sync::Arc;
//!
//! use loadgen::engine::{Profile, Replica};
//! use loadgen::exposition::{Dialect, Http, Rank, Server, render};
//!
//! let replica = Replica::warm(Arc::new(Profile::load("8b-a100")?));
//! let http = Http::default();
//! let mut page = String::new();
//! render(&Dialect::VLLM_0_32, &Server::new("llama", &[Rank::of(&replica)], &http), &mut page);
//! assert!(page.contains("\nvllm:num_requests_running{engine=\"0\",model_name=\"llama\"} 0.0\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod dialects;
mod families;
mod http;
mod iterations;
mod process;
mod render;
mod text;
mod underscores;

pub use dialects::{Dialect, Health, Manners, UnknownDialect};
pub use http::{Exchange, Http};
pub use iterations::iterations;
pub use render::render;
pub use underscores::{UNDERSCORES_TYPE, with_underscores};

use crate::engine::{Condition, Gauges, Metrics, Profile, Replica, SleepLevel, Time, secs_from_ps};

/// One engine of a server: a data-parallel rank, or the only one.
#[derive(Debug, Clone, Copy)]
pub struct Rank<'a> {
    /// What it has counted.
    pub metrics: &'a Metrics,
    /// The gauges to show: usually those of `metrics`.
    pub gauges: Gauges,
    /// What it runs on.
    pub profile: &'a Profile,
    /// How deeply it sleeps, until it has woken.
    pub asleep: Option<SleepLevel>,
    /// Whether it has ever ended a step.
    pub has_stepped: bool,
    /// Seconds that its steps have taken.
    pub busy_s: f64,
}

impl<'a> Rank<'a> {
    /// The engine of a replica as it is.
    #[must_use]
    pub fn of(replica: &'a Replica) -> Rank<'a> {
        let engine = replica.engine();
        let metrics = engine.metrics();
        Rank {
            metrics,
            gauges: metrics.gauges,
            profile: engine.profile(),
            asleep: match replica.condition() {
                Condition::Asleep(level) | Condition::Waking(level) => Some(level),
                Condition::Starting(_)
                | Condition::Ready
                | Condition::Draining
                | Condition::Exiting
                | Condition::Gone => None,
            },
            has_stepped: engine.last_step_end() > Time::ZERO,
            busy_s: secs_from_ps(engine.work().total_ps()),
        }
    }
}

/// A serving process: what its page is about.
#[derive(Debug, Clone, Copy)]
pub struct Server<'a> {
    /// The first served model name.
    pub model_name: &'a str,
    /// Its engines, by rank.
    pub ranks: &'a [Rank<'a>],
    /// What its HTTP layer has counted.
    pub http: &'a Http,
    /// Requests turned away by an admission limit.
    pub rejections: u64,
    /// Several API servers: Python's multiprocess mode, which has no `_created` series and no
    /// process metrics, and no gauges before the first step. Default: with more than one rank.
    pub multiprocess: bool,
    /// False is `--disable-log-stats`: no engine series at all. Default: true.
    pub log_stats: bool,
    /// What stands before the name of each engine series instead of the dialect's own. Default:
    /// nothing else.
    pub namespace: Option<&'a str>,
    /// When the process started, in seconds since the Unix epoch. Default: 0.
    pub started_unix_s: f64,
    /// Now, on the same clock. Default: 0.
    pub now_unix_s: f64,
}

impl<'a> Server<'a> {
    /// A server with nothing out of the ordinary.
    #[must_use]
    pub fn new(model_name: &'a str, ranks: &'a [Rank<'a>], http: &'a Http) -> Server<'a> {
        Server {
            model_name,
            ranks,
            http,
            rejections: 0,
            multiprocess: ranks.len() > 1,
            log_stats: true,
            namespace: None,
            started_unix_s: 0.0,
            now_unix_s: 0.0,
        }
    }
}
