//! A thread that sends: its own runtime, its own connections, its own record and its own share of the
//! schedule, so that threads share nothing on the way of a request. It keeps time itself: a thread
//! for that alone would take a processor from a sender or from the server just when a request is
//! due, for as long as the system lets a thread run, some 4 ms.
//!
//! Must not wait for an answer before it hands out what is due: that is what makes the loop open.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http::header;
use http_body_util::Full;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

use super::later::{Later, Next};
use super::pause::Pause;
use super::plan::{Load, Plan, Planned};
use super::record::Record;
use super::requests::Request;
use super::target::Connection;
use crate::engine::Prefix;
use crate::traces;

/// Idle connections are not used after this long: uvicorn, in front of vLLM and SGLang, closes its
/// own after 5 s.
const MOST_IDLE: Duration = Duration::from_secs(4);
/// Requests that may wait for a connection in each thread; at some 100 bytes each, 26 MB. What is
/// due beyond that is counted and not sent.
const MOST_WAITING: usize = 1 << 18;
/// The shortest wait: at high rates several requests are handed out at once, and are late by this
/// much at most. Each on its own would cost a timer, and would wake a server that falls asleep
/// between two of them, which takes the sender as long as the writing itself.
const LEAST_WAIT_S: f64 = 200e-6;
/// The longest wait of a run without an end in time.
const MOST_WAIT_S: f64 = 3_600.0;
/// Requests that are handed out between two looks at the sockets. A sender that has fallen behind and
/// reads nothing before all is sent needs ever more connections, each of them colder in the
/// processor's cache than the one before, and falls behind further.
const MOST_AT_ONCE: usize = 4;
/// Turns of tasks between two looks at sockets and clock: some 200 µs, as a turn that sends or reads
/// takes 5 to 10 µs, and enough that more is read than handed out.
///
/// Of 2 to 32 at once, 4 to 61 turns and waits of 100 to 250 µs, these came nearest to half of a bare
/// client's best rate without lag (`benches/client.rs`).
///
/// What was tried beside it at 40,000 requests a second, where the 99th percentile was 3 to 4 ms late:
/// to write what is due before anything is read, as far as connections are open (3 to 5 ms, and some
/// 1.3 µs more for each request, as its task is polled once more), the same with 32 at once or with what
/// comes in 25 ms opened ahead (5 to 35 ms), and to take 32 sockets at a look, wake the sender at an
/// answer's end and open ahead what comes in 25 ms (2.8 ms, and 1.5 µs more for each request).
pub(super) const TURNS_BETWEEN_LOOKS: u32 = 31;
/// A user of a closed loop who got no answer comes back after this time at the earliest: users who
/// do not would ask a server that refuses as fast as it can refuse.
const LEAST_AFTER_FAILURE_S: f64 = 1.0;
/// Connections that are opened ahead: what comes in this time, at most so many, so many at once.
const AHEAD_S: f64 = 0.01;
const MOST_AHEAD: f64 = 512.0;
const OPEN_AT_ONCE: usize = 32;
/// Threads begin before the first request is due, and the earlier the more they have to open.
const HEAD_START: Duration = Duration::from_millis(20);
const AHEAD_EACH: Duration = Duration::from_millis(1);

/// What the threads of a run have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) plan: Arc<Plan>,
    pub(super) start: Instant,
    /// Whether a thread or a task of one has died: what is measured then lacks what it held.
    has_died: AtomicBool,
    /// Connections that are opened before.
    n_ahead: usize,
    /// What all requests to a target have in common: chats, and plain completions.
    chats: Vec<Route>,
    completions: Vec<Route>,
}

#[derive(Debug)]
struct Route {
    path: http::Uri,
    headers: http::HeaderMap,
}

