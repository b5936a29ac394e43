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

impl std::fmt::Display for TrackerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{:016x}", self.workload, self.trigger)
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
    let mut bytes = 0_usize;
    for (index, (key, value)) in metadata.enumerate() {
        bytes = bytes.saturating_add(key.len()).saturating_add(value.len());
        if bytes > trigger::MAX_BYTES || index >= trigger::MAX_KEYS {
            return None;
        }
        if !trigger::is_keda_key(key) {
            sum = sum.wrapping_add(entry_hash(key, value));
        }
    }
    Some(sum)
}

fn entry_hash(key: &str, value: &str) -> u64 {
    // FNV-1a over `key 0xff value`; 0xff is in no UTF-8 text.
    let bytes = key.bytes().chain([0xff]).chain(value.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // The finaliser of SplitMix64: a sum of plain FNV hashes would mix too little.
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(entries: &[(&str, &str)]) -> Option<u64> {
        fingerprint(entries.iter().copied())
    }

    #[test]
    fn saved_fingerprints_keep_their_value() {
        assert_eq!(of(&[]), Some(0));
        assert_eq!(of(&[("sloTtft", "2s")]), Some(0x10f6_b3f6_c704_91c6));
    }

    #[test]
    fn the_order_and_kedas_own_keys_do_not_count() {
        let a = of(&[("sloTtft", "2s"), ("profile", "chat"), ("scalerAddress", "a:1")]);
        let b = of(&[("profile", "chat"), ("enableTLSFromEnv", "true"), ("sloTtft", "2s")]);
        assert_eq!(a, b);
    }

    #[test]
    fn every_key_and_value_counts() {
        let maps: [&[(&str, &str)]; 7] = [
            &[],
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
