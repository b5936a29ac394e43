//! The program: flags in, exit code out.

use std::process::ExitCode;

use clap::Parser as _;
use ghostscaler::{app, args::Args};

fn main() -> ExitCode {
    app::run(Args::parse())
}
