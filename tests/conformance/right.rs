//! Scalers that are right in different ways pass, and the report keeps its promises.

use std::collections::BTreeSet;
use std::time::Duration;

use ghostscaler::conformance::{self, Error, Format, Outcome};
use tokio::net::TcpListener;

use super::fault::{Fault, Kind};
use super::{args, entries, run, scaler};
use crate::support::nobody::Nobody;

/// Makes a test of each row: no check fails, and those named cannot be made.
macro_rules! right {
    ($($name:ident: $kind:ident, $unseen:expr;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                passes(Kind::$kind, &$unseen).await;
            }
        )*
    };
}

right! {
    a_replica_count_passes: Count, ["H1", "H2", "H3", "H4", "H6"];
    an_idle_workload_passes: Idle, ["H1", "H2", "H3", "H4", "H6"];
    a_measure_of_load_passes: Load, ["A8", "H1", "H2", "H3", "H4", "H6"];
    a_scaler_that_streams_its_specs_passes: Streamed, [];
    a_scaler_that_refuses_unknown_keys_passes: Strict, ["H1", "H2", "H3", "H4", "H6"];
    a_scaler_without_push_passes: Pull, ["E1", "E2", "E3", "E5", "H1", "H2", "H3", "H4", "H6"];
    the_name_of_a_value_is_ignored_as_by_keda: OtherName, ["H1", "H2", "H3", "H4", "H6"];
}

/// Rules that no run can check, whatever the scaler. Two more need TLS or another flag.
const OUTSIDE: [&str; 27] = [
    "A11", "A12", "B5", "C4", "E4", "E6", "E7", "F3", "F4", "F5", "F6", "F7", "F8", "F9", "F10",
    "F11", "F12", "F14", "F15", "G1", "G2", "G3", "G4", "G5", "G6", "H5", "H7",
];

async fn passes(kind: Kind, unseen: &[&str]) {
    let running = scaler::start(kind, Fault::None).await;
    let (outcome, report) = run(&args(running.address)).await;
    assert_eq!(entries(&report, "fail"), [], "{kind:?}");
    let not_checkable: BTreeSet<&str> =
        entries(&report, "not_checkable").iter().map(|(id, _detail)| *id).collect();
    let mut expected: BTreeSet<&str> = OUTSIDE.into();
    expected.extend(unseen);
    expected.insert("F13");
    assert_eq!(not_checkable, expected, "{kind:?}");
    assert_eq!(outcome, Outcome::Passed);
    assert_eq!(report["summary"]["failed"], 0);
    assert_eq!(report["summary"]["not_checkable"], expected.len());
    assert_eq!(report["summary"]["passed"], 75 - expected.len());
}

#[tokio::test]
async fn each_rule_of_the_checklist_has_an_entry_with_its_reason() {
    let running = scaler::start(Kind::Count, Fault::None).await;
    let (_outcome, report) = run(&args(running.address)).await;
    let mut expected = Vec::new();
    for (letter, n_rules) in
        [("A", 17), ("B", 8), ("C", 5), ("D", 9), ("E", 8), ("F", 15), ("G", 6), ("H", 7)]
    {
        expected.extend((1..=n_rules).map(|n| format!("{letter}{n}")));
    }
    let refusal = "NOT_FOUND \"no such metric\"";
    assert!(
        entries(&report, "pass")
            .iter()
            .any(|(id, detail)| *id == "A9" && detail.starts_with(refusal))
    );
    let checks = report["checks"].as_array().unwrap();
    let ids: Vec<&str> = checks.iter().map(|entry| entry["id"].as_str().unwrap()).collect();
    assert_eq!(ids, expected);
    for entry in checks {
        for key in ["title", "why", "detail"] {
            let text = entry[key].as_str().unwrap();
            assert!(!text.is_empty() && text.is_ascii(), "{} {key}: {text}", entry["id"]);
        }
        let title = entry["title"].as_str().unwrap();
        assert!(title.len() <= 69, "`{title}` does not fit beside its id in 80 columns");
    }
}

#[tokio::test]
async fn bad_metadata_can_be_named() {
    let running = scaler::start(Kind::Count, Fault::None).await;
    let mut args = args(running.address);
    args.bad_metadata = vec![("threshold".to_owned(), "many".to_owned())];
    args.only = vec!["B3".to_owned(), "b4".to_owned(), "B6".to_owned()];
    let (outcome, report) = run(&args).await;
    let passed: Vec<&str> = entries(&report, "pass").iter().map(|(id, _detail)| *id).collect();
    assert_eq!(passed, ["B3", "B4", "B6"]);
    assert!(report["checks"][0]["detail"].as_str().unwrap().contains("threshold"));
    assert_eq!(outcome, Outcome::Passed);
}

