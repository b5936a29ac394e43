//! `doctor` as a person runs it: on files, on an API server's answers, on a real Prometheus.
//!
//! `cures` proves each check once, with its own fix; what a check has to weigh stands beside the checks, on
//! broken facts.

mod api;
mod cluster;
mod cures;
mod files;
mod kubectl;
mod prometheus;
mod world;

use clap::Parser as _;
use ghostscaler::args::{Args, Command};
use ghostscaler::doctor::{self, Error, Outcome};
use serde_json::Value;

/// What a run of these arguments comes to: its end, and the report as JSON.
async fn run(args: &[&str]) -> Result<(Outcome, Value), Error> {
    let line = ["ghostscaler", "doctor", "--format", "json"].iter().chain(args);
    let Command::Doctor(args) = Args::try_parse_from(line).unwrap().command else {
        panic!("not `doctor`");
    };
    let mut out = Vec::new();
    let outcome = doctor::run(&args, &mut out).await?;
    Ok((outcome, serde_json::from_slice(&out).unwrap()))
}

/// The findings of the only ScaledObject.
fn findings(report: &Value) -> Vec<Value> {
    let [object] = report["scaled_objects"].as_array().unwrap().as_slice() else {
        panic!("one ScaledObject, not {report:#}");
    };
    object["findings"].as_array().unwrap().clone()
}

fn ids(findings: &[Value]) -> Vec<&str> {
    findings.iter().map(|finding| finding["id"].as_str().unwrap()).collect()
}

/// The reasons for which checks of the only ScaledObject were not made, by id.
fn unseen(report: &Value) -> Vec<(String, String)> {
    let all = report["scaled_objects"][0]["not_looked_at"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    all.iter().map(|unseen| (text(&unseen["id"]), text(&unseen["why"]))).collect()
}
