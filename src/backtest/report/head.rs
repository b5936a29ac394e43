//! What is known of the history, and how far: what is shown before any policy.
//!
//! Must not print; what is not known is said to be so.

use serde::Serialize;

use super::super::Args;
use super::super::demand::{Amounts, Bin, Demand, Known};
use super::super::fetch::Fetched;
use super::super::history::History;
use super::super::replay::{HISTORY, Setting};
use super::super::span::{Span, shown};
use crate::decision::LearnedCost;
use crate::simulate::outcome::Times;
use crate::simulate::study::Study;

#[derive(Debug, Serialize)]
pub(super) struct Head {
    pub(super) namespace: String,
    pub(super) workload: String,
    pub(super) prometheus: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) step_s: f64,
    /// Money for a GPU and hour, if it was given.
    pub(super) gpu_price: Option<f64>,
    pub(super) history: Past,
    pub(super) coverage: Coverage,
    pub(super) uncertainty: Uncertainty,
    pub(super) model: Replica,
}

/// What really happened in the part that counts.
#[derive(Debug, Serialize)]
pub(super) struct Past {
    pub(super) requests: f64,
    pub(super) prompt_tokens: f64,
    pub(super) cached_tokens: f64,
    pub(super) generated_tokens: f64,
    pub(super) rejected_requests: f64,
    pub(super) mean_replicas: f64,
    pub(super) max_replicas: u32,
    pub(super) replicas_from: &'static str,
    pub(super) gpus_per_replica: u32,
    pub(super) gpus_from: &'static str,
    pub(super) gpu_hours: f64,
    pub(super) money: Option<f64>,
    /// Mean share of time that the GPUs were busy, 0..1, by DCGM.
    pub(super) gpu_busy: Option<f64>,
    pub(super) mean_ttft_s: Option<f64>,
    /// The engine's own bound next to the target, and the share of first tokens within it: as it
    /// was, and as the replay has it, which tells how far the replay can be trusted.
    pub(super) ttft_bound_s: Option<f64>,
    pub(super) ttft_share: Option<f64>,
    pub(super) ttft_share_replayed: Option<f64>,
    pub(super) cold_start_s: f64,
    pub(super) cold_start_from: &'static str,
}

/// How much of the span is known.
#[derive(Debug, Serialize)]
pub(super) struct Coverage {
    pub(super) span_hours: f64,
    pub(super) known_hours: f64,
    pub(super) known_share: f64,
    /// Of the known ones: between two scrapes further apart than usual.
    pub(super) bridged_hours: f64,
    pub(super) missing_hours: f64,
    /// After the warm-up.
    pub(super) counted_hours: f64,
    pub(super) replicas_seen: usize,
    pub(super) restarts: usize,
    pub(super) scrape_interval_s: f64,
    pub(super) unreadable_scrapes: usize,
    pub(super) selected_by: String,
    #[serde(flatten)]
    pub(super) fetched: Fetched,
}

/// How far the demand is known.
#[derive(Debug, Serialize)]
pub(super) struct Uncertainty {
    pub(super) requests_low: f64,
    pub(super) requests_high: f64,
    /// Requests of gaps that are too long to place them; in none of the figures.
    pub(super) unplaced_requests: f64,
    /// Hours in which requests waited on most replicas: clients may have held more back.
    pub(super) queued_hours: f64,
    pub(super) arrivals_from: &'static str,
    pub(super) lengths_from: &'static str,
    /// Mean relative error of the learned costs: the replay runs with steps that much longer in the
    /// most demand, and shorter in the least.
    pub(super) step_error: f64,
    pub(super) notes: Vec<String>,
}

/// The replica that was replayed.
#[derive(Debug, Serialize)]
pub(super) struct Replica {
    pub(super) from: &'static str,
    pub(super) profile: String,
    pub(super) learned: Option<LearnedCost>,
    pub(super) assumed: Vec<String>,
}

impl Head {
    pub(super) fn new(
        args: &Args,
        span: &Span,
        history: &History,
        demand: &Demand,
        setting: &Setting<'_>,
        study: &Study,
    ) -> Head {
        let model = setting.model;
        Head {
            namespace: args.namespace.clone(),
            workload: args.workload.clone(),
            prometheus: args.prometheus.clone(),
            from: shown(span.from),
            to: shown(span.to),
            step_s: span.step_s(),
            gpu_price: args.gpu_price,
            history: past(args, history, setting, study),
            coverage: coverage(span, history, demand, setting),
            uncertainty: uncertainty(span, history, demand, setting),
            model: Replica {
                from: if model.learned.is_some() { "learned" } else { "profile" },
                profile: model.profile.name.clone(),
                learned: model.learned,
                assumed: model.assumed.clone(),
            },
        }
    }
}

