//! What a policy remembers of a value: a moving window, and the growth of a fleet's counters.
//!
//! Must not decide anything.

use std::collections::{BTreeMap, VecDeque};

use crate::decision::Moment;
use crate::simulate::policy::{EngineView, View};

/// Values of the last `span_s` seconds; what is that old is gone.
#[derive(Debug, Clone)]
pub(super) struct Window {
    span_s: f64,
    points: VecDeque<(f64, f64)>,
}

impl Window {
    pub(super) fn new(span_s: f64) -> Window {
        Window { span_s, points: VecDeque::new() }
    }

    /// Adds a value; moments do not go back.
    pub(super) fn add(&mut self, at_s: f64, value: f64) {
        self.points.push_back((at_s, value));
        self.pass(at_s);
    }

    /// Lets time pass without a value.
    pub(super) fn pass(&mut self, now_s: f64) {
        while self.points.front().is_some_and(|&(at_s, _)| at_s <= now_s - self.span_s) {
            self.points.pop_front();
        }
    }

    pub(super) fn mean(&self) -> Option<f64> {
        let n = self.points.len();
        (n > 0).then(|| self.values().sum::<f64>() / n as f64)
    }

    pub(super) fn max(&self) -> Option<f64> {
        self.values().reduce(f64::max)
    }

    pub(super) fn min(&self) -> Option<f64> {
        self.values().reduce(f64::min)
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        self.points.iter().map(|&(_, value)| value)
    }
}

/// A counter summed over all replicas that are or were, and its growth over a window. A replica
/// that is new has counted from zero.
#[derive(Debug, Clone)]
pub(super) struct Counter {
    span_s: f64,
    last: BTreeMap<u32, f64>,
    total: f64,
    points: VecDeque<(f64, f64)>,
}

impl Counter {
    pub(super) fn new(span_s: f64) -> Counter {
        Counter { span_s, last: BTreeMap::new(), total: 0.0, points: VecDeque::new() }
    }

    /// Takes in what each replica's counter says at one moment.
    pub(super) fn read(&mut self, at_s: f64, values: impl Iterator<Item = (u32, f64)>) {
        let mut now = BTreeMap::new();
        for (id, value) in values {
            let before = self.last.get(&id).copied().unwrap_or(0.0);
            // A counter that fell has begun anew.
            self.total += if value < before { value } else { value - before };
            now.insert(id, value);
        }
        self.last = now;
        self.points.push_back((at_s, self.total));
        self.pass(at_s);
    }

    /// Lets time pass without a reading.
    pub(super) fn pass(&mut self, now_s: f64) {
        while self.points.front().is_some_and(|&(first_s, _)| first_s < now_s - self.span_s) {
            self.points.pop_front();
        }
    }

    /// Growth within the window.
    pub(super) fn increase(&self) -> f64 {
        self.ends().map_or(0.0, |((_, first), (_, last))| last - first)
    }

    /// Growth per second within the window; 0 before there are two readings.
    pub(super) fn rate(&self) -> f64 {
        let ends = self.ends().filter(|((first_s, _), (last_s, _))| last_s > first_s);
        ends.map_or(0.0, |((first_s, first), (last_s, last))| (last - first) / (last_s - first_s))
    }

    fn ends(&self) -> Option<((f64, f64), (f64, f64))> {
        Some((*self.points.front()?, *self.points.back()?))
    }
}

/// Tells a new scrape of the engines from one that has been seen.
#[derive(Debug, Clone, Default)]
pub(super) struct Scrapes {
    last_s: Option<f64>,
}

impl Scrapes {
    /// When the engines were scraped, if that has not been said before.
    pub(super) fn new_at_s(&mut self, view: &View<'_>) -> Option<f64> {
        let seconds = |engine: &EngineView| engine.sample.at.secs_since(Moment(0));
        let newest_s = view.engines.iter().map(seconds).reduce(f64::max)?;
        if self.last_s.is_some_and(|last_s| newest_s <= last_s) {
            return None;
        }
        self.last_s = Some(newest_s);
        self.last_s
    }
}

/// One of an engine's numbers, for each engine that has it.
pub(super) fn each(
    view: &View<'_>,
    number: impl Fn(&EngineView) -> Option<f64>,
) -> impl Iterator<Item = (u32, f64)> {
    view.engines.iter().filter_map(move |engine| Some((engine.id, number(engine)?)))
}

/// The sum of one of the engines' numbers.
pub(super) fn sum(view: &View<'_>, number: impl Fn(&EngineView) -> Option<f64>) -> f64 {
    each(view, number).map(|(_, value)| value).sum()
}

/// Requests waiting and running in an engine.
pub(super) fn in_flight(engine: &EngineView) -> Option<f64> {
    Some(engine.sample.waiting? + engine.sample.running?)
}

/// Tokens that lie in an engine's KV cache.
pub(super) fn kv_tokens(engine: &EngineView) -> Option<f64> {
    Some(engine.sample.kv_usage? * engine.sample.kv_tokens?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_forgets_what_is_as_old_as_it_is_long() {
        let mut window = Window::new(60.0);
        for (at_s, value) in [(0.0, 9.0), (30.0, 1.0), (60.0, 2.0)] {
            window.add(at_s, value);
        }
        assert_eq!((window.mean(), window.max(), window.min()), (Some(1.5), Some(2.0), Some(1.0)));
        window.pass(120.0);
        assert_eq!(window.mean(), None);
    }

    #[test]
    fn a_counter_outlives_its_replicas_and_their_restarts() {
        let mut counter = Counter::new(60.0);
        counter.read(0.0, [(1, 100.0)].into_iter());
        counter.read(15.0, [(1, 130.0), (2, 10.0)].into_iter());
        counter.read(30.0, [(2, 30.0)].into_iter());
        counter.read(45.0, [(2, 5.0)].into_iter());
        // 30 + 10, then 20, then 5 after a restart.
        assert!((counter.increase() - 65.0).abs() < 1e-9);
        assert!((counter.rate() - 65.0 / 45.0).abs() < 1e-9);
        counter.read(75.0, [(2, 20.0)].into_iter());
        // The reading at 0 s is out.
        assert!((counter.rate() - (25.0 + 15.0) / 60.0).abs() < 1e-9, "{}", counter.rate());
    }
}
