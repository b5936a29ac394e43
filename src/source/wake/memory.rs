//! What readings of a wake source mean one after the other: arrivals, held requests, or nothing known.
//!
//! Pure. Must not lose the first request that a series shows, nor turn silence into a zero.

use std::collections::BTreeMap;

use super::{Demand, MAX_SERIES, WakeKind};
use crate::decision::{Moment, WakeReading, Why};

/// What is remembered of one workload's wake source between readings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WakeMemory {
    // Invariant: at most MAX_SERIES entries.
    last: BTreeMap<u64, f64>,
    read_before: bool,
    exists: bool,
    last_arrival_at: Option<Moment>,
}

impl WakeMemory {
    /// Takes a reading made at `at`.
    ///
    /// - A counter's series that first appears after an earlier answer counts from zero: a rate
    ///   would miss its first requests, which are the ones that have to wake.
    /// - A metric that a gateway's page has never had is unknown, not zero: it may be misspelt. Once
    ///   seen, its absence is a zero, because the page says that the gateway is up.
    /// - An empty answer of a Prometheus is always unknown: nothing says that the gateway is up.
    /// - A partial answer proves demand, and never the lack of it.
    pub fn take(&mut self, kind: WakeKind, read: Result<&Demand, Why>, at: Moment) -> WakeReading {
        let demand = match read {
            Ok(demand) => demand,
            Err(why) => return WakeReading::Unknown { why },
        };
        if demand.series.values().any(|value| !value.is_finite() || *value < 0.0) {
            return WakeReading::Unknown { why: Why::Impossible };
        }
        let held: f64 = match kind {
            WakeKind::Gauge => demand.series.values().sum(),
            WakeKind::Counter => 0.0,
        };
        // Finite values can have a sum that is not.
        if !held.is_finite() {
            return WakeReading::Unknown { why: Why::Impossible };
        }
        let arrived = demand.series.iter().any(|(&key, &value)| self.rises(kind, key, value));
        if arrived {
            self.last_arrival_at = Some(at);
        }
        self.remember(kind, demand);
        if !self.exists {
            return WakeReading::Unknown { why: Why::NoKnownSeries };
        }
        if demand.partial && !arrived && held <= 0.0 {
            return WakeReading::Unknown { why: Why::Partial };
        }
        WakeReading::Fresh { queued: held, last_arrival_at: self.last_arrival_at }
    }

    fn rises(&self, kind: WakeKind, key: u64, value: f64) -> bool {
        match (self.last.get(&key), kind) {
            // The gateway has started again, and counts from zero.
            (Some(&last), WakeKind::Counter) if value < last => value > 0.0,
            (Some(&last), WakeKind::Counter | WakeKind::Gauge) => value > last,
            (None, WakeKind::Counter) => self.read_before && value > 0.0,
            (None, WakeKind::Gauge) => value > 0.0,
        }
    }

