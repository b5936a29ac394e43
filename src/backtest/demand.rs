//! Demand from what the replicas counted: requests and tokens in each bin, and how far they are
//! known.
//!
//! Must not make a number out of nothing: a bin that nobody has seen is missing, not zero; what may
//! be more or less than counted is kept beside the count.
//!
//! Arrivals of a replica between two scrapes are what finished plus what is in flight more, so that
//! requests that wait count when they come. Four things stay hidden and are bounded instead:
//!
//! - what a replica did between its last scrape and its end or restart: at the rate before, *more*;
//! - requests in flight then, whose clients may have come again: *fewer*;
//! - requests that an engine refused, which come again or not: *more*;
//! - replicas that were ready and not scraped: as much each as the others, *more*.
//!
//! What clients held back because answers were slow cannot be bounded; the time in which requests
//! waited is told instead.

use std::ops::AddAssign;

use super::span::Span;
use super::timeline::{Scrape, Timelines};
use crate::decision::{EngineSample, Moment};

/// A gap between two scrapes that is bridged: the counters say how much came, only not when. Beyond
/// it the shape of the load is not known.
const LONGEST_BRIDGE_MS: u64 = 600_000;
/// A replica is silent beyond so many of its usual intervals.
const SILENT_INTERVALS: u64 = 3;
/// A start that is told to a second is a restart if it moved by more.
const SAME_START_MS: u64 = 2_000;

/// What came in a bin, or over several.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Amounts {
    /// Requests that came.
    pub(super) arrivals: f64,
    /// As many of them may have been counted twice.
    pub(super) fewer: f64,
    /// As many may have come beside them.
    pub(super) more: f64,
    /// Requests that ended.
    pub(super) finished: f64,
    /// Requests that got their first token, and what they waited for it in seconds.
    pub(super) first_tokens: f64,
    pub(super) ttft_s: f64,
    /// Prompt tokens, and of these the ones that were computed.
    pub(super) prompt: f64,
    pub(super) computed: f64,
    /// Generated tokens.
    pub(super) generated: f64,
    /// Requests that an engine refused.
    pub(super) rejected: f64,
}

impl AddAssign for Amounts {
    fn add_assign(&mut self, other: Amounts) {
        self.arrivals += other.arrivals;
        self.fewer += other.fewer;
        self.more += other.more;
        self.finished += other.finished;
        self.first_tokens += other.first_tokens;
        self.ttft_s += other.ttft_s;
        self.prompt += other.prompt;
        self.computed += other.computed;
        self.generated += other.generated;
        self.rejected += other.rejected;
    }
}

impl Amounts {
    fn times(self, share: f64) -> Amounts {
        Amounts {
            arrivals: self.arrivals * share,
            fewer: self.fewer * share,
            more: self.more * share,
            finished: self.finished * share,
            first_tokens: self.first_tokens * share,
            ttft_s: self.ttft_s * share,
            prompt: self.prompt * share,
            computed: self.computed * share,
            generated: self.generated * share,
            rejected: self.rejected * share,
        }
    }
}

/// How a bin is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Known {
    /// Scraped.
    Seen,
    /// Between two scrapes further apart than usual: the sum is known, the moment is not.
    Bridged,
    /// Not at all.
    #[default]
    Missing,
}

/// One step of the span.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Bin {
    pub(super) known: Known,
    pub(super) amounts: Amounts,
    /// Replicas that were scraped before and after.
    pub(super) scraped: f64,
    /// Of these, the ones on which requests waited all the time.
    pub(super) queued: f64,
    /// Requests in flight.
    pub(super) in_flight: f64,
    /// Of the scraped ones, those between two scrapes further apart than usual.
    pub(super) bridged: f64,
}

/// Replicas as Kubernetes had them at each bin, where somebody kept it.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    /// Ordered.
    pub(super) spec: Vec<Option<f64>>,
    /// Ready.
    pub(super) ready: Vec<Option<f64>>,
}

/// The demand of a history.
#[derive(Debug, Clone, Default)]
pub(super) struct Demand {
    pub(super) bins: Vec<Bin>,
    /// Counters that began anew within a replica's life.
    pub(super) restarts: usize,
    /// Requests of gaps that are too long to place them.
    pub(super) unplaced: f64,
    /// Whether requests in flight could be read: else arrivals are completions.
    pub(super) has_in_flight: bool,
    /// The usual time between two scrapes, milliseconds.
    pub(super) interval_ms: u64,
}

impl Demand {
    /// Everything in the bins that are known.
    pub(super) fn total(&self) -> Amounts {
        let mut total = Amounts::default();
        for bin in self.bins.iter().filter(|bin| bin.known != Known::Missing) {
            total += bin.amounts;
        }
        total
    }

