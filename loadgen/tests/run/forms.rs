//! Flags, formats and exit codes.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::server::{Act, Server, plain, stream};
use super::{at, loadgen, report};

fn quick() -> Server {
    Server::start(|asked| stream(asked, 2, Duration::ZERO))
}

/// Runs it with flags after those that are needed; its exit code, output and errors.
fn run(url: &str, flags: &[&str]) -> (Option<i32>, String, String) {
    let args: Vec<&str> =
        ["run", "--url", url, "--model", "m"].iter().chain(flags).copied().collect();
    let output = loadgen(&args);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn every_format_is_what_it_says() {
    let server = quick();
    let url = server.url();
    let load = ["--rate", "50", "--duration", "1s", "--require", "99%"];
    let with = |format: &'static str| {
        let flags: Vec<&str> = load.iter().copied().chain(["--format", format]).collect();
        let (code, out, err) = run(&url, &flags);
        assert_eq!(code, Some(0), "{format}: {err}");
        out
    };
    let table = with("table");
    assert!(table.contains("required 99%: holds"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let csv = with("csv");
    assert!(csv.starts_with("class,scheduled,sent,completed,errors"));
    let (head, row) = csv.split_once('\n').unwrap();
    assert!(head.ends_with(",is_bottleneck,interrupted,warnings"), "{head}");
    // What is quoted is the last field, the warnings.
    let (plain, warnings) = row.split_once(",\"").unwrap();
    assert_eq!(plain.split(',').count() + 1, head.split(',').count(), "{csv}");
    assert!(plain.ends_with("false,false") || plain.ends_with("true,false"), "{plain}");
    assert!(warnings.contains("p99 of") && warnings.ends_with("\"\n"), "{warnings}");
    let html = with("html");
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));
    assert_eq!(html.matches("<svg").count(), 4);
    assert!(!html.contains("src=") && !html.contains("href="), "loads nothing");
    assert!(!html.contains("NaN"));
}

#[test]
fn what_is_required_decides_the_exit_code() {
    let server = quick();
    let url = server.url();
    for (bounds, code) in [
        (vec!["--require", "ttft.p99<30s"], 0),
        (vec!["--require", "ttft.max<0.000001"], 1),
        (vec!["--require"], 0),
        (vec!["--require", "errors<1%", "--require", "e2e.p50<0"], 1),
    ] {
        let flags: Vec<&str> =
            ["--rate", "30", "--duration", "1"].into_iter().chain(bounds.clone()).collect();
        assert_eq!(run(&url, &flags).0, Some(code), "{bounds:?}");
    }
}

