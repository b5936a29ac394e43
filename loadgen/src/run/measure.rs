//! One measurement: starts the threads, watches them, and gathers what they saw.
//!
//! Must not write anything for people, and must not decide what follows from it.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use futures_util::future::join;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};

use super::engines::{self, Look};
use super::lane::{Lane, Share, Shared, TURNS_BETWEEN_LOOKS};
use super::plan::{Load, Plan};
use super::record::Record;
use super::replicas::{self, Seen};
use super::requests::Request;
use crate::traces;

/// How often the caller hears how far it is.
const TICK: Duration = Duration::from_millis(250);

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The trace cannot be opened.
    #[error(transparent)]
    Trace(#[from] traces::Error),
    /// No thread to be had.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// A thread that sends, or a request on it, has died of a fault of this program's.
    #[error(
        "a sending thread died, and with it what it had measured: a fault of loadgen's, told above"
    )]
    Died,
    /// An address with a path that is none.
    #[error("a URL has a path that cannot be asked for")]
    Path(#[source] http::Error),
}

/// How far a run is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Seconds since its start.
    pub elapsed_s: f64,
    /// Requests due so far.
    pub scheduled: u64,
    /// Whole answers so far.
    pub completed: u64,
    /// Failures so far.
    pub errors: u64,
    /// Requests open now.
    pub in_flight: u64,
}

/// What a run has shown.
#[derive(Debug)]
pub struct Outcome {
    /// Counts and times.
    pub record: Record,
    /// How long it lasted, in seconds.
    pub elapsed_s: f64,
    /// How long requests were due in it that count, in seconds.
    pub span_s: f64,
    /// When these were due, in seconds since the start: once for each run, where several are put
    /// together.
    pub loads_s: Vec<Range<f64>>,
    /// Whether requests left so late that the client was measured ([`Record::is_bottleneck`]), in any
    /// of the runs.
    pub is_bottleneck: bool,
    /// Requests with an answer or a failure, those of the warm-up and the cool-down too.
    pub n_ended: u64,
    /// Whether somebody stopped it.
    pub is_interrupted: bool,
    /// Why the schedule ended before its end.
    pub trace_error: Option<traces::Error>,
    /// Processor time of this process, in seconds.
    pub cpu_s: f64,
    /// Replicas over time.
    pub replicas: Seen,
    /// What the engines said of themselves over time.
    pub engines: Vec<Look>,
}

impl Outcome {
    /// Adds the next of several runs: its clock goes on where this one's ended.
    #[must_use]
    pub fn followed_by(mut self, next: Outcome) -> Outcome {
        let by_s = self.elapsed_s;
        self.record.merge(next.record.later(by_s));
        self.elapsed_s += next.elapsed_s;
        self.span_s += next.span_s;
        let later = next.loads_s.into_iter().map(|Range { start, end }| start + by_s..end + by_s);
        self.loads_s.extend(later);
        self.is_bottleneck |= next.is_bottleneck;
        self.n_ended += next.n_ended;
        self.is_interrupted |= next.is_interrupted;
        self.trace_error = self.trace_error.or(next.trace_error);
        self.cpu_s += next.cpu_s;
        for (t_s, count) in next.replicas.changes() {
            self.replicas.note(t_s + by_s, *count);
        }
        self.engines
            .extend(next.engines.into_iter().map(|look| Look { t_s: look.t_s + by_s, ..look }));
        self
    }
}

