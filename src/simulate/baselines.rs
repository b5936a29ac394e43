//! The policies that people run today, as their sources and documents say they work.
//!
//! Must not be kinder or harsher to one of them than its own code: where a policy has to be given
//! something that no cluster would (a wake signal, a calibration), its file says so.
//!
//! | policy | file | knob | documented | decides |
//! |---|---|---|---|---|
//! | `static` | here | share of the most replicas | 1 | never |
//! | `hpa-queue` | [`hpa`] | waiting per replica | 5 | at each sync of the HPA |
//! | `hpa-concurrency`, `hpa-concurrency-1m` | [`hpa`] | in flight per replica | none | the same |
//! | `hpa-request-rate` | [`hpa`] | requests/s per replica | none | the same |
//! | `hpa-gpu` | [`hpa`] | GPU utilisation | 0.8 | the same |
//! | `hpa-kv` | [`hpa`] | KV-cache use | 0.5 | the same |
//! | `knative-kpa`, `knative-kpa-delayed` | [`knative`] | in flight per replica | 70 | every 2 s |
//! | `aibrix-apa`, `aibrix-kpa`, each also `-intended` | [`aibrix`] | KV-cache use | 0.5 | every 10 s |
//! | `llm-d-wva-v1`, `-direct` | [`saturation`] | spare KV-cache use | 0.1 | every 60 s |
//! | `llm-d-wva-v2`, `-direct` | [`tokens`] | scale-up threshold | 0.85 | every 60 s |
//! | `llm-d-slo-aware` | [`slo_aware`] | share of the SLO | 0.55 | every 15 s |
//! | `llm-d-token-aware` | [`token_aware`] | seconds of prefill queued | 1.5 | at each sync of the HPA |
//! | `dynamo-throughput`, `dynamo-latency` | [`dynamo`] | KV-cache use | 1, 0.4 | every 5 s |
//! | `dynamo-sla` | [`dynamo_sla`] | share of the SLO | 1 | every 5 s |
//!
//! A policy without a documented setting is one whose target its users have to measure: it is run
//! at the settings of its sweep alone. Each file cites the commit that it was written from.

pub mod aibrix;
pub mod dynamo;
pub mod dynamo_sla;
#[cfg(test)]
mod fixtures;
pub mod hpa;
pub mod knative;
mod regression;
pub mod saturation;
mod series;
pub mod slo_aware;
pub mod token_aware;
pub mod tokens;
mod wva;

use std::fmt;
use std::sync::Arc;

use super::candidate::{Candidate, Context, Why};
use super::number::{ceil_count, floor_index};
use super::policy::Policy;
use super::reference::Planned;

/// A policy and the knob that its users turn.
#[derive(Clone, Copy)]
pub struct Baseline {
    /// The policy's name.
    pub policy: &'static str,
    /// What the knob is, as it stands in labels.
    pub knob: &'static str,
    /// The knob's value in the policy's own documentation, if it has one.
    pub documented: Option<f64>,
    /// Values of the knob over the range in which it makes sense, ascending; the best between two
    /// of them can be looked for with [`Baseline::candidate`].
    pub sweep: &'static [f64],
    /// Makes the policy at a value of the knob.
    pub make: fn(f64, &Context) -> Box<dyn Policy>,
}

impl Baseline {
    /// The policy at a value of its knob, which may lie between those of the sweep.
    #[must_use]
    pub fn candidate(&self, value: f64, why: Why) -> Candidate {
        let make = self.make;
        Candidate {
            policy: self.policy,
            setting: format!("{} {value}", self.knob),
            why,
            make: Arc::new(move |context| make(value, context)),
        }
    }

    /// The documented setting, then the sweep.
    fn candidates(&self) -> impl Iterator<Item = Candidate> {
        let documented = self.documented.map(|value| self.candidate(value, Why::Documented));
        let swept = self.sweep.iter().map(|&value| self.candidate(value, Why::Swept));
        documented.into_iter().chain(swept)
    }
}

impl fmt::Debug for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.policy, self.knob)
    }
}

/// Every baseline.
#[must_use]
pub fn all() -> Vec<Baseline> {
    let families: [&[Baseline]; 9] = [
        &[STATIC],
        &hpa::ALL,
        &knative::ALL,
        &aibrix::ALL,
        &saturation::ALL,
        &tokens::ALL,
        &[slo_aware::SLO_AWARE, token_aware::TOKEN_AWARE],
        &dynamo::ALL,
        &[dynamo_sla::SLA],
    ];
    families.concat()
}

/// Every baseline at its documented setting and at each of its sweep.
#[must_use]
pub fn candidates() -> Vec<Candidate> {
    all().iter().flat_map(Baseline::candidates).collect()
}

