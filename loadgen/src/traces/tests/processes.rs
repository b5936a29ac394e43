//! That each process has the mean and the spread that it should, and is written as it is read.

use super::*;

/// Mean of the counts in each second, and their variance for each unit of it.
fn dispersion(curve: &str, process: &str, n_seconds: u32) -> (f64, f64) {
    let bins = per_second(&times(curve, process.parse().unwrap(), f64::from(n_seconds)), n_seconds);
    let n = f64::from(n_seconds);
    let mean = bins.iter().map(|n| f64::from(*n)).sum::<f64>() / n;
    let variance = bins.iter().map(|n| (f64::from(*n) - mean).powi(2)).sum::<f64>() / n;
    (mean, variance / mean)
}

/// Of a Poisson process whose rate has the variance `v` and the correlation `exp(-t / c)`, counts
/// in a second have the variance `mean + 2 v c (1 - c (1 - exp(-1 / c)))` (Fischer and
/// Meier-Hellstern, "The Markov-modulated Poisson process cookbook", 1993).
#[test]
fn bursts_leave_the_mean_and_spread_the_counts_as_they_should() {
    for (text, peak, on_s, off_s) in
        [("onoff:2s:8s", 5.0_f64, 2.0_f64, 8.0_f64), ("mmpp:3:1s:4s", 3.0, 1.0, 4.0)]
    {
        let on_share = on_s / (on_s + off_s);
        let calm = (1.0 - peak * on_share) / (1.0 - on_share);
        let (mean, seen) = dispersion("20", text, 100_000);
        assert!((mean / 20.0 - 1.0).abs() < 0.03, "{text}: {mean}");
        let variance = on_share * (1.0 - on_share) * (20.0 * (peak - calm)).powi(2);
        let c = (1.0 / on_s + 1.0 / off_s).recip();
        let more = 2.0 * variance * c * (1.0 - c * (1.0 - (-1.0 / c).exp()));
        let expected = 1.0 + more / 20.0;
        assert!((seen / expected - 1.0).abs() < 0.06, "{text}: {seen}, expected {expected}");
    }
    // Nothing comes between bursts: of a thousand seconds some are empty, by chance alone none.
    let bins = per_second(&times("20", "onoff:20s:80s".parse().unwrap(), 1_000.0), 1_000);
    let empty = bins.iter().filter(|n| **n == 0).count();
    assert!((400..950).contains(&empty), "{empty}");
}

/// In the long run a Hawkes process's counts have `1 / (1 - n)²` times the variance of Poisson's
/// (Hawkes, 1971); counts in a second have that where the lag is short against it.
#[test]
fn requests_that_bring_others_leave_the_mean_and_cluster() {
    for (text, share) in [("hawkes:0.5:10ms", 0.5_f64), ("hawkes:0.8:5ms", 0.8)] {
        let (mean, seen) = dispersion("20", text, 50_000);
        assert!((mean / 20.0 - 1.0).abs() < 0.03, "{text}: {mean}");
        let expected = (1.0 - share).powi(-2);
        assert!((seen / expected - 1.0).abs() < 0.12, "{text}: {seen}, expected {expected}");
    }
    let (_, alone) = dispersion("20", "hawkes:0:1s", 4_000);
    assert!((alone - 1.0).abs() < 0.1, "{alone}");
}

#[test]
fn processes_are_written_as_they_are_read() {
    for text in
        ["poisson", "constant", "gamma:2.5", "onoff:10s:50s", "mmpp:3:500ms:2s", "hawkes:0.4:20s"]
    {
        let process: Process = text.parse().unwrap();
        assert_eq!(process.to_string(), text);
        let curve: Curve = "5@20s,1-30@20s".parse().unwrap();
        let draw = |seed| Arrivals::new(&curve, process, seed).collect::<Vec<f64>>();
        assert_eq!(draw(3), draw(3));
        assert!(draw(3).is_sorted() && draw(3).iter().all(|t_s| *t_s <= 40.0), "{text}");
    }
}

