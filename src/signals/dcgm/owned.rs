//! The devices that are certainly one pod's, found by it: what a workload's share is taken from.
//!
//! Must not attribute a shared device, and must not take a part of the pods for all of them.

use std::collections::BTreeMap;

use super::{Device, Devices};
use crate::decision::{GpuSample, Moment};

/// Devices that are held by exactly one pod and say how busy they are, by namespace and pod. Made once
/// a read, so that a workload's share costs what its own pods cost and not what the fleet does.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Owned {
    by_namespace: BTreeMap<Box<str>, BTreeMap<Box<str>, Vec<Own>>>,
}

/// What one of them said.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Own {
    sampled_at: Moment,
    busy: f64,
    sm: Option<f64>,
    tensor: Option<f64>,
    dram: Option<f64>,
}

impl Owned {
    /// Those of all `devices`.
    #[must_use]
    pub fn of(devices: &Devices) -> Owned {
        let mut owned = Owned::default();
        for device in devices.by_key.values() {
            if let ([owner], Some(busy)) = (device.owners.as_slice(), device.busy()) {
                let Device { sampled_at, sm, tensor, dram, .. } = *device;
                let own = Own { sampled_at, busy, sm, tensor, dram };
                let pods = owned.by_namespace.entry(owner.namespace.clone()).or_default();
                pods.entry(owner.pod.clone()).or_default().push(own);
            }
        }
        owned
    }

    /// The pods of a namespace that hold such a device.
    pub fn pods(&self, namespace: &str) -> impl Iterator<Item = &str> {
        self.by_namespace.get(namespace).into_iter().flat_map(|pods| pods.keys().map(|pod| &**pod))
    }

    /// Means over the devices of these pods (ready, past their warm-up) with a sample not older than
    /// `since`, and how many of the pods have none. `None` if no device is left.
    #[must_use]
    pub fn share_of<'a>(
        &self,
        namespace: &str,
        pods: impl IntoIterator<Item = &'a str>,
        since: Moment,
    ) -> Option<GpuSample> {
        let in_namespace = self.by_namespace.get(namespace)?;
        let [mut busy, mut sm, mut tensor, mut dram] = [Mean::default(); 4];
        let mut unread = 0_u32;
        for pod in pods {
            let before = busy.n;
            let devices = in_namespace.get(pod).into_iter().flatten();
            for own in devices.filter(|own| own.sampled_at >= since) {
                busy.add(Some(own.busy));
                sm.add(own.sm);
                tensor.add(own.tensor);
                dram.add(own.dram);
            }
            unread += u32::from(busy.n == before);
        }
        Some(GpuSample {
            devices: busy.n,
            unread,
            busy: Some(busy.value()?),
            sm: sm.value(),
            tensor: tensor.value(),
            dram: dram.value(),
        })
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    n: u32,
    sum: f64,
}

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.n += 1;
            self.sum += value;
        }
    }

    fn value(self) -> Option<f64> {
        (self.n > 0).then(|| self.sum / f64::from(self.n))
    }
}
