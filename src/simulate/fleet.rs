//! The replicas of one workload behind their gateway: pods that start, serve, drain and go.
//!
//! Must not decide how many there are, nor judge how well they served. How pods come and go is in
//! `fleet/pods.rs`.

mod pods;

use std::collections::VecDeque;

use loadgen::engine::{Lean, LeanEvent, LeanRequest, Profile, Time};

use super::cold::ColdStart;
use super::policy::Counts;
use super::random::Random;
use super::supply::Supply;
use super::workload::Request;

/// Where the load of a pod that takes no request stands in the balancer's list.
const CLOSED: u64 = u64::MAX;

/// Pods, the load balancer before them, and the gateway that holds what nobody can take.
#[derive(Debug)]
pub(super) struct Fleet<'a> {
    /// Of the pods that are created from now on.
    profile: Profile,
    /// How many profiles there have been before it: the update that a pod belongs to.
    version: u32,
    requests: &'a [Request],
    cold: ColdStart,
    rng: Random,
    /// Replicas ordered.
    wanted: u32,
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
    /// Tokens that its KV cache holds.
    pub(super) kv_tokens: f64,
    version: u32,
}

/// Where in its life a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Its place is free.
    Gone,
    /// Without a node.
    Unplaced {
        /// When the node that is provisioned for it is there, if one is.
        until: Option<Time>,
    },
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

/// Who is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Census {
    /// As the Kubernetes API has it.
    pub(super) counts: Counts,
    /// Pods that load on their GPUs.
    pub(super) loading: u32,
    /// Pods that serve.
    pub(super) serving: u32,
    /// Pods that finish what they have.
    pub(super) draining: u32,
    /// Pods that have been created so far, those with which the fleet began included.
    pub(super) created: u32,
}

impl<'a> Fleet<'a> {
    /// A fleet of `initial` replicas that serve already.
    pub(super) fn new(
        profile: Profile,
        requests: &'a [Request],
        cold: ColdStart,
        rng: Random,
        initial: u32,
        (supply, now): (&mut Supply, Time),
    ) -> Fleet<'a> {
        let mut fleet = Fleet {
            profile,
            version: 0,
            requests,
            cold,
            rng,
            wanted: initial,
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
            fleet.create_ready(supply, now);
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

    /// When a pod next gets a node, becomes ready or is killed.
    pub(super) fn next_change(&self) -> Time {
        self.next_change
    }

    /// Lets the pod's engine move on to its event; returns what happened.
    pub(super) fn serve(&mut self, index: usize, at: Time, supply: &mut Supply) -> &[LeanEvent] {
        self.events.clear();
        let pod = &mut self.pods[index];
        pod.engine.advance(at, &mut |event| self.events.push(event));
        self.next_event[index] = pod.engine.next_event().unwrap_or(Time::MAX);
        let left = pod.engine.in_flight();
        match pod.state {
            State::Ready { .. } => self.load[index] = left as u64,
            State::Draining { .. } if left == 0 => {
                self.leave(index, at, supply);
                self.refresh_next_change();
            }
            State::Draining { .. }
            | State::Unplaced { .. }
            | State::Starting { .. }
            | State::Gone => {}
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

    /// Who is there now.
    pub(super) fn census(&self) -> Census {
        let mut census = Census { created: self.next_id, ..Census::default() };
        let mut unplaced = 0;
        for pod in &self.pods {
            match pod.state {
                State::Gone => {}
                State::Unplaced { .. } => unplaced += 1,
                State::Starting { .. } => census.loading += 1,
                State::Ready { .. } => census.serving += 1,
                State::Draining { .. } => census.draining += 1,
            }
        }
        // What an update has beyond `spec` is neither capacity nor on its way to become some.
        let ready = census.serving.min(self.wanted);
        let starting = self.wanted - ready;
        census.counts = Counts {
            spec: self.wanted,
            ready,
            starting,
            unschedulable: starting.min(unplaced),
            terminating: census.draining,
        };
        census
    }

    /// Replica counts as the Kubernetes API has them.
    pub(super) fn counts(&self) -> Counts {
        self.census().counts
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
}
