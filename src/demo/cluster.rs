//! A cluster of one lane: pods with engines, a router, and a gateway that holds requests while no
//! pod is ready.
//!
//! Pure: moved by its caller, in simulated time. Must not decide how many pods there are.

use std::collections::VecDeque;
use std::sync::Arc;

use loadgen::engine::{
    Condition, Event, FinishReason, Profile, Replica, ReplicaEvent, Request, Served, Time, Watch,
    secs_from_ps,
};

use super::story::{Arrival, Story};

/// The objective: time to first token, gateway included, and mean time per further token.
pub(super) const TTFT_MS: u64 = 2_000;
pub(super) const TPOT_MS: u64 = 200;

/// A change of direction within this time is a flap.
const FLAP_S: f64 = 600.0;
/// A release this long after a dip still comes from it: two scrapes, a sync and the way between.
const DIP_LAG_S: f64 = 60.0;

/// One pod.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) name: Arc<str>,
    pub(super) replica: Replica,
    pub(super) created_at: Time,
    pub(super) ready_at: Option<Time>,
    /// Told to go: gets nothing new, finishes what it has.
    pub(super) is_leaving: bool,
}

impl Pod {
    /// Whether the router sends it requests.
    pub(super) fn is_ready(&self) -> bool {
        self.ready_at.is_some() && !self.is_leaving
    }
}

/// The cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    story: Arc<Story>,
    profile: Arc<Profile>,
    now: Time,
    next_arrival: usize,
    held: VecDeque<u64>,
    pods: Vec<Pod>,
    n_created: u32,
    spec: u32,
    tally: Tally,
    changes: Vec<(Time, u32)>,
}

/// What requests and pods have come to.
#[derive(Debug, Default)]
struct Tally {
    good: u64,
    late: u64,
    lost: u64,
    held: u64,
    gpu_ps: u64,
    cold_starts: u32,
}

/// The sums over all pods at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gauges {
    /// Waiting in the engines' queues, as they say.
    pub(super) waiting: usize,
    /// Running, as the engines say.
    pub(super) running: usize,
    /// Held by the gateway.
    pub(super) held: usize,
    pub(super) spec: u32,
    pub(super) ready: u32,
    pub(super) starting: u32,
    pub(super) leaving: u32,
}

/// What a lane came to.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(super) struct Score {
    /// Share of the requests within the objective, 0..1.
    pub(super) attainment: f64,
    /// From each pod's creation to its end.
    pub(super) gpu_hours: f64,
    /// Pods that were started.
    pub(super) cold_starts: u32,
    /// Changes of direction within ten minutes.
    pub(super) flaps: u32,
    /// Dips in which no pod was let go.
    pub(super) dips_held: u32,
    /// Requests that arrived.
    pub(super) requests: u64,
    /// Requests served beyond the objective.
    pub(super) late: u64,
    /// Requests that got no answer.
    pub(super) lost: u64,
    /// Requests that the gateway held while no pod was ready.
    pub(super) held: u64,
}

impl Cluster {
    /// A cluster with so many ready pods.
    pub(super) fn new(story: Arc<Story>, profile: Arc<Profile>, replicas: u32) -> Cluster {
        let mut cluster = Cluster {
            story,
            profile,
            now: Time::ZERO,
            next_arrival: 0,
            held: VecDeque::new(),
            pods: Vec::new(),
            n_created: 0,
            spec: replicas,
            tally: Tally::default(),
            changes: vec![(Time::ZERO, replicas)],
        };
        for _ in 0..replicas {
            let replica = Replica::warm(Arc::clone(&cluster.profile));
            cluster.add(replica, Some(Time::ZERO));
        }
        cluster
    }

    /// Its pods, oldest first.
    pub(super) fn pods(&self) -> &[Pod] {
        &self.pods
    }

    /// Replicas ordered.
    pub(super) fn spec(&self) -> u32 {
        self.spec
    }

    /// The sums at this moment.
    pub(super) fn gauges(&self) -> Gauges {
        let mut sums = Gauges { spec: self.spec, held: self.held.len(), ..Gauges::default() };
        for pod in &self.pods {
            match (pod.is_leaving, pod.ready_at) {
                (true, _) => sums.leaving += 1,
                (false, None) => sums.starting += 1,
                (false, Some(_)) => {
                    let gauges = pod.replica.engine().metrics().gauges;
                    sums.ready += 1;
                    sums.waiting += gauges.waiting;
                    sums.running += gauges.running;
                }
            }
        }
        sums
    }

    /// Orders another count. What is not ready goes first, then the youngest, as a ReplicaSet does.
    pub(super) fn scale_to(&mut self, spec: u32) {
        if spec == self.spec {
            return;
        }
        self.spec = spec;
        self.changes.push((self.now, spec));
        let mut staying = self.pods.iter().filter(|pod| !pod.is_leaving).count();
        while staying < spec as usize {
            // A different start for each pod and lane-independent: pod 3 of any lane is the same.
            let seed = self.story.seed.wrapping_mul(1_000).wrapping_add(u64::from(self.n_created));
            let replica = Replica::cold(Arc::clone(&self.profile), seed, self.now);
            self.tally.cold_starts += 1;
            self.add(replica, None);
            staying += 1;
        }
        while staying > spec as usize {
            let staying_pods = self.pods.iter_mut().filter(|pod| !pod.is_leaving);
            let Some(victim) =
                staying_pods.max_by_key(|pod| (pod.ready_at.is_none(), pod.created_at))
            else {
                return;
            };
            victim.is_leaving = true;
            victim.replica.terminate(self.now, &mut |_| {});
            staying -= 1;
        }
        self.remove_gone();
    }

