//! One sample from the series of one target: sums, maxima, and what may be zero.
//!
//! Must not guess: a number that is absent or impossible stays `None`.

use std::collections::BTreeMap;

use super::fold::{Cell, SeriesFold};
use super::profile::{Combine, Field};
use super::{EnginePage, PageError};
use crate::decision::{EngineSample, Moment};
use crate::signals::exposition::millis_of_seconds;
use crate::trigger::EngineFamily;

/// Largest number of requests that a gauge of one engine is believed: a server with a hundred thousand
/// open connections is rare, and no engine holds a request without one.
const MAX_REQUESTS: f64 = 1e6;
/// Largest counter that is believed: 2^53, a million a second for 285 years.
const MAX_COUNT: f64 = 9_007_199_254_740_992.0;
/// KV usage is a ratio; what is above 1 by rounding is 1.
const MAX_KV_USAGE: f64 = 1.02;

#[derive(Debug)]
pub(super) struct Totals<'a> {
    fold: &'a SeriesFold<'a>,
    profile: usize,
}

impl<'a> Totals<'a> {
    pub(super) fn new(fold: &'a SeriesFold<'a>, profile: usize) -> Totals<'a> {
        Totals { fold, profile }
    }

    pub(super) fn page(
        &self,
        family: EngineFamily,
        page_at: Moment,
    ) -> Result<EnginePage, PageError> {
        let waiting = self.load(Field::Waiting)?;
        let running = self.load(Field::Running)?;
        let waiting_deferred = self.load(Field::WaitingDeferred)?;
        let mut sample = self.sample(page_at);
        let idle_load = self.idle_since_start(&sample).then_some(0.0);
        sample.waiting = waiting.or(idle_load);
        sample.running = running.or(idle_load);
        sample.waiting_deferred = waiting_deferred;
        Ok(EnginePage { family, sample, copied: false })
    }

    fn sample(&self, page_at: Moment) -> EngineSample {
        let started_at = self.total(Field::StartedAt).or(self.fold.process_start);
        let kv_tokens = self
            .total(Field::KvTokens)
            .or_else(|| Some(self.total(Field::KvBlocks)? * self.total(Field::KvBlockTokens)?));
        let kv_usage = self.total(Field::KvUsage).or_else(|| {
            let usage = self.total(Field::KvUsedTokens)? / kv_tokens?;
            (0.0..=MAX_KV_USAGE).contains(&usage).then_some(usage)
        });
        // What the cache held is counted with the prompt, so that the difference never falls.
        let cached = self.total(Field::CachedPromptTokens);
        let counted = self.total(Field::PromptTokens);
        let prompt_tokens = counted.map(|all| (all - cached.unwrap_or(0.0)).max(0.0));
        EngineSample {
            at: self.sampled_at(page_at),
            kv_usage: kv_usage.map(|usage| usage.min(1.0)),
            kv_tokens,
            prompt_tokens,
            all_prompt_tokens: self.total(Field::AllPromptTokens).or_else(|| cached.and(counted)),
            generated_tokens: self.total(Field::GeneratedTokens),
            finished: self.total(Field::Finished),
            finished_generated_tokens: self.total(Field::FinishedGeneratedTokens),
            rejected: self.total(Field::Rejected),
            preemptions: self.total(Field::Preemptions),
            steps: self.total(Field::Steps),
            ttft_sum_s: self.total(Field::TtftSum),
            ttft_count: self.total(Field::TtftCount),
            itl_sum_s: self.total(Field::ItlSum),
            itl_count: self.total(Field::ItlCount),
            max_running: self.total(Field::MaxRunning),
            asleep: self.total(Field::Awake).map(|awake| awake < 0.5),
            started_at: started_at.and_then(millis_of_seconds).map(Moment),
            waiting_spread: self.waiting_spread(),
            ..EngineSample::default()
        }
    }

    /// A number of requests: an impossible one makes the whole page unreadable, since `None` would
    /// read as "this engine does not tell".
    fn load(&self, field: Field) -> Result<Option<f64>, PageError> {
        let bad = self.cells(field).find(|cell| !plausible(field, cell.value)).copied();
        match bad {
            Some(bad) => Err(PageError::Impossible { name: bad.row.name, value: bad.value }),
            None => Ok(self.total(field)),
        }
    }

    /// The field's number; `None` where it is absent or any part of it is impossible.
    fn total(&self, field: Field) -> Option<f64> {
        let mut total: Option<f64> = None;
        for cell in self.cells(field) {
            if !plausible(field, cell.value) {
                return None;
            }
            total = Some(match (total, cell.row.combine) {
                (None, _) => cell.value,
                (Some(total), Combine::Sum) => total + cell.value,
                (Some(total), Combine::Max) => total.max(cell.value),
            });
        }
        total
    }

    /// Whether the engine has had no request yet, and therefore has no sample of its load.
    ///
    /// vLLM before its first request has the gauges' `# TYPE` lines without samples where it runs
    /// several API servers (captured: 0.32 with two), and the Rust front end creates them lazily;
    /// its step counter at zero proves the same, also through Prometheus, which drops `# TYPE`
    /// lines. 0.9.1 V0 has nothing but the cache's configuration then (captured). Anywhere else
    /// absent gauges mean an unknown dialect, and their load stays unknown.
    fn idle_since_start(&self, sample: &EngineSample) -> bool {
        let work = [sample.steps, sample.generated_tokens, sample.prompt_tokens, sample.finished];
        let worked = work.iter().flatten().any(|&count| count > 0.0);
        let declared = self.fold.declares(self.profile, Field::Waiting)
            && self.fold.declares(self.profile, Field::Running);
        let no_step = sample.steps.is_some();
        let mut cells = self.fold.all_cells(self.profile);
        let nothing_but_info =
            self.fold.unranked_info && cells.all(|cell| cell.row.field == Field::KvTokens);
        !worked && (declared || no_step || nothing_but_info)
    }

    /// The oldest of the load gauges, since with targets merged behind Prometheus one of them may
    /// have stopped; without load gauges the newest of all.
    fn sampled_at(&self, page_at: Moment) -> Moment {
        let at = |cell: &Cell| cell.at.unwrap_or(page_at);
        let load = self.cells(Field::Waiting).chain(self.cells(Field::Running)).map(at).min();
        load.or_else(|| self.fold.all_cells(self.profile).map(at).max()).unwrap_or(page_at)
    }

    fn waiting_spread(&self) -> Option<f64> {
        let mut by_rank = BTreeMap::new();
        for cell in self.cells(Field::Waiting) {
            *by_rank.entry(cell.rank).or_insert(0.0) += cell.value;
        }
        let waiting = || by_rank.values().copied();
        let spread = waiting().fold(f64::MIN, f64::max) - waiting().fold(f64::MAX, f64::min);
        (by_rank.len() > 1).then_some(spread)
    }

    fn cells(&self, field: Field) -> impl Iterator<Item = &Cell> {
        self.fold.cells(self.profile, field)
    }
}

fn plausible(field: Field, value: f64) -> bool {
    let max = match field {
        Field::Waiting | Field::WaitingDeferred | Field::Running | Field::MaxRunning => {
            MAX_REQUESTS
        }
        Field::KvUsage => MAX_KV_USAGE,
        Field::Awake => 1.0,
        Field::StartedAt => return millis_of_seconds(value).is_some(),
        Field::KvTokens
        | Field::KvUsedTokens
        | Field::KvBlocks
        | Field::KvBlockTokens
        | Field::PromptTokens
        | Field::CachedPromptTokens
        | Field::AllPromptTokens
        | Field::GeneratedTokens
        | Field::Finished
        | Field::FinishedGeneratedTokens
        | Field::Rejected
        | Field::Preemptions
        | Field::Steps
        | Field::TtftSum
        | Field::TtftCount
        | Field::ItlSum
        | Field::ItlCount => MAX_COUNT,
    };
    (0.0..=max).contains(&value)
}
