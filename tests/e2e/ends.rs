//! How the program ends: when told to, and when it cannot begin.

use std::fs::{self, File};
use std::net::TcpListener;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::engine::Engine;
use super::keda::{pushed, trigger};
use super::program::{Config, Scaler, run};

/// The default of `--shutdown-grace`, and what the last words may take beyond it.
const GRACE: Duration = Duration::from_secs(10 + 5);

#[tokio::test]
async fn sigterm_drains_ends_two_hundred_streams_with_ok_and_exits_with_0() {
    let engine = Engine::start().await;
    let config = Config::new(&format!(
        "workloads:\n- {{namespace: demo, name: llm, replicas: 2, endpoints: ['{}']}}\n",
        engine.address
    ));
    let mut scaler = Scaler::start(&config.path(), &["--drain-delay", "5s"]).await;
    let keda = scaler.keda().await;
    let trigger = trigger("demo/llm");
    let mut streams = join_all((0..200).map(|_| keda.stream(&trigger))).await;
    for stream in &mut streams {
        assert_eq!(pushed(stream).await, Some(true));
    }
    assert_eq!(scaler.metric("ghostscaler_grpc_open_streams").await, Some(200.0));

    scaler.signal("TERM");
    let told_at = Instant::now();
    scaler.logged("shutting down", 1).await;
    // While it drains it answers as before: five seconds, which a busy machine leaves enough of.
    assert_eq!(keda.poll("demo/llm").await, (2, true));
    for stream in &mut streams {
        assert_eq!(pushed(stream).await, None);
    }
    drop(keda);
    assert_eq!(scaler.ended(GRACE).await, Some(0));
    println!("SIGTERM to exit with a drain of 5 s: {:?}", told_at.elapsed());
}

/// As large as the process is built for, and a client that never closes its connection.
#[tokio::test]
#[ignore = "shows a time that means something on a free machine only"]
async fn ten_thousand_workloads_and_three_thousand_streams_end_within_the_bound() {
    let engine = Engine::start().await;
    let mut text = String::from("workloads:\n");
    for n in 0..10_000 {
        let address = engine.address;
        text += &format!("- {{namespace: f, name: w{n}, replicas: 2, endpoints: ['{address}']}}\n");
    }
    let config = Config::new(&text);
    let states = config.file("states").to_str().unwrap().to_owned();
    let mut scaler = Scaler::start(&config.path(), &["--state-dir", &states]).await;
    let keda = scaler.keda().await;
    let names: Vec<_> = (0..3_000).map(|n| trigger(&format!("f/w{n}"))).collect();
    let mut streams = join_all(names.iter().map(|trigger| keda.stream(trigger))).await;
    for stream in &mut streams {
        assert_eq!(pushed(stream).await, Some(true));
    }
    scaler.signal("TERM");
    let told_at = Instant::now();
    for stream in &mut streams {
        assert_eq!(pushed(stream).await, None);
    }
    println!("all streams have ended after {:?}", told_at.elapsed());
    assert_eq!(scaler.ended(GRACE).await, Some(0));
    println!("SIGTERM to exit: {:?}", told_at.elapsed());
    drop(keda);
}

#[tokio::test]
async fn sigint_ends_it_as_well() {
    let config = Config::new("");
    let mut scaler = Scaler::start(&config.path(), &[]).await;
    scaler.signal("INT");
    assert_eq!(scaler.ended(GRACE).await, Some(0));
}

