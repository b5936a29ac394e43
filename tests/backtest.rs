//! `backtest` against a real Prometheus with a history whose demand is known.

mod past;
mod wire;

use std::path::Path;

use clap::Parser as _;
use ghostscaler::args::{Args, Command};
use ghostscaler::backtest;
use ghostscaler::clock::Clock;
use ghostscaler::telemetry::ErrorChain;
use serde_json::Value;

use crate::support::eventually;
use crate::support::nobody::Nobody;
use crate::support::prometheus::{Prometheus, Setup};
use past::{LENGTH_S, LONG_GAP_S, Past, past};
use wire::{Act, Wire};

/// A Prometheus that has the history; `None` where there is none to run.
async fn scene() -> Option<(Prometheus, Past)> {
    let now_s = u64::try_from(Clock::start().now().0 / 1_000).unwrap();
    // Two hours ago, at a whole minute: nothing of it may still change.
    let past = past((now_s - 7_200) / 60 * 60);
    let prometheus = Setup::default().past(past.openmetrics.clone()).start()?;
    // As the program's start does; a second value is no fault.
    rustls::crypto::ring::default_provider().install_default().ok();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("{}/-/ready", prometheus.url);
    eventually("Prometheus", async || {
        http.get(&url).send().await.ok().filter(|answer| answer.status().is_success())
    })
    .await;
    Some((prometheus, past))
}

/// Runs `backtest` with these flags; what it prints, or what it says is wrong.
async fn run(flags: &[&str]) -> Result<String, String> {
    let line = ["ghostscaler", "backtest"].iter().chain(flags);
    let args = Args::try_parse_from(line).map_err(|error| error.to_string())?;
    let Command::Backtest(args) = args.command else { panic!("another command") };
    let mut out = Vec::new();
    match backtest::run(&args, &mut out).await {
        Ok(()) => Ok(String::from_utf8(out).unwrap()),
        Err(error) => Err(ErrorChain(&error).to_string()),
    }
}

/// The flags of every run: where, what and when.
fn flags<'a>(url: &'a str, cache: &'a Path, from: &'a str, to: &'a str) -> Vec<&'a str> {
    let mut flags = vec!["--prometheus", url, "--namespace", "team-a", "--workload", "llm"];
    flags.extend(["--from", from, "--to", to, "--cache", cache.to_str().unwrap()]);
    flags.extend(["--warmup", "0s", "--policy", "ghostscaler,hpa-queue", "--gpu-price", "2"]);
    flags
}

/// How far `value` is from `truth`, relative.
fn off(value: &Value, truth: f64) -> f64 {
    (value.as_f64().unwrap() / truth - 1.0).abs()
}

