//! The GPUs that pods can be placed on: those that stand, those that have to be provisioned, and a
//! budget that several workloads may share.
//!
//! Must not know whose pods they are.

use std::collections::VecDeque;

use loadgen::engine::{PS_PER_S, Time, ps_from_secs};

/// Seconds that a provisioned node stays without a pod (Cluster Autoscaler's
/// `scale-down-unneeded-time`).
const KEPT_PS: u64 = 600 * PS_PER_S;

/// Where GPUs come from.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Nodes {
    /// GPUs of nodes that are always there; `None` for as many as anybody wants.
    pub standing: Option<u32>,
    /// Seconds until a node beyond these is there.
    pub start_s: f64,
    /// Most GPUs at once, of all workloads together; `None` for no limit.
    pub budget: Option<u32>,
}

/// Where a pod can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// On GPUs that are free.
    Now,
    /// On a node that is there then.
    At(Time),
    /// Nowhere, until others leave.
    Nowhere,
}

/// GPUs in use and free.
#[derive(Debug)]
pub(super) struct Supply {
    nodes: Nodes,
    /// GPUs that exist or are coming.
    total: u32,
    /// Since when each free GPU has been so, oldest first.
    free: VecDeque<Time>,
    /// Whether GPUs have become free since somebody last asked.
    freed: bool,
}

impl Supply {
    pub(super) fn new(nodes: Nodes, start: Time) -> Supply {
        let standing = nodes.standing.or(nodes.budget).unwrap_or(0);
        let total = nodes.budget.map_or(standing, |budget| standing.min(budget));
        let free = (0..total).map(|_| start).collect();
        Supply { nodes, total, free, freed: false }
    }

    /// Takes that many GPUs, at once or from a node that is ordered.
    pub(super) fn take(&mut self, gpus: u32, now: Time) -> Place {
        if self.is_endless() {
            return Place::Now;
        }
        self.let_go(now);
        let n_free = self.free.len();
        if n_free >= gpus as usize {
            // The last to become free first, so that others can be given back.
            self.free.truncate(n_free - gpus as usize);
            return Place::Now;
        }
        let within = |total: u32| self.nodes.budget.is_none_or(|budget| total <= budget);
        let provisions = self.nodes.standing.is_some();
        match self.total.checked_add(gpus).filter(|&total| provisions && within(total)) {
            Some(total) => {
                self.total = total;
                Place::At(now.plus_ps(ps_from_secs(self.nodes.start_s)))
            }
            None => Place::Nowhere,
        }
    }

    /// Gives that many back.
    pub(super) fn give(&mut self, gpus: u32, now: Time) {
        if !self.is_endless() {
            self.free.extend((0..gpus).map(|_| now));
            self.freed = true;
        }
    }

    /// Whether GPUs have become free since the last call.
    pub(super) fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    fn is_endless(&self) -> bool {
        self.nodes.standing.is_none() && self.nodes.budget.is_none()
    }

    /// Nodes that nobody has used for long go, but for those that always stand.
    fn let_go(&mut self, now: Time) {
        let standing = self.nodes.standing.unwrap_or(u32::MAX);
        while self.total > standing
            && self.free.front().is_some_and(|since| now.since(*since) >= KEPT_PS)
        {
            self.free.pop_front();
            self.total -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Time {
        Time::from_millis(s * 1_000)
    }

    #[test]
    fn without_limits_there_is_always_room() {
        let mut supply = Supply::new(Nodes::default(), at(0));
        assert!((0..1_000).all(|_| supply.take(8, at(1)) == Place::Now));
        supply.give(8, at(2));
        assert!(!supply.take_freed(), "nobody can have waited");
    }

    #[test]
    fn what_stands_is_taken_first_then_nodes_are_ordered_up_to_the_budget() {
        let nodes = Nodes { standing: Some(4), start_s: 300.0, budget: Some(6) };
        let mut supply = Supply::new(nodes, at(0));
        let taken: Vec<Place> = (0..4).map(|_| supply.take(2, at(10))).collect();
        assert_eq!(taken, [Place::Now, Place::Now, Place::At(at(310)), Place::Nowhere]);
        supply.give(2, at(400));
        assert!(supply.take_freed() && !supply.take_freed());
        assert_eq!(supply.take(2, at(400)), Place::Now);
    }

    #[test]
    fn a_node_that_nobody_uses_goes_after_ten_minutes_and_one_that_stands_stays() {
        let nodes = Nodes { standing: Some(1), start_s: 60.0, budget: None };
        let mut supply = Supply::new(nodes, at(0));
        assert_eq!(supply.take(1, at(0)), Place::Now);
        assert_eq!(supply.take(1, at(0)), Place::At(at(60)));
        supply.give(2, at(100));
        assert_eq!(supply.take(2, at(699)), Place::Now, "both are still there");
        supply.give(2, at(800));
        assert_eq!(supply.take(1, at(1_400)), Place::Now);
        assert_eq!(supply.take(1, at(1_400)), Place::At(at(1_460)));
    }

    #[test]
    fn a_budget_alone_is_a_fleet_that_stands() {
        let mut supply = Supply::new(Nodes { budget: Some(2), ..Nodes::default() }, at(0));
        let taken: Vec<Place> = (0..3).map(|_| supply.take(1, at(0))).collect();
        assert_eq!(taken, [Place::Now, Place::Now, Place::Nowhere]);
    }
}
