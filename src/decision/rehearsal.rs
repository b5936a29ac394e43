//! What other headrooms and holds would have cost on the work that this workload has shown.
//!
//! A lane is a fleet that exists as arithmetic: it orders by the rules of level and hold with its own
//! headroom and hold, its replicas serve a cold start later, and what they cannot serve queues. All
//! lanes meet the work that was really there, whatever the real fleet did, so nothing has to be
//! tried on users and no loop is closed. Must not know the real count or the real queue.
//!
//! The cheapest lane that is late for few enough is in force. A calm workload so gives headroom
//! back, and one with bursts buys it, with a hold that spans the time between them.

use serde::{Deserialize, Serialize};

use super::headroom::{Headroom, STEP_MS, scale};
use super::level::replicas;
use super::number::{ceil_count, compact, seconds};

/// Shares of past growth that headroom covers (costmodel.md 3 has 0.8 for all), and holds, from the
/// floor on (DESIGN 4 rule 6).
const QUANTILES: [f32; 5] = [0.5, 0.65, 0.8, 0.9, 0.97];
const HOLDS_MS: [u64; 4] = [300_000, 600_000, 900_000, 1_800_000];
const LANES: usize = QUANTILES.len() * HOLDS_MS.len();
/// In force until the first half hour is rehearsed: 0.8, and the hold that releases have taught.
const ASSUMED: usize = 2;
const FIRST_STEPS: u32 = 60;
/// Costs and late work are remembered for a day.
const MEMORY_STEPS: f32 = 2_880.0;
/// Share of the work that a lane may serve late: the promise, of which a lane that holds it in
/// rehearsal has about half left on the stage.
const LATE: f32 = 0.01;
/// Where even the best lane is late about as often as the promise allows, bursts outrun every start: so
/// many times what it is late by, less the promise, may be, for what cannot be had is not worth buying.
/// On the stage the queue raises in such a burst, whatever the headroom was. Measured on flashes, six
/// seeds: at twice they attain as much and cost 5 % more; three times costs 3 % less and turns round
/// 33 times a day, for 13.
const OUTRUN: f32 = 2.5;
const PROMISED: f32 = 0.01;
/// What a share of late work beyond that weighs: 1 % as much as a fifth of the bill.
const WEIGHT: f32 = 20.0;
/// A lane has to be this much better than the one in force.
const BETTER: f32 = 0.99;
/// Span of the busiest part of a step, and the share of the patience that it may take: more than that
/// and the step counts as late, for within the quarter of a minute it is not even. At 0.3 the bursts of
/// code are seen for what they cost, and smooth ramps are not.
const BURST_S: f32 = 15.0;
const BURST_PATIENCE: f32 = 0.3;
/// Cold starts after which rule 2 has worked a queue off: one to start, half a one to serve.
const QUEUE_STARTS: f32 = 1.5;

/// All lanes, and the one in force.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Rehearsal {
    /// None before the first step: most of a large fleet may never show any work.
    lanes: Option<Box<[Lane; LANES]>>,
    /// Replica-seconds of work in the lanes' memory.
    work_s: f32,
    steps: u32,
    chosen: Option<usize>,
    /// Work and time since the last step, and the most work of a quarter of a minute in it.
    demand_s: f32,
    since_s: f32,
    peak: f32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Lane {
    /// Replica-seconds ordered, and of work served late.
    cost_s: f32,
    late_s: f32,
    /// Replica-seconds of work that wait, and for how long some have.
    backlog_s: f32,
    queued_s: f32,
}

/// Work demanded in one step, in replicas: its mean, and that of its busiest quarter of a minute.
#[derive(Debug, Clone, Copy)]
struct Demand {
    mean: f32,
    peak: f32,
}

/// What a lane has to know of the engine and its workload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// Utilisation at which a replica is full, and what waiting needs of a pool.
    pub(super) cap: f64,
    pub(super) margin: f64,
    pub(super) cold_start_ms: u64,
    pub(super) slo_ttft_s: f64,
    pub(super) min: u32,
}

impl Rehearsal {
    /// Adds what was demanded in one tick.
    pub(super) fn demanded(&mut self, work: f64, step_s: f64) {
        self.demand_s += compact(work * step_s);
        self.since_s += compact(step_s);
        self.peak = self.peak.max(compact(work));
    }