/// The mean of the counts from the start to a moment, and their variance for each unit of it, over
/// many seeds.
fn counts_until(rate_per_s: f64, process: &str, until_s: f64) -> (f64, f64) {
    const N_SEEDS: u32 = 3_000;
    let (curve, process) = (Curve::constant(rate_per_s), process.parse().unwrap());
    let count = |seed: u32| {
        let times = Arrivals::new(&curve, process, u64::from(seed));
        times.take_while(|t_s| *t_s < until_s).count() as f64
    };
    let counts: Vec<f64> = (0..N_SEEDS).map(count).collect();
    let mean = counts.iter().sum::<f64>() / f64::from(N_SEEDS);
    let squares = counts.iter().map(|n| (n - mean).powi(2)).sum::<f64>();
    (mean, squares / f64::from(N_SEEDS) / mean)
}

/// From the start to `t`, the counts of a Hawkes process that has no beginning have the variance
/// `k² + (1 - k²) (1 - exp(-g t)) / (g t)` for each unit of the mean, with `k = 1 / (1 - n)` and
/// `g = (1 - n) / lag` (Da Fonseca and Zaatour, "Hawkes process: fast calibration, application to
/// trade clustering, and diffusive limit", 2014).
#[test]
fn requests_that_bring_others_have_their_mean_and_spread_from_the_start() {
    for until_s in [4.0_f64, 60.0] {
        let (mean, seen) = counts_until(5.0, "hawkes:0.6:5s", until_s);
        let (k_squared, turns) = (6.25, 0.08 * until_s);
        let expected = k_squared + (1.0 - k_squared) * (1.0 - (-turns).exp()) / turns;
        let error = (expected * mean / 3_000.0).sqrt();
        assert!((mean - 5.0 * until_s).abs() < 3.5 * error, "{until_s}: {mean}");
        assert!((seen / expected - 1.0).abs() < 0.12, "{until_s}: {seen}, expected {expected}");
    }
    // What was brought before comes before the end, and nothing is brought before a rate of 0.
    let of = |curve: &str| times(curve, "hawkes:0.9:20s".parse().unwrap(), f64::INFINITY);
    assert!(of("50@1s").iter().all(|t_s| (0.0..1.0).contains(t_s)));
    assert!(of("0@10s,50@1s").iter().all(|t_s| (10.0..11.0).contains(t_s)));
}

/// One at the start and whole gaps from there on would be `(cv² - 1) / 2` too many: 4 of 100.
#[test]
fn uneven_gaps_have_their_mean_from_the_start() {
    for (process, expected) in [("gamma:3", 100.0), ("gamma:0.3", 100.0), ("poisson", 100.0)] {
        let (mean, spread) = counts_until(20.0, process, 5.0);
        let error = (spread * mean / 3_000.0).sqrt();
        assert!((mean - expected).abs() < 3.5 * error, "{process}: {mean} ± {error}");
    }
}

#[test]
fn a_rate_of_nothing_for_ever_ends_the_arrivals() {
    for process in
        ["poisson", "gamma:3", "constant", "onoff:1s:1s", "mmpp:2:1s:4s", "hawkes:0.5:1s"]
    {
        let times = times("5@10s,0", process.parse().unwrap(), f64::INFINITY);
        assert!(!times.is_empty(), "{process}");
        // What others bring comes after them, and they bring no more for ever.
        let most_s = if process.starts_with("hawkes") { 60.0 } else { 10.0 };
        assert!(times.iter().all(|t_s| *t_s <= most_s), "{process}: {times:?}");
    }
    // One in 30 years: whoever asks for the next gets it.
    let rare = times("5@10s,0.000000001", "onoff:1s:1s".parse().unwrap(), 100.0);
    assert!(rare.iter().all(|t_s| *t_s <= 10.0), "{rare:?}");
}

#[test]
fn bursts_with_nothing_between_them_are_written_so_however_it_rounds() {
    for on_s in [1, 3, 7, 10] {
        for off_s in 1..120 {
            let text = format!("onoff:{on_s}s:{off_s}s");
            let Ok(process) = text.parse::<Process>() else { panic!("{text}") };
            let written = process.to_string();
            assert!(written.starts_with("onoff:"), "{text}: {written}");
            assert_eq!(written.parse::<Process>().unwrap(), process);
        }
    }
}
