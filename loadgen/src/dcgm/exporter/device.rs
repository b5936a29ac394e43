//! A device as DCGM counts it: a whole GPU or a MIG instance, with the pods that hold it.
//!
//! Must not know how rows are written.

use crate::dcgm::activity::{Activity, Pending};
use crate::dcgm::board::{Board, Slice};
use crate::dcgm::config::{Gpu, Instance, Means, Pod};
use crate::dcgm::exposition::PodOf;
use crate::engine::{Time, Work};

/// What an engine allocates of a GPU's memory when it starts: vLLM's default.
const ALLOCATED: f64 = 0.9;
/// What the driver keeps of a GPU's memory; a round number, as it differs by driver.
const RESERVED: f64 = 1.0 / 128.0;

/// A device.
#[derive(Debug)]
pub(super) struct Device {
    memory_mib: f64,
    /// Its part of the board's compute.
    compute: f64,
    instance: Option<(String, u16)>,
    sharing: Option<Means>,
    holders: Vec<Holder>,
    activity: Activity,
}

/// A pod that holds a device.
#[derive(Debug)]
struct Holder {
    pod: Pod,
    seen: Work,
    pending: Pending,
    activity: Activity,
    has_ended: bool,
    is_labelled: bool,
}

impl Device {
    pub(super) fn whole(board: &Board, gpu: &Gpu) -> Device {
        let sharing = gpu.sharing.map(|sharing| sharing.by);
        Device::new(board.memory_mib, 1.0, None, sharing, &gpu.pods)
    }

    pub(super) fn slice(slice: Slice, instance: &Instance) -> Device {
        let label = (instance.profile.clone(), instance.id);
        Device::new(slice.memory_mib, slice.compute, Some(label), None, &instance.pods)
    }

    fn new(
        memory_mib: f64,
        compute: f64,
        instance: Option<(String, u16)>,
        sharing: Option<Means>,
        pods: &[Pod],
    ) -> Device {
        let activity = Activity::default();
        let holders = pods.iter().map(Holder::new).collect();
        Device { memory_mib, compute, instance, sharing, holders, activity }
    }

    pub(super) fn hold(&mut self, pod: &Pod) {
        self.holders.push(Holder::new(pod));
    }

    pub(super) fn release(&mut self, namespace: &str, name: &str) -> bool {
        let before = self.holders.len();
        self.holders.retain(|holder| !holder.is(namespace, name));
        self.holders.len() < before
    }

    pub(super) fn observe(&mut self, holder: usize, work: &Work) -> bool {
        let holder = self.holders.get_mut(holder);
        holder.map(|holder| holder.observe(work)).is_some()
    }

    pub(super) fn tick(&mut self, now: Time, span_s: f64) {
        for holder in &mut self.holders {
            holder.tick(now, span_s);
        }
        self.activity = self.holders.iter().map(|holder| holder.activity).fold(
            Activity::default(),
            |all, one| match self.sharing {
                Some(Means::Mps) => all.beside(one),
                Some(Means::TimeSlicing) | None => all.after(one),
            },
        );
    }

    /// Whether a process is on it.
    pub(super) fn is_held(&self) -> bool {
        self.holders.iter().any(|holder| !holder.has_ended)
    }

    /// Its part of the board's power above idle; counters that are latched draw nothing.
    pub(super) fn draw(&self) -> f64 {
        if self.is_held() { self.activity.draw * self.compute } else { 0.0 }
    }

    pub(super) fn activity(&self) -> Activity {
        self.activity
    }

    /// Whether it is made for more than one pod.
    pub(super) fn is_shared(&self) -> bool {
        self.sharing.is_some() || self.holders.len() > 1
    }

    /// Profile and id, where it is a MIG instance.
    pub(super) fn instance(&self) -> Option<(&str, u16)> {
        self.instance.as_ref().map(|(profile, id)| (profile.as_str(), *id))
    }

    /// The pods that a row can name, by their number; a device for one pod has no `vgpu`.
    pub(super) fn labelled(&self) -> impl Iterator<Item = (usize, PodOf<'_>)> {
        let holders = self.holders.iter().enumerate();
        holders.filter_map(|(index, holder)| {
            let vgpu = self.is_shared().then_some(index);
            Some((index, PodOf { vgpu, ..holder.labels()? }))
        })
    }

    pub(super) fn gpu_util_of(&self, holder: usize) -> f64 {
        self.holders.get(holder).map_or(0.0, |holder| 100.0 * holder.activity.busy)
    }

    pub(super) fn fb_used_mib_of(&self, holder: usize) -> f64 {
        let Some(holder) = self.holders.get(holder).filter(|holder| !holder.has_ended) else {
            return 0.0;
        };
        let sharers = self.holders.len() as f64;
        holder.pod.fb_mib.unwrap_or(ALLOCATED * self.memory_mib / sharers)
    }

    pub(super) fn fb_used_mib(&self) -> f64 {
        let used: f64 = (0..self.holders.len()).map(|holder| self.fb_used_mib_of(holder)).sum();
        used.min(self.memory_mib - self.fb_reserved_mib())
    }

    pub(super) fn fb_reserved_mib(&self) -> f64 {
        self.memory_mib * RESERVED
    }

    pub(super) fn fb_free_mib(&self) -> f64 {
        self.memory_mib - self.fb_reserved_mib() - self.fb_used_mib()
    }
}

impl Holder {
    fn new(pod: &Pod) -> Holder {
        Holder {
            pod: pod.clone(),
            seen: Work::default(),
            pending: Pending::default(),
            activity: Activity::default(),
            has_ended: false,
            is_labelled: true,
        }
    }

    fn is(&self, namespace: &str, name: &str) -> bool {
        self.pod.namespace.as_deref() == Some(namespace) && self.pod.name.as_deref() == Some(name)
    }

    fn observe(&mut self, work: &Work) {
        self.pending.add(&self.seen, work);
        self.seen = *work;
    }

    fn tick(&mut self, now: Time, span_s: f64) {
        let ends = self.pod.ends.map_or(Time::MAX, |ends| ends.time());
        self.has_ended = now >= ends;
        self.is_labelled = now < ends.plus_ps(self.pod.label_lingers.time().0) || !self.has_ended;
        if !self.has_ended {
            self.activity = self.pending.take(span_s);
        } else if !self.pod.latched {
            self.activity = Activity::default();
        }
    }

    fn labels(&self) -> Option<PodOf<'_>> {
        let Pod { namespace, name, container, .. } = &self.pod;
        let pod = name.as_deref().filter(|_| self.is_labelled)?;
        let container = container.as_deref().unwrap_or("main");
        Some(PodOf { namespace: namespace.as_deref()?, pod, container, vgpu: None })
    }
}
