//! `loadgen engine`: simulated engines behind real sockets.
//!
//! Must not simulate anything itself: engines are [`crate::engine`]'s, pages
//! [`crate::exposition`]'s.
//!
//! Each replica is a listener and a task that moves its engines by the clock (`backend.rs`):
//! tokens go out when the step that makes them ends, up to a millisecond late, which is as exact
//! as the runtime's timers are; simulated time never drifts from the clock by it. An engine whose
//! steps take longer to compute than to pass falls behind, and answers later than it should.
//!
//! Reading order: `server/backend.rs` (what a server is) → `backend/state.rs` (what happens in it)
//! → `feed.rs` (how answers hear of tokens) → `api.rs` (paths) → `wanted.rs`, `answer.rs` (bodies)
//! → `exchange.rs` (what HTTP counts) → `listener.rs` (sockets) → `pathology.rs` (faults).

mod answer;
mod api;
mod backend;
mod clock;
mod error;
mod exchange;
mod feed;
mod listener;
mod pathology;
mod wanted;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use clap::builder::NonEmptyStringValueParser;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

pub use pathology::{Error as PathologyError, Order, Pathology};

use self::backend::{Backend, Settings};
use self::clock::Clock;
use crate::engine::{Condition, Profile, Spread, Stage};
use crate::exposition::{Dialect, UnknownDialect};
use crate::files::{self, MAX_KEY_BYTES};
use crate::{args, duration, listen};

/// Threads for all replicas: their work is small, and the machine is the load generator's too.
const N_THREADS: usize = 2;

/// The flags of `engine`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to simulate: a profile's name (`loadgen profiles` lists them) or file.
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: String,

    /// Where the first replica listens; with port 0, each replica gets a port of its own.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8000", value_parser = listen::address)]
    pub listen: SocketAddr,

    /// How many replicas, each one server, at PORT, PORT+1 and so on.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = args::whole::<u16>(1..=4_096))]
    pub replicas: u16,

    /// Refuse connections for as long as a start takes: `profile` for its stages, drawn at random,
    /// or a duration [default: ready at once].
    #[arg(long, value_name = "profile|DURATION", value_parser = cold_start)]
    pub cold_start: Option<ColdStart>,

    /// Requests that run at once: vLLM's --max-num-seqs, llama.cpp's --parallel [default: the
    /// profile's; llama.cpp's 4 slots].
    #[arg(long, visible_alias = "parallel", value_name = "N",
        value_parser = args::whole::<u32>(1..=65_536))]
    pub max_num_seqs: Option<u32>,

    /// Whose page, and which manners beside it; `--help` lists both.
    #[arg(long, value_name = "NAME", default_value = "vllm-0.32", value_parser = dialect,
        long_help = dialect_help())]
    pub dialect: &'static Dialect,

    /// The served model's name [default: the profile's].
    #[arg(long, visible_alias = "served-model-name", value_name = "NAME",
        value_parser = NonEmptyStringValueParser::new())]
    pub model: Option<String>,

    /// Ask for the key in this file, as `Authorization: Bearer`, on all paths below /v1.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,

    /// Let something go wrong, from the start or later. May be given several times; POST to
    /// /_loadgen/pathology does the same while it runs, DELETE calls everything off.
    #[arg(long = "pathology", value_name = "FAULT", long_help = pathology_help())]
    pub pathologies: Vec<Order>,

    /// Let requests finish for that long after SIGTERM [default: the profile's].
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_millis)]
    pub shutdown_timeout: Option<u64>,

    /// Engines in each server; several are in one page, told apart by their label.
    #[arg(long, visible_alias = "data-parallel-size", value_name = "N", default_value_t = 1,
        value_parser = args::whole::<u16>(1..=64))]
    pub data_parallel: u16,

    /// API servers of each server; more than one changes what the page shows [default: one for
    /// each engine].
    #[arg(long, visible_alias = "api-server-count", value_name = "N",
        value_parser = args::whole::<u16>(1..=64))]
    pub api_servers: Option<u16>,

    /// What cold starts and lengths of outputs are drawn from.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = args::whole::<u64>(0..=u64::MAX))]
    pub seed: u64,
}

