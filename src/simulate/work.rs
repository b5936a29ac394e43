//! The work that requests are to a replica, and when it comes.
//!
//! Must not be shown to a policy: prices are the engine's true ones, and times those of the trace.

use loadgen::engine::{Profile, Time, secs_from_ps};

use super::number::{ceil_count, ceil_index, floor_index};
use super::workload::{Request, Workload};

/// Length of the bins of [`Work`].
pub(super) const BIN_S: f64 = 10.0;
/// Seconds between two tokens on a replica near its capacity, over which the work of an answer is
/// spread.
const LOADED_ITL_S: f64 = 0.045;
/// Utilisation at which needs are told.
const NEED_AT: f64 = 0.7;

/// Seconds of a replica's time that things cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prices {
    /// A prompt token.
    pub prompt_s: f64,
    /// A generated token, but for the cache that it reads.
    pub generated_s: f64,
    /// A step, for each token that lies in the KV cache.
    pub resident_s: f64,
    /// A pair of a computed prompt token and one before it.
    pub attention_s: f64,
    /// The base of a step over the tokens that the cache holds: what makes a replica that is full
    /// slower than its work, for each token of context of each generated one.
    pub cache_s: f64,
    /// Of the API server's thread, which works beside the engine: a request, and a token of its
    /// answer.
    pub front_s: (f64, f64),
}

/// Tokens of requests, in the mean or of one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tokens {
    /// Of the prompt.
    pub prompt: f64,
    /// Of the prompt, those that a prefix cache holds.
    pub cached: f64,
    /// Of the answer.
    pub output: f64,
}

impl Prices {
    /// Nothing costs anything.
    pub const FREE: Prices = Prices {
        prompt_s: 0.0,
        generated_s: 0.0,
        resident_s: 0.0,
        attention_s: 0.0,
        cache_s: 0.0,
        front_s: (0.0, 0.0),
    };

    /// What tokens cost in batches as large as the profile speaks of, the base of the step shared
    /// by very many.
    #[must_use]
    pub fn loaded(profile: &Profile) -> Prices {
        Prices::at(profile, |points| points.last().copied().filter(|point| point.0 > 0))
    }

    /// The least that they cost in batches of any size.
    #[must_use]
    pub fn least(profile: &Profile) -> Prices {
        let each = |point: &(usize, f64)| point.1 / point.0 as f64;
        Prices::at(profile, |points| {
            let some = points.iter().copied().filter(|point| point.0 > 0);
            some.min_by(|a, b| each(a).total_cmp(&each(b)))
        })
    }

    fn at(profile: &Profile, choose: impl Fn(&[(usize, f64)]) -> Option<(usize, f64)>) -> Prices {
        let (step, front) = (&profile.step, &profile.frontend);
        let each =
            |points: &[(usize, f64)]| choose(points).map_or(0.0, |(n, ms)| ms / n as f64 / 1e3);
        let request_ms = front.request_ms.first().map_or(0.0, |point| point.1);
        Prices {
            prompt_s: each(&step.prefill_ms),
            generated_s: each(&step.decode_ms),
            resident_s: each(&step.resident_ms),
            attention_s: step.attention_ns / 1e9,
            cache_s: step.base_ms / 1e3 / profile.kv_tokens().max(1) as f64,
            front_s: (request_ms / 1e3, front.token_ms / 1e3),
        }
    }

    /// Seconds that the prompt and the answer of a request take, each generated token with so many
    /// others in the cache.
    #[must_use]
    pub fn request(&self, tokens: &Tokens, context: f64) -> (f64, f64) {
        let computed = (tokens.prompt - tokens.cached).max(0.0);
        let pairs = computed * (tokens.prompt - computed / 2.0);
        let prefill_s = computed * self.prompt_s + pairs * self.attention_s;
        let decode_s = tokens.output * (self.generated_s + self.resident_s * context);
        // The thread works beside the engine: the slower of the two is what limits.
        let front_s = self.front_s.0 + tokens.output * self.front_s.1;
        (prefill_s, decode_s.max(front_s - prefill_s))
    }
}

/// Prices over time, read in the order of time.
struct PriceList<'a> {
    list: &'a [(Time, Prices)],
    next: usize,
}

impl PriceList<'_> {
    fn at(&mut self, now: Time) -> Prices {
        while self.list.get(self.next + 1).is_some_and(|(from, _)| *from <= now) {
            self.next += 1;
        }
        self.list.get(self.next).map_or(Prices::FREE, |&(_, prices)| prices)
    }
}