    /// Lets time pass: requests come, are routed and served; pods start and end.
    pub(super) fn advance(&mut self, to: Time) {
        loop {
            let arrival = self.story.arrivals.get(self.next_arrival).map(|arrival| arrival.at);
            let starting = self.pods.iter_mut().filter(|pod| pod.ready_at.is_none());
            let start = starting.filter_map(|pod| pod.replica.next_event()).min();
            let until = [arrival, start].into_iter().flatten().min().map_or(to, |at| at.min(to));
            self.serve(until);
            let comes = arrival.is_some_and(|at| at <= until);
            if comes {
                self.held.push_back(self.next_arrival as u64);
                self.next_arrival += 1;
            }
            let n_routed = self.route();
            if comes && n_routed == 0 {
                self.tally.held += 1;
            }
            self.remove_gone();
            if until >= to && !comes {
                return;
            }
        }
    }

    /// What it all came to, at the story's end.
    pub(super) fn score(&self) -> Score {
        let alive_ps: u64 = self.pods.iter().map(|pod| self.gpu_ps(pod)).sum();
        let Tally { good, late, lost, held, gpu_ps, cold_starts } = self.tally;
        let requests = self.story.arrivals.len() as u64;
        Score {
            attainment: good as f64 / requests as f64,
            gpu_hours: secs_from_ps(gpu_ps + alive_ps) / 3_600.0,
            cold_starts,
            flaps: self.flaps(),
            dips_held: self.dips_held(),
            requests,
            late,
            lost: lost + (requests - good - late - lost),
            held,
        }
    }

    fn add(&mut self, replica: Replica, ready_at: Option<Time>) {
        let name = format!("llm-{}", self.n_created).into();
        let (created_at, is_leaving) = (self.now, false);
        self.pods.push(Pod { name, replica, created_at, ready_at, is_leaving });
        self.n_created += 1;
    }

    fn serve(&mut self, until: Time) {
        let (tally, arrivals) = (&mut self.tally, &self.story.arrivals);
        for pod in &mut self.pods {
            let ready_at = &mut pod.ready_at;
            pod.replica.advance(until, Watch::FirstToken, &mut |event| match event {
                ReplicaEvent::Engine(Event::Finished { id, reason, served, .. }) => {
                    let arrival = usize::try_from(id).ok().and_then(|id| arrivals.get(id));
                    tally.finish(arrival, reason, &served);
                }
                ReplicaEvent::Changed { at, to: Condition::Ready } => *ready_at = Some(at),
                ReplicaEvent::Engine(Event::Token { .. } | Event::Preempted { .. })
                | ReplicaEvent::Changed { .. } => {}
            });
        }
        self.now = until;
    }

    /// Sends what the gateway holds to the least loaded pods; gives how many it sent.
    fn route(&mut self) -> usize {
        let mut n_routed = 0;
        while let Some(&id) = self.held.front() {
            let ready = self.pods.iter_mut().filter(|pod| pod.is_ready());
            let Some(pod) = ready.min_by_key(|pod| pod.replica.engine().in_flight()) else { break };
            let index = usize::try_from(id).unwrap_or(usize::MAX);
            let Some(arrival) = self.story.arrivals.get(index) else { break };
            let request = Request::new(id, arrival.prompt_tokens, arrival.output_tokens);
            if pod.replica.submit(request, self.now).is_err() {
                self.tally.lost += 1;
            }
            self.held.pop_front();
            n_routed += 1;
        }
        n_routed
    }

    fn remove_gone(&mut self) {
        let is_gone = |pod: &Pod| pod.replica.condition() == Condition::Gone;
        let gone_ps: u64 =
            self.pods.iter().filter(|pod| is_gone(pod)).map(|pod| self.gpu_ps(pod)).sum();
        self.tally.gpu_ps += gone_ps;
        self.pods.retain(|pod| !is_gone(pod));
    }

    fn gpu_ps(&self, pod: &Pod) -> u64 {
        self.now.since(pod.created_at) * self.profile.gpus as u64
    }

    fn flaps(&self) -> u32 {
        let steps: Vec<(Time, bool)> =
            self.changes.windows(2).map(|pair| (pair[1].0, pair[1].1 > pair[0].1)).collect();
        let flaps = steps.windows(2).filter(|pair| {
            pair[0].1 != pair[1].1 && secs_from_ps(pair[1].0.since(pair[0].0)) < FLAP_S
        });
        u32::try_from(flaps.count()).unwrap_or(u32::MAX)
    }

    fn dips_held(&self) -> u32 {
        let lets_go = |(start, end): (Time, Time)| {
            let end_s = end.as_secs_f64() + DIP_LAG_S;
            self.changes.windows(2).any(|pair| {
                pair[1].1 < pair[0].1 && pair[1].0 >= start && pair[1].0.as_secs_f64() <= end_s
            })
        };
        let held = self.story.dips().into_iter().filter(|dip| !lets_go(*dip));
        u32::try_from(held.count()).unwrap_or(u32::MAX)
    }
}

impl Tally {
    fn finish(&mut self, arrival: Option<&Arrival>, reason: FinishReason, served: &Served) {
        let (Some(arrival), Some(first)) = (arrival, served.first_token) else {
            self.lost += 1;
            return;
        };
        if reason == FinishReason::Abort {
            self.lost += 1;
            return;
        }
        let gaps = u64::from(served.generated_tokens.saturating_sub(1)).max(1);
        let ttft_ps = first.since(arrival.at);
        let tpot_ps = served.last_token.since(first) / gaps;
        let is_good =
            ttft_ps <= Time::from_millis(TTFT_MS).0 && tpot_ps <= Time::from_millis(TPOT_MS).0;
        if is_good { self.good += 1 } else { self.late += 1 }
    }
}
