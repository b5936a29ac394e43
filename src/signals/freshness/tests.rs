//! Ages, gaps and standstills of one endpoint.

use super::*;

const TICK_MS: u64 = 5_000;

fn at(seconds: i64) -> Moment {
    Moment(seconds * 1_000)
}

/// A working engine's sample: its token counter is its time.
fn working(seconds: i64) -> EngineSample {
    EngineSample {
        at: at(seconds),
        running: Some(1.0),
        waiting: Some(0.0),
        generated_tokens: Some(seconds as f64),
        ..EngineSample::default()
    }
}

fn read_each(samples: impl IntoIterator<Item = EngineSample>) -> Freshness {
    let mut memory = Freshness::default();
    for sample in samples {
        memory.record(sample, sample.at);
    }
    memory
}

#[test]
fn what_was_never_read_is_missing_with_its_reason() {
    let mut memory = Freshness::default();
    let missing = |why| Reading::Missing { why };
    assert_eq!(memory.reading(at(0), TICK_MS), missing(Why::NotYetRead));
    memory.fail(Why::Refused);
    assert_eq!(memory.reading(at(1), TICK_MS), missing(Why::Refused));
    memory.fail(Why::NoKnownSeries);
    assert_eq!(memory.reading(at(1_000), TICK_MS), missing(Why::NoKnownSeries));
}

#[test]
fn a_sample_is_fresh_for_less_than_three_ticks() {
    let memory = read_each([working(100)]);
    let value = KeptSample::from(working(100));
    let fresh = Reading::Fresh { value: value.clone(), age_ms: 14_999 };
    assert_eq!(memory.reading(Moment(114_999), TICK_MS), fresh);
    let stale = Reading::Stale { value, age_ms: 15_000, why: Why::NotMoving };
    assert_eq!(memory.reading(Moment(115_000), TICK_MS), stale);
}

#[test]
fn a_failed_read_keeps_the_last_sample_and_says_why_it_is_stale() {
    let mut memory = read_each([working(100)]);
    memory.fail(Why::Timeout);
    assert_eq!(memory.reading(at(110), TICK_MS).why(), None);
    let stale =
        Reading::Stale { value: KeptSample::from(working(100)), age_ms: 20_000, why: Why::Timeout };
    assert_eq!(memory.reading(at(120), TICK_MS), stale);
    memory.record(working(125), at(125));
    assert_eq!(memory.reading(at(126), TICK_MS).fresh(), Some(&KeptSample::from(working(125))));
}

#[test]
fn f20_a_newest_point_that_is_null_is_no_sample() {
    let mut memory = read_each([working(70), working(85)]);
    memory.fail(Why::NoKnownSeries);
    assert_eq!(memory.reading(at(100), TICK_MS).fresh(), Some(&KeptSample::from(working(85))));
    let stale = Reading::Stale {
        value: KeptSample::from(working(85)),
        age_ms: 61_000,
        why: Why::NoKnownSeries,
    };
    assert_eq!(memory.reading(at(146), TICK_MS), stale);
}

#[test]
fn a_timestamp_that_stands_still_is_the_same_sample() {
    let mut memory = read_each([working(100)]);
    for now in [105, 110, 115] {
        let repeated = EngineSample { waiting: Some(99.0), ..working(100) };
        memory.record(repeated, at(now));
    }
    let stale = Reading::Stale {
        value: KeptSample::from(working(100)),
        age_ms: 15_000,
        why: Why::NotMoving,
    };
    assert_eq!(memory.reading(at(115), TICK_MS), stale);
    // Of two Prometheus replicas the one that is behind answers.
    memory.record(working(90), at(116));
    assert_eq!(memory.reading(at(116), TICK_MS).last(), Some(&KeptSample::from(working(100))));
}

#[test]
fn the_sources_own_interval_is_learned_and_doubled() {
    let memory = read_each([working(100), working(160), working(220)]);
    assert_eq!(memory.reading(Moment(339_999), TICK_MS).why(), None);
    assert_eq!(memory.reading(at(340), TICK_MS).why(), Some(Why::NotMoving));
}

#[test]
fn a_gap_teaches_no_longer_interval() {
    let memory = read_each([working(100), working(115), working(130), working(730)]);
    // 2 × 15 s, not 2 × 600 s.
    assert_eq!(memory.reading(Moment(759_999), TICK_MS).why(), None);
    assert_eq!(memory.reading(at(760), TICK_MS).why(), Some(Why::NotMoving));
}