#[test]
fn what_cannot_run_says_why_and_exits_with_2() {
    let mut trace = tempfile::NamedTempFile::new().unwrap();
    trace.write_all(b"t_s,input_tokens,output_tokens\n0,5,5\n1,x,5\n").unwrap();
    let trace = trace.path().to_str().unwrap();
    let url = "http://localhost:1";
    let csv = &["--trace", trace, "--trace-format", "csv"][..];
    for (url, flags, words) in [
        (url, vec!["--trace", trace, "--trace-format", "csv"], "line 3: `input_tokens` is \"x\""),
        (url, vec!["--trace", trace, "--trace-format", "azure"], "no column `TIMESTAMP`"),
        (url, vec!["--trace", trace, "--trace-format", "excel"], "azure, mooncake, burstgpt"),
        (url, vec!["--trace", "no/file", "--trace-format", "csv"], "cannot open no/file"),
        (url, vec!["--rate", "fast"], "rate \"fast\""),
        (url, vec!["--rate", "1", "--arrival", "gamma"], "gamma:CV"),
        (url, vec!["--rate", "1", "--duration", "0"], "--duration is 0"),
        (url, vec!["--rate", "0.001", "--duration", "1"], "nothing is due within the run"),
        (url, vec!["--rate", "0.001", "--duration", "1", "--find-knee"], "nothing is due"),
        (url, vec!["--rate", "1", "--require", "quick"], "no requirement"),
        (url, vec!["--rate", "1", "--output", "no/such/folder/x"], "cannot write to no/such"),
        (url, vec!["--rate", "1", "--api-key-file", "no/key"], "cannot read the API key in no/key"),
        (url, vec!["--rate", "1", "--api-key-file", "/dev/zero"], "more than 65536 bytes"),
        (url, vec!["--rate", "1", "--api-key-file", "/dev/null"], "file /dev/null is empty"),
        (url, vec!["--rate", "1", "--token-ids"], "--endpoint completions"),
        (url, vec!["--rate", "0.01", "--duration", "1s"], "nothing is due within the run"),
        (url, vec!["--rate", "0.001", "--find-knee"], "nothing is due within the run"),
        (url, vec!["--rate", "1", "--slo-ttft", "0"], "--slo-ttft is 0s: expected 1ms to 1d"),
        (url, vec!["--rate", "1", "--timeout", "0"], "--timeout is 0s: expected 1ms to 1d"),
        (
            url,
            vec!["--rate", "1", "--gpus-per-replica", "0"],
            "invalid value '0' for '--gpus-per-replica <N>': expected a number, 0.001 to 10000",
        ),
        (
            url,
            vec!["--rate", "1", "--retries", "1", "--retry-budget", "2"],
            "invalid value '2' for '--retry-budget <SHARE>': expected a number, 0 to 1",
        ),
        (url, [csv, &["--scale", "0"]].concat(), "'--scale <FACTOR>': expected a number, 0.000001"),
        (
            url,
            vec!["--rate", "1", "--seed=-1"],
            "invalid value '-1' for '--seed <N>': expected a whole number, 0 or more",
        ),
        (
            url,
            vec!["--rate", "1", "--seed", "1.5"],
            "'1.5' for '--seed <N>': expected a whole number",
        ),
        (url, vec!["--rate", "1", "--threads", "x"], "expected a whole number, 1 to 256"),
        (url, vec!["--rate", "1e-3"], "expected digits without an exponent, such as 0.001"),
        (url, vec!["--rate", "1", "--count", "0"], "expected a whole number, 1 to 1000000000000"),
        (url, vec!["--rate", "1", "--count", "9", "--cooldown", "1s"], "cannot be used with"),
        (url, vec!["--rate", "1", "--scale", "2"], "--trace <FILE>"),
        (url, vec!["--rate", "1", "--bin", "1s"], "--trace <FILE>"),
        (url, [csv, &["--input-tokens", "9"]].concat(), "--input-tokens is of no use: the rows"),
        (url, [csv, &["--output-tokens", "9"]].concat(), "--output-tokens is of no use"),
        (url, [csv, &["--lengths", trace]].concat(), "--lengths is of no use"),
        (
            url,
            [csv, &["--bin", "1s"]].concat(),
            "--bin is of no use: expected --trace-format counts",
        ),
        (url, [csv, &["--class", "a,input=5"]].concat(), "--class a: input= and output= are of no"),
        (url, vec!["--rate", "1", "--prompts", trace], "line 1: expected a prompt as JSON"),
        (url, vec!["--rate", "1", "--prompts", trace, "--turns", "2"], "cannot be used with"),
        (
            url,
            vec!["--rate", "1", "--header", "key"],
            "--header, the 1. of them: expected NAME:VALUE",
        ),
        (url, vec!["--rate", "1", "--body", "7"], "expected a JSON object"),
        (
            url,
            vec!["--rate", "1", "--body", r#"{"stream":false}"#],
            "`stream` is set by other flags",
        ),
        (url, vec!["--rate", "1", "--class", "a", "--class", "a"], "--class a is given twice"),
        (url, vec!["--rate", "1", "--class", "a,model="], "--class a: expected a name"),
        (
            url,
            vec!["--rate", "1", "--class", "a,slo-e2e=0"],
            "--class a: an slo is 0s: expected 1ms to 1d",
        ),
        (url, vec!["--rate", "1", "--tls-ca", trace], "--tls-ca is of no use"),
        ("https://a", vec!["--rate", "1", "--tls-ca", trace], "cannot use the certificates"),
        (url, vec!["--rate", "1", "--users", "3"], "cannot be used with"),
        (url, vec!["--users", "0"], "expected a whole number, 1 to 1000000"),
        (url, vec!["--rate", "1", "--think", "1s"], "--think is of no use"),
        (url, vec!["--rate", "1", "--turns", "0"], "\"0\" is no size: expected a mean of 1 to 1"),
        (url, vec!["--rate", "1", "--stall", "0"], "--stall is 0s: expected 1ms to 1d"),
        (url, vec!["--rate", "1", "--stall", "1s", "--plain"], "cannot be used with"),
        (url, vec!["--rate", "1", "--plain", "--require"], "expected --slo-e2e beside it"),
        (url, vec!["--rate", "1", "--plain", "--find-knee"], "expected --slo-e2e beside it"),
        (url, vec!["--rate", "1", "--require", "errors<1"], "1 alone may mean 1% or 100%"),
        (url, vec![], "--rate"),
        ("localhost:1", vec!["--rate", "1"], "expected http://HOST[:PORT]"),
    ] {
        let (code, out, err) = run(url, &flags);
        assert_eq!(code, Some(2), "{flags:?}: {err}");
        assert!(err.contains(words), "{flags:?}: {err}");
        assert_eq!(out, "", "{flags:?}");
    }
}

/// Each of these ran, and measured another server, another trace, or nothing that was asked.
#[test]
fn what_would_measure_something_else_is_refused() {
    let until = |t_s: &str| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(file, "t_s,input_tokens,output_tokens\n0,5,5\n{t_s},5,5\n").unwrap();
        file
    };
    let (near, far, long) = (until("1"), until("1e15"), until("2678400"));
    let name = |file: &tempfile::NamedTempFile| file.path().to_str().unwrap().to_owned();
    let (near, far, long) = (name(&near), name(&far), name(&long));
    let url = "http://localhost:1";
    for (url, flags, words) in [
        (
            url,
            vec!["--rate", "1", "--plain", "--require", "ttft.p99<1s"],
            "ttft.p99<1s cannot hold",
        ),
        (
            url,
            vec!["--rate", "1", "--plain", "--require", "tpot.p99<1s"],
            "tpot.p99<1s cannot hold",
        ),
        (url, vec!["--rate", "1", "--plain", "--require", "itl.p99<1s"], "itl.p99<1s cannot hold"),
        (
            url,
            vec!["--rate", "1", "--output-tokens", "1", "--require", "tpot.p99<1s"],
            "cannot hold with answers of one token",
        ),
        (
            url,
            vec!["--rate", "1", "--requests", "no-such.out", "--output", "./no-such.out"],
            "--requests and --output both name no-such.out",
        ),
        (
            url,
            vec!["--trace", &near, "--trace-format", "csv", "--requests", &near],
            "--requests and --trace both name",
        ),
        (
            url,
            vec!["--trace", &near, "--trace-format", "csv", "--output", &near],
            "--output and --trace both name",
        ),
        (
            url,
            vec!["--trace", &far, "--trace-format", "csv"],
            "line 3: `t_s` is \"1e15\": expected",
        ),
        (
            url,
            vec!["--trace", &long, "--trace-format", "csv"],
            "the run would last for 31d and more",
        ),
        (url, vec!["--rate", "1@31d"], "expected --duration of at most 30d"),
        ("http://127.0.0.1:99999", vec!["--rate", "1"], ":99999\": expected a port of 1 to 65535"),
        ("http://127.0.0.1:abc", vec!["--rate", "1"], ":abc\": expected a port of 1 to 65535"),
        (
            url,
            vec!["--rate", "1", "--replicas-url", "http://127.0.0.1:99999/x"],
            ":99999/x\": expected a port of 1 to 65535",
        ),
    ] {
        let (code, out, err) = run(url, &flags);
        assert_eq!(code, Some(2), "{flags:?}: {err}");
        assert!(err.contains(words), "{flags:?}: {err}");
        assert_eq!(out, "", "{flags:?}");
    }
}