/// The work of a workload over time.
#[derive(Debug, Clone)]
pub struct Work {
    /// Replica-seconds in each bin of ten seconds, by when they are spent.
    pub present: Vec<f64>,
    /// The same by when the request comes.
    pub arriving: Vec<f64>,
    /// All of it, in replica-seconds.
    pub total_s: f64,
    /// The same if every replica's cache were full: no batch is larger than it can hold, so each
    /// shares the base of its steps with no more than that (costs w + O·C·t0/KV for w).
    pub full_cache_s: f64,
}

impl Work {
    /// The work of the requests that count, at prices that hold from their moments on, ascending.
    #[must_use]
    pub fn of(workload: &Workload, prices: &[(Time, Prices)]) -> Work {
        let mut prices = PriceList { list: prices, next: 0 };
        let requests = workload.counted();
        let n_bins = ceil_index(workload.seconds() / BIN_S).max(1);
        let context = mean_context(requests);
        let mut present = vec![0.0; n_bins];
        let mut arriving = vec![0.0; n_bins];
        // What begins and ends in a bin, summed up at the end.
        let mut change = vec![0.0; n_bins + 1];
        let (mut total_s, mut full_cache_s) = (0.0, 0.0);
        for request in requests {
            let tokens = tokens_of(request);
            let price = prices.at(request.at);
            let (prefill_s, decode_s) = price.request(&tokens, context);
            let bin = bin_of(request.at, workload.counted_from).min(n_bins - 1);
            arriving[bin] += prefill_s + decode_s;
            present[bin] += prefill_s;
            let spread = ceil_index(tokens.output * LOADED_ITL_S / BIN_S).max(1);
            change[bin] += decode_s / spread as f64;
            change[(bin + spread).min(n_bins)] -= decode_s / spread as f64;
            total_s += prefill_s + decode_s;
            full_cache_s += prefill_s + decode_s + tokens.output * context * price.cache_s;
        }
        let mut decode_s = 0.0;
        for (bin, change) in present.iter_mut().zip(&change) {
            decode_s += change;
            *bin += decode_s;
        }
        Work { present, arriving, total_s, full_cache_s }
    }

    /// Replicas that the busiest minute needs at a utilisation of 0.7, or as full as their caches
    /// can be where that is less.
    #[must_use]
    pub fn peak_need(&self) -> f64 {
        let minute = smoothed(&self.present, 6);
        let by_cache = self.full_cache_s / self.total_s.max(f64::MIN_POSITIVE);
        minute.into_iter().fold(0.0, f64::max) / BIN_S * by_cache.max(NEED_AT.recip())
    }
}

/// Replicas that the ten minutes from `start` need at a utilisation of 0.7, at least 1.
pub(super) fn first_need(workload: &Workload, prices: &Prices, start: Time) -> u32 {
    const SPAN_S: f64 = 600.0;
    let from = workload.requests.partition_point(|request| request.at < start);
    let until = start.plus_ps(loadgen::engine::ps_from_secs(SPAN_S));
    let first = workload.requests.iter().skip(from).take_while(|request| request.at < until);
    let work_s: f64 = first
        .map(|request| {
            let tokens = tokens_of(request);
            let (prefill_s, decode_s) =
                prices.request(&tokens, tokens.prompt + tokens.output / 2.0);
            prefill_s + decode_s
        })
        .sum();
    ceil_count(work_s / SPAN_S / NEED_AT).max(1)
}

/// The mean context of a token while it is generated.
pub(super) fn mean_context(requests: &[Request]) -> f64 {
    let (mut context, mut generated) = (0.0, 0.0);
    for request in requests {
        let tokens = tokens_of(request);
        context += tokens.output * (tokens.prompt + tokens.output / 2.0);
        generated += tokens.output;
    }
    if generated > 0.0 { context / generated } else { 0.0 }
}

fn tokens_of(request: &Request) -> Tokens {
    Tokens {
        prompt: f64::from(request.prompt_tokens),
        cached: f64::from(request.cached_tokens),
        output: f64::from(request.output_tokens),
    }
}

fn bin_of(at: Time, from: Time) -> usize {
    floor_index(secs_from_ps(at.since(from)) / BIN_S)
}

