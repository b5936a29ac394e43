//! The command line: every flag a validated type, its help the reference.
//!
//! Holds no logic of a command: each has a module of its own with its flags and its `run`.

use std::io::Write as _;
use std::ops::RangeInclusive;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::stdio::{ErrorChain, Output};
use crate::{compare, dcgm, profiles, run, server};

/// LLM serving engines without GPUs, and the load that is put on them.
#[derive(Debug, Parser)]
#[command(name = "loadgen", version, max_term_width = 80)]
#[command(after_help = "Start with `loadgen engine --profile 8b-a100`, then in another terminal\n\
    `loadgen run --url http://127.0.0.1:8000 --model 8b-a100 --rate 5`.")]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Simulate serving engines behind real sockets: the OpenAI API, vLLM's metrics, and faults on
    /// command.
    ///
    /// Answers as soon as it has started, until SIGTERM, which it takes as the real server does.
    /// Prompts count one token for each four bytes of text begun, or exactly as a list of token
    /// ids. An output is as long as `max_tokens` with `ignore_eos`, else as long as chance says,
    /// 256 tokens in the mean, within `min_tokens` and `max_tokens`.
    Engine(Box<server::Args>),
    /// List the engine profiles that come with the program, or print one as a file to start from.
    Profiles(profiles::Args),
    /// Serve the GPU metrics of a described fleet as dcgm-exporter does, one exporter a node.
    Dcgm(dcgm::Args),
    /// Put load on an OpenAI-compatible server and report what its users would see.
    Run(Box<run::Args>),
    /// Set two results beside each other, and say whether they differ by more than chance.
    Compare(compare::Args),
}

/// Reads a whole number in a range, and says what was expected.
pub(crate) fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let expected = || match range.end() {
            &u64::MAX => format!("expected a whole number, {} or more", range.start()),
            most => format!("expected a whole number, {} to {most}", range.start()),
        };
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(expected)
    }
}

/// Reads a number in a range, and says what was expected.
pub(crate) fn number(range: RangeInclusive<f64>) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("expected a number, {} to {}", range.start(), range.end()))
    }
}

impl Args {
    /// Runs what the command line says and returns the process's exit code: 0 when done, 1 when what
    /// was required does not hold, 2 when it could not be done.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let mut out = Output::new(std::io::stdout().lock());
        let result = match self.command {
            Command::Engine(args) => args.run().map(|()| 0),
            Command::Profiles(args) => args.run(&mut out).map(|()| 0),
            Command::Dcgm(args) => args.run(&mut out).map(|()| 0),
            Command::Run(args) => args.run(&mut out),
            Command::Compare(args) => args.run(&mut out).map(|()| 0),
        };
        match result {
            Ok(code) => ExitCode::from(code),
            Err(_) if out.is_closed() => ExitCode::SUCCESS,
            Err(error) => {
                // Who has closed standard error wants no word.
                drop(writeln!(std::io::stderr(), "error: {}", ErrorChain(error.as_ref())));
                ExitCode::from(2)
            }
        }
    }
}
