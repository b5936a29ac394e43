//! Reasons as sentences for people.
//!
//! Must not be called on a tick: only `explain`, the dashboard and events render reasons.

use std::fmt;

use super::Reason;
use crate::decision::Why;
use crate::decision::cost::USABLE_ROWS;
use crate::decision::gpu::LOST_MS;
use crate::duration::format_millis;

impl fmt::Display for Reason {
    #[expect(clippy::too_many_lines, reason = "one line per reason, side by side")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Silent => f.write_str("nothing to say"),
            Reason::Work { work, headroom, rho, need } => write!(
                f,
                "work for {work:.2} replicas plus {headroom:.2} headroom, each trusted with \
                 {:.0} %: {need:.2} needed",
                rho * 100.0
            ),
            Reason::InFlight { in_flight, per_replica, need } => write!(
                f,
                "{in_flight:.1} in flight, {per_replica:.0} per replica: {need:.2} needed"
            ),
            Reason::Learning { rows } if *rows < USABLE_ROWS => write!(
                f,
                "still learning the engine's cost ({rows:.0} of {USABLE_ROWS:.0} samples), so load \
                 only holds"
            ),
            Reason::Learning { rows } => write!(
                f,
                "still learning the engine's cost ({rows:.0} samples, too much alike or too far \
                 apart yet), so load only holds"
            ),
            Reason::Backlog { waiting, work_s, horizon_ms } => write!(
                f,
                "{waiting:.0} waiting; {work_s:.0} s of work to clear within {} when an order \
                 could serve",
                format_millis(*horizon_ms)
            ),
            Reason::Waiting { waiting, per_replica, .. } if *per_replica <= 0.0 => {
                write!(f, "{waiting:.0} waiting and a replica's size is not known: one more")
            }
            Reason::Waiting { waiting, cleared, per_replica } => write!(
                f,
                "{waiting:.0} waiting, {cleared:.0} of them soon cleared, {per_replica:.1} running \
                 per replica"
            ),
            Reason::Clears { waiting } => {
                write!(f, "{waiting:.0} waiting, which present capacity clears")
            }
            Reason::StuckQueue { waiting, replicas } => write!(
                f,
                "{waiting:.0} waiting on {replicas} replica(s) whose counters stand still: hung or \
                 stuck, more replicas do not help"
            ),
            Reason::Imbalance { waiting, idle } => write!(
                f,
                "{waiting:.0} waiting while {idle} replica(s) idle: a routing fault, one more at most"
            ),
            Reason::NotServing { waiting, busy } => write!(
                f,
                "{waiting:.0} waiting while the GPUs are {:.0} % busy: something else is wrong, \
                 more replicas do not help",
                busy * 100.0
            ),
            Reason::KvPressure { used, preemptions } => {
                write!(f, "KV caches are full ({used:.2} in use, {preemptions:.2} preemptions/s)")
            }
            Reason::KvFits { used } => write!(f, "KV caches fit ({used:.2} in use)"),
            Reason::GpuAbsent => f.write_str("no GPU metrics for this workload"),
            Reason::GpuUnread { why } => {
                write!(f, "GPU metrics cannot be read: {}", gpu_cause(*why))
            }
            Reason::GpuLost { for_ms, why } => write!(
                f,
                "GPU metrics lost for {} ({}): {}",
                format_millis(*for_ms),
                why.map_or("what is read names no device of this workload", gpu_cause),
                let_down(*for_ms)
            ),
            Reason::GpuPartial { unread, devices, for_ms } => write!(
                f,
                "GPU metrics of {unread} replica(s) missing for {}, {devices} device(s) read: {}",
                format_millis(*for_ms),
                if *for_ms < LOST_MS {
                    "no step down, for 1h at most"
                } else {
                    "after 1h those that are read count alone"
                }
            ),
            Reason::GpuNoInformation { activity } => write!(
                f,
                "GPU activity {:.0} % does not follow the work: no information",
                activity * 100.0
            ),
            Reason::GpuCeiling { activity, ceiling, confirmed } => write!(
                f,
                "GPU activity {:.0} % against a ceiling of {:.0} %, demand {}",
                activity * 100.0,
                ceiling * 100.0,
                if *confirmed { "confirms it" } else { "does not confirm more" }
            ),
            Reason::Evidence { score, evidence_ms, hold_ms, coverage } => write!(
                f,
                "one replica fewer scores {score:.0}: {} of {} evidence, {:.0} % of ticks fresh",
                format_millis(*evidence_ms),
                format_millis(*hold_ms),
                coverage * 100.0
            ),
            Reason::Released { evidence_ms, hold_ms, trial } => write!(
                f,
                "not needed for {} (hold {}){}",
                format_millis(*evidence_ms),
                format_millis(*hold_ms),
                if *trial { ", one step beyond the load seen so far" } else { "" }
            ),
            Reason::InDoubt { replicas } => write!(
                f,
                "{replicas} replica(s) say busy while nothing moves: neither busy nor idle yet"
            ),
            Reason::WarmFloor { min, schedule } => {
                write!(f, "warm minimum {min}, schedule {schedule}")
            }
            Reason::Idle { idle_ms, after_ms } => write!(
                f,
                "idle for {} of {} before zero",
                format_millis(*idle_ms),
                format_millis(*after_ms)
            ),
            Reason::NoWakeSource => {
                f.write_str("zero is allowed but nothing could wake it: configure a wakeSource")
            }
            Reason::WakeUnknown { why } => {
                write!(f, "the wake source cannot be read ({}): no zero", why.sentence())
            }
            Reason::GapsTooShort { expected_ms, needed_ms } => write!(
                f,
                "another {} of idleness to be expected, sleeping pays from {}",
                format_millis(*expected_ms),
                format_millis(*needed_ms)
            ),
            Reason::Asleep { idle_ms } => write!(f, "no work for {}", format_millis(*idle_ms)),
            Reason::Woken { queued, for_ms, expected_ms } => write!(
                f,
                "woken {} ago with {queued:.0} held by the gateway, serving expected after {}",
                format_millis(*for_ms),
                format_millis(*expected_ms)
            ),
            Reason::Held { why, answered, expected } => write!(
                f,
                "{answered} of {expected} engines readable ({}): the last count goes on",
                why.sentence()
            ),
            Reason::NotYetObserved => f.write_str("nothing read yet: the present count goes on"),
            Reason::Adopting { evidence_ms, hold_ms } => write!(
                f,
                "started with {} of {} evidence: never below the present count",
                format_millis(*evidence_ms),
                format_millis(*hold_ms)
            ),
            Reason::Rollout => f.write_str("rollout under way: never below the present count"),
            Reason::Leaving { replicas } => {
                write!(f, "{replicas} replica(s) on nodes that are told to go are ordered anew")
            }
            Reason::ByHand => f.write_str("the trigger's `override` is in force"),
            Reason::CapacityExhausted { unschedulable, crash_looping } => write!(
                f,
                "{unschedulable} replica(s) cannot be placed, {crash_looping} start again and \
                 again: nothing more is ordered"
            ),
            Reason::Clamped { wanted } => write!(f, "the rules wanted {wanted}"),
        }
    }
}

