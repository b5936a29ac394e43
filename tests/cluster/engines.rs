//! A simulated engine on the address of each pod that is Ready, and the gateway told of it. Of a group
//! the leader has one, which speaks for its workers.
//!
//! Must not decide when a pod is Ready: that is the stand-in kubelet's.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::gateway::Gateway;
use crate::operator::INDEX;
use crate::process::Process;

/// Where engines listen.
pub(crate) const PORT: u16 = 8000;
/// What the engines serve.
pub(crate) const MODEL: &str = "test-model";
/// What they can do.
pub(crate) const PROFILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/engine.yaml");
/// The file that names the engines to a Prometheus.
pub(crate) const TARGETS: &str = "targets.json";
/// How often the pods are looked at.
const INTERVAL: Duration = Duration::from_millis(300);
/// How long the engines may take to follow the pods.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);

/// The engines of a namespace; they end with the value.
#[derive(Debug)]
pub(crate) struct Engines {
    running: Arc<Mutex<Running>>,
    watcher: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Running {
    serving: BTreeMap<String, (SocketAddr, Process)>,
    /// Told to end, and still answering what they have.
    leaving: Vec<Process>,
}

impl Running {
    /// Starts and ends engines until those of the ready pods are left.
    fn follow(&mut self, ready: BTreeMap<String, SocketAddr>, dir: &Path) {
        let all = std::mem::take(&mut self.serving).into_iter();
        let (stay, gone) = all.partition(|(name, _)| ready.contains_key(name));
        self.serving = stay;
        for (_, process) in BTreeMap::into_values(gone) {
            process.signal("TERM");
            self.leaving.push(process);
        }
        self.leaving.retain_mut(Process::runs);
        for (name, address) in ready {
            let log = dir.join(format!("engine-{name}.log"));
            self.serving.entry(name).or_insert_with(|| (address, engine(address, &log)));
        }
    }
}

impl Engines {
    /// Starts and ends engines as the pods of the namespace turn Ready and go, until dropped.
    pub(crate) fn follow(
        client: &kube::Client,
        namespace: &str,
        gateway: Gateway,
        dir: &Path,
    ) -> Engines {
        let running = Arc::<Mutex<Running>>::default();
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let (shared, dir) = (Arc::clone(&running), dir.to_owned());
        let namespace = namespace.to_owned();
        let watcher = tokio::spawn(async move {
            loop {
                // An API server that is away changes nothing about the engines.
                if let Ok(list) = pods.list(&ListParams::default()).await {
                    let ready = ready(list.items);
                    name_targets(&ready, &namespace, &dir.join(TARGETS));
                    // No new requests first, as a Service does it.
                    gateway.set_backends(ready.values().copied().collect());
                    lock(&shared).follow(ready, &dir);
                }
                sleep(INTERVAL).await;
            }
        });
        Engines { running, watcher }
    }

    /// Where so many engines are, by the names of their pods: an engine starts a moment after its pod is
    /// Ready, and ends a moment after it is gone.
    pub(crate) async fn addresses(&self, count: u32) -> BTreeMap<String, SocketAddr> {
        let end = Instant::now() + SETTLED_WITHIN;
        loop {
            let addresses: BTreeMap<String, SocketAddr> = {
                let running = lock(&self.running);
                let serving = running.serving.iter();
                serving.map(|(pod, (address, _))| (pod.clone(), *address)).collect()
            };
            if addresses.len() == count as usize {
                return addresses;
            }
            assert!(Instant::now() < end, "{count} engines; now {addresses:?}");
            sleep(INTERVAL).await;
        }
    }

    /// Sends a signal such as `STOP` to every engine.
    pub(crate) fn signal(&self, name: &str) {
        lock(&self.running).serving.values().for_each(|(_, process)| process.signal(name));
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        self.watcher.abort();
        *lock(&self.running) = Running::default();
    }
}

fn lock(running: &Mutex<Running>) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ready(pods: Vec<Pod>) -> BTreeMap<String, SocketAddr> {
    let of_pod = |pod: Pod| {
        let status = pod.status?;
        let is_ready = status
            .conditions?
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let ip = status.pod_ip?.parse().ok()?;
        let labels = pod.metadata.labels.unwrap_or_default();
        let is_worker = labels.get(INDEX).is_some_and(|index| index != "0");
        let stays = is_ready && !is_worker && pod.metadata.deletion_timestamp.is_none();
        stays.then_some((pod.metadata.name?, SocketAddr::new(ip, PORT)))
    };
    pods.into_iter().filter_map(of_pod).collect()
}

/// As Kubernetes's service discovery labels them, which Debian's Prometheus is built without.
fn name_targets(ready: &BTreeMap<String, SocketAddr>, namespace: &str, path: &Path) {
    let of_pod = |(pod, address): (&String, &SocketAddr)| json!({"targets": [address], "labels": {"namespace": namespace, "pod": pod}});
    let text = ready.iter().map(of_pod).collect::<Value>().to_string();
    if fs::read_to_string(path).is_ok_and(|known| known == text) {
        return;
    }
    // Never half a file: it is read as soon as it changes.
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, path).unwrap();
}

fn engine(address: SocketAddr, log: &Path) -> Process {
    let mut command = Command::new(loadgen());
    command.args(["engine", "--profile", PROFILE, "--model", MODEL]);
    command.arg("--listen").arg(address.to_string());
    Process::start(&mut command, log)
}

/// The load generator's program, which `cargo build --workspace` puts beside the scaler's.
pub(crate) fn loadgen() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_ghostscaler")).with_file_name("loadgen");
    assert!(path.exists(), "{} is not built: cargo build --workspace --bins", path.display());
    path
}
