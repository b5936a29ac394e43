//! What is read from each format, what is refused and with which words, and the laws that generated
//! arrivals follow.

mod processes;

use std::io::Write as _;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn rows(format: Format, text: &str) -> Vec<(f64, u32, u32)> {
    let file = file(text);
    read(file.path(), format, &Options::default())
        .unwrap()
        .map(|arrival| arrival.unwrap())
        .map(|arrival| (arrival.t_s, arrival.input_tokens, arrival.output_tokens))
        .collect()
}

/// The first error, without the name of the file.
fn error(format: Format, text: &str) -> String {
    let file = file(text);
    let error = match read(file.path(), format, &Options::default()) {
        Err(error) => error,
        Ok(mut trace) => {
            let error = trace.find_map(Result::err).expect("an error");
            assert!(trace.next().is_none(), "ends after an error");
            error
        }
    };
    error.to_string().replace(&file.path().display().to_string(), "FILE")
}

/// How many of the ascending times are in each second.
fn per_second(times: &[f64], n_seconds: u32) -> Vec<u32> {
    let before = |second: u32| times.partition_point(|t_s| *t_s < f64::from(second));
    let count = |second: u32| before(second + 1) - before(second);
    (0..n_seconds).map(|second| u32::try_from(count(second)).unwrap()).collect()
}

#[test]
fn azure_is_counted_from_its_first_row_with_or_without_an_offset() {
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                2023-11-16 18:15:46.6805900,374,44\n\
                2023-11-16 18:15:50.9951690,396,109\n";
    assert_eq!(rows(Format::Azure, text), [(0.0, 374, 44), (4.314_579, 396, 109)]);
    let text = "# source\nTIMESTAMP,ContextTokens,GeneratedTokens\n\
                2024-05-10 23:59:59.500000+00:00,2399,6\n\
                2024-05-11 02:00:00+02:00,76,0\n";
    assert_eq!(rows(Format::Azure, text), [(0.0, 2399, 6), (0.5, 76, 1)]);
}

#[test]
fn burstgpt_is_found_by_its_headers_whatever_their_order() {
    let text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n";
    assert_eq!(rows(Format::Burstgpt, text), [(0.0, 472, 18), (40.0, 1087, 230)]);
    let text = "Response tokens,Timestamp,Request tokens\n18,0,472\n";
    assert_eq!(rows(Format::Burstgpt, text), [(0.0, 472, 18)]);
}

#[test]
fn mooncake_keeps_the_hashes_of_its_segments() {
    let text = "{\"timestamp\": 0, \"input_length\": 6758, \"output_length\": 500, \
                \"hash_ids\": [0, 1, 2]}\n\
                {\"timestamp\": 3052, \"input_length\": 900, \"output_length\": 20}\n";
    let file = file(text);
    let arrivals: Vec<Arrival> = read(file.path(), Format::Mooncake, &Options::default())
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let hashes: Arc<[u64]> = [0, 1, 2].into();
    assert_eq!(arrivals[0].prefix, Prefix::Segments { tokens: 512, hashes });
    assert_eq!(arrivals[1].prefix, Prefix::Unknown);
    assert!((arrivals[1].t_s - 3.052).abs() < 1e-12);
}

#[test]
fn the_plain_form_has_its_cached_tokens_where_it_has_them() {
    let text = "# a comment\r\nt_s,input_tokens,output_tokens,cached_tokens\r\n\
                0.5,100,7,0\r\n\r\n\"2.5\",600,9,512\r\n";
    let file = file(text);
    let arrivals: Vec<Arrival> = read(file.path(), Format::Csv, &Options::default())
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(arrivals[0].prefix, Prefix::Unknown);
    assert_eq!(arrivals[1].prefix, Prefix::Cached(512));
    assert_eq!((arrivals[0].t_s, arrivals[1].t_s), (0.5, 2.5));
}

#[test]
fn counts_fall_into_their_bins_in_order() {
    let text = "count\n3\n0\n2\n";
    let times: Vec<f64> = rows(Format::Counts, text).iter().map(|row| row.0).collect();
    assert_eq!(times.len(), 5);
    assert!(times.is_sorted(), "{times:?}");
    assert!(times[..3].iter().all(|t_s| (0.0..10.0).contains(t_s)), "{times:?}");
    assert!(times[3..].iter().all(|t_s| (20.0..30.0).contains(t_s)), "{times:?}");
}

