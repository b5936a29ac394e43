//! The command line: every flag a validated type, its help the reference.
//!
//! Holds no logic of a command: each has a module of its own with its flags and its `run`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::profiles;

/// LLM serving engines without GPUs, and the load that is put on them.
#[derive(Debug, Parser)]
#[command(name = "loadgen", version, max_term_width = 80)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the engine profiles that come with the program, or print one as a file to start from.
    Profiles(profiles::Args),
}

impl Args {
    /// Runs what the command line says and returns the process's exit code: 0 when done, 2 when it
    /// could not be done.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let result = match self.command {
            Command::Profiles(args) => args.run(&mut std::io::stdout().lock()).map(|()| 0),
        };
        match result {
            Ok(code) => ExitCode::from(code),
            Err(error) => {
                // A reader that has gone away is no fault worth a word.
                drop(writeln!(std::io::stderr(), "error: {error:#}"));
                ExitCode::from(2)
            }
        }
    }
}
