//! From demand to requests: one after another, with lengths, as a replay needs them.
//!
//! Must not invent load: bins that nobody has seen are cut out and the rest is joined, so that every
//! figure is about the time that is known.

use loadgen::engine::{Profile, Time};

use super::demand::{Amounts, Bin, Counts, Demand, Known};
use super::lengths::Shape;
use super::span::Span;
use crate::simulate::number::floor_index;
use crate::simulate::random::Random;
use crate::simulate::workload::{Request, Workload};

/// Requests and seconds from which the mean length of a moment is taken: fewer say nothing, and the
/// mix changes within an hour.
const LEAST_REQUESTS: f64 = 30.0;
const LEAST_S: f64 = 600.0;

/// Which of the demands that the history allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    /// The least.
    Low,
    /// The one that was counted.
    Counted,
    /// The most.
    High,
}

/// How lengths of both sides spread.
#[derive(Debug, Clone)]
pub(super) struct Shapes {
    pub(super) prompt: Shape,
    pub(super) output: Shape,
}

/// The part of a history that is known, as one stretch of time.
#[derive(Debug)]
pub(super) struct Stretch {
    bins: Vec<Bin>,
    /// Mean lengths in each bin.
    means: Vec<Means>,
    /// Replicas ordered in each bin.
    pub(super) replicas: Vec<u32>,
    pub(super) bin_s: f64,
    /// Seconds at its beginning that only warm up.
    pub(super) warmup_s: f64,
}

/// Mean lengths, tokens.
#[derive(Debug, Clone, Copy, Default)]
struct Means {
    prompt: f64,
    /// Share of the prompt that the prefix cache held.
    cached: f64,
    output: f64,
}

impl Stretch {
    /// Joins what is known.
    pub(super) fn of(span: &Span, demand: &Demand, counts: &Counts, warmup_ms: u64) -> Stretch {
        let known = || {
            let bins = demand.bins.iter().enumerate();
            bins.filter(|(_, bin)| bin.known != Known::Missing)
        };
        let bins: Vec<Bin> = known().map(|(_, bin)| *bin).collect();
        let replicas = known().map(|(index, bin)| {
            let spec = counts.spec.get(index).copied().flatten();
            whole(spec.unwrap_or(bin.scraped))
        });
        let replicas = replicas.collect();
        let bin_s = span.step_s();
        let warmup_bins = floor_index(warmup_ms as f64 / 1e3 / bin_s).min(bins.len() / 2);
        Stretch {
            means: means(&bins, bin_s),
            replicas,
            bin_s,
            warmup_s: warmup_bins as f64 * bin_s,
            bins,
        }
    }

    /// Seconds of it.
    pub(super) fn seconds(&self) -> f64 {
        self.bins.len() as f64 * self.bin_s
    }

    /// The bins after the warm-up.
    pub(super) fn counted(&self) -> (&[Bin], &[u32]) {
        let first = floor_index(self.warmup_s / self.bin_s + 0.5);
        (self.bins.get(first..).unwrap_or_default(), self.replicas.get(first..).unwrap_or_default())
    }

    /// The requests. Within a bin they come at random moments.
    pub(super) fn workload(
        &self,
        shapes: &Shapes,
        profile: &Profile,
        bound: Bound,
        seed: u64,
    ) -> Workload {
        let most = profile.limits.max_model_tokens.min(profile.kv_tokens()).max(2);
        let mut rng = Random::new(seed, 3);
        let mut requests = Vec::new();
        let mut due = 0.0;
        for (index, (bin, means)) in self.bins.iter().zip(&self.means).enumerate() {
            let Amounts { arrivals, fewer, more, .. } = bin.amounts;
            due += match bound {
                Bound::Low => (arrivals - fewer).max(0.0),
                Bound::Counted => arrivals,
                Bound::High => arrivals + more,
            };
            let n = floor_index(due + 1e-9);
            due -= n as f64;
            let first = requests.len();
            for _ in 0..n {
                let at_s = (index as f64 + rng.uniform()) * self.bin_s;
                let (prompt, output) = lengths(means, shapes, most, &mut rng);
                requests.push(Request {
                    at: Time::from_secs_f64(at_s),
                    prompt_tokens: prompt,
                    cached_tokens: tokens(f64::from(prompt) * means.cached, 0).min(prompt),
                    output_tokens: output,
                });
            }
            if let Some(of_bin) = requests.get_mut(first..) {
                of_bin.sort_unstable_by_key(|request| request.at);
            }
        }
        Workload {
            requests,
            counted_from: Time::from_secs_f64(self.warmup_s),
            end: Time::from_secs_f64(self.seconds()),
            empty_rows: 0,
        }
    }
}

fn lengths(means: &Means, shapes: &Shapes, most: usize, rng: &mut Random) -> (u32, u32) {
    let prompt = tokens(means.prompt * shapes.prompt.draw(rng), 1);
    let output = tokens(means.output * shapes.output.draw(rng), 1);
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let prompt = prompt.min(most - 1);
    (prompt, output.min(most - prompt))
}

