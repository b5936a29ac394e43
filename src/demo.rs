//! `ghostscaler demo`: the whole experience on one machine, with a verdict.
//!
//! One working day in 2 h 37 min, told to three lanes with the same requests. In the first the real
//! scaler runs: its ticks, its decision, its gRPC service and its HTTP API, between simulated
//! engines and a model of KEDA and the HPA. The others are KEDA's Prometheus trigger on queue depth
//! and on concurrency, each at its best target for this very story.
//!
//! Must not know more of the scaler than KEDA and a person can see, and must not bend the story to
//! the verdict.

mod cluster;
mod gpus;
mod lockstep;
mod pages;
mod rival;
mod scaler;
mod screen;
mod story;
#[cfg(test)]
mod tests;
mod timeline;
mod verdict;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use loadgen::engine::{PS_PER_MS, Profile, Time};

use crate::conformance::client::Failure;
use crate::decision::Moment;
use crate::{config, declog, grpc, source, tick};

use scaler::Records;
use screen::Screen;
use story::Story;
use verdict::{Lane, Verdict};

/// The one workload.
const NAMESPACE: &str = "demo";
const NAME: &str = "llm";
/// `maxReplicaCount` of every lane: twice what the peak needs.
const MAX: u32 = 8;
/// The GPU and model of every replica.
const PROFILE: &str = "8b-a100";
/// How long a leaving pod may take to finish what it has, as `--shutdown-timeout`.
const DRAIN_S: f64 = 600.0;
/// The simulated day begins on Monday, 2026-01-05, at 07:00 UTC.
const START: Moment = Moment(1_767_596_400_000);

/// Show it working: simulated engines, KEDA and the HPA around the real scaler, and a verdict.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which day: the same seed gives the same result to the byte.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Simulated seconds in a second at most, such as 60 to watch it [default: as fast as it goes].
    #[arg(long, value_name = "X", value_parser = speed)]
    pub speed: Option<f64>,
    /// Write each changed decision as a JSON line to this file, as `serve` does, for `replay`.
    #[arg(long, value_name = "FILE")]
    pub decision_log: Option<PathBuf>,
    /// How to print the verdict.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
}

/// How the verdict is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For a person, 80 columns.
    Text,
    /// One JSON object.
    Json,
}

fn speed(text: &str) -> Result<f64, &'static str> {
    let in_range = text.parse().ok().filter(|speed| (0.1..=100_000.0).contains(speed));
    in_range.ok_or("expected a number from 0.1 to 100000")
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The simulated engines' profile is no profile.
    #[error("the engines' profile cannot be used")]
    Profile(#[from] loadgen::engine::ProfileError),
    /// The simulated GPUs are none.
    #[error("the demo's GPUs cannot be simulated")]
    Gpus(#[from] loadgen::dcgm::Error),
    /// The scaler's own configuration was refused.
    #[error("the demo's configuration was refused")]
    Config(#[from] config::Error),
    /// A client could not be made.
    #[error("the demo's metrics cannot be read")]
    Source(#[from] source::Error),
    /// The decision log cannot be written.
    #[error(transparent)]
    Log(#[from] declog::Error),
    /// A reader could not be made.
    #[error("the demo's upstreams cannot be read")]
    Upstreams(#[from] tick::UpstreamsError),
    /// No port of the loopback could be had.
    #[error("no port of 127.0.0.1 can be listened on")]
    Listen(#[source] std::io::Error),
    /// The gRPC service could not be started.
    #[error(transparent)]
    Grpc(#[from] grpc::Error),
    /// The gRPC address is none.
    #[error("the gRPC service cannot be called")]
    Address(#[from] tonic::transport::Error),
    /// A call got no answer.
    #[error("a call to the scaler failed: {0}")]
    Call(String),
    /// The scaler turned active and did not push it.
    #[error("the scaler did not push that it turned active")]
    PushLost,
    /// The scaler does not follow the workload.
    #[error("the scaler does not follow the demo's workload")]
    NoTrigger,
    /// The rivals' thread is gone.
    #[error("the other lanes failed")]
    Rivals(#[source] tokio::task::JoinError),
    /// The verdict cannot be made into JSON.
    #[error("the verdict cannot be written as JSON")]
    Json(#[from] serde_json::Error),
    /// The result cannot be written.
    #[error("the result cannot be written")]
    Write(#[source] std::io::Error),
}

impl Error {
    fn call(failure: Failure) -> Error {
        Error::Call(failure.to_string())
    }
}

/// Plays the story in all lanes and writes the verdict to `out`; progress goes to standard error.
///
/// # Errors
///
/// When the scaler cannot be run on this machine, or `out` cannot be written.
pub async fn run(args: &Args, out: &mut impl Write) -> Result<(), Error> {
    let story = Story::new(args.seed);
    let screen = Screen::new(&story);
    tell(story, args, screen, out).await
}

async fn tell(
    story: Story,
    args: &Args,
    mut screen: Screen,
    out: &mut impl Write,
) -> Result<(), Error> {
    let records = Records::open(args.decision_log.as_deref())?;
    let story = Arc::new(story);
    let mut profile = Profile::load(PROFILE)?;
    profile.shutdown.timeout_s = DRAIN_S;
    let profile = Arc::new(profile);

    let done = Arc::new(AtomicUsize::new(0));
    let rivals = {
        let (story, profile, done) = (Arc::clone(&story), Arc::clone(&profile), Arc::clone(&done));
        tokio::task::spawn_blocking(move || rival::sweep(&story, &profile, &done))
    };
    let lane = lockstep::run(&story, &profile, args.speed, records, &done, &mut screen);
    let (score, timeline) = lane.await?;
    screen.wait(&rivals, &done).await;
    let sweep = rivals.await.map_err(Error::Rivals)?;
    screen.end();

    let ours = Lane { name: "ghostscaler", target: None, score, timeline };
    let verdict = Verdict::new(&story, &profile, ours, &sweep);
    match args.format {
        Format::Text => verdict.print(out).map_err(Error::Write),
        Format::Json => {
            serde_json::to_writer(&mut *out, &verdict)?;
            writeln!(out).map_err(Error::Write)
        }
    }
}

/// The moment of the simulated day that a time of the simulation is.
fn moment(time: Time) -> Moment {
    START.plus_millis(time.0 / PS_PER_MS)
}

/// The time of the simulation at a moment of the simulated day.
fn time(moment: Moment) -> Time {
    Time::from_millis(moment.millis_since(START))
}