#[test]
fn counts_are_uniform_in_their_bins() {
    let file = file("count\n20000\n");
    let trace = read(file.path(), Format::Counts, &Options::default()).unwrap();
    let times: Vec<f64> = trace.map(|arrival| arrival.unwrap().t_s).collect();
    let deciles = per_second(&times, 10);
    // 2,000 are expected in each; five standard deviations are 212.
    assert!(deciles.iter().all(|n| (1_788..=2_212).contains(n)), "{deciles:?}");
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    for (format, text, expected) in [
        (Format::Csv, "", "FILE: no rows, expected a header with the names of the columns"),
        (
            Format::Csv,
            "t_s,input_tokens,output_tokens\n",
            "FILE: no rows, expected one request a row",
        ),
        (
            Format::Csv,
            "# x\nt_s,input\n",
            "FILE, line 2: no column `input_tokens` in the header \"t_s,input\"; is the format right?",
        ),
        (
            Format::Csv,
            "t_s,input_tokens,output_tokens\n0,1,2\n1,ten,2\n",
            "FILE, line 3: `input_tokens` is \"ten\": expected a whole number of tokens, at most \
             100000000",
        ),
        (
            Format::Csv,
            "t_s,input_tokens,output_tokens\n0,1\n",
            "FILE, line 2: `output_tokens` is \"\": expected a whole number of tokens, at most \
             100000000",
        ),
        (
            Format::Csv,
            "t_s,input_tokens,output_tokens\nNaN,1,2\n",
            "FILE, line 2: `t_s` is \"NaN\": expected a number, 0 or more",
        ),
        (
            Format::Csv,
            "t_s,input_tokens,output_tokens\n2,1,2\n1,1,2\n",
            "FILE, line 3: `t_s` is \"1\": expected no time before that of the row above; sort the \
             file by time",
        ),
        (
            Format::Csv,
            "t_s,input_tokens,output_tokens\n2,5000000000,2\n",
            "FILE, line 2: `input_tokens` is \"5000000000\": expected a whole number of tokens, at \
             most 100000000",
        ),
        (
            Format::Csv,
            "t_s,input_tokens,output_tokens\n0,5,5\n1e99,5,5\n",
            "FILE, line 3: `t_s` is \"1e99\": expected at most 213 days after the start of the trace",
        ),
        (
            Format::Burstgpt,
            "Timestamp,Request tokens,Response tokens\n7,5,5\n1e300,5,5\n",
            "FILE, line 3: `Timestamp` is \"1e300\": expected at most 213 days after the start of the \
             trace",
        ),
        (
            Format::Azure,
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,5,5\n9023-11-16 18:15:46,5,5\n",
            "FILE, line 3: `TIMESTAMP` is \"9023-11-16 18:15:46\": expected at most 213 days after the \
             start of the trace",
        ),
        (
            Format::Mooncake,
            "{\"timestamp\":2e10,\"input_length\":5,\"output_length\":5}\n",
            "FILE, line 1: `timestamp` is \"20000000000\": expected milliseconds, at most 213 days",
        ),
        (
            Format::Azure,
            "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n",
            "FILE, line 2: `TIMESTAMP` is \"yesterday\": expected a date and time such as \
             2023-11-16 18:15:46.68",
        ),
        (
            Format::Counts,
            "count\n1.5\n",
            "FILE, line 2: `count` is \"1.5\": expected a whole number up to ten million",
        ),
        (
            Format::Mooncake,
            "t_s,input_tokens\n",
            "FILE, line 1: `line` is \"t_s,input_tokens\": expected a JSON object with `timestamp` \
             in ms, `input_length`, `output_length` and a list `hash_ids`",
        ),
    ] {
        assert_eq!(error(format, text), expected);
    }
    assert!(error(Format::Csv, &"x".repeat(2 << 20)).contains("line 1: longer than 1048576 bytes"));
    let missing = read(Path::new("no/such/file.csv"), Format::Csv, &Options::default());
    assert_eq!(missing.unwrap_err().to_string(), "cannot open no/such/file.csv");
}

#[test]
fn bins_end_with_the_clock() {
    let file = file(&format!("count\n{}", "0\n".repeat(20)));
    let options = Options { bin_s: 1e6, ..Options::default() };
    let mut trace = read(file.path(), Format::Counts, &options).unwrap();
    let error = trace.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("line 20: `count` is \"0\": expected no row whose bin ends"), "{error}");
}

