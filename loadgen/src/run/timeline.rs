//! What happened when: counts in bins of equal width, in bounded memory however long a run is.
//!
//! Pure. When there would be more than `MOST_BINS` bins, each two become one.

use std::ops::Range;

use serde::Serialize;

/// As many points as a plot can show.
const MOST_BINS: usize = 1_200;
/// The width of a bin at first; it doubles as a run goes on.
const FIRST_WIDTH_S: f64 = 0.25;

/// Times to first token are kept by their logarithm, five bins to a doubling: from 1 ms to nine
/// minutes, within 7 %.
const TTFT_PER_DOUBLING: f64 = 5.0;
const TTFT_BINS: usize = 96;

/// What happened in one stretch of time. Requests count where they were due, unless it says
/// otherwise.
#[derive(Debug, Clone)]
pub struct Bin {
    /// Requests due.
    pub scheduled: u64,
    /// Those of them that met their SLO.
    pub good: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// Those of them whose first token came later than the SLO allows.
    pub late: u64,
    /// The longest time to first token among them, in seconds; 0 if none came.
    pub worst_ttft_s: f64,
    /// Requests sent, when they were.
    pub sent: u64,
    /// Requests ended in whatever way, when they did.
    pub ended: u64,
    /// Requests completed, when they were.
    pub completed: u64,
    /// Pieces of answers with text, when they came.
    pub events: u64,
    /// Answers that were cut short, when they were.
    pub cut: u64,
    ttft: [u32; TTFT_BINS],
}

impl Bin {
    const EMPTY: Bin = Bin {
        scheduled: 0,
        good: 0,
        failed: 0,
        late: 0,
        worst_ttft_s: 0.0,
        sent: 0,
        ended: 0,
        completed: 0,
        events: 0,
        cut: 0,
        ttft: [0; TTFT_BINS],
    };

    /// Notes a time to first token.
    pub fn note_ttft(&mut self, ttft_s: f64) {
        self.worst_ttft_s = self.worst_ttft_s.max(ttft_s);
        let place = (ttft_s * 1e3).log2() * TTFT_PER_DOUBLING;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to the bins there are"
        )]
        let place = place.clamp(0.0, (TTFT_BINS - 1) as f64) as usize;
        self.ttft[place] = self.ttft[place].saturating_add(1);
    }

    /// A quantile of the times to first token, in seconds; `None` if there was none.
    #[must_use]
    pub fn ttft_s(&self, quantile: f64) -> Option<f64> {
        let n: u64 = self.ttft.iter().map(|n| u64::from(*n)).sum();
        if n == 0 {
            return None;
        }
        let mut left = (n as f64 * quantile).ceil().max(1.0);
        for (place, n) in self.ttft.iter().enumerate() {
            left -= f64::from(*n);
            if left <= 0.0 {
                let middle = ((place as f64 + 0.5) / TTFT_PER_DOUBLING).exp2() / 1e3;
                return Some(middle.min(self.worst_ttft_s));
            }
        }
        None
    }

    fn add(&mut self, other: &Bin) {
        self.scheduled += other.scheduled;
        self.good += other.good;
        self.failed += other.failed;
        self.late += other.late;
        self.worst_ttft_s = self.worst_ttft_s.max(other.worst_ttft_s);
        self.sent += other.sent;
        self.ended += other.ended;
        self.completed += other.completed;
        self.events += other.events;
        self.cut += other.cut;
        for (own, other) in self.ttft.iter_mut().zip(other.ttft) {
            *own = own.saturating_add(other);
        }
    }
}

/// A run in bins.
#[derive(Debug, Clone)]
pub struct Timeline {
    width_s: f64,
    bins: Vec<Bin>,
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline { width_s: FIRST_WIDTH_S, bins: Vec::new() }
    }
}

