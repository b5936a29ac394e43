//! The program's processes: `serve` while it runs, and subcommands that end by themselves.
//!
//! Must not outlive a test, and must not hand it the environment of whoever runs it.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::keda::Keda;
use crate::support::eventually;

/// Long enough for a machine under load, short enough to see a hang.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The program with these arguments, away from the caller's environment.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ghostscaler"));
    command.args(args).stdin(Stdio::null()).env_clear();
    command
}

/// A subcommand that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Runs a subcommand to its end.
pub(super) async fn run(args: &[&str]) -> Ended {
    let dir = tempfile::tempdir().unwrap();
    let (out, err) = (dir.path().join("out"), dir.path().join("err"));
    let mut command = command(args);
    command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
    let mut child = Owned(command.spawn().unwrap());
    let code = child.ended(2 * PATIENCE).await;
    let read = |path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
    Ended { code, stdout: read(out), stderr: read(err) }
}

/// A process that is killed with its value.
#[derive(Debug)]
struct Owned(Child);

impl Owned {
    /// Waits for its end and gives its exit code.
    async fn ended(&mut self, limit: Duration) -> Option<i32> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "the process has not ended within {limit:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A directory with a configuration file; gone with its value.
#[derive(Debug)]
pub(super) struct Config {
    dir: TempDir,
}

impl Config {
    pub(super) fn new(text: &str) -> Config {
        let config = Config { dir: tempfile::tempdir().unwrap() };
        config.replace(text);
        config
    }

