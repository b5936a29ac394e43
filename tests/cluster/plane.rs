//! The control plane: etcd, API server, controller manager, scheduler, KWOK for the kubelets, KEDA's
//! operator and metrics adapter; each a real program on a port of loopback.
//!
//! Must know nothing of the scaler but the rights that its manifests give it.

mod audit;
mod nodes;
mod parts;
mod pki;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use tokio::time::{Instant, sleep};

use crate::kubectl::Kubectl;
use crate::process::Process;

pub(crate) use audit::{Asked, Calls};
pub(crate) use nodes::SMALL_POOL_GPUS;
pub(crate) use parts::Part;
pub(crate) use pki::{authority, certificate, kubeconfig_of_front};

/// How long a part may take to answer after its start, on a machine under load.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where the programs are, said by `run.sh`.
const BIN: &str = "GHOSTSCALER_CLUSTER_BIN";

/// The scaler's own namespace.
const NAMESPACE: &str = "ghostscaler";

/// How a pod finds the API server.
#[derive(Debug, Clone)]
pub(crate) struct InPod {
    /// Token, authority and namespace.
    pub(crate) dir: PathBuf,
    pub(crate) api_port: u16,
}

/// A running control plane; it ends with its value.
#[derive(Debug)]
pub(crate) struct Plane {
    bin: PathBuf,
    dir: PathBuf,
    ports: parts::Ports,
    running: Mutex<BTreeMap<Part, Process>>,
    fault: tokio::sync::Mutex<()>,
}

impl Plane {
    /// Starts everything and waits until KEDA answers for the external metrics.
    ///
    /// An error is what is missing on this machine.
    pub(crate) fn start() -> Result<Plane, String> {
        let plane = Plane::prepare("cluster")?;
        on_a_runtime(plane.bring_up());
        Ok(plane)
    }

    /// Starts etcd and the API server alone, with what they need to take every object.
    pub(crate) fn start_store() -> Result<Plane, String> {
        let plane = Plane::prepare("fleet")?;
        on_a_runtime(async {
            plane.bring_up_store().await;
            plane.give_rights();
        });
        Ok(plane)
    }

    /// Certificates and ports, in a folder that is emptied first.
    fn prepare(folder: &str) -> Result<Plane, String> {
        let bin = env::var_os(BIN)
            .ok_or_else(|| format!("${BIN} is not set: use tests/cluster/run.sh"))?;
        let bin = fs::canonicalize(&bin).map_err(|error| format!("${BIN}: {error}"))?;
        let missing = Part::ALL.iter().map(|part| part.program()).chain(["kubectl"]);
        if let Some(program) = missing.into_iter().find(|program| !bin.join(program).exists()) {
            return Err(format!("{} has no {program}", bin.display()));
        }
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
        if dir.exists() {
            fs::remove_dir_all(&dir).unwrap();
        }
        fs::create_dir_all(&dir).unwrap();
        let ports = parts::Ports::choose();
        pki::make(&dir, ports.api)?;
        let (running, fault) = (Mutex::default(), tokio::sync::Mutex::default());
        let plane = Plane { bin, dir, ports, running, fault };
        println!("cluster: logs in {}", plane.dir().display());
        Ok(plane)
    }

    /// etcd and the API server with the foreign kinds that are used here.
    async fn bring_up_store(&self) {
        self.start_part(Part::Etcd);
        self.start_part(Part::ApiServer);
        self.until_served("/readyz").await;
        let crds = self.bin.join("crds");
        let own = Path::new("tests/cluster/crds");
        for dir in [crds.as_path(), own] {
            // Too large for the annotation of a plain apply.
            self.kubectl().run(&["apply", "--server-side", "-f", dir.to_str().unwrap()]);
        }
    }

    /// The scaler's own account and role, as they are installed.
    fn give_rights(&self) {
        for file in ["namespace", "serviceaccount", "rbac"] {
            self.kubectl().run(&["apply", "-f", &format!("manifests/base/{file}.yaml")]);
        }
    }

