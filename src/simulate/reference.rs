//! What bounds every policy from below: the fluid bound, the clairvoyant plan and the static fleet.
//!
//! These know the future or the engine's constants; none of them is a policy that anybody could
//! run. The plan is that of eval.md 3.3: replicas per ten seconds from the work that is coming.

use loadgen::engine::{Profile, Time, secs_from_ps};

use super::number::{ceil_count, ceil_index, floor_index};
use super::policy::{Action, Actuation, Policy, Source, View};
use super::workload::{Request, Workload};

/// Length of a plan's bins.
pub(super) const BIN_S: f64 = 10.0;
/// Seconds between two tokens on a replica near its capacity, over which the work of an answer is
/// spread.
const LOADED_ITL_S: f64 = 0.045;

/// Seconds of a replica's time that a token costs at full batches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prices {
    /// A prompt token.
    pub prompt_s: f64,
    /// A generated token, but for the cache that it reads.
    pub generated_s: f64,
    /// A step, for each token that lies in the KV cache.
    pub resident_s: f64,
}

impl Prices {
    /// The least that tokens cost on this profile, the base of the step shared by very many.
    #[must_use]
    pub fn of(profile: &Profile) -> Prices {
        let step = &profile.step;
        let least = |points: &[(usize, f64)]| {
            let per_one = points.iter().filter(|point| point.0 > 0).map(|&(n, ms)| ms / n as f64);
            per_one.fold(f64::INFINITY, f64::min) / 1e3
        };
        let finite = |seconds: f64| if seconds.is_finite() { seconds } else { 0.0 };
        Prices {
            prompt_s: finite(least(&step.prefill_ms)),
            generated_s: finite(least(&step.decode_ms)),
            resident_s: finite(least(&step.resident_ms)),
        }
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
}

impl Work {
    /// The work of the requests that count.
    #[must_use]
    pub fn of(workload: &Workload, prices: &Prices) -> Work {
        let requests = workload.counted();
        let n_bins = ceil_index(workload.seconds() / BIN_S).max(1);
        // Mean context while decoding, over all generated tokens.
        let (mut context, mut generated) = (0.0, 0.0);
        for request in requests {
            let (prompt, output) = lengths(request);
            context += output * (prompt + output / 2.0);
            generated += output;
        }
        let context = if generated > 0.0 { context / generated } else { 0.0 };
        let token_s = prices.generated_s + prices.resident_s * context;
        let mut present = vec![0.0; n_bins];
        let mut arriving = vec![0.0; n_bins];
        // What begins and ends in a bin, summed up at the end.
        let mut change = vec![0.0; n_bins + 1];
        let mut total_s = 0.0;
        for request in requests {
            let (_, output) = lengths(request);
            let computed = f64::from(request.prompt_tokens.saturating_sub(request.cached_tokens));
            let (prefill_s, decode_s) = (computed * prices.prompt_s, output * token_s);
            let bin = bin_of(request.at, workload.counted_from).min(n_bins - 1);
            arriving[bin] += prefill_s + decode_s;
            present[bin] += prefill_s;
            let spread = ceil_index(output * LOADED_ITL_S / BIN_S).max(1);
            change[bin] += decode_s / spread as f64;
            change[(bin + spread).min(n_bins)] -= decode_s / spread as f64;
            total_s += prefill_s + decode_s;
        }
        let mut decode_s = 0.0;
        for (bin, change) in present.iter_mut().zip(&change) {
            decode_s += change;
            *bin += decode_s;
        }
        Work { present, arriving, total_s }
    }

    /// Replicas that the busiest minute needs at a utilisation of 0.7.
    #[must_use]
    pub fn peak_need(&self) -> f64 {
        let minute = smoothed(&self.present, 6);
        minute.into_iter().fold(0.0, f64::max) / BIN_S / 0.7
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
            let (prompt, output) = lengths(request);
            let context = prompt + output / 2.0;
            let token_s = prices.generated_s + prices.resident_s * context;
            let computed = f64::from(request.prompt_tokens.saturating_sub(request.cached_tokens));
            computed * prices.prompt_s + output * token_s
        })
        .sum();
    ceil_count(work_s / SPAN_S / 0.7).max(1)
}

fn lengths(request: &Request) -> (f64, f64) {
    (f64::from(request.prompt_tokens), f64::from(request.output_tokens))
}

fn bin_of(at: Time, from: Time) -> usize {
    floor_index(secs_from_ps(at.since(from)) / BIN_S)
}

/// How a plan is made from work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlanKind {
    /// From the work present, or from the work that arrives.
    pub present: bool,
    /// Bins over which the work is averaged.
    pub smooth: usize,
    /// Bins ahead whose need counts now.
    pub look: usize,
    /// Utilisation of the replicas.
    pub rho: f64,
}

impl PlanKind {
    /// All but the utilisation, as eval.md sweeps it.
    pub(super) fn all() -> impl Iterator<Item = PlanKind> {
        [true, false].into_iter().flat_map(|present| {
            let windows = [(3, 1), (6, 1), (12, 1), (3, 3)];
            windows.map(|(smooth, look)| PlanKind { present, smooth, look, rho: 0.8 })
        })
    }