    /// Plays one step in all lanes, after `shown` has noted it.
    pub(super) fn step(&mut self, shown: &Headroom, terms: &Terms) {
        let step_s = compact(seconds(STEP_MS));
        let mean = self.demand_s / self.since_s.max(f32::MIN_POSITIVE);
        let demand = Demand { mean, peak: self.peak.max(mean) };
        (self.demand_s, self.since_s, self.peak) = (0.0, 0.0, 0.0);
        self.steps = self.steps.saturating_add(1);
        let keep = 1.0 - 1.0 / MEMORY_STEPS;
        self.work_s = self.work_s * keep + mean * step_s;
        let growths = QUANTILES.map(|share| shown.growth(share));
        let lanes = self.lanes.get_or_insert_default();
        for (hold_ms, lanes) in HOLDS_MS.into_iter().zip(lanes.chunks_mut(QUANTILES.len())) {
            let (ordered, serving) = shown.levels(hold_ms, terms.cold_start_ms);
            for (growth, lane) in growths.into_iter().zip(lanes) {
                let count = |level: f64| {
                    let need = replicas(level + growth * scale(level), terms.cap, terms.margin);
                    compact(f64::from(ceil_count(need).max(terms.min).max(1)))
                };
                lane.step(demand, count(ordered), count(serving), terms, step_s, keep);
            }
        }
        self.choose();
    }

    /// Forgets what waits: some time was not seen.
    pub(super) fn interrupt(&mut self) {
        (self.demand_s, self.since_s, self.peak) = (0.0, 0.0, 0.0);
        for lane in self.lanes.iter_mut().flat_map(|lanes| lanes.iter_mut()) {
            (lane.backlog_s, lane.queued_s) = (0.0, 0.0);
        }
    }

    fn choose(&mut self) {
        let Some(lanes) = self.lanes.as_deref() else { return };
        if self.steps < FIRST_STEPS || self.work_s <= 0.0 {
            return;
        }
        let late = |lane: &Lane| lane.late_s / self.work_s;
        let least = lanes.iter().map(late).fold(f32::INFINITY, f32::min);
        let allowed = LATE.max(OUTRUN * least - PROMISED);
        let score = |lane: &Lane| lane.cost_s * (1.0 + WEIGHT * (late(lane) - allowed).max(0.0));
        let in_force = self.chosen.and_then(|chosen| lanes.get(chosen));
        let limit = in_force.map_or(f32::INFINITY, |lane| BETTER * score(lane));
        let best = lanes.iter().map(score).enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
        self.chosen =
            best.filter(|(_, score)| *score < limit).map_or(self.chosen, |(lane, _)| Some(lane));
    }

    /// The share of past growth that headroom covers.
    pub(super) fn quantile(&self) -> f32 {
        let index = self.chosen.map_or(ASSUMED, |chosen| chosen % QUANTILES.len());
        QUANTILES.get(index).copied().unwrap_or(0.8)
    }

    /// The hold, once rehearsed.
    pub(super) fn hold_ms(&self) -> Option<u64> {
        HOLDS_MS.get(self.chosen? / QUANTILES.len()).copied()
    }
}