#[tokio::test]
async fn the_demand_is_found_again_in_a_history_with_gaps_a_restart_and_a_new_version() {
    let Some((prometheus, past)) = scene().await else { return };
    let wire = Wire::start(&prometheus.url, Act::Pass).await;
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (past.from_s.to_string(), past.to_s.to_string());
    let file = dir.path().join("page.html");
    let mut flags = flags(&wire.url, dir.path(), &from, &to);
    flags.extend(["--format", "json", "--report", file.to_str().unwrap()]);
    let first = run(&flags).await.unwrap();
    let asked = wire.requests();
    println!("{first}");
    assert!(wire.most_open() <= backtest::fetch::AT_ONCE, "{}", wire.most_open());
    assert!(wire.most_steps() <= 1_440, "{}", wire.most_steps());

    let report: Value = serde_json::from_str(&first).unwrap();
    let (history, uncertainty) = (&report["history"], &report["uncertainty"]);
    let truth = past.truth;
    assert!(off(&history["requests"], truth.requests) < 0.01, "{truth:?}");
    let low = uncertainty["requests_low"].as_f64().unwrap();
    let high = uncertainty["requests_high"].as_f64().unwrap();
    assert!((low..=high).contains(&truth.requests), "{low} to {high}, {truth:?}");
    assert!(high - low < 0.03 * truth.requests, "{low} to {high}");
    assert!(off(&history["prompt_tokens"], truth.prompt_tokens) < 0.02, "{truth:?}");
    assert!(off(&history["cached_tokens"], truth.cached_tokens) < 0.04, "{truth:?}");
    assert!(off(&history["generated_tokens"], truth.output_tokens) < 0.02, "{truth:?}");
    assert!(off(&uncertainty["unplaced_requests"], past.hidden.requests) < 0.05, "{past:?}");
    assert_eq!(uncertainty["lengths_from"], "histograms");

    let coverage = &report["coverage"];
    let long_gap_s = (LONG_GAP_S.1 - LONG_GAP_S.0) as f64;
    let known_h = (LENGTH_S as f64 - long_gap_s) / 3_600.0;
    assert!(off(&coverage["known_hours"], known_h) < 0.02, "{coverage}");
    assert!(off(&coverage["bridged_hours"], 240.0 / 3_600.0) < 0.15, "{coverage}");
    assert_eq!((&coverage["restarts"], &coverage["replicas_seen"]), (&1.into(), &4.into()));
    assert_eq!(coverage["scrape_interval_s"], 15.0);
    assert_eq!(coverage["queries"], asked);

    let gpu_hours = 2.0 * known_h;
    assert!(off(&history["gpu_hours"], gpu_hours) < 0.02, "{history}");
    assert!(off(&history["money"], 2.0 * gpu_hours) < 0.02, "{history}");
    assert_eq!(history["replicas_from"], "kube_deployment_spec_replicas");
    assert_eq!((&history["gpus_per_replica"], &history["gpus_from"]), (&1.into(), &"DCGM".into()));
    // 93 % while something ran, which was not always.
    let busy = history["gpu_busy"].as_f64().unwrap();
    assert!((0.5..0.93).contains(&busy), "{history}");

    // The engine was an 8b-a100: 12.5 ms a step, 0.067 ms a token, 82 ns × 400,000 at full cache.
    let learned = &report["model"]["learned"];
    assert!(off(&learned["step_ms"], 12.5) < 0.2, "{learned}");
    assert!(off(&learned["prompt_ms"], 0.067) < 0.1, "{learned}");
    assert!(learned["error"].as_f64().unwrap() < 0.1, "{learned}");

    let results = report["results"].as_array().unwrap();
    let of = |name: &str| results.iter().find(|row| row["policy"] == name).unwrap();
    let (ours, was) = (of("ghostscaler"), of("history"));
    assert!(off(&was["gpu_hours"], gpu_hours) < 0.05, "{was}");
    let saved = was["gpu_hours"].as_f64().unwrap() - ours["gpu_hours"].as_f64().unwrap();
    assert!((ours["saved_gpu_hours"].as_f64().unwrap() - saved).abs() < 1e-9);
    assert!((ours["saved_money"].as_f64().unwrap() - 2.0 * saved).abs() < 1e-9);
    for row in results.iter().chain(report["references"].as_array().unwrap()) {
        let number = |key: &str| row[key].as_f64().unwrap();
        assert!(number("attainment_low") <= number("attainment"), "{row}");
        assert!(number("attainment") <= number("attainment_high"), "{row}");
    }
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.contains("The history") && page.contains("Attainment against cost"));
    assert!(!page.contains("http://") || !page.contains("<script src"), "it loads nothing");

    // What has been asked once is not asked again, unless its file is damaged.
    let again = run(&flags).await.unwrap();
    assert_eq!(wire.requests(), asked, "the second run asks nothing");
    let mut again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(again["coverage"]["queries"], 0);
    again["coverage"] = coverage.clone();
    assert_eq!(again, report, "and says the same");
    let largest = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let largest = largest
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .max_by_key(|path| path.metadata().unwrap().len())
        .unwrap();
    let text = std::fs::read_to_string(&largest).unwrap();
    std::fs::write(&largest, text.replacen("0,", "1,", 1)).unwrap();
    let repaired = run(&flags).await.unwrap();
    assert_eq!(wire.requests(), asked + 1, "one window is asked for again");
    let mut repaired: Value = serde_json::from_str(&repaired).unwrap();
    repaired["coverage"] = coverage.clone();
    assert_eq!(repaired, report);
}

#[tokio::test]
async fn a_server_that_stumbles_is_asked_again_and_one_with_limits_in_parts() {
    let Some((prometheus, past)) = scene().await else { return };
    let (from, to) = (past.from_s.to_string(), (past.from_s + 4_500).to_string());
    let table = async |act: Act| {
        let wire = Wire::start(&prometheus.url, act).await;
        let dir = tempfile::tempdir().unwrap();
        let mut flags = flags(&wire.url, dir.path(), &from, &to);
        flags.extend(["--format", "table", "--profile", "8b-a100"]);
        let text = run(&flags).await.unwrap();
        assert!(wire.most_open() <= backtest::fetch::AT_ONCE);
        let kept = std::fs::read_dir(dir.path()).unwrap().count();
        (text.replace(&wire.url, "URL"), wire.requests(), kept)
    };
    let (plain, n_plain, _) = table(Act::Pass).await;
    println!("{plain}");
    assert!(plain.lines().all(|line| line.chars().count() <= 80), "{plain}");
    let (stumbled, n_stumbled, _) = table(Act::FailFirst(2)).await;
    assert_eq!((stumbled, n_stumbled), (plain.clone(), n_plain + 2));
    let (limited, n_limited, _) = table(Act::RefuseLonger(1_800)).await;
    assert_eq!(limited, plain, "halves are as good as the whole");
    assert!(n_limited > n_plain);
    // A part is shown to be one, and not kept.
    let (partial, _, kept) = table(Act::Warn).await;
    assert!(partial.contains(&format!("{n_plain} answers came with a warning")), "{partial}");
    assert_eq!(kept, 0);
}

