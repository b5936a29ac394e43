//! Rule 6: the ghost score lets go of what evidence says is not needed.
//!
//! Must not raise anything, and knows neither human approval nor the fleet's own ghost score.

use serde::{Deserialize, Serialize};

use super::evidence::{COVERED, Evidence};
use super::level::{Band, Level};
use super::supply::Supply;
use super::{LevelSource, Moment, Part, Reason, Rule, Spec, Vote};

/// Evidence needed for a release, its floor and its cap, and by how much it adapts.
const HOLD_MS: u64 = 600_000;
const HOLD_RANGE_MS: (u64, u64) = (300_000, 3_600_000);
const CLEAN_RELEASES: u8 = 3;

/// The ghost score of the surplus, 0..100: how sure it is that the surplus is not needed.
///
/// `100 × min(1, evidence / hold) × min(1, coverage / 0.9)`.
///
/// ```
/// // 480 of 600 s of evidence, 72 % of the ticks fresh: 100 · 0.8 · (0.72/0.9 = 0.8) = 64.
/// assert!((ghostscaler::decision::score(480_000, 600_000, 0.72) - 64.0).abs() < 1e-9);
/// ```
#[must_use]
pub fn score(evidence_ms: u64, hold_ms: u64, coverage: f64) -> f64 {
    let evidence = (evidence_ms as f64 / hold_ms.max(1) as f64).min(1.0);
    100.0 * evidence * (coverage / COVERED).clamp(0.0, 1.0)
}

/// The hold and how releases went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Ghost {
    learned_hold_ms: u64,
    /// In force for this tick.
    hold_ms: u64,
    clean: u8,
    /// The last release whose outcome is open.
    open: Option<Release>,
    /// The last step where only one at a time is allowed: to which count, at which evidence.
    step: Option<(u32, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Release {
    to: u32,
    at: Moment,
}

impl Default for Ghost {
    fn default() -> Self {
        Ghost { learned_hold_ms: HOLD_MS, hold_ms: HOLD_MS, clean: 0, open: None, step: None }
    }
}

/// What may be released.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Surplus {
    /// The smallest count that evidence supports.
    pub(super) to: u32,
    /// Largest need of the hold behind it.
    pub(super) largest_need: f64,
    pub(super) evidence_ms: u64,
    /// A single step beyond the capacity seen so far.
    pub(super) trial: bool,
    /// Only one replica a hold.
    pub(super) stepwise: bool,
}

impl Ghost {
    /// Sets the hold in force, by preference the one that a rehearsal found best, and closes a release
    /// that was not wanted back.
    pub(super) fn begin(
        &mut self,
        spec: &Spec,
        rehearsed_ms: Option<u64>,
        cold_start_ms: u64,
        now: Moment,
    ) {
        let learned_ms = rehearsed_ms.unwrap_or(self.learned_hold_ms);
        self.hold_ms = spec.ghost_hold_ms.unwrap_or(learned_ms);
        if !spec.has(Part::Hold) {
            self.hold_ms = 0;
        }
        let window_ms = self.regret_window_ms(cold_start_ms);
        if self.open.is_some_and(|release| now.millis_since(release.at) > window_ms) {
            self.open = None;
            self.clean += 1;
            if self.clean == CLEAN_RELEASES {
                self.clean = 0;
                self.learned_hold_ms = (self.learned_hold_ms * 2 / 3).max(HOLD_RANGE_MS.0);
            }
        }
    }

    pub(super) fn hold_ms(&self) -> u64 {
        self.hold_ms
    }

    fn regret_window_ms(&self, cold_start_ms: u64) -> u64 {
        (2 * self.hold_ms).max(10 * cold_start_ms)
    }

