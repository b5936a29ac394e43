//! Rule 5: how many replicas a load needs so that chance alone makes nobody wait too long.
//!
//! Requests come in knots, and prompts differ. On one replica the knot waits; on many it spreads. So
//! a pool of n is planned at `cap · (1 − margin / √n)`: the more replicas, the less each keeps free
//! (square-root staffing). The margin follows from the prompts' price, and the times to the first
//! token that are seen correct it. Must not learn from backlogs or starts: what is late then is late
//! for want of replicas, not for want of margin.

use serde::{Deserialize, Serialize};

use super::{Ask, Level};
use crate::decision::number::seconds;

/// Margin per share of the slack that the mean prompt takes. Measured on the engine simulator with
/// Poisson arrivals: at most 1 % late up to 0.81, 0.90 and 0.91 of capacity for chat on 1, 4 and 12
/// replicas, up to 0.78 and 0.86 for code on 4 and 12. This is half of what holds there at a
/// constant rate: most of the time headroom and whole replicas leave more free than the margin.
const MARGIN: f64 = 0.8;
/// Of the slack, the mean wait at which the plan is full. Waits are about exponential: 1 % exceed
/// 4.6 times the mean, and those of a plan that is seldom full may be twice as long.
const FULL_WAIT: f64 = 0.5;
/// A mean wait beyond this share of the slack is a backlog's.
const LATE_SHARE: f64 = 0.5;
/// Share of the planned utilisation below which waiting says little about a full pool.
const MIN_USED: f64 = 0.4;
/// Utilisation at which a full pool runs, for scaling a wait seen at another one.
const FULL_USED: f64 = 0.85;
/// What is seen counts like the mean of half an hour.
const MEMORY_S: f64 = 1_800.0;
/// What a first observation counts like.
const FIRST_S: f64 = 60.0;
/// How far the margin may be corrected. At a margin of 0.1, which is that of code, the capacity of
/// one replica moves by 0.9 to 1.05 times; more is not waiting but another engine (DESIGN: ±15 %).
const CORRECTION: (f64, f64) = (0.25, 1.5);

/// The margin of a mean prompt: seconds that it takes alone, of the seconds that it may take.
pub(super) fn margin(ask: &Ask<'_>, own_s: f64) -> f64 {
    MARGIN * own_s / slack_s(ask, own_s)
}

/// Replicas that carry a load, unrounded, each able to `cap`, less the margin of a pool of that
/// size.
pub(in crate::decision) fn replicas(load: f64, cap: f64, margin: f64) -> f64 {
    if load <= 0.0 {
        return 0.0;
    }
    // n·cap·(1 − margin/√n) = load, solved for √n.
    let root = f64::midpoint(margin, (margin * margin + 4.0 * load / cap).sqrt());
    root * root
}

/// Seconds that a request may wait before its own prompt is computed. A long prompt has twice its own
/// time (DESIGN 10).
pub(super) fn slack_s(ask: &Ask<'_>, own_s: f64) -> f64 {
    (seconds(ask.spec.slo_ttft_ms) - own_s).max(own_s).max(1e-3)
}

/// The share of requests that wait for longer than they may, where the mean time to the first token
/// is this: a replica is busy for the share `busy`, and who has to wait waits exponentially.
pub(super) fn late_share(ask: &Ask<'_>, own_s: f64, ttft_s: f64, busy: f64) -> f64 {
    let wait_s = (ttft_s - own_s).max(0.0);
    let busy = busy.min(1.0);
    if wait_s > 0.0 { busy * (-busy * slack_s(ask, own_s) / wait_s).exp() } else { 0.0 }
}

/// What waiting has shown of the margin.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Feedback {
    correction: f64,
    seen_s: f64,
}

impl Default for Feedback {
    fn default() -> Self {
        Feedback { correction: 1.0, seen_s: 0.0 }
    }
}

impl Feedback {
    /// Factor on the margin.
    pub(super) fn correction(&self) -> f64 {
        self.correction
    }

    /// Learns from a minute of steady replicas without a backlog.
    pub(super) fn note(&mut self, ask: &Ask<'_>, level: &Level, step_s: f64) {
        let Some((price, work)) = level.price.as_ref().zip(level.work) else { return };
        let Some(minute) = ask.minute else { return };
        let Some(ttft_s) = minute.ttft_s else { return };
        let n = f64::from(ask.seen.live.max(1));
        let busy = work / n;
        let used = (busy / price.cap).min(0.98);
        let own_s = price.prompt_each_s + price.step_s / (1.0 - busy.min(0.95));
        // The time that an empty replica takes for the prompt is not lateness.
        let waited = (ttft_s - own_s).max(0.0) / slack_s(ask, own_s);
        let is_used = busy >= MIN_USED * level.rho.unwrap_or(price.cap);
        if !is_used || price.margin <= 0.0 || minute.waiting() >= n || waited > LATE_SHARE {
            return;
        }
        let wait = waited / FULL_WAIT;
        // Waits grow as used / (1 − used): scaled to a full pool, whose free share is the margin.
        let margin = n.sqrt() * (1.0 - used) * wait * FULL_USED / used;
        let share = step_s / (step_s + MEMORY_S.min(self.seen_s + FIRST_S));
        self.seen_s = MEMORY_S.min(self.seen_s + step_s);
        let seen = (margin / price.margin).min(2.0 * CORRECTION.1);
        self.correction += share * (seen - self.correction);
        self.correction = self.correction.clamp(CORRECTION.0, CORRECTION.1);
    }
}