impl Timeline {
    /// The bin that holds a time, in seconds since the run's start.
    pub fn at(&mut self, t_s: f64) -> &mut Bin {
        let t_s = t_s.max(0.0);
        while t_s / self.width_s >= MOST_BINS as f64 {
            self.coarsen();
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to below the most bins, see above"
        )]
        let index = ((t_s / self.width_s) as usize).min(MOST_BINS - 1);
        if self.bins.len() <= index {
            self.bins.resize(index + 1, Bin::EMPTY);
        }
        &mut self.bins[index]
    }

    /// Adds what another part of the same run saw.
    pub fn merge(&mut self, mut other: Timeline) {
        while self.width_s < other.width_s {
            self.coarsen();
        }
        while other.width_s < self.width_s {
            other.coarsen();
        }
        if self.bins.len() < other.bins.len() {
            self.bins.resize(other.bins.len(), Bin::EMPTY);
        }
        for (own, other) in self.bins.iter_mut().zip(&other.bins) {
            own.add(other);
        }
    }

    /// The same so many seconds later.
    #[must_use]
    pub fn later(self, by_s: f64) -> Timeline {
        let mut later = Timeline { width_s: self.width_s, bins: Vec::new() };
        for (t_s, bin) in self.bins() {
            // Its middle: a bin that straddles two goes into the one with the more of it.
            later.at(t_s + self.width_s / 2.0 + by_s).add(bin);
        }
        later
    }

    /// The bins with the time of their beginning, in seconds.
    pub fn bins(&self) -> impl Iterator<Item = (f64, &Bin)> {
        self.bins.iter().enumerate().map(|(index, bin)| (index as f64 * self.width_s, bin))
    }

    /// All that happened in some stretches of time, each as far as the middle of a bin is in it.
    #[must_use]
    pub fn sum(&self, stretches_s: &[Range<f64>]) -> Bin {
        let mut sum = Bin::EMPTY;
        for (t_s, bin) in self.bins() {
            let middle_s = t_s + self.width_s / 2.0;
            if stretches_s.iter().any(|stretch_s| stretch_s.contains(&middle_s)) {
                sum.add(bin);
            }
        }
        sum
    }

    /// The width of a bin, in seconds.
    #[must_use]
    pub fn width_s(&self) -> f64 {
        self.width_s
    }

    /// The same in bins of at least `width_s`.
    #[must_use]
    pub fn coarser(mut self, width_s: f64) -> Timeline {
        while self.width_s < width_s {
            self.coarsen();
        }
        self
    }

    fn coarsen(&mut self) {
        self.width_s *= 2.0;
        self.bins = self
            .bins
            .chunks(2)
            .map(|pair| {
                let mut bin = Bin::EMPTY;
                pair.iter().for_each(|part| bin.add(part));
                bin
            })
            .collect();
    }
}

/// A bin as the report shows it.
#[derive(Debug, Clone, Serialize)]
pub struct Point {
    /// Its beginning, in seconds since the run's start.
    pub t_s: f64,
    /// Requests due.
    pub scheduled: u64,
    /// Of them, those that met their SLO.
    pub good: u64,
    /// Of them, those that failed.
    pub failed: u64,
    /// Of them, those whose first token came too late.
    pub late: u64,
    /// Requests completed in it.
    pub completed: u64,
    /// Requests open at its end.
    pub in_flight: u64,
    /// Median time to first token of those due in it, in seconds, within 7 %.
    pub ttft_p50: Option<f64>,
    /// The same, 99th percentile.
    pub ttft_p99: Option<f64>,
}

impl Timeline {
    /// The bins as the report shows them.
    #[must_use]
    pub fn points(&self) -> Vec<Point> {
        let mut in_flight = 0_u64;
        self.bins()
            .map(|(t_s, bin)| {
                in_flight = (in_flight + bin.sent).saturating_sub(bin.ended);
                Point {
                    t_s,
                    scheduled: bin.scheduled,
                    good: bin.good,
                    failed: bin.failed,
                    late: bin.late,
                    completed: bin.completed,
                    in_flight,
                    ttft_p50: bin.ttft_s(0.5),
                    ttft_p99: bin.ttft_s(0.99),
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_keeps_its_counts_in_few_bins() {
        let mut timeline = Timeline::default();
        for second in 0..86_400 {
            timeline.at(f64::from(second)).scheduled += 1;
        }
        assert_eq!(timeline.bins.len(), 675);
        assert!((timeline.width_s() - 128.0).abs() < 1e-9);
        assert!(timeline.bins().all(|(_, bin)| bin.scheduled == 128));
    }

    #[test]
    fn parts_of_a_run_add_up_whatever_their_widths() {
        let (mut short, mut long) = (Timeline::default(), Timeline::default());
        short.at(1.0).good += 2;
        long.at(1.3).good += 3;
        long.at(1_000.0).failed += 1;
        let mut merged = short.clone();
        merged.merge(long.clone());
        long.merge(short);
        for timeline in [merged, long] {
            assert_eq!(timeline.bins[1].good, 5);
            assert_eq!(timeline.points().iter().map(|point| point.failed).sum::<u64>(), 1);
        }
    }

    #[test]
    fn a_later_run_keeps_what_it_has_seen() {
        let mut run = Timeline::default();
        run.at(0.1).scheduled += 3;
        run.at(200.0).scheduled += 4;
        let later = run.clone().later(1_000.0);
        assert_eq!(later.points().iter().map(|point| point.scheduled).sum::<u64>(), 7);
        run.merge(later);
        let due: Vec<(f64, u64)> =
            run.bins().map(|(t_s, bin)| (t_s, bin.scheduled)).filter(|(_, n)| *n > 0).collect();
        assert_eq!(due, [(0.0, 3), (200.0, 4), (1_000.0, 3), (1_200.0, 4)]);
    }

    #[test]
    fn quantiles_are_within_their_resolution() {
        let mut bin = Bin::EMPTY;
        assert_eq!(bin.ttft_s(0.5), None);
        for ms in 1..=1_000 {
            bin.note_ttft(f64::from(ms) / 1e3);
        }
        for (quantile, expected) in [(0.5, 0.5), (0.9, 0.9), (0.99, 0.99)] {
            let seen = bin.ttft_s(quantile).unwrap();
            assert!((seen / expected - 1.0).abs() < 0.08, "{quantile}: {seen}");
        }
        bin.note_ttft(1e9);
        assert!(bin.ttft_s(1.0).is_some());
    }
}
