//! The page, parsed back and held against the list of names and the conventions.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use super::*;
use crate::decision::{Answer, Health, Rule, Unavailable};
use crate::registry::{Caller, Rpc};
use crate::web::fixtures::{publish, registry, tracker, wanting, workload};

/// One sample: its name, its labels as written, its value.
type Sample = (String, String, f64);

/// Families by name with their type, and the samples.
fn parse(page: &str) -> (BTreeMap<String, String>, Vec<Sample>) {
    let (mut types, mut samples) = (BTreeMap::new(), Vec::new());
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            let before = types.insert(name.to_owned(), kind.to_owned());
            assert_eq!(before, None, "{name} is declared twice");
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels = labels.strip_suffix('}').unwrap();
            samples.push((name.to_owned(), labels.to_owned(), value.parse().unwrap()));
        }
    }
    (types, samples)
}

/// A page with one workload decided, one not, and each process metric counted once.
fn page(format: Format) -> String {
    let mut wrong = workload("prod", "wrong");
    wrong.triggers = vec![[("mode".to_owned(), "on".to_owned())].into()];
    let registry = registry([workload("prod", "llm"), workload("prod", "new"), wrong]);
    let mut wanted = wanting(5);
    wanted.binding = Rule::Queue;
    wanted.health = Health::Ok;
    let inputs = &mut wanted.inputs;
    (inputs.waiting, inputs.running) = (Some(12.0), Some(24.0));
    (inputs.work, inputs.rho, inputs.headroom) = (Some(2.5), Some(0.7), Some(0.5));
    (inputs.kv_usage, inputs.gpu_busy, inputs.ghost_score) = (Some(0.5), Some(0.25), Some(40.0));
    inputs.age_ms = Some(1_500);
    let clock = Clock::start();
    publish(&tracker(&registry, "prod", "llm"), clock, 1, wanted);
    let no_metadata = std::collections::HashMap::new();
    registry.lookup("prod", "llm", &no_metadata, Caller::Hpa, Rpc::GetMetrics).unwrap();
    let metrics = Metrics::default();
    metrics.decided(Duration::from_micros(2));
    metrics.scraped(Duration::from_millis(3), None);
    metrics.scraped(Duration::from_secs(2), Some(Why::Timeout));
    metrics.failed(Why::PodGone);
    metrics.config_reloaded(true);
    metrics.state_saved(false);
    metrics.line_dropped();
    Page::new(&metrics, registry, clock).render(format).unwrap()
}

/// The values of one family by labels.
fn values(page: &str, name: &str) -> Vec<(String, f64)> {
    let samples = parse(page).1;
    samples.into_iter().filter(|s| s.0 == name).map(|(_, labels, value)| (labels, value)).collect()
}