#[tokio::test]
async fn without_metadata_its_rules_cannot_be_checked() {
    let running = scaler::start(Kind::Count, Fault::None).await;
    let mut args = args(running.address);
    args.metadata = vec![("queue".to_owned(), "jobs".to_owned())];
    args.bad_metadata = vec![("queue".to_owned(), "other".to_owned())];
    args.only = ["A1", "B3", "B4", "B6", "B8"].map(str::to_owned).to_vec();
    let (outcome, report) = run(&args).await;
    let unseen: Vec<&str> =
        entries(&report, "not_checkable").iter().map(|(id, _detail)| *id).collect();
    assert_eq!(unseen, ["B3", "B4", "B6", "B8"], "accepted metadata proves nothing");
    assert_eq!(outcome, Outcome::Passed);
}

#[tokio::test]
async fn the_table_says_what_was_seen_and_why_it_matters_in_80_columns() {
    let running = scaler::start(Kind::Count, Fault::TwoValues).await;
    let mut args = args(running.address);
    args.format = Format::Table;
    args.only = ["A1", "A6", "A11"].map(str::to_owned).to_vec();
    let mut out = Vec::new();
    let mut progress = Vec::new();
    let outcome = conformance::run(&args, &mut out, &mut progress).await.unwrap();
    assert_eq!(outcome, Outcome::Failed);
    let progress = String::from_utf8(progress).unwrap();
    for said in ["playing KEDA for 600ms", "check 1 of 3: A1"] {
        assert!(progress.contains(said), "{progress}");
    }
    let table = String::from_utf8(out).unwrap();
    for expected in [
        "pass  A1   GetMetricSpec always answers",
        "FAIL  A6   GetMetrics returns exactly one value, in both fields",
        "seen: 2 values for wanted-replicas",
        "why:  The HPA sums several values",
        "-     A11  what is not known is UNAVAILABLE, never 0 or false",
        "1 passed, 1 failed, 1 not checkable",
    ] {
        assert!(table.contains(expected), "no `{expected}` in\n{table}");
    }
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
}

#[tokio::test]
async fn a_machine_that_stood_still_for_once_is_no_fault_of_the_scaler() {
    let running = scaler::start(Kind::Count, Fault::MetricsSlowOnce).await;
    let mut args = args(running.address);
    args.only = vec!["D2".to_owned()];
    let (outcome, report) = run(&args).await;
    let detail = report["checks"][0]["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("once GetMetrics took ") && detail.contains("not again"),
        "{detail}"
    );
    assert_eq!(outcome, Outcome::Passed);
}

#[tokio::test]
async fn a_rule_that_does_not_exist_is_refused() {
    let mut args = args("127.0.0.1:1".parse().unwrap());
    args.only = vec!["A6".to_owned(), "Z9".to_owned()];
    let error = conformance::run(&args, &mut Vec::new(), &mut std::io::sink()).await.unwrap_err();
    assert!(matches!(&error, Error::UnknownRule { id } if id == "Z9"), "{error}");
}

#[tokio::test]
async fn without_a_server_no_run_can_be_made() {
    let nobody = Nobody::new();
    let args = args(nobody.address());
    let error = conformance::run(&args, &mut Vec::new(), &mut std::io::sink()).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_does_not_hang_the_client() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limit = Duration::from_secs(30);
    let error = tokio::time::timeout(
        limit,
        conformance::run(&args(address), &mut Vec::new(), &mut std::io::sink()),
    )
    .await
    .expect("contact is bounded")
    .unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error}");
    drop(listener);
}

#[tokio::test]
async fn a_run_that_could_check_nothing_proves_nothing() {
    let running = scaler::start(Kind::Count, Fault::None).await;
    let mut args = args(running.address);
    args.only = vec!["A11".to_owned()];
    let (mut out, mut progress) = (Vec::new(), std::io::sink());
    let error = conformance::run(&args, &mut out, &mut progress).await.unwrap_err();
    assert!(matches!(error, Error::NothingChecked { .. }), "{error}");
    assert!(error.to_string().contains("does default/llm exist, and has it data?"), "{error}");
    let report: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(report["summary"]["not_checkable"], 1, "the report is printed all the same");
}
