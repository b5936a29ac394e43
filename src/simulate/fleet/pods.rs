//! How pods come and go: they are created, get a node, load, serve, drain, and are replaced by an
//! update.
//!
//! Must not route requests.

use loadgen::engine::{Lean, PS_PER_S, Profile, Time};

use super::{CLOSED, Fleet, Pod, State};
use crate::simulate::supply::{Place, Supply};

/// Seconds after which a pod that still drains is killed (`terminationGracePeriodSeconds`) and its
/// requests are sent again. Longer than the longest answer of the reasoning traces takes.
const GRACE_PS: u64 = 900 * PS_PER_S;
/// An update has one more pod for each so many replicas (a Deployment's `maxSurge` of 25 %, and no
/// unavailable one).
const REPLICAS_PER_SURGE: u32 = 4;

impl Fleet<'_> {
    /// Lets what is due by now get its node, become ready or end.
    pub(in crate::simulate) fn change(&mut self, now: Time, supply: &mut Supply) {
        let mut again = Vec::new();
        for index in 0..self.pods.len() {
            match self.pods[index].state {
                State::Unplaced { until: Some(until) } if until <= now => self.start(index, now),
                State::Starting { until } if until <= now => {
                    self.pods[index].state = State::Ready { since: now };
                    self.load[index] = 0;
                }
                State::Draining { until } if until <= now => {
                    let fresh = Lean::new(&self.profile);
                    let engine = std::mem::replace(&mut self.pods[index].engine, fresh);
                    again.extend(engine.kill().into_iter().map(|request| request.id));
                    self.leave(index, now, supply);
                    self.next_event[index] = Time::MAX;
                }
                State::Unplaced { .. }
                | State::Starting { .. }
                | State::Ready { .. }
                | State::Draining { .. }
                | State::Gone => {}
            }
        }
        self.replace_old(now, supply);
        self.refresh_next_change();
        if self.load.iter().any(|&load| load != CLOSED) {
            let held = std::mem::take(&mut self.held);
            held.into_iter().chain(again).for_each(|id| self.route(id, now));
        } else {
            self.held.extend(again);
        }
    }

    /// Orders or ends pods until `want` are ordered.
    pub(in crate::simulate) fn scale(&mut self, want: u32, now: Time, supply: &mut Supply) {
        let before = std::mem::replace(&mut self.wanted, want);
        for _ in before..want {
            self.create(now, supply);
        }
        for _ in want..before {
            self.end_one(now, supply);
        }
        self.replace_old(now, supply);
        self.refresh_next_change();
    }

    /// From now on pods run another profile, and those that are there are replaced step by step.
    pub(in crate::simulate) fn update(&mut self, profile: Profile, now: Time, supply: &mut Supply) {
        self.profile = profile;
        self.version += 1;
        self.replace_old(now, supply);
        self.refresh_next_change();
    }

    /// The steps of every engine take what this profile says.
    pub(in crate::simulate) fn retime(&mut self, profile: Profile) {
        self.pods.iter_mut().for_each(|pod| pod.engine.retime(&profile));
        self.profile = profile;
    }

    /// Whether an update is under way.
    pub(in crate::simulate) fn is_updating(&self) -> bool {
        self.pods.iter().any(|pod| self.is_old(pod))
    }

    /// Since when its oldest pod has waited for others to leave their GPUs.
    pub(in crate::simulate) fn waits_since(&self) -> Option<Time> {
        let waiting = self.pods.iter().filter(|pod| is_waiting(pod));
        waiting.map(|pod| pod.created).min()
    }

    /// Gives a place to the pod that has waited longest, if there is one.
    pub(in crate::simulate) fn place_one(&mut self, now: Time, supply: &mut Supply) -> bool {
        let waiting = self.pods.iter().enumerate().filter(|(_, pod)| is_waiting(pod));
        let Some((index, _)) = waiting.min_by_key(|(_, pod)| pod.id) else { return false };
        self.place(index, now, supply);
        self.refresh_next_change();
        !is_waiting(&self.pods[index])
    }

    /// A pod that serves already.
    pub(super) fn create_ready(&mut self, supply: &mut Supply, now: Time) {
        let index = self.add(now);
        self.place(index, now, supply);
        if matches!(self.pods[index].state, State::Starting { .. }) {
            self.pods[index].state = State::Ready { since: now };
            self.load[index] = 0;
        }
        self.refresh_next_change();
    }

    /// Its GPUs are free from now on.
    pub(super) fn leave(&mut self, index: usize, now: Time, supply: &mut Supply) {
        self.pods[index].state = State::Gone;
        self.gone = true;
        supply.give(self.gpus(), now);
    }

    pub(super) fn refresh_next_change(&mut self) {
        let due = self.pods.iter().filter_map(|pod| match pod.state {
            State::Starting { until } | State::Draining { until } => Some(until),
            State::Unplaced { until } => until,
            State::Ready { .. } | State::Gone => None,
        });
        self.next_change = due.min().unwrap_or(Time::MAX);
    }

    fn create(&mut self, now: Time, supply: &mut Supply) {
        let index = self.add(now);
        self.place(index, now, supply);
    }

    fn add(&mut self, now: Time) -> usize {
        let pod = Pod {
            id: self.next_id,
            state: State::Unplaced { until: None },
            created: now,
            engine: Lean::new(&self.profile),
            kv_tokens: self.profile.kv_tokens() as f64,
            version: self.version,
        };
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

    fn place(&mut self, index: usize, now: Time, supply: &mut Supply) {
        match supply.take(self.gpus(), now) {
            Place::Now => self.start(index, now),
            Place::At(until) => self.pods[index].state = State::Unplaced { until: Some(until) },
            Place::Nowhere => {}
        }
    }

    fn start(&mut self, index: usize, now: Time) {
        let until = now.plus_ps(self.cold.draw_ps(&mut self.rng));
        self.pods[index].state = State::Starting { until };
    }

    /// Ends the pod that a ReplicaSet would: one that an update replaces, one that is not ready,
    /// else the youngest.
    fn end_one(&mut self, now: Time, supply: &mut Supply) {
        let rank = |pod: &Pod| {
            let is_ready = match pod.state {
                State::Unplaced { .. } | State::Starting { .. } => false,
                State::Ready { .. } => true,
                State::Draining { .. } | State::Gone => return None,
            };
            Some((self.is_old(pod), !is_ready, pod.id))
        };
        let ranked =
            self.pods.iter().enumerate().filter_map(|(index, pod)| Some((rank(pod)?, index)));
        let Some((_, index)) = ranked.max() else { return };
        self.end(index, now, supply);
    }

    fn end(&mut self, index: usize, now: Time, supply: &mut Supply) {
        self.load[index] = CLOSED;
        let pod = &mut self.pods[index];
        match pod.state {
            State::Ready { .. } if pod.engine.in_flight() > 0 => {
                pod.state = State::Draining { until: now.plus_ps(GRACE_PS) };
            }
            State::Unplaced { until: None } => pod.state = State::Gone,
            // A node that is still coming is given to whoever wants it next.
            State::Ready { .. } | State::Starting { .. } | State::Unplaced { .. } => {
                self.leave(index, now, supply);
            }
            State::Draining { .. } | State::Gone => {}
        }
    }

    /// The next steps of an update: pods that do not serve yet are replaced at once, those that do
    /// when as many as are wanted serve without them.
    fn replace_old(&mut self, now: Time, supply: &mut Supply) {
        if !self.is_updating() {
            return;
        }
        let mut serving = self.census().serving;
        for index in 0..self.pods.len() {
            let pod = &self.pods[index];
            if !self.is_old(pod) {
                continue;
            }
            match pod.state {
                State::Ready { .. } if serving > self.wanted => {
                    serving -= 1;
                    self.end(index, now, supply);
                }
                State::Starting { .. } | State::Unplaced { .. } => self.end(index, now, supply),
                State::Ready { .. } | State::Draining { .. } | State::Gone => {}
            }
        }
        let (mut old, mut new) = (0, 0);
        for pod in self.pods.iter().filter(|pod| is_live(pod)) {
            if pod.version < self.version { old += 1 } else { new += 1 }
        }
        let most = self.wanted + self.wanted.div_ceil(REPLICAS_PER_SURGE);
        while new < self.wanted && old + new < most {
            self.create(now, supply);
            new += 1;
        }
    }

    /// Whether an update has yet to replace it.
    fn is_old(&self, pod: &Pod) -> bool {
        pod.version < self.version && is_live(pod)
    }

    fn gpus(&self) -> u32 {
        u32::try_from(self.profile.gpus).unwrap_or(u32::MAX)
    }
}

fn is_live(pod: &Pod) -> bool {
    match pod.state {
        State::Unplaced { .. } | State::Starting { .. } | State::Ready { .. } => true,
        State::Draining { .. } | State::Gone => false,
    }
}

/// Waits until others leave.
fn is_waiting(pod: &Pod) -> bool {
    pod.state == State::Unplaced { until: None }
}
