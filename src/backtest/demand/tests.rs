//! Demand from scrapes that are written by hand.

use std::collections::BTreeMap;

use super::*;

/// A scrape at a second: finished, running, waiting.
fn scrape(at_s: i64, finished: f64, running: f64, waiting: f64) -> Scrape {
    let sample = EngineSample {
        at: Moment(at_s * 1_000),
        finished: Some(finished),
        running: Some(running),
        waiting: Some(waiting),
        prompt_tokens: Some(100.0 * finished),
        generated_tokens: Some(10.0 * finished),
        ..EngineSample::default()
    };
    Scrape { sample, all_prompt_tokens: Some(200.0 * finished) }
}

fn timelines(lives: &[(&str, Vec<Scrape>)]) -> Timelines {
    let by_target: BTreeMap<Box<str>, Vec<Scrape>> =
        lives.iter().map(|(name, scrapes)| ((*name).into(), scrapes.clone())).collect();
    Timelines { by_target, unreadable: 0 }
}

/// Ten minutes in steps of 15 s.
fn span() -> Span {
    Span::new(Moment(0), Moment(600_000), Some(15_000))
}

/// A replica that finishes one request a second, from one second to another, every 15 s, and has
/// two in flight.
fn steady(from_s: i64, to_s: i64) -> Vec<Scrape> {
    let times = (from_s..=to_s).step_by(15);
    times
        .map(|at_s| scrape(at_s, f64::from(i32::try_from(at_s - from_s).unwrap()), 2.0, 0.0))
        .collect()
}