#[test]
fn help_exits_with_0_and_shows_an_example() {
    let output = loadgen(&["run", "--help"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("loadgen run --url") && text.contains("Exit codes"));
}

/// What is held and what an SLO is exceeded by make lines long.
#[test]
fn a_table_of_long_numbers_has_80_columns_too() {
    let server = Server::start(|asked| stream(asked, 2, Duration::from_millis(20)));
    let flags = ["--rate", "90", "--duration", "2s", "--slo-tpot", "1ms", "--slo-ttft", "1ms"];
    let (_, table, err) = run(&server.url(), &flags);
    let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("request-s beyond the SLO, in"), "{table}{err}");
    for line in table.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn a_page_says_in_its_heading_whether_to_believe_it_and_shows_each_line() {
    let server = quick();
    let flags = ["--rate", "50", "--duration", "1s", "--format", "html"];
    let page = run(&server.url(), &flags).1;
    let heading =
        |page: &str| page.split_once("<h1>").unwrap().1.split_once("</h1>").unwrap().0.to_owned();
    assert!(heading(&page).contains("of the requests within their SLO, TTFT p99 "), "{page}");
    assert_eq!(page.matches("stroke-dasharray").count(), 1, "within SLO over what was due");
    // More is due than one connection carries.
    let slow = Server::start(|asked| stream(asked, 2, Duration::from_millis(100)));
    let full = ["--connections", "1", "--grace", "0"];
    let page = run(&slow.url(), &[&flags[..], &full].concat()).1;
    assert!(heading(&page).starts_with("INVALID: "), "{}", heading(&page));
}

#[test]
fn a_count_ends_a_run_open_or_closed() {
    let server = quick();
    let mut trace = tempfile::NamedTempFile::new().unwrap();
    trace.write_all(b"t_s,input_tokens,output_tokens\n0,3,0\n0.1,7,2\n500,9,9\n").unwrap();
    let trace = format!("--trace {} --trace-format csv --count 2", trace.path().display());
    for (flags, n) in [
        ("--rate 40 --arrival constant --count 20 --threads 2", 20.0),
        ("--rate 40 --arrival constant --request-count 20 --duration 1h", 20.0),
        ("--rate 40 --arrival constant --num-prompts 900 --duration 500ms", 20.0),
        ("--users 3 --threads 2 --count 20", 20.0),
        ("--users 3 --threads 2 --count 1", 1.0),
        (&trace, 2.0),
    ] {
        let report = report(&server.url(), flags);
        assert_eq!((at(&report, "/scheduled"), at(&report, "/completed")), (n, n), "{flags}");
        assert!(at(&report, "/elapsed_s") < 60.0, "{flags}");
        assert!(!at(&report, "/settings/count").is_nan(), "{flags}");
        if flags.starts_with("--rate") {
            let rate = at(&report, "/offered_rate");
            assert!((rate - 40.0).abs() < 3.0, "{flags}: {rate}");
        }
        let is_raised = flags.starts_with("--trace");
        let warnings = report["warnings"].to_string();
        assert_eq!(
            warnings.contains("1 of the trace's rows have 0 tokens"),
            is_raised,
            "{warnings}"
        );
    }
}

#[test]
fn a_trace_is_replayed_with_its_times_and_lengths() {
    let server = quick();
    let mut trace = tempfile::NamedTempFile::new().unwrap();
    trace.write_all(b"t_s,input_tokens,output_tokens\n0,30,5\n0.5,7,2\n1.5,300,9\n").unwrap();
    let path = trace.path().to_str().unwrap();
    let report = report(&server.url(), &format!("--trace {path} --trace-format csv"));
    assert_eq!(at(&report, "/completed"), 3.0);
    let mut asked = server.asked();
    asked.sort_by_key(|asked| asked.at);
    let seen: Vec<_> = asked
        .iter()
        .map(|asked| (asked.prompt_tokens(), asked.body["max_tokens"].as_u64().unwrap()))
        .collect();
    assert_eq!(seen, [(30, 5), (7, 2), (300, 9)]);
    let timeline = report["timeline"].as_array().unwrap();
    let due = timeline.iter().filter(|point| point["scheduled"] == 1);
    let due: Vec<f64> = due.map(|point| point["t_s"].as_f64().unwrap()).collect();
    assert_eq!(due, [0.0, 0.5, 1.5]);
    assert_eq!(at(&report, "/prompt_tokens_ratio"), 1.0);
}

#[test]
fn ones_own_prompts_headers_and_fields_are_sent() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"\"one\"\n{\"messages\":[{\"role\":\"user\",\"content\":\"two\"}]}\n").unwrap();
    let server = quick();
    let url = server.url();
    let path = file.path().to_str().unwrap();
    let flags = [
        "--rate",
        "20",
        "--duration",
        "1s",
        "--arrival",
        "constant",
        "--output-tokens",
        "2",
        "--prompts",
        path,
        "--header",
        "X-Tenant: s3cret",
        "--header",
        "x-tenant: s3cret too",
        "--header",
        "authorization: Basic s3cret",
        "--body",
        r#"{"temperature": 0.5}"#,
        "--format",
        "json",
    ];
    let (code, out, err) = run(&url, &flags);
    assert_eq!(code, Some(0), "{err}");
    assert!(!out.contains("s3cret") && !err.contains("s3cret"), "{out}{err}");
    let asked = server.asked();
    let of = |text| asked.iter().filter(move |asked| asked.body["messages"][0]["content"] == text);
    assert_eq!((of("one").count(), of("two").count()), (10, 10));
    for asked in &asked {
        assert_eq!(asked.body["temperature"], 0.5);
        for header in ["x-tenant: s3cret", "x-tenant: s3cret too", "authorization: Basic s3cret"] {
            assert!(asked.head.iter().any(|line| line == header), "{:?}", asked.head);
        }
    }
    let report: Value = serde_json::from_str(&out).unwrap();
    let names = ["x-tenant", "x-tenant", "authorization"];
    assert_eq!(report["settings"]["headers"], json!(names));
    assert_eq!(report["settings"]["body"], r#"{"temperature":0.5}"#);
    assert!(report["prompt_tokens_ratio"].is_null(), "how long they are is the server's to say");
    assert!(report["unknown"].to_string().contains("were sent again and again"));
}

