//! The program: flags in, exit code out.

use std::process::ExitCode;

use clap::Parser as _;
use loadgen::args::Args;

fn main() -> ExitCode {
    Args::parse().run()
}