fn demand(lives: &[(&str, Vec<Scrape>)], counts: &Counts) -> Demand {
    Demand::of(&span(), &timelines(lives), counts)
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

#[test]
fn a_queue_counts_when_it_comes_and_not_when_it_is_served() {
    // Twenty requests come at once and are served over a minute.
    let life = vec![
        scrape(0, 0.0, 0.0, 0.0),
        scrape(15, 0.0, 4.0, 16.0),
        scrape(30, 5.0, 4.0, 11.0),
        scrape(45, 10.0, 4.0, 6.0),
        scrape(60, 15.0, 4.0, 1.0),
        scrape(75, 20.0, 0.0, 0.0),
    ];
    let demand = demand(&[("llm-0", life)], &Counts::default());
    let arrivals: Vec<f64> = demand.bins.iter().take(5).map(|bin| bin.amounts.arrivals).collect();
    assert!(
        arrivals.iter().zip([20.0, 0.0, 0.0, 0.0, 0.0]).all(|(a, b)| close(*a, b)),
        "{arrivals:?}"
    );
    let queued: Vec<f64> = demand.bins.iter().take(5).map(|bin| bin.queued).collect();
    assert!(queued.iter().zip([0.0, 1.0, 1.0, 1.0, 0.0]).all(|(a, b)| close(*a, b)), "{queued:?}");
}

#[test]
fn tokens_are_told_apart_from_cached_ones() {
    let total = demand(&[("llm-0", steady(0, 600))], &Counts::default()).total();
    assert!(close(total.prompt, 120_000.0) && close(total.computed, 60_000.0), "{total:?}");
    assert!(close(total.generated, 6_000.0) && close(total.arrivals, 600.0), "{total:?}");
}

#[test]
fn one_request_that_seems_to_have_gone_is_owed_and_none_is_negative() {
    let life = vec![scrape(0, 0.0, 2.0, 0.0), scrape(15, 0.0, 1.0, 0.0), scrape(30, 2.0, 1.0, 0.0)];
    let demand = demand(&[("llm-0", life)], &Counts::default());
    assert!(close(demand.bins[0].amounts.arrivals, 0.0));
    assert!(close(demand.bins[1].amounts.arrivals, 1.0), "2 finished, one owed");
}

#[test]
fn a_restart_counts_from_zero_and_its_lost_requests_bound_the_demand() {
    let life = vec![
        scrape(0, 100.0, 3.0, 0.0),
        scrape(15, 115.0, 3.0, 0.0),
        scrape(30, 4.0, 1.0, 0.0),
        scrape(45, 19.0, 1.0, 0.0),
    ];
    let demand = demand(&[("llm-0", life)], &Counts::default());
    assert_eq!(demand.restarts, 1);
    let bin = demand.bins[1].amounts;
    assert!(close(bin.arrivals, 5.0), "4 finished and one in flight: {bin:?}");
    assert!(close(bin.fewer, 3.0), "three may have come again");
    assert!(close(bin.more, 15.0), "one a second until nobody knows when");
}

#[test]
fn a_new_replica_counts_from_zero_only_if_somebody_was_watching() {
    let old = steady(0, 600);
    let mut new = steady(300, 600);
    for scrape in &mut new {
        scrape.sample.finished = scrape.sample.finished.map(|finished| finished + 7.0);
    }
    let watched = demand(&[("llm-0", old.clone()), ("llm-1", new.clone())], &Counts::default());
    assert!(close(watched.total().arrivals, 600.0 + 300.0 + 7.0 + 2.0), "{:?}", watched.total());
    // Alone, its seven may be of any time before.
    let alone = demand(&[("llm-1", new)], &Counts::default());
    assert!(close(alone.total().arrivals, 300.0), "{:?}", alone.total());
    // At the beginning nobody was watching either.
    let both = demand(&[("llm-0", old), ("llm-1", steady(7, 600))], &Counts::default());
    assert!((both.total().arrivals - 600.0 - 585.0).abs() < 15.0, "{:?}", both.total());
}

#[test]
fn a_replica_that_leaves_bounds_what_it_did_at_the_end() {
    let lives = [("llm-0", steady(0, 600)), ("llm-1", steady(0, 300))];
    let total = demand(&lives, &Counts::default()).total();
    assert!(close(total.arrivals, 900.0));
    assert!(close(total.fewer, 2.0) && close(total.more, 15.0), "{total:?}");
}

#[test]
fn a_short_gap_is_bridged_and_a_long_one_is_missing() {
    let with_gap = |from_s: i64, to_s: i64| {
        let mut life = steady(0, 600);
        life.retain(|scrape| !(from_s * 1_000..to_s * 1_000).contains(&scrape.sample.at.0));
        life
    };
    let short = demand(&[("llm-0", with_gap(100, 400))], &Counts::default());
    assert!(close(short.total().arrivals, 600.0));
    let bridged = short.bins.iter().filter(|bin| bin.known == Known::Bridged).count();
    assert_eq!(bridged, (405 - 90) / 15);
    assert_eq!(short.bins.iter().filter(|bin| bin.known == Known::Missing).count(), 0);

    let span = Span::new(Moment(0), Moment(3_600_000), Some(15_000));
    let mut life = steady(0, 3_600);
    life.retain(|scrape| !(600_000..1_800_000).contains(&scrape.sample.at.0));
    let long = Demand::of(&span, &timelines(&[("llm-0", life)]), &Counts::default());
    assert!(close(long.unplaced, 1_215.0), "{}", long.unplaced);
    let missing = long.bins.iter().filter(|bin| bin.known == Known::Missing).count();
    assert_eq!(missing, 1_215 / 15);
    assert!(close(long.total().arrivals, 3_600.0 - 1_215.0), "{:?}", long.total());
}

#[test]
fn zero_replicas_are_no_demand_and_unscraped_ones_are_a_bound() {
    let steps = span().len();
    let zero = Counts { spec: vec![Some(0.0); steps], ready: vec![Some(0.0); steps] };
    let asleep = demand(&[], &zero);
    assert!(asleep.bins.iter().all(|bin| bin.known == Known::Seen));
    let unknown = demand(&[], &Counts::default());
    assert!(unknown.bins.iter().all(|bin| bin.known == Known::Missing));
    // One of two ready replicas is scraped.
    let two = Counts { spec: vec![Some(2.0); steps], ready: vec![Some(2.0); steps] };
    let total = demand(&[("llm-0", steady(0, 600))], &two).total();
    assert!(close(total.arrivals, 600.0) && close(total.more, 600.0), "{total:?}");
}
