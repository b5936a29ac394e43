//! Progress on standard error: a redrawn picture for a terminal, plain lines otherwise.
//!
//! Must not touch standard output, which is the verdict's.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::story::Story;
use super::timeline::{COLUMNS, Timeline, bars, load};
use super::{MAX, NAME, NAMESPACE, rival};
use crate::decision::Moment;

/// Without a terminal every so many columns of the timeline make a line.
const COLUMNS_A_LINE: usize = 6;
/// Lines of the picture that are drawn anew.
const PICTURE_LINES: usize = 5;

/// What there is to show.
pub(super) struct Now<'a> {
    pub(super) at: Moment,
    pub(super) timeline: &'a Timeline,
    /// Runs of the other lanes that are done.
    pub(super) sweep_done: usize,
}

/// The progress of a run.
pub(super) struct Screen {
    is_silent: bool,
    is_terminal: bool,
    is_drawn: bool,
    load: Vec<f64>,
}

impl Screen {
    pub(super) fn new(story: &Story) -> Screen {
        let is_terminal = stderr().is_terminal();
        Screen { is_silent: false, is_terminal, is_drawn: false, load: load(story) }
    }

    /// One that shows nothing.
    #[cfg(test)]
    pub(super) fn silent(story: &Story) -> Screen {
        Screen { is_silent: true, ..Screen::new(story) }
    }

    /// Says where the API is.
    pub(super) fn begin(&mut self, http: SocketAddr) {
        self.write(&format!(
            "The scaler's API while this runs:\n  http://{http}/api/v1/workloads/{NAMESPACE}/{NAME}\n  \
             ghostscaler explain {NAMESPACE}/{NAME} --server http://{http}\n"
        ));
    }

    /// Shows a column of our lane.
    pub(super) fn show(&mut self, now: &Now<'_>) {
        if self.is_terminal {
            let picture = self.picture(now);
            let up = if self.is_drawn { format!("\x1b[{PICTURE_LINES}A") } else { String::new() };
            self.is_drawn = true;
            self.write(&format!("{up}{picture}"));
        } else if now.timeline.ready.len().is_multiple_of(COLUMNS_A_LINE) {
            let last = |values: &[u32]| values.last().copied().unwrap_or(0);
            let column = now.timeline.ready.len().saturating_sub(1);
            self.write(&format!(
                "{}  load {:4.1}/s  queue {:4}  wanted {}  ready {}  other lanes {}/{}\n",
                clock(now.at),
                self.load.get(column).unwrap_or(&0.0),
                last(&now.timeline.queue),
                last(&now.timeline.wanted),
                last(&now.timeline.ready),
                now.sweep_done,
                rival::n_runs(),
            ));
        }
    }

    /// Waits for the other lanes, and says how many of their runs are done.
    pub(super) async fn wait<T>(&mut self, lanes: &JoinHandle<T>, done: &AtomicUsize) {
        while !lanes.is_finished() {
            if self.is_terminal {
                let n_done = done.load(Ordering::Relaxed);
                self.write(&format!("\rother lanes {n_done}/{} ", rival::n_runs()));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Leaves room for the verdict.
    pub(super) fn end(&mut self) {
        self.write(if self.is_terminal { "\r\x1b[K\n" } else { "\n" });
    }

    fn picture(&self, now: &Now<'_>) -> String {
        let Timeline { queue, wanted, ready, .. } = now.timeline;
        let columns = ready.len();
        let load: Vec<f64> = self.load.iter().copied().take(columns).collect();
        let highest = |values: &[f64]| values.iter().copied().fold(1.0, f64::max);
        let queue: Vec<f64> = queue.iter().map(|&held| f64::from(held)).collect();
        let replicas = |counts: &[u32]| counts.iter().map(|&n| f64::from(n)).collect::<Vec<_>>();
        let (wanted, ready) = (replicas(wanted), replicas(ready));
        let most = f64::from(MAX);
        let mut text = format!(
            "\x1b[K{}   other lanes {}/{}\n",
            clock(now.at),
            now.sweep_done,
            rival::n_runs()
        );
        for (label, values, largest) in [
            ("load/s", &load, highest(&self.load)),
            ("queue", &queue, highest(&queue)),
            ("wanted", &wanted, most),
            ("ready", &ready, most),
        ] {
            let row = bars(values.iter().copied(), largest);
            let last = values.last().copied().unwrap_or(0.0);
            let width = COLUMNS as usize;
            text.push_str(&format!("\x1b[K{label:7} {row:width$} {last:6.1}\n"));
        }
        text
    }

    fn write(&self, text: &str) {
        if self.is_silent {
            return;
        }
        // Who has closed standard error wants no progress.
        drop(stderr().lock().write_all(text.as_bytes()));
    }
}

/// The time of the simulated day, as `07:35`.
pub(super) fn clock(at: Moment) -> String {
    let minutes = at.0.div_euclid(60_000);
    format!("{:02}:{:02}", minutes.div_euclid(60).rem_euclid(24), minutes.rem_euclid(60))
}