#[test]
fn a_seed_settles_every_request_however_many_threads_send_them() {
    let bodies = |seed: &str, threads: &str| -> BTreeSet<String> {
        let server = quick();
        let flags = format!(
            "--rate 100 --duration 1s --seed {seed} --threads {threads} --input-tokens 50:0.5"
        );
        report(&server.url(), &flags);
        server.asked().iter().map(|asked| asked.body.to_string()).collect()
    };
    let first = bodies("7", "1");
    assert!(first.len() > 60, "{}", first.len());
    assert_eq!(first, bodies("7", "3"));
    assert_ne!(first, bodies("8", "1"));
}

#[test]
fn classes_have_their_own_lengths_models_and_promises() {
    let server = Server::start(|asked| {
        let mut acts = stream(asked, 2, Duration::ZERO);
        if asked.body["model"] == "other" {
            acts.insert(0, Act::Wait(Duration::from_millis(50)));
        }
        acts
    });
    let flags = "--rate 100 --duration 2s --any-model \
                 --class chat,weight=3,input=10,slo-ttft=30s \
                 --class batch,input=200,model=other,slo-ttft=25ms";
    let report = report(&server.url(), flags);
    let classes = report["classes"].as_array().unwrap();
    assert_eq!(
        (classes[0]["class"].as_str(), classes[1]["class"].as_str()),
        (Some("chat"), Some("batch"))
    );
    assert_eq!(classes[0]["attainment"], 1.0);
    assert_eq!(classes[1]["attainment"], 0.0);
    let n = |index: usize| classes[index]["scheduled"].as_f64().unwrap();
    assert_eq!(n(0) + n(1), at(&report, "/scheduled"));
    assert!((0.6..0.9).contains(&(n(0) / (n(0) + n(1)))));
    for asked in server.asked() {
        let expected = if asked.body["model"] == "other" { 200 } else { 10 };
        assert_eq!(asked.prompt_tokens(), expected);
    }
}

