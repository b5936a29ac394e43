//! The thread that keeps time: hands each request over at its moment, whatever has become of those
//! before it.
//!
//! Must not wait for anything but the clock: that is what makes the loop open.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::lane::{Job, Shared};
use super::plan::{Balance, Planned, Schedule};
use super::record::Record;
use crate::traces;

/// Jobs that may wait for a connection in each thread; at some 100 bytes each, 26 MB. What is due
/// beyond that is counted and not sent.
pub(super) const MOST_WAITING: usize = 1 << 18;
/// How long a wait for the next request may last before a stop is looked for.
const LOOK_UP: Duration = Duration::from_millis(50);
/// The shortest wait: at high rates several requests are handed over at once, and are late by this
/// much at most, rather than each for the price of a switch of threads.
const LEAST_WAIT: Duration = Duration::from_micros(100);

/// How the schedule came out.
#[derive(Debug, Default)]
pub(super) struct Paced {
    /// Requests that could not even wait.
    pub(super) unsent: u64,
    /// The moment of the last one that was due, in seconds.
    pub(super) last_due_s: f64,
    /// What ended it early.
    pub(super) error: Option<traces::Error>,
}

/// Hands out the schedule until its end or a stop.
pub(super) fn pace(
    schedule: Schedule,
    shared: &Arc<Shared>,
    lanes: &[mpsc::Sender<Job>],
    record: &Mutex<Record>,
    stop: &watch::Receiver<bool>,
) -> Paced {
    let mut paced = Paced::default();
    let plan = &shared.plan;
    for (number, planned) in (0_u64..).zip(schedule) {
        let Planned { due_s, class, input_tokens, output_tokens, prefix } = match planned {
            Ok(planned) => planned,
            Err(error) => {
                paced.error = Some(error);
                break;
            }
        };
        if !wait_until(shared.start + Duration::from_secs_f64(due_s), stop) {
            break;
        }
        paced.last_due_s = due_s;
        let counts = due_s >= plan.warmup_s;
        if counts {
            record.lock().unwrap_or_else(PoisonError::into_inner).scheduled(class, due_s);
        }
        let turn = |n: usize| usize::try_from(number % n as u64).unwrap_or(0);
        let target = match plan.balance {
            Balance::RoundRobin => turn(plan.targets.len()),
            Balance::Least => shared.least_open(),
        };
        shared.begins_on(target);
        let job = Job { number, due_s, class, target, input_tokens, output_tokens, prefix, counts };
        if lanes[turn(lanes.len())].try_send(job).is_err() {
            shared.ended_on(target);
            paced.unsent += 1;
        }
    }
    paced
}

/// Waits for a moment; false if told to stop before it came.
fn wait_until(due: Instant, stop: &watch::Receiver<bool>) -> bool {
    loop {
        if *stop.borrow() {
            return false;
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        // The kernel's timer, some 50 µs late: the runtime's own is a millisecond coarse.
        thread::park_timeout(left.clamp(LEAST_WAIT, LOOK_UP));
    }
}
