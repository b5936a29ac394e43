//! Every policy that can be asked for by name.
//!
//! Must not hold a policy.

use super::baselines;
use super::candidate::{Candidate, Context, Why};
use super::product::Ghostscaler;
use crate::decision::{Part, Spec, ZeroAfter};
use crate::text::did_you_mean;

/// The product's name among the policies.
const OURS: &str = "ghostscaler";

/// The candidates, by policy.
#[derive(Debug)]
pub struct Catalog {
    all: Vec<Candidate>,
}

impl Default for Catalog {
    fn default() -> Catalog {
        Catalog::new()
    }
}

impl Catalog {
    /// All policies.
    #[must_use]
    pub fn new() -> Catalog {
        let mut all = vec![ours()];
        all.extend(baselines::candidates());
        Catalog { all }
    }

    /// Those with the names; `all` is each of them.
    ///
    /// # Errors
    ///
    /// When a name is nobody's.
    pub fn select(self, names: &[String]) -> Result<Vec<Candidate>, Unknown> {
        let wants_all = names.iter().any(|name| name == "all");
        for name in names {
            if name != "all" && !self.all.iter().any(|candidate| candidate.policy == name) {
                return Err(self.unknown(name));
            }
        }
        let is_wanted =
            |candidate: &Candidate| wants_all || names.iter().any(|name| name == candidate.policy);
        Ok(self.all.into_iter().filter(is_wanted).collect())
    }

    fn unknown(&self, name: &str) -> Unknown {
        let mut known: Vec<&'static str> =
            self.all.iter().map(|candidate| candidate.policy).collect();
        known.dedup();
        known.push("all");
        let meant = did_you_mean(name, known.iter().copied());
        Unknown { name: name.to_owned(), meant, known: known.join(", ") }
    }
}

/// No policy has that name.
#[derive(Debug, thiserror::Error)]
#[error("`--policy {name}` is not known: {meant}expected some of {known}")]
pub struct Unknown {
    name: String,
    meant: String,
    known: String,
}

/// The product at its defaults: what a ScaledObject with nothing but bounds and targets gets.
fn ours() -> Candidate {
    Candidate::new(OURS, "", Why::Default, |context| Ghostscaler::new(spec(context)))
}

/// The product with one part left out at a time, of those that see something in a simulation.
pub(super) fn ablations() -> Vec<Candidate> {
    let without = |part: Part| {
        let setting = format!("without {}", part.label());
        Candidate::new(OURS, setting, Why::Ablation, move |context| {
            Ghostscaler::new(Spec { without: Some(part), ..spec(context) })
        })
    };
    // No simulated engine shows its GPU.
    Part::ALL.into_iter().filter(|part| *part != Part::GpuCeiling).map(without).collect()
}

fn spec(context: &Context) -> Spec {
    let millis = |seconds: f64| super::number::floor_index((seconds * 1e3).round()) as u64;
    Spec {
        min: context.min,
        max: context.max,
        slo_ttft_ms: millis(context.slo.ttft_s),
        slo_tpot_ms: millis(context.slo.tpot_s),
        has_wake_source: context.min == 0,
        zero_after: if context.min == 0 { Spec::default().zero_after } else { ZeroAfter::Never },
        gpus_per_replica: Some(context.gpus),
        ..Spec::default()
    }
}
