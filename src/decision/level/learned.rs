//! What the level has learned of this workload, and the figures in force for one tick.
//!
//! Learning happens after a decision and takes effect at the next: deciding twice on the same
//! input gives the same answer. Must not vote.

use serde::{Deserialize, Serialize};

use super::full::Full;
use super::late::Late;
use super::pool::Feedback;
use super::{Ask, Band, Level};
use crate::decision::cost::CostModel;
use crate::decision::headroom::Headroom;
use crate::decision::number::{larger, seconds};
use crate::decision::rehearsal::{Rehearsal, Terms};
use crate::decision::supply::Supply;
use crate::decision::window::{Flow, Means, RECENT_MS, WINDOW_MS};
use crate::decision::{LevelSource, Moment, Part};

/// Request lengths are averaged over ten minutes of traffic: several request durations.
const LENGTHS_S: f64 = 600.0;
/// Requests before a mean length is used.
const LENGTHS_MIN: f64 = 5.0;
/// By how much unfinished requests may lengthen the mean of the finished ones.
const LENGTHS_STRETCH: f64 = 3.0;
/// Saturation is believed after this long, and averaged over twice as long.
const SATURATED_S: f64 = 30.0;
/// The highest healthy rate fades over a day, so that an early misfit does not stay.
const HEALTHY_MEMORY_S: f64 = 86_400.0;

/// What is learned, between ticks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::decision) struct Learned {
    lengths: Lengths,
    request_s: Option<f64>,
    headroom: Headroom,
    rehearsal: Rehearsal,
    feedback: Feedback,
    late: Late,
    pub(in crate::decision) band: Band,
    /// A single step down went beyond what had been seen, and nothing speaks against it yet.
    pub(in crate::decision) trial: bool,
    /// The last minute was one of the present replicas, without a backlog and with the SLO kept.
    healthy: bool,
    /// Live replicas at the last tick, and for how long there have been as many.
    live: u32,
    live_for_ms: u64,
    /// What the busiest healthy replica served; unpriced, because prices are learned later.
    healthiest: Flow,
    most_in_flight: Option<f64>,
    running_limit: Option<f64>,
    /// Requests that ran at the last tick, and for how long as many have.
    running: Option<f64>,
    running_for_ms: u64,
    /// How long at least one request a replica has been waiting.
    queued_for_ms: u64,
    saturated_s: f64,
    saturation: Saturation,
    full: Full,
    /// When a preset last raised the level.
    stepped_at: Option<Moment>,
}

/// What was learned before this tick.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::decision) struct Figures {
    /// Costs of the cost model, once usable.
    pub(in crate::decision) costs: Option<[f64; 4]>,
    /// Rows behind them, usable or not.
    pub(in crate::decision) rows: f64,
    /// How busy a replica has been while the cost model was right.
    pub(in crate::decision) reach: f64,
    /// Growth of work within a cold start, in √work.
    pub(in crate::decision) growth: f64,
    /// The hold that a rehearsal found best.
    pub(in crate::decision) hold_ms: Option<u64>,
    /// What observed waiting and lateness make of a pool's margin, as a factor.
    pub(in crate::decision) margin: f64,
    /// Share of the capacity that is lost to lateness seen.
    pub(in crate::decision) lost: f64,
    /// Utilisation of a replica under a queue, once seen.
    pub(in crate::decision) full: Option<f64>,
    /// What a replica served at most with no backlog and the SLO kept.
    pub(in crate::decision) healthiest: Flow,
    /// The last minute was healthy, so its rate counts too.
    pub(in crate::decision) healthy: bool,
    /// The last minute is one of the present replicas.
    pub(in crate::decision) settled: bool,
    /// Largest in-flight count of a replica while nothing waited.
    pub(in crate::decision) most_in_flight: Option<f64>,
    /// Most running requests of a replica: its own limit, or what ran steadily beside a queue.
    pub(in crate::decision) running_limit: Option<f64>,
    /// Throughput of a replica at saturation.
    pub(in crate::decision) saturation: Option<Saturation>,
    /// Prompt and generated tokens of a mean request.
    pub(in crate::decision) request: Option<(f64, f64)>,
    /// Engine seconds of a mean request, as last priced.
    pub(in crate::decision) request_s: Option<f64>,
    /// A single step down went beyond what had been seen, and nothing speaks against it yet.
    pub(in crate::decision) trial: bool,
    /// A preset may raise the level now.
    pub(in crate::decision) may_step: bool,
}

