//! Two scalers behind a TCP balancer that stands for the Service, each on ways that can be cut: from the
//! balancer, to the API server, and from the other.
//!
//! The balancer knows what a Service knows: which of them is ready. It cuts no connection.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ghostscaler::proto::external_scaler_client::ExternalScalerClient;
use ghostscaler::proto::{IsActiveResponse, ScaledObjectRef};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Probe;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tonic::Streaming;

use crate::api_front::ApiFront;
use crate::asker::{Asker, KedaWatch, Twins};
use crate::objects::NAME;
use crate::plane::kubeconfig_of_front;
use crate::ports;
use crate::process::Process;
use crate::relay::{Relay, Way};
use crate::scaler::{Replica, Scaler, Setup};
use crate::scene::Scene;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(100);
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Where a replica says that the other reaches it: the relay in front of it.
const RELAYED: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Two replicas, each running or not.
pub(crate) struct Pair {
    pub(crate) setups: [Setup; 2],
    running: [Option<Scaler>; 2],
    /// What stands between each and the others.
    pub(crate) ways: [Ways; 2],
    pub(crate) api: ApiFront,
    namespace: String,
    port: u16,
    balancer: Option<Process>,
}

/// The ways to and from one replica.
pub(crate) struct Ways {
    /// From the balancer.
    pub(crate) keda: Relay,
    /// To the API server.
    pub(crate) api: Relay,
    /// From the other.
    pub(crate) pair: Relay,
}

impl Pair {
    /// Both, not started yet; `None`, with a word of it, where no balancer is installed.
    pub(crate) async fn prepare(scene: &mut Scene) -> Option<Pair> {
        let found = Command::new("haproxy").arg("-v").output();
        if !found.is_ok_and(|answer| answer.status.success()) {
            let skipped = "skipped: no `haproxy` on the path (tests/setup.sh installs it)";
            scene.timeline.say(skipped);
            println!("{skipped}");
            return None;
        }
        let api = ApiFront::start(&scene.setup.kubeconfig).await;
        let (one, two) = (placed(scene, "one", &api).await, placed(scene, "two", &api).await);
        let ((one, its, one_port), (two, others, two_port)) = (one, two);
        let [port] = ports::free();
        let balanced = [(one_port, one.http), (two_port, two.http)];
        let balancer = Some(balance(&scene.dir, port, balanced));
        let namespace = scene.namespace.clone();
        let (setups, ways) = ([one, two], [its, others]);
        Some(Pair { setups, running: [None, None], ways, api, namespace, port, balancer })
    }

    /// Starts both at once and waits until they are ready.
    pub(crate) async fn start_both(&mut self) {
        let [one, two] = &self.setups;
        let (one, two) = tokio::join!(one.start(), two.start());
        self.running = [Some(one), Some(two)];
    }

    /// Where KEDA finds them.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts one of them and waits until it is ready.
    pub(crate) async fn start_again(&mut self, index: usize) {
        self.running[index] = Some(self.setups[index].start().await);
    }

    /// One of them.
    pub(crate) fn scaler(&self, index: usize) -> &Scaler {
        self.running[index].as_ref().unwrap()
    }

    /// Kills one as a crash does.
    pub(crate) fn kill(&mut self, index: usize) {
        self.running[index].take().unwrap().kill();
    }

    /// Ends one as Kubernetes does.
    pub(crate) async fn stop(&mut self, index: usize) {
        self.running[index].take().unwrap().stop().await;
    }

