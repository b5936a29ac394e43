//! What a run cost and how well it served: sums, and a timeline for the eye.
//!
//! Must not know the policy.

use loadgen::engine::{PS_PER_S, Time, secs_from_ps};

use super::fleet::Census;
use super::judge::Verdict;
use super::number::floor_index;
use super::workload::Request;

/// Upper bounds of the prompt lengths by which attainment is also told, in tokens; the last group
/// is open.
pub const LENGTH_BOUNDS: [u32; 3] = [1_000, 4_000, 16_000];
/// A change against the direction of the one before it, within so many seconds, is a flap.
const FLAP_S: f64 = 600.0;
/// Points of a timeline.
const TIMELINE_POINTS: u64 = 480;

/// The result of one run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Requests that counted.
    pub requests: u64,
    /// Of these, within their targets.
    pub good: u64,
    /// The same with the bare target to the first token.
    pub good_raw: u64,
    /// Requests and good ones by prompt length; see [`LENGTH_BOUNDS`].
    pub by_length: [(u64, u64); LENGTH_BOUNDS.len() + 1],
    /// Replica-seconds that were loading.
    pub loading_s: f64,
    /// Replica-seconds that served.
    pub ready_s: f64,
    /// Replica-seconds that drained.
    pub draining_s: f64,
    /// Replica-seconds that waited for a node; they cost nothing.
    pub unplaced_s: f64,
    /// Pods created.
    pub cold_starts: u32,
    /// Changes against the direction of the one before, within ten minutes.
    pub flaps: u32,
    /// Seconds at the most replicas.
    pub at_max_s: f64,
    /// Most replicas ordered at once.
    pub max_replicas: u32,
    /// Times to the first token.
    pub ttft: Times,
    /// Times to the last token.
    pub e2e: Times,
    /// How it went, at equal distances.
    pub timeline: Vec<Point>,
}

impl Outcome {
    /// Share of the requests within their targets, 0 to 1; 1 if there were none.
    #[must_use]
    pub fn attainment(&self) -> f64 {
        share(self.good, self.requests)
    }

    /// The same with the bare target to the first token.
    #[must_use]
    pub fn attainment_raw(&self) -> f64 {
        share(self.good_raw, self.requests)
    }

    /// Hours of replicas, from the moment that a pod has its GPUs to its end.
    #[must_use]
    pub fn replica_hours(&self) -> f64 {
        (self.loading_s + self.ready_s + self.draining_s) / 3_600.0
    }
}

/// Part of a whole; all of it if there is nothing.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

/// One moment of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Point {
    /// Seconds since the counted part began.
    pub t_s: f64,
    /// Replicas ordered.
    pub ordered: u32,
    /// Replicas serving.
    pub ready: u32,
    /// Requests in flight, held ones included.
    pub in_flight: u32,
    /// Requests that came, per second since the point before.
    pub arrivals: f64,
    /// Share of the requests that ended since the point before within their targets.
    pub good: f64,
}

/// Counts durations in buckets 3 % wide.
#[derive(Debug, Clone)]
pub struct Times {
    counts: Vec<u32>,
    total: u64,
}

/// The first bucket ends at 1 ms, the last at 1 ms × 1.03^600 = 14 h.
const TIMES_BUCKETS: usize = 600;
const TIMES_RATIO: f64 = 1.03;

impl Default for Times {
    fn default() -> Times {
        Times { counts: vec![0; TIMES_BUCKETS], total: 0 }
    }
}

impl Times {
    pub(super) fn note(&mut self, seconds: f64) {
        let bucket = floor_index((seconds / 1e-3).max(1.0).ln() / TIMES_RATIO.ln());
        self.counts[bucket.min(TIMES_BUCKETS - 1)] += 1;
        self.total += 1;
    }

    /// The duration in seconds that this share of them does not exceed, to 3 %; `None` if there
    /// are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let rank = share * self.total as f64;
        let mut below = 0.0;
        let bucket = self.counts.iter().position(|&count| {
            below += f64::from(count);
            count > 0 && below >= rank
        })?;
        Some(1e-3 * TIMES_RATIO.powf(bucket as f64 + 0.5))
    }
}

/// Adds up a run as it goes.
#[derive(Debug)]
pub(super) struct Meter {
    outcome: Outcome,
    from: Time,
    end: Time,
    last: Time,
    census: Census,
    max: u32,
    last_direction: i8,
    last_change: Option<Time>,
    next_point: Time,
    point_ps: u64,
    arrived: u64,
    judged: (u64, u64),
}

impl Meter {
    /// Of the time from one moment to another, for a fleet that begins at `start`.
    pub(super) fn new((from, end): (Time, Time), max: u32, start: Time, census: Census) -> Meter {
        let point_ps = (end.since(from) / TIMELINE_POINTS).max(PS_PER_S);
        Meter {
            outcome: Outcome::default(),
            from,
            end,
            last: start,
            census,
            max,
            last_direction: 0,
            last_change: None,
            next_point: from.plus_ps(point_ps),
            point_ps,
            arrived: 0,
            judged: (0, 0),
        }
    }