impl Shared {
    /// The run begins when its threads have.
    pub(super) fn new(plan: Arc<Plan>) -> Result<Shared, http::Error> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to a few hundred"
        )]
        let n_ahead = (plan.first_rate_per_s() * AHEAD_S).clamp(0.0, MOST_AHEAD) as usize;
        let n_ahead = n_ahead.min(plan.connections);
        let start = Instant::now() + HEAD_START + AHEAD_EACH * u32::try_from(n_ahead).unwrap_or(0);
        let routes = |path| {
            let routes = plan.targets.iter().map(|target| {
                let mut headers = http::HeaderMap::new();
                headers.insert(header::HOST, target.authority());
                let json = http::HeaderValue::from_static("application/json");
                headers.insert(header::CONTENT_TYPE, json);
                let authorization = plan.authorization.clone();
                headers.extend(authorization.map(|value| (header::AUTHORIZATION, value)));
                // What is given takes the place of what is sent anyway, and may be given twice.
                plan.headers.iter().for_each(|(name, _)| drop(headers.remove(name)));
                for (name, value) in &plan.headers {
                    headers.append(name.clone(), value.clone());
                }
                Ok(Route { path: target.path(path).parse::<http::Uri>()?, headers })
            });
            routes.collect::<Result<Vec<_>, http::Error>>()
        };
        let (chats, completions) = (routes("/v1/chat/completions")?, routes("/v1/completions")?);
        let has_died = AtomicBool::new(false);
        Ok(Shared { plan, start, has_died, n_ahead, chats, completions })
    }

    /// Seconds since the start of the run.
    pub(super) fn now_s(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Whether any of it has died so far.
    pub(super) fn has_died(&self) -> bool {
        self.has_died.load(Ordering::Relaxed)
    }
}

/// Tells when what holds it dies of a panic: a runtime hides that of a task, and nobody asks a thread.
struct Alarm<'a>(&'a Shared);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.has_died.store(true, Ordering::Relaxed);
        }
    }
}

/// One request.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) number: u64,
    /// Which of its conversation, from 0.
    pub(super) turn: u32,
    pub(super) due_s: f64,
    pub(super) class: usize,
    pub(super) target: usize,
    pub(super) input_tokens: u32,
    pub(super) output_tokens: u32,
    pub(super) prefix: Prefix,
    /// False while the run warms up or cools down.
    pub(super) counts: bool,
}

impl Job {
    fn new(number: u64, planned: Planned) -> Job {
        let Planned { due_s, class, input_tokens, output_tokens, prefix } = planned;
        let (turn, target, counts) = (0, 0, true);
        Job { number, turn, due_s, class, target, input_tokens, output_tokens, prefix, counts }
    }
}

/// A lane's share of the schedule: every request has its number, whoever sends it.
pub(super) type Share = Box<dyn Iterator<Item = (u64, Result<Planned, traces::Error>)> + Send>;

/// Requests of a thread, whether or not they count in its record.
#[derive(Debug, Default)]
struct Tally {
    /// Each once, however often it is sent.
    sent: AtomicU64,
    /// Times that one was allowed to be sent again.
    retries: AtomicU64,
    ended: AtomicU64,
}

/// One thread.
#[derive(Debug)]
pub(super) struct Lane {
    shared: Arc<Shared>,
    // The one used last is used next: few connections carry the load, the rest grow old.
    idle: Mutex<Vec<VecDeque<(Connection, Instant)>>>,
    /// Due, but without a connection.
    waiting: Mutex<VecDeque<Job>>,
    /// What follows an answer.
    later: Later,
    /// Its users of a closed loop; none in an open one.
    users: Range<u64>,
    slots: Arc<Semaphore>,
    connections: u32,
    record: Mutex<Record>,
    tally: Tally,
    /// What ended its share early.
    trace_error: Mutex<Option<traces::Error>>,
}

impl Lane {
    pub(super) fn new(shared: Arc<Shared>, connections: u32, users: Range<u64>) -> Lane {
        let idle = shared.plan.targets.iter().map(|_| VecDeque::new()).collect();
        let record = Record::new(shared.plan.classes.len(), shared.plan.targets.len());
        Lane {
            shared,
            idle: Mutex::new(idle),
            waiting: Mutex::default(),
            later: Later::default(),
            users,
            slots: Arc::new(Semaphore::new(connections as usize)),
            connections,
            record: Mutex::new(record),
            tally: Tally::default(),
            trace_error: Mutex::default(),
        }
    }

