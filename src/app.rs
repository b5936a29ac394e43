//! The only wiring: builds the parts, spawns them, watches that none ends, and ends them in order.
//!
//! Must not hold logic of any part.

mod peers;
mod reload;
mod serve;

use std::io::{Stdout, Write as _};
use std::process::ExitCode;

use loadgen::stdio::Output;

use crate::args::{Args, Command};
use crate::conformance::{self, Outcome};
use crate::telemetry::ErrorChain;
use crate::{backtest, demo, doctor, explain, generate, replay, simulate};

/// Runs what the command line says and returns the process's exit code: 0 when done, 1 when a check
/// failed or a log differs, 2 when it could not be done. A reader that leaves before the end is a
/// normal end.
#[must_use]
pub fn run(args: Args) -> ExitCode {
    // Before any client or listener: there is one TLS provider, ring. It can be set only once, and
    // this is the only place, so a second value is no fault.
    drop(rustls::crypto::ring::default_provider().install_default());
    let mut out = Output::new(std::io::stdout());
    match dispatch(args, &mut out) {
        Ok(code) => ExitCode::from(code),
        Err(_) if out.is_closed() => ExitCode::SUCCESS,
        Err(error) => {
            // Who has closed standard error wants no word.
            drop(writeln!(std::io::stderr(), "error: {}", ErrorChain(error.as_ref())));
            ExitCode::from(2)
        }
    }
}

fn dispatch(args: Args, out: &mut Output<Stdout>) -> anyhow::Result<u8> {
    match args.command {
        Command::Serve(args) => {
            let runtime = runtime()?;
            let served = runtime.block_on(serve::serve(*args));
            // What still reads a file or a name by then is not waited for.
            runtime.shutdown_background();
            served.map(|()| 0)
        }
        Command::Demo(args) => {
            let runtime = runtime()?;
            let told = runtime.block_on(demo::run(&args, out));
            // After a fault the other lanes play on, for a minute; nobody waits for them.
            runtime.shutdown_background();
            told.map(|()| 0).map_err(Into::into)
        }
        Command::Explain(args) => {
            runtime()?.block_on(explain::run(&args, out))?;
            Ok(0)
        }
        Command::Generate(args) => {
            runtime()?.block_on(generate::run(&args, out, &mut std::io::stderr()))?;
            Ok(0)
        }
        Command::Doctor(args) => Ok(match runtime()?.block_on(doctor::run(&args, out))? {
            doctor::Outcome::InOrder => 0,
            doctor::Outcome::Findings => 1,
        }),
        Command::Replay(args) => Ok(replay::run(&args, out)?.exit_code()),
        Command::Simulate(args) => {
            simulate::run(&args, out)?;
            Ok(0)
        }
        Command::Backtest(args) => {
            runtime()?.block_on(backtest::run(&args, out))?;
            Ok(0)
        }
        Command::Conformance(args) => {
            Ok(match runtime()?.block_on(conformance::run(&args, out, &mut std::io::stderr()))? {
                Outcome::Passed => 0,
                Outcome::Failed => 1,
            })
        }
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}