#[tokio::test]
async fn a_server_that_hangs_is_asked_for_the_least_there_is_and_given_up() {
    let Some((prometheus, past)) = scene().await else { return };
    let (from, to) = (past.from_s.to_string(), (past.from_s + 4_500).to_string());
    let run = async |act: Act, timeout: &str| {
        let wire = Wire::start(&prometheus.url, act).await;
        let dir = tempfile::tempdir().unwrap();
        let mut flags = flags(&wire.url, dir.path(), &from, &to);
        flags.extend(["--timeout", timeout]);
        (run(&flags).await, wire.requests())
    };
    let (hung, n_hung) = run(Act::HangFirst(usize::MAX), "500ms").await;
    assert!(hung.as_ref().is_err_and(|error| error.contains("--timeout")), "{hung:?}");
    assert_eq!(n_hung, 2);
    // One that was slow with the first thing only.
    let (plain, n_plain) = run(Act::Pass, "5s").await;
    let (slow, n_slow) = run(Act::HangFirst(1), "5s").await;
    assert_eq!(n_slow, n_plain + 2);
    assert!(plain.is_ok() && slow.is_ok(), "{plain:?} {slow:?}");
}

#[tokio::test]
async fn what_is_wrong_is_said_with_what_to_do() {
    let Some((prometheus, past)) = scene().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (past.from_s.to_string(), past.to_s.to_string());
    let fault = async |change: &[(&str, &str)]| {
        let mut flags = flags(&prometheus.url, dir.path(), &from, &to);
        for (flag, value) in change {
            match flags.iter().position(|known| known == flag) {
                Some(at) => flags[at + 1] = value,
                None => flags.extend([*flag, *value]),
            }
        }
        run(&flags).await.unwrap_err()
    };
    let other_name = fault(&[("--workload", "lm")]).await;
    assert!(other_name.contains("no engine series of `lm` in namespace `team-a`"), "{other_name}");
    assert!(other_name.contains("looked for vllm:num_requests_running"), "{other_name}");
    assert!(other_name.contains("that namespace has engines of `llm`"), "{other_name}");
    let other_namespace = fault(&[("--namespace", "team-b")]).await;
    assert!(other_namespace.contains("there are engines in `team-a`"), "{other_namespace}");

    let nobody = Nobody::new();
    let refused = fault(&[("--prometheus", &format!("http://{}", nobody.address()))]).await;
    assert!(refused.contains("reachable from here"), "{refused}");
    assert!(refused.ends_with("connection refused"), "{refused}");
    let path = fault(&[("--prometheus", &format!("{}/graph", prometheus.url))]).await;
    assert!(path.contains("expected the base URL of a Prometheus"), "{path}");
    let secret = fault(&[("--prometheus", "http://user:secret@localhost:1")]).await;
    assert!(!secret.contains("secret"), "{secret}");

    let wire = Wire::start(&prometheus.url, Act::WantToken).await;
    let unauthorized = fault(&[("--prometheus", &wire.url)]).await;
    assert!(unauthorized.contains("--bearer-token-file FILE"), "{unauthorized}");
    assert!(unauthorized.contains("401"), "{unauthorized}");
    let token = dir.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    let authorized = fault(&[
        ("--prometheus", &wire.url),
        ("--bearer-token-file", token.to_str().unwrap()),
        ("--workload", "lm"),
    ])
    .await;
    assert!(authorized.contains("has engines of `llm`"), "{authorized}");

    let before = [(past.from_s - 86_400).to_string(), (past.from_s - 80_000).to_string()];
    let empty = fault(&[("--from", &before[0]), ("--to", &before[1])]).await;
    assert!(empty.contains("no sample from 20"), "{empty}");
    assert!(empty.contains("retention"), "{empty}");
    let order = fault(&[("--from", &to), ("--to", &from)]).await;
    assert!(order.contains("expected --from before --to"), "{order}");
    let short = fault(&[("--from", "now-5m"), ("--to", "now")]).await;
    assert!(short.contains("`--from` is now-5m: expected 30 minutes to 31 days"), "{short}");
    let policy = fault(&[("--policy", "ghostscalr")]).await;
    assert!(policy.contains("did you mean `ghostscaler`"), "{policy}");
}