/// Why GPU metrics cannot be read, where that is not said of an engine.
fn gpu_cause(why: Why) -> &'static str {
    match why {
        Why::Refused => "connection refused",
        Why::NoKnownSeries => {
            "no DCGM series with a device's UUID in the answer: wrong address, or names of a version \
             not known here"
        }
        Why::NotYetRead
        | Why::NoEndpoint
        | Why::Timeout
        | Why::Transport
        | Why::Tls
        | Why::Unauthorized
        | Why::HttpStatus
        | Why::BadBody
        | Why::TooLarge
        | Why::AmbiguousTenant
        | Why::Partial
        | Why::NotMoving
        | Why::PodGone
        | Why::Impossible => why.sentence(),
    }
}

/// What the lack of GPU metrics means for a step down.
fn let_down(for_ms: u64) -> &'static str {
    if for_ms < LOST_MS { "no step down, for 1h at most" } else { "the rule is silent after 1h" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_read_as_sentences_with_their_numbers() {
        for (reason, text) in [
            (
                Reason::Work { work: 2.1, headroom: 0.25, rho: 0.85, need: 2.764 },
                "work for 2.10 replicas plus 0.25 headroom, each trusted with 85 %: 2.76 needed",
            ),
            (
                Reason::Learning { rows: 12.4 },
                "still learning the engine's cost (12 of 20 samples), so load only holds",
            ),
            (
                Reason::Learning { rows: 33.0 },
                "still learning the engine's cost (33 samples, too much alike or too far apart \
                 yet), so load only holds",
            ),
            (
                Reason::Waiting { waiting: 3.0, cleared: 0.0, per_replica: 0.0 },
                "3 waiting and a replica's size is not known: one more",
            ),
            (
                Reason::Waiting { waiting: 16.0, cleared: 4.0, per_replica: 8.0 },
                "16 waiting, 4 of them soon cleared, 8.0 running per replica",
            ),
            (
                Reason::Evidence {
                    score: 64.2,
                    evidence_ms: 480_000,
                    hold_ms: 600_000,
                    coverage: 0.72,
                },
                "one replica fewer scores 64: 8m of 10m evidence, 72 % of ticks fresh",
            ),
            (
                Reason::Released { evidence_ms: 1_200_000, hold_ms: 600_000, trial: true },
                "not needed for 20m (hold 10m), one step beyond the load seen so far",
            ),
            (
                Reason::GpuCeiling { activity: 0.9, ceiling: 0.8, confirmed: false },
                "GPU activity 90 % against a ceiling of 80 %, demand does not confirm more",
            ),
            (Reason::Clamped { wanted: 12 }, "the rules wanted 12"),
        ] {
            assert_eq!(reason.to_string(), text);
        }
    }
}
