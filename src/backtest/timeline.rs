//! What each replica said over time, from the series of a window.
//!
//! Must not add up replicas, and never takes the same scrape for two: Prometheus repeats a sample at
//! each step for up to five minutes, so that the time of its scrape is asked for too.

use std::collections::BTreeMap;

use super::find::By;
use super::span::Span;
use crate::decision::{EngineSample, Moment};
use crate::signals::engine::{Filter, SeriesFold};
use crate::source::prometheus::Series;

/// One scrape of one replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scrape {
    /// What the engine said, at the time of its scrape.
    pub(super) sample: EngineSample,
    /// Counter: all prompt tokens, those that the prefix cache held included.
    pub(super) all_prompt_tokens: Option<f64>,
}

/// The scrapes of each replica, oldest first, by its name.
#[derive(Debug, Default)]
pub(super) struct Timelines {
    pub(super) by_target: BTreeMap<Box<str>, Vec<Scrape>>,
    /// Scrapes in which nothing of a known engine could be read.
    pub(super) unreadable: usize,
}

/// The counter of all prompt tokens, behind its prefix.
const ALL_PROMPT_TOKENS: &str = "prompt_tokens_total";

impl Timelines {
    /// Takes in a window that is later than those before: the engines' series, and the times of
    /// their scrapes.
    pub(super) fn take(&mut self, window: &Span, by: &By, engines: &[Series], times: &[Series]) {
        let mut targets: BTreeMap<&str, Target<'_>> = BTreeMap::new();
        for series in engines {
            if let Some(name) = by.target(&series.labels) {
                targets.entry(name).or_default().series.push(Cursor::of(series));
            }
        }
        for series in times {
            if let Some(target) = by.target(&series.labels).and_then(|name| targets.get_mut(name)) {
                target.times.push(Cursor::of(series));
            }
        }
        let filter = Filter::default();
        for (name, mut target) in targets {
            let scrapes = self.by_target.entry(name.into()).or_default();
            for step in 0..window.len() {
                let at = window.from.plus_millis(window.step_ms * step as u64);
                let Some(scraped_at) = target.scraped_at(at) else { continue };
                if scrapes.last().is_some_and(|last| last.sample.at >= scraped_at) {
                    target.skip(at);
                    continue;
                }
                match target.scrape(at, scraped_at, &filter) {
                    Some(scrape) => scrapes.push(scrape),
                    None => self.unreadable += 1,
                }
            }
        }
        self.by_target.retain(|_, scrapes| !scrapes.is_empty());
    }
}

/// The series of one replica.
#[derive(Debug, Default)]
struct Target<'a> {
    series: Vec<Cursor<'a>>,
    times: Vec<Cursor<'a>>,
}

impl Target<'_> {
    /// When what is seen at this step was scraped; `None` if nothing is.
    fn scraped_at(&mut self, at: Moment) -> Option<Moment> {
        let times = self.times.iter_mut().filter_map(|times| times.value(at));
        let newest_s = times.fold(f64::NEG_INFINITY, f64::max);
        let millis = (newest_s * 1_000.0).round();
        // 2^53: beyond it a float is no exact count of milliseconds.
        if !(0.0..9_007_199_254_740_992.0).contains(&millis) {
            // A store that cannot tell the time of a sample tells that of the step.
            let is_seen = self.times.is_empty() && self.series.iter_mut().any(|s| s.peek(at));
            return is_seen.then_some(at);
        }
        #[expect(clippy::cast_possible_truncation, reason = "range checked just above")]
        Some(Moment(millis as i64).min(at))
    }

    fn scrape(&mut self, at: Moment, scraped_at: Moment, filter: &Filter) -> Option<Scrape> {
        let (mut all, mut prompts) = (SeriesFold::new(filter), SeriesFold::new(filter));
        for cursor in &mut self.series {
            let Some(value) = cursor.value(at) else { continue };
            let name = cursor.series.labels.get("__name__").unwrap_or_default();
            let labels = || cursor.series.labels.iter().filter(|(label, _)| *label != "__name__");
            all.add(name, labels(), value, scraped_at);
            if name.ends_with(ALL_PROMPT_TOKENS) {
                prompts.add(name, labels(), value, scraped_at);
            }
        }
        let sample = EngineSample { at: scraped_at, ..all.finish().ok()?.sample };
        let all_prompt_tokens = prompts.finish().ok().and_then(|page| page.sample.prompt_tokens);
        Some(Scrape { sample, all_prompt_tokens })
    }

    fn skip(&mut self, at: Moment) {
        for cursor in &mut self.series {
            cursor.value(at);
        }
    }
}

