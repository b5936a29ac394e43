//! Why a rule said what it said, as data: the closed vocabulary of logs, API and `explain`.
//!
//! Must not hold text: `text` renders it when someone looks.

mod text;

use serde::{Deserialize, Serialize};

use super::Why;

/// Why a rule said what it said, with the numbers it used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Reason {
    /// The rule had nothing to say.
    Silent,
    /// Rule 1: the level by work.
    Work {
        /// Work demanded, replica-seconds per second.
        work: f64,
        /// Learned headroom, in the same unit.
        headroom: f64,
        /// Utilisation trusted of a replica.
        rho: f64,
        /// Replicas needed, unrounded.
        need: f64,
    },
    /// Rule 1: the level by in-flight requests.
    InFlight {
        /// In-flight requests: the mean of the last minute, and no more than there are now.
        in_flight: f64,
        /// In-flight requests that one replica should carry.
        per_replica: f64,
        /// Replicas needed, unrounded.
        need: f64,
    },
    /// Rule 1: nothing learned yet, so in-flight requests only hold.
    Learning {
        /// Usable observations of the cost model so far.
        rows: f64,
    },
    /// Rule 2: waiting work that present capacity cannot clear in time.
    Backlog {
        /// Requests waiting.
        waiting: f64,
        /// Their work when an order placed now could serve, replica-seconds.
        work_s: f64,
        /// Time in which it shall be cleared, milliseconds.
        horizon_ms: u64,
    },
    /// Rule 2 before the level is learned.
    Waiting {
        /// Requests waiting.
        waiting: f64,
        /// Of these, what the ready replicas finish within the horizon.
        cleared: f64,
        /// Running requests per ready replica; 0 when not known, then one replica is added.
        per_replica: f64,
    },
    /// Rule 2: waiting requests that present capacity clears by itself.
    Clears {
        /// Requests waiting.
        waiting: f64,
    },
    /// Rule 2: a queue that does not move; more replicas do not cure it.
    StuckQueue {
        /// Requests waiting on replicas whose counters stand still.
        waiting: f64,
        /// How many replicas.
        replicas: u32,
    },
    /// Rule 2: some replicas wait while others idle; one more at most.
    Imbalance {
        /// Requests waiting.
        waiting: f64,
        /// Replicas without work.
        idle: u32,
    },
    /// Rule 2: the queue stands while the GPUs idle and no engine limit explains it.
    NotServing {
        /// Requests waiting.
        waiting: f64,
        /// GPU time busy, 0..1.
        busy: f64,
    },
    /// Rule 3: KV caches are at their limit.
    KvPressure {
        /// Sum of KV use over replicas.
        used: f64,
        /// Preemptions per second.
        preemptions: f64,
    },
    /// Rule 3: KV caches hold what they have to.
    KvFits {
        /// Sum of KV use over replicas.
        used: f64,
    },
    /// Rule 4: DCGM is not read, or has never named a device of this workload.
    GpuAbsent,
    /// Rule 4: DCGM has never been seen, since it cannot be read.
    GpuUnread {
        /// Why.
        why: Why,
    },
    /// Rule 4: DCGM was seen and is lost: no step down.
    GpuLost {
        /// Milliseconds since the last sample.
        for_ms: u64,
        /// Why it cannot be read; `None` where it is read, and names no device of this workload.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<Why>,
    },
    /// Rule 4: of some replicas no device was read, so the others' prove no idleness: no step down, for
    /// an hour; then only such as the others' allow.
    GpuPartial {
        /// Replicas past their warm-up without a device.
        unread: u32,
        /// Devices that were read.
        devices: u32,
        /// Milliseconds for which that has been so.
        for_ms: u64,
    },
    /// Rule 4: no activity counter follows this workload's work.
    GpuNoInformation {
        /// The activity, 0..1.
        activity: f64,
    },
    /// Rule 4: replicas that keep the activity at the ceiling.
    GpuCeiling {
        /// The activity, 0..1.
        activity: f64,
        /// The ceiling, 0..1.
        ceiling: f64,
        /// Demand confirms that more are needed.
        confirmed: bool,
    },
    /// Rule 6: the surplus is not yet surely one.
    Evidence {
        /// Score of one replica fewer, 0..100.
        score: f64,
        /// Evidence for it, milliseconds.
        evidence_ms: u64,
        /// Evidence needed, milliseconds.
        hold_ms: u64,
        /// Fresh share of the expected ticks.
        coverage: f64,
    },
    /// Rule 6: the surplus is let go.
    Released {
        /// Evidence for the step, milliseconds.
        evidence_ms: u64,
        /// Evidence needed, milliseconds.
        hold_ms: u64,
        /// A single step beyond the capacity seen so far, after twice the hold.
        trial: bool,
    },
    /// Rule 6: a replica's gauges say busy, its counters stand still: not busy, not yet idle.
    InDoubt {
        /// How many replicas.
        replicas: u32,
    },
    /// Rule 7: the warm floor.
    WarmFloor {
        /// `minReplicaCount`.
        min: u32,
        /// What the warm schedule asks for.
        schedule: u32,
    },
    /// Rule 7: idle, not yet for long enough.
    Idle {
        /// Evidence of no work, milliseconds.
        idle_ms: u64,
        /// Evidence needed, milliseconds.
        after_ms: u64,
    },
    /// Rule 7: zero is allowed but nothing could wake it.
    NoWakeSource,
    /// Rule 7: the wake source cannot be read: demand is unknown, which is not zero.
    WakeUnknown {
        /// Why.
        why: Why,
    },
    /// Rule 7: this workload's own gaps are too short for sleeping to pay.
    GapsTooShort {
        /// Idle time still to be expected, milliseconds.
        expected_ms: u64,
        /// Idle time from which sleeping pays, milliseconds.
        needed_ms: u64,
    },
    /// Rule 7: asleep.
    Asleep {
        /// Evidence of no work, milliseconds.
        idle_ms: u64,
    },
    /// Rule 8: demand seen in front of the engines.
    Woken {
        /// Requests held by the gateway.
        queued: f64,
        /// Milliseconds since the wake.
        for_ms: u64,
        /// Expected milliseconds from a wake to a serving replica.
        expected_ms: u64,
    },
    /// Rule 10: inputs are missing, the last wanted count goes on.
    Held {
        /// The most frequent cause.
        why: Why,
        /// Engines that answered.
        answered: u32,
        /// Engines that should have.
        expected: u32,
    },
    /// Rule 10: nothing observed yet, the present count goes on.
    NotYetObserved,
    /// Never below the present count until a whole hold of evidence stands.
    Adopting {
        /// Evidence gathered, milliseconds.
        evidence_ms: u64,
        /// Evidence needed, milliseconds.
        hold_ms: u64,
    },
    /// A rollout is under way: nothing goes below the present count.
    Rollout,
    /// Replicas that are about to go are ordered anew.
    Leaving {
        /// How many.
        replicas: u32,
    },
    /// Somebody has set the count by hand, until its end.
    ByHand,
    /// Replicas that cannot be placed, or start again and again: nothing beyond the present count.
    CapacityExhausted {
        /// Replicas that the scheduler cannot place.
        unschedulable: u32,
        /// Replicas that start again and again.
        crash_looping: u32,
    },
    /// The rules wanted another count than the bounds allow.
    Clamped {
        /// What they wanted.
        wanted: u32,
    },
}