impl Figures {
    /// `count`, but at most one replica beyond the spec, and that only once a cold start.
    pub(super) fn one_a_cold_start(&self, count: u32, supply: &Supply) -> u32 {
        let limit = if self.may_step { supply.ordered.saturating_add(1) } else { 0 };
        count.min(limit.max(supply.base))
    }
}

/// Throughput of one replica while requests waited for it, per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::decision) struct Saturation {
    pub(in crate::decision) generated: Option<f64>,
    pub(in crate::decision) finished: Option<f64>,
}

impl Saturation {
    /// Engine seconds of one request.
    pub(in crate::decision) fn request_s(&self) -> Option<f64> {
        self.finished.filter(|rate| *rate > 0.0).map(|rate| 1.0 / rate)
    }
}

/// Fading sums from which the mean request follows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Lengths {
    prompt: f64,
    generated: f64,
    admitted: f64,
    finished: f64,
    finished_generated: f64,
}

impl Lengths {
    fn note(&mut self, ask: &Ask<'_>, step_s: f64) {
        let rates = &ask.seen.rates;
        let keep = LENGTHS_S / (LENGTHS_S + step_s);
        for (sum, rate) in [
            (&mut self.prompt, rates.prompt),
            (&mut self.generated, rates.generated),
            (&mut self.admitted, rates.admitted),
            (&mut self.finished, rates.finished),
            (&mut self.finished_generated, rates.finished_generated),
        ] {
            *sum = *sum * keep + rate.get().unwrap_or(0.0) * step_s;
        }
    }

    /// Prompt and generated tokens of a mean request. In a ramp the finished requests are the
    /// short ones: tokens of all requests per finished one is the estimate that counts the
    /// unfinished (the maximum likelihood under censoring), and errs to the long side; so it may
    /// only stretch the mean of the finished ones.
    fn of_a_request(&self) -> Option<(f64, f64)> {
        if self.finished < LENGTHS_MIN || self.admitted < LENGTHS_MIN {
            return None;
        }
        let of_all = self.generated / self.finished;
        let of_finished = self.finished_generated / self.finished;
        let generated = if of_finished > 0.0 {
            of_all.clamp(of_finished, LENGTHS_STRETCH * of_finished)
        } else {
            of_all
        };
        Some((self.prompt / self.admitted, generated))
    }
}

impl Learned {
    /// The figures for the coming tick.
    pub(in crate::decision) fn figures(
        &self,
        cost: &mut CostModel,
        cold_start_ms: u64,
        now: Moment,
    ) -> Figures {
        cost.refit();
        Figures {
            costs: cost.is_usable().then(|| cost.costs()),
            rows: cost.rows(),
            reach: cost.reach(),
            growth: self.headroom.growth(self.rehearsal.quantile()),
            hold_ms: self.rehearsal.hold_ms(),
            margin: self.feedback.correction() + self.late.margin(),
            lost: 1.0 - self.late.kept(),
            full: self.full.share(),
            healthiest: self.healthiest,
            healthy: self.healthy,
            settled: self.live_for_ms >= WINDOW_MS,
            most_in_flight: self.most_in_flight,
            running_limit: self.running_limit,
            saturation: (self.saturated_s >= SATURATED_S).then_some(self.saturation),
            request: self.lengths.of_a_request(),
            request_s: self.request_s,
            trial: self.trial,
            may_step: self.stepped_at.is_none_or(|at| now.millis_since(at) >= cold_start_ms),
        }
    }

