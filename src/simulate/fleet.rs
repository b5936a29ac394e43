//! The replicas of one workload behind their gateway: pods that start, serve, drain and go.
//!
//! Must not decide how many there are, nor judge how well they served.

use std::collections::VecDeque;

use loadgen::engine::{Lean, LeanEvent, LeanRequest, Profile, Time};

use super::cold::ColdStart;
use super::policy::Counts;
use super::random::Random;
use super::workload::Request;

/// Seconds after which a pod that still drains is killed (`terminationGracePeriodSeconds`) and its
/// requests are sent again. Longer than the longest answer of the reasoning traces takes.
const GRACE_PS: u64 = 900 * loadgen::engine::PS_PER_S;
/// Where the load of a pod that takes no request stands in the balancer's list.
const CLOSED: u64 = u64::MAX;

/// Pods, the load balancer before them, and the gateway that holds what nobody can take.
#[derive(Debug)]
pub(super) struct Fleet<'a> {
    profile: &'a Profile,
    requests: &'a [Request],
    cold: ColdStart,
    rng: Random,
    pods: Vec<Pod>,
    // Parallel to `pods`, apart because they are searched at every event: when each pod has its
    // next event, and how many requests are in it.
    next_event: Vec<Time>,
    load: Vec<u64>,
    held: VecDeque<u32>,
    next_id: u32,
    next_change: Time,
    // Whether a pod has gone since somebody last asked.
    gone: bool,
    events: Vec<LeanEvent>,
}

/// One pod.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) id: u32,
    pub(super) state: State,
    pub(super) created: Time,
    pub(super) engine: Lean,
}

/// Where in its life a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Its place is free.
    Gone,
    /// Loading until then.
    Starting {
        /// When its endpoint is known to the balancer.
        until: Time,
    },
    /// Serving since then.
    Ready {
        /// When it became so.
        since: Time,
    },
    /// Finishing what it has.
    Draining {
        /// When it is killed.
        until: Time,
    },
}