#[test]
fn a_warm_up_and_a_cool_down_are_sent_and_not_counted() {
    let server = quick();
    let flags = "--rate 50 --duration 2s --warmup 500ms --cooldown 500ms --arrival constant";
    let report = report(&server.url(), flags);
    assert_eq!(server.asked().len(), 100);
    assert_eq!(at(&report, "/scheduled"), 50.0);
    assert_eq!(at(&report, "/offered_rate"), 50.0);
    // The processor time is that of all of them.
    let cpu_s = at(&report, "/client/cpu_cores") * at(&report, "/elapsed_s");
    let of_all_s = at(&report, "/client/cpu_s_per_request") * 100.0;
    assert!((of_all_s / cpu_s - 1.0).abs() < 1e-9, "{of_all_s} {cpu_s}");
}

#[test]
fn token_numbers_are_exact() {
    let server = quick();
    let flags = "--rate 20 --duration 1s --endpoint completions --token-ids --input-tokens 777";
    report(&server.url(), flags);
    for asked in server.asked() {
        assert_eq!(asked.body["prompt"].as_array().unwrap().len(), 777);
    }
}

#[test]
fn a_reader_that_leaves_is_a_normal_end() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_loadgen"));
    let output = command.arg("profiles").stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
fn each_request_has_its_line() {
    let server = Server::start(|asked| match asked.prompt_tokens() % 2 {
        0 => vec![plain("503 Service Unavailable", "text/plain", "busy")],
        _ => stream(asked, 2, Duration::ZERO),
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let flags = "--rate 100 --duration 1s --warmup 500ms --arrival constant --requests";
    let classes = "--class odd,weight=1,input=11 --class even,weight=1,input=12";
    let report = report(&server.url(), &format!("{flags} {path} {classes}"));
    let lines: Vec<Value> = std::fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let numbers: BTreeSet<u64> =
        lines.iter().map(|line| line["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers.len(), lines.len(), "each once");
    let counted = |key: &str, value: &str| {
        lines.iter().filter(|line| line["counts"] == true && line[key] == value).count() as f64
    };
    assert!(lines.iter().any(|line| line["counts"] == false), "the warm-up's too");
    assert_eq!(counted("outcome", "completed"), at(&report, "/completed"));
    assert_eq!(counted("error", "http_503"), at(&report, "/errors_by_class/http_503"));
    for line in &lines {
        let s = |key: &str| line[key].as_f64().unwrap();
        assert!(s("due_s") <= s("sent_s") && s("sent_s") <= s("end_s"), "{line}");
        assert_eq!(line["url"], server.url());
        if line["class"] == "odd" {
            assert!(
                s("sent_s") <= s("first_token_s") && s("first_token_s") <= s("end_s"),
                "{line}"
            );
            let tokens = [&line["asked_prompt_tokens"], &line["output_tokens"], &line["pieces"]];
            assert_eq!(tokens, [11, 2, 2], "{line}");
            assert_eq!((&line["outcome"], &line["error"]), (&json!("completed"), &Value::Null));
        } else {
            assert_eq!(
                (&line["outcome"], &line["first_token_s"]),
                (&json!("failed"), &Value::Null)
            );
        }
    }
}

#[test]
fn what_was_never_sent_has_its_line_too() {
    let server = Server::start(|asked| stream(asked, 2, Duration::from_secs(60)));
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let flags = "--rate 20 --duration 1s --connections 2 --threads 2 --grace 0s --requests";
    let report = report(&server.url(), &format!("{flags} {path}"));
    let text = std::fs::read_to_string(path).unwrap();
    let n = |outcome: &str| text.matches(&format!("\"outcome\":\"{outcome}\"")).count() as f64;
    assert_eq!((n("unfinished"), n("unsent")), (2.0, at(&report, "/client/unsent")));
    assert_eq!(text.lines().count() as f64, at(&report, "/scheduled"));
    assert_eq!(text.matches("\"sent_s\":null").count() as f64, n("unsent"));
}