    /// Which of them decides; waits for it.
    pub(crate) async fn leader(&self) -> usize {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            for (index, scaler) in self.running.iter().enumerate() {
                if let Some(scaler) = scaler
                    && scaler.leads().await
                {
                    return index;
                }
            }
            assert!(Instant::now() < end, "none of the scalers leads within a minute");
            sleep(INTERVAL).await;
        }
    }

    /// The Lease by which they agree.
    pub(crate) fn lease(&self) -> String {
        self.setups[0].lease()
    }

    /// What one of them would answer: the count, and the decision's version.
    pub(crate) async fn answer_of(&self, index: usize) -> Option<(Value, u64)> {
        let snapshot = self.scaler(index).workload(&self.namespace, NAME).await?;
        Some((snapshot["answer"].clone(), snapshot["version"].as_u64()?))
    }

    /// The balancer's answers to somebody who asks ten times a second.
    pub(crate) fn ask(&self, metadata: BTreeMap<String, String>) -> Asker {
        Asker::start(format!("http://{}", self.address()), self.object(metadata))
    }

    /// Both asked in the same instant, past the balancer and whatever is cut, ten times a second.
    pub(crate) fn compare(&self, metadata: BTreeMap<String, String>) -> Twins {
        let urls = [0, 1].map(|index: usize| format!("http://{}", self.setups[index].address()));
        Twins::start(urls, self.object(metadata))
    }

    /// How long KEDA is without an answer.
    pub(crate) fn watch_keda(&self) -> KedaWatch {
        KedaWatch::start([0, 1].map(|index: usize| self.setups[index].http))
    }

    /// A trigger of these scalers, as KEDA names it.
    pub(crate) fn object(&self, metadata: BTreeMap<String, String>) -> ScaledObjectRef {
        ScaledObjectRef {
            name: NAME.to_owned(),
            namespace: self.namespace.clone(),
            scaler_metadata: metadata.into_iter().collect(),
        }
    }

    /// A push stream at one of them, past the balancer.
    pub(crate) async fn stream_at(&self, index: usize) -> Streaming<IsActiveResponse> {
        let url = format!("http://{}", self.setups[index].address());
        let mut client = ExternalScalerClient::connect(url).await.unwrap();
        client.stream_is_active(self.object(BTreeMap::new())).await.unwrap().into_inner()
    }

    /// Plays the liveness probe of the manifests against one of them until it has failed as often as it
    /// may; for how long that was.
    pub(crate) async fn probe_until_it_fails(&self, index: usize) -> Duration {
        let Probe { period_seconds, timeout_seconds, failure_threshold, .. } = probe();
        let s = |seconds: Option<i32>| Duration::from_secs(seconds.unwrap().try_into().unwrap());
        let url = format!("http://127.0.0.1:{}/livez", self.setups[index].http);
        let client = reqwest::Client::builder().no_proxy().timeout(s(timeout_seconds));
        let client = client.build().unwrap();
        let (started_at, mut n_failed) = (Instant::now(), 0);
        let mut due = tokio::time::interval(s(period_seconds));
        while n_failed < failure_threshold.unwrap() {
            due.tick().await;
            let answer = client.get(&url).send().await;
            let is_alive = answer.is_ok_and(|answer| answer.status().is_success());
            n_failed = if is_alive { 0 } else { n_failed + 1 };
        }
        started_at.elapsed()
    }

    /// Ends one as the kubelet does when its probe has failed: it is asked to, and killed after its grace.
    pub(crate) async fn end_as_kubelet(&mut self, index: usize) {
        let scaler = self.running[index].take().unwrap();
        scaler.signal("TERM");
        let grace = probe().termination_grace_period_seconds.unwrap();
        sleep(Duration::from_secs(grace.try_into().unwrap())).await;
        scaler.kill();
    }

    /// Cuts the ways between both, or opens them.
    pub(crate) fn part(&self, way: Way) {
        self.ways.iter().for_each(|ways| ways.pair.set(way));
    }

    /// Ends the balancer's connections and those to it, as when its process is replaced.
    pub(crate) fn restart_balancer(&mut self, dir: &Path) {
        self.balancer = None;
        self.balancer = Some(start_balancer(dir));
    }
}

/// A replica's setup behind its relays, and the port at which the balancer finds it.
async fn placed(scene: &Scene, name: &str, api: &ApiFront) -> (Setup, Ways, u16) {
    let dir = scene.dir.join(name);
    fs::create_dir(&dir).unwrap();
    let [api_port, keda_port, pair] = ports::free();
    let kubeconfig = dir.join("kubeconfig");
    fs::write(&kubeconfig, kubeconfig_of_front(api_port)).unwrap();
    let setup = Setup::new(kubeconfig, &scene.namespace, &dir);
    let name = format!("{}-{name}", scene.namespace);
    let at = |port| SocketAddr::new(HOST, port);
    let ways = Ways {
        keda: Relay::start(at(keda_port), at(setup.grpc)).await,
        api: Relay::start(at(api_port), api.address).await,
        pair: Relay::start(SocketAddr::new(RELAYED, pair), at(pair)).await,
    };
    let replica = Some(Replica { name, pair, reached_at: RELAYED });
    (Setup { replica, ..setup }, ways, keda_port)
}

fn balance(dir: &Path, port: u16, servers: [(u16, u16); 2]) -> Process {
    let servers: String = servers
        .iter()
        .enumerate()
        .map(|(index, (grpc, http))| {
            format!("  server s{index} 127.0.0.1:{grpc} check port {http} inter 1s fall 2 rise 1\n")
        })
        .collect();
    let text = format!(
        "global\n  maxconn 2000\n\ndefaults\n  mode tcp\n  timeout connect 1s\n  timeout client 1h\n  \
         timeout server 1h\n\nfrontend service\n  bind 127.0.0.1:{port}\n  default_backend pods\n\n\
         backend pods\n  balance roundrobin\n  option httpchk GET /readyz\n{servers}"
    );
    fs::write(dir.join("haproxy.cfg"), text).unwrap();
    start_balancer(dir)
}

fn start_balancer(dir: &Path) -> Process {
    let mut command = Command::new("haproxy");
    command.arg("-db").arg("-f").arg(dir.join("haproxy.cfg"));
    Process::start(&mut command, &dir.join("haproxy.log"))
}

/// The liveness probe of the manifests.
fn probe() -> Probe {
    let text = fs::read_to_string("manifests/base/deployment.yaml").unwrap();
    let deployment: Deployment = serde_saphyr::from_str(&text).unwrap();
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    let mut probe = pod.containers[0].liveness_probe.clone().unwrap();
    probe.termination_grace_period_seconds =
        probe.termination_grace_period_seconds.or(pod.termination_grace_period_seconds);
    probe
}
