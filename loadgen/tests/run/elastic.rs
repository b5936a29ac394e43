//! What happens when the service changes its size, and where it breaks.

use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use super::server::{Act, Server, nobody, plain, stream, stream_head, token};
use super::{at, loadgen, report};

/// A gateway that holds what comes until there have been 41 requests, the last of them due after two
/// seconds, but refuses each tenth, while its page tells 0 replicas and then 2. Its requests and not
/// the clock say when, so that no figure can be lower than the schedule has it, however slow the
/// machine is.
#[test]
fn a_wake_from_zero_is_timed_and_its_requests_are_held_or_lost() {
    const WOKEN_BY: u64 = 40;
    let is_awake = AtomicBool::new(false);
    let server = Server::start(move |asked| {
        if asked.path == "/scale?of=m" {
            let replicas = if is_awake.load(Ordering::Relaxed) { 2 } else { 0 };
            let body = json!({"status": {"replicas": replicas}});
            return vec![plain("200 OK", "application/json", &body.to_string())];
        }
        if asked.number >= WOKEN_BY {
            is_awake.store(true, Ordering::Relaxed);
        } else if asked.number % 10 == 9 {
            return vec![plain("503 Service Unavailable", "text/plain", "no capacity")];
        }
        let mut acts = vec![Act::UntilAsked(WOKEN_BY + 1)];
        acts.extend(stream(asked, 4, Duration::ZERO));
        acts
    });
    let url = server.url();
    let flags = format!(
        "--rate 20 --duration 5s --arrival constant --slo-ttft 500ms --replicas-url \
         {url}/scale?of=m --gpus-per-replica 4"
    );
    let report = report(&url, &flags);
    let elasticity = &report["elasticity"];
    assert_eq!(elasticity["from_zero"], true);
    assert!(at(&report, "/elasticity/time_to_first_token_s") >= 1.99);
    assert_eq!(at(&report, "/elasticity/lost"), 4.0);
    assert_eq!(report["errors_by_class"], json!({"http_503": 4}));
    // Due before 1.5 s, they waited more than half a second: 30, less the 3 that were refused.
    assert!(at(&report, "/elasticity/held") >= 27.0, "{elasticity:#}");
    assert_eq!(elasticity["scale_events"][0]["from"], 0);
    assert_eq!(elasticity["scale_events"][0]["to"], 2);
    assert_eq!(elasticity["scale_events"][0]["held"], elasticity["held"]);
    assert!(at(&report, "/elasticity/scale_events/0/worst_ttft_s") >= 1.99);
    // They wait 1.5 s beyond their 0.5 s and 50 ms less each: 23.25 request-seconds for the thirty,
    // less 1.65 for those that were refused.
    let area = at(&report, "/elasticity/slo_violation_area_s");
    assert!(area >= 21.5, "{area}");
}

/// The 40th request comes as one of two replicas goes, and five streams are cut.
#[test]
fn streams_that_a_replica_takes_with_it_are_cut_at_that_change() {
    let has_gone = AtomicBool::new(false);
    let server = Server::start(move |asked| {
        if asked.path == "/scale" {
            let replicas = if has_gone.load(Ordering::Relaxed) { "1" } else { "2" };
            return vec![plain("200 OK", "text/plain", replicas)];
        }
        has_gone.fetch_or(asked.number >= 40, Ordering::Relaxed);
        match asked.number {
            40..45 => vec![stream_head(), token("m"), Act::Close],
            _ => stream(asked, 2, Duration::ZERO),
        }
    });
    let url = server.url();
    let load = "--rate 20 --duration 4s --arrival constant";
    let report = report(&url, &format!("{load} --replicas-url {url}/scale"));
    assert_eq!(report["errors_by_class"], json!({"cut_short": 5}));
    let elasticity = &report["elasticity"];
    assert_eq!((&elasticity["cut"], &elasticity["reversals"]), (&json!(5), &json!(0)));
    let event = &elasticity["scale_events"][0];
    assert_eq!((&event["from"], &event["to"], &event["cut"]), (&json!(2), &json!(1), &json!(5)));
}

