//! The decision log: one self-contained JSON line for each decision that differs from the last.
//!
//! Must never make a tick wait: what a slow disk cannot take is dropped and counted.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::decision::{Decision, Health, Moment, Observation, Spec, State};
use crate::metrics::Metrics;

/// The version of the lines that this binary writes and reads.
pub const VERSION: u32 = 1;

/// Longest line: a thousand engines at some 700 bytes each for their readings, as much again for
/// what the state keeps of them, and room to spare.
pub const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

/// Lines that may wait for the disk: a tick in which each of 1,000 workloads changes. A line of one
/// engine takes about 6 KiB in memory, so 6 MiB at worst.
const QUEUE: usize = 1_024;

/// One line: everything that the decision was made of, and the decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`VERSION`].
    pub version: u32,
    /// `namespace/name`.
    pub workload: String,
    /// The trigger's id.
    pub trigger: String,
    /// The policy.
    pub spec: Arc<Spec>,
    /// The state before the decision.
    pub state: State,
    /// What was seen.
    pub observation: Arc<Observation>,
    /// When.
    pub now: Moment,
    /// What was decided. The last field: `replay` compares the bytes at the end of the line.
    pub decision: Arc<Decision>,
}

/// Whether a decision differs from the one before in anything that is acted on or told.
#[must_use]
pub fn is_news(previous: Option<&Decision>, decision: &Decision) -> bool {
    let Some(previous) = previous else {
        return true;
    };
    previous.want != decision.want
        || previous.answer != decision.answer
        || previous.binding != decision.binding
        || cause(previous.health) != cause(decision.health)
        || !decision.notices.is_empty()
}

/// The health without its counts, which move with each pod.
fn cause(health: Health) -> Health {
    match health {
        Health::Degraded { why, .. } => {
            Health::Degraded { since: Moment(0), why, answered: 0, expected: 0 }
        }
        Health::Ok | Health::Starting | Health::NotYetObserved => health,
    }
}

/// Where the lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Standard output, never rotated.
    Stdout,
    /// A file, appended to; at the cap it becomes `FILE.1`, and an older `FILE.1` goes.
    File {
        /// Where.
        path: PathBuf,
        /// The cap in bytes. A single longer line still gets a file of its own.
        max_bytes: u64,
    },
}

/// The log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "decision log `{}` cannot be opened for appending: expected a file in a directory that is there, \
     which this process may write to",
    path.display()
)]
pub struct Error {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Where ticks put their lines; cheap to clone.
#[derive(Debug, Clone)]
pub struct DecisionLog {
    queue: mpsc::Sender<Option<Box<Record>>>,
    metrics: Metrics,
}

/// The thread that writes.
#[derive(Debug)]
pub struct Writer {
    queue: mpsc::Sender<Option<Box<Record>>>,
    ended: oneshot::Receiver<()>,
}

impl DecisionLog {
    /// Opens the target and starts the thread that writes to it.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened or the thread cannot be started.
    pub fn open(target: Target, metrics: Metrics) -> Result<(DecisionLog, Writer), Error> {
        let path = match &target {
            Target::Stdout => PathBuf::from("-"),
            Target::File { path, .. } => path.clone(),
        };
        let failed = |source| Error { path: path.clone(), source };
        let mut sink = Sink::new(target);
        sink.open().map_err(failed)?;
        let (queue, records) = mpsc::channel(QUEUE);
        let (end, ended) = oneshot::channel();
        let counted = metrics.clone();
        std::thread::Builder::new()
            .name("decision-log".to_owned())
            .spawn(move || {
                write_all(records, sink, &counted);
                // Nobody may be waiting for the end any more.
                end.send(()).ok();
            })
            .map_err(failed)?;
        Ok((DecisionLog { queue: queue.clone(), metrics }, Writer { queue, ended }))
    }

    /// Queues a line; drops and counts it if the queue is full.
    pub fn offer(&self, record: Record) {
        if self.queue.try_send(Some(Box::new(record))).is_err() {
            self.metrics.line_dropped();
        }
    }
}

impl Writer {
    /// Writes what is queued and ends the thread. The caller bounds the wait.
    pub async fn finish(self) {
        if self.queue.send(None).await.is_ok() {
            self.ended.await.ok();
        }
    }
}

fn write_all(mut records: mpsc::Receiver<Option<Box<Record>>>, mut sink: Sink, metrics: &Metrics) {
    let mut failing = false;
    let mut line = Vec::new();
    while let Some(Some(record)) = records.blocking_recv() {
        line.clear();
        let written =
            serde_json::to_writer(&mut line, &record).map_err(io::Error::from).and_then(|()| {
                line.push(b'\n');
                if line.len() > MAX_LINE_BYTES {
                    return Err(io::Error::other(format!("line of {} bytes", line.len())));
                }
                sink.write(&line)
            });
        // Readers follow the file: nothing stays in the buffer while no more is to come.
        let written =
            if records.is_empty() { written.and_then(|()| sink.flush()) } else { written };
        match written {
            Ok(()) => failing = false,
            Err(error) => {
                metrics.line_dropped();
                // Once for each outage of the disk, not for each line.
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "decision log line dropped: make room where --decision-log is");
                }
            }
        }
    }
    if let Err(error) = sink.flush() {
        tracing::warn!(%error, "decision log not written to its end");
    }
}

struct Sink {
    target: Target,
    // `None` after a failure: the next line opens it again.
    file: Option<OpenFile>,
}

struct OpenFile {
    writer: BufWriter<File>,
    bytes: u64,
}

impl Sink {
    fn new(target: Target) -> Sink {
        Sink { target, file: None }
    }

    fn open(&mut self) -> io::Result<()> {
        if let Target::File { path, .. } = &self.target
            && self.file.is_none()
        {
            self.file = Some(OpenFile::append(path)?);
        }
        Ok(())
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let written = self.try_write(line);
        if written.is_err() {
            self.file = None;
        }
        written
    }

    fn try_write(&mut self, line: &[u8]) -> io::Result<()> {
        self.open()?;
        match &self.target {
            Target::Stdout => io::stdout().lock().write_all(line),
            Target::File { path, max_bytes } => {
                let file = self.file.as_mut().ok_or(io::ErrorKind::NotConnected)?;
                let added = u64::try_from(line.len()).unwrap_or(u64::MAX);
                if file.bytes > 0 && file.bytes.saturating_add(added) > *max_bytes {
                    file.writer.flush()?;
                    std::fs::rename(path, rotated(path))?;
                    *file = OpenFile::append(path)?;
                }
                file.bytes = file.bytes.saturating_add(added);
                file.writer.write_all(line)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match (&self.target, &mut self.file) {
            (Target::Stdout, _) => io::stdout().lock().flush(),
            (Target::File { .. }, Some(file)) => file.writer.flush(),
            (Target::File { .. }, None) => Ok(()),
        }
    }
}

impl OpenFile {
    fn append(path: &Path) -> io::Result<OpenFile> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let mut bytes = file.metadata()?.len();
        if bytes > 0 {
            // A line cut off by a crash stays one bad line and does not spoil the next one.
            let mut last = [0_u8];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                bytes += 1;
            }
        }
        Ok(OpenFile { writer: BufWriter::new(file), bytes })
    }
}

/// Where a full log goes.
fn rotated(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests;
