//! What a run may not hide: stalls, its own lateness, and what never ended.

use std::collections::HashSet;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process, setrlimit};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::server::{Act, Server, plain, stream, stream_end, stream_head, token};
use super::{at, loadgen, report};

const STALL: Duration = Duration::from_secs(2);

/// Answers at once, but for two seconds from its 50th request on.
fn stalling() -> Server {
    let stall = OnceLock::new();
    Server::start(move |asked| {
        let mut acts = vec![];
        if asked.number >= 50 {
            acts.push(Act::Until(*stall.get_or_init(|| asked.at + STALL)));
        }
        acts.extend(stream(asked, 2, Duration::ZERO));
        acts
    })
}

/// The 50th of 250 requests meets the stall not before it is due, so the hundred that are due in
/// the two seconds after that wait for what is left of them at least, however slow the machine is:
/// the 90th percentile of all is that of these at three quarters, 1.5 s. A client that waits for
/// answers before it sends the next would see a few slow ones.
#[test]
fn a_stall_of_two_seconds_shows_in_the_percentiles() {
    let load = "--rate 50 --duration 5s --arrival constant --input-tokens 9";
    for flags in ["", "--connections 1 --threads 1", "--plain --connections 4"] {
        // The stalling server streams; asked for a plain answer it is read all the same.
        let report = report(&stalling().url(), &format!("{load} {flags}"));
        assert_eq!(at(&report, "/completed"), 250.0, "{flags}: {}", report["errors_by_class"]);
        for metric in ["ttft", "e2e"] {
            let p90 = at(&report, &format!("/{metric}/p90"));
            let max = at(&report, &format!("/{metric}/max"));
            assert!(p90 >= 1.48, "{flags}: {metric} p90 {p90}");
            assert!(max >= 2.0, "{flags}: {metric} max {max}");
        }
        assert!(at(&report, "/elasticity/longest_silence_s") >= 1.0, "{flags}");
        let is_short = flags.contains("connections");
        if is_short {
            // The waiting was in the client, for want of connections: that is said.
            assert_eq!(report["client"]["is_bottleneck"], true, "{flags}");
            assert!(at(&report, "/schedule_lag/max") > 1.5, "{flags}");
        } else {
            // The waiting was the server's.
            let from_send = at(&report, "/ttft_from_send/p90");
            assert!(from_send > at(&report, "/schedule_lag/p90"), "{}", report["schedule_lag"]);
        }
    }
}

#[test]
fn what_is_open_at_the_end_is_neither_whole_nor_an_error() {
    let server = Server::start(|asked| match asked.number % 2 {
        0 => stream(asked, 2, Duration::ZERO),
        _ => vec![stream_head(), Act::Wait(Duration::from_secs(60))],
    });
    let flags = "--rate 50 --duration 2s --arrival constant --grace 3s --slo-ttft 3500ms";
    let report = report(&server.url(), flags);
    assert_eq!((at(&report, "/scheduled"), at(&report, "/errors")), (100.0, 0.0));
    assert!((45.0..=50.0).contains(&at(&report, "/completed")));
    assert!((50.0..=55.0).contains(&at(&report, "/unfinished")));
    // Those that have waited less than the SLO allows, some 12, could still have met it.
    let share = at(&report, "/attainment");
    assert!((0.5..0.65).contains(&share), "{share}");
}

/// Never answers each `every`-th request.
fn silent_each(every: u64) -> Server {
    Server::start(move |asked| match asked.number % every {
        0 => vec![Act::Wait(Duration::from_secs(60))],
        _ => stream(asked, 2, Duration::ZERO),
    })
}

#[test]
fn a_server_that_takes_requests_and_answers_none_has_answered_nothing() {
    let flags = "--rate 50 --duration 2s --arrival constant --grace 300ms --slo-ttft 100ms";
    let report = report(&silent_each(1).url(), flags);
    assert_eq!((at(&report, "/errors"), at(&report, "/unfinished")), (0.0, 100.0));
    let told = json!(["nothing was answered: the server is silent, or a time limit too short"]);
    assert_eq!(report["warnings"], told);
    // All of them waited longer than they were promised, 200 ms at least.
    assert_eq!(at(&report, "/elasticity/held"), 100.0);
    assert!(at(&report, "/elasticity/slo_violation_area_s") >= 20.0);
    assert_eq!(at(&report, "/elasticity/slo_violation_time_share"), 1.0);
}