/// A fleet that never changes; the documented one is sized for the peak with a margin.
const STATIC: Baseline = Baseline {
    policy: "static",
    knob: "share of max",
    documented: Some(1.0),
    sweep: &[0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
    make: |share, context| {
        let replicas = ceil_count(f64::from(context.max) * share);
        Box::new(Planned::fixed(replicas.clamp(context.min.max(1), context.max)))
    },
};

/// A whole number that was computed as a float, as a number of replicas.
fn count(value: f64) -> u32 {
    u32::try_from(floor_index(value)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use loadgen::engine::{Profile, Time};

    use super::*;
    use crate::simulate::cold::ColdStart;
    use crate::simulate::policy::Slo;
    use crate::simulate::run::{Setup, run};
    use crate::simulate::scenario::Scenario;
    use crate::simulate::supply::Nodes;
    use crate::simulate::workload::{Request, Workload};

    const CONTEXT: Context = Context {
        min: 1,
        max: 20,
        slo: Slo { ttft_s: 2.0, tpot_s: 0.2 },
        kv_tokens: 400_000.0,
        limits: (256.0, 2_048.0),
        gpus: 1,
        mean_tokens: (1_000.0, 200.0),
        prefill_tokens_per_s: 13_000.0,
    };

    #[test]
    fn names_differ_and_sweeps_ascend() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|baseline| baseline.policy).collect();
        assert_eq!(names.len(), all.len());
        for baseline in &all {
            assert!(baseline.sweep.is_sorted_by(|a, b| a < b), "{baseline:?}");
            assert!(baseline.sweep.len() >= 5, "{baseline:?}");
        }
    }

    #[test]
    fn every_setting_can_be_made_and_ticks_at_a_sensible_pace() {
        let candidates = candidates();
        let documented =
            candidates.iter().filter(|candidate| candidate.why == Why::Documented).count();
        assert_eq!(documented, 14);
        for candidate in candidates {
            let policy = (candidate.make)(&CONTEXT);
            assert!((0.2..=3_600.0).contains(&policy.tick_s()), "{candidate:?}");
        }
    }

    /// One request a second, then twelve of them for ten minutes, then one again.
    fn step() -> Workload {
        let mut requests = Vec::new();
        let mut at_s = 0.0;
        while at_s < 2_400.0 {
            requests.push(Request {
                at: Time::from_secs_f64(at_s),
                prompt_tokens: 1_500,
                cached_tokens: 0,
                output_tokens: 100,
            });
            at_s += if (300.0..900.0).contains(&at_s) { 1.0 / 12.0 } else { 1.0 };
        }
        let (counted_from, end) = (Time::ZERO, Time::from_millis(2_400_000));
        Workload { requests, counted_from, end, empty_rows: 0 }
    }

    #[test]
    fn every_peer_that_can_see_a_step_of_load_answers_it_and_comes_back() {
        let profile = Profile::load("8b-a100").unwrap();
        let workload = step();
        let setup = Setup {
            profile: &profile,
            workload: &workload,
            nodes: Nodes::default(),
            scenario: Scenario::NONE,
            cold: ColdStart { mean_s: 60.0, sigma: 0.0, readiness: false },
            slo: CONTEXT.slo,
            min: 1,
            max: 6,
            seed: 1,
        };
        let context = Context { max: 6, ..CONTEXT };
        // A setting at which the peer sees twelve requests a second on one replica, which carries
        // about eight.
        let settings = [
            ("hpa-queue", 5.0),
            ("hpa-concurrency", 8.0),
            ("hpa-concurrency-1m", 8.0),
            ("hpa-request-rate", 4.0),
            ("hpa-gpu", 0.7),
            ("hpa-kv", 0.05),
            ("knative-kpa", 8.0),
            ("knative-kpa-delayed", 8.0),
            ("aibrix-apa", 0.05),
            ("aibrix-apa-intended", 0.05),
            ("aibrix-kpa", 0.05),
            ("aibrix-kpa-intended", 0.05),
            ("llm-d-wva-v1", 0.1),
            ("llm-d-wva-v1-direct", 0.1),
            ("llm-d-wva-v2", 0.5),
            ("llm-d-wva-v2-direct", 0.5),
            ("llm-d-slo-aware", 0.55),
            ("llm-d-token-aware", 0.2),
            ("dynamo-throughput", 0.05),
            ("dynamo-latency", 0.05),
            ("dynamo-sla", 0.5),
        ];
        let all = all();
        assert_eq!(settings.len() + 1, all.len());
        for baseline in all.iter().filter(|baseline| baseline.policy != "static") {
            let found = settings.iter().find(|(policy, _)| *policy == baseline.policy);
            let (_, value) = found.expect(baseline.policy);
            let outcome = run(&setup, (baseline.make)(*value, &context).as_mut());
            let last = outcome.timeline.last().unwrap().ordered;
            let most = outcome.max_replicas;
            assert!((2..=6).contains(&most), "{baseline:?}: {most}");
            assert!(last < most, "{baseline:?}: {last} of {most}");
        }
    }

    #[test]
    fn a_static_fleet_is_a_share_of_the_most_and_never_none() {
        let label = |share| STATIC.candidate(share, Why::Swept).setting;
        assert_eq!(label(0.45), "share of max 0.45");
    }
}