#[test]
fn a_row_that_no_request_can_be_is_refused() {
    for (format, text, expected) in [
        (
            Format::Csv,
            "t_s,input_tokens,output_tokens,cached_tokens\n0,5,1,5\n0,5,1,9\n",
            "FILE, line 3: `cached_tokens` is \"9\": expected no more than the tokens of the prompt, \
             of which they are the first",
        ),
        (
            Format::Csv,
            "t_s,input_tokens,output_tokens\n0,5,1,,\n0,5,1,7,8\n",
            "FILE, line 3: `line` is \"0,5,1,7,8\": expected no more fields than the header has names",
        ),
        (
            Format::Counts,
            "count\n1\n2,3\n",
            "FILE, line 3: `line` is \"2,3\": expected no more fields than the header has names",
        ),
        (
            Format::Mooncake,
            "{\"timestamp\":0,\"input_length\":1025,\"output_length\":1,\"hash_ids\":[1,2,3]}\n\
             {\"timestamp\":0,\"input_length\":1024,\"output_length\":1,\"hash_ids\":[1,2,3]}\n",
            "FILE, line 2: `hash_ids` is \"3 hashes\": expected no more than one for each 512 tokens of \
             `input_length` begun",
        ),
        (
            Format::Mooncake,
            "{\"timestamp\":0,\"input_length\":5000000000,\"output_length\":1}\n",
            "FILE, line 1: `input_length` is \"5000000000\": expected a whole number of tokens, at most \
             100000000",
        ),
    ] {
        assert_eq!(error(format, text), expected);
    }
}

#[test]
fn rows_without_a_token_count_as_1_and_are_counted() {
    let burst = "Timestamp,Request tokens,Response tokens\n5,472,18\n6,472,0\n7,0,0\n";
    let mooncake = "{\"timestamp\":0,\"input_length\":9,\"output_length\":0}\n";
    for (format, text, n) in [(Format::Burstgpt, burst, 2), (Format::Mooncake, mooncake, 1)] {
        let file = file(text);
        let mut trace = read(file.path(), format, &Options::default()).unwrap();
        let lengths: Vec<u32> = trace.by_ref().map(|row| row.unwrap().output_tokens).collect();
        assert_eq!(lengths.iter().filter(|tokens| **tokens == 1).count(), n);
        assert_eq!(trace.empty().n(), n as u64);
    }
}

#[test]
fn a_pool_of_lengths_is_held_to_the_same_rows() {
    let load = |text: &str| Lengths::load(file(text).path());
    let Lengths::Pool(pool) = load("input_tokens,output_tokens\n7,0\n").unwrap() else {
        panic!("a pool");
    };
    assert_eq!((pool[0].input_tokens, pool[0].output_tokens), (7, 1));
    for row in ["5,1,9", "5,1,2,7", "200000000,1,2"] {
        let error = load(&format!("input_tokens,output_tokens,cached_tokens\n{row}\n"));
        assert!(error.unwrap_err().to_string().contains("line 2: "), "{row}");
    }
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"t_s,input_tokens,output_tokens\n\xff\xfe,1,2\n").unwrap();
    let mut trace = read(file.path(), Format::Csv, &Options::default()).unwrap();
    let error = trace.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("UTF-8"), "{error}");
}

fn scaled(format: Format, text: &str, scale: f64, seed: u64) -> Vec<Arrival> {
    let file = file(text);
    let options = Options { scale, seed, ..Options::default() };
    read(file.path(), format, &options).unwrap().collect::<Result<_, _>>().unwrap()
}

#[test]
fn scaling_multiplies_the_rate_and_keeps_the_order() {
    let mut text = "t_s,input_tokens,output_tokens\n".to_owned();
    for second in 0..4_000 {
        text.push_str(&format!("{second},10,1\n"));
    }
    for (scale, least, most) in
        [(0.25, 880, 1_120), (1.0, 4_000, 4_000), (3.0, 12_000, 12_000), (2.5, 9_850, 10_150)]
    {
        let arrivals = scaled(Format::Csv, &text, scale, 1);
        assert!((least..=most).contains(&arrivals.len()), "{scale}: {}", arrivals.len());
        assert!(arrivals.is_sorted_by(|a, b| a.t_s <= b.t_s), "{scale}");
    }
    let counts = format!("count\n{}", "10\n".repeat(400));
    for (scale, least, most) in [(0.25, 880, 1_120), (3.0, 12_000, 12_000), (2.5, 9_850, 10_150)] {
        let n = scaled(Format::Counts, &counts, scale, 1).len();
        assert!((least..=most).contains(&n), "{scale}: {n}");
    }
}

#[test]
fn copies_of_a_trace_share_no_prefix() {
    let text = "{\"timestamp\":0,\"input_length\":1024,\"output_length\":5,\"hash_ids\":[7,8]}\n";
    let mut seen = Vec::new();
    for arrival in scaled(Format::Mooncake, text, 3.0, 1) {
        let Prefix::Segments { hashes, .. } = arrival.prefix else { panic!("no hashes") };
        seen.extend(hashes.iter().copied());
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 6);
}

