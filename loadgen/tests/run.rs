//! `loadgen run` as a user has it, the built program, against servers that do what they are told.

#![expect(clippy::float_cmp, reason = "counts are whole numbers, and come out of JSON as floats")]

mod answers;
mod elastic;
mod engine;
mod forms;
mod honesty;
mod loops;
mod server;
mod users;

use std::process::{Command, Output};

use serde_json::Value;

/// Runs the program to its end.
fn loadgen(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_loadgen"))
        .args(args)
        .env_remove("OPENAI_API_KEY")
        .output()
        .expect("the program starts")
}

/// Runs it and reads its JSON report; `args` are words. The exit code says whether an answer of it
/// was whole.
fn report(url: &str, args: &str) -> Value {
    let args: Vec<&str> = ["run", "--url", url, "--model", "m", "--format", "json"]
        .into_iter()
        .chain(args.split_whitespace())
        .collect();
    let output = loadgen(&args);
    let errors = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{args:?}: {error}: {errors}"));
    let n = |key: &str| report[key].as_u64().expect(key);
    let code = if n("completed") > 0 { 0 } else { 2 };
    assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
    assert_eq!(n("sent"), n("completed") + n("errors") + n("unfinished"), "{report:#}");
    let by_class = report["errors_by_class"].as_object().unwrap().values();
    assert_eq!(by_class.map(|n| n.as_u64().unwrap()).sum::<u64>(), n("errors"));
    report
}

/// A number of a report, by its path.
fn at(report: &Value, path: &str) -> f64 {
    report.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {report:#}"))
}
