//! The programs of the control plane and how each is called.
//!
//! Must leave every default that the loop depends on as a cluster has it, the HPA's 15 s among them.

use std::path::Path;
use std::process::Command;

use crate::ports;

/// Where the API server writes what it was asked for.
pub(super) const AUDIT: &str = "audit.jsonl";

/// One program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Etcd,
    ApiServer,
    ControllerManager,
    Scheduler,
    Kwok,
    Keda,
    Adapter,
}

/// The port of each.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) api: u16,
    etcd: u16,
    etcd_peer: u16,
    controller_manager: u16,
    scheduler: u16,
    keda_metrics: u16,
    keda_health: u16,
    keda_service: u16,
    adapter: u16,
    adapter_metrics: u16,
}

impl Ports {
    pub(super) fn choose() -> Ports {
        let [
            api,
            etcd,
            etcd_peer,
            controller_manager,
            scheduler,
            keda_metrics,
            keda_health,
            keda_service,
            adapter,
            adapter_metrics,
        ] = ports::free();
        Ports {
            api,
            etcd,
            etcd_peer,
            controller_manager,
            scheduler,
            keda_metrics,
            keda_health,
            keda_service,
            adapter,
            adapter_metrics,
        }
    }
}

impl Part {
    pub(super) const ALL: [Part; 7] = [
        Part::Etcd,
        Part::ApiServer,
        Part::ControllerManager,
        Part::Scheduler,
        Part::Kwok,
        Part::Keda,
        Part::Adapter,
    ];

    /// Its file.
    pub(super) fn program(self) -> &'static str {
        match self {
            Part::Etcd => "etcd",
            Part::ApiServer => "kube-apiserver",
            Part::ControllerManager => "kube-controller-manager",
            Part::Scheduler => "kube-scheduler",
            Part::Kwok => "kwok",
            Part::Keda => "keda-operator",
            Part::Adapter => "keda-adapter",
        }
    }

    pub(super) fn command(self, bin: &Path, dir: &Path, ports: &Ports) -> Command {
        let mut command = Command::new(bin.join(self.program()));
        command.current_dir(dir);
        match self {
            Part::Etcd => etcd(&mut command, ports),
            Part::ApiServer => api_server(&mut command, ports),
            Part::ControllerManager => {
                delegating(&mut command, ports.controller_manager);
                command
                    .args(["--service-account-private-key-file=sa.key", "--root-ca-file=ca.crt"]);
                command.arg("--leader-elect=false");
            }
            Part::Scheduler => {
                delegating(&mut command, ports.scheduler);
                command.arg("--leader-elect=false");
            }
            Part::Kwok => {
                let stages = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/kwok.yaml");
                command.args(["--kubeconfig=admin.kubeconfig", "--manage-all-nodes"]);
                command.args(["--cidr=127.99.0.1/16", "--node-ip=127.0.0.1"]);
                // Else the controller manager calls the nodes lost after 50 s.
                command.arg("--node-lease-duration-seconds=40");
                command.arg(format!("--config={stages}"));
            }
            Part::Keda => keda(&mut command, dir, ports),
            Part::Adapter => adapter(&mut command, dir, ports),
        }
        command
    }
}

fn etcd(command: &mut Command, ports: &Ports) {
    let [client, peer] =
        [ports.etcd, ports.etcd_peer].map(|port| format!("http://127.0.0.1:{port}"));
    command.arg("--data-dir=etcd").arg("--unsafe-no-fsync").arg("--log-level=warn");
    command.arg(format!("--listen-client-urls={client}"));
    command.arg(format!("--advertise-client-urls={client}"));
    command.arg(format!("--listen-peer-urls={peer}"));
}