#[test]
fn a_bound_does_not_hold_for_what_never_came() {
    let refusing = Server::start(|asked| match asked.number % 10 {
        0 => stream(asked, 2, Duration::ZERO),
        _ => vec![plain("503 Service Unavailable", "text/plain", "full")],
    });
    let silent = silent_each(2);
    for (server, bound) in [
        (&silent, "ttft.p99<250ms"),
        (&silent, "e2e.p99<250ms"),
        (&silent, "errors<1%"),
        (&refusing, "ttft.p99<1h"),
        (&refusing, "tpot.p50<1h"),
        (&refusing, "errors<1%"),
    ] {
        let flags = "--rate 50 --duration 1s --grace 300ms --slo-ttft 100ms --quiet";
        let args: Vec<&str> = flags.split(' ').chain(["--require", bound]).collect();
        let output =
            loadgen(&[&["run", "--url", &server.url(), "--model", "m"], &args[..]].concat());
        let table = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{bound}: {table}");
        assert!(table.contains(&format!("required {bound}: FAILS")), "{table}");
    }
}

/// Threads begin some 20 ms before the run does, and closed loops with a request for each user.
#[test]
fn what_is_due_at_the_very_start_is_not_sent_before_it() {
    let server = Server::start(|asked| stream(asked, 1, Duration::from_millis(100)));
    let users = "--users 4 --threads 2 --duration 100ms";
    for flags in ["--rate 1 --duration 1s --arrival constant", users] {
        let report = report(&server.url(), flags);
        assert!(at(&report, "/completed") >= 1.0);
        assert!(at(&report, "/ttft/mean") >= 0.1, "{flags}: {}", report["ttft"]);
    }
}

/// One request of a hundred hangs, and the run waits six seconds for it: beside it there would be 12 a
/// second.
#[test]
fn a_straggler_does_not_slow_the_others_down() {
    let flags = "--rate 50 --duration 2s --arrival constant --grace 6s --output-tokens 2";
    let report = report(&silent_each(1_000).url(), flags);
    assert_eq!((at(&report, "/completed"), at(&report, "/unfinished")), (99.0, 1.0));
    for rate in ["achieved_rate", "goodput"] {
        assert!(at(&report, &format!("/{rate}")) > 20.0, "{rate}: {}", report[rate]);
    }
}

#[test]
fn what_waits_for_a_connection_at_the_end_is_counted() {
    let flags = "--rate 50 --duration 2s --arrival constant --grace 300ms --slo-ttft 100ms \
                 --connections 4 --threads 1";
    let report = report(&silent_each(1).url(), flags);
    assert_eq!((at(&report, "/scheduled"), at(&report, "/sent")), (100.0, 4.0));
    assert_eq!(at(&report, "/client/unsent"), 96.0);
    assert_eq!(report["client"]["is_bottleneck"], true);
    assert_eq!(at(&report, "/elasticity/held"), 100.0);
    // Due 20 ms apart, they waited from 300 ms to 2.28 s, 100 ms of it as promised.
    let area = at(&report, "/elasticity/slo_violation_area_s");
    assert!(area >= 118.0, "{area}");
}

/// Answers take as long as the schedule, and nothing waits: as many come as were asked for.
#[test]
fn an_idle_server_reaches_what_was_offered() {
    let server = Server::start(|asked| stream(asked, 1, Duration::from_secs(2)));
    let flags = "--rate 20 --duration 2s --arrival constant --output-tokens 1 --slo-ttft 1m";
    let report = report(&server.url(), flags);
    for rate in ["achieved_rate", "goodput", "offered_rate", "output_tokens_rate"] {
        assert_eq!(at(&report, &format!("/{rate}")), 20.0, "{rate}");
    }
    assert_ne!(report["queue_grows"], true);
}

#[test]
fn no_more_connections_are_used_than_were_allowed() {
    for (connections, threads) in [(1, 2), (3, 2), (3, 8)] {
        let server = Server::start(|asked| stream(asked, 1, Duration::from_millis(50)));
        let flags = format!(
            "--rate 100 --duration 1s --connections {connections} --threads {threads} --grace 20s"
        );
        let report = report(&server.url(), &flags);
        let used: HashSet<u64> = server.asked().iter().map(|asked| asked.connection).collect();
        assert_eq!(used.len(), connections, "{connections} for {threads} threads");
        assert_eq!(at(&report, "/client/threads"), threads.min(connections) as f64);
    }
}

/// The report of a run that is stopped after so many answers. Later requests get none, so that the run
/// goes on for as long as the signal takes.
fn stopped(flags: &str, after: u64, signal: Signal) -> Value {
    let server = Server::start(move |asked| {
        if asked.number >= after {
            return vec![stream_head(), Act::Wait(Duration::from_secs(60))];
        }
        stream(asked, 2, Duration::from_millis(20))
    });
    stopped_when(&server, |server| server.n_answered() >= after, flags, signal, 0)
}