/// The second half of four seconds counts, and a request that hangs keeps the run going for two
/// more.
#[test]
fn a_good_token_costs_what_the_replicas_took_while_it_was_asked_for() {
    let server = Server::start(|asked| match (asked.path.as_str(), asked.number) {
        ("/scale", _) => vec![plain("200 OK", "text/plain", "3")],
        (_, 0) => vec![Act::Wait(Duration::from_secs(60))],
        _ => stream(asked, 4, Duration::ZERO),
    });
    let url = server.url();
    let flags = format!(
        "--rate 20 --duration 4s --warmup 2s --arrival constant --grace 2s --slo-ttft 1m \
         --slo-tpot 1m --replicas-url {url}/scale --gpus-per-replica 4"
    );
    let report = report(&url, &flags);
    assert_eq!(at(&report, "/good"), 40.0);
    let replica_s = at(&report, "/elasticity/replica_seconds");
    let seen_share = at(&report, "/elasticity/seen_share");
    assert!(
        (replica_s / seen_share - 6.0).abs() < 1e-6,
        "three of them for two seconds: {replica_s}"
    );
    let cost = at(&report, "/elasticity/gpu_seconds_per_good_token");
    assert!((cost - 6.0 * 4.0 / 160.0).abs() < 1e-6, "{cost}");
}

/// The only request is due 240 ms after the start.
#[test]
fn the_first_token_is_timed_from_the_first_request() {
    let mut trace = tempfile::NamedTempFile::new().unwrap();
    trace.write_all(b"t_s,input_tokens,output_tokens\n0.24,30,2\n").unwrap();
    let path = trace.path().to_str().unwrap();
    let server = Server::start(|asked| stream(asked, 2, Duration::ZERO));
    let report = report(&server.url(), &format!("--trace {path} --trace-format csv"));
    let (first_s, ttft_s) =
        (at(&report, "/elasticity/time_to_first_token_s"), at(&report, "/ttft/mean"));
    // Times are kept to three digits.
    assert!((first_s / ttft_s - 1.0).abs() < 2e-3, "{first_s} {ttft_s}");
}

#[test]
fn replicas_that_cannot_be_seen_cost_an_unknown_amount() {
    let server = Server::start(|asked| match asked.path.as_str() {
        "/broken" => vec![plain("500 Internal Server Error", "text/plain", "0")],
        _ => stream(asked, 2, Duration::ZERO),
    });
    let url = server.url();
    let report = report(&url, &format!("--rate 20 --duration 2s --replicas-url {url}/broken"));
    for key in ["replica_seconds", "gpu_seconds_per_good_token", "from_zero"] {
        assert!(report["elasticity"][key].is_null(), "{key}");
    }
    assert!(report["warnings"].to_string().contains("not seen"));
}

#[test]
fn several_targets_share_the_load_and_those_that_answer_are_replicas() {
    let servers: Vec<Server> = (0..2)
        .map(|_| {
            Server::start(|asked| match asked.path.as_str() {
                "/health" => vec![plain("200 OK", "text/plain", "")],
                _ => stream(asked, 2, Duration::ZERO),
            })
        })
        .collect();
    let second = servers[1].url();
    let flags = format!("--url {second} --rate 50 --duration 2s --arrival constant --watch-health");
    let report = report(&servers[0].url(), &flags);
    assert_eq!(at(&report, "/completed"), 100.0);
    assert!(servers.iter().all(|server| server.asked().len() == 50));
    assert_eq!(report["replicas"][0][1], 2);
}

