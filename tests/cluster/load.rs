//! Requests at a rate, by the load generator itself.
//!
//! Must not judge: its report says what was measured.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::engines::{MODEL, loadgen};
use crate::gateway::Gateway;
use crate::process::Process;

/// Prompt and answer of a request in tokens: 48 steps of 50 ms.
pub(crate) const LENGTHS: (u32, u32) = (64, 48);
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
        Load::at_rate(gateway, "constant", &rate.to_string(), FOR_EVER, dir)
    }

    /// Sends this many requests within one second.
    pub(crate) fn burst(gateway: &Gateway, requests: u32, dir: &Path) -> Load {
        Load::at_rate(gateway, "constant", &requests.to_string(), "1s", dir)
    }

    /// Sends at these rates by chance, the same chance each time.
    pub(crate) fn by_chance(gateway: &Gateway, rates: &str, duration: &str, dir: &Path) -> Load {
        Load::at_rate(gateway, "poisson", rates, duration, dir)
    }

    /// Sends the requests of a trace, a CSV file.
    pub(crate) fn of_trace(gateway: &Gateway, trace: &Path, dir: &Path) -> Load {
        let trace = trace.to_str().unwrap();
        Load::run(gateway, &["--trace", trace, "--trace-format", "csv"], dir)
    }

    fn at_rate(gateway: &Gateway, arrival: &str, rate: &str, duration: &str, dir: &Path) -> Load {
        let (input, output) = (LENGTHS.0.to_string(), LENGTHS.1.to_string());
        let lengths = ["--input-tokens", &input, "--output-tokens", &output];
        let when = ["--arrival", arrival, "--duration", duration, "--rate", rate];
        Load::run(gateway, &[&when[..], &lengths[..]].concat(), dir)
    }

    fn run(gateway: &Gateway, what: &[&str], dir: &Path) -> Load {
        let report = dir.join(format!("load-{}.json", gateway.accepted()));
        let mut command = Command::new(loadgen());
        command.args(["run", "--model", MODEL, "--threads", "1"]).args(what);
        command.args(["--format", "json", "--quiet", "--grace", "5m"]);
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

/// Requests at one engine, past the gateway, until dropped.
#[derive(Debug)]
pub(crate) struct Pinned {
    _running: JoinSet<()>,
}

impl Pinned {
    /// Sends so many at once, each to be answered with so many tokens.
    pub(crate) fn at(engine: SocketAddr, requests: usize, tokens: u32) -> Pinned {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let body = json!({"model": MODEL, "prompt": "hello", "stream": true,
            "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": true});
        let mut running = JoinSet::new();
        for _ in 0..requests {
            let request = client.post(format!("http://{engine}/v1/completions")).json(&body);
            running.spawn(async move {
                let mut answer = request.send().await.unwrap().error_for_status().unwrap();
                while answer.chunk().await.unwrap().is_some() {}
            });
        }
        Pinned { _running: running }
    }
}