#[tokio::test]
async fn what_cannot_start_says_why_and_exits_with_2() {
    let config = Config::new("");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let file = |name: &str, text: &str| {
        fs::write(config.file(name), text).unwrap();
        config.file(name).to_str().unwrap().to_owned()
    };
    let good = file("good.yaml", "");
    let folder = config.file(".").to_str().unwrap().to_owned();
    let missing = config.file("missing.yaml").to_str().unwrap().to_owned();
    let no_yaml = file("no.yaml", "workloads: [");
    let other_key = file("key.yaml", "workload: []");
    let typo = file("typo.yaml", "workloads: [{namespace: a, name: b, sloTtftt: 2s}]");
    let address = file("address.yaml", "grpcAddress: nowhere");
    let no_source = file("source.yaml", "workloads: [{namespace: a, name: b, wakeSource: gate}]");
    let large = file("large.yaml", "");
    File::options().write(true).open(&large).unwrap().set_len(50_000_000).unwrap();
    let packed = file("packed.yaml", "");
    fs::write(&packed, b"\x1f\x8b\x08\x00\xff").unwrap();
    let log = config.file("no/such/folder/log").to_str().unwrap().to_owned();
    let cases: &[(&[&str], &[&str])] = &[
        (&["--config", &good, "--grpc-address", &taken], &[&taken, "--grpc-address"]),
        (&["--config", &good, "--http-address", &taken], &[&taken, "--http-address"]),
        (&["--config", &missing], &[&missing, "No such file"]),
        (&["--config", &folder], &[&folder]),
        (&["--config", &no_yaml], &[&no_yaml, "line 1"]),
        (&["--config", &large], &[&large, "more than"]),
        (&["--config", "/dev/zero"], &["/dev/zero", "more than"]),
        (&["--config", &packed], &[&packed, "UTF-8"]),
        (&["--config", &other_key], &[&other_key, "workload"]),
        (&["--config", &typo], &[&typo, "workloads[0].sloTtftt", "sloTtft"]),
        (&["--config", &address], &[&address, "grpcAddress", "nowhere", "HOST:PORT"]),
        (&["--config", &no_source], &[&no_source, "wakeSource", "gate"]),
        (&["--config", &good, "--grpc-address", "nowhere"], &["nowhere", "HOST:PORT"]),
        (&["--config", &good, "--scrape-timeout", "soon"], &["soon", "--scrape-timeout"]),
        (&["--config", &good, "--state-dir", &good], &[&good, "expected a directory"]),
        (&["--config", &good, "--decision-log", &log], &[&log, "a directory that is there"]),
        (&["--config", &good, "--decision-log", &folder], &[&folder, "a directory"]),
        (
            &["--decision-log", &log, "--decision-log-bytes", "0"],
            &["--decision-log-bytes", "65536"],
        ),
        (&["--decision-log-bytes", "99999"], &["--decision-log <FILE>"]),
        (&["--api-token-file", &missing], &["--api-token-file", &missing, "16 to 4096 bytes"]),
        (&["--api-token-file", "/dev/zero"], &["/dev/zero", "more than 65536 bytes"]),
        (&["--api-token-file", &good], &["--api-token-file", &good, "16 to 4096 bytes"]),
        (&["--namespace", "BAD NS"], &["--namespace", "BAD NS", "lower-case letters"]),
        (&["--namespace", "team-a"], &["--namespace", "--kubeconfig"]),
        (&["--kubeconfig", "/dev/zero"], &["/dev/zero", "more than"]),
        (&["--kubeconfig", &folder], &[&folder, "it is a directory"]),
        (&["--drain-delay", "2h"], &["--drain-delay", "2h", "an hour at most"]),
        (&["--shutdown-grace", "soon"], &["--shutdown-grace", "soon", "an hour at most"]),
        (&["--tls-cert", "/dev/zero", "--tls-key", &good], &["/dev/zero", "more than", "--tls"]),
        (
            &["--config", &good, "--tls-cert", &good, "--tls-key", &good],
            &[&good, "no PEM certificate"],
        ),
        (&["--config", &good, "--log", "ghostscaler=loud"], &["ghostscaler=loud"]),
        (&["--config", &good, "--grpc-adress", &taken], &["--grpc-adress", "--grpc-address"]),
    ];
    // What a case does not set must not be in its way.
    let free = ["--grpc-address", "--http-address"];
    let ends = join_all(cases.iter().map(|(flags, _)| async move {
        let mut args = vec!["serve"];
        args.extend(*flags);
        for flag in free.iter().filter(|flag| !flags.contains(flag)) {
            args.extend([*flag, "127.0.0.1:0"]);
        }
        run(&args).await
    }))
    .await;
    for ((flags, parts), end) in cases.iter().zip(ends) {
        assert_eq!(end.code, Some(2), "{flags:?}: {end:?}");
        for part in *parts {
            assert!(end.stderr.contains(part), "{flags:?}: {part:?} is not in\n{}", end.stderr);
        }
        assert_eq!(end.stdout, "", "{flags:?}");
    }
}

