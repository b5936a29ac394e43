//! The thread that reads the schedule ahead of time, so that what a request is costs nothing at the
//! moment when it is due.
//!
//! Must not wait for the clock: the lanes keep time.

use tokio::sync::mpsc;

use super::lane::Job;
use super::plan::{Planned, Schedule};
use crate::traces;

/// Requests that are handed over at once.
const BATCH: usize = 256;
/// Batches that lie ready for each lane: with some 100 bytes a request, 100 KB.
pub(super) const READY_BATCHES: usize = 4;

/// Hands out the schedule, a request to each lane in turn, until its end or until nobody takes it.
///
/// # Errors
///
/// What ended a trace early.
pub(super) fn feed(
    schedule: Schedule,
    lanes: &[mpsc::Sender<Vec<Job>>],
) -> Result<(), traces::Error> {
    let mut batches: Vec<Vec<Job>> = lanes.iter().map(|_| Vec::new()).collect();
    let mut ended = Ok(());
    for (number, planned) in (0_u64..).zip(schedule) {
        let Planned { due_s, class, input_tokens, output_tokens, prefix } = match planned {
            Ok(planned) => planned,
            Err(error) => {
                ended = Err(error);
                break;
            }
        };
        let lane = usize::try_from(number % lanes.len() as u64).unwrap_or(0);
        batches[lane].push(Job {
            number,
            turn: 0,
            due_s,
            class,
            target: 0,
            input_tokens,
            output_tokens,
            prefix,
            counts: true,
        });
        if batches[lane].len() == BATCH {
            let batch = std::mem::replace(&mut batches[lane], Vec::with_capacity(BATCH));
            if lanes[lane].blocking_send(batch).is_err() {
                return Ok(());
            }
        }
    }
    for (lane, batch) in lanes.iter().zip(batches) {
        // A lane that was stopped wants no more.
        drop(lane.blocking_send(batch));
    }
    ended
}
