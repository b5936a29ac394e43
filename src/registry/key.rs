//! What tells one trigger from another: the workload, and a fingerprint of its metadata.
//!
//! Pure. The fingerprint is kept with saved state, so its value must never change.

use crate::inventory::WorkloadKey;
use crate::trigger;

/// Names a tracked trigger.
///
/// A call carries no trigger index, so two triggers of one ScaledObject differ by metadata alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrackerKey {
    /// The ScaledObject, or the workload of the configuration.
    pub workload: WorkloadKey,
    /// The fingerprint of the metadata without KEDA's own keys; equal over restarts and replicas.
    pub trigger: u64,
}

impl TrackerKey {
    /// The trigger as a person and `?trigger=` name it: 16 hex digits.
    #[must_use]
    pub fn trigger_id(&self) -> String {
        format!("{:016x}", self.trigger)
    }
}

impl std::fmt::Display for TrackerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{}", self.workload, self.trigger_id())
    }
}

/// The fingerprint of metadata that holds none but KEDA's own keys.
pub(super) const NO_KEYS: u64 = 0;

/// The fingerprint of a metadata map, in whatever order it comes; `None` if the map is larger than
/// [`trigger::MAX_BYTES`] or [`trigger::MAX_KEYS`].
///
/// A sum of one hash an entry: the order of a map is random, and sorting it would allocate in each
/// call. It need not withstand an attacker: it tells apart triggers of one ScaledObject only, and
/// who writes those could as well write them equal.
pub(super) fn fingerprint<'a>(metadata: impl Iterator<Item = (&'a str, &'a str)>) -> Option<u64> {
    let mut sum = NO_KEYS;
    let mut has_own = false;
    let mut bytes = 0_usize;
    for (index, (key, value)) in metadata.enumerate() {
        bytes = bytes.saturating_add(key.len()).saturating_add(value.len());
        if bytes > trigger::MAX_BYTES || index >= trigger::MAX_KEYS {
            return None;
        }
        if !trigger::is_keda_key(key) {
            has_own = true;
            sum = sum.wrapping_add(entry_hash(key, value));
        }
    }
    // An empty key with an empty value has the hash 0, and is a key all the same.
    Some(if has_own && sum == NO_KEYS { 1 } else { sum })
}

fn entry_hash(key: &str, value: &str) -> u64 {
    let hash = absorb(absorb(0, key.as_bytes()), value.as_bytes());
    // The finaliser of SplitMix64: equal sums of unequal entries shall be no likelier than chance.
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Word by word, in the manner of FNV-1a, the length first: a call's metadata is hashed each time, and
/// byte by byte that would be the dearest part of a look-up.
fn absorb(hash: u64, bytes: &[u8]) -> u64 {
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
    [length].into_iter().chain(words).fold(hash, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ (hash >> 32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(entries: &[(&str, &str)]) -> Option<u64> {
        fingerprint(entries.iter().copied())
    }

    #[test]
    fn saved_fingerprints_keep_their_value() {
        let long = [("warmSchedule", "start=0 8 * * 1-5; end=0 18 * * 1-5")];
        assert_eq!(of(&[]), Some(0));
        assert_eq!(of(&[("sloTtft", "2s")]), Some(0x9a7b_88c8_0e63_7c0e));
        assert_eq!(of(&long), Some(0x41f5_da01_4366_01f0));
    }

    #[test]
    fn the_order_and_kedas_own_keys_do_not_count() {
        let a = of(&[("sloTtft", "2s"), ("profile", "chat"), ("scalerAddress", "a:1")]);
        let b = of(&[("profile", "chat"), ("enableTLSFromEnv", "true"), ("sloTtft", "2s")]);
        assert_eq!(a, b);
    }

    #[test]
    fn every_key_and_value_counts() {
        let maps: [&[(&str, &str)]; 8] = [
            &[],
            &[("", "")],
            &[("sloTtft", "2s")],
            &[("sloTtft", "3s")],
            &[("sloTtftFromEnv", "2s")],
            &[("sloTpot", "2s")],
            &[("sloTtft2", "s")],
            &[("sloTtft", "2s"), ("sloTpot", "2s")],
        ];
        for (i, a) in maps.iter().enumerate() {
            for b in maps.iter().skip(i + 1) {
                assert_ne!(of(a), of(b), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn an_oversized_map_has_none() {
        let big = "x".repeat(trigger::MAX_BYTES);
        assert_eq!(of(&[("modelName", &big)]), None);
        let keys: Vec<_> = (0..=trigger::MAX_KEYS).map(|i| i.to_string()).collect();
        let entries: Vec<_> = keys.iter().map(|key| (key.as_str(), "")).collect();
        assert_eq!(of(&entries), None);
        assert!(of(&entries[1..]).is_some());
    }
}
