//! The life of a replica around its engine: cold start, sleep, drain, death.
//!
//! Must not read a clock; what is random is drawn once, from the seed.

use std::collections::VecDeque;
use std::f64::consts::TAU;
use std::sync::Arc;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use crate::engine::profile::{Profile, Spread};
use crate::engine::request::{Event, Request, Watch};
use crate::engine::time::{Time, ps_from_secs};
use crate::engine::{Engine, Rejected};

/// A stage of a cold start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The pod waits for its node.
    Schedule,
    /// Image and container.
    Pull,
    /// Imports and weights.
    Load,
    /// Compilation and graph capture.
    Warm,
}

/// How deeply an engine sleeps; the levels are vLLM's 0, 1 and 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepLevel {
    /// 0: only scheduling is paused.
    Paused,
    /// 1: weights in host memory, KV cache discarded.
    Offloaded,
    /// 2: weights discarded too.
    Discarded,
}

/// What a replica is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Starting; connections are refused, as vLLM refuses them until it is ready.
    Starting(Stage),
    /// Serving.
    Ready,
    /// Asleep: takes requests, and serves them when it has woken.
    Asleep(SleepLevel),
    /// Waking, as asleep until it is ready.
    Waking(SleepLevel),
    /// Told to end: finishes what it has, answers 500 to what is new, still looks healthy.
    Draining,
    /// The listener is closed.
    Exiting,
    /// The process has ended.
    Gone,
}

/// What happened to a replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReplicaEvent {
    /// Something in its engine.
    Engine(Event),
    /// It changed.
    Changed {
        /// When.
        at: Time,
        /// To what.
        to: Condition,
    },
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Nobody listens: the connection is refused.
    #[error("connection refused")]
    NotListening,
    /// It is draining: vLLM answers HTTP 500.
    #[error("cannot schedule new futures after shutdown")]
    ShuttingDown,
    /// The engine could never serve it: HTTP 400.
    #[error(transparent)]
    Rejected(#[from] Rejected),
}

/// One pod with its engine.
#[derive(Debug)]
pub struct Replica {
    engine: Engine,
    condition: Condition,
    // When the condition changes by itself.
    due: Option<Time>,
    // Stages still to come, with their picoseconds.
    stages: VecDeque<(Stage, u64)>,
    terminated: Time,
}

impl Replica {
    /// A replica whose pod is created now. The seed settles how long each stage takes.
    #[must_use]
    pub fn cold(profile: Arc<Profile>, seed: u64, now: Time) -> Replica {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let start = profile.start;
        let mut stages: VecDeque<_> = [
            (Stage::Schedule, start.schedule),
            (Stage::Pull, start.pull),
            (Stage::Load, start.load),
            (Stage::Warm, start.warm),
        ]
        .into_iter()
        .map(|(stage, spread)| (stage, draw_ps(spread, &mut rng)))
        .collect();
        let mut replica = Replica::warm(profile);
        if let Some((stage, span_ps)) = stages.pop_front() {
            replica.condition = Condition::Starting(stage);
            replica.due = Some(now.plus_ps(span_ps));
        }
        replica.stages = stages;
        replica
    }

    /// A replica that is ready.
    #[must_use]
    pub fn warm(profile: Arc<Profile>) -> Replica {
        Replica {
            engine: Engine::new(profile),
            condition: Condition::Ready,
            due: None,
            stages: VecDeque::new(),
            terminated: Time::ZERO,
        }
    }

    /// What it is doing.
    #[must_use]
    pub fn condition(&self) -> Condition {
        self.condition
    }