/// Runs a plan to its end, or until `interrupt` turns true.
///
/// # Errors
///
/// When a trace cannot be opened, no thread started, or one died. What else fails after the start
/// is in the outcome.
pub async fn measure(
    plan: &Arc<Plan>,
    mut interrupt: watch::Receiver<bool>,
    mut progress: impl FnMut(Progress),
) -> Result<Outcome, Error> {
    let cpu_before_s = cpu_s();
    let shared = Arc::new(Shared::new(Arc::clone(plan)).map_err(Error::Path)?);
    let (stop, stopped) = watch::channel(false);
    let (alive, mut all_gone) = mpsc::channel::<()>(1);
    let (pacing, mut paced) = mpsc::channel::<()>(1);
    let lanes = start_lanes(&shared, &stopped, alive, pacing)?;

    let (seen, looks) = (RefCell::new(Seen::default()), RefCell::new(Vec::new()));
    let mut schedule_end_s: Option<f64> = None;
    let mut is_interrupted = false;
    let watching_replicas = async {
        if let Some(source) = &plan.replicas {
            let note = |t_s, count| seen.borrow_mut().note(t_s, count);
            replicas::watch(source, || shared.now_s(), note).await;
        }
    };
    let watching_engines = async {
        if plan.watches_engines {
            let note = |look| looks.borrow_mut().push(look);
            engines::watch(&plan.targets, || shared.now_s(), note).await;
        }
    };
    let watching = join(watching_replicas, watching_engines);
    tokio::pin!(watching);
    let mut is_watching = true;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let grace = tokio::time::sleep(Duration::ZERO);
    tokio::pin!(grace);
    loop {
        tokio::select! {
            _ = all_gone.recv() => break,
            _ = &mut watching, if is_watching => is_watching = false,
            _ = paced.recv(), if schedule_end_s.is_none() => {
                schedule_end_s = Some(shared.now_s());
                grace.as_mut().reset(Instant::now() + plan.grace);
            }
            () = &mut grace, if schedule_end_s.is_some() && !*stop.borrow() => {
                stop.send_replace(true);
            }
            Ok(_) = interrupt.wait_for(|stop| *stop), if !is_interrupted => {
                is_interrupted = true;
                stop.send_replace(true);
            }
            _ = ticks.tick() => {
                progress(so_far(&shared, &lanes));
                if shared.has_died() {
                    stop.send_replace(true);
                }
            }
        }
    }
    if shared.has_died() {
        return Err(Error::Died);
    }
    progress(so_far(&shared, &lanes));
    let elapsed_s = shared.now_s();
    // One lane has met it, the one whose turn it was.
    let trace_error = lanes.iter().find_map(|lane| lane.take_trace_error());
    let mut record = Record::new(plan.classes.len(), plan.targets.len());
    for lane in &lanes {
        record.merge(std::mem::take(&mut *locked(lane.record())));
        for job in lane.take_waiting() {
            if let Some(requests) = &plan.requests {
                requests.add(Request::unsent(&job, elapsed_s));
            }
            if !job.counts {
                continue;
            }
            record.never_sent(job.class, &plan.classes[job.class].slo, job.due_s, elapsed_s);
        }
    }
    let is_counted_out = plan.count.is_some_and(|count| record.n_due >= count);
    let end_s = plan.span_s().filter(|_| !is_counted_out);
    let span_s = match end_s.map(|span_s| span_s - plan.cooldown_s) {
        Some(span_s) if !is_interrupted && trace_error.is_none() => span_s,
        Some(span_s) => schedule_end_s.unwrap_or(elapsed_s).min(span_s),
        None => record.last_due_s,
    };
    let span_s = (span_s - plan.warmup_s).max(0.0);
    Ok(Outcome {
        n_ended: lanes.iter().map(|lane| lane.n_ended()).sum(),
        is_bottleneck: record.is_bottleneck(),
        record,
        elapsed_s,
        span_s,
        loads_s: vec![plan.warmup_s..plan.warmup_s + span_s],
        is_interrupted,
        trace_error,
        cpu_s: cpu_s() - cpu_before_s,
        replicas: seen.take(),
        engines: looks.take(),
    })
}

/// Starts the threads that send; each holds `alive` until it has ended, and `pacing` until it has
/// nothing more to hand out.
fn start_lanes(
    shared: &Arc<Shared>,
    stopped: &watch::Receiver<bool>,
    alive: mpsc::Sender<()>,
    pacing: mpsc::Sender<()>,
) -> Result<Vec<Arc<Lane>>, Error> {
    let n_lanes = shared.plan.n_lanes.max(1);
    let all = shared.plan.connections;
    let mut lanes = Vec::new();
    let n_users = match shared.plan.load {
        Load::Users { n } => u64::from(n),
        Load::Rate { .. } | Load::Trace { .. } => 0,
    };
    let first_user = |lane: usize| n_users * lane as u64 / n_lanes as u64;
    for index in 0..n_lanes {
        let users = first_user(index)..first_user(index + 1);
        // Each reads the schedule for itself, and takes every so manieth request of it.
        let schedule = (0_u64..).zip(shared.plan.schedule()?);
        let share: Share = Box::new(schedule.skip(index).step_by(n_lanes));
        // What cannot be divided goes to the first ones, so that they sum up to what was told.
        let connections = all / n_lanes + usize::from(index < all % n_lanes);
        let connections = u32::try_from(connections).unwrap_or(u32::MAX).max(1);
        let lane = Arc::new(Lane::new(Arc::clone(shared), connections, users));
        lanes.push(Arc::clone(&lane));
        let (stopped, alive, pacing) = (stopped.clone(), alive.clone(), pacing.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .event_interval(TURNS_BETWEEN_LOOKS)
            .build()
            .map_err(Error::Thread)?;
        thread::Builder::new()
            .name("lane".to_owned())
            .spawn(move || {
                runtime.block_on(lane.serve(share, stopped, pacing));
                // Requests that are open now end as unfinished; a name that is still being looked
                // up is not waited for.
                runtime.shutdown_timeout(Duration::from_millis(100));
                drop(alive);
            })
            .map_err(Error::Thread)?;
    }
    Ok(lanes)
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn so_far(shared: &Shared, lanes: &[Arc<Lane>]) -> Progress {
    let mut progress =
        Progress { elapsed_s: shared.now_s(), scheduled: 0, completed: 0, errors: 0, in_flight: 0 };
    for lane in lanes {
        for class in &locked(lane.record()).classes {
            let errors = class.n_errors();
            progress.scheduled += class.scheduled;
            progress.completed += class.completed;
            progress.errors += errors;
            progress.in_flight +=
                class.sent.saturating_sub(class.completed + errors + class.unfinished);
        }
    }
    progress
}

/// Processor time of this process so far.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::*;

    /// Plans that nobody can settle stand for any fault: without a server the thread dies, and with
    /// an endless time limit each request.
    #[tokio::test]
    async fn a_run_of_which_something_dies_is_no_measurement() {
        let without_server = Plan { targets: Vec::new(), ..plan(1) };
        let without_limit = Plan { timeout: Duration::MAX, ..plan(1) };
        for plan in [without_server, without_limit] {
            let (_interrupt, interrupted) = watch::channel(false);
            let outcome = measure(&Arc::new(plan), interrupted, |_| {}).await;
            assert!(matches!(outcome, Err(Error::Died)), "{:?}", outcome.err());
        }
    }
}
