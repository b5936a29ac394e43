//! One server behind its sockets: the engines, moved by the clock, and what is in flight.
//!
//! Must not know HTTP. Whoever looks or asks first lets the engines catch up with the clock, so
//! that nothing depends on when the timer fires.

mod state;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::task::yield_now;
use tokio::time::sleep_until;

use self::state::State;
use super::clock::Clock;
use super::feed::Feed;
use super::pathology::{Order, Pathology};
use crate::engine::{Condition, Prefix, Profile, Refused, SleepLevel, Stage, Time};
use crate::exposition::{Dialect, Exchange};

/// What a server is.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) profile: Arc<Profile>,
    pub(super) dialect: &'static Dialect,
    pub(super) model_name: String,
    /// Starts with the profile's stages of a cold start; otherwise ready at once.
    pub(super) starts_cold: bool,
    /// For the lengths of cold starts and outputs.
    pub(super) seed: u64,
    /// Data-parallel ranks, at least 1.
    pub(super) n_ranks: usize,
    /// API servers, at least 1.
    pub(super) n_api_servers: usize,
}

/// Where a server's process is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) condition: Condition,
    /// Counts the processes that have been this server; connections belong to one of them.
    pub(super) process: u32,
    pub(super) listens_while_loading: bool,
}

impl Life {
    /// Whether connections are taken, by a server that does so while it loads or does not.
    pub(super) fn is_listening(&self) -> bool {
        match self.condition {
            Condition::Starting(Stage::Load | Stage::Warm) => self.listens_while_loading,
            Condition::Ready
            | Condition::Asleep(_)
            | Condition::Waking(_)
            | Condition::Draining => true,
            Condition::Starting(_) | Condition::Exiting | Condition::Gone => false,
        }
    }
}

/// A completion to serve.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) prompt_tokens: u32,
    pub(super) prefix: Prefix,
    pub(super) max_tokens: u32,
    pub(super) min_tokens: u32,
    pub(super) ignores_eos: bool,
    pub(super) streams: bool,
}

impl Wanted {
    /// The token by which a health check finds out whether the engine works.
    pub(super) fn probe() -> Wanted {
        Wanted {
            prompt_tokens: 1,
            prefix: Prefix::Unknown,
            max_tokens: 1,
            min_tokens: 0,
            ignores_eos: true,
            streams: false,
        }
    }
}

/// Why a completion is not served.
#[derive(Debug)]
pub(super) enum Refusal {
    /// More requests than the admission limit.
    Busy,
    Engine(Refused),
}

/// A server.
#[derive(Debug)]
pub(super) struct Backend {
    pub(super) settings: Arc<Settings>,
    pub(super) clock: Clock,
    state: Mutex<State>,
    moved: Notify,
    life: watch::Sender<Life>,
}

/// A place in a server for one request; giving it up aborts the request.
#[derive(Debug)]
pub(super) struct Ticket {
    backend: Arc<Backend>,
    pub(super) id: u64,
    pub(super) feed: Arc<Feed>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let was_there = {
            let mut state = self.backend.lock();
            state.catch_up(self.backend.clock.now());
            state.abort(self.id)
        };
        if was_there {
            self.backend.moved.notify_one();
        }
    }
}

/// An HTTP exchange of a server, counted when it ends.
#[derive(Debug)]
pub(super) struct InFlight {
    load: Arc<[AtomicUsize]>,
    api_server: usize,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.load[self.api_server].fetch_sub(1, Ordering::Relaxed);
    }
}

impl Backend {
    pub(super) fn new(settings: Settings, orders: &[Order], clock: Clock) -> Arc<Backend> {
        let settings = Arc::new(settings);
        let mut state = State::new(&settings, clock);
        for order in orders {
            state.schedule.add(order.clone(), clock.now());
        }
        let life = watch::Sender::new(state.life());
        Arc::new(Backend { settings, clock, state: Mutex::new(state), moved: Notify::new(), life })
    }

