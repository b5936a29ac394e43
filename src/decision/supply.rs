//! What is ordered, ready and on its way, and how long a start takes on this workload.
//!
//! Must not look at demand: an order is a fact here, whatever it was placed for.

use serde::{Deserialize, Serialize};

use super::number::seconds;
use super::{Mode, Moment, Replicas, Spec};

/// Time from a replica's creation to ready that is assumed until one was seen, milliseconds
/// (DESIGN 4, terms).
pub const COLD_START_UNSEEN_MS: u64 = 180_000;
/// Shortest and longest start that is believed; outside it something else was measured.
const COLD_START_RANGE_MS: (u64, u64) = (5_000, 3_600_000);
/// Shortest time in which waiting work shall be cleared (DESIGN 4 rule 2).
const HORIZON_MIN_MS: u64 = 30_000;
/// How long an own order counts before the scale target shows it: KEDA polls every 30 s and the
/// HPA every 15 s by default, so a followed order is in the spec within a minute.
const ORDER_TRUST_MS: u64 = 60_000;

/// Orders placed, starts under way and starts seen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SupplyState {
    order: Option<Order>,
    starting: Option<Starting>,
    cold_start_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Order {
    to: u32,
    at: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Starting {
    count: u32,
    since: Moment,
}

/// The supply side of one tick.
#[derive(Debug, Clone, Copy)]
pub(super) struct Supply {
    /// The scale target's spec.
    pub(super) ordered: u32,
    /// The count in force: `ordered`, or an own order that the target does not show yet.
    pub(super) base: u32,
    /// Replicas serving, surge pods of a rollout left out.
    pub(super) ready: u32,
    /// Replicas on their way, own young orders included.
    pub(super) starting: u32,
    /// Of these, the ones that are still expected to come.
    pub(super) trusted: u32,
    /// How long the trusted ones have been starting, milliseconds.
    pub(super) starting_for_ms: u64,
    /// Replicas that cannot be placed or start again and again.
    pub(super) hopeless: u32,
    /// Expected time from an order to a serving replica, milliseconds.
    pub(super) cold_start_ms: u64,
}

impl SupplyState {
    /// Expected time from an order to a serving replica.
    pub(super) fn cold_start_ms(&self) -> u64 {
        self.cold_start_ms.unwrap_or(COLD_START_UNSEEN_MS)
    }

    /// Learns from one start: up fast, down slowly, because too short an expectation costs users
    /// and too long a one only patience.
    pub(super) fn started(&mut self, took_ms: u64) {
        let took_ms = took_ms.clamp(COLD_START_RANGE_MS.0, COLD_START_RANGE_MS.1);
        self.cold_start_ms = Some(match self.cold_start_ms {
            None => took_ms,
            Some(known) if took_ms > known => known + (took_ms - known) / 2,
            Some(known) => known - (known - took_ms) / 5,
        });
    }

    /// The supply side of this tick.
    pub(super) fn look(
        &mut self,
        spec: &Spec,
        replicas: &Replicas,
        ordered: u32,
        now: Moment,
    ) -> Supply {
        let cold_start_ms = self.cold_start_ms();
        let young = match spec.mode {
            Mode::Act => self.order.filter(|order| now.millis_since(order.at) < ORDER_TRUST_MS),
            Mode::Shadow => None,
        };
        let base = young.map_or(ordered, |order| order.to.max(ordered));
        let ready = replicas.ready.min(ordered);
        let hopeless = replicas.unschedulable.saturating_add(replicas.crash_looping);
        let starting = (base - ready).saturating_sub(hopeless);
        self.starting = match self.starting {
            _ if starting == 0 => None,
            // A change in number is progress: something came, or something new was ordered.
            Some(known) if known.count == starting => Some(known),
            Some(_) | None => Some(Starting { count: starting, since: now }),
        };
        let starting_for_ms = self.starting.map_or(0, |known| now.millis_since(known.since));
        let trusted = if starting_for_ms <= 2 * cold_start_ms { starting } else { 0 };
        Supply { ordered, base, ready, starting, trusted, starting_for_ms, hopeless, cold_start_ms }
    }

    /// Remembers that the rules themselves asked for `to` replicas, beyond the spec.
    pub(super) fn ordered(&mut self, to: u32, supply: &Supply, now: Moment) {
        let known = self.order.map_or(0, |order| order.to);
        if to > supply.ordered && (to >= known || supply.base == supply.ordered) {
            self.order = Some(Order { to, at: now });
        } else if known <= supply.ordered {
            self.order = None;
        }
    }
}

impl Supply {
    /// What an absolute target becomes when replicas that were ordered for it no longer count as
    /// coming: they are ordered once more, at most as many as are short.
    pub(super) fn replace_lost(&self, target: u32) -> u32 {
        let lost = self.starting - self.trusted;
        target.saturating_add(lost.min(target.saturating_sub(self.ready)))
    }

    /// Replicas' worth of serving time, in replica-seconds, that the trusted starting replicas
    /// will have given by the time at which an order placed now serves.
    pub(super) fn head_start_s(&self) -> f64 {
        f64::from(self.trusted) * seconds(self.starting_for_ms.min(self.cold_start_ms))
    }

    /// The time in which waiting work shall be cleared, milliseconds.
    pub(super) fn horizon_ms(&self) -> u64 {
        self.cold_start_ms.max(HORIZON_MIN_MS)
    }

    /// The same without those that sleep, of the ready ones: a rule that reads this takes them for no
    /// capacity, and its votes are counts of the others.
    pub(super) fn awake(&self, asleep: u32) -> Supply {
        let asleep = asleep.min(self.ready);
        Supply {
            ordered: self.ordered - asleep,
            base: self.base - asleep,
            ready: self.ready - asleep,
            ..*self
        }
    }

    /// `target`, but nothing beyond the spec while replicas cannot start.
    pub(super) fn orderable(&self, target: u32) -> u32 {
        if self.hopeless > 0 { target.min(self.ordered) } else { target }
    }
}
