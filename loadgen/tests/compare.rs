//! Results of other tools, as they have written them: `vllm bench serve` 0.32 and GuideLLM 0.8.1
//! against `loadgen engine`, 20 requests/s for 5 s, without their lists of requests.

use std::path::{Path, PathBuf};

use loadgen::compare::{Comparison, Error, Measured, Tool};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/results").join(name)
}

fn near(measured: &Measured, metric: &str, expected: f64) {
    let spread = measured.metrics.get(metric).unwrap_or_else(|| panic!("no {metric}"));
    assert!((spread.mean / expected - 1.0).abs() < 1e-3, "{metric}: {}", spread.mean);
}

#[test]
fn other_tools_results_are_read_under_our_names() {
    let vllm = Measured::load(&path("vllm-bench-0.32.json")).unwrap();
    assert_eq!((vllm.tool, vllm.load.as_str(), vllm.n_runs()), (Tool::Vllm, "20.0 requests/s", 1));
    near(&vllm, "achieved_rate", 19.648);
    near(&vllm, "output_tokens_rate", 314.36);
    near(&vllm, "ttft.mean", 0.010_662_5);
    near(&vllm, "ttft.p50", 0.010_789_1);
    near(&vllm, "itl.p99", 0.009_301_4);
    assert!(!vllm.metrics.contains_key("ttft.p90"), "it was not asked for");
    assert!(!vllm.metrics.contains_key("attainment"));

    let guidellm = Measured::load(&path("guidellm-0.8.1.json")).unwrap();
    assert_eq!((guidellm.tool, guidellm.load.as_str()), (Tool::Guidellm, "20 requests/s, poisson"));
    near(&guidellm, "ttft.p90", 0.024_395_7);
    near(&guidellm, "tpot.mean", 0.005_002_5);
    near(&guidellm, "e2e.p99", 0.221_677);
    assert_eq!(guidellm.metrics["errors"].values, [0.0]);
    assert!(!guidellm.metrics.contains_key("itl.mean"), "it has none between pieces");

    let comparison = Comparison::of(vllm, guidellm);
    let row = comparison.rows.iter().find(|row| row.metric == "ttft.mean").unwrap();
    assert!((row.change.unwrap() - (15.835 / 10.663 - 1.0)).abs() < 1e-3);
    assert_eq!((row.interval, row.differs), (None, None), "one run each");
    assert!(comparison.warnings.iter().any(|warning| warning.contains("one run each")));
}

#[test]
fn a_result_that_its_own_report_doubts_is_doubted() {
    let folder = tempfile::tempdir().unwrap();
    let measured = |name: &str, is_bottleneck: bool, interrupted: bool| {
        let path = folder.path().join(name);
        let json = format!(
            r#"{{"loadgen": "0", "load": "x", "achieved_rate": 1, "schedule_lag": {{"p99": 1}},
                 "client": {{"is_bottleneck": {is_bottleneck}}}, "interrupted": {interrupted}}}"#
        );
        std::fs::write(&path, json).unwrap();
        Measured::load(&path).unwrap()
    };
    let good = measured("good", false, false);
    let doubted = Comparison::of(good.clone(), measured("bad", true, true)).warnings;
    assert!(doubted.iter().any(|warning| warning.starts_with("after is INVALID")), "{doubted:?}");
    assert!(doubted.iter().any(|warning| warning == "after was stopped before its end"));
    let warnings = Comparison::of(good.clone(), good).warnings;
    assert!(warnings.iter().all(|warning| warning.starts_with("one run each")), "{warnings:?}");
}

#[test]
fn loads_that_differ_are_told_with_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let measured = |name: &str, settings: &str, ttft_s: f64| {
        let path = folder.path().join(name);
        let json = format!(
            r#"{{"loadgen": "0", "load": "x", "achieved_rate": 1, "schedule_lag": {{"p99": 1}},
                 {settings} "slo": {{"all": {{"ttft_s": {ttft_s}}}}}}}"#
        );
        std::fs::write(&path, json).unwrap();
        Measured::load(&path).unwrap()
    };
    let of =
        |tokens: u32| format!(r#""settings": {{"classes": [{{"input_tokens": "{tokens}"}}]}},"#);
    let before = measured("before", &of(20), 2.0);
    let after = measured("after", &of(4_000), 0.5);
    let warnings = Comparison::of(before.clone(), after).warnings;
    let told = "what differs may be the load's: settings.classes.0.input_tokens 20, then 4000, \
                slo.all.ttft_s 2, then 0.5";
    assert!(warnings.iter().any(|warning| warning.ends_with(told)), "{warnings:?}");
    // A result of a version that did not write its settings.
    let old = measured("old", "", 2.0);
    let warnings = Comparison::of(old, before).warnings;
    assert!(!warnings.iter().any(|warning| warning.contains("loads")), "{warnings:?}");
}

#[test]
fn what_is_no_result_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    for (path, words) in [
        (folder.path().join("none"), "cannot read"),
        (written("text", "rate,ttft"), "is no JSON"),
        (written("other", r#"{"a":1}"#), "is no result: expected the JSON of `loadgen run`"),
        (written("list", "[]"), "is no result"),
        (written("sweep", r#"{"benchmarks":[{},{}]}"#), "has 2 benchmarks: expected one"),
        (written("empty", r#"{"benchmarks":[{}]}"#), "is no result"),
    ] {
        let error: Error = Measured::load(&path).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}
