//! A node's exporter: its devices, who holds them, what they show, and the page.
//!
//! Must not read a clock or open a socket: its owner says what time it is.

mod device;

use crate::dcgm::board::{Board, Slice};
use crate::dcgm::config::{Fleet, Gap, Gpu, Node, Pod, Profiling, SharedRows, Style};
use crate::dcgm::exporter::device::Device;
use crate::dcgm::exposition::{DeviceLabels, FIELDS, Field, Page, PodOf, Quantity};
use crate::engine::{Time, Work, secs_from_ps};

/// Which device of an exporter, in the order of the file: each GPU counts as many times as it
/// says, each MIG instance once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub usize);

/// The exporter of one node.
///
/// Three calls drive it: [`Exporter::observe`] with what an engine has counted, [`Exporter::tick`]
/// once a second or so, [`Exporter::page`] at a scrape. Between two ticks a counter is a mean; what
/// the page shows is the last tick before it was collected, as a real exporter shows the last
/// sample and not the mean since the last scrape.
#[derive(Debug)]
pub struct Exporter {
    node: String,
    style: Style,
    profiling: Profiling,
    gaps: Vec<Gap>,
    boards: Vec<Physical>,
    devices: Vec<Device>,
    ticked: Option<Time>,
    collect_at: Time,
    n_collections: usize,
    page: String,
    in_gap: bool,
}

/// A board with its devices: itself, or its MIG instances.
#[derive(Debug)]
struct Physical {
    board: &'static Board,
    uuid: String,
    gaps: Vec<Gap>,
    // Of `Exporter::devices`.
    devices: std::ops::Range<usize>,
    energy_mj: f64,
    watts: f64,
}

impl Exporter {
    /// The exporters of a fleet, one a node.
    #[must_use]
    pub fn of_fleet(fleet: &Fleet) -> Vec<Exporter> {
        fleet.nodes.iter().map(|node| Exporter::new(&fleet.style, node)).collect()
    }

    /// The exporter of a node. A GPU that [`Fleet::parse`] would not accept is left out.
    #[must_use]
    pub fn new(style: &Style, node: &Node) -> Exporter {
        let mut exporter = Exporter {
            node: node.name.clone(),
            style: style.clone(),
            profiling: node.profiling,
            gaps: node.gaps.clone(),
            boards: Vec::new(),
            devices: Vec::new(),
            ticked: None,
            collect_at: Time::ZERO,
            n_collections: 0,
            page: String::new(),
            in_gap: false,
        };
        for gpu in &node.gpus {
            for _ in 0..gpu.count {
                exporter.add(gpu);
            }
        }
        exporter
    }

    /// The node's name.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// How many devices it has.
    #[must_use]
    pub fn n_devices(&self) -> usize {
        self.devices.len()
    }

    /// Gives a device to a pod, beside those that hold it. False if there is no such device.
    pub fn hold(&mut self, device: DeviceIndex, pod: &Pod) -> bool {
        let device = self.devices.get_mut(device.0);
        device.map(|device| device.hold(pod)).is_some()
    }

    /// Takes a device away from a pod, at once; false if it does not hold it.
    pub fn release(&mut self, device: DeviceIndex, namespace: &str, name: &str) -> bool {
        self.devices.get_mut(device.0).is_some_and(|device| device.release(namespace, name))
    }

    /// Notes what the engine of a device's holder has done since its start ([`Engine::work`]):
    /// what came since the last call is shown by the next ticks. `holder` counts the pods that
    /// hold the device, in the order in which they came. False if there is no such holder.
    ///
    /// [`Engine::work`]: crate::engine::Engine::work
    pub fn observe(&mut self, device: DeviceIndex, holder: usize, work: &Work) -> bool {
        self.devices.get_mut(device.0).is_some_and(|device| device.observe(holder, work))
    }

    /// Samples every device over the time since the last tick, and collects the page when that is
    /// due. The first tick is the start; `now` must not lie before an earlier call's.
    pub fn tick(&mut self, now: Time) {
        let span_s = secs_from_ps(self.ticked.map_or(0, |before| now.since(before)));
        self.ticked = Some(now);
        for device in &mut self.devices {
            device.tick(now, span_s);
        }
        for physical in &mut self.boards {
            let devices = &self.devices[physical.devices.clone()];
            let held = devices.iter().any(Device::is_held);
            let draw: f64 = devices.iter().map(Device::draw).sum();
            physical.watts = physical.board.watts(held, draw.min(1.0));
            physical.energy_mj += physical.watts * span_s * 1e3;
        }
        self.in_gap = self.gaps.iter().any(|gap| gap.holds(now));
        if now >= self.collect_at {
            // The start has nothing to show but who holds what: the next tick collects again.
            if span_s > 0.0 {
                self.collect_at = now.plus_ps(self.style.interval.time().0);
            }
            self.page = self.collect(now);
            self.n_collections += 1;
        }
    }

