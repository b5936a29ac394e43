//! Rule 3: KV-cache pressure sets a size.
//!
//! Not one more each tick. Must not read queues beyond whether capacity is waited for.

use super::members::Seen;
use super::number::ceil_count;
use super::supply::Supply;
use super::{Reason, Rule, Vote};

/// KV use at which waiting for capacity, or preemption, is its doing.
const PRESSED: f64 = 0.9;
/// KV use that a replica is sized for.
const SIZED_FOR: f64 = 0.85;

/// The vote, and the replicas that would carry this tick's KV caches.
pub(super) fn ask(seen: &Seen, supply: &Supply) -> (Vote, f64) {
    let vote = |want, reason| Vote { rule: Rule::Kv, want, reason };
    let (Some(used), Some(fullest)) = (seen.kv_used, seen.kv_max) else {
        return (vote(None, Reason::Silent), 0.0);
    };
    let need = used / SIZED_FOR;
    let preemptions = seen.rates.preemptions.get().unwrap_or(0.0);
    let waits = seen.waiting.is_some_and(|waiting| waiting > 0.0);
    if fullest < PRESSED || !(waits || preemptions > 0.0) {
        return (vote(None, Reason::KvFits { used }), need);
    }
    let target = ceil_count(need).saturating_add(seen.frozen);
    let want = supply.orderable(supply.replace_lost(target));
    (vote(Some(want), Reason::KvPressure { used, preemptions }), need)
}
