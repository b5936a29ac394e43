//! What bounds every policy from below: the clairvoyant plan and the static fleet.
//!
//! These know the future or the engine's constants; none of them is a policy that anybody could
//! run. The plan is that of a clairvoyant: replicas per ten seconds from the work that is coming.

use super::number::{ceil_count, ceil_index, floor_index};
use super::policy::{Action, Actuation, Policy, Source, View};
use super::work::{BIN_S, Work, smoothed};

/// How a plan is made from work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlanKind {
    /// From the work present, or from the work that arrives.
    pub present: bool,
    /// Bins over which the work is averaged.
    pub smooth: usize,
    /// Bins ahead whose need counts now.
    pub look: usize,
    /// Utilisation of the replicas.
    pub rho: f64,
}

impl PlanKind {
    /// All but the utilisation, as they are swept.
    pub(super) fn all() -> impl Iterator<Item = PlanKind> {
        [true, false].into_iter().flat_map(|present| {
            let windows = [(3, 1), (6, 1), (12, 1), (3, 3)];
            windows.map(|(smooth, look)| PlanKind { present, smooth, look, rho: 0.8 })
        })
    }

    /// A line that names it.
    pub(super) fn label(&self) -> String {
        let of = if self.present { "work" } else { "arrivals" };
        let PlanKind { smooth, look, rho, .. } = self;
        format!("{of}, utilisation {rho:.4}, mean of {smooth}, {look} ahead")
    }
}

/// Replicas ordered in each bin by somebody who knows the work, for starts that take `cold_s`.
#[must_use]
pub fn plan(work: &Work, kind: &PlanKind, cold_s: f64, min: u32) -> Vec<u32> {
    let series = if kind.present { &work.present } else { &work.arriving };
    let load = smoothed(series, kind.smooth);
    let need: Vec<u32> = (0..load.len())
        .map(|bin| {
            let ahead = load.iter().skip(bin).take(kind.look.max(1));
            let most = ahead.copied().fold(0.0, f64::max);
            ceil_count(most / BIN_S / kind.rho).max(min)
        })
        .collect();
    let gap = floor_index(cold_s / BIN_S);
    let kept = closed(&need, gap);
    // What is wanted in a bin is ordered one start before; what is too much goes at once.
    let lead = ceil_index(cold_s / BIN_S) + 1;
    largest_ahead(&kept, lead)
}

/// Fills gaps: a replica that is wanted again within `gap` bins, sooner than it could be started,
/// stays.
fn closed(need: &[u32], gap: usize) -> Vec<u32> {
    let mut kept = need.to_vec();
    let most = need.iter().copied().max().unwrap_or(0) as usize;
    for level in 1..=most {
        let mut last: Option<usize> = None;
        for (bin, &n) in need.iter().enumerate() {
            if (n as usize) < level {
                continue;
            }
            if let Some(last) = last
                && bin - last <= gap
            {
                let level = u32::try_from(level).unwrap_or(u32::MAX);
                kept[last..bin].iter_mut().for_each(|n| *n = (*n).max(level));
            }
            last = Some(bin);
        }
    }
    kept
}

/// The largest of each bin and the `ahead` after it.
fn largest_ahead(counts: &[u32], ahead: usize) -> Vec<u32> {
    (0..counts.len())
        .map(|bin| counts.iter().skip(bin).take(ahead + 1).copied().max().unwrap_or(0))
        .collect()
}

/// Follows a plan, bin by bin.
#[derive(Debug)]
pub(super) struct Planned {
    plan: Vec<u32>,
    started_s: Option<f64>,
}

impl Planned {
    pub(super) fn new(plan: Vec<u32>) -> Planned {
        Planned { plan, started_s: None }
    }

    /// A fleet that never changes.
    pub(super) fn fixed(replicas: u32) -> Planned {
        Planned::new(vec![replicas])
    }
}

impl Policy for Planned {
    fn tick_s(&self) -> f64 {
        if self.plan.len() > 1 { BIN_S } else { 3_600.0 }
    }

    fn source(&self) -> Source {
        Source::Direct
    }

    fn actuation(&self) -> Actuation {
        Actuation::Direct
    }

    fn memory_s(&self) -> f64 {
        0.0
    }

    fn initial(&self) -> Option<u32> {
        self.plan.first().copied()
    }

    fn tick(&mut self, view: &View<'_>) -> Action {
        let started_s = *self.started_s.get_or_insert(view.now_s);
        let bin = floor_index((view.now_s - started_s) / BIN_S + 0.5);
        let wanted = self.plan.get(bin).or_else(|| self.plan.last());
        wanted.map_or(Action::Keep, |&wanted| Action::Replicas(wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_orders_one_start_ahead_and_keeps_what_comes_back_soon() {
        let mut present = vec![10.0; 40];
        present[20] = 50.0;
        present[23] = 50.0;
        let work = Work { arriving: present.clone(), present, total_s: 0.0, full_cache_s: 0.0 };
        let kind = PlanKind { present: true, smooth: 1, look: 1, rho: 1.0 };
        let ordered = plan(&work, &kind, 30.0, 1);
        // Five replicas in bins 20 to 23, ordered 30 s + one bin before.
        let expected: Vec<u32> =
            (0..40).map(|bin| if (16..=23).contains(&bin) { 5 } else { 1 }).collect();
        assert_eq!(ordered, expected);
    }

    #[test]
    fn a_gap_longer_than_a_start_is_let_go() {
        assert_eq!(closed(&[3, 1, 1, 3, 1, 1, 1, 2], 3), [3, 3, 3, 3, 1, 1, 1, 2]);
        assert_eq!(closed(&[3, 1, 1, 3, 1, 1, 1, 2], 4), [3, 3, 3, 3, 2, 2, 2, 2]);
    }
}
