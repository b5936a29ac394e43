//! How far a run is, for a person: a line that is written over on a terminal, else one for each group of
//! checks.
//!
//! Must not know what is checked.

use std::io::{IsTerminal as _, Write};

/// How far the run is.
pub(super) struct Progress<'a> {
    out: &'a mut dyn Write,
    is_terminal: bool,
    n_done: usize,
    n_all: usize,
    /// The first letter of the last rule's id.
    group: Option<char>,
}

impl Progress<'_> {
    pub(super) fn new(n_all: usize, out: &mut dyn Write) -> Progress<'_> {
        let is_terminal = std::io::stderr().is_terminal();
        Progress { out, is_terminal, n_done: 0, n_all, group: None }
    }

    pub(super) fn step(&mut self, id: &str) -> Result<(), std::io::Error> {
        self.n_done += 1;
        let last_group = std::mem::replace(&mut self.group, id.chars().next());
        if self.is_terminal || self.group != last_group {
            self.say(&format!("check {} of {}: {id}", self.n_done, self.n_all))?;
        }
        Ok(())
    }

    pub(super) fn clear(&mut self) -> Result<(), std::io::Error> {
        if self.is_terminal { self.say("") } else { Ok(()) }
    }

    pub(super) fn say(&mut self, text: &str) -> Result<(), std::io::Error> {
        if self.is_terminal {
            write!(self.out, "\r\x1b[2K{text}")?;
        } else {
            writeln!(self.out, "{text}")?;
        }
        self.out.flush()
    }
}
