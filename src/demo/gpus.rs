//! The GPUs of our lane's cluster, as a dcgm-exporter shows them.
//!
//! Must not move the cluster: it follows which pods there are and what their engines have done.

use std::sync::Arc;

use loadgen::dcgm::{DeviceIndex, Error, Exporter, Fleet, Pod as Holder};
use loadgen::engine::{PS_PER_S, Time};

use super::cluster::Pod;
use super::{MAX, NAMESPACE};

/// One node, which has room for twice the most replicas: those that leave keep their GPU.
const N_GPUS: usize = 2 * MAX as usize;

/// The node's exporter and who holds its GPUs.
#[derive(Debug)]
pub(super) struct Gpus {
    exporter: Exporter,
    holders: [Option<Arc<str>>; N_GPUS],
    next_tick: Time,
}

impl Gpus {
    /// A node whose GPUs are free.
    pub(super) fn new() -> Result<Gpus, Error> {
        let fleet =
            format!("nodes: [{{name: gpu-node-1, gpus: [{{model: a100-80gb, count: {N_GPUS}}}]}}]");
        let fleet = Fleet::parse("the demo's node", &fleet)?;
        let exporter = Exporter::new(&fleet.style, &fleet.nodes[0]);
        Ok(Gpus { exporter, holders: [const { None }; N_GPUS], next_tick: Time::ZERO })
    }

    /// Takes what the pods' engines have done by now. Ticks once a second.
    pub(super) fn follow(&mut self, pods: &[Pod], now: Time) {
        for (index, holder) in self.holders.iter_mut().enumerate() {
            let device = DeviceIndex(index);
            if let Some(name) = holder.take_if(|name| pods.iter().all(|pod| pod.name != *name)) {
                self.exporter.release(device, NAMESPACE, &name);
            }
        }
        for pod in pods {
            let held = self.holders.iter().position(|holder| holder.as_ref() == Some(&pod.name));
            let Some(index) = held.or_else(|| self.give(pod)) else { continue };
            self.exporter.observe(DeviceIndex(index), 0, pod.replica.engine().work());
        }
        if now >= self.next_tick {
            self.exporter.tick(now);
            self.next_tick = now.plus_ps(PS_PER_S);
        }
    }

    /// The exporter's page.
    pub(super) fn page(&self) -> String {
        self.exporter.page().to_owned()
    }

    fn give(&mut self, pod: &Pod) -> Option<usize> {
        let free = self.holders.iter().position(Option::is_none)?;
        let (namespace, name) = (Some(NAMESPACE.to_owned()), Some(pod.name.to_string()));
        let holder = Holder { namespace, name, ..Holder::default() };
        self.exporter.hold(DeviceIndex(free), &holder);
        self.holders[free] = Some(Arc::clone(&pod.name));
        Some(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::cluster::Cluster;
    use crate::demo::story::{Story, part};
    use crate::signals::dcgm::{DcgmReader, PodRef};

    #[test]
    fn a_pod_has_one_gpu_that_is_as_busy_as_its_engine() {
        let story = Story::of(&[part("steady", 300, 6.0, 6.0)], 1);
        let profile = loadgen::engine::Profile::load("8b-a100").unwrap();
        let mut cluster = Cluster::new(Arc::new(story), Arc::new(profile), 2);
        let mut gpus = Gpus::new().unwrap();
        let mut now = Time::ZERO;
        while now < Time::from_secs_f64(120.0) {
            cluster.advance(now);
            gpus.follow(cluster.pods(), now);
            now = now.plus_ps(PS_PER_S / 4);
        }
        let format = crate::signals::exposition::Format::Text;
        let mut reader = DcgmReader::new(format, crate::demo::moment(now));
        reader.push(gpus.page().as_bytes()).unwrap();
        let devices = reader.finish().unwrap();
        assert_eq!(devices.by_key.len(), N_GPUS);
        for pod in cluster.pods() {
            let owner = PodRef { namespace: NAMESPACE.into(), pod: (*pod.name).into() };
            let own: Vec<_> =
                devices.by_key.values().filter(|device| device.owners.contains(&owner)).collect();
            assert_eq!(own.len(), 1, "{}", pod.name);
            let busy = own[0].gpu_util.unwrap();
            assert!((0.3..=1.0).contains(&busy), "{busy}");
        }
    }
}