fn api_server(command: &mut Command, ports: &Ports) {
    command.arg(format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd));
    command.arg(format!("--secure-port={}", ports.api));
    command.args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"]);
    command.args(["--tls-cert-file=apiserver.crt", "--tls-private-key-file=apiserver.key"]);
    command.args(["--client-ca-file=ca.crt", "--authorization-mode=RBAC"]);
    command
        .args(["--service-account-key-file=sa.crt", "--service-account-signing-key-file=sa.key"]);
    command.arg("--service-account-issuer=https://kubernetes.default.svc");
    command.arg("--service-cluster-ip-range=10.96.0.0/16");
    // The aggregated API of KEDA's adapter is called with this identity.
    command.args([
        "--proxy-client-cert-file=front-proxy.crt",
        "--proxy-client-key-file=front-proxy.key",
    ]);
    command.args([
        "--requestheader-client-ca-file=ca.crt",
        "--requestheader-allowed-names=front-proxy",
    ]);
    command.arg("--requestheader-username-headers=X-Remote-User");
    command.arg("--requestheader-group-headers=X-Remote-Group");
    command.arg("--requestheader-extra-headers-prefix=X-Remote-Extra-");
    let policy = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/audit.yaml");
    command.arg(format!("--audit-policy-file={policy}")).arg(format!("--audit-log-path={AUDIT}"));
}

fn delegating(command: &mut Command, port: u16) {
    command.args(["--kubeconfig=admin.kubeconfig", "--bind-address=127.0.0.1"]);
    command.args(["--authentication-kubeconfig=admin.kubeconfig"]);
    command.args(["--authorization-kubeconfig=admin.kubeconfig"]);
    command.arg(format!("--secure-port={port}"));
}

/// Outside a cluster KEDA wants to be told where it would be.
fn keda_environment(command: &mut Command, dir: &Path) {
    command.env("KUBECONFIG", dir.join("admin.kubeconfig")).env("WATCH_NAMESPACE", "");
    command.env("POD_NAMESPACE", "keda").env("KEDA_CLUSTER_OBJECT_NAMESPACE", "keda");
}

fn keda(command: &mut Command, dir: &Path, ports: &Ports) {
    keda_environment(command, dir);
    command.args(["--cert-dir=keda-certificates", "--ca-dir=keda-certificates"]);
    command.args(["--zap-log-level=info", "--zap-time-encoding=rfc3339"]);
    command.arg(format!("--metrics-bind-address=127.0.0.1:{}", ports.keda_metrics));
    command.arg(format!("--health-probe-bind-address=127.0.0.1:{}", ports.keda_health));
    command.arg(format!("--metrics-service-bind-address=127.0.0.1:{}", ports.keda_service));
}

fn adapter(command: &mut Command, dir: &Path, ports: &Ports) {
    keda_environment(command, dir);
    command.args(["--cert-dir=keda-certificates", "--client-ca-file=ca.crt"]);
    command.args(["--tls-cert-file=keda-certificates/tls.crt"]);
    command.args(["--tls-private-key-file=keda-certificates/tls.key", "--bind-address=127.0.0.1"]);
    command.args(["--authentication-kubeconfig=admin.kubeconfig"]);
    command.args(["--authorization-kubeconfig=admin.kubeconfig"]);
    command.args(["--lister-kubeconfig=admin.kubeconfig"]);
    command.arg(format!("--secure-port={}", ports.adapter));
    command.arg(format!("--port={}", ports.adapter_metrics));
    command.arg(format!("--metrics-service-address=localhost:{}", ports.keda_service));
}

/// The API server finds the adapter under a name that stands for this machine.
pub(super) fn external_metrics_api(ports: &Ports) -> String {
    let port = ports.adapter;
    format!(
        "apiVersion: v1\n\
         kind: Service\n\
         metadata: {{name: keda-metrics-apiserver, namespace: keda}}\n\
         spec: {{type: ExternalName, externalName: localhost, ports: [{{port: {port}}}]}}\n\
         ---\n\
         apiVersion: apiregistration.k8s.io/v1\n\
         kind: APIService\n\
         metadata: {{name: v1beta1.external.metrics.k8s.io}}\n\
         spec:\n\
         \x20 service: {{name: keda-metrics-apiserver, namespace: keda, port: {port}}}\n\
         \x20 insecureSkipTLSVerify: true\n\
         \x20 group: external.metrics.k8s.io\n\
         \x20 version: v1beta1\n\
         \x20 groupPriorityMinimum: 100\n\
         \x20 versionPriority: 100\n"
    )
}
