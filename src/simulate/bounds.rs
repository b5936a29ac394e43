//! The references of one workload: the cheapest clairvoyant plan at each bar, the smallest static
//! fleet, the fluid bound.
//!
//! Must not know the policies that they are held against.

use loadgen::engine::Profile;

use super::outcome::Outcome;
use super::parallel;
use super::reference::{PlanKind, Planned, plan};
use super::run::{Setup, run};
use super::scenario::Scenario;
use super::work::{Prices, Work};
use super::workload::Workload;

/// Utilisations of the coarse sweep, ascending.
const RHOS: [f64; 14] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05];
/// Steps of the fine sweep around the best of the coarse one.
const FINE_STEPS: [f64; 5] = [-0.0125, 0.0125, 0.025, 0.0375, 0.05];

/// One run of a reference.
#[derive(Debug, Clone)]
pub struct Point {
    /// Which.
    pub setting: String,
    /// Its result.
    pub outcome: Outcome,
}

/// What bounds every policy on a workload.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Every plan that was run.
    pub plans: Vec<Point>,
    /// The smallest fleet that attains the bar, if one does.
    pub fixed: Option<Point>,
    /// Replica-hours of all work at full utilisation.
    pub fluid_hours: f64,
}

impl Bounds {
    /// The cheapest plan that attains a share.
    #[must_use]
    pub fn clairvoyant(&self, attainment: f64) -> Option<&Point> {
        let attains = self.plans.iter().filter(|point| point.outcome.attainment() >= attainment);
        attains.min_by(|a, b| a.outcome.replica_hours().total_cmp(&b.outcome.replica_hours()))
    }
}

/// Finds the references for this bar: coarse, then fine.
pub(super) fn find(
    setup: &Setup<'_>,
    work: &Work,
    bar: f64,
    done: &(impl Fn(usize) + Sync),
) -> Bounds {
    let prices = setup.scenario.over_time(setup.profile, setup.workload.end, Prices::least);
    let least = Work::of(setup.workload, &prices);
    let fluid_hours = least.total_s / 3_600.0;
    let searched = parallel::map(&jobs(), parallel::cores(), done, |job| match job {
        Job::Plans(kind) => search_plans(setup, work, kind, bar),
        Job::Fixed => search_fixed(setup, bar).into_iter().collect(),
    });
    let mut plans = Vec::new();
    let mut fixed = None;
    for (job, points) in jobs().iter().zip(searched) {
        match job {
            Job::Plans(_) => plans.extend(points),
            Job::Fixed => fixed = points.into_iter().next().map(|(_, point)| point),
        }
    }
    let best = plans
        .iter()
        .filter(|(_, point)| point.outcome.attainment() >= bar)
        .min_by(|(_, a), (_, b)| a.outcome.replica_hours().total_cmp(&b.outcome.replica_hours()))
        .and_then(|(kind, _)| *kind);
    if let Some(best) = best {
        plans.extend(refine(setup, work, best, &plans, done));
    }
    let plans = plans.into_iter().map(|(_, point)| point).collect();
    Bounds { plans, fixed, fluid_hours }
}

/// Replicas that a run of this workload may have: 1.25 times what its busiest minute needs.
#[must_use]
pub(crate) fn default_max(work: &Work) -> u32 {
    super::number::ceil_count(1.25 * work.peak_need()).max(1)
}

/// The work of a workload on a profile and what becomes of it.
#[must_use]
pub(crate) fn work_of(workload: &Workload, profile: &Profile, scenario: &Scenario) -> Work {
    Work::of(workload, &scenario.over_time(profile, workload.end, Prices::loaded))
}

enum Job {
    Plans(PlanKind),
    Fixed,
}

fn jobs() -> Vec<Job> {
    std::iter::once(Job::Fixed).chain(PlanKind::all().map(Job::Plans)).collect()
}

type Found = (Option<PlanKind>, Point);

/// The largest utilisation of the coarse sweep at which this kind of plan attains the bar, and the
/// runs on the way there.
fn search_plans(setup: &Setup<'_>, work: &Work, kind: &PlanKind, bar: f64) -> Vec<Found> {
    let mut runs = Vec::new();
    // Attainment falls as utilisation rises, so half of the rest can be left out each time.
    let (mut attains, mut fails) = (None, RHOS.len());
    let mut middle = RHOS.len() / 2;
    while attains.map_or(0, |index: usize| index + 1) < fails {
        let kind = PlanKind { rho: RHOS[middle], ..*kind };
        let point = run_plan(setup, work, &kind);
        if point.outcome.attainment() >= bar {
            attains = Some(middle);
        } else {
            fails = middle;
        }
        runs.push((Some(kind), point));
        middle = usize::midpoint(attains.map_or(0, |index| index + 1), fails);
        middle = middle.min(fails.saturating_sub(1));
    }
    runs
}

/// Finer steps around the best, and the rest of its coarse sweep for the other bars.
fn refine(
    setup: &Setup<'_>,
    work: &Work,
    best: PlanKind,
    known: &[Found],
    done: &(impl Fn(usize) + Sync),
) -> Vec<Found> {
    let fine = FINE_STEPS.iter().map(|step| best.rho + step);
    let mut kinds: Vec<PlanKind> =
        RHOS.iter().copied().chain(fine).map(|rho| PlanKind { rho, ..best }).collect();
    let is_known = |kind: &PlanKind| known.iter().any(|(known, _)| known.as_ref() == Some(kind));
    kinds.retain(|kind| !is_known(kind));
    let points = parallel::map(&kinds, parallel::cores(), done, |kind| run_plan(setup, work, kind));
    kinds.into_iter().map(Some).zip(points).collect()
}

fn run_plan(setup: &Setup<'_>, work: &Work, kind: &PlanKind) -> Point {
    let cold = setup.cold.certain();
    let plan = plan(work, kind, cold.whole_s(), setup.min.max(1));
    let setup = Setup { cold, ..*setup };
    Point { setting: kind.label(), outcome: run(&setup, &mut Planned::new(plan)) }
}

fn run_fixed(setup: &Setup<'_>, replicas: u32) -> Point {
    let outcome = run(setup, &mut Planned::fixed(replicas));
    Point { setting: format!("{replicas} replicas"), outcome }
}

/// The smallest static fleet that attains the bar.
fn search_fixed(setup: &Setup<'_>, bar: f64) -> Option<Found> {
    let (mut fails, mut attains) = (setup.min.max(1) - 1, setup.max + 1);
    let mut best = None;
    while fails + 1 < attains {
        let middle = u32::midpoint(fails, attains);
        let point = run_fixed(setup, middle);
        if point.outcome.attainment() >= bar {
            attains = middle;
            best = Some((None, point));
        } else {
            fails = middle;
        }
    }
    best
}