#[test]
fn a_target_that_is_down_is_told_from_one_that_is_up() {
    let server = Server::start(|asked| stream(asked, 2, Duration::ZERO));
    let nobody = nobody();
    let down = nobody.url();
    let flags = format!("--url {down} --rate 50 --duration 2s --arrival constant");
    let report = report(&server.url(), &flags);
    assert_eq!((at(&report, "/completed"), at(&report, "/errors")), (50.0, 50.0));
    let up = json!({
        "url": server.url(), "sent": 50, "completed": 50, "errors": 0, "unfinished": 0,
        "errors_by_class": {}
    });
    assert_eq!(report["by_target"][0], up);
    assert_eq!(report["by_target"][1]["errors_by_class"], json!({"connect": 50}));
    let example = report["error_examples"]["connect"].as_str().unwrap();
    assert!(example.starts_with(&format!("{down}: ")), "{example}");
}

#[test]
fn the_steps_of_a_rate_are_told_apart() {
    let server = Server::start(|asked| match asked.number {
        0..20 => stream(asked, 2, Duration::ZERO),
        _ => vec![plain("503 Service Unavailable", "text/plain", "full")],
    });
    // One connection, on which they come in the order in which they are due.
    let flags = "--rate 20@1s,60@1s --arrival constant --threads 1 --connections 1";
    let report = report(&server.url(), flags);
    let phases = report["phases"].as_array().unwrap();
    assert_eq!((&phases[0]["rate"], &phases[1]["rate"]), (&json!("20@1s"), &json!("60@1s")));
    let n = |phase: usize, key: &str| phases[phase][key].as_u64().unwrap();
    assert_eq!((n(0, "scheduled"), n(1, "scheduled")), (20, 60));
    assert_eq!((n(0, "failed"), n(1, "failed")), (0, 60), "{phases:#?}");
    assert!(phases[0]["ttft_p99"].is_f64() && phases[1]["ttft_p99"].is_null());
}

/// Takes a hundred requests of a step and refuses the rest. A step is known by its connection: each
/// has one of its own. So a step of a second holds up to 101/s: one of 101 may fail.
#[test]
fn f69_the_knee_is_the_highest_rate_that_is_answered() {
    let step: Mutex<(u64, u32)> = Mutex::default();
    let server = Server::start(move |asked| {
        let mut step = step.lock().unwrap();
        if step.0 != asked.connection {
            *step = (asked.connection, 0);
        }
        step.1 += 1;
        match step.1 {
            ..=100 => stream(asked, 1, Duration::ZERO),
            _ => vec![plain("503 Service Unavailable", "text/plain", "full")],
        }
    });
    let flags = "--find-knee --rate 20 --duration 1s --arrival constant --threads 1 --connections 1 \
                 --slo-ttft 10m --slo-tpot 1m --grace 30s";
    let report = report(&server.url(), flags);
    let knee = &report["knee"];
    assert_eq!(knee["limit"], "service", "{knee:#}");
    let (rate, fails_at) = (at(&report, "/knee/rate"), at(&report, "/knee/fails_at"));
    assert!(rate <= 101.1 && 101.0 < fails_at, "{knee:#}");
    assert!(fails_at < rate * 1.06, "{knee:#}");
    // The report is that of the best step.
    assert!(at(&report, "/attainment") >= 0.99);
}

/// Nothing here is answered within the bound, though all is within the SLO.
#[test]
fn a_bound_that_is_required_is_searched_for() {
    let server = Server::start(|asked| stream(asked, 2, Duration::from_millis(30)));
    let url = server.url();
    let args = ["run", "--url", &url, "--model", "m", "--rate", "8", "--duration", "200ms"];
    let search = ["--find-knee", "--require", "ttft.p99<20ms", "--arrival", "constant"];
    let output = loadgen(&[&args[..], &search, &["--format", "json", "--quiet"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let knee = &report["knee"];
    assert!(knee["rate"].is_null(), "{knee:#}");
    assert_eq!(knee["required"], json!(["ttft.p99<20ms"]));
    assert_eq!(knee["steps"][0]["fails"], json!(["ttft.p99<20ms"]));
    assert_eq!(knee["steps"][0]["attainment"], 1.0);
}