    /// A preset raised the level.
    pub(in crate::decision) fn stepped(&mut self, now: Moment) {
        self.stepped_at = Some(now);
    }

    /// Learns from one tick.
    pub(in crate::decision) fn note(
        &mut self,
        ask: &Ask<'_>,
        level: &Level,
        step_ms: u64,
        now: Moment,
    ) {
        let step_s = seconds(step_ms.min(WINDOW_MS));
        let seen = ask.seen;
        let n_live = f64::from(seen.live.max(1));
        self.lengths.note(ask, step_s);
        self.live_for_ms =
            if seen.live == self.live { self.live_for_ms.saturating_add(step_ms) } else { 0 };
        self.live = seen.live;
        self.request_s = level.request_s.or(self.request_s);
        let queued = seen.waiting.unwrap_or(0.0) + seen.stuck_waiting;
        let settled = self.live_for_ms >= WINDOW_MS;
        // What was let go could not be back before a cold start is over: until then lateness, which
        // moves the level, says nothing, or it would be ordered again under the same load.
        let steady = self.live_for_ms >= WINDOW_MS.max(ask.supply.cold_start_ms);
        if seen.whole {
            if let Some(minute) = ask.minute {
                self.headroom.look(minute.prompt + minute.generated);
            }
            self.note_demand(ask, level, step_s, now);
            if steady && ask.supply.starting == 0 && ask.spec.has(Part::Feedback) {
                self.feedback.note(ask, level, step_s);
                let answer = self.lengths.of_a_request().map(|(_, generated)| generated);
                self.late.note(ask, level, answer, step_s);
            }
        }
        self.healthy = seen.whole
            && seen.live > 0
            && settled
            && seen.stuck_waiting <= 0.0
            && ask.minute.is_some_and(|minute| is_healthy(minute, ask, level, n_live));
        let fade = HEALTHY_MEMORY_S / (HEALTHY_MEMORY_S + step_s);
        self.healthiest = self.healthiest.map(|rate| rate * fade);
        if let Some(minute) = ask.minute.filter(|_| self.healthy) {
            let served = minute.served().map(|rate| rate / n_live);
            let rank = |flow: Flow| match &level.price {
                Some(price) => price.of_flow(flow),
                None => flow.iter().sum(),
            };
            if rank(served) > rank(self.healthiest) {
                self.healthiest = served;
            }
        }
        if seen.whole && seen.slo_kept && queued <= 0.0 {
            self.most_in_flight = larger(self.most_in_flight, seen.most_in_flight);
        }
        // What waits in a sample or two is the scheduler between two steps.
        self.queued_for_ms =
            if queued >= n_live { self.queued_for_ms.saturating_add(step_ms) } else { 0 };
        let queue_stands = self.queued_for_ms >= RECENT_MS;
        if !seen.slo_kept || queue_stands {
            self.trial = false;
        }
        let as_many = |(before, now): (f64, f64)| (before - now).abs() < 0.5;
        let stands_still = self.running.zip(seen.running).is_some_and(as_many);
        self.running = seen.running;
        self.running_for_ms =
            if stands_still { self.running_for_ms.saturating_add(step_ms) } else { 0 };
        // A queue on every replica: what they do now is what they can do.
        if seen.whole && seen.live > 0 && seen.frozen == 0 && queue_stands {
            let share = step_s / (step_s + 2.0 * SATURATED_S);
            let blend = |known: Option<f64>, rate: Option<f64>| {
                let rate = rate?.max(0.0) / n_live;
                Some(known.map_or(rate, |known| known + share * (rate - known)))
            };
            self.saturation = Saturation {
                generated: blend(self.saturation.generated, seen.rates.generated.get()),
                finished: blend(self.saturation.finished, seen.rates.finished.get()),
            };
            self.saturated_s += step_s;
            // The last seconds have to be those of as many replicas, all of them filled.
            let is_full = self.live_for_ms >= 2 * RECENT_MS && seen.idle_beside_queue == 0;
            let price = level.price.filter(|price| price.source == LevelSource::CostModel);
            if let Some((price, recent)) = price.zip(ask.recent).filter(|_| is_full) {
                self.full.note(price.served(recent) / n_live, step_s);
            }
            // At its limit an engine runs as many all the time. A queue for the prompts of others
            // stands beside any number, and that number would pass for a limit.
            if self.running_for_ms >= RECENT_MS {
                let running = seen.running.map(|running| running / n_live);
                self.running_limit = larger(self.running_limit, running);
            }
        }
        if let Some(limit) = seen.running_limit {
            self.running_limit = Some(limit / n_live);
        }
    }