    fn remember(&mut self, kind: WakeKind, demand: &Demand) {
        match kind {
            WakeKind::Gauge => self.last.clone_from(&demand.series),
            WakeKind::Counter => {
                // A counter that fails to show up once has not gone back to zero.
                self.last.extend(&demand.series);
                if self.last.len() > MAX_SERIES {
                    self.last.clone_from(&demand.series);
                }
            }
        }
        self.read_before = true;
        self.exists = demand.exists || (demand.gateway_answered && self.exists);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Moment = Moment(1_000);

    fn page(series: &[(u64, f64)]) -> Demand {
        Demand {
            series: series.iter().copied().collect(),
            exists: !series.is_empty(),
            gateway_answered: true,
            partial: false,
        }
    }

    fn prometheus(series: &[(u64, f64)]) -> Demand {
        Demand { gateway_answered: false, ..page(series) }
    }

    /// Readings ten seconds apart, the first at 10 s.
    fn readings(kind: WakeKind, demands: &[Demand]) -> Vec<WakeReading> {
        let mut memory = WakeMemory::default();
        (1..)
            .zip(demands)
            .map(|(n, demand)| memory.take(kind, Ok(demand), Moment(n * 10_000)))
            .collect()
    }

    fn counted(last_arrival_s: Option<i64>) -> WakeReading {
        let last_arrival_at = last_arrival_s.map(|s| Moment(s * 1_000));
        WakeReading::Fresh { queued: 0.0, last_arrival_at }
    }

    fn unknown(why: Why) -> WakeReading {
        WakeReading::Unknown { why }
    }

    #[test]
    fn a_counter_is_demand_when_it_rises_and_not_for_its_height() {
        let seen = readings(
            WakeKind::Counter,
            &[page(&[(1, 500.0)]), page(&[(1, 500.0)]), page(&[(1, 501.0)]), page(&[(1, 501.0)])],
        );
        assert_eq!(seen, [counted(None), counted(None), counted(Some(30)), counted(Some(30))]);
    }

    #[test]
    fn the_first_appearance_of_a_series_is_demand_if_the_source_was_read_before() {
        let seen = readings(WakeKind::Counter, &[page(&[(1, 5.0)]), page(&[(1, 5.0), (2, 1.0)])]);
        assert_eq!(seen, [counted(None), counted(Some(20))]);
        let seen = readings(WakeKind::Counter, &[prometheus(&[]), prometheus(&[(1, 1.0)])]);
        assert_eq!(seen, [unknown(Why::NoKnownSeries), counted(Some(20))]);
        let seen = readings(WakeKind::Counter, &[page(&[(1, 5.0)]), page(&[(1, 5.0), (2, 0.0)])]);
        assert_eq!(seen, [counted(None), counted(None)]);
    }

    #[test]
    fn a_failed_reading_in_between_loses_nothing_and_invents_nothing() {
        let mut memory = WakeMemory::default();
        let mut take = |read: Result<&Demand, Why>| memory.take(WakeKind::Counter, read, AT);
        assert_eq!(take(Err(Why::Refused)), unknown(Why::Refused));
        assert_eq!(take(Ok(&page(&[(1, 7.0)]))), counted(None));
        assert_eq!(take(Err(Why::Timeout)), unknown(Why::Timeout));
        assert_eq!(take(Ok(&page(&[]))), counted(None));
        assert_eq!(take(Ok(&page(&[(1, 7.0)]))), counted(None));
        assert_eq!(take(Ok(&page(&[(1, 8.0)]))), counted(Some(1)));
    }

    #[test]
    fn a_restarted_gateway_counts_from_zero() {
        let fell_to =
            |value| readings(WakeKind::Counter, &[page(&[(1, 9.0)]), page(&[(1, value)])]);
        assert_eq!(fell_to(2.0), [counted(None), counted(Some(20))]);
        assert_eq!(fell_to(0.0), [counted(None), counted(None)]);
    }

    #[test]
    fn a_gauge_is_what_is_held_now() {
        let seen = readings(
            WakeKind::Gauge,
            &[page(&[(1, 0.0)]), page(&[(1, 2.0), (2, 1.0)]), page(&[(1, 1.0)]), page(&[])],
        );
        let held = |queued| WakeReading::Fresh { queued, last_arrival_at: Some(Moment(20_000)) };
        assert_eq!(seen, [counted(None), held(3.0), held(1.0), held(0.0)]);
    }

    #[test]
    fn what_was_never_listed_is_unknown_and_what_is_no_longer_listed_is_zero() {
        let seen = readings(WakeKind::Gauge, &[page(&[]), page(&[(1, 0.0)]), page(&[])]);
        assert_eq!(seen, [unknown(Why::NoKnownSeries), counted(None), counted(None)]);
    }

    #[test]
    fn f11_an_empty_answer_of_prometheus_is_never_a_zero() {
        let seen = readings(WakeKind::Gauge, &[prometheus(&[(1, 0.0)]), prometheus(&[])]);
        assert_eq!(seen, [counted(None), unknown(Why::NoKnownSeries)]);
    }

    #[test]
    fn a_partial_answer_proves_demand_and_never_the_lack_of_it() {
        let partial = |value| Demand { partial: true, ..prometheus(&[(1, value)]) };
        let seen = readings(WakeKind::Gauge, &[partial(0.0), partial(2.0)]);
        let held = WakeReading::Fresh { queued: 2.0, last_arrival_at: Some(Moment(20_000)) };
        assert_eq!(seen, [unknown(Why::Partial), held]);
    }

    #[test]
    fn impossible_values_are_unknown() {
        for value in [f64::NAN, f64::INFINITY, -1.0] {
            let seen = readings(WakeKind::Gauge, &[page(&[(1, 1.0), (2, value)])]);
            assert_eq!(seen, [unknown(Why::Impossible)], "{value}");
        }
        let seen = readings(WakeKind::Gauge, &[page(&[(1, 1e308), (2, 1e308)])]);
        assert_eq!(seen, [unknown(Why::Impossible)], "a sum beyond the numbers");
    }

    #[test]
    fn series_that_come_and_go_do_not_pile_up() {
        let mut memory = WakeMemory::default();
        for n in 0..5_000 {
            memory.take(WakeKind::Counter, Ok(&page(&[(n, 1.0)])), AT);
            assert!(memory.last.len() <= MAX_SERIES);
        }
    }
}
