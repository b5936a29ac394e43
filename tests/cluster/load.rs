//! Requests at a rate, by the load generator itself.
//!
//! Must not judge: its report says what was measured.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::engines::{MODEL, loadgen};
use crate::gateway::Gateway;
use crate::process::Process;

/// Prompt and answer of a request: 48 steps of 50 ms.
const SHAPE: [&str; 4] = ["--input-tokens", "64", "--output-tokens", "48"];
/// Longer than any scenario; each is ended by its scenario.
const FOR_EVER: &str = "1h";

/// Running load.
#[derive(Debug)]
pub(crate) struct Load {
    process: Process,
    report: PathBuf,
}

impl Load {
    /// Sends this many requests a second through the gateway, evenly, until ended.
    pub(crate) fn start(gateway: &Gateway, rate: f64, dir: &Path) -> Load {
        Load::run(gateway, "constant", &rate.to_string(), FOR_EVER, dir)
    }

    /// Sends this many requests within one second.
    pub(crate) fn burst(gateway: &Gateway, requests: u32, dir: &Path) -> Load {
        Load::run(gateway, "constant", &requests.to_string(), "1s", dir)
    }

    /// Sends at these rates by chance, the same chance each time.
    pub(crate) fn by_chance(gateway: &Gateway, rates: &str, duration: &str, dir: &Path) -> Load {
        Load::run(gateway, "poisson", rates, duration, dir)
    }

    fn run(gateway: &Gateway, arrival: &str, rate: &str, duration: &str, dir: &Path) -> Load {
        let report = dir.join(format!("load-{}.json", gateway.accepted()));
        let mut command = Command::new(loadgen());
        command.args(["run", "--model", MODEL, "--arrival", arrival, "--threads", "1"]);
        command.args(["--format", "json", "--quiet", "--grace", "5m"]);
        command.args(["--duration", duration, "--rate", rate]).args(SHAPE);
        command.arg("--url").arg(format!("http://{}", gateway.address));
        let process = Process::start_with_output(&mut command, &report, &dir.join("load.log"));
        Load { process, report }
    }

    /// Ends it and gives its report.
    pub(crate) async fn end(self) -> Value {
        self.process.end("INT").await;
        let text = fs::read_to_string(&self.report).unwrap();
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("the load's report: {error}: {text}"))
    }

    /// Whether it still sends or waits for answers.
    pub(crate) fn runs(&mut self) -> bool {
        self.process.runs()
    }
}