/// Likewise of any server, and with its exit code.
fn stopped_when(
    server: &Server,
    is_enough: impl Fn(&Server) -> bool,
    flags: &str,
    signal: Signal,
    code: i32,
) -> Value {
    // Whoever runs the tests may ignore the signal (nohup), and a child would too.
    let mut child = Command::new("env")
        .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_loadgen")])
        .args(["run", "--url", &server.url(), "--model", "m", "--rate", "50", "--format", "json"])
        .args(flags.split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_enough(server) {
        assert!(Instant::now() < deadline, "no requests");
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&child), signal).unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(code));
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["interrupted"], true);
    assert_eq!(at(&report, "/errors"), 0.0);
    report
}

#[test]
fn a_stop_ends_with_a_report_of_what_was_measured() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let report = stopped("--duration 10m", 20, signal);
        assert!(at(&report, "/completed") >= 10.0, "{report:#}");
        assert!(at(&report, "/elapsed_s") < 40.0);
    }
}

/// What is required is no question then.
#[test]
fn a_run_without_a_whole_answer_exits_with_2_however_it_ended() {
    let slow =
        Server::start(|_| vec![stream_head(), token("m"), Act::Wait(Duration::from_secs(60))]);
    let url = slow.url();
    let args = ["run", "--url", &url, "--model", "m", "--rate", "50", "--arrival", "constant"];
    let over = ["--duration", "1s", "--grace", "1s", "--require", "ttft.p99<1h"];
    let output = loadgen(&[&args[..], &over].concat());
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(2), "{table}");
    assert!(table.contains("required ttft.p99<1h: holds"), "{table}");
    assert!(table.contains("WARNING: no answer was whole when the run ended"), "{table}");
    for flags in ["--duration 10m", "--duration 10m --find-knee"] {
        let enough = slow.asked().len() + 20;
        let is_asked = |slow: &Server| slow.asked().len() >= enough;
        let report = stopped_when(&slow, is_asked, flags, Signal::INT, 2);
        assert_eq!(at(&report, "/completed"), 0.0);
        assert_eq!(report["knee"].is_null(), !flags.contains("knee"), "{report:#}");
    }
}

#[test]
fn a_step_that_is_stopped_proves_no_rate() {
    let report = stopped("--duration 10m --find-knee", 20, Signal::INT);
    let knee = &report["knee"];
    assert_eq!(knee["limit"], "interrupted");
    assert_eq!((&knee["rate"], &knee["fails_at"]), (&Value::Null, &Value::Null));
    assert_eq!(knee["steps"][0]["interrupted"], true, "{knee:#}");
}

/// The 75th request is the 25th of a run's 50.
#[test]
fn a_part_of_a_run_is_no_sample_beside_whole_ones() {
    let report = stopped("--duration 1s --arrival constant --seeds 1000", 75, Signal::INT);
    assert_eq!(at(&report, "/scheduled"), 50.0, "the whole run's");
    assert!(report["warnings"].to_string().contains("which is left out"), "{report:#}");
}

/// The 75th request is due after 1.48 s, half a second into the cool-down.
#[test]
fn a_stop_within_the_cool_down_leaves_what_counts_as_it_was() {
    let flags = "--arrival constant --duration 10m --cooldown 599s";
    let report = stopped(flags, 75, Signal::INT);
    assert!(at(&report, "/elapsed_s") > 1.4);
    assert_eq!((at(&report, "/duration_s"), at(&report, "/offered_rate")), (1.0, 50.0));
}

/// The server holds every stream open until all have come.
#[test]
fn ten_thousand_streams_are_open_at_once() {
    let mut files = getrlimit(Resource::Nofile);
    if files.maximum.is_some_and(|most| most < 11_000) {
        // Not a fault of the program: this machine allows no process so many files.
        return;
    }
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files).unwrap();
    let server = Server::start(|asked| {
        let mut acts = vec![stream_head(), token("m"), Act::UntilAsked(10_000), token("m")];
        acts.extend(stream_end(asked.prompt_tokens(), 2));
        acts
    });
    let flags = "--rate 2000 --duration 5s --arrival constant --input-tokens 9 --grace 60s";
    let report = report(&server.url(), flags);
    assert_eq!(report["errors_by_class"], json!({}));
    assert_eq!(at(&report, "/completed"), 10_000.0, "{}", report["warnings"]);
    assert_eq!(at(&report, "/itl/count"), 10_000.0);
    // None of them ends while others come; where they come late, the run is too short to tell.
    assert_ne!(report["queue_grows"], false);
    // The first ones waited for the last to come.
    assert!(at(&report, "/itl/max") > 2.0, "{}", report["itl"]);
}
