//! The conformance client against scalers that are right, and against one broken scaler a rule.

mod broken;
mod fault;
mod right;
mod role;
mod scaler;
mod tls;

use std::net::SocketAddr;
use std::time::Duration;

use ghostscaler::conformance::{self, Args, Format, Outcome};
use serde_json::Value;

/// A run against `address` as the tests make it: short, and with little load.
fn args(address: SocketAddr) -> Args {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    Args {
        address: address.to_string(),
        namespace: "default".to_owned(),
        name: "llm".to_owned(),
        metadata: vec![pair("queue", "jobs"), pair("threshold", "5")],
        bad_metadata: Vec::new(),
        format: Format::Json,
        duration: Duration::from_millis(600),
        only: Vec::new(),
        load: 50,
        tls_ca: None,
        tls_cert: None,
        tls_key: None,
    }
}

/// Runs the client and returns its outcome with the JSON report.
async fn run(args: &Args) -> (Outcome, Value) {
    let mut out = Vec::new();
    // Far beyond the longest run: a hanging client fails its test instead of the whole suite.
    let limit = Duration::from_secs(300);
    let mut progress = std::io::sink();
    let outcome = tokio::time::timeout(limit, conformance::run(args, &mut out, &mut progress))
        .await
        .expect("a run is bounded")
        .expect("a run can be made");
    (outcome, serde_json::from_slice(&out).expect("the report is JSON"))
}

/// The entries with the given result, as id and detail.
fn entries<'a>(report: &'a Value, result: &str) -> Vec<(&'a str, &'a str)> {
    let text = |entry: &'a Value, key: &str| entry[key].as_str().expect("a text");
    report["checks"]
        .as_array()
        .expect("a list of checks")
        .iter()
        .filter(|entry| entry["result"] == result)
        .map(|entry| (text(entry, "id"), text(entry, "detail")))
        .collect()
}