#[tokio::test]
async fn a_command_that_cannot_begin_names_the_flag_and_exits_with_2() {
    let conformance = ["conformance", "127.0.0.1:1", "--namespace", "a", "--name"];
    let of = |flags: &[&'static str]| [&conformance[..], flags].concat();
    let twice = ["b", "--metadata", "k=1", "--metadata", "k=2"];
    let keys = ["b", "--tls-ca", "/dev/null", "--tls-cert", "/dev/null", "--tls-key", "/dev/zero"];
    let token = "--token-file";
    let backtest = ["backtest", "--prometheus", "http://127.0.0.1:1", "-w", "llm", "-n"];
    let cases: &[(Vec<&str>, &[&str])] = &[
        (of(&[""]), &["--name <NAME>", "lower-case letters"]),
        (of(&["b", "--namespace", ""]), &["--namespace"]),
        (of(&["b", "--duration", "0"]), &["--duration", "100ms to 1h"]),
        (vec!["conformance", "scaler", "--namespace", "a", "--name", "b"], &["HOST:PORT"]),
        (of(&twice), &["`k` is given twice"]),
        (of(&keys), &["--tls-key /dev/zero", "more than"]),
        (vec!["explain", "a/b", token, "/dev/zero"], &["--token-file /dev/zero", "more than"]),
        (vec!["explain", "a/b", token, "/dev/null"], &["--token-file /dev/null", "one line"]),
        (vec!["explain", "a/b", "--trigger", ""], &["--trigger"]),
        (vec!["replay", "/"], &["`/`", "it is a directory"]),
        (vec!["doctor", "-f", "/dev/zero"], &["--file /dev/zero", "more than"]),
        (
            vec!["doctor", "--prometheus", "http://a", "--prometheus-token-file", "/no"],
            &["--prometheus-token-file /no", "No such file"],
        ),
        ([&backtest[..], &["BAD NS"]].concat(), &["--namespace", "BAD NS"]),
        ([&backtest[..], &["a", "--profile", "/"]].concat(), &["profile `/`", "a directory"]),
        ([&backtest[..], &["a", "--warmup", "6d"]].concat(), &["--warmup", "at most half"]),
        ([&backtest[..], &["a", "--report", "/no/x"]].concat(), &["cannot write `/no/x`"]),
    ];
    let ends = join_all(cases.iter().map(|(args, _)| run(args))).await;
    for ((args, parts), end) in cases.iter().zip(ends) {
        assert_eq!(end.code, Some(2), "{args:?}: {end:?}");
        for part in *parts {
            assert!(end.stderr.contains(part), "{args:?}: {part:?} is not in\n{}", end.stderr);
        }
    }
}

#[tokio::test]
async fn a_demo_that_cannot_keep_its_log_says_so_at_once() {
    let end = run(&["demo", "--decision-log", "/no/such/folder/log"]).await;
    assert_eq!(end.code, Some(2), "{end:?}");
    assert!(end.stderr.contains("decision log `/no/such/folder/log`"), "{end:?}");
    // Nothing has been played before: the story begins with its first line.
    assert_eq!((end.stdout.as_str(), end.stderr.lines().count()), ("", 1), "{end:?}");
}

#[tokio::test]
async fn every_help_and_the_version_exit_with_0() {
    for subcommand in [None, Some("serve"), Some("explain"), Some("replay"), Some("conformance")] {
        let args: Vec<&str> = subcommand.into_iter().chain(["--help"]).collect();
        let help = run(&args).await;
        assert_eq!(help.code, Some(0), "{help:?}");
        let usage = args.split_last().map(|(_help, before)| before.concat()).unwrap();
        let usage = format!("Usage: ghostscaler {usage}");
        assert!(help.stdout.contains(usage.trim_end()), "{usage:?} is not in\n{}", help.stdout);
    }
    let version = run(&["--version"]).await;
    assert_eq!(version.code, Some(0));
    assert_eq!(version.stdout, concat!("ghostscaler ", env!("CARGO_PKG_VERSION"), "\n"));
    let nothing = run(&[]).await;
    assert_eq!(nothing.code, Some(2), "{nothing:?}");
}

#[test]
fn a_reader_that_leaves_is_a_normal_end() {
    let log = Config::new("no decision\n");
    for format in ["text", "json"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ghostscaler"));
        command.args(["replay", "--format", format]).arg(log.path()).stdout(writer);
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()), "{format}");
    }
}