#[test]
fn a_longer_interval_is_learned_after_four_samples() {
    let fast = [working(0), working(15)];
    let slow = [working(75), working(135), working(195), working(255)];
    let memory = read_each(fast.into_iter().chain(slow));
    assert_eq!(memory.reading(Moment(374_999), TICK_MS).why(), None);
    let three = read_each(fast.into_iter().chain(slow.into_iter().take(3)));
    assert_eq!(three.reading(at(225), TICK_MS).why(), Some(Why::NotMoving));
}

#[test]
fn a_source_whose_clock_is_ahead_still_turns_stale() {
    let mut memory = Freshness::default();
    memory.record(working(110), at(100));
    assert_eq!(memory.reading(at(114), TICK_MS).why(), None);
    let stale = Reading::Stale {
        value: KeptSample::from(working(110)),
        age_ms: 15_000,
        why: Why::NotMoving,
    };
    assert_eq!(memory.reading(at(115), TICK_MS), stale);
}

#[test]
fn what_is_of_the_future_by_as_much_as_makes_a_sample_stale_is_not_fresh_however_it_moves() {
    for (ahead_s, why) in [(14, None), (15, Some(Why::Impossible)), (3_600, Some(Why::Impossible))]
    {
        let mut memory = Freshness::default();
        for second in [100, 105, 110] {
            memory.record(working(second + ahead_s), at(second));
            assert_eq!(memory.reading(at(second), TICK_MS).why(), why, "{ahead_s} s");
        }
    }
    // Of a source whose clock is known to be ahead it is of now.
    let mut memory = Freshness::default();
    memory.record_ahead(working(3_700), 3_600_000, at(100));
    assert_eq!(memory.reading(at(100), TICK_MS).why(), None);
}

#[test]
fn a_source_whose_time_was_set_back_is_fresh_again_after_three_samples() {
    for impossible in [working(1_000), EngineSample { at: Moment(i64::MAX), ..working(100) }] {
        let mut memory = read_each([working(70), working(85)]);
        memory.record(impossible, at(100));
        for second in [115, 120, 125, 130] {
            // Read more often than it is scraped.
            memory.record(working(second / 15 * 15), at(second));
            assert_eq!(
                memory.reading(at(second), TICK_MS).last(),
                Some(&KeptSample::from(impossible)),
                "{second}"
            );
        }
        assert_eq!(memory.reading(at(130), TICK_MS).why(), Some(Why::Impossible));
        memory.record(working(135), at(135));
        let fresh = Reading::Fresh { value: KeptSample::from(working(135)), age_ms: 0 };
        assert_eq!(memory.reading(at(135), TICK_MS), fresh);
        memory.record(working(150), at(150));
        assert_eq!(memory.reading(at(150), TICK_MS).fresh(), Some(&KeptSample::from(working(150))));
    }
}

#[test]
fn of_two_copies_the_one_behind_never_takes_over() {
    let mut memory = Freshness::default();
    for round in 0..20 {
        let second = 100 + 15 * round;
        for ahead in [working(second), working(second - 40), working(second - 25)] {
            memory.record(ahead, at(second));
        }
        assert_eq!(
            memory.reading(at(second), TICK_MS).fresh(),
            Some(&KeptSample::from(working(second)))
        );
    }
}

#[test]
fn a_correction_of_the_sources_clock_makes_no_sample_a_new_one() {
    let mut memory = read_each([working(85), working(100)]);
    // The source's clock was set back by a minute, and it has nothing newer.
    memory.record_ahead(working(100), -60_000, at(130));
    let stale = Reading::Stale {
        value: KeptSample::from(working(100)),
        age_ms: 30_000,
        why: Why::NotMoving,
    };
    assert_eq!(memory.reading(at(130), TICK_MS), stale);
    // What comes next has the age that its clock gives it.
    memory.record_ahead(working(115), -60_000, at(177));
    let expected = EngineSample { at: at(175), ..working(115) };
    assert_eq!(
        memory.reading(at(177), TICK_MS),
        Reading::Fresh { value: KeptSample::from(expected), age_ms: 2_000 }
    );
}

#[test]
fn the_memory_of_an_endpoint_is_small() {
    let beside = size_of::<Freshness>();
    assert!(beside <= 64, "{beside} bytes beside the sample");
}
