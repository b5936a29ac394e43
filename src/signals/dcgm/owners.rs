//! Who held a device lately, since the labels that say so come and go.
//!
//! Must not invent an owner: it only remembers those that were named, for a bounded time.

use std::collections::BTreeMap;

use super::{DeviceKey, Devices, PodRef};
use crate::decision::Moment;

/// How long an owner is remembered after it was last named: as long as an instant query of
/// Prometheus looks back, and five of the exporter's scrapes many times over.
const REMEMBERED_MS: u64 = 300_000;

/// Most owners that are remembered for one device; above one it is shared anyway.
const MAX_OWNERS: usize = 64;

/// The owners named in the last five minutes, by device.
///
/// It fills the gaps in which a busy device names nobody, and it finds the sharing that a single
/// scrape hides: with time slicing an exporter may name one arbitrary sharer, another one each
/// time. A device that has changed hands counts as shared until its last owner is forgotten.
#[derive(Debug, Default)]
pub struct OwnerMemory {
    named: BTreeMap<DeviceKey, BTreeMap<PodRef, Moment>>,
}

impl OwnerMemory {
    /// Remembers the owners that `devices` names, and gives each device all that are remembered.
    pub fn update(&mut self, devices: &mut Devices, now: Moment) {
        for owners in self.named.values_mut() {
            owners.retain(|_, named| now.millis_since(*named) <= REMEMBERED_MS);
        }
        self.named.retain(|_, owners| !owners.is_empty());
        for (key, device) in &mut devices.by_key {
            if device.owners.is_empty() && !self.named.contains_key(key) {
                continue;
            }
            let named = self.named.entry(key.clone()).or_default();
            for owner in device.owners.drain(..) {
                if named.len() < MAX_OWNERS || named.contains_key(&owner) {
                    named.insert(owner, now);
                }
            }
            device.owners.extend(named.keys().cloned());
        }
    }
}