/// How long a server takes to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColdStart {
    /// As its profile says.
    Profile,
    /// That many milliseconds.
    Millis(u64),
}

impl Args {
    /// Serves until SIGTERM or SIGINT, and until the servers have ended as the real one does, or
    /// until a second of these.
    /// Says on standard output where each replica will listen.
    ///
    /// # Errors
    ///
    /// When the profile or the key cannot be read, or an address is taken.
    pub fn run(self) -> anyhow::Result<()> {
        listen::raise_file_limit();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(N_THREADS)
            .enable_all()
            .build()
            .context("failed to start the runtime")?;
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> anyhow::Result<()> {
        ensure!(
            self.data_parallel == 1 || self.dialect.tells_ranks_apart(),
            "dialect `{}` does not tell the engines of a server apart: expected --data-parallel 1",
            self.dialect.name
        );
        let api_key = self.api_key_file.as_deref().map(read_key).transpose()?;
        let profile = Arc::new(self.adapted_profile()?);
        let mut signals = listen::Signals::watch()?;
        let clock = Clock::start();
        let slots = Arc::new(Semaphore::new(listener::MAX_CONNECTIONS as usize));
        let mut backends = Vec::new();
        let mut drivers = JoinSet::new();
        // All of them now, also those that a cold server will not listen on yet, so that a taken
        // address is known at once.
        let mut bound = Vec::new();
        for index in 0..usize::from(self.replicas) {
            let listener = listen::bind(self.listen, index).await;
            bound.push(listener.with_context(|| {
                format!("replica {index} has no address, give another with --listen")
            })?);
        }
        for (index, bound) in bound.into_iter().enumerate() {
            let settings = self.settings(&profile, index);
            let backend = Backend::new(settings, &self.pathologies, clock);
            let address = bound.local_addr().context("failed to read a listener's address")?;
            let bound = backend.life().borrow().is_listening().then_some(bound);
            say(&mut std::io::stdout().lock(), &format!("replica {index}: http://{address}"));
            if self.cold_start.is_some() {
                tokio::spawn(report_start(index, Arc::clone(&backend)));
            }
            let router = api::router(Arc::clone(&backend), api_key.clone());
            tokio::spawn(listener::serve(
                address,
                bound,
                router,
                backend.life(),
                Arc::clone(&slots),
            ));
            let driven = Arc::clone(&backend);
            drivers.spawn(async move { driven.drive().await });
            backends.push(backend);
        }
        signals.next().await;
        for backend in &backends {
            backend.terminate();
        }
        let ended = async {
            while drivers.join_next().await.is_some() {}
            if self.dialect.manners.hangs_on_sigterm {
                // Until the clients have given up, or somebody else does.
                let _all = slots.acquire_many(listener::MAX_CONNECTIONS).await;
            }
        };
        tokio::select! {
            () = ended => {}
            () = signals.next() => {}
        }
        Ok(())
    }

    /// The profile with what the flags change of it.
    fn adapted_profile(&self) -> anyhow::Result<Profile> {
        let mut profile = Profile::load(&self.profile)?;
        if let Some(timeout_ms) = self.shutdown_timeout {
            profile.shutdown.timeout_s = timeout_ms as f64 / 1e3;
        }
        let asked = self.max_num_seqs.map(|most| most as usize);
        if let Some(slots) = asked.or(self.dialect.manners.slots) {
            profile.limits.max_num_seqs = slots;
        }
        if let Some(ColdStart::Millis(millis)) = self.cold_start {
            // All four stages alike, and nothing left to chance.
            let quarter_s = millis as f64 / 4e3;
            let stage = Spread { median_s: quarter_s, p95_s: quarter_s };
            let start = &mut profile.start;
            for each in [&mut start.schedule, &mut start.pull, &mut start.load, &mut start.warm] {
                *each = stage;
            }
        }
        Ok(profile)
    }

    fn settings(&self, profile: &Arc<Profile>, index: usize) -> Settings {
        let n_ranks = usize::from(self.data_parallel);
        Settings {
            profile: Arc::clone(profile),
            dialect: self.dialect,
            model_name: self.model.clone().unwrap_or_else(|| profile.name.clone()),
            starts_cold: self.cold_start.is_some_and(|start| start != ColdStart::Millis(0)),
            seed: self.seed.wrapping_add(index as u64),
            n_ranks,
            n_api_servers: self.api_servers.map_or(n_ranks, usize::from),
        }
    }
}

/// Says how far a start is.
async fn report_start(index: usize, backend: Arc<Backend>) {
    let mut life = backend.life();
    loop {
        let condition = life.borrow_and_update().condition;
        let what = match condition {
            Condition::Starting(Stage::Schedule) => "waits for a node",
            Condition::Starting(Stage::Pull) => "pulls its image",
            Condition::Starting(Stage::Load) => "loads its weights",
            Condition::Starting(Stage::Warm) => "warms up",
            Condition::Ready => "is ready",
            Condition::Asleep(_)
            | Condition::Waking(_)
            | Condition::Draining
            | Condition::Exiting
            | Condition::Gone => return,
        };
        say(&mut std::io::stderr().lock(), &format!("replica {index} {what}"));
        if condition == Condition::Ready || life.changed().await.is_err() {
            return;
        }
    }
}

/// Writes a line; a reader that has gone away is no reason to stop serving.
fn say(out: &mut impl Write, line: &str) {
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}

fn read_key(path: &Path) -> anyhow::Result<Arc<str>> {
    let text = files::read_text(path, MAX_KEY_BYTES)
        .with_context(|| format!("failed to read the key in {}", path.display()))?;
    let key = text.trim();
    ensure!(!key.is_empty(), "the key file {} is empty", path.display());
    Ok(key.into())
}

fn cold_start(text: &str) -> Result<ColdStart, String> {
    if text == "profile" {
        return Ok(ColdStart::Profile);
    }
    duration::parse_millis(text)
        .map(ColdStart::Millis)
        .map_err(|_neither| "expected `profile` or a duration such as 90s".to_owned())
}

fn dialect(name: &str) -> Result<&'static Dialect, UnknownDialect> {
    Dialect::named(name)
}