#[test]
fn a_trigger_that_is_refused_is_counted_and_one_that_is_right_is_not() {
    assert_eq!(
        values(&page(Format::Text), "ghostscaler_workload_refused_triggers"),
        [(r#"namespace="prod",name="wrong""#.to_owned(), 1.0)]
    );
}

#[test]
fn every_listed_family_is_on_the_page_and_no_other() {
    let listed: BTreeSet<&str> = described().map(|family| family.name).collect();
    assert_eq!(listed.len(), described().count(), "a name is listed twice");
    let page = page(Format::Text);
    let (types, samples) = parse(&page);
    let shown: BTreeSet<&str> = types.keys().map(String::as_str).collect();
    assert_eq!(shown, listed);
    for family in described() {
        let of_family = samples.iter().filter(|(name, _, _)| {
            name.strip_prefix(family.name)
                .is_some_and(|rest| matches!(rest, "" | "_bucket" | "_sum" | "_count"))
        });
        let mut n_samples = 0;
        for (name, labels, _) in of_family {
            n_samples += 1;
            let names = labels.split("\",").filter_map(|label| label.split_once('=')).map(|l| l.0);
            let names: Vec<&str> = names.filter(|name| *name != "le").collect();
            assert_eq!(names, family.labels, "{name}");
        }
        assert!(n_samples > 0, "{} has no sample", family.name);
        let kind = if family.kind == "info" { "gauge" } else { family.kind };
        assert_eq!(types[family.name], kind, "{}", family.name);
        assert!(page.contains(&format!("# HELP {} {}.\n", family.name, family.help)));
    }
}

#[test]
fn names_and_help_follow_the_conventions() {
    for family in described() {
        let name = family.name;
        assert!(name.starts_with("ghostscaler_"), "{name}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        assert_eq!(name.ends_with("_total"), family.kind == "counter", "{name}");
        assert_eq!(name.ends_with("_info"), family.kind == "info", "{name}");
        for unit in ["_ms", "_millis", "_percent", "_bytes_total_bytes", "_minutes"] {
            assert!(!name.contains(unit), "{name} is not in a base unit");
        }
        assert!(!family.help.ends_with('.') && family.help.len() > 8, "{name}");
        assert!(!family.labels.contains(&"trigger"), "{name} has an unbounded label");
    }
}

#[test]
fn g2_g3_a_decided_workload_shows_its_numbers() {
    let page = page(Format::Text);
    let labels = r#"namespace="prod",name="llm""#;
    for (name, value) in [
        ("ghostscaler_workload_wanted_replicas", 5.0),
        ("ghostscaler_workload_waiting_requests", 12.0),
        ("ghostscaler_workload_running_requests", 24.0),
        ("ghostscaler_workload_spec_replicas", 3.0),
        ("ghostscaler_workload_ready_replicas", 3.0),
        ("ghostscaler_workload_work", 2.5),
        ("ghostscaler_workload_utilization_target_ratio", 0.7),
        ("ghostscaler_workload_headroom_replicas", 0.5),
        ("ghostscaler_workload_kv_usage_ratio", 0.5),
        ("ghostscaler_workload_gpu_busy_ratio", 0.25),
        ("ghostscaler_workload_ghost_score", 40.0),
        ("ghostscaler_workload_input_age_seconds", 1.5),
    ] {
        assert_eq!(values(&page, name), [(labels.to_owned(), value)], "{name}");
    }
    assert_eq!(
        values(&page, "ghostscaler_workload_binding_rule"),
        [(format!(r#"{labels},rule="queue""#), 1.0)]
    );
    let asked = values(&page, "ghostscaler_workload_asked_age_seconds");
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].0, format!(r#"{labels},rpc="GetMetrics",caller="hpa""#));
    assert!((0.0..60.0).contains(&asked[0].1), "{asked:?}");
}

#[test]
fn an_undecided_workload_shows_its_answer_and_no_invented_zero() {
    let page = page(Format::Text);
    let labels = r#"namespace="prod",name="new""#;
    let (_, samples) = parse(&page);
    let shown: BTreeMap<_, _> = samples
        .into_iter()
        .filter(|(_, written, _)| written.starts_with(labels))
        .map(|(name, written, value)| (name, (written, value)))
        .collect();
    let names: Vec<&str> = shown.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "ghostscaler_workload_active",
            "ghostscaler_workload_answered_replicas",
            "ghostscaler_workload_decision_age_seconds",
            "ghostscaler_workload_health",
        ]
    );
    assert_eq!(
        shown["ghostscaler_workload_answered_replicas"].1.total_cmp(&3.0),
        std::cmp::Ordering::Equal
    );
    assert_eq!(
        shown["ghostscaler_workload_health"].0,
        format!(r#"{labels},state="not_yet_observed""#)
    );
}

#[test]
fn an_error_answer_is_no_series() {
    let registry = registry([workload("prod", "llm")]);
    let mut lost = wanting(3);
    lost.answer = Answer::Unavailable { why: Unavailable::SourceLost };
    let clock = Clock::start();
    publish(&tracker(&registry, "prod", "llm"), clock, 1, lost);
    let page = Page::new(&Metrics::default(), registry, clock).render(Format::Text).unwrap();
    assert_eq!(values(&page, "ghostscaler_workload_answered_replicas"), []);
    assert_eq!(values(&page, "ghostscaler_workload_active"), []);
    assert_eq!(values(&page, "ghostscaler_workload_wanted_replicas").len(), 1);
}

#[test]
fn of_two_triggers_the_larger_answer_is_shown_once() {
    let mut two = workload("prod", "llm");
    two.triggers.push([("profile".to_owned(), "batch".to_owned())].into());
    let registry = registry([two]);
    let clock = Clock::start();
    for (tracker, want) in registry.trackers().iter().zip([2, 6]) {
        publish(tracker, clock, 1, wanting(want));
    }
    // What only a call has brought is nobody's count.
    let metadata = [("sloTtft".to_owned(), "20ms".to_owned())].into();
    let called = registry.lookup("prod", "llm", &metadata, Caller::Poll, Rpc::IsActive).unwrap();
    publish(&called, clock, 1, wanting(9));
    let page = Page::new(&Metrics::default(), registry, clock).render(Format::Text).unwrap();
    let wanted = values(&page, "ghostscaler_workload_wanted_replicas");
    assert_eq!(wanted, [(r#"namespace="prod",name="llm""#.to_owned(), 6.0)]);
    assert_eq!(values(&page, "ghostscaler_workloads"), [(String::new(), 3.0)]);
}

#[test]
fn of_two_triggers_with_equal_answers_the_one_that_the_api_shows_first_is_shown() {
    let mut two = workload("prod", "llm");
    two.triggers.push([("profile".to_owned(), "batch".to_owned())].into());
    let key = two.key.clone();
    let registry = registry([two]);
    let clock = Clock::start();
    for (tracker, score) in registry.trackers().iter().zip([20.0, 60.0]) {
        let mut decision = wanting(3);
        decision.inputs.ghost_score = Some(score);
        publish(tracker, clock, 1, decision);
    }
    let first = registry.trackers_of(&key).remove(0);
    let shown = first.published.load().decision.as_ref().unwrap().inputs.ghost_score.unwrap();
    let page = Page::new(&Metrics::default(), registry, clock).render(Format::Text).unwrap();
    let scores = values(&page, "ghostscaler_workload_ghost_score");
    assert_eq!(scores, [(r#"namespace="prod",name="llm""#.to_owned(), shown)]);
}

#[test]
fn readings_are_counted_by_state_and_cause() {
    let readings = values(&page(Format::Text), "ghostscaler_engine_readings");
    assert_eq!(
        readings,
        [
            (r#"state="fresh",why="""#.to_owned(), 1.0),
            (r#"state="missing",why="refused""#.to_owned(), 1.0),
            (r#"state="stale",why="timeout""#.to_owned(), 1.0),
        ]
    );
}

#[test]
fn the_process_counts_what_happened() {
    let page = page(Format::Text);
    let one = |labels: &str| vec![(labels.to_owned(), 1.0)];
    let mut errors = values(&page, "ghostscaler_source_errors_total");
    errors.sort_by(|a, b| a.0.cmp(&b.0));
    let kinds = [r#"kind="pod_gone""#, r#"kind="timeout""#].map(|kind| (kind.to_owned(), 1.0));
    assert_eq!(errors, kinds);
    assert_eq!(values(&page, "ghostscaler_decision_log_dropped_total"), one(""));
    assert_eq!(values(&page, "ghostscaler_decision_duration_seconds_count"), one(""));
    assert_eq!(values(&page, "ghostscaler_scrape_duration_seconds_count"), [(String::new(), 2.0)]);
    let reloads: BTreeMap<_, _> =
        values(&page, "ghostscaler_config_reloads_total").into_iter().collect();
    assert_eq!(reloads.len(), 2, "the one that has not happened is there at 0");
}

#[test]
fn a_hostile_name_cannot_forge_a_series() {
    let name = "llm\"} 1\nforged{x=\"\\";
    let registry = registry([workload("prod", name)]);
    let page =
        Page::new(&Metrics::default(), registry, Clock::start()).render(Format::Text).unwrap();
    assert!(!page.lines().any(|line| line.starts_with("forged")), "{page}");
    assert!(page.contains(r#"name="llm\"} 1\nforged{x=\"\\""#), "{page}");
}

#[test]
fn the_open_metrics_page_ends_and_names_its_units() {
    let page = page(Format::OpenMetrics);
    assert!(page.ends_with("# EOF\n"));
    assert!(page.contains("# UNIT ghostscaler_workload_asked_age_seconds seconds\n"), "{page}");
    assert!(page.contains("# TYPE ghostscaler_source_errors counter\n"), "{page}");
    assert!(page.contains("# TYPE ghostscaler_build info\n"), "{page}");
}

#[test]
fn a_large_fleet_costs_a_bounded_number_of_series() {
    let names: Vec<String> = (0..1_000).map(|index| format!("llm-{index}")).collect();
    let registry = registry(names.iter().map(|name| workload("prod", name)));
    let clock = Clock::start();
    for tracker in registry.trackers().iter() {
        publish(tracker, clock, 1, wanting(3));
    }
    let page = Page::new(&Metrics::default(), registry, clock).render(Format::Text).unwrap();
    let n_series = parse(&page).1.len();
    // At most one series of each family a workload, none of the ten of a method never called.
    let n_families = workloads::DESCRIBED.len();
    assert!(n_series < 1_000 * n_families, "{n_series} series of {n_families} families");
}

#[test]
fn promtool_finds_nothing_to_say() {
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        println!("skipped: no promtool on PATH (Debian package `prometheus`)");
        return;
    };
    std::io::Write::write_all(&mut promtool.stdin.take().unwrap(), page(Format::Text).as_bytes())
        .unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}");
}