/// A place in a series, which only moves forward.
#[derive(Debug)]
struct Cursor<'a> {
    series: &'a Series,
    next: usize,
}

impl<'a> Cursor<'a> {
    fn of(series: &'a Series) -> Cursor<'a> {
        Cursor { series, next: 0 }
    }

    fn peek(&mut self, at: Moment) -> bool {
        let samples = &self.series.samples;
        while samples.get(self.next).is_some_and(|sample| sample.at < at) {
            self.next += 1;
        }
        samples.get(self.next).is_some_and(|sample| sample.at == at)
    }

    /// The value at exactly this step.
    fn value(&mut self, at: Moment) -> Option<f64> {
        let sample = self.peek(at).then(|| self.series.samples.get(self.next)).flatten()?;
        (!sample.value.is_nan()).then_some(sample.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, points: &[(i64, f64)]) -> Series {
        let labels = format!(r#"{{"__name__":"{name}","pod":"llm-0","engine":"0"}}"#);
        let samples = points.iter().map(|&(at_s, value)| crate::source::prometheus::Sample {
            at: Moment(at_s * 1_000),
            value,
        });
        Series { labels: serde_json::from_str(&labels).unwrap(), samples: samples.collect() }
    }

    fn by() -> By {
        By::Pod { label: "pod", workload: "llm".to_owned() }
    }

    #[test]
    fn a_repeated_scrape_is_one_and_has_its_own_time() {
        let span = Span::new(Moment(0), Moment(60_000), Some(15_000));
        let engines = [
            series("vllm:num_requests_running", &[(0, 1.0), (15, 2.0), (30, 2.0), (45, 4.0)]),
            series("vllm:num_requests_waiting", &[(0, 0.0), (15, 0.0), (30, 0.0), (45, 0.0)]),
            series("vllm:prompt_tokens_total", &[(0, 9.0), (15, 9.0), (30, 9.0), (45, 10.0)]),
            series("other", &[(0, 1.0)]),
        ];
        let times = [series("", &[(0, -1.0), (15, 10.5), (30, 10.5), (45, 40.5)])];
        let mut timelines = Timelines::default();
        timelines.take(&span, &by(), &engines, &times);
        let scrapes = &timelines.by_target["llm-0"];
        let seen: Vec<(i64, Option<f64>, Option<f64>)> = scrapes
            .iter()
            .map(|scrape| (scrape.sample.at.0, scrape.sample.running, scrape.all_prompt_tokens))
            .collect();
        assert_eq!(seen, [(10_500, Some(2.0), Some(9.0)), (40_500, Some(4.0), Some(10.0))]);
    }

    #[test]
    fn names_may_change_between_two_scrapes() {
        let span = Span::new(Moment(0), Moment(30_000), Some(15_000));
        let engines = [
            series("vllm:gpu_cache_usage_perc", &[(0, 0.25)]),
            series("vllm:num_requests_running", &[(0, 1.0)]),
            series("vllm:num_requests_waiting", &[(0, 0.0)]),
            series("vllm_kv_cache_usage_perc", &[(15, 0.5)]),
            series("vllm_num_requests_running", &[(15, 1.0)]),
            series("vllm_num_requests_waiting", &[(15, 0.0)]),
        ];
        let mut timelines = Timelines::default();
        timelines.take(&span, &by(), &engines, &[]);
        let kv: Vec<Option<f64>> =
            timelines.by_target["llm-0"].iter().map(|scrape| scrape.sample.kv_usage).collect();
        assert_eq!(kv, [Some(0.25), Some(0.5)]);
    }
}