    /// Reconstructs the demand of a span.
    pub(super) fn of(span: &Span, timelines: &Timelines, counts: &Counts) -> Demand {
        let interval_ms = usual_interval_ms(timelines).unwrap_or(span.step_ms);
        let mut builder = Builder {
            span: *span,
            silent_ms: (SILENT_INTERVALS * interval_ms).max(2 * span.step_ms),
            demand: Demand {
                bins: vec![Bin::default(); span.len()],
                interval_ms,
                ..Demand::default()
            },
        };
        let mut times: Vec<Moment> =
            timelines.by_target.values().flatten().map(|scrape| scrape.sample.at).collect();
        times.sort_unstable();
        for scrapes in timelines.by_target.values() {
            builder.add(scrapes, &times);
        }
        builder.settle(counts);
        builder.demand
    }
}

struct Builder {
    span: Span,
    /// A replica is silent if it has not been scraped for so long.
    silent_ms: u64,
    demand: Demand,
}

impl Builder {
    /// One replica's life; `times` are those of everybody's scrapes.
    fn add(&mut self, scrapes: &[Scrape], times: &[Moment]) {
        let interval_ms = self.demand.interval_ms;
        let Some(first) = scrapes.first() else { return };
        let at = first.sample.at;
        // Who was scraped a round before it came shows that it was not there, so that it has
        // counted from zero.
        let earliest = times.partition_point(|time| *time < at.minus_millis(self.silent_ms));
        let is_watched =
            times.get(earliest).is_some_and(|time| *time <= at.minus_millis(interval_ms));
        let is_young = first.sample.started_at.is_some_and(|started| {
            started >= self.span.from && at.millis_since(started) <= LONGEST_BRIDGE_MS
        });
        let mut owed = 0.0;
        if is_young || is_watched {
            let growth = Growth::since_start(first);
            self.spread(growth.amounts(&mut owed), at.minus_millis(interval_ms), at);
        }
        let mut rate = 0.0;
        for pair in scrapes.windows(2) {
            let [before, after] = pair else { continue };
            let (from, to) = (before.sample.at, after.sample.at);
            let elapsed_ms = to.millis_since(from).max(1);
            let growth = if is_restart(&before.sample, &after.sample) {
                self.demand.restarts += 1;
                let lost = in_flight(&before.sample).unwrap_or(0.0);
                let usual_ms = elapsed_ms.min(self.silent_ms) as f64;
                Growth { fewer: lost, more: rate * usual_ms, ..Growth::since_start(after) }
            } else {
                Growth::between(before, after)
            };
            let amounts = growth.amounts(&mut owed);
            if elapsed_ms > LONGEST_BRIDGE_MS {
                self.demand.unplaced += amounts.arrivals;
                let more = Amounts { more: amounts.arrivals, ..Amounts::default() };
                self.spread(more, from, to);
                continue;
            }
            rate = amounts.arrivals / elapsed_ms as f64;
            self.spread(amounts, from, to);
            self.cover(&before.sample, &after.sample, elapsed_ms > self.silent_ms);
            self.demand.has_in_flight |= in_flight(&after.sample).is_some();
        }
        let Some(last) = scrapes.last() else { return };
        if self.span.to.millis_since(last.sample.at) > self.silent_ms {
            let edge = Amounts {
                fewer: in_flight(&last.sample).unwrap_or(0.0),
                more: rate * interval_ms as f64,
                ..Amounts::default()
            };
            self.spread(edge, last.sample.at.minus_millis(1), last.sample.at);
        }
    }

    /// Adds amounts to the bins between two moments, evenly. What is before the span is left out.
    fn spread(&mut self, amounts: Amounts, from: Moment, to: Moment) {
        let whole_ms = to.millis_since(from).max(1) as f64;
        for (bin, overlap_ms) in overlaps(&self.span, from, to) {
            if let Some(bin) = self.demand.bins.get_mut(bin) {
                bin.amounts += amounts.times(overlap_ms / whole_ms);
            }
        }
    }

    /// Notes that the replica was scraped at both ends.
    fn cover(&mut self, before: &EngineSample, after: &EngineSample, is_bridged: bool) {
        let waits = |sample: &EngineSample| sample.waiting.is_some_and(|waiting| waiting >= 1.0);
        let is_queued = waits(before) && waits(after);
        let in_flight =
            f64::midpoint(in_flight(before).unwrap_or(0.0), in_flight(after).unwrap_or(0.0));
        for (bin, overlap_ms) in overlaps(&self.span, before.at, after.at) {
            let share = overlap_ms / self.span.step_ms as f64;
            if let Some(bin) = self.demand.bins.get_mut(bin) {
                bin.scraped += share;
                bin.bridged += if is_bridged { share } else { 0.0 };
                bin.queued += if is_queued { share } else { 0.0 };
                bin.in_flight += in_flight * share;
            }
        }
    }

    /// Says of each bin how it is known.
    fn settle(&mut self, counts: &Counts) {
        for (index, bin) in self.demand.bins.iter_mut().enumerate() {
            let count = |counts: &[Option<f64>]| counts.get(index).copied().flatten();
            let ready = count(&counts.ready);
            let nobody = ready == Some(0.0) && count(&counts.spec).is_none_or(|spec| spec < 0.5);
            bin.known = if bin.scraped < 0.5 {
                if nobody { Known::Seen } else { Known::Missing }
            } else if bin.bridged > bin.scraped / 2.0 {
                Known::Bridged
            } else {
                Known::Seen
            };
            if let Some(ready) = ready
                && bin.scraped >= 0.5
                && ready > bin.scraped + 0.5
            {
                bin.amounts.more += bin.amounts.arrivals * (ready / bin.scraped - 1.0);
            }
        }
    }
}