    /// The smallest count below the spec with score 100, if there is one.
    pub(super) fn surplus(
        &self,
        evidence: &Evidence,
        level: &Level,
        band: &Band,
        supply: &Supply,
    ) -> Option<Surplus> {
        if !evidence.is_covered() || supply.base > supply.ordered {
            return None;
        }
        let hold_ms = self.hold_ms;
        if evidence.idle_ms() >= hold_ms && supply.ordered > 1 {
            let evidence_ms = evidence.idle_ms();
            let (trial, stepwise) = (false, false);
            return Some(Surplus { to: 1, largest_need: 0.0, evidence_ms, trial, stepwise });
        }
        let learned = match level.source {
            LevelSource::CostModel | LevelSource::Saturation => true,
            LevelSource::InFlight | LevelSource::Unlearned => false,
        };
        let one_less = supply.ordered.checked_sub(1).filter(|count| *count > 0)?;
        let largest_need = evidence.largest_need(&evidence.strict, hold_ms)?;
        let carried = band.floor(largest_need).max(1);
        if carried < supply.ordered {
            let to = if learned {
                carried
            } else {
                carried.max(self.next_step(evidence, hold_ms, one_less))
            };
            let evidence_ms = evidence.for_count(to, hold_ms);
            let surplus =
                Surplus { to, largest_need, evidence_ms, trial: false, stepwise: !learned };
            return (to < supply.ordered).then_some(surplus);
        }
        let largest_need = evidence.largest_need(&evidence.trial, 2 * hold_ms)?;
        let to = one_less.max(self.next_step(evidence, 2 * hold_ms, one_less));
        let carried = band.floor(largest_need) <= to && to < supply.ordered;
        (learned && carried).then_some(Surplus {
            to,
            largest_need,
            evidence_ms: 2 * hold_ms,
            trial: true,
            stepwise: true,
        })
    }

    /// The smallest count that single steps allow: the last one stands until `span_ms` of evidence
    /// have passed since.
    fn next_step(&self, evidence: &Evidence, span_ms: u64, one_less: u32) -> u32 {
        match self.step {
            Some((to, at_ms)) if evidence.clock_ms() - at_ms < span_ms => to,
            Some(_) | None => one_less,
        }
    }

    /// Remembers that a release was decided. What only a backlog had asked for says nothing of the
    /// hold when it is wanted back.
    pub(super) fn released(&mut self, surplus: &Surplus, evidence: &Evidence, now: Moment) {
        if !evidence.was_for_a_backlog(surplus.to, self.hold_ms) {
            self.open = Some(Release { to: surplus.to, at: now });
        }
        self.step = surplus.stepwise.then_some((surplus.to, evidence.clock_ms()));
    }

    /// Remembers that the rules asked for more than was kept: if that is what was let go not long
    /// ago, the hold was too short.
    pub(super) fn raised(&mut self, to: u32, cold_start_ms: u64, now: Moment) {
        let window_ms = self.regret_window_ms(cold_start_ms);
        if self.open.is_some_and(|r| to > r.to && now.millis_since(r.at) <= window_ms) {
            self.open = None;
            self.clean = 0;
            self.learned_hold_ms = (self.learned_hold_ms * 3 / 2).min(HOLD_RANGE_MS.1);
        }
    }

    /// The vote: the surplus, or how far the evidence for one replica fewer is.
    pub(super) fn vote(
        &self,
        surplus: Option<&Surplus>,
        evidence: &Evidence,
        supply: &Supply,
    ) -> Vote {
        let hold_ms = self.hold_ms;
        if let Some(surplus) = surplus {
            let Surplus { to, evidence_ms, trial, .. } = *surplus;
            let reason = Reason::Released { evidence_ms, hold_ms, trial };
            return Vote { rule: Rule::Ghost, want: Some(to), reason };
        }
        let Some(one_less) = supply.ordered.checked_sub(1).filter(|count| *count > 0) else {
            return Vote { rule: Rule::Ghost, want: None, reason: Reason::Silent };
        };
        let evidence_ms = evidence.for_count(one_less, hold_ms);
        let coverage = evidence.coverage();
        let score = score(evidence_ms, hold_ms, coverage);
        let reason = Reason::Evidence { score, evidence_ms, hold_ms, coverage };
        Vote { rule: Rule::Ghost, want: Some(supply.ordered), reason }
    }
}