    /// Whether it accepts connections.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        match self.condition {
            Condition::Ready
            | Condition::Asleep(_)
            | Condition::Waking(_)
            | Condition::Draining => true,
            Condition::Starting(_) | Condition::Exiting | Condition::Gone => false,
        }
    }

    /// Its engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Its engine, to abort a request or to stall it.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Takes a request that reaches the server now.
    ///
    /// # Errors
    ///
    /// When the server does not listen or is draining, or its engine could never serve it.
    pub fn submit(&mut self, request: Request, now: Time) -> Result<(), Refused> {
        match self.condition {
            Condition::Ready | Condition::Asleep(_) | Condition::Waking(_) => {
                Ok(self.engine.submit(request, now)?)
            }
            Condition::Draining => Err(Refused::ShuttingDown),
            Condition::Starting(_) | Condition::Exiting | Condition::Gone => {
                Err(Refused::NotListening)
            }
        }
    }

    /// Falls asleep, giving up all requests as vLLM does by default. False if it is not ready.
    pub fn sleep(
        &mut self,
        level: SleepLevel,
        now: Time,
        sink: &mut impl FnMut(ReplicaEvent),
    ) -> bool {
        if self.condition != Condition::Ready {
            return false;
        }
        self.engine.abort_all(now, &mut |event| sink(ReplicaEvent::Engine(event)));
        self.engine.pause();
        self.change(now, Condition::Asleep(level), None, sink);
        true
    }

    /// Begins to wake. False if it is not asleep.
    pub fn wake(&mut self, now: Time, sink: &mut impl FnMut(ReplicaEvent)) -> bool {
        let Condition::Asleep(level) = self.condition else {
            return false;
        };
        let wake = self.engine.profile().wake;
        let seconds = match level {
            SleepLevel::Paused => 0.0,
            SleepLevel::Offloaded => wake.level_1_s,
            SleepLevel::Discarded => wake.level_2_s,
        };
        let ready = now.plus_ps(ps_from_secs(seconds));
        self.change(now, Condition::Waking(level), Some(ready), sink);
        true
    }

    /// Gets SIGTERM. With a shutdown timeout it drains, otherwise it gives up what it has.
    pub fn terminate(&mut self, now: Time, sink: &mut impl FnMut(ReplicaEvent)) {
        self.terminated = now;
        let timeout_ps = ps_from_secs(self.engine.profile().shutdown.timeout_s);
        match self.condition {
            Condition::Ready | Condition::Asleep(_) | Condition::Waking(_) if timeout_ps > 0 => {
                self.change(now, Condition::Draining, Some(now.plus_ps(timeout_ps)), sink);
            }
            Condition::Ready | Condition::Asleep(_) | Condition::Waking(_) => self.exit(now, sink),
            // Not a server yet.
            Condition::Starting(_) => self.change(now, Condition::Gone, None, sink),
            Condition::Draining | Condition::Exiting | Condition::Gone => {}
        }
    }

    /// Gets SIGKILL.
    pub fn kill(&mut self, now: Time, sink: &mut impl FnMut(ReplicaEvent)) {
        if self.condition != Condition::Gone {
            self.engine.abort_all(now, &mut |event| sink(ReplicaEvent::Engine(event)));
            self.change(now, Condition::Gone, None, sink);
        }
    }

    /// When something happens next by itself; see [`Engine::next_event`].
    pub fn next_event(&mut self) -> Option<Time> {
        [self.engine.next_event(), self.due].into_iter().flatten().min()
    }

    /// Lets time pass until `to`; see [`Engine::advance`].
    pub fn advance(&mut self, to: Time, watch: Watch, sink: &mut impl FnMut(ReplicaEvent)) {
        loop {
            let until = self.due.map_or(to, |due| due.min(to));
            self.engine.advance(until, watch, &mut |event| sink(ReplicaEvent::Engine(event)));
            self.notice_drained();
            match self.due {
                Some(due) if due <= to => self.come_due(due, sink),
                Some(_) | None => return,
            }
        }
    }

    /// With nothing left to drain, only the lingering is due.
    fn notice_drained(&mut self) {
        if self.condition == Condition::Draining && self.engine.in_flight() == 0 {
            let linger_ps = ps_from_secs(self.engine.profile().shutdown.linger_s);
            let empty = self.engine.last_step_end().max(self.terminated);
            self.due = Some(empty.plus_ps(linger_ps));
        }
    }

    fn come_due(&mut self, at: Time, sink: &mut impl FnMut(ReplicaEvent)) {
        match self.condition {
            Condition::Starting(_) => match self.stages.pop_front() {
                Some((stage, span_ps)) => {
                    self.change(at, Condition::Starting(stage), Some(at.plus_ps(span_ps)), sink);
                }
                None => self.change(at, Condition::Ready, None, sink),
            },
            Condition::Waking(_) => {
                self.engine.resume(at);
                self.change(at, Condition::Ready, None, sink);
            }
            Condition::Draining => self.exit(at, sink),
            Condition::Exiting => self.change(at, Condition::Gone, None, sink),
            Condition::Ready | Condition::Asleep(_) | Condition::Gone => self.due = None,
        }
    }

    fn exit(&mut self, at: Time, sink: &mut impl FnMut(ReplicaEvent)) {
        self.engine.abort_all(at, &mut |event| sink(ReplicaEvent::Engine(event)));
        let exit_ps = ps_from_secs(self.engine.profile().shutdown.exit_s);
        self.change(at, Condition::Exiting, Some(at.plus_ps(exit_ps)), sink);
    }

    fn change(
        &mut self,
        at: Time,
        to: Condition,
        due: Option<Time>,
        sink: &mut impl FnMut(ReplicaEvent),
    ) {
        self.condition = to;
        self.due = due;
        sink(ReplicaEvent::Changed { at, to });
    }
}

/// Draws from a log-normal distribution, by the method of Box and Muller.
fn draw_ps(spread: Spread, rng: &mut impl Rng) -> u64 {
    // The 95 % quantile of the standard normal distribution.
    const Z_95: f64 = 1.644_853_626_951_472;
    let mut uniform = || (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt();
    let normal = radius * (TAU * uniform()).cos();
    let sigma = (spread.p95_s / spread.median_s).ln() / Z_95;
    ps_from_secs(spread.median_s * (sigma * normal).exp())
}