/// What a replica's counters grew by.
#[derive(Debug, Clone, Copy, Default)]
struct Growth {
    arrivals: f64,
    fewer: f64,
    more: f64,
    rest: Amounts,
}

impl Growth {
    fn between(before: &Scrape, after: &Scrape) -> Growth {
        let grown = |of: fn(&Scrape) -> Option<f64>| match (of(before), of(after)) {
            (Some(before), Some(after)) => (after - before).max(0.0),
            (None, _) | (_, None) => 0.0,
        };
        let rest = Amounts::of(grown);
        let in_flight = in_flight(&after.sample).zip(in_flight(&before.sample));
        let more_in_flight = in_flight.map_or(0.0, |(after, before)| after - before);
        Growth { arrivals: rest.finished + more_in_flight, rest, ..Growth::default() }
    }

    fn since_start(first: &Scrape) -> Growth {
        let rest = Amounts::of(|of: fn(&Scrape) -> Option<f64>| of(first).unwrap_or(0.0));
        let in_flight = in_flight(&first.sample).unwrap_or(0.0);
        Growth { arrivals: rest.finished + in_flight, rest, ..Growth::default() }
    }

    /// As amounts. Gauges and counters of a scrape are not of the very same instant, so that one or
    /// two requests may seem to have gone; they are owed by the next interval.
    fn amounts(self, owed: &mut f64) -> Amounts {
        let arrivals = self.arrivals - *owed;
        *owed = (-arrivals).max(0.0);
        Amounts {
            arrivals: arrivals.max(0.0),
            fewer: self.fewer,
            more: self.more + self.rest.rejected,
            ..self.rest
        }
    }
}

impl Amounts {
    /// Each counter by `grown`.
    fn of(grown: impl Fn(fn(&Scrape) -> Option<f64>) -> f64) -> Amounts {
        let computed = grown(|scrape| scrape.sample.prompt_tokens);
        let prompt = grown(|scrape| scrape.all_prompt_tokens);
        Amounts {
            finished: grown(|scrape| scrape.sample.finished),
            first_tokens: grown(|scrape| scrape.sample.ttft_count),
            ttft_s: grown(|scrape| scrape.sample.ttft_sum_s),
            // Where the two are not both told there is no cache to be told apart.
            prompt: prompt.max(computed),
            computed,
            generated: grown(|scrape| scrape.sample.generated_tokens),
            rejected: grown(|scrape| scrape.sample.rejected),
            ..Amounts::default()
        }
    }
}

/// Requests in the engine, waiting ones of each kind included.
fn in_flight(sample: &EngineSample) -> Option<f64> {
    let waiting = sample.waiting? + sample.waiting_deferred.unwrap_or(0.0);
    Some(sample.running? + waiting)
}

/// Whether the engine has begun anew: any of its counters fell, or it says so.
pub(super) fn is_restart(before: &EngineSample, after: &EngineSample) -> bool {
    let counters: [fn(&EngineSample) -> Option<f64>; 4] = [
        |sample| sample.finished,
        |sample| sample.generated_tokens,
        |sample| sample.prompt_tokens,
        |sample| sample.steps,
    ];
    let fell = counters.iter().any(|counter| {
        counter(after).zip(counter(before)).is_some_and(|(after, before)| after < before)
    });
    let moved = after.started_at.zip(before.started_at);
    fell || moved.is_some_and(|(after, before)| after.millis_since(before) > SAME_START_MS)
}

/// The bins between two moments, each with the milliseconds of it that lie between them.
fn overlaps(span: &Span, from: Moment, to: Moment) -> impl Iterator<Item = (usize, f64)> {
    let span = *span;
    let first = from.max(span.from).millis_since(span.from) / span.step_ms;
    let last = to.min(span.to).millis_since(span.from).div_ceil(span.step_ms);
    (first..last).filter_map(move |bin| {
        let begin = span.from.plus_millis(bin * span.step_ms);
        let end = begin.plus_millis(span.step_ms);
        let overlap_ms = end.min(to).millis_since(begin.max(from));
        (overlap_ms > 0).then_some((usize::try_from(bin).ok()?, overlap_ms as f64))
    })
}

/// The median time between two scrapes of a replica.
fn usual_interval_ms(timelines: &Timelines) -> Option<u64> {
    let pairs = timelines.by_target.values().flat_map(|scrapes| scrapes.windows(2));
    let mut intervals: Vec<u64> = pairs
        .filter_map(|pair| Some(pair.get(1)?.sample.at.millis_since(pair.first()?.sample.at)))
        .collect();
    intervals.sort_unstable();
    intervals.get(intervals.len() / 2).copied().filter(|interval_ms| *interval_ms > 0)
}

#[cfg(test)]
mod tests;
