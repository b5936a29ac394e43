//! How far a long run is, on standard error.
//!
//! Must not write to standard output: results go there.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::sync::Mutex;

/// Shows progress: one line that changes on a terminal, else a line now and then.
#[derive(Debug)]
pub(crate) struct Progress {
    is_terminal: bool,
    last: Mutex<String>,
}

/// Without a terminal, each step is told of so many times.
const LINES_PER_STEP: usize = 4;
const BAR_WIDTH: usize = 30;

impl Progress {
    pub(crate) fn start() -> Progress {
        Progress { is_terminal: stderr().is_terminal(), last: Mutex::new(String::new()) }
    }

    /// So much of a step is done; `of` 0 if nobody knows how much there is.
    pub(crate) fn tell(&self, step: &str, done: usize, of: usize) {
        let Ok(mut last) = self.last.lock() else { return };
        let is_new = *last != step;
        step.clone_into(&mut last);
        let mut stderr = stderr().lock();
        let amount = match of {
            0 if done == 0 => String::new(),
            0 => format!("{done} done"),
            _ => format!("{done} of {of}"),
        };
        // A progress line that cannot be written is no reason to stop.
        if self.is_terminal {
            let filled = (done * BAR_WIDTH).checked_div(of).unwrap_or(0).min(BAR_WIDTH);
            let bar = format!("{:<BAR_WIDTH$}", "#".repeat(filled));
            let bar = if of == 0 { String::new() } else { format!("[{bar}] ") };
            drop(write!(stderr, "\r\x1b[K{step} {bar}{amount}"));
            drop(stderr.flush());
        } else if is_new || (of > 0 && done.is_multiple_of(of.div_ceil(LINES_PER_STEP))) {
            drop(writeln!(stderr, "{step} {amount}"));
        }
    }

    pub(crate) fn end(&self) {
        if self.is_terminal {
            drop(write!(stderr(), "\r\x1b[K"));
        }
    }
}
