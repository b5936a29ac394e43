//! The scaler's own program, with the rights of its own ServiceAccount.
//!
//! Must be started as its manifests start it, but for addresses and directories.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::plane::InPod;
use crate::ports;
use crate::process::Process;

/// How long it may take to be ready.
const READY: Duration = Duration::from_secs(60);

/// A file system that only the program sees, for which no rights are needed where users may have
/// namespaces of their own.
const UNSHARED: [&str; 3] = ["--map-root-user", "--mount", "--"];
/// Puts the folder that comes first where a kubelet puts an account's files, and becomes the rest.
const MOUNT: &str = "set -e; mount -t tmpfs none /var/run; mkdir -p /var/run/secrets/kubernetes.io; \
    cp -r \"$1\" /var/run/secrets/kubernetes.io/serviceaccount; shift; exec \"$@\"";

/// Whether this machine lets a program have a file system of its own.
pub(crate) fn can_mount() -> bool {
    let mut trial = Command::new("unshare");
    trial.args(UNSHARED).args(["mount", "-t", "tmpfs", "none", "/var/run"]);
    trial.output().is_ok_and(|output| output.status.success())
}

/// What a scaler needs to be started, again or for the first time, at the same address.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) kubeconfig: PathBuf,
    /// Started as in a pod instead, without a kubeconfig.
    pub(crate) in_pod: Option<InPod>,
    pub(crate) namespace: String,
    /// It watches all namespaces, as without a flag, and not this one alone.
    pub(crate) watches_all: bool,
    pub(crate) dir: PathBuf,
    pub(crate) grpc: u16,
    pub(crate) http: u16,
    /// Further flags.
    pub(crate) flags: Vec<&'static str>,
    /// What it finds in its environment besides.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Which of several it is; `None` where it is the only one.
    pub(crate) replica: Option<Replica>,
}

/// What makes it one of several.
#[derive(Debug, Clone)]
pub(crate) struct Replica {
    pub(crate) name: String,
    /// Where it serves the others.
    pub(crate) pair: u16,
    /// Under which address they reach that.
    pub(crate) reached_at: IpAddr,
}

/// A running scaler.
#[derive(Debug)]
pub(crate) struct Scaler {
    process: Process,
    http: u16,
    client: reqwest::Client,
}

impl Setup {
    /// A setup with ports of its own.
    pub(crate) fn new(kubeconfig: PathBuf, namespace: &str, dir: &Path) -> Setup {
        let [grpc, http] = ports::free();
        let (namespace, dir) = (namespace.to_owned(), dir.to_owned());
        let setup = Setup {
            kubeconfig,
            namespace,
            watches_all: false,
            dir,
            grpc,
            http,
            flags: Vec::new(),
            environment: Vec::new(),
            replica: None,
            in_pod: None,
        };
        setup.configure("");
        setup
    }

    /// Replaces the configuration file.
    pub(crate) fn configure(&self, text: &str) {
        fs::write(self.dir.join("config.yaml"), text).unwrap();
    }

    /// The Lease of the replicas of this namespace: all scenarios share the scaler's own namespace.
    pub(crate) fn lease(&self) -> String {
        format!("ghostscaler-{}", self.namespace)
    }

    /// Where KEDA finds it.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.grpc)
    }

    /// `serve`, with its way to the API server.
    fn program(&self) -> Command {
        let program = env!("CARGO_BIN_EXE_ghostscaler");
        let Some(InPod { dir, api_port }) = &self.in_pod else {
            let mut command = Command::new(program);
            command.arg("serve").arg("--kubeconfig").arg(&self.kubeconfig);
            return command;
        };
        let mut command = Command::new("unshare");
        command.args(UNSHARED).args(["sh", "-c", MOUNT, "sh"]).arg(dir).args([program, "serve"]);
        command.env("KUBERNETES_SERVICE_HOST", "127.0.0.1").env_remove("KUBECONFIG");
        command.env("KUBERNETES_SERVICE_PORT", api_port.to_string());
        command
    }

    /// Starts it and waits until it is ready.
    pub(crate) async fn start(&self) -> Scaler {
        let mut command = self.program();
        if !self.watches_all {
            command.args(["--namespace", &self.namespace]);
        }
        command.args(["--log-format", "json"]).args(&self.flags);
        command.envs(self.environment.iter().map(|(key, value)| (key, value)));
        command.arg("--config").arg(self.dir.join("config.yaml"));
        match &self.replica {
            None => {
                command.arg("--state-dir").arg(self.dir.join("state"));
            }
            Some(replica) => {
                command.args(["--pod-name", &replica.name, "--pod-namespace", "ghostscaler"]);
                command.args(["--lease-name", &self.lease()]);
                command.arg("--pair-address").arg(format!("127.0.0.1:{}", replica.pair));
                command.arg("--pod-ip").arg(replica.reached_at.to_string());
                // As the manifests have it.
                command.args(["--drain-delay", "5s"]);
            }
        }
        command.arg("--decision-log").arg(self.dir.join("decisions.jsonl"));
        command.arg("--grpc-address").arg(self.address());
        command.arg("--http-address").arg(format!("127.0.0.1:{}", self.http));
        let process = Process::start(&mut command, &self.dir.join("scaler.log"));
        let client =
            reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build().unwrap();
        let scaler = Scaler { process, http: self.http, client };
        let end = Instant::now() + READY;
        while scaler.get("/readyz").await.is_none() {
            assert!(
                Instant::now() < end,
                "not ready, see {}",
                self.dir.join("scaler.log").display()
            );
            sleep(Duration::from_millis(100)).await;
        }
        scaler
    }
}

impl Scaler {
    /// The snapshot of a workload, where there is one.
    pub(crate) async fn workload(&self, namespace: &str, name: &str) -> Option<Value> {
        let body = self.get(&format!("/api/v1/workloads/{namespace}/{name}")).await?;
        serde_json::from_str(&body).ok()
    }

    /// Whether it says that it can answer.
    pub(crate) async fn is_ready(&self) -> bool {
        self.get("/readyz").await.is_some()
    }

    /// Whether it decides, as its metrics say.
    pub(crate) async fn leads(&self) -> bool {
        let page = self.get("/metrics").await.unwrap_or_default();
        page.lines().any(|line| line == "ghostscaler_leading 1")
    }

    /// Sends it a signal such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Kills it as a crash does.
    pub(crate) fn kill(self) {
        drop(self.process);
    }

    /// Ends it as Kubernetes does.
    pub(crate) async fn stop(self) {
        self.process.end("TERM").await;
    }

    async fn get(&self, path: &str) -> Option<String> {
        let url = format!("http://127.0.0.1:{}{path}", self.http);
        let answer = self.client.get(url).send().await.ok()?;
        answer.error_for_status().ok()?.text().await.ok()
    }
}
