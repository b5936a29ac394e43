//! Each request of a run as a line of JSON, written while the run goes on.
//!
//! Must not hold up who sends: a line that finds no room is counted and lost, and a file with lines
//! missing is an error of the run.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use serde::Serialize;

use super::failure::Failure;
use super::lane::Job;
use super::record::Ended;

/// Lines that wait for the disk, at some 150 bytes each: a second at a rate that no other tool reaches.
const MOST_WAITING: usize = 1 << 16;

/// Why a file does not hold every request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be written to.
    #[error("cannot write to {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The disk was slower than the run.
    #[error("{} lacks {n} requests: it could not be written to as fast as they came", path.display())]
    Lost {
        /// The file.
        path: PathBuf,
        /// Lines that are missing.
        n: u64,
    },
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Completed,
    Failed(Failure),
    Unfinished,
    Unsent,
}

/// One request. Times are in seconds since the run's start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) number: u64,
    pub(super) turn: u32,
    pub(super) class: usize,
    pub(super) target: usize,
    /// False while the run warms up or cools down.
    pub(super) counts: bool,
    pub(super) due_s: f64,
    /// When its first byte left, or when a connection was sought for it if none has.
    pub(super) sent_s: Option<f64>,
    pub(super) first_s: Option<f64>,
    pub(super) end_s: f64,
    /// What was asked for.
    pub(super) input_tokens: u32,
    pub(super) output_tokens: u32,
    /// The server's counts.
    pub(super) usage: Option<(u64, u64)>,
    pub(super) pieces: u32,
    pub(super) outcome: Outcome,
}

impl Request {
    pub(super) fn ended(
        job: &Job,
        ended: &Ended,
        sent_s: Option<f64>,
        outcome: Outcome,
    ) -> Request {
        Request {
            number: job.number,
            turn: job.turn,
            class: job.class,
            target: job.target,
            counts: job.counts,
            due_s: ended.due_s,
            sent_s,
            first_s: ended.first_s,
            end_s: ended.at_s,
            input_tokens: ended.asked_input,
            output_tokens: ended.asked_output,
            usage: ended.usage,
            pieces: ended.events,
            outcome,
        }
    }

    /// One that waited for a connection until then.
    pub(super) fn unsent(job: &Job, at_s: f64) -> Request {
        let ended = Ended {
            target: job.target,
            due_s: job.due_s,
            at_s,
            first_s: None,
            last_s: at_s,
            events: 0,
            asked_input: job.input_tokens,
            asked_output: job.output_tokens,
            usage: None,
        };
        Request::ended(job, &ended, None, Outcome::Unsent)
    }
}

/// A request as its line has it.
#[derive(Serialize)]
struct Line<'a> {
    number: u64,
    turn: u32,
    class: &'a str,
    url: &'a str,
    counts: bool,
    due_s: f64,
    sent_s: Option<f64>,
    first_token_s: Option<f64>,
    end_s: f64,
    asked_prompt_tokens: u32,
    asked_output_tokens: u32,
    prompt_tokens: Option<u64>,
    output_tokens: Option<u64>,
    pieces: u32,
    outcome: &'static str,
    error: Option<&'a str>,
}

/// The file, and the thread that writes to it.
#[derive(Debug)]
pub struct Requests {
    path: PathBuf,
    lines: SyncSender<Request>,
    lost: AtomicU64,
    writer: JoinHandle<io::Result<()>>,
}

impl Requests {
    /// Begins the file anew. `classes` and `urls` are the names of what requests are of and go to.
    ///
    /// # Errors
    ///
    /// When the file cannot be written, or no thread be had.
    pub fn create(path: &Path, classes: Vec<String>, urls: Vec<String>) -> Result<Requests, Error> {
        let error = |source| Error::Write { path: path.to_owned(), source };
        let file = BufWriter::new(File::create(path).map_err(error)?);
        let (lines, waiting) = sync_channel(MOST_WAITING);
        let writer = thread::Builder::new()
            .name("requests".to_owned())
            .spawn(move || write(file, &waiting, &classes, &urls))
            .map_err(error)?;
        Ok(Requests { path: path.to_owned(), lines, lost: AtomicU64::new(0), writer })
    }

    /// Adds a request that has ended.
    pub(super) fn add(&self, request: Request) {
        if self.lines.try_send(request).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes what still waits.
    ///
    /// # Errors
    ///
    /// When the file cannot be written, or has not every request.
    pub fn finish(self) -> Result<(), Error> {
        let Requests { path, lines, lost, writer } = self;
        drop(lines);
        let wrote = writer.join().unwrap_or_else(|_panic| Err(io::Error::other("its thread died")));
        match (wrote, lost.into_inner()) {
            (Err(source), _) => Err(Error::Write { path, source }),
            (Ok(()), 0) => Ok(()),
            (Ok(()), n) => Err(Error::Lost { path, n }),
        }
    }
}

fn write(
    mut file: impl Write,
    waiting: &Receiver<Request>,
    classes: &[String],
    urls: &[String],
) -> io::Result<()> {
    for request in waiting {
        let failure = match request.outcome {
            Outcome::Failed(failure) => Some(failure.class()),
            Outcome::Completed | Outcome::Unfinished | Outcome::Unsent => None,
        };
        let line = Line {
            number: request.number,
            turn: request.turn,
            class: &classes[request.class],
            url: &urls[request.target],
            counts: request.counts,
            due_s: micros(request.due_s),
            sent_s: request.sent_s.map(micros),
            first_token_s: request.first_s.map(micros),
            end_s: micros(request.end_s),
            asked_prompt_tokens: request.input_tokens,
            asked_output_tokens: request.output_tokens,
            prompt_tokens: request.usage.map(|(prompt, _)| prompt),
            output_tokens: request.usage.map(|(_, output)| output),
            pieces: request.pieces,
            outcome: match request.outcome {
                Outcome::Completed => "completed",
                Outcome::Failed(_) => "failed",
                Outcome::Unfinished => "unfinished",
                Outcome::Unsent => "unsent",
            },
            error: failure.as_deref(),
        };
        serde_json::to_writer(&mut file, &line)?;
        file.write_all(b"\n")?;
    }
    file.flush()
}

/// As exact as a clock here is.
fn micros(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(number: u64) -> Request {
        Request {
            number,
            turn: 0,
            class: 0,
            target: 0,
            counts: true,
            due_s: 1.0,
            sent_s: None,
            first_s: None,
            end_s: 2.0,
            input_tokens: 3,
            output_tokens: 4,
            usage: None,
            pieces: 0,
            outcome: Outcome::Unsent,
        }
    }

    #[test]
    fn a_line_without_room_is_an_error_of_the_file() {
        let (lines, waiting) = sync_channel(2);
        let writer = thread::spawn(|| Ok(()));
        let path = PathBuf::from("r.jsonl");
        let requests = Requests { path, lines, lost: AtomicU64::new(0), writer };
        (0..5).for_each(|number| requests.add(request(number)));
        assert_eq!(waiting.try_iter().count(), 2);
        let error = requests.finish().unwrap_err().to_string();
        let expected = "r.jsonl lacks 3 requests: it could not be written to as fast as they came";
        assert_eq!(error, expected);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_disk_that_takes_no_more_is_an_error_of_the_file() {
        let names = || vec!["all".to_owned()];
        let requests = Requests::create(Path::new("/dev/full"), names(), names()).unwrap();
        requests.add(request(0));
        assert!(matches!(requests.finish(), Err(Error::Write { .. })));
    }
}
