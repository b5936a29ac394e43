//! The replica as the history shows it: what its steps cost, learned as the scaler learns it.
//!
//! Must not fall back to another engine's costs: where the history does not teach them there is no
//! model, and the error says what was missing.

use loadgen::engine::{Profile, ProfileError};

use super::Error;
use super::demand::is_restart;
use super::timeline::{Scrape, Timelines};
use crate::decision::{CostModel, Interval, LearnedCost, Moment};
use crate::simulate::number::ceil_index;

/// What stands in for figures that no engine exports, from vLLM's defaults.
const DEFAULT_MAX_NUM_SEQS: usize = 256;
const DEFAULT_BATCHED_TOKENS: usize = 2_048;
/// The profile whose manners (blocks, start, shutdown) a learned one has.
const BASE: &str = "8b-a100";

/// A replica for the replay.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) profile: Profile,
    /// What was learned; `None` for a profile that was given.
    pub(super) learned: Option<LearnedCost>,
    /// What was taken for granted, in words.
    pub(super) assumed: Vec<String>,
}

impl Model {
    /// The profile that was asked for.
    pub(super) fn given(name_or_path: &str) -> Result<Model, ProfileError> {
        let profile = Profile::load(name_or_path)?;
        Ok(Model { profile, learned: None, assumed: Vec::new() })
    }

    /// What the history teaches.
    ///
    /// # Errors
    ///
    /// [`Error::Unlearned`] when that is not enough.
    pub(super) fn learn(timelines: &Timelines) -> Result<Model, Error> {
        let cost = fit(timelines);
        if !cost.is_usable() {
            let has_steps = all(timelines).any(|scrape| scrape.sample.steps.is_some());
            return Err(Error::Unlearned {
                rows: cost.rows(),
                error: cost.error(),
                why: if has_steps {
                    "busy replicas under a load that varies by 10 % are needed, scraped at least \
                     each minute"
                } else {
                    "this engine does not count its steps"
                },
            });
        }
        let [step_s, prompt_s, generated_s, kv_s] = cost.costs();
        let mut profile = Profile::load(BASE)?;
        let mut assumed = Vec::new();
        "learned".clone_into(&mut profile.name);
        "learned from the history".clone_into(&mut profile.about);
        match all(timelines).filter_map(|scrape| scrape.sample.kv_tokens).reduce(f64::max) {
            Some(tokens) => profile.kv.blocks = ceil_index(tokens / block_tokens(&profile)) + 1,
            None => assumed.push(format!("a KV cache of {} tokens", profile.kv_tokens())),
        }
        let (seqs, is_seen) = max_num_seqs(timelines);
        profile.limits.max_num_seqs = seqs;
        profile.limits.max_num_batched_tokens = DEFAULT_BATCHED_TOKENS.max(seqs);
        if !is_seen {
            assumed.push(format!("max_num_seqs {seqs}"));
        }
        assumed.push(format!("max_num_batched_tokens {}", profile.limits.max_num_batched_tokens));
        profile.step.base_ms = step_s * 1e3;
        profile.step.attention_ns = 0.0;
        // Milliseconds of a million tokens, so that a curve of two points is exact enough.
        let line = |seconds: f64| vec![(0, 0.0), (1_000_000, seconds * 1e9)];
        profile.step.prefill_ms = line(prompt_s);
        profile.step.decode_ms = line(generated_s);
        profile.step.resident_ms = vec![(0, 0.0), (profile.kv_tokens().max(1), kv_s * 1e3)];
        let [step_ms, prompt_ms, generated_ms, kv_ms] = cost.costs().map(|seconds| seconds * 1e3);
        let (error, rows) = (cost.error(), cost.rows());
        let learned = LearnedCost { step_ms, prompt_ms, generated_ms, kv_ms, error, rows };
        Ok(Model { profile, learned: Some(learned), assumed })
    }

    /// The same replica with steps that take so much more or less.
    pub(super) fn slower(&self, factor: f64) -> Profile {
        let mut profile = self.profile.clone();
        let step = &mut profile.step;
        step.base_ms *= factor;
        step.attention_ns *= factor;
        for points in [&mut step.prefill_ms, &mut step.decode_ms, &mut step.resident_ms] {
            points.iter_mut().for_each(|(_, ms)| *ms *= factor);
        }
        profile
    }

    /// Relative error of its costs, 0 for a given profile: nothing is known of it.
    pub(super) fn error(&self) -> f64 {
        self.learned.map_or(0.0, |learned| learned.error)
    }
}

/// Feeds the intervals of all replicas in the order of time.
fn fit(timelines: &Timelines) -> CostModel {
    let mut intervals: Vec<(Moment, Interval)> = Vec::new();
    for scrapes in timelines.by_target.values() {
        // The first interval of a life holds its warm-up.
        let mut is_warm = false;
        let mut row: Option<Interval> = None;
        for pair in scrapes.windows(2) {
            let [before, after] = pair else { continue };
            let (before, after) = (&before.sample, &after.sample);
            let restarted = is_restart(before, after);
            let part = Interval::part(before, after).filter(|_| is_warm && !restarted);
            row = part.map(|part| row.map_or(part, |row| row.then(part)));
            intervals.extend(row.take_if(|row| row.is_whole()).map(|row| (after.at, row)));
            is_warm = !restarted;
        }
    }
    intervals.sort_by_key(|(at, _)| *at);
    let mut cost = CostModel::default();
    let rounds =
        intervals.chunk_by(|(a, _), (b, _)| a.0.div_euclid(ROUND_MS) == b.0.div_euclid(ROUND_MS));
    for round in rounds {
        // Replicas that are scraped in the same minute tell the same thing at once.
        let seconds: f64 = round.iter().map(|(_, interval)| interval.seconds).sum();
        let n_replicas = (seconds / (ROUND_MS as f64 / 1e3)).max(1.0);
        for (_, interval) in round {
            cost.observe(interval, n_replicas);
        }
        cost.refit();
    }
    cost
}

/// Intervals are taken in by the minute.
const ROUND_MS: i64 = 60_000;

fn all(timelines: &Timelines) -> impl Iterator<Item = &Scrape> {
    timelines.by_target.values().flatten()
}

/// The engine's limit of running requests, and whether it was seen: what it exports, else the most
/// that ran while something waited.
fn max_num_seqs(timelines: &Timelines) -> (usize, bool) {
    let told = all(timelines).filter_map(|scrape| scrape.sample.max_running).reduce(f64::max);
    if let Some(told) = told.filter(|told| *told >= 1.0) {
        return (ceil_index(told), true);
    }
    let running = |scrape: &Scrape| scrape.sample.running.unwrap_or(0.0);
    let waits = |scrape: &&Scrape| scrape.sample.waiting.is_some_and(|waiting| waiting >= 1.0);
    // Requests also wait for KV blocks, and for the next step: below a full cache alone it is this
    // limit, and only if as many ran more than once.
    let has_room = |scrape: &&Scrape| scrape.sample.kv_usage.is_some_and(|kv| kv < 0.9);
    let most = all(timelines).map(running).fold(0.0, f64::max);
    let at_limit = all(timelines)
        .filter(waits)
        .filter(has_room)
        .filter(|scrape| running(scrape) >= most)
        .count();
    if at_limit >= 3 && most >= 1.0 {
        (ceil_index(most), true)
    } else {
        (DEFAULT_MAX_NUM_SEQS.max(ceil_index(most)), false)
    }
}

fn block_tokens(profile: &Profile) -> f64 {
    profile.kv.block_tokens.max(1) as f64
}