    /// Sends what comes when it is due, as many at once as there are connections, until there is no
    /// more and all have ended, or until told to stop. Drops `pacing` when nothing more will be due.
    ///
    /// To be the future that a runtime blocks on: that one goes before the tasks which read answers.
    pub(super) async fn serve(
        self: Arc<Lane>,
        share: Share,
        mut stop: watch::Receiver<bool>,
        pacing: mpsc::Sender<()>,
    ) {
        let _alarm = Alarm(&self.shared);
        let work = async {
            self.open_ahead().await;
            self.pace(share).await;
            drop(pacing);
            drop(self.slots.acquire_many(self.connections).await);
        };
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => {}
            () = work => {}
        }
    }

    /// Opens connections before the first request is due, as many as come in [`AHEAD_S`]. A service
    /// that is asked fast has them already; here each would cost as much as several requests, just
    /// when the first ones are due, and the later these leave the more connections are needed.
    async fn open_ahead(&self) {
        let plan = self.plan();
        let n_each = self.shared.n_ahead / plan.n_lanes.max(1) / plan.targets.len();
        let opening = (0..plan.targets.len()).flat_map(|target| {
            (0..n_each).map(move |_| async move { (target, plan.targets[target].connect().await) })
        });
        let opened = async {
            let mut opening = stream::iter(opening).buffer_unordered(OPEN_AT_ONCE);
            while let Some((target, Ok(connection))) = opening.next().await {
                self.put_back(target, connection);
            }
        };
        // Who does not answer by then is asked when it is needed.
        drop(tokio::time::timeout_at(self.shared.start, opened).await);
    }

    /// Hands each request out at its moment: those of the schedule, and those that follow an answer
    /// until the end of the run.
    async fn pace(self: &Arc<Lane>, share: Share) {
        let mut share = share.peekable();
        let pause = Pause::new().ok();
        // Until then the run's time stands at 0, and what is due at 0 would leave early.
        wait(pause.as_ref(), self.shared.start).await;
        let plan = self.plan();
        let until_s = plan.is_followed().then(|| plan.span_s().unwrap_or(f64::INFINITY));
        let mut next = if self.is_closed() { None } else { self.next_of(&mut share) };
        for user in self.users.clone() {
            self.later.add(plan.users.thinks_s(user, 0), Next::User);
        }
        loop {
            // What follows an answer after the end is no part of the run.
            let now_s = until_s.into_iter().fold(self.shared.now_s(), f64::min);
            let mut n_handed = 0;
            while n_handed < MOST_AT_ONCE
                && let Some(job) = self.take_due(&mut next, &mut share, now_s)
            {
                self.hand_out(job);
                n_handed += 1;
            }
            if n_handed == MOST_AT_ONCE {
                tokio::task::yield_now().await;
                continue;
            }
            if self.is_closed() && share.peek().is_none() {
                return;
            }
            let due_s = next.as_ref().map(|job| job.due_s);
            let wake_s = match (until_s, due_s) {
                (Some(until_s), _) if now_s >= until_s => return,
                (None, None) => return,
                (None, Some(due_s)) => due_s,
                (Some(until_s), _) => {
                    let latest_s = until_s.min(now_s + MOST_WAIT_S);
                    due_s.into_iter().chain(self.later.first_s()).fold(latest_s, f64::min)
                }
            };
            let wake_s = wake_s.max(now_s + LEAST_WAIT_S);
            let moment = self.shared.start + Duration::from_secs_f64(wake_s);
            tokio::select! {
                biased;
                () = wait(pause.as_ref(), moment) => {}
                () = self.later.added.notified() => {}
            }
        }
    }

    /// A request that is due by now, if there is one: one that follows an answer, or the schedule's
    /// next.
    fn take_due(
        &self,
        next: &mut Option<Job>,
        share: &mut Peekable<Share>,
        now_s: f64,
    ) -> Option<Job> {
        while let Some((due_s, follower)) = self.later.take(now_s) {
            let job = match follower {
                Next::Turn(job) => Some(job),
                Next::User => self.next_of(share),
            };
            if let Some(job) = job {
                return Some(Job { due_s, ..job });
            }
        }
        let job = next.take_if(|job| job.due_s <= now_s)?;
        *next = self.next_of(share);
        Some(job)
    }

    /// The next request of the schedule; none after an error either.
    fn next_of(&self, share: &mut Peekable<Share>) -> Option<Job> {
        let (number, planned) = share.next()?;
        match planned {
            Ok(planned) => Some(Job::new(number, planned)),
            Err(error) => {
                *locked(&self.trace_error) = Some(error);
                None
            }
        }
    }

    fn is_closed(&self) -> bool {
        matches!(self.plan().load, Load::Users { .. })
    }

    /// Begins a request, or lets it wait for a connection.
    fn hand_out(self: &Arc<Lane>, mut job: Job) {
        let plan = self.plan();
        job.counts = plan.counts(job.due_s);
        {
            let mut record = locked(&self.record);
            record.last_due_s = job.due_s;
            record.n_due += 1;
            if job.counts {
                record.scheduled(job.class, job.due_s);
            }
        }
        job.target = usize::try_from(job.number % plan.targets.len() as u64).unwrap_or(0);
        let slot = {
            // Under the lock, so that no slot is freed between the look at it and the waiting.
            let mut waiting = locked(&self.waiting);
            match Arc::clone(&self.slots).try_acquire_owned() {
                Ok(slot) => slot,
                Err(_taken) if waiting.len() < MOST_WAITING => {
                    waiting.push_back(job);
                    return;
                }
                Err(_taken) => {
                    locked(&self.record).unsent += 1;
                    if let Some(requests) = &plan.requests {
                        requests.add(Request::unsent(&job, self.shared.now_s()));
                    }
                    return;
                }
            }
        };
        tokio::spawn(Arc::clone(self).work(job, slot));
    }

    async fn work(self: Arc<Lane>, first: Job, slot: OwnedSemaphorePermit) {
        let _alarm = Alarm(&self.shared);
        let mut limit = Box::pin(tokio::time::sleep(self.plan().timeout));
        let mut slot = Some(slot);
        let mut next = Some(first);
        while let Some(job) = next {
            self.tally.sent.fetch_add(1, Ordering::Relaxed);
            self.perform(&job, &mut limit).await;
            self.tally.ended.fetch_add(1, Ordering::Relaxed);
            // What waits already needs no task of its own.
            {
                let mut waiting = locked(&self.waiting);
                next = waiting.pop_front();
                if next.is_none() {
                    slot.take();
                }
            }
            if next.is_some() {
                // What has come is read before more is sent: see MOST_AT_ONCE.
                tokio::task::yield_now().await;
            }
        }
    }

    /// What its user does next, after a whole answer of so many tokens or after none.
    pub(super) fn follow(&self, job: &Job, tokens: Option<u32>) {
        let plan = self.plan();
        if !plan.is_followed() {
            return;
        }
        let now_s = self.shared.now_s();
        let thinks_s = plan.users.thinks_s(job.number, job.turn + 1);
        match tokens.and_then(|tokens| plan.next_turn(job, tokens)) {
            Some(next) => self.later.add(now_s + thinks_s, Next::Turn(next)),
            None if !self.is_closed() => {}
            None => {
                let least_s = if tokens.is_some() { 0.0 } else { LEAST_AFTER_FAILURE_S };
                self.later.add(now_s + thinks_s.max(least_s), Next::User);
            }
        }
    }

    /// Takes one retry out of the budget, which each thread has for its share of the requests; false
    /// if that is spent. One whose user leaves before it is sent stays taken.
    pub(super) fn take_retry(&self) -> bool {
        let Tally { sent, retries, .. } = &self.tally;
        let n_retries = retries.load(Ordering::Relaxed) + 1;
        let n_sent = sent.load(Ordering::Relaxed);
        let budget = self.plan().users.retry_budget;
        let is_within = budget.is_none_or(|share| n_retries as f64 <= share * n_sent as f64);
        if is_within {
            retries.store(n_retries, Ordering::Relaxed);
        }
        is_within
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// What still waits for a connection.
    pub(super) fn take_waiting(&self) -> VecDeque<Job> {
        std::mem::take(&mut *locked(&self.waiting))
    }

    pub(super) fn take_trace_error(&self) -> Option<traces::Error> {
        locked(&self.trace_error).take()
    }

    /// Requests with an answer or a failure, whether or not they count.
    pub(super) fn n_ended(&self) -> u64 {
        self.tally.ended.load(Ordering::Relaxed)
    }

    pub(super) fn record(&self) -> &Mutex<Record> {
        &self.record
    }

    /// A connection that was used lately.
    pub(super) fn take_idle(&self, target: usize) -> Option<Connection> {
        let (connection, since) = locked(&self.idle)[target].pop_back()?;
        (since.elapsed() <= MOST_IDLE).then_some(connection)
    }

    pub(super) fn put_back(&self, target: usize, connection: Connection) {
        if connection.http.is_closed() {
            return;
        }
        let now = Instant::now();
        let idle = &mut locked(&self.idle)[target];
        while idle.front().is_some_and(|(_, since)| now - *since > MOST_IDLE) {
            idle.pop_front();
        }
        idle.push_back((connection, now));
    }

    pub(super) fn request(
        &self,
        target: usize,
        is_chat: bool,
        body: Bytes,
    ) -> http::Request<Full<Bytes>> {
        let Shared { chats, completions, .. } = &*self.shared;
        let route = if is_chat { &chats[target] } else { &completions[target] };
        let mut request = http::Request::new(Full::new(body));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = route.path.clone();
        *request.headers_mut() = route.headers.clone();
        request
    }
}

async fn wait(pause: Option<&Pause>, moment: Instant) {
    match pause {
        Some(pause) => pause.until(moment).await,
        None => tokio::time::sleep_until(moment).await,
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
