//! Two scalers behind a TCP balancer that stands for the Service, and somebody who asks through it.
//!
//! The balancer knows what a Service knows: which of them is ready. It cuts no connection.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ghostscaler::proto::external_scaler_client::ExternalScalerClient;
use ghostscaler::proto::{GetMetricsRequest, ScaledObjectRef};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;

use crate::objects::NAME;
use crate::ports;
use crate::process::Process;
use crate::scaler::{Replica, Scaler, Setup};
use crate::scene::Scene;

/// How often is asked.
const INTERVAL: Duration = Duration::from_millis(100);
/// When an answer counts as none.
const LATE: Duration = Duration::from_secs(1);

/// Two replicas, each running or not.
pub(crate) struct Pair {
    setups: [Setup; 2],
    running: [Option<Scaler>; 2],
    namespace: String,
    port: u16,
    _balancer: Process,
}

impl Pair {
    /// Starts both; `None`, with a word of it, where no balancer is installed.
    pub(crate) async fn start(scene: &mut Scene) -> Option<Pair> {
        let found = Command::new("haproxy").arg("-v").output();
        if !found.is_ok_and(|answer| answer.status.success()) {
            let skipped = "skipped: no `haproxy` on the path (tests/setup.sh installs it)";
            scene.timeline.say(skipped);
            println!("{skipped}");
            return None;
        }
        let setups = ["one", "two"].map(|name| {
            let dir = scene.dir.join(name);
            fs::create_dir(&dir).unwrap();
            let setup = Setup::new(scene.setup.kubeconfig.clone(), &scene.namespace, &dir);
            let [pair] = ports::free();
            Setup {
                replica: Some(Replica { name: format!("{}-{name}", scene.namespace), pair }),
                ..setup
            }
        });
        let [port] = ports::free();
        let balancer = balance(&scene.dir, port, &setups);
        let namespace = scene.namespace.clone();
        let mut pair = Pair { setups, running: [None, None], namespace, port, _balancer: balancer };
        for index in [0, 1] {
            pair.start_again(index).await;
        }
        scene.timeline.say("both scalers ready");
        Some(pair)
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
    pub(crate) fn ask(&self, metadata: std::collections::BTreeMap<String, String>) -> Asker {
        let answers = Arc::new(Mutex::new(Answers::default()));
        let object = ScaledObjectRef {
            name: NAME.to_owned(),
            namespace: self.namespace.clone(),
            scaler_metadata: metadata.into_iter().collect(),
        };
        let asking = ask(format!("http://{}", self.address()), object, Arc::clone(&answers));
        Asker { answers, _task: AbortOnDropHandle::new(tokio::spawn(asking)) }
    }
}

fn balance(dir: &Path, port: u16, setups: &[Setup; 2]) -> Process {
    let servers: String = setups
        .iter()
        .enumerate()
        .map(|(index, Setup { grpc, http, .. })| {
            format!("  server s{index} 127.0.0.1:{grpc} check port {http} inter 1s fall 2 rise 1\n")
        })
        .collect();
    let text = format!(
        "global\n  maxconn 1000\n\ndefaults\n  mode tcp\n  timeout connect 1s\n  timeout client 1h\n  \
         timeout server 1h\n\nfrontend service\n  bind 127.0.0.1:{port}\n  default_backend pods\n\n\
         backend pods\n  balance roundrobin\n  option httpchk GET /readyz\n{servers}"
    );
    let path = dir.join("haproxy.cfg");
    fs::write(&path, text).unwrap();
    let mut command = Command::new("haproxy");
    command.arg("-db").arg("-f").arg(&path);
    Process::start(&mut command, &dir.join("haproxy.log"))
}

/// What was answered.
#[derive(Debug, Default)]
struct Answers {
    /// Each count that was answered, where it differs from the one before.
    counts: Vec<i64>,
    last: Option<Instant>,
    longest_gap: Duration,
    n_answers: usize,
}

/// Somebody who asks; ends when dropped.
pub(crate) struct Asker {
    answers: Arc<Mutex<Answers>>,
    _task: AbortOnDropHandle<()>,
}

impl Asker {
    /// The counts so far, and the longest time between two answers; both begin anew.
    pub(crate) fn take(&self) -> (Vec<i64>, Duration) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let open = answers.last.map_or(Duration::ZERO, |last| last.elapsed());
        let gap = answers.longest_gap.max(open);
        let last = answers.counts.last().copied();
        let counts = std::mem::replace(&mut answers.counts, last.into_iter().collect());
        answers.longest_gap = Duration::ZERO;
        (counts, gap)
    }
}

/// Asks as KEDA does: on one connection, and on a new one after an error.
async fn ask(url: String, object: ScaledObjectRef, answers: Arc<Mutex<Answers>>) {
    let mut client: Option<ExternalScalerClient<Channel>> = None;
    loop {
        if client.is_none() {
            let connect = ExternalScalerClient::connect(url.clone());
            client = timeout(LATE, connect).await.ok().and_then(Result::ok);
        }
        let request = GetMetricsRequest {
            scaled_object_ref: Some(object.clone()),
            metric_name: "wanted-replicas".to_owned(),
        };
        let answer = match &mut client {
            Some(client) => timeout(LATE, client.get_metrics(request)).await.ok(),
            None => None,
        };
        match answer {
            Some(Ok(answer)) => {
                let count = answer.into_inner().metric_values[0].metric_value;
                note(&mut answers.lock().unwrap_or_else(PoisonError::into_inner), count);
            }
            Some(Err(_)) | None => client = None,
        }
        sleep(INTERVAL).await;
    }
}

fn note(answers: &mut Answers, count: i64) {
    let gap = answers.last.map_or(Duration::ZERO, |last| last.elapsed());
    answers.last = Some(Instant::now());
    answers.longest_gap = answers.longest_gap.max(gap);
    answers.n_answers += 1;
    if answers.counts.last() != Some(&count) {
        answers.counts.push(count);
    }
}