fn past(args: &Args, history: &History, setting: &Setting<'_>, study: &Study) -> Past {
    let Setting { gpus, cold_start, .. } = *setting;
    let (bins, replicas) = setting.stretch.counted();
    let total = sum(bins);
    let replica_s: f64 = replicas.iter().map(|&n| f64::from(n) * setting.stretch.bin_s).sum();
    let gpu_hours = replica_s / 3_600.0 * f64::from(gpus.value);
    let ttft = history.ttfts.share_within(setting.slo.ttft_s);
    let replayed = study.entries.iter().find(|entry| entry.candidate.policy == HISTORY);
    let replayed = replayed.and_then(|entry| entry.outcomes.first());
    let share = |(bound, _): (f64, f64)| replayed.map(|o| share_within(&o.ttft, bound));
    Past {
        requests: total.arrivals,
        prompt_tokens: total.prompt,
        cached_tokens: (total.prompt - total.computed).max(0.0),
        generated_tokens: total.generated,
        rejected_requests: total.rejected,
        mean_replicas: replica_s / (bins.len() as f64 * setting.stretch.bin_s).max(1.0),
        max_replicas: replicas.iter().copied().max().unwrap_or(0),
        replicas_from: history.counts_from.unwrap_or("as many as were scraped"),
        gpus_per_replica: gpus.value,
        gpus_from: gpus.from,
        gpu_hours,
        money: args.gpu_price.map(|price| price * gpu_hours),
        gpu_busy: history.gpus.busy,
        mean_ttft_s: (total.first_tokens > 0.0).then(|| total.ttft_s / total.first_tokens),
        ttft_bound_s: ttft.map(|(bound, _)| bound),
        ttft_share: ttft.map(|(_, share)| share),
        ttft_share_replayed: ttft.and_then(share),
        cold_start_s: cold_start.value,
        cold_start_from: cold_start.from,
    }
}

fn coverage(span: &Span, history: &History, demand: &Demand, setting: &Setting<'_>) -> Coverage {
    let step_h = span.step_s() / 3_600.0;
    let hours =
        |known: Known| demand.bins.iter().filter(|bin| bin.known == known).count() as f64 * step_h;
    let (bridged, missing) = (hours(Known::Bridged), hours(Known::Missing));
    let known = hours(Known::Seen) + bridged;
    Coverage {
        span_hours: known + missing,
        known_hours: known,
        known_share: known / (known + missing).max(1e-9),
        bridged_hours: bridged,
        missing_hours: missing,
        counted_hours: setting.stretch.counted().0.len() as f64 * step_h,
        replicas_seen: history.timelines.by_target.len(),
        restarts: demand.restarts,
        scrape_interval_s: demand.interval_ms as f64 / 1e3,
        unreadable_scrapes: history.timelines.unreadable,
        selected_by: history.found.by.words(),
        fetched: history.fetched,
    }
}

fn uncertainty(
    span: &Span,
    history: &History,
    demand: &Demand,
    setting: &Setting<'_>,
) -> Uncertainty {
    let (bins, _) = setting.stretch.counted();
    let total = sum(bins);
    let is_queued = |bin: &&Bin| bin.scraped > 0.0 && bin.queued > bin.scraped / 2.0;
    let queued_hours = bins.iter().filter(is_queued).count() as f64 * span.step_s() / 3_600.0;
    let has_shapes = setting.shapes.prompt.is_known() && setting.shapes.output.is_known();
    let missing = demand.bins.iter().filter(|bin| bin.known == Known::Missing).count();
    let mut notes = Vec::new();
    let mut note = |is_so: bool, words: String| {
        if is_so {
            notes.push(words);
        }
    };
    let missing_h = missing as f64 * span.step_s() / 3_600.0;
    note(
        missing_h >= 0.01,
        format!("{missing_h:.2} h have no scrape and are cut out: every figure is about the rest"),
    );
    note(
        demand.unplaced >= 0.5,
        format!(
            "{:.0} requests came in gaps too long to place them, and are in no figure",
            demand.unplaced
        ),
    );
    note(
        history.fetched.partial_answers > 0,
        format!(
            "{} answers came with a warning: series may be missing in them",
            history.fetched.partial_answers
        ),
    );
    note(
        history.timelines.unreadable > 0,
        format!("{} scrapes could not be read and were left out", history.timelines.unreadable),
    );
    note(
        !demand.has_in_flight,
        "requests in flight are not told, so that arrivals are completions: a duration late"
            .to_owned(),
    );
    note(
        queued_hours > 0.0,
        format!("requests waited in {queued_hours:.2} h: what clients held back then is not known"),
    );
    note(
        !has_shapes,
        "the engine has no histogram of lengths: they are spread exponentially".to_owned(),
    );
    note(
        history.counts_from.is_none(),
        "kube-state-metrics has no counts: replicas are those that were scraped, without the time \
         in which they loaded"
            .to_owned(),
    );
    let assumed = &setting.model.assumed;
    note(!assumed.is_empty(), format!("taken for granted: {}", assumed.join(", ")));
    note(
        true,
        format!(
            "within {:.0} s requests come at random; long prompts have no longer answers than others",
            span.step_s()
        ),
    );
    Uncertainty {
        requests_low: (total.arrivals - total.fewer).max(0.0),
        requests_high: total.arrivals + total.more,
        unplaced_requests: demand.unplaced,
        queued_hours,
        arrivals_from: if demand.has_in_flight {
            "completions and in-flight"
        } else {
            "completions"
        },
        lengths_from: if has_shapes { "histograms" } else { "assumed" },
        step_error: setting.model.error(),
        notes,
    }
}

fn sum(bins: &[Bin]) -> Amounts {
    bins.iter().fold(Amounts::default(), |mut sum, bin| {
        sum += bin.amounts;
        sum
    })
}

/// The share of durations within a bound.
fn share_within(times: &Times, bound_s: f64) -> f64 {
    // 2^-20 is finer than the share of one of a million requests.
    (1..=20).fold(0.0, |share, halving| {
        let next = share + 0.5_f64.powi(halving);
        if times.quantile(next).is_none_or(|quantile| quantile <= bound_s) { next } else { share }
    })
}
