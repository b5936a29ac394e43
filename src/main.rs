//! The program: flags in, exit code out.

use std::process::ExitCode;

use clap::Parser as _;
use ghostscaler::{app, args::Args};

/// glibc keeps a heap for each thread, which costs a fifth more memory a workload; how this one is set up
/// is in `.cargo/config.toml`.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    app::run(Args::parse())
}
