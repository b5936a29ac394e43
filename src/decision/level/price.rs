//! What a token and a request cost in engine time, and how busy a replica may be.
//!
//! Must not remember anything: it is worked out anew each tick from what was learned.

use super::learned::Figures;
use super::{Ask, Means, pool};
use crate::decision::LevelSource;
use crate::decision::window::Flow;

/// Utilisation that a replica is never planned below or above. Below 0.3 the targets cannot be met
/// by more replicas either; above 0.95 waiting times grow without bound.
const CAP_RANGE: (f64, f64) = (0.3, 0.95);
/// Utilisation planned against a throughput that was measured at saturation.
const CAP_SATURATION: f64 = 0.85;
/// Standard deviations of a number of arrivals that pass for chance.
const CHANCE: f64 = 3.0;
/// So much of what was seen is planned with: the edges of a queue and the dips between two steps are in the
/// mean, which is 1-2 % below the engine simulator's own limit (chat and code on four profiles).
const FULL_SEEN: f64 = 1.02;
/// A replica is taken to be full at this part of that at least (DESIGN: ±15 %): less is not a full replica
/// but a queue that the others do not share.
const FULL_MIN: f64 = 0.85;
/// Share of the KV cache that residents may fill (costmodel.md 3).
const KV_SHARE: f64 = 0.9;

/// Prices in seconds of one replica's time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::decision) struct Price {
    pub(in crate::decision) source: LevelSource,
    prompt_s: f64,
    generated_s: f64,
    finished_s: f64,
    /// One mean request, where its length is known.
    pub(in crate::decision) request_s: Option<f64>,
    /// Seconds of the mean prompt, and of an empty step.
    pub(in crate::decision) prompt_each_s: f64,
    pub(in crate::decision) step_s: f64,
    /// Utilisation that a replica can carry: above it tokens come too slowly, or requests do not fit.
    pub(in crate::decision) cap: f64,
    /// Utilisation at which a replica was seen to be full; 1 before. See [`super::full`].
    pub(in crate::decision) full: f64,
    /// What waiting needs of a pool beyond that; see [`super::pool`].
    pub(in crate::decision) margin: f64,
}

impl Price {
    /// The price by the cost model, else by the throughput measured at saturation.
    pub(super) fn of(ask: &Ask<'_>, minute: &Means, figures: &Figures) -> Option<Price> {
        if ask.seen.learnable
            && let Some(costs) = figures.costs
        {
            return Some(by_cost_model(ask, minute, costs, figures));
        }
        // Where there is something to learn from, the measure of load stays one.
        if ask.seen.learnable {
            return None;
        }
        let saturation = figures.saturation?;
        let request_s = saturation.request_s();
        let (generated_s, finished_s) = match saturation.generated.filter(|rate| *rate > 0.0) {
            Some(rate) => (1.0 / rate, 0.0),
            None => (0.0, request_s?),
        };
        Some(Price {
            source: LevelSource::Saturation,
            prompt_s: 0.0,
            generated_s,
            finished_s,
            request_s,
            prompt_each_s: 0.0,
            step_s: 0.0,
            cap: CAP_SATURATION,
            full: 1.0,
            margin: 0.0,
        })
    }

    /// Work served, replica-seconds per second.
    pub(in crate::decision) fn served(&self, means: &Means) -> f64 {
        self.of_flow(means.served())
    }

    /// Work of prompt tokens, generated tokens and finished requests per second.
    pub(super) fn of_flow(&self, [prompt, generated, finished]: Flow) -> f64 {
        prompt * self.prompt_s + generated * self.generated_s + finished * self.finished_s
    }

    /// Work of the prompts and answers that came: what was served and what the queue grew by.
    pub(in crate::decision) fn balance(&self, means: &Means) -> f64 {
        let queued = self.request_s.map_or(0.0, |request_s| means.queued * request_s);
        (self.served(means) + queued).max(0.0)
    }

    /// Work demanded. The balance knows what came from what was done, hardly with noise; requests
    /// that came tell a rise sooner where answers are long, but their number is a matter of chance.
    /// So they count as far as chance does not explain them: the larger of two noisy numbers would
    /// be too large most of the time.
    pub(in crate::decision) fn demanded(&self, means: &Means) -> f64 {
        let balance = self.balance(means);
        let Some(request_s) = self.request_s else { return balance };
        let chance = CHANCE * (means.arrived / means.span_s.max(1.0)).sqrt();
        balance.max((means.arrived - chance) * request_s)
    }
}

fn by_cost_model(ask: &Ask<'_>, minute: &Means, costs: [f64; 4], figures: &Figures) -> Price {
    let [step_s, prompt_s, token_s, kv_s] = costs;
    // KV use of one running request: what each of its tokens adds to a step.
    let kv_each = if minute.running > 0.0 { minute.kv_used / minute.running } else { 0.0 };
    let generated_s = token_s + kv_s * kv_each;
    let lengths = figures.request;
    let prompt_each_s = lengths.map_or(0.0, |(prompt, _)| prompt * prompt_s);
    let request_s = lengths.map(|(prompt, generated)| prompt * prompt_s + generated * generated_s);

    // Little's law: step time at utilisation x is t0/(1-x), so it keeps the target up to 1-t0/target.
    let tpot_s = crate::decision::number::seconds(ask.spec.slo_tpot_ms);
    let by_latency = 1.0 - step_s / tpot_s;
    // Residents = rate · length · step time must fit the KV cache and the engine's own limit.
    let by_kv = if kv_each > 0.0 { KV_SHARE / kv_each } else { f64::INFINITY };
    let residents = by_kv.min(figures.running_limit.unwrap_or(f64::INFINITY));
    let by_residents = match lengths.zip(request_s) {
        Some(((_, generated), request_s)) if residents.is_finite() && generated > 0.0 => {
            let qw = residents / (generated * step_s.max(1e-6)) * request_s;
            qw / (1.0 + qw)
        }
        Some(_) | None => 1.0,
    };
    let cap = by_latency.min(by_residents).min(CAP_RANGE.1);
    Price {
        source: LevelSource::CostModel,
        prompt_s,
        generated_s,
        finished_s: 0.0,
        request_s: request_s.filter(|request_s| *request_s > 0.0),
        prompt_each_s,
        step_s,
        cap: (cap * (1.0 - figures.lost)).max(CAP_RANGE.0),
        full: figures.full.map_or(1.0, |full| (FULL_SEEN * full).clamp(FULL_MIN * cap, 1.0)),
        margin: pool::margin(ask, prompt_each_s + step_s),
    }
}
