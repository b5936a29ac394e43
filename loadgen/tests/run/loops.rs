//! What follows an answer: users in a closed loop, and the turns of a conversation; and several
//! runs of the same, compared.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::server::{Act, Server, nobody, plain, stream};
use super::{at, loadgen, report};

#[test]
fn users_of_a_closed_loop_wait_for_their_answers() {
    let server = Server::start(|asked| {
        let mut acts = vec![Act::Wait(Duration::from_millis(50))];
        acts.extend(stream(asked, 2, Duration::ZERO));
        acts
    });
    let report = report(&server.url(), "--users 4 --threads 2 --duration 2s --input-tokens 9");
    // Four at a time, 50 ms each at least.
    let completed = at(&report, "/completed");
    assert!((8.0..=164.0).contains(&completed), "{completed}");
    let timeline = report["timeline"].as_array().unwrap();
    assert!(timeline.iter().all(|point| point["in_flight"].as_u64().unwrap() <= 4));
    assert_eq!(report["load"], "closed loop of 4 users");
    assert!(report["unknown"].to_string().contains("coordinated omission"));
    let asked: BTreeSet<String> =
        server.asked().iter().map(|asked| asked.body.to_string()).collect();
    assert_eq!(asked.len(), server.asked().len(), "each request is another one");
}

#[test]
fn users_who_are_refused_do_not_ask_as_fast_as_they_can() {
    let report = report(&nobody().url(), "--users 3 --duration 2s");
    let errors = at(&report, "/errors");
    assert!((3.0..=6.0).contains(&errors), "{errors}");
}

#[test]
fn a_conversation_goes_on_after_each_answer_with_all_that_was_said() {
    let server = Server::start(|asked| stream(asked, 2, Duration::ZERO));
    let flags = "--rate 10 --arrival constant --duration 3s --turns 3 --think 20ms \
                 --input-tokens 10 --output-tokens 5";
    let report = report(&server.url(), flags);
    assert_eq!(report["load"], "10 conversations/s, constant, 3 turns, thinking 0.02 s");
    let asked = server.asked();
    assert_eq!(at(&report, "/completed"), asked.len() as f64);
    let prompt = |body: &Value| body["messages"][0]["content"].as_str().unwrap().to_owned();
    let of_length = |n| asked.iter().filter(move |asked| asked.prompt_tokens() == n);
    assert_eq!(of_length(10).count(), 30, "those that begin are the open loop's");
    for (before, after) in [(10, 22), (22, 34)] {
        assert!(of_length(after).count() >= 15, "{} of {after}", of_length(after).count());
        for later in of_length(after) {
            let said = of_length(before)
                .find(|asked| prompt(&later.body).starts_with(&prompt(&asked.body)))
                .unwrap_or_else(|| panic!("nothing before {}", prompt(&later.body)));
            assert!(said.at < later.at);
        }
    }
    assert_eq!(asked.iter().map(|asked| asked.prompt_tokens()).max(), Some(34));
}

#[test]
fn a_turn_is_due_when_its_user_has_thought() {
    let server = Server::start(|asked| stream(asked, 2, Duration::ZERO));
    let report = report(&server.url(), "--rate 10 --duration 6s --turns 2 --think 3s");
    // A third of the requests are second turns, three seconds after their first was due.
    assert!(at(&report, "/scheduled") > 70.0, "{report:#}");
    for time in ["/schedule_lag/p90", "/ttft/p90"] {
        assert!(at(&report, time) < 1.5, "{time}: {}", at(&report, time));
    }
}

/// Three runs against a server.
fn three_runs() -> Value {
    let server = Server::start(|asked| stream(asked, 2, Duration::ZERO));
    let report = report(&server.url(), "--rate 40 --duration 1s --input-tokens 30 --seeds 3");
    let bodies: BTreeSet<String> =
        server.asked().iter().map(|asked| asked.body.to_string()).collect();
    assert_eq!(bodies.len(), server.asked().len(), "no run repeats another's prompts");
    report
}

/// The first of two runs waits a second for its only connection, and half of it is refused.
#[test]
fn a_bad_run_is_not_hidden_by_a_good_one() {
    let server = Server::start(|asked| match asked.number {
        0 => vec![Act::Wait(Duration::from_secs(1)), plain("500 Oh", "text/plain", "no")],
        n if n < 40 && n % 2 == 0 => vec![plain("503 Full", "text/plain", "full")],
        _ => stream(asked, 2, Duration::ZERO),
    });
    let flags = "--rate 40 --duration 1s --arrival constant --seeds 2 --connections 1 --threads 1";
    let report = report(&server.url(), flags);
    assert_eq!((at(&report, "/scheduled"), at(&report, "/errors")), (80.0, 20.0));
    assert_eq!(report["errors_by_class"], json!({"http_500": 1, "http_503": 19}));
    assert_eq!((at(&report, "/elasticity/lost"), at(&report, "/offered_rate")), (20.0, 40.0));
    assert_eq!(report["client"]["is_bottleneck"], true);
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("INVALID: the runs of seed 1"), "{warnings}");
    assert_eq!(report["seeds"]["metrics"]["errors"]["values"], json!([20.0, 0.0]));
}

#[test]
fn runs_with_several_seeds_tell_a_change_from_chance() {
    let quick = three_runs();
    assert_eq!(quick["seeds"]["seeds"], json!([1, 2, 3]));
    let values = quick["seeds"]["metrics"]["ttft.p50"]["values"].as_array().unwrap();
    assert_eq!(values.len(), 3);
    let each: Vec<f64> = values.iter().map(|value| value.as_f64().unwrap()).collect();
    let pooled = at(&quick, "/ttft/p50");
    let (least, most) = (
        each.iter().copied().fold(f64::INFINITY, f64::min),
        each.iter().copied().fold(0.0, f64::max),
    );
    assert!((least..=most).contains(&pooled), "the report is of all runs: {pooled} of {each:?}");
    assert_eq!((at(&quick, "/duration_s"), at(&quick, "/seed")), (3.0, 1.0));

    // How far they lie apart by chance is the machine's, and so is set.
    let folder = tempfile::tempdir().unwrap();
    let with = |name: &str, ttft_p50_s: [f64; 3]| {
        let mut runs = quick.clone();
        runs["seeds"]["metrics"]["ttft.p50"]["values"] = json!(ttft_p50_s);
        let path = folder.path().join(name);
        std::fs::write(&path, runs.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let quick_path = with("quick.json", [0.010, 0.012, 0.011]);
    let slow_path = with("slow.json", [0.410, 0.413, 0.409]);
    let output = loadgen(&["compare", &quick_path, &slow_path, "--format", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let compared: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = |metric: &str| {
        let rows = compared["rows"].as_array().unwrap();
        rows.iter().find(|row| row["metric"] == metric).unwrap_or_else(|| panic!("{metric}"))
    };
    assert_eq!(row("ttft.p50")["differs"], true, "{compared:#}");
    let low = row("ttft.p50")["interval"][0].as_f64().unwrap();
    let change = row("ttft.p50")["change"].as_f64().unwrap();
    assert!(0.0 < low && low < change, "{compared:#}");

    let output = loadgen(&["compare", &quick_path, &quick_path]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(!table.contains("  differs"), "{table}");
    assert!(table.contains("before: loadgen, 40 requests/s, poisson, 3 runs"), "{table}");
}
