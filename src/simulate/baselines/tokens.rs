//! llm-d WVA's second analyser (V2): tokens that are wanted against tokens that a replica holds
//! [b08b1c7, `internal/engines/analyzers/saturation_v2/analyzer.go`].
//!
//! Must not know more of the engine than its limits and the mean lengths of its requests.
//!
//! A replica holds the lesser of 80 % of its KV cache and what compute allows: what lay in it when
//! at least 5 waited, else the mean of the last ten such, else what its limits let it hold in the
//! steady state. Replicas are added above 85 % (`scaleUpThreshold`, the knob), counting those that
//! start, and removed below 70 % (`scaleDownBoundary`), which keeps its ratio in the sweep.

use std::collections::{BTreeMap, VecDeque};

use super::series::{Counter, each};
use super::wva::{Peak, TICK_S, Way, Wva};
use super::{Baseline, count};
use crate::simulate::candidate::Context;
use crate::simulate::policy::{Action, Actuation, Policy, View};

/// `kvCacheThreshold` and `queueLengthThreshold`.
const KV_THRESHOLD: f64 = 0.80;
const QUEUE_THRESHOLD: f64 = 5.0;
/// `scaleDownBoundary` over `scaleUpThreshold`.
const DOWN_RATIO: f64 = 0.70 / 0.85;
/// `RollingAverageWindowSize`.
const HISTORY: usize = 10;
/// Upper ends of the buckets of output lengths that have a history each.
const OUTPUT_BOUNDS: [f64; 2] = [100.0, 500.0];
/// The window of the mean lengths, in seconds.
const LENGTHS_S: f64 = 300.0;
const THRESHOLDS: &[f64] = &[0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// The analyser behind the chart's HPA, and behind one that lets it through.
pub(super) const ALL: [Baseline; 2] = [
    Baseline {
        policy: "llm-d-wva-v2",
        knob: "scaleUpThreshold",
        documented: Some(0.85),
        sweep: THRESHOLDS,
        make: |up, context| Box::new(Tokens::new(Way::Chart, up, context)),
    },
    Baseline {
        policy: "llm-d-wva-v2-direct",
        knob: "scaleUpThreshold",
        documented: None,
        sweep: THRESHOLDS,
        make: |up, context| Box::new(Tokens::new(Way::Direct(context.max), up, context)),
    },
];

#[derive(Debug)]
struct Tokens {
    way: Way,
    up: f64,
    engine: Engine,
    wva: Wva,
    lengths: Lengths,
    capacity: Capacity,
}

impl Tokens {
    fn new(way: Way, up: f64, context: &Context) -> Tokens {
        let (max_num_seqs, max_num_batched_tokens) = context.limits;
        Tokens {
            way,
            up,
            engine: Engine { max_num_seqs, max_num_batched_tokens },
            wva: Wva::new(),
            lengths: Lengths::new(context.mean_tokens),
            capacity: Capacity::default(),
        }
    }
}

impl Policy for Tokens {
    fn tick_s(&self) -> f64 {
        TICK_S
    }

    fn actuation(&self) -> Actuation {
        self.way.actuation()
    }

    fn tick(&mut self, view: &View<'_>) -> Action {
        if let Some(at_s) = self.wva.read(view) {
            self.lengths.read(at_s, view);
        }
        if !self.wva.is_due(view.now_s) {
            return self.wva.gauge(view);
        }
        let peaks = self.wva.peaks(view);
        if peaks.is_empty() {
            return self.wva.gauge(view);
        }
        let means = self.lengths.means();
        let per_replica = self.capacity.per_replica(&peaks, &self.engine, means);
        let in_replicas: f64 = peaks.iter().map(|peak| in_replica(peak, means.0)).sum();
        // What the gateway holds, priced by the mean lengths (its four bytes a token say the same).
        let demand = in_replicas + view.held * (means.0 + means.1);
        let counts = view.counts;
        let target = target(demand, per_replica, (counts.ready, counts.spec), self.up);
        self.wva.publish(view, target)
    }
}

/// Tokens in the cache, and the prompts of those that wait.
fn in_replica(peak: &Peak, mean_prompt: f64) -> f64 {
    peak.kv_usage * peak.kv_tokens + peak.queue * mean_prompt
}

/// Replicas for a demand in tokens, with what is ready and what is ordered of them.
fn target(demand: f64, per_replica: f64, (ready, ordered): (u32, u32), up: f64) -> u32 {
    if per_replica <= 0.0 {
        return ordered;
    }
    let required = demand / up - f64::from(ordered) * per_replica;
    let spare = f64::from(ready) * per_replica - demand / (up * DOWN_RATIO);
    if required > 0.0 {
        ordered + count((required / per_replica).ceil())
    } else if spare > 0.0 {
        // The cheapest variant, here the only one, keeps a replica.
        ordered.saturating_sub(count((spare / per_replica).floor())).max(1)
    } else {
        ordered
    }
}

/// The engine's own limits.
#[derive(Debug, Clone, Copy)]
struct Engine {
    max_num_seqs: f64,
    max_num_batched_tokens: f64,
}

impl Engine {
    /// `estimateCapacityFromParams`: tokens in the cache of a replica whose steps are full, with
    /// those means of prompt and output.
    fn steady_tokens(&self, (prompt, output): (f64, f64)) -> f64 {
        let requests = self.max_num_batched_tokens * output / (prompt + output);
        requests.min(self.max_num_seqs) * (prompt + output / 2.0)
    }
}

/// What replicas have been seen to hold.
#[derive(Debug, Default)]
struct Capacity {
    seen: BTreeMap<usize, VecDeque<f64>>,
}

impl Capacity {
    /// The median over the replicas of what each holds at most.
    fn per_replica(&mut self, peaks: &[Peak], engine: &Engine, means: (f64, f64)) -> f64 {
        let mut all: Vec<f64> = peaks
            .iter()
            .map(|peak| (KV_THRESHOLD * peak.kv_tokens).min(self.compute(peak, engine, means)))
            .collect();
        all.sort_by(f64::total_cmp);
        let middle = all.len() / 2;
        let upper = all.get(middle).copied().unwrap_or(0.0);
        if all.len() % 2 == 1 || middle == 0 { upper } else { (all[middle - 1] + upper) / 2.0 }
    }

    /// `computeK2`.
    fn compute(&mut self, peak: &Peak, engine: &Engine, means: (f64, f64)) -> f64 {
        let tokens = peak.kv_usage * peak.kv_tokens;
        let bucket = OUTPUT_BOUNDS.partition_point(|&bound| bound <= means.1);
        let seen = self.seen.entry(bucket).or_default();
        if peak.queue >= QUEUE_THRESHOLD && tokens > 0.0 {
            seen.push_back(tokens);
            if seen.len() > HISTORY {
                seen.pop_front();
            }
            return tokens;
        }
        if !seen.is_empty() {
            return seen.iter().sum::<f64>() / seen.len() as f64;
        }
        let steady = engine.steady_tokens(means);
        if steady > 0.0 { steady } else { KV_THRESHOLD * peak.kv_tokens }
    }
}

/// Mean lengths of what has been served in the last five minutes.
#[derive(Debug)]
struct Lengths {
    configured: (f64, f64),
    prompt_tokens: Counter,
    prompts: Counter,
    output_tokens: Counter,
    finished: Counter,
}

impl Lengths {
    fn new(configured: (f64, f64)) -> Lengths {
        let counter = || Counter::new(LENGTHS_S);
        Lengths {
            configured,
            prompt_tokens: counter(),
            prompts: counter(),
            output_tokens: counter(),
            finished: counter(),
        }
    }

    fn read(&mut self, at_s: f64, view: &View<'_>) {
        self.prompt_tokens.read(at_s, each(view, |engine| engine.sample.prompt_tokens));
        self.prompts.read(at_s, each(view, |engine| engine.sample.ttft_count));
        self.output_tokens.read(at_s, each(view, |e| e.sample.finished_generated_tokens));
        self.finished.read(at_s, each(view, |engine| engine.sample.finished));
    }

    fn means(&self) -> (f64, f64) {
        let mean = |tokens: &Counter, requests: &Counter, otherwise: f64| {
            let n = requests.increase();
            if n > 0.0 { tokens.increase() / n } else { otherwise }
        };
        let (prompt, output) = self.configured;
        (
            mean(&self.prompt_tokens, &self.prompts, prompt),
            mean(&self.output_tokens, &self.finished, output),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINE: Engine = Engine { max_num_seqs: 256.0, max_num_batched_tokens: 2_048.0 };

    fn peak(tokens: f64, queue: f64) -> Peak {
        Peak { kv_usage: tokens / 100_000.0, queue, kv_tokens: 100_000.0 }
    }

    #[test]
    fn the_steady_state_is_bounded_by_steps_or_by_sequences() {
        // 2,048 × 200 / 1,200 = 341 requests, of which 256 fit, × 1,100 tokens.
        assert!((ENGINE.steady_tokens((1_000.0, 200.0)) - 256.0 * 1_100.0).abs() < 1e-6);
        // 2,048 × 100 / 4,100 = 49.95 requests × 4,050 tokens.
        let steps = ENGINE.steady_tokens((4_000.0, 100.0));
        assert!((steps - 2_048.0 * 100.0 / 4_100.0 * 4_050.0).abs() < 1e-6);
    }

    #[test]
    fn what_lay_in_a_saturated_replica_is_its_capacity_and_is_remembered() {
        let mut capacity = Capacity::default();
        let means = (4_000.0, 100.0);
        let steady = ENGINE.steady_tokens(means).min(80_000.0);
        let first = capacity.per_replica(&[peak(10_000.0, 0.0)], &ENGINE, means);
        assert!((first - steady).abs() < 1e-6);
        for tokens in [30_000.0, 50_000.0] {
            let seen = capacity.per_replica(&[peak(tokens, 5.0)], &ENGINE, means);
            assert!((seen - tokens).abs() < 1e-6);
        }
        let remembered = capacity.per_replica(&[peak(10_000.0, 4.9)], &ENGINE, means);
        assert!((remembered - 40_000.0).abs() < 1e-6);
        // Another length of output has another history; the memory bound is never passed.
        let other = capacity.per_replica(&[peak(10_000.0, 0.0)], &ENGINE, (1_000.0, 600.0));
        assert!((other - 80_000.0).abs() < 1e-6);
    }

    #[test]
    fn the_median_is_that_of_the_replicas() {
        let mut capacity = Capacity::default();
        let peaks = [peak(20_000.0, 9.0), peak(60_000.0, 9.0), peak(50_000.0, 9.0)];
        assert!((capacity.per_replica(&peaks, &ENGINE, (10.0, 10.0)) - 50_000.0).abs() < 1e-6);
        let median = capacity.per_replica(&peaks[..2], &ENGINE, (10.0, 10.0));
        assert!((median - 40_000.0).abs() < 1e-6);
    }

    #[test]
    fn replicas_are_added_above_85_percent_and_removed_below_70() {
        // Four of 10,000 tokens: between 28,000 and 34,000 nothing moves.
        let table = [
            (34_000.0, 4, 4, 4),
            (34_100.0, 4, 4, 5),
            (60_000.0, 4, 4, 8),
            (28_100.0, 4, 4, 4),
            // 20,000 / 0.7 = 28,571: spare is one whole replica.
            (20_000.0, 4, 4, 3),
            (0.0, 4, 4, 1),
            // What starts counts for adding, not for removing.
            (60_000.0, 4, 8, 8),
        ];
        for (demand, ready, ordered, wanted) in table {
            assert_eq!(target(demand, 10_000.0, (ready, ordered), 0.85), wanted, "{demand}");
        }
    }

    #[test]
    fn those_that_wait_want_their_prompts() {
        assert!((in_replica(&peak(30_000.0, 4.0), 1_500.0) - 36_000.0).abs() < 1e-6);
    }
}
