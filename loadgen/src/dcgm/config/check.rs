//! What makes a file a fleet: every value in its range.
//!
//! Must not repair anything: a value is right or named.

use std::fmt;

use crate::dcgm::board::{Board, Slice};
use crate::dcgm::config::{Fleet, Gpu, Load, Pod};
use crate::dcgm::scrape;
use crate::engine::{Fault, Faults, Profile};

const MOST_NODES: usize = 1_000;
const MOST_GPUS: usize = 64;
const MOST_PODS: usize = 64;
const MOST_POINTS: usize = 1_000;
// Sevenths of a board.
const MOST_INSTANCES: usize = 7;
// A Kubernetes name.
const MOST_LABEL_BYTES: usize = 253;

/// Everything that is wrong with a fleet.
pub(super) fn faults_of(fleet: &Fleet) -> Faults {
    let mut check = Check::default();
    check.fleet(fleet);
    check.0
}

#[derive(Default)]
struct Check(Faults);

impl Check {
    fn fleet(&mut self, fleet: &Fleet) {
        let interval_ms = fleet.style.interval.0;
        self.number("style.interval", interval_ms, 1_000, 3_600_000, " ms");
        self.number("nodes", fleet.nodes.len(), 1, MOST_NODES, " nodes");
        for (index, node) in fleet.nodes.iter().enumerate() {
            let at = format!("nodes[{index}]");
            self.label(&format!("{at}.name"), &node.name);
            if fleet.nodes.iter().take(index).any(|other| other.name == node.name) {
                self.push(format!("{at}.name"), &node.name, "a name that no other node has");
            }
            let n_gpus: usize = node.gpus.iter().map(|gpu| gpu.count.min(MOST_GPUS + 1)).sum();
            self.number(&format!("{at}.gpus"), n_gpus, 1, MOST_GPUS, " GPUs");
            for (index, gpu) in node.gpus.iter().enumerate() {
                self.gpu(&format!("{at}.gpus[{index}]"), gpu);
            }
        }
    }

    fn gpu(&mut self, at: &str, gpu: &Gpu) {
        if Board::find(&gpu.model).is_none() {
            let known = Board::keys().collect::<Vec<_>>().join(", ");
            self.push(format!("{at}.model"), &gpu.model, format!("one of {known}"));
        }
        self.number(&format!("{at}.count"), gpu.count, 1, MOST_GPUS, "");
        if let Some(sharing) = gpu.sharing {
            let fewest = gpu.pods.len().max(1);
            let field = format!("{at}.sharing.replicas");
            self.number(&field, sharing.replicas, fewest, MOST_PODS, ", at least the pods");
        } else if gpu.pods.len() > 1 {
            let field = format!("{at}.pods");
            self.push(field, gpu.pods.len(), "one pod, or `sharing` that says how they share");
        }
        if !gpu.mig.is_empty() && !gpu.pods.is_empty() {
            self.push(format!("{at}.pods"), gpu.pods.len(), "none beside `mig`");
        }
        self.number(&format!("{at}.mig"), gpu.mig.len(), 0, MOST_INSTANCES, " instances");
        for (index, pod) in gpu.pods.iter().enumerate() {
            self.pod(&format!("{at}.pods[{index}]"), pod);
        }
        for (index, instance) in gpu.mig.iter().enumerate() {
            let at = format!("{at}.mig[{index}]");
            if Slice::parse(&instance.profile).is_none() {
                let field = format!("{at}.profile");
                self.push(field, &instance.profile, "a profile such as 1g.5gb");
            }
            if gpu.mig.iter().take(index).any(|other| other.id == instance.id) {
                self.push(format!("{at}.id"), instance.id, "an id that no other instance has");
            }
            self.number(&format!("{at}.pods"), instance.pods.len(), 0, 1, " pods");
            for (index, pod) in instance.pods.iter().enumerate() {
                self.pod(&format!("{at}.pods[{index}]"), pod);
            }
        }
    }

    fn pod(&mut self, at: &str, pod: &Pod) {
        for (key, value) in [("namespace", &pod.namespace), ("name", &pod.name)] {
            if let Some(value) = value {
                self.label(&format!("{at}.{key}"), value);
            }
        }
        if let Some(container) = &pod.container {
            self.label(&format!("{at}.container"), container);
        }
        if pod.namespace.is_some() != pod.name.is_some() {
            self.push(at.to_owned(), "half named", "namespace and name, or neither");
        }
        if let Some(fb_mib) = pod.fb_mib {
            self.number(&format!("{at}.fb_mib"), fb_mib, 0.0, 1e6, "");
        }
        if let Some(load) = &pod.load {
            self.load(&format!("{at}.load"), load);
        }
    }

    fn load(&mut self, at: &str, load: &Load) {
        match load {
            Load::Busy(share) => self.number(&format!("{at}.busy"), *share, 0.0, 1.0, ""),
            Load::Sine(sine) => {
                self.number(&format!("{at}.sine.mean"), sine.mean, 0.0, 1.0, "");
                self.number(&format!("{at}.sine.amplitude"), sine.amplitude, 0.0, 1.0, "");
                let period_ms = sine.period.0;
                self.number(&format!("{at}.sine.period"), period_ms, 1_000, u64::MAX, " ms");
            }
            Load::Steps(points) => {
                let at = format!("{at}.steps");
                self.number(&at, points.len(), 1, MOST_POINTS, " steps");
                if !points.windows(2).all(|pair| pair[0].0 < pair[1].0) {
                    self.push(at.clone(), format_args!("{points:?}"), "moments that ascend");
                }
                for (_, share) in points {
                    self.number(&at, *share, 0.0, 1.0, "");
                }
            }
            Load::Engine(engine) => {
                if let Err(error) = scrape::page(&engine.url) {
                    self.push(format!("{at}.engine.url"), &engine.url, error);
                }
                if let Err(error) = Profile::load(&engine.profile) {
                    let field = format!("{at}.engine.profile");
                    self.push(field, &engine.profile, format_args!("a profile, but {error}"));
                }
            }
        }
    }

    /// What a label value may be: printable and short, so that it needs no escape.
    fn label(&mut self, field: &str, value: &str) {
        let is_plain = |c: char| c.is_ascii_graphic() && c != '"' && c != '\\';
        if value.is_empty() || value.len() > MOST_LABEL_BYTES || !value.chars().all(is_plain) {
            self.push(field.to_owned(), format_args!("{value:?}"), "a Kubernetes name");
        }
    }

    fn number<T: PartialOrd + fmt::Display>(
        &mut self,
        field: &str,
        value: T,
        least: T,
        most: T,
        unit: &str,
    ) {
        // Also false for what is not a number.
        if !(least <= value && value <= most) {
            self.push(field.to_owned(), value, format_args!("{least} to {most}{unit}"));
        }
    }

    fn push(&mut self, field: String, value: impl fmt::Display, expected: impl fmt::Display) {
        let (value, expected) = (value.to_string(), expected.to_string());
        self.0.0.push(Fault { field, value, expected });
    }
}