#[test]
fn an_option_out_of_range_is_refused() {
    let file = file("count\n1\n");
    for (scale, bin_s) in [(0.0, 10.0), (-1.0, 10.0), (f64::NAN, 10.0), (1.0, 0.0)] {
        let options = Options { scale, bin_s, ..Options::default() };
        assert!(matches!(read(file.path(), Format::Counts, &options), Err(Error::Option { .. })));
    }
}

#[test]
fn a_comma_within_quotes_separates_nothing() {
    let file = file("prompt,input_tokens,output_tokens\n\"1, 5\",1000,20\n");
    let mut rng = rand_pcg::rand_core::SeedableRng::seed_from_u64(3);
    let drawn = Lengths::load(file.path()).unwrap().draw(&mut rng);
    assert_eq!((drawn.input_tokens, drawn.output_tokens), (1_000, 20));
}

#[test]
fn a_pool_keeps_pairs_together_under_any_known_name() {
    for header in ["input_tokens,output_tokens", "GeneratedTokens,ContextTokens"] {
        let swapped = header.starts_with('G');
        let row = |input: u32| {
            if swapped {
                format!("{},{input}", input + 1)
            } else {
                format!("{input},{}", input + 1)
            }
        };
        let file = file(&format!("{header}\n{}\n{}\n", row(10), row(500)));
        let lengths = Lengths::load(file.path()).unwrap();
        let mut rng = rand_pcg::rand_core::SeedableRng::seed_from_u64(3);
        let mut long = 0;
        for _ in 0..1_000 {
            let drawn = lengths.draw(&mut rng);
            assert_eq!(drawn.output_tokens, drawn.input_tokens + 1);
            long += u32::from(drawn.input_tokens == 500);
        }
        assert!((420..=580).contains(&long), "{long}");
    }
}

#[test]
fn sizes_have_the_mean_and_spread_they_were_given() {
    let size: Size = "400:0.8".parse().unwrap();
    let lengths = Lengths::Drawn { input: size, output: "7".parse().unwrap() };
    let mut rng = rand_pcg::rand_core::SeedableRng::seed_from_u64(3);
    let drawn: Vec<f64> =
        (0..40_000).map(|_| f64::from(lengths.draw(&mut rng).input_tokens)).collect();
    let mean = drawn.iter().sum::<f64>() / 40_000.0;
    let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 40_000.0;
    assert!((mean / 400.0 - 1.0).abs() < 0.03, "{mean}");
    assert!((variance.sqrt() / mean / 0.8 - 1.0).abs() < 0.1, "{}", variance.sqrt() / mean);
    assert_eq!(lengths.draw(&mut rng).output_tokens, 7);
    for text in ["", "0", "-3", "ten", "5:-1", "5:11", "1e9", "NaN"] {
        assert!(text.parse::<Size>().is_err(), "{text}");
    }
}

#[test]
fn a_curve_is_read_at_a_moment_repeated_and_scaled() {
    let curve: Curve = "2@10s,1-9@1m".parse().unwrap();
    let at = |curve: &Curve, t_s| curve.at(t_s);
    for (t_s, rate) in [(0.0, 2.0), (9.9, 2.0), (10.0, 1.0), (40.0, 5.0), (70.0, 0.0)] {
        assert!((at(&curve, t_s) - rate).abs() < 1e-9, "{t_s}");
    }
    let twice = curve.repeated(2, 0.5);
    assert!((twice.span_s().unwrap() - 140.0).abs() < 1e-9);
    assert!((at(&twice, 110.0) - 2.5).abs() < 1e-9);
    assert!((at(&Curve::constant(3.0), 1e9) - 3.0).abs() < 1e-9);
}

fn times(curve: &str, process: Process, until_s: f64) -> Vec<f64> {
    let curve: Curve = curve.parse().unwrap();
    Arrivals::new(&curve, process, 7).take_while(|t_s| *t_s < until_s).collect()
}

#[test]
fn constant_arrivals_are_equally_spaced_from_the_start() {
    assert_eq!(times("4", Process::Constant, 1.0), [0.0, 0.25, 0.5, 0.75]);
    let steps = times("1@2s,2@1s,0@5s,1@1s", Process::Constant, 100.0);
    assert_eq!(steps, [0.0, 1.0, 2.0, 2.5, 8.0]);
}