impl<'a> Fleet<'a> {
    /// A fleet of `initial` replicas that serve already.
    pub(super) fn new(
        profile: &'a Profile,
        requests: &'a [Request],
        cold: ColdStart,
        rng: Random,
        initial: u32,
        now: Time,
    ) -> Fleet<'a> {
        let mut fleet = Fleet {
            profile,
            requests,
            cold,
            rng,
            pods: Vec::new(),
            next_event: Vec::new(),
            load: Vec::new(),
            held: VecDeque::new(),
            next_id: 0,
            next_change: Time::MAX,
            gone: false,
            events: Vec::new(),
        };
        for _ in 0..initial {
            let index = fleet.create(State::Ready { since: now }, now);
            fleet.load[index] = 0;
        }
        fleet
    }

    /// The pod with the next event of an engine, and when.
    pub(super) fn next_event(&self) -> (usize, Time) {
        let mut next = (0, Time::MAX);
        for (index, &at) in self.next_event.iter().enumerate() {
            if at < next.1 {
                next = (index, at);
            }
        }
        next
    }

    /// When a pod next becomes ready or is killed.
    pub(super) fn next_change(&self) -> Time {
        self.next_change
    }

    /// Lets the pod's engine move on to its event; returns what happened.
    pub(super) fn serve(&mut self, index: usize, at: Time) -> &[LeanEvent] {
        self.events.clear();
        let pod = &mut self.pods[index];
        pod.engine.advance(at, &mut |event| self.events.push(event));
        self.next_event[index] = pod.engine.next_event().unwrap_or(Time::MAX);
        let left = pod.engine.in_flight();
        match pod.state {
            State::Ready { .. } => self.load[index] = left as u64,
            State::Draining { .. } if left == 0 => {
                pod.state = State::Gone;
                self.gone = true;
                self.refresh_next_change();
            }
            State::Draining { .. } | State::Starting { .. } | State::Gone => {}
        }
        &self.events
    }

    /// Sends a request to the replica with the fewest; the gateway holds it if there is none.
    pub(super) fn route(&mut self, id: u32, now: Time) {
        // Equally loaded ones by lot: the place in the list breaks ties, from a random start.
        let start = self.rng.next() >> 56;
        let mut best = (CLOSED, 0);
        for (index, &load) in self.load.iter().enumerate() {
            let key = (load.saturating_mul(256)).saturating_add((index as u64 + start) % 256);
            if key < best.0 {
                best = (key, index);
            }
        }
        let (key, index) = best;
        if key == CLOSED {
            self.held.push_back(id);
            return;
        }
        let request = self.requests[id as usize];
        let request = LeanRequest {
            id,
            prompt_tokens: request.prompt_tokens,
            cached_tokens: request.cached_tokens,
            output_tokens: request.output_tokens,
        };
        let engine = &mut self.pods[index].engine;
        engine.submit(request, now);
        self.next_event[index] = engine.next_event().unwrap_or(Time::MAX);
        self.load[index] += 1;
    }

    /// Lets what is due by now become ready or end.
    pub(super) fn change(&mut self, now: Time) {
        let mut again = Vec::new();
        for index in 0..self.pods.len() {
            match self.pods[index].state {
                State::Starting { until } if until <= now => {
                    self.pods[index].state = State::Ready { since: now };
                    self.load[index] = 0;
                }
                State::Draining { until } if until <= now => {
                    let engine =
                        std::mem::replace(&mut self.pods[index].engine, Lean::new(self.profile));
                    again.extend(engine.kill().into_iter().map(|request| request.id));
                    self.pods[index].state = State::Gone;
                    self.next_event[index] = Time::MAX;
                }
                State::Starting { .. }
                | State::Ready { .. }
                | State::Draining { .. }
                | State::Gone => {}
            }
        }
        self.refresh_next_change();
        if self.load.iter().any(|&load| load != CLOSED) {
            let held = std::mem::take(&mut self.held);
            held.into_iter().chain(again).for_each(|id| self.route(id, now));
        } else {
            self.held.extend(again);
        }
    }

    /// Orders or ends pods until `want` are ordered; returns how many were created.
    pub(super) fn scale(&mut self, want: u32, now: Time) -> u32 {
        let spec = self.counts().spec;
        for _ in spec..want {
            let until = now.plus_ps(self.cold.draw_ps(&mut self.rng));
            self.create(State::Starting { until }, now);
        }
        for _ in want..spec {
            self.end_one(now);
        }
        self.refresh_next_change();
        want.saturating_sub(spec)
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for pod in &self.pods {
            match pod.state {
                State::Gone => {}
                State::Starting { .. } => counts.starting += 1,
                State::Ready { .. } => counts.ready += 1,
                State::Draining { .. } => counts.terminating += 1,
            }
        }
        counts.spec = counts.ready + counts.starting;
        counts
    }

    /// Whether a pod that drained has gone since the last call.
    pub(super) fn take_gone(&mut self) -> bool {
        std::mem::take(&mut self.gone)
    }

    /// Requests that the gateway holds.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Every pod that exists, in no order.
    pub(super) fn pods_mut(&mut self) -> impl Iterator<Item = &mut Pod> {
        self.pods.iter_mut().filter(|pod| pod.state != State::Gone)
    }

    fn create(&mut self, state: State, now: Time) -> usize {
        let pod = Pod { id: self.next_id, state, created: now, engine: Lean::new(self.profile) };
        self.next_id += 1;
        let free = self.pods.iter().position(|pod| pod.state == State::Gone);
        match free {
            Some(index) => {
                self.pods[index] = pod;
                self.next_event[index] = Time::MAX;
                index
            }
            None => {
                self.pods.push(pod);
                self.next_event.push(Time::MAX);
                self.load.push(CLOSED);
                self.pods.len() - 1
            }
        }
    }

    /// Ends the pod that a ReplicaSet would: one that is not ready, else the youngest.
    fn end_one(&mut self, now: Time) {
        let rank = |pod: &Pod| match pod.state {
            State::Starting { .. } => Some((1, pod.id)),
            State::Ready { .. } => Some((0, pod.id)),
            State::Draining { .. } | State::Gone => None,
        };
        let ranked =
            self.pods.iter().enumerate().filter_map(|(index, pod)| Some((rank(pod)?, index)));
        let Some((_, index)) = ranked.max() else { return };
        let pod = &mut self.pods[index];
        self.load[index] = CLOSED;
        pod.state = match pod.state {
            State::Ready { .. } if pod.engine.in_flight() > 0 => {
                State::Draining { until: now.plus_ps(GRACE_PS) }
            }
            State::Ready { .. } | State::Starting { .. } | State::Draining { .. } | State::Gone => {
                State::Gone
            }
        };
    }

    fn refresh_next_change(&mut self) {
        let due = self.pods.iter().filter_map(|pod| match pod.state {
            State::Starting { until } | State::Draining { until } => Some(until),
            State::Ready { .. } | State::Gone => None,
        });
        self.next_change = due.min().unwrap_or(Time::MAX);
    }
}