impl Lane {
    fn step(
        &mut self,
        demand: Demand,
        ordered: f32,
        serving: f32,
        terms: &Terms,
        step_s: f32,
        keep: f32,
    ) {
        let (cap, margin) = (compact(terms.cap), compact(terms.margin));
        let full = serving * cap;
        let burst_s = self.backlog_s + (demand.peak - full) * BURST_S;
        self.backlog_s = (self.backlog_s + (demand.mean - full) * step_s).max(0.0);
        self.queued_s = if self.backlog_s > 0.0 { self.queued_s + step_s } else { 0.0 };
        if self.queued_s > QUEUE_STARTS * compact(seconds(terms.cold_start_ms)).max(step_s) {
            (self.backlog_s, self.queued_s) = (0.0, 0.0);
        }
        // Between the plan and the full pool the late share grows from nothing to all, most of it
        // near the full one.
        let planned = cap * (1.0 - margin / serving.sqrt()).max(0.0);
        let over = (demand.mean / serving - planned) / (cap - planned).max(0.01);
        let patience_s = compact(terms.slo_ttft_s) * full;
        let late = if self.backlog_s > patience_s || burst_s > BURST_PATIENCE * patience_s {
            1.0
        } else {
            over.clamp(0.0, 1.0).powi(3)
        };
        self.cost_s = self.cost_s * keep + ordered * step_s;
        self.late_s = self.late_s * keep + late * demand.mean * step_s;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Moment;

    const TERMS: Terms =
        Terms { cap: 0.9, margin: 0.05, cold_start_ms: 120_000, slo_ttft_s: 2.0, min: 1 };

    /// Rehearses work that is a function of the step, of 30 s each.
    fn rehearsed(steps: u32, work: impl Fn(u32) -> f64) -> Rehearsal {
        let (mut shown, mut rehearsal) = (Headroom::default(), Rehearsal::default());
        for step in 0..steps {
            rehearsal.demanded(work(step), 30.0);
            let now = Moment(i64::from(step) * 30_000);
            if shown.note(work(step), TERMS.cold_start_ms, now) {
                rehearsal.step(&shown, &TERMS);
            }
        }
        rehearsal
    }

    #[test]
    fn within_the_first_half_hour_the_assumed_headroom_is_in_force_and_no_hold() {
        let rehearsal = rehearsed(59, |_| 4.0);
        assert!((rehearsal.quantile() - 0.8).abs() < 1e-6);
        assert_eq!(rehearsal.hold_ms(), None);
    }

    #[test]
    fn constant_work_costs_its_replicas_and_is_never_late() {
        let rehearsal = rehearsed(120, |_| 4.0);
        // 4 of work at 0.9 less the margin of 0.05: 4.57 replicas, so 5; an hour of them, of which
        // the fading takes 120/2880/2 = 2 %.
        for lane in rehearsal.lanes.unwrap().iter() {
            assert!((lane.cost_s / (5.0 * 3_600.0) - 0.98).abs() < 0.03, "{lane:?}");
            assert!(lane.late_s <= 0.0, "{lane:?}");
        }
    }

    #[test]
    fn work_that_comes_back_within_a_hold_buys_it() {
        // Twelve and a half minutes of 2 between as many of 8: a hold of ten lets go in each.
        let rehearsal = rehearsed(1_000, |step| if step % 50 < 25 { 2.0 } else { 8.0 });
        assert_eq!(rehearsal.hold_ms(), Some(900_000));
    }

    #[test]
    fn work_that_comes_back_later_than_any_hold_is_not_held_for() {
        // An hour of each: every lane is late after each rise, and none less than another.
        let rehearsal = rehearsed(2_880, |step| if step % 240 < 120 { 2.0 } else { 8.0 });
        assert_eq!(rehearsal.hold_ms(), Some(300_000));
    }

    #[test]
    fn where_bursts_outrun_every_start_little_is_bought_against_them() {
        let mut rehearsal = rehearsed(200, |_| 4.0);
        let work_s = rehearsal.work_s;
        let lanes = rehearsal.lanes.as_mut().unwrap();
        let cost_s = lanes[0].cost_s;
        for lane in lanes.iter_mut() {
            (lane.cost_s, lane.late_s) = (1.1 * cost_s, 0.03 * work_s);
        }
        // 2.5 · 3 % − 1 % = 6.5 % may be late: 6 % are, for a tenth less.
        (lanes[4].cost_s, lanes[4].late_s) = (cost_s, 0.06 * work_s);
        rehearsal.choose();
        assert_eq!(rehearsal.chosen, Some(4));
        // 7.5 % are too many: 1 % beyond weighs a fifth of the bill, and a tenth is saved.
        rehearsal.lanes.as_mut().unwrap()[4].late_s = 0.075 * work_s;
        rehearsal.choose();
        assert_ne!(rehearsal.chosen, Some(4));
    }

    #[test]
    fn a_lane_that_is_hardly_better_is_not_taken() {
        let mut rehearsal = rehearsed(200, |_| 4.0);
        let chosen = rehearsal.chosen;
        rehearsal.lanes.as_mut().unwrap()[7].cost_s *= 0.995;
        rehearsal.choose();
        assert_eq!(rehearsal.chosen, chosen);
        rehearsal.lanes.as_mut().unwrap()[7].cost_s *= 0.98;
        rehearsal.choose();
        assert_eq!(rehearsal.chosen, Some(7));
    }
}
