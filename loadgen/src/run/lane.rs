//! A thread that sends: its own runtime, its own connections, its own record, so that threads share
//! nothing on the way of a request.
//!
//! Must not decide when a request is due: jobs come from the pacer.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header;
use http_body_util::Full;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;

use super::exchange::Timers;
use super::failure::{Failure, Fault};
use super::plan::Plan;
use super::record::Record;
use super::target::Sender;
use crate::engine::Prefix;

/// Idle connections are not used after this long: uvicorn, in front of vLLM and SGLang, closes its
/// own after 5 s.
const MOST_IDLE: Duration = Duration::from_secs(4);

/// What the threads of a run have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) plan: Arc<Plan>,
    pub(super) start: Instant,
    /// Open requests of each target.
    open: Vec<AtomicUsize>,
    chat_paths: Vec<http::Uri>,
    completion_paths: Vec<http::Uri>,
}

impl Shared {
    pub(super) fn new(plan: Arc<Plan>, start: Instant) -> Result<Shared, http::Error> {
        let paths = |path| {
            plan.targets
                .iter()
                .map(|target| Ok(target.path(path).parse::<http::Uri>()?))
                .collect::<Result<Vec<_>, http::Error>>()
        };
        let (chat_paths, completion_paths) =
            (paths("/v1/chat/completions")?, paths("/v1/completions")?);
        let open = plan.targets.iter().map(|_| AtomicUsize::new(0)).collect();
        Ok(Shared { plan, start, open, chat_paths, completion_paths })
    }

    /// Seconds since the start of the run.
    pub(super) fn now_s(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// The target with the fewest open requests.
    pub(super) fn least_open(&self) -> usize {
        let open = self.open.iter().map(|open| open.load(Ordering::Relaxed));
        open.enumerate().min_by_key(|(_, open)| *open).map_or(0, |(target, _)| target)
    }

    pub(super) fn begins_on(&self, target: usize) {
        self.open[target].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn ended_on(&self, target: usize) {
        self.open[target].fetch_sub(1, Ordering::Relaxed);
    }
}

/// One request that is due.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) number: u64,
    pub(super) due_s: f64,
    pub(super) class: usize,
    pub(super) target: usize,
    pub(super) input_tokens: u32,
    pub(super) output_tokens: u32,
    pub(super) prefix: Prefix,
    /// False during the warm-up.
    pub(super) counts: bool,
}

/// One thread.
#[derive(Debug)]
pub(super) struct Lane {
    shared: Arc<Shared>,
    // The one used last is used next: few connections carry the load, the rest grow old.
    idle: Mutex<Vec<Vec<(Sender, Instant)>>>,
    record: Mutex<Record>,
}

impl Lane {
    pub(super) fn new(shared: Arc<Shared>) -> Lane {
        let idle = shared.plan.targets.iter().map(|_| Vec::new()).collect();
        let record = Record::new(shared.plan.classes.len());
        Lane { shared, idle: Mutex::new(idle), record: Mutex::new(record) }
    }

    /// Sends the jobs as they come, as many at once as there are connections, until there are no
    /// more and all have ended, or until told to stop.
    pub(super) async fn serve(
        self: Arc<Lane>,
        jobs: mpsc::Receiver<Job>,
        mut stop: watch::Receiver<bool>,
        connections: usize,
    ) {
        let slots = Arc::new(Semaphore::new(connections));
        let jobs = Arc::new(Mutex::new(jobs));
        let work = async {
            while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
                let next = poll_fn(|context| waiting(&jobs).poll_recv(context));
                let Some(first) = next.await else { break };
                let (lane, jobs) = (Arc::clone(&self), Arc::clone(&jobs));
                tokio::spawn(async move {
                    let mut timers = Timers::new();
                    let mut next = Some(first);
                    while let Some(job) = next {
                        lane.perform(job, &mut timers).await;
                        // What waits already needs no task of its own.
                        next = waiting(&jobs).try_recv().ok();
                    }
                    drop(slot);
                });
            }
            let all = u32::try_from(connections).unwrap_or(u32::MAX);
            drop(slots.acquire_many(all).await);
        };
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => {}
            () = work => {}
        }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(super) fn record(&self) -> &Mutex<Record> {
        &self.record
    }

    /// A connection that was used lately.
    pub(super) fn take_idle(&self, target: usize) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = &mut idle[target];
        while let Some((sender, since)) = idle.pop() {
            if since.elapsed() > MOST_IDLE {
                // What lies below is older still.
                idle.clear();
            } else if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    pub(super) fn put_back(&self, target: usize, sender: Sender) {
        if !sender.is_closed() {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle[target].push((sender, Instant::now()));
        }
    }

    pub(super) fn request(
        &self,
        target: usize,
        is_chat: bool,
        body: Bytes,
    ) -> Result<http::Request<Full<Bytes>>, Fault> {
        let Shared { plan, chat_paths, completion_paths, .. } = &*self.shared;
        let paths = if is_chat { chat_paths } else { completion_paths };
        let mut request = http::Request::post(paths[target].clone())
            .header(header::HOST, plan.targets[target].authority())
            .header(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        if let Some(authorization) = &plan.authorization {
            request = request.header(header::AUTHORIZATION, authorization.clone());
        }
        request.body(Full::new(body)).map_err(|error| Failure::Malformed.because(error))
    }
}

fn waiting(jobs: &Mutex<mpsc::Receiver<Job>>) -> MutexGuard<'_, mpsc::Receiver<Job>> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner)
}