    /// Moves the engines until the process has ended for good.
    pub(super) async fn drive(&self) {
        loop {
            let (life, next) = {
                let mut state = self.lock();
                state.catch_up(self.clock.now());
                (state.life(), state.next_event())
            };
            self.publish(life);
            match next {
                None if life.condition == Condition::Gone => return,
                None => self.moved.notified().await,
                // Steps are shorter than their computation takes: let others have their turn.
                Some(next) if next <= self.clock.now() => yield_now().await,
                Some(next) => tokio::select! {
                    () = sleep_until(self.clock.instant(next)) => {}
                    () = self.moved.notified() => {}
                },
            }
        }
    }

    pub(super) fn life(&self) -> watch::Receiver<Life> {
        self.life.subscribe()
    }

    /// Takes a completion in.
    pub(super) fn submit(self: &Arc<Self>, wanted: Wanted) -> Result<Ticket, Refusal> {
        let (id, feed) = {
            let mut state = self.lock();
            let now = state.catch_up(self.clock.now());
            state.submit(wanted, now)?
        };
        self.moved.notify_one();
        Ok(Ticket { backend: Arc::clone(self), id, feed })
    }

    /// The metrics page.
    pub(super) fn page(&self) -> String {
        let mut state = self.lock();
        state.catch_up(self.clock.now());
        state.page()
    }

    /// The JSON of the last steps.
    pub(super) fn iterations(&self) -> String {
        let mut state = self.lock();
        state.catch_up(self.clock.now());
        state.iterations()
    }

    /// Counts an exchange as under way, at one of the API servers.
    pub(super) fn begin_exchange(&self) -> InFlight {
        let mut state = self.lock();
        let api_server = state.next_api_server();
        let load = Arc::clone(&state.load);
        load[api_server].fetch_add(1, Ordering::Relaxed);
        InFlight { load, api_server }
    }

    /// Counts a request as come in.
    pub(super) fn arrive(&self, endpoint: &'static str, method: &'static str) {
        self.lock().http.arrive(endpoint, method);
    }

    pub(super) fn end_exchange(&self, exchange: &Exchange) {
        self.lock().http.record(exchange);
    }

    /// Exchanges under way at the API server that happens to answer.
    pub(super) fn load(&self) -> usize {
        let mut state = self.lock();
        let api_server = state.next_api_server();
        state.load[api_server].load(Ordering::Relaxed)
    }

    /// Requests in the engines, and tokens that they have made.
    pub(super) fn work(&self) -> (usize, u64) {
        let mut state = self.lock();
        state.catch_up(self.clock.now());
        (state.in_flight(), state.tokens())
    }

    /// Whether each place of a batch is taken.
    pub(super) fn slots(&self) -> Vec<bool> {
        let mut state = self.lock();
        state.catch_up(self.clock.now());
        state.slots()
    }

    pub(super) fn sleep(&self, level: SleepLevel) {
        self.change(|state, now| state.sleep(level, now));
    }

    pub(super) fn wake(&self) {
        self.change(State::wake);
    }

    /// What SIGTERM does.
    pub(super) fn terminate(&self) {
        self.change(State::terminate);
    }

    /// Takes orders, and tells what is in force or to come then: what is over in a moment too.
    pub(super) fn order(&self, orders: Vec<Order>) -> String {
        let mut told = String::new();
        self.change(|state, now| {
            orders.into_iter().for_each(|order| state.schedule.add(order, now));
            told = state.schedule.lines(now);
            // What begins now has begun when it is told.
            state.catch_up(now);
        });
        told
    }

    pub(super) fn call_off(&self) {
        self.change(|state, _| state.schedule.clear());
    }

    /// Faults in force or to come, a line each.
    pub(super) fn faults(&self) -> String {
        let mut state = self.lock();
        let now = state.catch_up(self.clock.now());
        state.schedule.lines(now)
    }

    /// Milliseconds that a scrape takes.
    pub(super) fn scrape_ms(&self) -> u64 {
        let mut state = self.lock();
        state.catch_up(self.clock.now());
        state.schedule.in_force().filter_map(Pathology::scrape_ms).max().unwrap_or(0)
    }

    fn change(&self, change: impl FnOnce(&mut State, Time)) {
        let life = {
            let mut state = self.lock();
            let now = state.catch_up(self.clock.now());
            change(&mut state, now);
            state.life()
        };
        self.publish(life);
        self.moved.notify_one();
    }

    fn publish(&self, life: Life) {
        self.life.send_if_modified(|known| std::mem::replace(known, life) != life);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