    /// The page as a scrape finds it: empty before the first tick and in a gap of the node.
    #[must_use]
    pub fn page(&self) -> &str {
        if self.in_gap { "" } else { &self.page }
    }

    fn add(&mut self, gpu: &Gpu) {
        let Some(board) = Board::find(&gpu.model) else {
            return;
        };
        let first = self.devices.len();
        if gpu.mig.is_empty() {
            self.devices.push(Device::whole(board, gpu));
        }
        for instance in &gpu.mig {
            let slice = Slice::parse(&instance.profile);
            self.devices.extend(slice.map(|slice| Device::slice(slice, instance)));
        }
        self.boards.push(Physical {
            board,
            uuid: uuid(&self.node, self.boards.len()),
            gaps: gpu.gaps.clone(),
            devices: first..self.devices.len(),
            energy_mj: 0.0,
            watts: board.bare_w,
        });
    }

    fn collect(&self, now: Time) -> String {
        let mut page = Page::new(&self.style);
        for field in FIELDS.iter().filter(|field| self.exports(field)) {
            for (gpu, physical) in self.boards.iter().enumerate() {
                if physical.gaps.iter().any(|gap| gap.holds(now)) {
                    continue;
                }
                for device in &self.devices[physical.devices.clone()] {
                    let instance = device.instance();
                    if instance.is_some() && field.is_of_whole_gpus() {
                        continue;
                    }
                    let labels = DeviceLabels {
                        gpu,
                        uuid: &physical.uuid,
                        model_name: physical.board.model_name,
                        instance,
                        node: &self.node,
                    };
                    self.add_rows(&mut page, field, labels, physical, device);
                }
            }
        }
        page.into_text()
    }

    fn exports(&self, field: &Field) -> bool {
        let is_left_out = field.quantity == Quantity::Sm && !self.style.sm_active;
        let is_off = field.is_profiling() && self.profiling == Profiling::Off;
        !is_left_out && !is_off
    }

    /// The rows of one field of one device: as many as the style shows of its pods.
    fn add_rows(
        &self,
        page: &mut Page<'_>,
        field: &Field,
        labels: DeviceLabels<'_>,
        physical: &Physical,
        device: &Device,
    ) {
        let value = self.value(field, physical, device);
        let pods: Vec<(usize, PodOf<'_>)> = device.labelled().collect();
        match self.style.shared {
            SharedRows::Copies if !pods.is_empty() => {
                for pod in &pods {
                    page.row(field, labels, Some(pod.1), value);
                }
            }
            SharedRows::Processes if device.is_shared() => {
                page.row(field, labels, None, value);
                for pod in &pods {
                    let own = if field.quantity == Quantity::GpuUtil {
                        device.gpu_util_of(pod.0)
                    } else if field.quantity == Quantity::FbUsed {
                        device.fb_used_mib_of(pod.0)
                    } else {
                        continue;
                    };
                    page.row(field, labels, Some(pod.1), own);
                }
            }
            SharedRows::One | SharedRows::Copies | SharedRows::Processes => {
                let named = self.n_collections.checked_rem(pods.len());
                let pod = named.and_then(|index| pods.get(index));
                let pod = pod.map(|&(_, pod)| PodOf { vgpu: None, ..pod });
                page.row(field, labels, pod, value);
            }
        }
    }

    fn value(&self, field: &Field, physical: &Physical, device: &Device) -> f64 {
        if field.is_profiling() && self.profiling == Profiling::Zero {
            return 0.0;
        }
        let activity = device.activity();
        match field.quantity {
            // A MIG instance shows its board's.
            Quantity::Power => physical.watts,
            Quantity::Energy => physical.energy_mj,
            Quantity::GpuUtil => 100.0 * activity.busy,
            Quantity::MemCopyUtil => 100.0 * activity.dram,
            Quantity::EncoderUtil | Quantity::DecoderUtil => 0.0,
            Quantity::FbFree => device.fb_free_mib(),
            Quantity::FbUsed => device.fb_used_mib(),
            Quantity::FbReserved => device.fb_reserved_mib(),
            Quantity::GrEngine => activity.busy,
            Quantity::Sm => activity.sm,
            Quantity::Tensor => activity.tensor,
            Quantity::Dram => activity.dram,
        }
    }
}

/// A UUID in NVML's form that is the same in every run: FNV-1a of the node's name and the number.
fn uuid(node: &str, index: usize) -> String {
    let hash = |salt: &str| {
        let text = format!("{salt}{node}/{index}");
        text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    let digits = format!("{:016x}{:016x}", hash("a"), hash("b"));
    let mut uuid = String::from("GPU");
    let mut rest = digits.as_str();
    for length in [8, 4, 4, 4, 12] {
        let (part, tail) = rest.split_at(length);
        uuid.push('-');
        uuid.push_str(part);
        rest = tail;
    }
    uuid
}

#[cfg(test)]
mod tests;