/// A whole number of tokens, `least` at least.
fn tokens(value: f64, least: u32) -> u32 {
    whole(value).max(least)
}

pub(super) fn whole(value: f64) -> u32 {
    u32::try_from(floor_index(value + 0.5)).unwrap_or(u32::MAX)
}

/// The mean lengths around each bin: over ten minutes, and on until there are enough requests.
fn means(bins: &[Bin], bin_s: f64) -> Vec<Means> {
    let mut sums = vec![Amounts::default()];
    for bin in bins {
        let mut sum = sums.last().copied().unwrap_or_default();
        sum += bin.amounts;
        sums.push(sum);
    }
    let between = |from: usize, to: usize| Sum { from: sums[from], to: sums[to] };
    let least = floor_index(LEAST_S / 2.0 / bin_s).max(1);
    (0..bins.len())
        .map(|bin| {
            let mut reach = least;
            loop {
                let (from, to) = (bin.saturating_sub(reach), (bin + reach + 1).min(bins.len()));
                let sum = between(from, to);
                let is_all = from == 0 && to == bins.len();
                if is_all || sum.of(|amounts| amounts.finished) >= LEAST_REQUESTS {
                    return sum.means();
                }
                reach *= 2;
            }
        })
        .collect()
}

/// Amounts between two moments.
struct Sum {
    from: Amounts,
    to: Amounts,
}

impl Sum {
    fn of(&self, amount: fn(&Amounts) -> f64) -> f64 {
        (amount(&self.to) - amount(&self.from)).max(0.0)
    }

    fn means(&self) -> Means {
        let (arrivals, finished) = (self.of(|a| a.arrivals), self.of(|a| a.finished));
        let first_tokens = self.of(|a| a.first_tokens);
        // A prompt counts when its first token comes, an answer while it is written: half of those
        // under way came, half of them ended.
        let begun = if first_tokens > 0.0 { first_tokens } else { arrivals };
        let under_way = f64::midpoint(arrivals, finished);
        let per = |sum: f64, n: f64| if n > 0.0 { sum / n } else { 1.0 };
        let (prompt, computed) = (self.of(|a| a.prompt), self.of(|a| a.computed));
        Means {
            prompt: per(prompt, begun),
            cached: if prompt > 0.0 { (1.0 - computed / prompt).clamp(0.0, 1.0) } else { 0.0 },
            output: per(self.of(|a| a.generated), under_way),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backtest::lengths::Histogram;
    use crate::decision::Moment;

    /// A quarter of an hour at two requests a second, a quarter that nobody has seen, and another.
    fn demand() -> Demand {
        let seen = Bin {
            known: Known::Seen,
            amounts: Amounts {
                arrivals: 30.0,
                finished: 30.0,
                first_tokens: 30.0,
                prompt: 30_000.0,
                computed: 15_000.0,
                generated: 6_000.0,
                more: 3.0,
                fewer: 1.5,
                ..Amounts::default()
            },
            scraped: 2.0,
            ..Bin::default()
        };
        let bins = [vec![seen; 60], vec![Bin::default(); 60], vec![seen; 60]].concat();
        Demand { bins, ..Demand::default() }
    }

    #[test]
    fn requests_have_the_counted_sums_and_no_time_that_nobody_has_seen() {
        let span = Span::new(Moment(0), Moment(2_700_000), Some(15_000));
        let stretch = Stretch::of(&span, &demand(), &Counts::default(), 300_000);
        assert!((stretch.seconds() - 1_800.0).abs() < 1e-9);
        assert_eq!(stretch.counted().0.len(), 100);
        assert!(stretch.replicas.iter().all(|&n| n == 2));
        let profile = Profile::load("8b-a100").unwrap();
        let shape = || Shape::of(&Histogram::default());
        let shapes = Shapes { prompt: shape(), output: shape() };
        let make = |bound| stretch.workload(&shapes, &profile, bound, 1);
        let counted = make(Bound::Counted);
        assert_eq!(counted.requests.len(), 3_600);
        assert!(counted.requests.is_sorted_by_key(|request| request.at));
        let mean = |of: fn(&Request) -> u32| {
            counted.requests.iter().map(|r| f64::from(of(r))).sum::<f64>() / 3_600.0
        };
        assert!((mean(|r| r.prompt_tokens) / 1_000.0 - 1.0).abs() < 0.05);
        assert!((mean(|r| r.cached_tokens) / 500.0 - 1.0).abs() < 0.05);
        assert!((mean(|r| r.output_tokens) / 200.0 - 1.0).abs() < 0.05);
        assert_eq!(make(Bound::Low).requests.len(), 3_420);
        assert_eq!(make(Bound::High).requests.len(), 3_960);
    }
}
