//! Rule 4: GPU utilisation is the ceiling.
//!
//! Time busy proves idleness, never load: only a counter that has been seen to follow this
//! workload's work may say how full a device is. Must not raise without demand's confirmation, nor
//! take the devices of some replicas for a proof that all are idle.

use serde::{Deserialize, Serialize};

use super::level::{Ask, Level};
use super::number::{ceil_count, compact, larger};
use super::{Gpu, GpuSample, Moment, Reason, Rule, Vote, Why};

/// Time busy below which a device does nothing.
const IDLE: f64 = 0.05;
/// Demand confirms a full device after this long.
const CONFIRMED_MS: u64 = 60_000;
/// Share of the trusted utilisation from which demand confirms a full device.
const CONFIRMED_SHARE: f64 = 0.9;
/// A counter that was lost for longer no longer stands in the way.
pub(super) const LOST_MS: u64 = 3_600_000;
/// Correlation of activity with work, squared, and relative spread of work, squared, that show
/// that the counter follows it: r ≥ 0.7 over work that varied by a tenth.
const FOLLOWS: f32 = 0.5;
const VARIED: f32 = 0.01;
/// Ticks after which, and over which, that is judged.
const MIN_TICKS: f32 = 24.0;
const MEMORY_TICKS: f32 = 2_000.0;

/// What is remembered of the devices: sums of activity against work per replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct GpuState {
    n: f32,
    x: f32,
    u: f32,
    xx: f32,
    xu: f32,
    uu: f32,
    /// Activity per token rate of a replica, in force for this tick; `None` while the counter has
    /// not been seen to follow the work.
    slope: Option<f32>,
    full_ms: u64,
    raised_at: Option<Moment>,
    /// When the devices were last read.
    seen_at: Option<Moment>,
    /// When those of all replicas were last read, else when some first were.
    whole_at: Option<Moment>,
}

/// Proof that no device works.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleGpu {
    pub(super) busy: f64,
}

/// What the devices say.
#[derive(Debug, Clone)]
pub(super) struct Ceiling {
    pub(super) vote: Vote,
    /// Replicas that keep the activity at the ceiling; 0 when that is not known.
    pub(super) carry: f64,
    /// No step down while a counter that was there is missing.
    pub(super) refuses_down: bool,
    pub(super) idle: Option<IdleGpu>,
}

impl GpuState {
    /// Takes what was learned before into force.
    pub(super) fn begin(&mut self) {
        let (n, x, u) = (self.n, self.x / self.n, self.u / self.n);
        let spread_x = self.xx / n - x * x;
        let spread_u = self.uu / n - u * u;
        let together = self.xu / n - x * u;
        let follows = n >= MIN_TICKS
            && together > 0.0
            && spread_x >= VARIED * x * x
            && together * together >= FOLLOWS * spread_x * spread_u;
        self.slope = follows.then(|| together / spread_x);
    }

    /// The vote of the devices.
    pub(super) fn ask(&self, gpu: &Gpu, ask: &Ask<'_>, level: &Level, now: Moment) -> Ceiling {
        let vote = |want, reason| Vote { rule: Rule::GpuCeiling, want, reason };
        let silent = |reason| Ceiling {
            vote: vote(None, reason),
            carry: 0.0,
            refuses_down: false,
            idle: None,
        };
        // Whoever reads them may have started anew and not know that they were there.
        let lost_for_ms = match gpu {
            Gpu::Fresh(_) => None,
            Gpu::Lost { for_ms, .. } => Some(*for_ms),
            Gpu::Absent | Gpu::Unread { .. } => self.seen_at.map(|at| now.millis_since(at)),
        };
        if let Some(for_ms) = lost_for_ms {
            let reason = Reason::GpuLost { for_ms, why: why(gpu) };
            return Ceiling { refuses_down: for_ms < LOST_MS, ..silent(reason) };
        }
        let Gpu::Fresh(sample) = gpu else {
            return silent(why(gpu).map_or(Reason::GpuAbsent, |why| Reason::GpuUnread { why }));
        };
        if sample.unread > 0 {
            let for_ms = self.whole_at.map_or(0, |at| now.millis_since(at));
            let reason =
                Reason::GpuPartial { unread: sample.unread, devices: sample.devices, for_ms };
            // What is read still keeps survivors under the ceiling; the others may work as much.
            let carry = activity(sample).and_then(|seen| self.carry(seen, ask));
            let carry = carry.unwrap_or(0.0);
            return Ceiling { carry, refuses_down: for_ms < LOST_MS, ..silent(reason) };
        }
        let most = larger(sample.busy, larger(sample.sm, sample.tensor));
        let idle = most.filter(|busy| *busy < IDLE).map(|busy| IdleGpu { busy });
        // Running requests at the engine's limit explain a queue beside a resting GPU.
        let idle = idle.filter(|_| !at_limit(ask));
        let Some(activity) = activity(sample) else {
            let reason = Reason::GpuNoInformation { activity: most.unwrap_or(0.0) };
            return Ceiling { idle, ..silent(reason) };
        };
        let ceiling = ask.spec.gpu_ceiling;
        let Some(carry) = self.carry(activity, ask) else {
            return Ceiling { idle, ..silent(Reason::GpuNoInformation { activity }) };
        };
        let confirmed = self.full_ms >= CONFIRMED_MS && confirms(ask, level);
        let cold_start_ms = ask.supply.cold_start_ms;
        let may_raise =
            self.raised_at.is_none_or(|at| at == now || now.millis_since(at) >= cold_start_ms);
        // Where little of the activity can be shared out, the regression alone would order any number.
        let in_proportion = f64::from(ask.seen.live) * activity / ceiling;
        let n = ceil_count(carry.min(in_proportion));
        let target = ask.supply.orderable(ask.supply.replace_lost(n));
        let reason = Reason::GpuCeiling { activity, ceiling, confirmed };
        let want = (activity > ceiling && confirmed && may_raise).then_some(target);
        Ceiling { vote: vote(want, reason), carry, refuses_down: false, idle }
    }

