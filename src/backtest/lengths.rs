//! How long requests are: the shape from the engine's histograms, the scale from its counters.
//!
//! Must not tell which long prompt had the long answer: nothing exports that, so the two are drawn
//! apart from each other.

use std::collections::BTreeMap;

use super::find::By;
use crate::simulate::random::Random;
use crate::source::prometheus::{Labels, Series};

/// A histogram's growth over the history: upper bounds and counts, the last bound open.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Histogram {
    /// Upper bound and count of each bucket, ascending.
    pub(super) buckets: Vec<(f64, f64)>,
}

impl Histogram {
    /// Adds up what each series of the workload whose name ends so grew by. Bounds that only some replicas
    /// have are left out: their counts would not be comparable.
    pub(super) fn of(series: &[Series], by: &By, name: &str) -> Histogram {
        let mut by_labels: BTreeMap<&Labels, Vec<f64>> = BTreeMap::new();
        for series in series {
            let is_wanted = series.labels.get("__name__").is_some_and(|have| have.ends_with(name));
            if is_wanted && by.target(&series.labels).is_some() {
                let values = series.samples.iter().map(|sample| sample.value);
                by_labels.entry(&series.labels).or_default().extend(values);
            }
        }
        let mut by_bound: BTreeMap<u64, (f64, f64, usize)> = BTreeMap::new();
        for (labels, values) in &by_labels {
            let Some(bound) = labels.get("le").and_then(bound) else { continue };
            // Bounds are not negative, so that their bits are in their order.
            let (_, grown, n) = by_bound.entry(bound.to_bits()).or_insert((bound, 0.0, 0));
            *grown += growth(values);
            *n += 1;
        }
        let most = by_bound.values().map(|(_, _, n)| *n).max().unwrap_or(0);
        let mut below = 0.0;
        let mut buckets = Vec::new();
        for (bound, grown, _) in by_bound.into_values().filter(|(_, _, n)| *n == most) {
            buckets.push((bound, (grown - below).max(0.0)));
            below = grown.max(below);
        }
        Histogram { buckets }
    }

    /// All of it.
    pub(super) fn total(&self) -> f64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// The first bound that is not below `value`, and the share within it; `None` without one, or if
    /// nothing was counted.
    pub(super) fn share_within(&self, value: f64) -> Option<(f64, f64)> {
        let total = self.total();
        let (bound, _) = *self.buckets.iter().find(|(bound, _)| *bound >= value)?;
        let within: f64 = self
            .buckets
            .iter()
            .take_while(|(other, _)| *other <= bound)
            .map(|(_, count)| count)
            .sum();
        (total > 0.0 && bound.is_finite()).then(|| (bound, within / total))
    }
}

/// What a counter grew by, restarts included.
fn growth(values: &[f64]) -> f64 {
    let pairs = values.windows(2).filter_map(|pair| Some((*pair.first()?, *pair.get(1)?)));
    pairs.map(|(before, after)| if after < before { after } else { after - before }).sum()
}

fn bound(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|bound| *bound >= 0.0)
}

/// How lengths spread around their mean.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// Buckets of a histogram with their share, cumulated; none for the exponential law.
    buckets: Vec<Bucket>,
    mean: f64,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    low: f64,
    high: f64,
    upto: f64,
}

impl Shape {
    /// The shape of a histogram; the exponential law if it has counted nothing.
    pub(super) fn of(histogram: &Histogram) -> Shape {
        let total = histogram.total();
        let mut buckets = Vec::new();
        let (mut low, mut upto, mut sum) = (1.0, 0.0, 0.0);
        for &(bound, count) in histogram.buckets.iter().filter(|_| total > 0.0) {
            // The open bucket begins where vLLM's series of bounds ends, at the longest request.
            let high = if bound.is_finite() { bound.max(low) } else { 2.0 * low };
            upto += count / total;
            sum += count / total * mean_between(low, high);
            buckets.push(Bucket { low, high, upto });
            low = high;
        }
        Shape { buckets, mean: if sum > 0.0 { sum } else { 1.0 } }
    }

    /// Whether the engine told it.
    pub(super) fn is_known(&self) -> bool {
        !self.buckets.is_empty()
    }

    /// A length relative to the mean.
    pub(super) fn draw(&self, rng: &mut Random) -> f64 {
        let share = rng.uniform();
        if self.buckets.is_empty() {
            return -(1.0 - share).ln();
        }
        let index = self.buckets.partition_point(|bucket| bucket.upto <= share);
        let bucket = self.buckets.get(index).or_else(|| self.buckets.last());
        // Within a bucket of a 1-2-5 series lengths are spread evenly by their logarithm.
        bucket.map_or(1.0, |b| b.low * (b.high / b.low).powf(rng.uniform()) / self.mean)
    }
}

fn mean_between(low: f64, high: f64) -> f64 {
    if high > low * (1.0 + 1e-9) { (high - low) / (high / low).ln() } else { low }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Moment;
    use crate::source::prometheus::Sample;

    fn series(pod: &str, le: &str, values: &[f64]) -> Series {
        let labels = format!(r#"{{"__name__":"x_bucket","pod":"{pod}","le":"{le}"}}"#);
        let at = |i: usize| Moment(i64::try_from(i).unwrap());
        let samples = values.iter().enumerate().map(|(i, &value)| Sample { at: at(i), value });
        Series { labels: serde_json::from_str(&labels).unwrap(), samples: samples.collect() }
    }

    fn by() -> By {
        By::Pod { label: "pod", workload: "llm".to_owned() }
    }

    #[test]
    fn buckets_grow_over_restarts_and_windows_and_replicas() {
        let all = [
            series("llm-0", "100", &[5.0, 15.0]),
            series("llm-0", "100", &[20.0, 2.0]),
            series("llm-1", "100", &[0.0, 3.0]),
            series("llm-0", "+Inf", &[5.0, 25.0, 30.0, 4.0]),
            series("llm-1", "+Inf", &[0.0, 6.0]),
            series("llm-1", "50", &[0.0, 1.0]),
            series("other-0", "100", &[0.0, 99.0]),
        ];
        let histogram = Histogram::of(&all, &by(), "x_bucket");
        // 10 + 5 + 2 + 3 up to 100; 20 + 5 + 4 + 6 in all; 50 is one replica's own bound.
        assert_eq!(histogram.buckets, [(100.0, 20.0), (f64::INFINITY, 15.0)]);
        assert_eq!(histogram.share_within(80.0), Some((100.0, 20.0 / 35.0)));
        assert_eq!(histogram.share_within(101.0), None);
    }

    #[test]
    fn drawn_lengths_have_the_mean_one_and_stay_in_their_buckets() {
        let told = Histogram { buckets: vec![(100.0, 0.0), (200.0, 3.0), (500.0, 1.0)] };
        for histogram in [told, Histogram::default()] {
            let shape = Shape::of(&histogram);
            let mut rng = Random::new(1, 0);
            let draws: Vec<f64> = (0..20_000).map(|_| shape.draw(&mut rng)).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            assert!((mean - 1.0).abs() < 0.03, "{mean}");
            if shape.is_known() {
                let range = (100.0 / shape.mean)..=(500.0 / shape.mean);
                assert!(draws.iter().all(|draw| range.contains(draw)));
            }
        }
    }
}