    async fn bring_up(&self) {
        self.bring_up_store().await;
        let client = self.client().await;
        nodes::create(&client).await;
        let others = [Part::ControllerManager, Part::Scheduler, Part::Kwok];
        others.into_iter().for_each(|part| self.start_part(part));
        let kubectl = self.kubectl();
        for namespace in ["keda", "monitoring", "team-a"] {
            kubectl.run(&["create", "namespace", namespace]);
        }
        kubectl
            .try_run_with(&["apply", "-f", "-"], &parts::external_metrics_api(&self.ports))
            .unwrap_or_else(|error| panic!("the external metrics API: {error}"));
        self.give_rights();
        self.start_part(Part::Keda);
        self.start_part(Part::Adapter);
        self.until_keda_serves().await;
    }

    /// Waits until the external metrics of KEDA are served.
    pub(crate) async fn until_keda_serves(&self) {
        self.until_served("/apis/external.metrics.k8s.io/v1beta1").await;
    }

    /// Waits until the API server answers at a path.
    pub(crate) async fn until_served(&self, path: &str) {
        let kubectl = self.kubectl();
        let end = Instant::now() + PATIENCE;
        while let Err(error) = kubectl.try_run(&["get", "--raw", path]) {
            assert!(
                Instant::now() < end,
                "{path} is not served, see {}: {error}",
                self.dir().display()
            );
            sleep(Duration::from_millis(300)).await;
        }
    }

    /// Starts a part, again or for the first time.
    pub(crate) fn start_part(&self, part: Part) {
        let mut command = part.command(&self.bin, &self.dir, &self.ports);
        let log = self.dir.join(format!("{}.log", part.program()));
        self.running().insert(part, Process::start(&mut command, &log));
    }

    /// Waits until nobody else breaks a part; nobody else does while this is held.
    pub(crate) async fn only_fault(self: &Arc<Self>) -> tokio::sync::MutexGuard<'_, ()> {
        self.fault.lock().await
    }

    /// Ends a part at once, as a crash does.
    pub(crate) fn kill_part(&self, part: Part) {
        drop(self.running().remove(&part));
    }

    /// Sends a signal such as `STOP` or `CONT` to a part.
    pub(crate) fn signal_part(&self, part: Part, signal: &str) {
        self.running()[&part].signal(signal);
    }

    /// Where logs and files are; they stay until the next run.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// `kubectl` with every right.
    pub(crate) fn kubectl(&self) -> Kubectl {
        Kubectl { program: self.bin.join("kubectl"), kubeconfig: self.admin() }
    }

    /// A client with every right, of the present runtime.
    pub(crate) async fn client(&self) -> kube::Client {
        rustls::crypto::ring::default_provider().install_default().ok();
        ghostscaler::cluster::connect(Some(&self.admin())).await.unwrap()
    }

    /// The kubeconfig of an administrator.
    pub(crate) fn admin(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// A kubeconfig with the rights of the scaler's own ServiceAccount, and no others, in a folder.
    pub(crate) async fn scaler_rights(&self, client: &kube::Client, dir: &Path) -> PathBuf {
        let token = token(client, "ghostscaler").await;
        let path = dir.join("scaler.kubeconfig");
        let user = format!("{{token: {token}}}");
        fs::write(&path, pki::kubeconfig(&self.dir, self.ports.api, &user)).unwrap();
        path
    }

    /// What a pod of an account of the scaler's namespace finds in its file system, in a new folder.
    pub(crate) async fn mount(&self, client: &kube::Client, account: &str) -> InPod {
        let dir = self.dir.join(format!("account-{account}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("token"), token(client, account).await).unwrap();
        fs::write(dir.join("namespace"), NAMESPACE).unwrap();
        fs::copy(self.dir.join("ca.crt"), dir.join("ca.crt")).unwrap();
        InPod { dir, api_port: self.ports.api }
    }

    /// What the account of the scaler's namespace has asked the API server for until now.
    pub(crate) fn asked_by(&self, account: &str) -> Vec<Asked> {
        let log = fs::read_to_string(self.dir.join(parts::AUDIT)).unwrap();
        audit::asked_by(&log, &format!("system:serviceaccount:{NAMESPACE}:{account}"))
    }

    fn running(&self) -> std::sync::MutexGuard<'_, BTreeMap<Part, Process>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A token of an account of the scaler's namespace, for longer than any scenario.
async fn token(client: &kube::Client, account: &str) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            expiration_seconds: Some(7_200),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let options = PostParams::default();
    let answer = accounts.create_token_request(account, &options, &request);
    answer.await.unwrap().status.unwrap().token.unwrap()
}

/// Runs what comes before any scenario.
fn on_a_runtime(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work);
}