    /// Learns from what was demanded, whatever the replicas made of it.
    fn note_demand(&mut self, ask: &Ask<'_>, level: &Level, step_s: f64, now: Moment) {
        let Some((work, price)) = level.work.zip(level.price.as_ref()) else { return };
        let cold_start_ms = ask.supply.cold_start_ms;
        if self.headroom.is_interrupted(now) {
            self.rehearsal.interrupt();
        }
        self.rehearsal.demanded(level.recent_balance, step_s);
        if self.headroom.note(work, cold_start_ms, now) && ask.spec.has(Part::Rehearsal) {
            let terms = Terms {
                cap: price.cap,
                margin: level.margin,
                cold_start_ms,
                slo_ttft_s: seconds(ask.spec.slo_ttft_ms),
                min: ask.spec.min,
            };
            self.rehearsal.step(&self.headroom, &terms);
        }
    }
}

/// A minute without a backlog in which the means kept the SLO, and long prompts twice what they take
/// alone. Less than one waiting request a replica is the scheduler between two steps.
fn is_healthy(minute: &Means, ask: &Ask<'_>, level: &Level, n_live: f64) -> bool {
    let kept = |mean_s: Option<f64>, target_s| mean_s.is_none_or(|s| s <= target_s);
    let alone_s = level.price.as_ref().map_or(0.0, |price| price.prompt_each_s + price.step_s);
    minute.waiting() < n_live
        && kept(minute.ttft_s, seconds(ask.spec.slo_ttft_ms).max(2.0 * alone_s))
        && kept(minute.itl_s, seconds(ask.spec.slo_tpot_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_request_needs_a_few_requests() {
        let of = |admitted, finished| {
            Lengths { prompt: 800.0, admitted, finished, ..Lengths::default() }.of_a_request()
        };
        assert_eq!(of(4.0, 9.0), None);
        assert_eq!(of(9.0, 4.0), None);
        assert_eq!(of(8.0, 5.0), Some((100.0, 0.0)));
        assert_eq!(of(5.0, 8.0), Some((160.0, 0.0)));
    }

    #[test]
    fn an_engine_that_does_not_tell_the_finished_ones_lengths_tells_those_of_all() {
        let lengths = Lengths {
            prompt: 800.0,
            generated: 160.0,
            admitted: 8.0,
            finished: 8.0,
            ..Lengths::default()
        };
        assert_eq!(lengths.of_a_request(), Some((100.0, 20.0)));
    }

    #[test]
    fn unfinished_requests_stretch_the_mean_of_the_finished_ones_threefold_at_most() {
        let of = |generated| {
            Lengths {
                prompt: 4_000.0,
                generated,
                admitted: 20.0,
                finished: 10.0,
                finished_generated: 500.0,
            }
            .of_a_request()
        };
        // 4000/20 prompt tokens; finished ones of 50; all tokens by finished ones 50, 90, 400.
        assert_eq!(of(500.0), Some((200.0, 50.0)));
        assert_eq!(of(900.0), Some((200.0, 90.0)));
        assert_eq!(of(4_000.0), Some((200.0, 150.0)));
        assert_eq!(of(100.0), Some((200.0, 50.0)));
    }
}