    /// Counts the time until now at the counts until now.
    pub(super) fn pass(&mut self, now: Time) {
        let (since, until) = (self.last.max(self.from), now.min(self.end));
        self.last = now;
        if until <= since {
            return;
        }
        let seconds = secs_from_ps(until.since(since));
        self.outcome.loading_s += f64::from(self.census.loading) * seconds;
        self.outcome.ready_s += f64::from(self.census.serving) * seconds;
        self.outcome.draining_s += f64::from(self.census.draining) * seconds;
        self.outcome.unplaced_s += f64::from(self.census.counts.unschedulable) * seconds;
        if self.census.counts.spec >= self.max {
            self.outcome.at_max_s += seconds;
        }
    }

    /// From now on there are these replicas; [`Meter::pass`] has been told of the time before.
    pub(super) fn changed(&mut self, census: Census, now: Time) {
        let (before, counts) = (self.census.counts.spec, census.counts);
        let created = census.created - self.census.created;
        self.census = census;
        if now < self.from {
            return;
        }
        self.outcome.cold_starts += created;
        self.outcome.max_replicas = self.outcome.max_replicas.max(counts.spec);
        if counts.spec == before {
            return;
        }
        let direction = if counts.spec > before { 1 } else { -1 };
        let soon = self.last_change.is_some_and(|at| secs_from_ps(now.since(at)) < FLAP_S);
        if soon && direction != self.last_direction {
            self.outcome.flaps += 1;
        }
        self.last_direction = direction;
        self.last_change = Some(now);
    }

    pub(super) fn arrived(&mut self, at: Time) {
        self.arrived += u64::from(at >= self.from);
    }

    /// A request ended.
    pub(super) fn ended(&mut self, request: &Request, first: Time, last: Time, verdict: Verdict) {
        if request.at < self.from {
            return;
        }
        self.judged.0 += 1;
        self.judged.1 += u64::from(verdict.good);
        self.outcome.good += u64::from(verdict.good);
        self.outcome.good_raw += u64::from(verdict.good_raw);
        let group = LENGTH_BOUNDS.partition_point(|&bound| bound < request.prompt_tokens);
        self.outcome.by_length[group].1 += u64::from(verdict.good);
        self.outcome.ttft.note(secs_from_ps(first.since(request.at)));
        self.outcome.e2e.note(secs_from_ps(last.since(request.at)));
    }

    /// When the next point of the timeline is due.
    pub(super) fn next_point(&self) -> Time {
        self.next_point
    }

    pub(super) fn point(&mut self, in_flight: usize, now: Time) {
        let (ended, good) = std::mem::take(&mut self.judged);
        self.outcome.timeline.push(Point {
            t_s: secs_from_ps(now.since(self.from)),
            ordered: self.census.counts.spec,
            ready: self.census.serving,
            in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX),
            arrivals: std::mem::take(&mut self.arrived) as f64 / secs_from_ps(self.point_ps),
            good: share(good, ended),
        });
        self.next_point = self.next_point.plus_ps(self.point_ps);
        if self.next_point > self.end {
            self.next_point = Time::MAX;
        }
    }

    /// Ends the run; `requests` are all that count, answered or not.
    pub(super) fn finish(mut self, requests: &[Request]) -> Outcome {
        self.outcome.requests = requests.len() as u64;
        for request in requests {
            let group = LENGTH_BOUNDS.partition_point(|&bound| bound < request.prompt_tokens);
            self.outcome.by_length[group].0 += 1;
        }
        self.outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::policy::Counts;

    fn seconds(s: u64) -> Time {
        Time::from_millis(s * 1_000)
    }

    fn census(ready: u32, starting: u32, terminating: u32, created: u32) -> Census {
        let spec = ready + starting;
        let counts = Counts { spec, ready, starting, unschedulable: 0, terminating };
        Census { counts, loading: starting, serving: ready, draining: terminating, created }
    }

    #[test]
    fn only_the_counted_part_is_paid_for() {
        let mut meter = Meter::new((seconds(100), seconds(200)), 4, Time::ZERO, census(2, 0, 0, 2));
        meter.pass(seconds(150));
        meter.changed(census(2, 2, 0, 4), seconds(150));
        meter.pass(seconds(170));
        meter.changed(census(2, 0, 1, 4), seconds(170));
        meter.pass(seconds(300));
        let outcome = meter.finish(&[]);
        assert!((outcome.ready_s - 200.0).abs() < 1e-9, "2 × 100 s");
        assert!((outcome.loading_s - 40.0).abs() < 1e-9, "2 × 20 s");
        assert!((outcome.draining_s - 30.0).abs() < 1e-9, "1 × 30 s");
        assert!((outcome.at_max_s - 20.0).abs() < 1e-9);
        assert_eq!((outcome.cold_starts, outcome.flaps, outcome.max_replicas), (2, 1, 4));
    }

    #[test]
    fn a_reversal_after_ten_minutes_is_no_flap() {
        let mut meter = Meter::new((Time::ZERO, seconds(9_999)), 9, Time::ZERO, census(1, 0, 0, 1));
        for (spec, at) in [(2, 0), (3, 700), (2, 1_300), (3, 1_899)] {
            meter.changed(census(spec, 0, 0, 1), seconds(at));
        }
        assert_eq!(meter.finish(&[]).flaps, 1);
    }

    #[test]
    fn quantiles_are_right_to_three_percent() {
        let mut times = Times::default();
        (1..=1_000).for_each(|ms| times.note(f64::from(ms) / 1e3));
        for share in [0.5, 0.95, 0.99] {
            let quantile = times.quantile(share).unwrap();
            assert!((quantile / share - 1.0).abs() < 0.03, "{share}: {quantile}");
        }
        assert_eq!(Times::default().quantile(0.5), None);
    }
}