    /// A line that names it.
    pub(super) fn label(&self) -> String {
        let of = if self.present { "work" } else { "arrivals" };
        let PlanKind { smooth, look, rho, .. } = self;
        format!("{of}, utilisation {rho:.4}, mean of {smooth}, {look} ahead")
    }
}

/// Replicas ordered in each bin by somebody who knows the work, for starts that take `cold_s`.
#[must_use]
pub fn plan(work: &Work, kind: &PlanKind, cold_s: f64, min: u32) -> Vec<u32> {
    let series = if kind.present { &work.present } else { &work.arriving };
    let load = smoothed(series, kind.smooth);
    let need: Vec<u32> = (0..load.len())
        .map(|bin| {
            let ahead = load.iter().skip(bin).take(kind.look.max(1));
            let most = ahead.copied().fold(0.0, f64::max);
            ceil_count(most / BIN_S / kind.rho).max(min)
        })
        .collect();
    let gap = floor_index(cold_s / BIN_S);
    let kept = closed(&need, gap);
    // What is wanted in a bin is ordered one start before; what is too much goes at once.
    let lead = ceil_index(cold_s / BIN_S) + 1;
    largest_ahead(&kept, lead)
}

/// The centred mean over `width` bins, as if nothing were beyond the ends.
fn smoothed(series: &[f64], width: usize) -> Vec<f64> {
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

/// Fills gaps: a replica that is wanted again within `gap` bins, sooner than it could be started,
/// stays.
fn closed(need: &[u32], gap: usize) -> Vec<u32> {
    let mut kept = need.to_vec();
    let most = need.iter().copied().max().unwrap_or(0) as usize;
    for level in 1..=most {
        let mut last: Option<usize> = None;
        for (bin, &n) in need.iter().enumerate() {
            if (n as usize) < level {
                continue;
            }
            if let Some(last) = last
                && bin - last <= gap
            {
                let level = u32::try_from(level).unwrap_or(u32::MAX);
                kept[last..bin].iter_mut().for_each(|n| *n = (*n).max(level));
            }
            last = Some(bin);
        }
    }
    kept
}

/// The largest of each bin and the `ahead` after it.
fn largest_ahead(counts: &[u32], ahead: usize) -> Vec<u32> {
    (0..counts.len())
        .map(|bin| counts.iter().skip(bin).take(ahead + 1).copied().max().unwrap_or(0))
        .collect()
}

/// Follows a plan, bin by bin.
#[derive(Debug)]
pub(super) struct Planned {
    plan: Vec<u32>,
    started_s: Option<f64>,
}

impl Planned {
    pub(super) fn new(plan: Vec<u32>) -> Planned {
        Planned { plan, started_s: None }
    }

    /// A fleet that never changes.
    pub(super) fn fixed(replicas: u32) -> Planned {
        Planned::new(vec![replicas])
    }
}

impl Policy for Planned {
    fn tick_s(&self) -> f64 {
        if self.plan.len() > 1 { BIN_S } else { 3_600.0 }
    }

    fn source(&self) -> Source {
        Source::Direct
    }

    fn actuation(&self) -> Actuation {
        Actuation::Direct
    }

    fn memory_s(&self) -> f64 {
        0.0
    }

    fn initial(&self) -> Option<u32> {
        self.plan.first().copied()
    }

    fn tick(&mut self, view: &View<'_>) -> Action {
        let started_s = *self.started_s.get_or_insert(view.now_s);
        let bin = floor_index((view.now_s - started_s) / BIN_S + 0.5);
        let wanted = self.plan.get(bin).or_else(|| self.plan.last());
        wanted.map_or(Action::Keep, |&wanted| Action::Replicas(wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_orders_one_start_ahead_and_keeps_what_comes_back_soon() {
        let mut present = vec![10.0; 40];
        present[20] = 50.0;
        present[23] = 50.0;
        let work = Work { arriving: present.clone(), present, total_s: 0.0 };
        let kind = PlanKind { present: true, smooth: 1, look: 1, rho: 1.0 };
        let ordered = plan(&work, &kind, 30.0, 1);
        // Five replicas in bins 20 to 23, ordered 30 s + one bin before.
        let expected: Vec<u32> =
            (0..40).map(|bin| if (16..=23).contains(&bin) { 5 } else { 1 }).collect();
        assert_eq!(ordered, expected);
    }

    #[test]
    fn a_gap_longer_than_a_start_is_let_go() {
        assert_eq!(closed(&[3, 1, 1, 3, 1, 1, 1, 2], 3), [3, 3, 3, 3, 1, 1, 1, 2]);
        assert_eq!(closed(&[3, 1, 1, 3, 1, 1, 1, 2], 4), [3, 3, 3, 3, 2, 2, 2, 2]);
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
        };
        let prices = Prices { prompt_s: 1e-3, generated_s: 2e-3, resident_s: 0.0 };
        let work = Work::of(&workload, &prices);
        // 1,000 tokens take 45 s: five bins of 0.4 s; prompts count when they come.
        let expected = [1.4, 0.4, 0.902, 0.4, 0.4, 0.0, 0.0, 0.0, 0.0, 0.0];
        for (bin, expected) in work.present.iter().zip(expected) {
            assert!((bin - expected).abs() < 1e-9, "{:?}", work.present);
        }
        assert!((work.total_s - 3.502).abs() < 1e-9);
    }
}