/// The centred mean over `width` bins, as if nothing were beyond the ends.
pub(super) fn smoothed(series: &[f64], width: usize) -> Vec<f64> {
    let before = width / 2;
    let mut sums = vec![0.0; series.len() + 1];
    for (bin, value) in series.iter().enumerate() {
        sums[bin + 1] = sums[bin] + value;
    }
    (0..series.len())
        .map(|bin| {
            let from = bin.saturating_sub(before);
            let to = (bin + width - before).min(series.len());
            (sums[to] - sums[from]) / width as f64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straight_profile_has_one_price_and_a_bent_one_costs_more_in_large_batches() {
        let straight = Profile::load("8b-a100").unwrap();
        assert_eq!(Prices::loaded(&straight), Prices::least(&straight));
        assert!((Prices::loaded(&straight).prompt_s - 67e-6).abs() < 1e-12);
        let bent = Profile::load("nim-8b").unwrap();
        let (loaded, least) = (Prices::loaded(&bent), Prices::least(&bent));
        // 6.9 ms for 208, and 0.03 ms for 5.
        assert!((loaded.generated_s - 6.9e-3 / 208.0).abs() < 1e-12);
        assert!((least.generated_s - 0.03e-3 / 5.0).abs() < 1e-12);
    }

    #[test]
    fn attention_is_priced_by_pairs_and_a_slow_api_server_by_what_it_takes() {
        let tokens = Tokens { prompt: 1_000.0, cached: 400.0, output: 100.0 };
        let square = Prices { attention_s: 1e-6, ..Prices::FREE };
        // 600 computed tokens: 600 × 400 + 600² / 2 pairs.
        let (prefill_s, decode_s) = square.request(&tokens, 0.0);
        assert!((prefill_s - 0.42).abs() < 1e-9 && decode_s.abs() < 1e-9);
        let front =
            Prices { prompt_s: 1e-4, generated_s: 1e-3, front_s: (0.01, 2e-3), ..Prices::FREE };
        let (prefill_s, decode_s) = front.request(&tokens, 0.0);
        // 0.06 s + 0.1 s of the engine, 0.21 s of the thread.
        assert!((prefill_s - 0.06).abs() < 1e-9 && (decode_s - 0.15).abs() < 1e-9);
    }

    #[test]
    fn the_mean_is_centred() {
        let mean = smoothed(&[0.0, 0.0, 3.0, 0.0, 0.0], 3);
        assert_eq!(mean, [0.0, 1.0, 1.0, 1.0, 0.0]);
    }

    #[test]
    fn work_is_priced_and_spread_over_the_answer() {
        let request = |at_s: u64, prompt_tokens, output_tokens| Request {
            at: Time::from_millis(at_s * 1_000),
            prompt_tokens,
            cached_tokens: 0,
            output_tokens,
        };
        let workload = Workload {
            requests: vec![request(5, 1_000, 1_000), request(25, 500, 1)],
            counted_from: Time::ZERO,
            end: Time::from_millis(100_000),
            empty_rows: 0,
        };
        let prices = Prices { prompt_s: 1e-3, generated_s: 2e-3, ..Prices::FREE };
        let work = Work::of(&workload, &[(Time::ZERO, prices)]);
        // 1,000 tokens take 45 s: five bins of 0.4 s; prompts count when they come.
        let expected = [1.4, 0.4, 0.902, 0.4, 0.4, 0.0, 0.0, 0.0, 0.0, 0.0];
        for (bin, expected) in work.present.iter().zip(expected) {
            assert!((bin - expected).abs() < 1e-9, "{:?}", work.present);
        }
        assert!((work.total_s - 3.502).abs() < 1e-9);
        // The busiest minute has 1.4 + 0.902 + 3 × 0.4 s, centred on the third bin.
        assert!((work.peak_need() - 3.502 / 60.0 / 0.7).abs() < 1e-9, "{}", work.peak_need());
        let small = Prices { cache_s: 1e-5, ..prices };
        // 1,001 tokens with 1,500 before them, 10 µs each, on 3.502 s of work.
        let full = Work::of(&workload, &[(Time::ZERO, small)]);
        assert!(full.peak_need() > work.peak_need(), "{}", full.peak_need());
        // Twice as dear from 20 s on: the second one's 0.502 s count double.
        let dearer = Prices { prompt_s: 2e-3, generated_s: 4e-3, ..Prices::FREE };
        let prices = [(Time::ZERO, prices), (Time::from_millis(20_000), dearer)];
        assert!((Work::of(&workload, &prices).total_s - 4.004).abs() < 1e-9);
    }
}