    /// Replicas, unrounded, on which the devices would run at the ceiling. Of the activity only what
    /// the regression says of the work of each is shared out among more or fewer: a device that
    /// decodes for one shows more than half of what it shows when full. `None` if no count keeps
    /// the rest under the ceiling.
    fn carry(&self, activity: f64, ask: &Ask<'_>) -> Option<f64> {
        let by_work = f64::from(self.slope?) * tokens_each(ask)?;
        let shared = by_work.min(activity);
        let left = ask.spec.gpu_ceiling - (activity - shared);
        (left > 0.0).then(|| f64::from(ask.seen.live) * shared / left)
    }

    /// Learns from one tick.
    pub(super) fn note(
        &mut self,
        gpu: &Gpu,
        ask: &Ask<'_>,
        level: &Level,
        step_ms: u64,
        raised: bool,
        now: Moment,
    ) {
        if raised {
            self.raised_at = Some(now);
        }
        let Gpu::Fresh(sample) = gpu else {
            self.full_ms = 0;
            return;
        };
        self.seen_at = Some(now);
        let whole = sample.unread == 0;
        if whole || self.whole_at.is_none() {
            self.whole_at = Some(now);
        }
        let Some(activity) = activity(sample).filter(|_| whole) else {
            self.full_ms = 0;
            return;
        };
        if activity > ask.spec.gpu_ceiling && confirms(ask, level) {
            self.full_ms = self.full_ms.saturating_add(step_ms);
        } else {
            self.full_ms = 0;
        }
        if step_ms == 0 || !ask.seen.whole {
            return;
        }
        let Some(tokens) = tokens_each(ask) else { return };
        let (x, u) = (compact(tokens), compact(activity));
        let keep = MEMORY_TICKS / (MEMORY_TICKS + 1.0);
        for (sum, value) in [
            (&mut self.n, 1.0),
            (&mut self.x, x),
            (&mut self.u, u),
            (&mut self.xx, x * x),
            (&mut self.xu, x * u),
            (&mut self.uu, u * u),
        ] {
            *sum = *sum * keep + value;
        }
    }
}

/// Why the devices cannot be read.
fn why(gpu: &Gpu) -> Option<Why> {
    match gpu {
        Gpu::Unread { why } => Some(*why),
        Gpu::Lost { why, .. } => *why,
        Gpu::Absent | Gpu::Fresh(_) => None,
    }
}

/// The best counter of real activity that there is.
fn activity(sample: &GpuSample) -> Option<f64> {
    let counter = sample.sm.or(sample.tensor).or(sample.dram);
    counter.filter(|activity| (0.0..=1.0).contains(activity))
}

/// Tokens, else requests, that each replica finishes per second.
fn tokens_each(ask: &Ask<'_>) -> Option<f64> {
    let rates = &ask.seen.rates;
    let tokens = rates.generated.get().or_else(|| rates.finished.get())?;
    (ask.seen.live > 0).then(|| tokens / f64::from(ask.seen.live))
}

fn at_limit(ask: &Ask<'_>) -> bool {
    let limit = ask.seen.running_limit;
    limit.zip(ask.seen.running).is_some_and(|(limit, running)| running >= 0.9 * limit)
}

/// Demand agrees that the devices are full.
fn confirms(ask: &Ask<'_>, level: &Level) -> bool {
    let waits = ask.seen.waiting.is_some_and(|waiting| waiting > 0.0);
    let works = level
        .work
        .zip(level.rho)
        .is_some_and(|(work, rho)| work >= CONFIRMED_SHARE * rho * f64::from(ask.seen.live.max(1)));
    waits || works
}