#[test]
fn gaps_have_the_spread_of_their_process() {
    for (process, cv) in [
        (Process::Poisson, 1.0),
        (Process::Gamma { cv: 3.0 }, 3.0),
        (Process::Gamma { cv: 0.3 }, 0.3),
    ] {
        let times = times("50", process, 4_000.0);
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 50.0 - 1.0).abs() < 0.03, "{process:?}: {mean}");
        let seen = variance.sqrt() / mean;
        assert!((seen / cv - 1.0).abs() < 0.05, "{process:?}: {seen}");
    }
}

#[test]
fn counts_of_a_poisson_process_vary_as_they_should() {
    let bins = per_second(&times("20", Process::Poisson, 4_000.0), 4_000);
    let mean = f64::from(bins.iter().sum::<u32>()) / 4_000.0;
    let variance = bins.iter().map(|n| (f64::from(*n) - mean).powi(2)).sum::<f64>() / 4_000.0;
    assert!((variance / mean - 1.0).abs() < 0.1, "{}", variance / mean);
}

#[test]
fn a_day_goes_from_its_lowest_rate_to_its_highest_and_back() {
    let day: Curve = "2~10@24h".parse().unwrap();
    for (hour, rate) in [(0.0, 2.0), (6.0, 6.0), (12.0, 10.0), (18.0, 6.0), (24.0, 2.0)] {
        let seen = day.at(f64::min(hour * 3_600.0, 86_399.9));
        assert!((seen - rate).abs() < 0.02, "{hour}: {seen}");
    }
    let n = Arrivals::new(&day, Process::Constant, 0).count() as f64;
    assert!((n / (6.0 * 86_400.0) - 1.0).abs() < 1e-3, "{n}");
}

#[test]
fn a_ramp_has_its_rate_at_every_moment() {
    let times = times("0-100@100s", Process::Poisson, 1e9);
    // 5,000 in all; a quarter of them in the first half.
    assert!((4_700..=5_300).contains(&times.len()), "{}", times.len());
    let first_half = times.iter().filter(|t_s| **t_s < 50.0).count();
    assert!((1_100..=1_400).contains(&first_half), "{first_half}");
    assert!(times.iter().all(|t_s| *t_s < 100.0));
    let down = Arrivals::new(&"100-0@100s".parse().unwrap(), Process::Constant, 0).count();
    assert!((4_998..=5_001).contains(&down), "{down}");
}

#[test]
fn rates_that_are_none_are_refused_with_the_piece_that_is_wrong() {
    for (text, expected) in [
        ("", "rate \"\": expected requests a second"),
        ("0", "rate \"0\": expected a rate above 0 somewhere"),
        ("5@", "rate \"5@\": expected a duration"),
        ("5,6", "rate \"5\": expected its duration after an @"),
        ("1-5", "rate \"1-5\": expected the ramp's duration"),
        ("5@1m,-3", "rate \"-3\": expected requests a second"),
        ("1e9", "rate \"1e9\": expected requests a second"),
        ("NaN", "rate \"NaN\": expected requests a second"),
    ] {
        let error = text.parse::<Curve>().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
    for text in [
        "gamma",
        "gamma:",
        "gamma:0",
        "gamma:-1",
        "uniform",
        "poisson:2",
        "gamma:inf",
        "onoff:1s",
        "onoff:0:1s",
        "mmpp:6:1s:4s",
        "mmpp:0.5:1s:4s",
        "hawkes:1:1s",
        "hawkes:0.5",
    ] {
        assert!(text.parse::<Process>().is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn arrivals_ascend_and_repeat_with_their_seed(
        rates in prop::collection::vec((0.0..50.0_f64, 0.0..50.0_f64, 1..20_u32), 1..5),
        cv in 0.1..5.0_f64,
        seed in any::<u64>(),
    ) {
        let text: Vec<String> =
            rates.iter().map(|(from, to, span)| format!("{from:.3}-{to:.3}@{span}s")).collect();
        let Ok(curve) = text.join(",").parse::<Curve>() else { return Ok(()) };
        let process = Process::Gamma { cv };
        let times: Vec<f64> = Arrivals::new(&curve, process, seed).collect();
        prop_assert!(times.is_sorted());
        prop_assert!(times.iter().all(|t_s| *t_s <= curve.span_s().unwrap() + 1e-6));
        let again: Vec<f64> = Arrivals::new(&curve, process, seed).collect();
        prop_assert_eq!(times, again);
    }

    #[test]
    fn no_text_makes_a_reader_panic(text in "\\PC{0,200}", format in 0..5_usize) {
        use clap::ValueEnum as _;
        let file = file(&text);
        let format = Format::value_variants()[format];
        if let Ok(trace) = read(file.path(), format, &Options::default()) {
            for arrival in trace.take(1_000) {
                drop(arrival);
            }
        }
    }
}