fn dialect_help() -> String {
    let hanging = Dialect::ALL.iter().filter(|dialect| dialect.manners.hangs_on_sigterm);
    let hanging: Vec<&str> = hanging.map(|dialect| dialect.name).collect();
    let mut help = format!(
        "Whose page, and which manners beside it. Whatever the dialect, requests are \
        OpenAI's, answered in vLLM's form, and SIGTERM is vLLM's: {} leave connections open at \
        it, and stay until their clients have gone or a second signal comes. The others' own are: /health, which \
        generates in sglang and tgi; llamacpp's slots, /slots, and 503 while it loads; nim's \
        /v1/health/ready; triton's /v2/health/ready (its port 8002 is --listen); trtllm's JSON at \
        /metrics, each step for one reader; underscores for sglang's and lmdeploy's colons where a \
        scraper prefers OpenMetrics. Not there are /generate of tgi and sglang, /v1/loads, Triton's \
        inference protocol, vLLM's Rust front end and SGLang before 0.5. A page other than vLLM's has \
        the families of load, tokens and latency only. Uncaptured names are those of the engine's \
        own source or documentation, which no page of a running server was at hand to check; \
        written ones those that its own metrics code wrote without an engine:",
        hanging.join(", ")
    );
    for dialect in Dialect::ALL {
        let page = dialect.paths.first().copied().unwrap_or_default();
        let known = dialect.evidence.word();
        help.push_str(&format!("\n  {:14} {known:11} {page}", dialect.name));
    }
    help
}

fn pathology_help() -> String {
    format!(
        "Let something go wrong, from the start or later: {}\n\nMay be given several times. POST \
         to /_loadgen/pathology does the same while it runs, GET lists, DELETE calls all off.",
        pathology::help()
    )
}