    /// Puts another text in the file's place, in one go as a mounted ConfigMap does.
    pub(super) fn replace(&self, text: &str) {
        let new = self.file("config.yaml.new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.path()).unwrap();
    }

    pub(super) fn path(&self) -> PathBuf {
        self.file("config.yaml")
    }

    /// A path beside the configuration.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// A running `serve`; killed with its value.
#[derive(Debug)]
pub(super) struct Scaler {
    child: Owned,
    pub(super) grpc: SocketAddr,
    pub(super) http: SocketAddr,
    log: Log,
    client: reqwest::Client,
}

type Log = Arc<Mutex<Vec<Value>>>;

impl Scaler {
    /// Starts it on free ports and waits until it listens.
    pub(super) async fn start(config: &Path, flags: &[&str]) -> Scaler {
        Scaler::spawn(command(&Scaler::args(config, flags))).await
    }

    /// The same with this many file descriptors.
    pub(super) async fn start_within(limit: u32, config: &Path, flags: &[&str]) -> Scaler {
        let script = format!("ulimit -n {limit} && exec \"$@\"");
        let mut limited = Command::new("/bin/sh");
        limited.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_ghostscaler")]);
        limited.args(Scaler::args(config, flags)).stdin(Stdio::null()).env_clear();
        Scaler::spawn(limited).await
    }

    fn args<'a>(config: &'a Path, flags: &[&'a str]) -> Vec<&'a str> {
        let mut args = vec!["serve", "--config", config.to_str().unwrap()];
        args.extend(["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]);
        args.extend(["--log-format", "json"]);
        args.extend(flags);
        args
    }

    async fn spawn(mut command: Command) -> Scaler {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (stderr, log) = (child.stderr.take().unwrap(), Log::default());
        let child = Owned(child);
        let (serving, listens) = oneshot::channel();
        let lines = Arc::clone(&log);
        std::thread::spawn(move || follow(stderr, &lines, serving));
        let listens = timeout(PATIENCE, listens).await.expect("it starts within a minute");
        let [grpc, http] = listens.unwrap_or_else(|_ended| panic!("it did not start: {log:?}"));
        rustls::crypto::ring::default_provider().install_default().ok();
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Scaler { child, grpc, http, log, client }
    }

    pub(super) async fn keda(&self) -> Keda {
        Keda::connect(self.grpc).await
    }

    /// Status and body of a GET.
    pub(super) async fn get(&self, path: &str) -> (u16, String) {
        let answer = self.client.get(format!("http://{}{path}", self.http)).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// Status, Retry-After in seconds and body of a POST.
    pub(super) async fn post(&self, path: &str) -> (u16, Option<u64>, Value) {
        let answer = self.client.post(format!("http://{}{path}", self.http)).send().await.unwrap();
        let retry_after = answer.headers().get("retry-after");
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        (answer.status().as_u16(), retry_after, answer.json().await.unwrap())
    }

    /// The snapshot of a workload, `namespace/name`.
    pub(super) async fn workload(&self, name: &str) -> Value {
        let (status, body) = self.get(&format!("/api/v1/workloads/{name}")).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The workload's snapshot once `is` holds of it.
    pub(super) async fn workload_when(
        &self,
        name: &str,
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        let end = Instant::now() + 2 * PATIENCE;
        loop {
            let snapshot = self.workload(name).await;
            if is(&snapshot) {
                return snapshot;
            }
            assert!(Instant::now() < end, "{name} is not {what}: {snapshot:#}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// The workload's snapshot once all its inputs are whole.
    pub(super) async fn healthy(&self, name: &str) -> Value {
        self.workload_when(name, "healthy", |snapshot| snapshot["health"] == "ok").await
    }

    /// A value of its own `/metrics`, by the series as it is written.
    pub(super) async fn metric(&self, series: &str) -> Option<f64> {
        let (status, page) = self.get("/metrics").await;
        assert_eq!(status, 200, "{page}");
        page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    /// Log lines with this message, once there are so many: a line is read a moment after what it tells of.
    pub(super) async fn logged(&self, message: &str, at_least: usize) -> Vec<Value> {
        eventually(message, async || {
            let log = self.log.lock().unwrap();
            let lines = log.iter().filter(|line| line["message"] == message);
            let lines: Vec<Value> = lines.cloned().collect();
            (lines.len() >= at_least).then_some(lines)
        })
        .await
    }

    pub(super) fn signal(&self, name: &str) {
        let pid = self.child.0.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for its end and gives its exit code.
    pub(super) async fn ended(&mut self, limit: Duration) -> Option<i32> {
        self.child.ended(limit).await
    }

    /// Ends it as Kubernetes does; it must end well.
    pub(super) async fn stop(mut self) {
        self.signal("TERM");
        assert_eq!(self.ended(PATIENCE).await, Some(0), "{:?}", self.log);
    }

    /// Seconds of a processor that it has used so far.
    pub(super) fn cpu_s(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.0.id())).unwrap();
        let after_name = stat.rsplit_once(") ").unwrap().1;
        // User and system time, in hundredths of a second, are the twelfth and thirteenth there.
        let ticks =
            after_name.split(' ').skip(11).take(2).map(|field| field.parse::<f64>().unwrap());
        ticks.sum::<f64>() / 100.0
    }

    /// Processor time used so far; the kernel counts in hundredths of a second.
    pub(super) fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.0.id())).unwrap();
        // The name in parentheses may hold anything.
        let fields = stat.rsplit(')').next().unwrap().split_whitespace();
        let ticks: Vec<u64> = fields.skip(11).take(2).map(|ticks| ticks.parse().unwrap()).collect();
        Duration::from_millis(ticks.iter().sum::<u64>() * 10)
    }

    /// Anonymous resident memory in KiB.
    pub(super) fn rss_anon_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

/// Keeps the log and tells the addresses of the line that has them.
fn follow(stderr: ChildStderr, log: &Log, serving: oneshot::Sender<[SocketAddr; 2]>) {
    let mut serving = Some(serving);
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
        let address = |name: &str| line[name].as_str()?.parse().ok();
        if line["message"] == "serving"
            && let (Some(grpc), Some(http)) = (address("grpc"), address("http"))
            && let Some(serving) = serving.take()
        {
            serving.send([grpc, http]).ok();
        }
        log.lock().unwrap().push(line);
    }
}
